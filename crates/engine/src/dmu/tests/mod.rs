//! Object sets against twins in memory.

mod hostile;
pub(crate) mod memory;
mod model;
mod real;
mod single;
