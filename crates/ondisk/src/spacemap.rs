//! Space maps and log space maps (docs/format/spacemap.md).
