//! Block reference tables of cloned blocks (docs/format/mos.md).
