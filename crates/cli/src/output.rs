//! What a command may write its output over: never a device of a pool.
//!
//! To whoever opens it, such a device is a file like any other: it was truncated, or replaced under an open pool. Its labels
//! say whose it is, whatever state the pool is in, and the lock of whoever has it open says so where they are lost.
//!
//! A disk is more than itself: the labels of a pool on one of its partitions (OpenZFS makes one of every disk that it is
//! given) are not where the disk's own would be. Partitions, and the disk of a partition, are looked at too. What the kernel
//! itself makes of a disk (LVM, LUKS, RAID) holds it, so that it cannot be locked.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use rustix::fs::{major, minor};
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
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    let kind = metadata.file_type();
    let shown = path.display();
    if kind.is_block_device() && !may.fill_devices {
        bail!("cannot write '{shown}': it is a block device");
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(());
    }
    if let Some(why) = obstacle(path, may).await? {
        bail!("cannot write '{shown}': {why}");
    }
    if kind.is_block_device() {
        let (sysfs, dev) = (Path::new("/sys/dev/block"), Path::new("/dev"));
        check_sharers(path, &Sharers::find(sysfs, &number(metadata.rdev()))?, dev).await?;
    }
    Ok(())
}

/// The same for the devices that share blocks with `path`, whose nodes are in `dev`.
async fn check_sharers(path: &Path, sharers: &Sharers, dev: &Path) -> anyhow::Result<()> {
    for (_, name) in &sharers.0 {
        let (shown, node) = (path.display(), dev.join(name));
        let named = format!("cannot write '{shown}', which shares blocks with '{}'", node.display());
        if let Some(why) = obstacle(&node, May::default()).await.with_context(|| named.clone())? {
            bail!("{named}: {why}");
        }
    }
    Ok(())
}

/// Why what is there may not be written over, if that is so.
async fn obstacle(path: &Path, may: May) -> anyhow::Result<Option<String>> {
    let locked = OpenOptions { lock: true, ..OpenOptions::default() };
    let disk = match FileDisk::open(path, locked) {
        Ok(disk) => disk,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            return Ok(Some(format!("{error}: it is a device of an open pool, or mounted")));
        }
        // A file that cannot be written to can be replaced.
        Err(_) => FileDisk::open(path, OpenOptions { read_only: true, ..OpenOptions::default() })?,
    };
    let Some(device) = Device::read(Arc::new(disk)).await? else { return Ok(None) };
    // Spares and cache devices do not name their pool.
    let pool = device.config_at(u64::MAX).and_then(|config| config.str("name").map(str::to_owned));
    let of_pool = match (&pool, may.replace) {
        (Some(pool), Some(own)) if pool == own => return Ok(None),
        (None, Some(_)) => return Ok(None),
        (Some(pool), _) => format!("of pool '{pool}'"),
        (None, None) => "of a pool".to_owned(),
    };
    let give_up = format!("to give it up: 'zpool labelclear {}'", path.display());
    Ok(Some(format!("it is a device {of_pool}\n{give_up}")))
}

/// Refuses the devices of a pool that is open here, which a command only reads and does not lock; whatever became of their
/// labels.
///
/// # Errors
/// It is one; or it cannot be found out what is on it.
pub(crate) fn refuse_members(pool: &Pool, path: &Path) -> anyhow::Result<()> {
    let Ok(target) = fs::metadata(path) else { return Ok(()) };
    let tree = pool.tree();
    let members = tree.leaves().into_iter().chain(pool.spares()).chain(pool.l2cache());
    let members = members.filter_map(|vdev| fs::metadata(vdev.path.as_deref()?).ok());
    let is_member = if target.file_type().is_block_device() {
        let (own, sysfs) = (number(target.rdev()), Path::new("/sys/dev/block"));
        let sharers = Sharers::find(sysfs, &own)?;
        let mut devices = members.filter(|member| member.file_type().is_block_device());
        devices.any(|member| number(member.rdev()) == own || sharers.has(&number(member.rdev())))
    } else {
        let file = (target.dev(), target.ino());
        members.into_iter().any(|member| (member.dev(), member.ino()) == file)
    };
    if is_member {
        bail!("cannot write '{}': it is a device of pool '{}'", path.display(), pool.name());
    }
    Ok(())
}

