//! Object sets against twins in memory.

pub(crate) mod memory;
mod model;
