//! Object sets: a meta dnode over an array of dnodes, and what else a dataset needs at its root.
//!
//! The block grew over time: 1024 bytes at first, 2048 with user and group accounting, 4096 with
//! project accounting. A shorter block just lacks the later dnodes. The intent log's header lies in
//! the middle and is kept here as bytes; [`crate::zil`] understands it.
//!
//! Facts: docs/format/dmu.md §3.

use crate::dnode::{Dnode, ObjectType, SLOT_BYTES};
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "objset";

/// Size of the intent log's header in bytes.
pub const ZIL_HEADER_BYTES: usize = 192;
/// Byte offset of the intent log's header in the objset block.
pub const ZIL_HEADER_OFFSET: usize = 512;

/// What a dataset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjsetType {
    /// The pool's own meta object set.
    Meta,
    /// A file system (or a snapshot of one).
    FileSystem,
    /// A volume.
    Volume,
    /// Neither: only stress testers make these.
    Other,
}

impl ObjsetType {
    /// By the number on disk.
    #[must_use]
    pub const fn from_id(id: u64) -> Option<Self> {
        match id {
            1 => Some(Self::Meta),
            2 => Some(Self::FileSystem),
            3 => Some(Self::Volume),
            4 => Some(Self::Other),
            _ => None,
        }
    }

    /// The number on disk.
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::Meta => 1,
            Self::FileSystem => 2,
            Self::Volume => 3,
            Self::Other => 4,
        }
    }
}

/// Bits of an objset's `flags`.
pub mod flags {
    /// User and group space accounting is complete.
    pub const USER_ACCOUNTING: u64 = 1;
    /// Object-count accounting is complete.
    pub const USER_OBJECT_ACCOUNTING: u64 = 2;
    /// Project accounting is complete.
    pub const PROJECT_ACCOUNTING: u64 = 4;
}

/// The three sizes of an objset block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjsetForm {
    /// 1024 bytes: no accounting dnodes.
    Plain,
    /// 2048 bytes: user and group accounting.
    UserGroup,
    /// 4096 bytes: project accounting too. What current software writes.
    Project,
}

impl ObjsetForm {
    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Plain => 1024,
            Self::UserGroup => 2048,
            Self::Project => 4096,
        }
    }
}

/// The root block of an object set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjsetPhys {
    /// The array of dnodes: an object of type 10.
    pub meta_dnode: Dnode,
    /// The intent log's header, 192 bytes, for [`crate::zil`].
    pub zil_header: [u8; ZIL_HEADER_BYTES],
    /// What it is.
    pub kind: ObjsetType,
    /// See [`flags`].
    pub flags: u64,
    /// MAC over what is portable between machines (encryption), else zero.
    pub portable_mac: [u8; 32],
    /// MAC over the rest (encryption), else zero.
    pub local_mac: [u8; 32],
    /// Space by user, a ZAP.
    pub user_used: Option<Dnode>,
    /// Space by group, a ZAP.
    pub group_used: Option<Dnode>,
    /// Space by project, a ZAP.
    pub project_used: Option<Dnode>,
    /// How large the block is.
    pub form: ObjsetForm,
}

impl ObjsetPhys {
    /// Reads an objset block of 1024, 2048 or 4096 bytes.
    ///
    /// # Errors
    /// Another length, an unknown type, or a meta dnode that is none.
    pub fn decode(data: &[u8], order: Order) -> Result<Self> {
        let form = match data.len() {
            0..1024 => {
                let reason = Reason::Truncated { need: 1024, have: data.len() };
                return Err(Error::new(STRUCTURE, 0, reason));
            }
            1024 => ObjsetForm::Plain,
            2048 => ObjsetForm::UserGroup,
            4096 => ObjsetForm::Project,
            len => {
                let reason = Reason::OutOfRange { field: "block length", value: len as u64 };
                return Err(Error::new(STRUCTURE, 0, reason));
            }
        };
        let Some(meta_dnode) = dnode_at(data, 0, order)? else {
            return Err(Error::new(STRUCTURE, 0, Reason::Inconsistent("the meta dnode is free")));
        };
        if meta_dnode.object_type != ObjectType::DNODE {
            let value = u64::from(meta_dnode.object_type.0);
            return Err(Error::new(
                STRUCTURE,
                0,
                Reason::OutOfRange { field: "type of the meta dnode", value },
            ));
        }
        let mut reader = Reader::new(STRUCTURE, data, order);
        reader.seek(ZIL_HEADER_OFFSET)?;
        let zil_header = reader.array()?;
        let [kind, flags] = reader.words()?;
        let Some(kind) = ObjsetType::from_id(kind) else {
            return Err(Error::new(STRUCTURE, 704, Reason::OutOfRange { field: "type", value: kind }));
        };
        Ok(Self {
            meta_dnode,
            zil_header,
            kind,
            flags,
            portable_mac: reader.array()?,
            local_mac: reader.array()?,
            user_used: dnode_at(data, 1024, order)?,
            group_used: dnode_at(data, 1536, order)?,
            project_used: dnode_at(data, 2048, order)?,
            form,
        })
    }

    /// The block's bytes, in its [`form`](Self::form).
    ///
    /// # Errors
    /// A dnode without encoding, larger than one slot, or for which the form has no place.
    pub fn encode(&self, order: Order) -> Result<Vec<u8>> {
        let len = self.form.bytes();
        let mut writer = Writer::with_capacity(len, order);
        write_dnode(&mut writer, 0, len, Some(&self.meta_dnode))?;
        writer.bytes(&self.zil_header);
        writer.words(&[self.kind.id(), self.flags]);
        writer.bytes(&self.portable_mac);
        writer.bytes(&self.local_mac);
        write_dnode(&mut writer, 1024, len, self.user_used.as_ref())?;
        write_dnode(&mut writer, 1536, len, self.group_used.as_ref())?;
        write_dnode(&mut writer, 2048, len, self.project_used.as_ref())?;
        writer.pad_to(len);
        Ok(writer.finish())
    }

    /// Block of the meta dnode that holds object `number`, and the byte offset in that block.
    /// `None` if the object number cannot exist: 0, or above 2^48.
    #[must_use]
    pub fn locate(&self, number: u64) -> Option<(u64, usize)> {
        if number == 0 || number > 1 << 48 {
            return None;
        }
        let per_block = self.meta_dnode.data_block_bytes().checked_div(SLOT_BYTES as u64)?;
        let slot = usize::try_from(number.checked_rem(per_block)?).ok()?;
        Some((number.checked_div(per_block)?, slot.checked_mul(SLOT_BYTES)?))
    }
}

/// The one-slot dnode at byte `at`; beyond the end it is absent.
fn dnode_at(data: &[u8], at: usize, order: Order) -> Result<Option<Dnode>> {
    let Some(slot) = data.get(at..at.saturating_add(SLOT_BYTES)) else { return Ok(None) };
    let decoded = Dnode::decode(slot, order);
    decoded.map_err(|error| Error { offset: error.offset.saturating_add(at), ..error })
}

fn write_dnode(writer: &mut Writer, at: usize, len: usize, dnode: Option<&Dnode>) -> Result<()> {
    let Some(dnode) = dnode else { return Ok(()) };
    let bytes = dnode.encode(writer.order())?;
    if at >= len || bytes.len() != SLOT_BYTES {
        return Err(Error::new(STRUCTURE, at, Reason::Inconsistent("no place for this dnode in this form")));
    }
    writer.pad_to(at);
    writer.bytes(&bytes);
    Ok(())
}

#[cfg(test)]
mod tests;
