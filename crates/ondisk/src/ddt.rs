//! Dedup tables (docs/format/mos.md).
