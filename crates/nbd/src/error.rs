//! The two ways things go wrong on a connection: a request that fails, which is answered by number and
//! costs nothing else, and a stream that cannot be followed any more, which ends the connection.

use std::borrow::Cow;

use block::{VolumeError, shown};

/// Errors by their number on the wire, which is not the host's `errno` everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Read-only.
    Perm = 1,
    /// Unreadable.
    Io = 5,
    /// Malformed, out of range.
    Invalid = 22,
    /// Beyond the end, or the pool is full.
    NoSpace = 28,
    /// More than can be answered.
    Overflow = 75,
    /// Not fast enough.
    NotSupported = 95,
    /// The server is going away.
    Shutdown = 108,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NbdError {
    /// The number the client gets.
    pub errno: Errno,
    /// For clients that show text (structured replies).
    pub message: Cow<'static, str>,
    /// The first byte that failed, where that is known.
    pub offset: Option<u64>,
}

impl NbdError {
    /// An error with a fixed message.
    pub(crate) const fn new(errno: Errno, message: &'static str) -> Self {
        Self { errno, message: Cow::Borrowed(message), offset: None }
    }

    /// Of a write, of data or of zeroes: beyond the end of a volume that was made smaller there is no room for it. Anything
    /// else there is invalid (NBD `doc/proto.md`, "Error values").
    pub(crate) fn of_write(error: VolumeError) -> Self {
        let is_beyond_end = matches!(error, VolumeError::OutOfRange { .. });
        let error = Self::from(error);
        if is_beyond_end { Self { errno: Errno::NoSpace, ..error } } else { error }
    }
}

impl From<VolumeError> for NbdError {
    fn from(error: VolumeError) -> Self {
        let message = Cow::Owned(error.to_string());
        let (errno, offset) = match error {
            VolumeError::OutOfRange { .. } => (Errno::Invalid, None),
            VolumeError::ReadOnly => (Errno::Perm, None),
            VolumeError::NoSpace => (Errno::NoSpace, None),
            VolumeError::Unreadable { offset, .. } => (Errno::Io, Some(offset)),
            VolumeError::NotReady(_) => (Errno::Shutdown, None),
            // `Unsupported` too: ENOTSUP is reserved for fast zeroing, so all else is an I/O error.
            _ => (Errno::Io, None),
        };
        Self { errno, message, offset }
    }
}

/// Why a connection cannot go on: the stream is out of step, or the client is no NBD client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Client flags we do not know: the protocol says to hang up.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// The bytes before an option are not the option magic.
    #[error("bad option magic {0:#018x}")]
    OptionMagic(u64),
    /// The bytes before a request are not the request magic.
    #[error("bad request magic {0:#010x}")]
    RequestMagic(u32),
    /// `EXPORT_NAME` can only be answered by hanging up.
    #[error("no export named {0:?}")]
    UnknownExport(String),
    /// Newstyle clients that are not "fixed" know one option only.
    #[error("option {0} from a client without fixed newstyle")]
    NotFixed(u32),
    /// `EXPORT_NAME` without TLS, where TLS is required: it can only be answered by hanging up.
    #[error("an export chosen without TLS, which is required here")]
    NotSecured,
    /// Bytes in the clear where TLS begins: not what a client sends, but what somebody on the way adds.
    #[error("{0} bytes in the clear behind STARTTLS")]
    Injected(usize),
    /// A payload so long that following it makes no sense.
    #[error("payload of {0} bytes announced")]
    PayloadTooLong(u64),
}

impl ProtocolError {
    /// [`Self::UnknownExport`] of what a client calls a name, as far as it is worth a line.
    pub(crate) fn unknown_export(name: &[u8]) -> Self {
        Self::UnknownExport(shown(&String::from_utf8_lossy(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_make_up_fill_no_log() {
        let said = |name: &[u8]| ProtocolError::unknown_export(name).to_string();
        assert_eq!(said(b"tank/vm\xc3\xa9\xff"), "no export named \"tank/vm\u{e9}\u{fffd}\"");
        for garbage in [&b"\xff"[..], b"\n", "\u{1f4a9}".as_bytes()] {
            let line = said(&garbage.repeat(8 << 10));
            assert!(line.len() < 1000, "{} bytes", line.len());
        }
    }
}
