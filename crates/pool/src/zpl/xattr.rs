//! Extended attributes: an nvlist among the file's own attributes (`xattr=sa`), a hidden directory of small
//! files (`xattr=dir`), or both; the list wins where both have a name. Facts: docs/format/zpl.md §7.

use std::collections::BTreeMap;

use ondisk::nvlist::{NvList, Value};

use super::{FileError, Node};
use crate::dmu::ReadError;

/// Largest value read, in bytes. OpenZFS has no limit for those kept as files; Linux passes on 64 KiB.
const VALUE_MAX: u64 = 16 << 20;

pub(super) async fn read(node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>, FileError> {
    let mut found = BTreeMap::new();
    if node.xattr_object != 0 {
        let directory = node.file_system().node(node.xattr_object).await?;
        for entry in directory.entries().await? {
            let value = node.file_system().node(entry.object).await?;
            if value.stat().size > VALUE_MAX {
                let (objset, object) = (value.object().objset(), value.number());
                return Err(ReadError::TooLarge { objset, object, limit: VALUE_MAX }.into());
            }
            found.insert(entry.name, value.read(0, VALUE_MAX as usize).await?);
        }
    }
    if let Some(list) = &node.xattr_list {
        let at = node.object().bookmark(0, 0);
        let list = NvList::decode(list).map_err(ReadError::malformed(at))?;
        for (name, value) in list.iter() {
            if let Value::ByteArray(bytes) = value {
                found.insert(name.as_bytes().to_vec(), bytes.clone());
            }
        }
    }
    Ok(found.into_iter().collect())
}
