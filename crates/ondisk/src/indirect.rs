//! Device removal: mappings and births (docs/format/vdevs.md).