/// A block device's number as the kernel writes it.
fn number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// The block devices whose blocks are, or are among, those of another: its partitions, or the disk that it is a partition of.
/// The number of each, and its name in `/dev`.
#[derive(Debug, PartialEq, Eq)]
struct Sharers(Vec<(String, PathBuf)>);

impl Sharers {
    /// Those of the device of this number, as `sysfs` (`/sys/dev/block`) has them.
    ///
    /// # Errors
    /// It has no such device.
    fn find(sysfs: &Path, number: &str) -> anyhow::Result<Self> {
        let of_device = || -> std::io::Result<Vec<(String, PathBuf)>> {
            let device = fs::canonicalize(sysfs.join(number))?;
            let mut found = Vec::new();
            for entry in fs::read_dir(&device)? {
                let entry = entry?.path();
                if entry.join("partition").exists() {
                    found.push(entry);
                }
            }
            if device.join("partition").exists() {
                found.extend(device.parent().map(Path::to_owned));
            }
            let described = |device: PathBuf| {
                // The kernel writes a `/` in a name as `!`.
                let name = device.file_name().unwrap_or_default().to_string_lossy().replace('!', "/");
                Ok((fs::read_to_string(device.join("dev"))?.trim().to_owned(), PathBuf::from(name)))
            };
            found.into_iter().map(described).collect()
        };
        let found = of_device().with_context(|| format!("cannot find out what is on block device {number}"));
        found.map(|mut found| {
            found.sort();
            Self(found)
        })
    }

    fn has(&self, number: &str) -> bool {
        self.0.iter().any(|(other, _)| other == number)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Disk `sdb` with two partitions.
    fn system() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let disk = root.join("devices/block/sdb");
        for (device, number, is_partition) in
            [("", "8:16", false), ("sdb1", "8:17", true), ("sdb2", "8:18", true)]
        {
            let device = disk.join(device);
            fs::create_dir_all(device.join("holders")).unwrap();
            fs::write(device.join("dev"), format!("{number}\n")).unwrap();
            if is_partition {
                fs::write(device.join("partition"), "1\n").unwrap();
            }
            fs::create_dir_all(root.join("dev/block")).unwrap();
            symlink(&device, root.join("dev/block").join(number)).unwrap();
        }
        dir
    }

    /// An image was written over the pool on a partition of the disk that was named, which may have been the pool that it
    /// was read from.
    #[tokio::test]
    async fn a_disk_with_a_pool_on_a_partition_is_not_written_over() {
        let dir = system();
        let sysfs = dir.path().join("dev/block");
        let disk = Sharers::find(&sysfs, "8:16").unwrap();
        let of_disk = [("8:17", "sdb1"), ("8:18", "sdb2")];
        assert_eq!(disk, Sharers(of_disk.map(|(number, name)| (number.to_owned(), name.into())).to_vec()));
        assert!(disk.has("8:18") && !disk.has("8:16") && !disk.has("8:1"));
        let partition = Sharers::find(&sysfs, "8:18").unwrap();
        assert_eq!(partition, Sharers(vec![("8:16".to_owned(), "sdb".into())]), "not its neighbour");
        Sharers::find(&sysfs, "8:32").unwrap_err();

        let nodes = tempfile::tempdir().unwrap();
        let (target, blank) = (Path::new("/dev/sdb"), nodes.path().join("sdb1"));
        let file = fs::File::create(&blank).unwrap();
        file.set_len(64 << 20).unwrap();
        let why = check_sharers(target, &disk, nodes.path()).await.unwrap_err();
        assert!(why.to_string().ends_with("sdb2'"), "it cannot be looked at: {why:#}");
        fs::copy(&blank, nodes.path().join("sdb2")).unwrap();
        check_sharers(target, &disk, nodes.path()).await.unwrap();
        let pool = fixtures::pool("single").copy();
        let device =
            fs::read_dir(pool.path()).unwrap().flatten().find(|entry| entry.path().is_file()).unwrap();
        fs::remove_file(nodes.path().join("sdb2")).unwrap();
        symlink(device.path(), nodes.path().join("sdb2")).unwrap();
        let why = check_sharers(target, &disk, nodes.path()).await.unwrap_err().to_string();
        assert!(
            why.starts_with("cannot write '/dev/sdb', which shares blocks with") && why.contains("sdb2"),
            "{why}"
        );
        assert!(why.contains("it is a device of pool 'psingle'"), "{why}");
    }
}
