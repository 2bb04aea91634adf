//! The second step after a crash: what the claimed logs say is done again.
