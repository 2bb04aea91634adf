//! Persistent L2ARC (docs/format/l2arc.md).
