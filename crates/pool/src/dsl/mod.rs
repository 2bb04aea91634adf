//! (placeholder: owned by the object layer, see the crate's map)
