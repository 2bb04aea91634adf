//! The server's promises, for stock clients and a raw one. One program, because each would have to be linked anew.
#![allow(clippy::unwrap_used, reason = "a test may panic: that is how it fails")]

mod clients;
mod crowds;
mod gone;
mod handshake;
mod room;
mod stops;
mod strangers;
mod support;
mod tls;
mod volumes;
mod wire;
