//! Against pools on disk.
