//! The kernels against vectors and strangers. One program, because each would have to be linked anew.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is the report")]

mod hostile;
mod vectors;
