//! `millpond` (skeleton).
fn main() {}
