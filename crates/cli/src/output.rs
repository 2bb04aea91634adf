//! What a command may write its output over: never a device of a pool.
//!
//! To whoever opens it, such a device is a file like any other: it was truncated, or replaced under an open pool. Its labels
//! say whose it is, whatever state the pool is in, and the lock of whoever has it open says so where they are lost.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    sync::Arc,
};

use anyhow::bail;
use server::{
    disk::{FileDisk, OpenOptions},
    pool::{Pool, import::Device},
};

/// What the command is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct May {
    /// Filling block devices.
    pub(crate) fill_devices: bool,
    /// Replacing devices of pools of this name that are not open, and the cache devices that may be theirs.
    pub(crate) replace: Option<&'static str>,
}

/// Finds out whether `path` may be written over. What is not there may be; so may pipes and terminals.
///
/// # Errors
/// It is a device of a pool, in use, or a block device that the command is not for; or it cannot be looked at.
pub(crate) async fn check(path: &Path, may: May) -> anyhow::Result<()> {
    let Ok(kind) = fs::metadata(path).map(|metadata| metadata.file_type()) else { return Ok(()) };
    let shown = path.display();
    if kind.is_block_device() && !may.fill_devices {
        bail!("cannot write '{shown}': it is a block device");
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(());
    }
    let locked = OpenOptions { lock: true, ..OpenOptions::default() };
    let disk = match FileDisk::open(path, locked) {
        Ok(disk) => disk,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            bail!("cannot write '{shown}': {error}: it is a device of an open pool, or mounted");
        }
        // A file that cannot be written to can be replaced.
        Err(_) => FileDisk::open(path, OpenOptions { read_only: true, ..OpenOptions::default() })?,
    };
    let Some(device) = Device::read(Arc::new(disk)).await? else { return Ok(()) };
    // Spares and cache devices do not name their pool.
    let pool = device.config_at(u64::MAX).and_then(|config| config.str("name").map(str::to_owned));
    let of_pool = match (&pool, may.replace) {
        (Some(pool), Some(own)) if pool == own => return Ok(()),
        (None, Some(_)) => return Ok(()),
        (Some(pool), _) => format!("of pool '{pool}'"),
        (None, None) => "of a pool".to_owned(),
    };
    bail!("cannot write '{shown}': it is a device {of_pool}\nto give it up: 'zpool labelclear {shown}'")
}

/// The same for the devices of a pool that is open here, which a command only reads and does not lock; whatever became of
/// their labels.
///
/// # Errors
/// It is one.
pub(crate) fn refuse_members(pool: &Pool, path: &Path) -> anyhow::Result<()> {
    let Ok(target) = fs::metadata(path) else { return Ok(()) };
    let tree = pool.tree();
    let members = tree.leaves().into_iter().chain(pool.spares()).chain(pool.l2cache());
    for member in members.filter_map(|vdev| vdev.path.as_deref()) {
        let Ok(member) = fs::metadata(member) else { continue };
        let same_device = target.file_type().is_block_device()
            && member.file_type().is_block_device()
            && target.rdev() == member.rdev();
        if same_device || (target.dev(), target.ino()) == (member.dev(), member.ino()) {
            bail!("cannot write '{}': it is a device of pool '{}'", path.display(), pool.name());
        }
    }
    Ok(())
}
