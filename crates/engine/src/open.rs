//! Opening a pool to write to it: what is checked, what is refused, where the first transaction group starts.
//!
//! Facts: docs/format/overview.md §7, features.md.
