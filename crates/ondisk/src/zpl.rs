//! Structures of the file-system layer (docs/format/zpl.md).
