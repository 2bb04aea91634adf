//! What can go wrong between a block pointer and its bytes, and between devices and a pool.
use crate::io::Bookmark;
/// Why a block could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Placeholder until the read path lands.
    #[error("unreadable block {0}")]
    Unreadable(Bookmark),
}
/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No device holds this pool.
    #[error("no such pool: {0}")]
    NoSuchPool(String),
}
