//! Pools from nothing, and new devices for pools there are: what goes on the labels, which devices may be used.
//!
//! Facts: docs/format/labels.md, zvol.md §3, spacemap.md §1.
