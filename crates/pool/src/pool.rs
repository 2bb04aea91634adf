//! (placeholder)
/// An open pool.
#[derive(Debug)]
pub struct Pool {}
