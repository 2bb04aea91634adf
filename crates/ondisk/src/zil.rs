//! The intent log (docs/format/zil.md).
