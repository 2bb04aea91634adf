//! Progress of long work: a bar on a terminal, plain lines in a pipe.
