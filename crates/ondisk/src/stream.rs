//! Send streams (docs/format/send-stream.md).
