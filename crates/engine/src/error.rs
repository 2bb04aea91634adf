//! Why a transaction group could not be synced. What users are told about their commands is
//! [`crate::dsl::OpError`]; this is about the pool itself.

use pool::dmu::ReadError;

/// Something went wrong below the commands.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A structure of the pool cannot be read, or is inconsistent.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No device has room for a block; the transaction group cannot be completed.
    #[error("the pool is out of space: no room for a block of {psize} bytes")]
    NoSpace {
        /// Stored bytes of the block.
        psize: u64,
    },
    /// A space map, or what is to be entered there, contradicts itself: going on would give space away that is in
    /// use.
    #[error("top-level device {vdev}, metaslab {metaslab}: {detail}")]
    SpaceMap {
        /// Id of the top-level device.
        vdev: u64,
        /// Index of the metaslab.
        metaslab: u64,
        /// What is wrong.
        detail: String,
    },
    /// Too few devices accept writes.
    #[error("cannot write to the pool: {0}")]
    Device(String),
    /// A structure cannot be expressed on disk: a bug here, or a limit of the format.
    #[error("cannot encode {what}: {detail}")]
    Encode {
        /// Which structure.
        what: &'static str,
        /// Why.
        detail: String,
    },
    /// The pool was suspended after an earlier failure; nothing is written any more.
    #[error("the pool is suspended: {0}")]
    Suspended(String),
    /// The task that writes panicked with this: nothing is written any more. What is on the devices is the last committed state.
    #[error("a defect of Millpond ended the task that writes: {0}")]
    Defect(String),
    /// Devices do not give for now what has to be known before anything is written: to be tried again when they do.
    #[error("{0}")]
    Unanswered(String),
    /// The pool has something that this version cannot write to.
    #[error("{0}")]
    Unsupported(String),
}

impl EngineError {
    /// Shorthand for [`EngineError::Encode`] in a `map_err`.
    pub fn encode(what: &'static str) -> impl FnOnce(ondisk::Error) -> Self {
        move |error| Self::Encode { what, detail: error.to_string() }
    }
}

impl From<pool::BlockError> for EngineError {
    fn from(error: pool::BlockError) -> Self {
        Self::Read(error.into())
    }
}

/// What a device said, with the system's reason: full, read only, gone.
pub(crate) fn in_full(error: &std::io::Error) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}
