//! (being written)
/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No device holds this pool.
    #[error("no such pool: {0}")]
    NoSuchPool(String),
}
