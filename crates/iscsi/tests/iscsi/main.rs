//! The target's promises, as a value and over sockets. One program, because each would have to be linked anew.
#![allow(clippy::unwrap_used, reason = "a test may panic: that is how it fails")]

mod admission;
mod clients;
mod cluster;
mod crowds;
mod disks;
mod hosts;
mod initiator;
mod login;
mod long;
mod protocol;
mod room;
mod server;
mod strangers;
mod support;
mod unanswered;
mod volumes;
