//! System attributes (docs/format/zpl.md).
