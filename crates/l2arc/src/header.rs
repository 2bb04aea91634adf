//! A device's layout, and its header: how it is read, judged and written.
//!
//! Facts: docs/format/l2arc.md, sections 1 and 5.

use std::{fmt, io};

use codec::checksum::{Checksum, Form, embedded};
use disk::{Disk, IoBuf};
use ondisk::{
    Order, Reason,
    l2arc::{HEADER_BYTES_MIN, HEADER_OFFSET, Header, log_entries_of},
    label::LABEL_BYTES,
};

use crate::patient::Patient;

/// Where the ring lies on a device, and its units. Addresses are byte positions on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First byte of the ring.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// What blocks are rounded up to: a power of two.
    pub sector: u64,
    /// Blocks that a log block tells of; 0 if nothing is remembered across imports.
    pub log_entries: u64,
}

/// A device whose ring is smaller is not used: it would hold no more than a few blocks.
const RING_MIN: u64 = 8 << 20;

/// Bytes of a device of `size` bytes up to the labels at its end, which is where its ring ends: what is compared with
/// [`Config::persist_min`](crate::Config::persist_min). Cache devices may be smaller than any
/// [`ondisk::label::Geometry`] there is.
#[must_use]
pub fn reach(size: u64) -> u64 {
    (size / LABEL_BYTES * LABEL_BYTES).saturating_sub(2 * LABEL_BYTES)
}

impl Geometry {
    /// The layout of a device of `size` bytes with sectors of `1 << ashift`; devices that end before `persist_min`
    /// remember nothing. `None` if it is too small to be used.
    #[must_use]
    pub fn of(size: u64, ashift: u32, persist_min: u64) -> Option<Self> {
        let sector = 1u64.checked_shl(ashift).filter(|sector| (512..=65536).contains(sector))?;
        let start = HEADER_OFFSET + sector.max(HEADER_BYTES_MIN as u64);
        let end = reach(size);
        if end.checked_sub(start)? < RING_MIN {
            return None;
        }
        Some(Self { start, end, sector, log_entries: log_entries_of(start, end, persist_min) })
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn ring(&self) -> u64 {
        self.end - self.start
    }

    /// What `bytes` take on the device.
    #[must_use]
    pub fn aligned(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.sector)
    }

    fn header_bytes(&self) -> usize {
        (self.start - HEADER_OFFSET) as usize
    }
}

/// Why what a device remembers is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Nobody asked for it: the device is new, or the pool was rewound.
    #[error("it is used afresh")]
    Fresh,
    /// The device could not be read.
    #[error("its header cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Never written, torn, or rotten.
    #[error("its header is not valid: {0}")]
    Checksum(embedded::Error),
    /// Something that this version does not understand.
    #[error("its header is not understood: {0}")]
    Format(ondisk::Error),
    /// Written for another pool or as another device, or the device has another size now.
    #[error("its header was written for {0}")]
    Other(Mismatch),
    /// It is to be trimmed, and was not.
    #[error("it was not trimmed")]
    Untrimmed,
}

/// What a header says differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The pool.
    Pool(u64),
    /// The device.
    Device(u64),
    /// Its size.
    End(u64),
    /// Entries per log block.
    Entries(u64),
    /// Where the ring starts.
    Start(u64),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(guid) => write!(f, "the pool {guid}"),
            Self::Device(guid) => write!(f, "the device {guid}"),
            Self::End(end) => write!(f, "a device that ends at {end}"),
            Self::Entries(entries) => write!(f, "log blocks of {entries} entries"),
            Self::Start(start) => write!(f, "a ring from {start} on"),
        }
    }
}

/// Who a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Guid of its pool.
    pub pool: u64,
    /// Its own guid.
    pub vdev: u64,
}

/// The header on the device, if it is that of this device in this pool. An answer that the device owes is waited for.
pub(crate) async fn read(disk: &Patient, geometry: &Geometry, who: Identity) -> Result<Header, Refused> {
    let bytes = disk.read_in_the_end(HEADER_OFFSET, geometry.header_bytes()).await?;
    let decoded = Header::decode(&bytes);
    // What does not even begin like a header was never one: the device is new.
    if let Err(ondisk::Error { reason: Reason::BadMagic { .. }, .. }) = &decoded {
        return Err(Refused::Fresh);
    }
    embedded::verify(embedded::Kind::Label, &bytes, VERIFIER, Form::Whole).map_err(Refused::Checksum)?;
    let (header, _order) = decoded.map_err(Refused::Format)?;
    let mismatch = if header.vdev_guid != who.vdev {
        Mismatch::Device(header.vdev_guid)
    } else if header.pool_guid != who.pool {
        Mismatch::Pool(header.pool_guid)
    } else if header.end != geometry.end {
        Mismatch::End(header.end)
    } else if header.start != geometry.start {
        Mismatch::Start(header.start)
    } else if header.log_entries != geometry.log_entries {
        Mismatch::Entries(header.log_entries)
    } else {
        return Ok(header);
    };
    Err(Refused::Other(mismatch))
}

/// Writes the header; bytes written.
pub(crate) async fn write(disk: &dyn Disk, geometry: &Geometry, header: &Header) -> io::Result<u64> {
    let mut bytes = header.encode(geometry.header_bytes(), Order::Little);
    embedded::seal(embedded::Kind::Label, &mut bytes, VERIFIER, codec::Order::Little)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let len = bytes.len() as u64;
    disk.write(HEADER_OFFSET, IoBuf::from_slice(&bytes).freeze()).await?;
    Ok(len)
}

const VERIFIER: Checksum = Checksum([HEADER_OFFSET, 0, 0, 0]);

#[cfg(test)]
mod tests {
    use super::*;

    /// The two real headers of docs/format/l2arc.md.
    #[test]
    fn rings_lie_where_real_devices_have_them() {
        let small = Geometry::of(320 << 20, 9, 1 << 30).unwrap();
        assert_eq!((small.start, small.end, small.log_entries), (0x40_0200, 0x13f8_0000, 0));
        let large = Geometry::of(1280 << 20, 9, 1 << 30).unwrap();
        assert_eq!((large.start, large.end, large.log_entries), (0x40_0200, 0x4ff8_0000, 79));
        assert_eq!(Geometry::of(64 << 20, 12, 0).unwrap().log_entries, 3);
        let labels = 512 << 10;
        assert_eq!((reach(1 << 30), reach((1 << 30) + labels)), ((1 << 30) - labels, 1 << 30));
        assert_eq!(Geometry::of(1 << 30, 9, 1 << 30).unwrap().log_entries, 0, "too small by its labels");
        assert_eq!(Geometry::of((1 << 30) + labels, 9, 1 << 30).unwrap().log_entries, 63);
        assert_eq!(Geometry::of(8 << 20, 12, 0), None);
        assert_eq!(Geometry::of(1 << 40, 63, 0), None);
    }
}
