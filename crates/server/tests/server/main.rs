//! What the daemon is made of, where it meets others. One program, because each would have to be compiled and linked with
//! everything.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what fails here fails a test; the world outside is real"
)]

mod delivery;
mod mute;
