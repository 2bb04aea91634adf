//! The numbers of the wire, by the protocol's own names. Facts: NBD `doc/proto.md`, "Values", and its
//! `extension-ext-header` branch. All integers on the wire are big-endian.

/// First eight bytes a server sends.
pub const MAGIC_INIT: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second eight bytes of a newstyle server, and the magic before each option.
pub const MAGIC_OPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Before each option reply.
pub const MAGIC_OPT_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Before each request with compact headers.
pub const MAGIC_REQUEST: u32 = 0x2560_9513;
/// Before each request with extended headers.
pub const MAGIC_REQUEST_EXT: u32 = 0x21e4_1c71;
/// Before each simple reply.
pub const MAGIC_SIMPLE: u32 = 0x6744_6698;
/// Before each structured reply chunk.
pub const MAGIC_STRUCTURED: u32 = 0x668e_33ef;
/// Before each extended reply chunk.
pub const MAGIC_EXTENDED: u32 = 0x6e8a_278c;

/// Bytes of a request header with compact headers.
pub const REQUEST_LEN: usize = 28;
/// Bytes of a request header with extended headers.
pub const REQUEST_EXT_LEN: usize = 32;
/// Bytes of an option header: magic, option, length.
pub const OPTION_LEN: usize = 16;

/// Longest string the protocol allows, in bytes.
pub const MAX_STRING: usize = 4096;
/// Largest `READ` and `WRITE`, in bytes: what clients assume where a server says nothing.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Handshake flags, the server's and the client's (same bits).
pub mod handshake_flag {
    /// Errors to options are possible.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zero bytes after `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Options a client may ask for (`NBD_OPT_*`).
pub mod opt {
    /// Choose an export; no error reply possible.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session politely.
    pub const ABORT: u32 = 2;
    /// Names of the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// What an export is.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Replies in chunks.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Names of metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options (`NBD_REP_*`); errors have bit 31.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = (1 << 31) | 1;
    /// Known, and forbidden here.
    pub const ERR_POLICY: u32 = (1 << 31) | 2;
    /// Malformed, or out of place.
    pub const ERR_INVALID: u32 = (1 << 31) | 3;
    /// Nothing without TLS.
    pub const ERR_TLS_REQD: u32 = (1 << 31) | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) | 6;
    /// The server is going away.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) | 7;
    /// More than the server reads.
    pub const ERR_TOO_BIG: u32 = (1 << 31) | 9;
    /// Not after extended headers.
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) | 10;
}

/// Kinds of information (`NBD_INFO_*`).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// For people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred, maximum.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags (`NBD_FLAG_*`): what an export can do.
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes get `EPERM`.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `FUA` works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `DF` works.
    pub const SEND_DF: u16 = 1 << 7;
    /// Connections are coherent: a flush on one covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `FAST_ZERO` works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands (`NBD_CMD_*`).
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect; no reply.
    pub const DISC: u16 = 2;
    /// Make answered writes stable.
    pub const FLUSH: u16 = 3;
    /// Free a range.
    pub const TRIM: u16 = 4;
    /// Prefetch.
    pub const CACHE: u16 = 5;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Data or hole.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags (`NBD_CMD_FLAG_*`).
pub mod cmd_flag {
    /// Stable before the reply.
    pub const FUA: u16 = 1;
    /// Zeroes keep their space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// At most one content chunk.
    pub const DF: u16 = 1 << 2;
    /// At most one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `ENOTSUP` rather than slow.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// Extended headers: the length is that of a payload which follows.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Reply chunks (`NBD_REPLY_TYPE_*`) and their flag.
pub mod chunk {
    /// The chunk flag of the last chunk.
    pub const DONE: u16 = 1;
    /// Nothing more to say.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents, 32-bit.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents, 64-bit.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = (1 << 15) | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) | 2;
}

/// States of `base:allocation`.
pub mod state {
    /// Holds no space.
    pub const HOLE: u32 = 1;
    /// Reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// The one metadata context offered.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its id on this server.
pub const BASE_ALLOCATION_ID: u32 = 1;
