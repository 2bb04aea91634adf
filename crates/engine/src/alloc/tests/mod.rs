//! What an allocator promises: nobody's space is given to another, nothing that an older uberblock can reach is
//! given away, and the maps say what is so.

mod aside;
mod model;
mod netting;
mod pools;
mod sets;
