//! Getting hold of devices for a pool: files made sparse, sectors asked for, and nothing taken that is in use.
//!
//! A device is locked before its content is looked at, so what was found still holds when labels are written.
//! Messages are OpenZFS's. Facts: docs/format/labels.md §4.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use disk::{Disk, FileDisk, IoBuf};
use ondisk::{label::PoolState, nvlist::NvList};
use pool::{
    import::{Device, look_up_in_time, open_in_time},
    status::human,
};

use super::{plan::DeviceFacts, spec::SpecError};
use crate::BoxFuture;

/// Directories in which devices are looked for by their last name, as OpenZFS does.
const SEARCHED: [&str; 5] =
    ["/dev", "/dev/disk/by-id", "/dev/disk/by-path", "/dev/disk/by-label", "/dev/mapper"];
/// Bytes at the start of a device in which other owners leave their marks: UFS has the last of them.
const MARKED_BYTES: u64 = 68 << 10;
/// Bytes at its end in which they do: md's oldest superblock is in the last 64 KiB that begin at a multiple of that.
const MARKED_END_BYTES: u64 = 128 << 10;
/// What superblocks of md begin with, on machines of the usual byte order.
const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
/// Marks by where they are, and whose they are, in the words of `blkid`.
const MARKS: &[(usize, &[u8], &str)] = &[
    (0, b"XFSB", "xfs"),
    (3, b"NTFS    ", "ntfs"),
    (3, b"EXFAT   ", "exfat"),
    (3, b"-FVE-FS-", "BitLocker"),
    (3, b"ReFS\0", "ReFS"),
    (54, b"FAT1", "vfat"),
    (82, b"FAT32", "vfat"),
    (64 * 1024 + 64, b"_BHRfS_M", "btrfs"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "erofs"),
    (1024, b"H+\0\x04", "hfsplus"),
    (1024, b"HX\0\x05", "hfsplus"),
    (1024 + 6, &[0x34, 0x34], "nilfs2"),
    (32, b"NXSB", "apfs"),
    (0, b"hsqs", "squashfs"),
    (32 * 1024, b"JFS1", "jfs"),
    (32 * 1024 + 1, b"CD001", "iso9660"),
    (32 * 1024 + 1, b"BEA01", "udf"),
    (64 * 1024, b"ReIsEr4", "reiser4"),
    (64 * 1024 + 52, b"ReIsEr", "reiserfs"),
    (8 * 1024 + 52, b"ReIsEr", "reiserfs"),
    (64 * 1024, &[0x01, 0x16, 0x19, 0x70], "gfs2"),
    (8 * 1024 + 1372, &[0x54, 0x19, 0x01, 0x00], "ufs"),
    (64 * 1024 + 1372, &[0x19, 0x01, 0x54, 0x19], "ufs"),
    (1024, b"OCFSV2", "ocfs2"),
    (2 * 1024, b"OCFSV2", "ocfs2"),
    (4 * 1024, b"OCFSV2", "ocfs2"),
    (8 * 1024, b"OCFSV2", "ocfs2"),
    (32, b"ORCLDISK", "oracleasm"),
    (0, b"LUKS\xba\xbe", "crypto_LUKS"),
    (16 * 1024, b"SKUL\xba\xbe", "crypto_LUKS"),
    (0, b"integrt\0", "DM_integrity"),
    (0, b"dmvdo001", "vdo"),
    (512 + 4, b"!Stra0tis\x86\xff\x02^Arh", "stratis"),
    (0, b"bluestore block device", "ceph_bluestore"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs"),
    (0, b"LABELONE", "LVM2_member"),
    (512, b"LABELONE", "LVM2_member"),
    (2 * 512, b"LABELONE", "LVM2_member"),
    (3 * 512, b"LABELONE", "LVM2_member"),
    (0, MD, "linux_raid_member"),
    (4096, MD, "linux_raid_member"),
];
/// Sizes of the pages of machines that swap, in bytes.
const PAGES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Sizes of sectors by which some count from a device's end, in bytes.
const SECTORS: [u64; 2] = [512, 4096];

/// A device that was opened for writing, and nobody else's.
#[derive(Debug)]
pub struct Prepared {
    /// The device.
    pub disk: Arc<dyn Disk>,
    /// What a plan needs to know.
    pub facts: DeviceFacts,
    before: Before,
}

/// How a device was before it was prepared.
#[derive(Debug)]
enum Before {
    AsIs,
    /// The file did not exist.
    Absent(PathBuf),
    /// The file had so many bytes.
    Shorter(Arc<FileDisk>, u64),
}

impl Prepared {
    /// Removes the file again if it was created for this, and makes it as short as it was if it grew: the pool is not
    /// to be.
    pub fn undo(self) {
        match self.before {
            Before::AsIs => {}
            Before::Absent(path) => {
                if let Err(error) = fs::remove_file(&path) {
                    tracing::warn!(path = %path.display(), %error, "file not removed again");
                }
            }
            Before::Shorter(disk, bytes) => {
                if let Err(error) = disk.set_len(bytes) {
                    tracing::warn!(%error, "file not made as short as it was");
                }
            }
        }
    }
}

/// The path of a device as named on a command line: absolute, or a name in one of the directories of `/dev`.
///
/// # Errors
/// There is no such device.
pub fn resolve(word: &str) -> Result<PathBuf, SpecError> {
    if word.starts_with('/') {
        return Ok(PathBuf::from(word));
    }
    let found = SEARCHED.iter().map(|dir| Path::new(dir).join(word)).find(|path| path.exists());
    found.ok_or_else(|| SpecError::Open {
        path: word.to_owned(),
        reason: "no such device in /dev\nmust be a full path or shorthand device name".to_owned(),
    })
}

/// What a device is, without taking or creating it. `size` is that of a file to be created.
///
/// # Errors
/// It cannot be looked at.
pub async fn inspect(path: &Path, size: Option<u64>) -> Result<DeviceFacts, SpecError> {
    let options = disk::OpenOptions { read_only: true, ..disk::OpenOptions::default() };
    match (open_in_time(path, options).await, size) {
        (Ok(disk), size) => {
            let facts = facts(&disk);
            Ok(DeviceFacts { bytes: facts.bytes.max(size.unwrap_or(0)), ..facts })
        }
        (Err(error), Some(bytes)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(DeviceFacts { bytes, block_device: false, logical_sector: 512, physical_sector: 4096 })
        }
        (Err(error), _) => Err(cannot_open(path, &error)),
    }
}

/// Opens a device for writing and makes sure that it is free. A file that does not exist is created, sparse, if
/// `size` (bytes) is given; an empty one grows to it, once it is known to be nobody else's. With `force`, devices of
/// pools that are not open, what other software left, and smaller files with something in them may be overwritten.
///
/// # Errors
/// It cannot be opened, is in use, or holds something and `force` is not given. A file that was created is
/// removed again.
pub fn prepare(path: &Path, size: Option<u64>, force: bool) -> BoxFuture<'_, Result<Prepared, SpecError>> {
    Box::pin(async move {
        let created = match size {
            Some(size) => {
                let made = look_up_in_time(path, move |path| make_file(path, size)).await;
                made.map_err(|error| cannot_open(path, &error))?
            }
            None => None,
        };
        let disk = take(path, force).await?;
        let before = grow(path, &disk, size, force).await?;
        let before = created.map_or(before, |made| Before::Absent(made.keep()));
        Ok(Prepared { facts: facts(&disk), disk, before })
    })
}

/// Opens and locks a device that may be overwritten.
async fn take(path: &Path, force: bool) -> Result<Arc<FileDisk>, SpecError> {
    let options = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    match open_in_time(path, options).await {
        Ok(disk) => {
            let disk = Arc::new(disk);
            check(path, Arc::clone(&disk) as Arc<dyn Disk>, force).await?;
            Ok(disk)
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(SpecError::Repair(vec![error.to_string()]))
        }
        Err(error) => Err(cannot_open(path, &error)),
    }
}

/// A file that was created, and goes again unless it is kept: whoever waited for it may have given up.
#[derive(Debug)]
struct Made(PathBuf);

impl Made {
    fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _best_effort = fs::remove_file(&self.0);
        }
    }
}

/// Creates a regular file where there is none. It is its owner's only: whoever may read it reads all that
/// is in the pool, and can lock it, which keeps the pool from being opened.
fn make_file(path: &Path, size: u64) -> io::Result<Option<Made>> {
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            let made = Made(path.to_owned());
            file.set_len(size)?;
            Ok(Some(made))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a regular file as large as asked for; how it was before.
async fn grow(
    path: &Path,
    disk: &Arc<FileDisk>,
    size: Option<u64>,
    force: bool,
) -> Result<Before, SpecError> {
    let Some(size) = size.filter(|_| !disk.is_block_device()) else { return Ok(Before::AsIs) };
    let failed = |error: io::Error| cannot_open(path, &error);
    let len = look_up_in_time(path, |path| Ok(path.metadata()?.len())).await.map_err(failed)?;
    if len >= size {
        return Ok(Before::AsIs);
    }
    // Who gives a size wants files to be made, and may not know that somebody's is there.
    if len > 0 && !force {
        return Err(SpecError::Override(vec![format!(
            "{} is a file of {} that would grow to {}",
            path.display(),
            human(len),
            human(size)
        )]));
    }
    disk.set_len(size).map_err(failed)?;
    Ok(Before::Shorter(Arc::clone(disk), len))
}

fn facts(disk: &FileDisk) -> DeviceFacts {
    let (info, block_device) = (disk.info(), disk.is_block_device());
    DeviceFacts {
        bytes: info.size,
        block_device,
        // A file takes any offset; what the file system below it likes is not the pool's affair.
        logical_sector: if block_device { info.logical_sector } else { 512 },
        physical_sector: info.physical_sector,
    }
}

fn cannot_open(path: &Path, error: &io::Error) -> SpecError {
    let deepest = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        _ => deepest.split(" (os error").next().unwrap_or_default().to_owned(),
    };
    SpecError::Open { path: path.display().to_string(), reason }
}

/// Whether what is on a device may be overwritten. What was looked at before it was locked is looked at again by [`prepare`].
///
/// # Errors
/// It cannot be read, or holds something and `force` is not given.
pub async fn check(path: &Path, disk: Arc<dyn Disk>, force: bool) -> Result<(), SpecError> {
    let read = |error: io::Error| cannot_open(path, &error);
    let device = Device::read(Arc::clone(&disk)).await.map_err(read)?;
    let config = device.as_ref().and_then(|device| device.config_at(u64::MAX));
    let name = path.display();
    if let Some(what) = config.and_then(of_pool) {
        if force {
            return Ok(());
        }
        return Err(SpecError::Override(vec![format!("{name} {what}")]));
    }
    if force {
        return Ok(());
    }
    let size = disk.info().size;
    let (first, last) = (size.min(MARKED_BYTES), size.min(MARKED_END_BYTES));
    let start = disk.read(0, IoBuf::with_len(first as usize)).await.map_err(read)?;
    let end = disk.read(size - last, IoBuf::with_len(last as usize)).await.map_err(read)?;
    match mark(&start).or_else(|| mark_at_end(&end, size)) {
        Some(what) => Err(SpecError::Override(vec![format!("{name} contains a {what}")])),
        None => Ok(()),
    }
}

/// What a label says that its device is, if that is an obstacle. Nobody has the pool open: its lock would have been
/// in the way. But it may have been left without an export, or be in use on another host.
fn of_pool(config: &NvList) -> Option<String> {
    let pool = config.str("name").unwrap_or_default();
    Some(match PoolState::from_id(config.u64("state")?) {
        // Who made it a member was cut off before the pool had it: there is no such pool, or it does without.
        PoolState::Active if is_unfinished(config) => return None,
        PoolState::Active => format!("is part of potentially active pool '{pool}'"),
        PoolState::Exported => format!("is part of exported pool '{pool}'"),
        PoolState::Destroyed => return None,
        PoolState::Spare => "is reserved as a hot spare for a pool".to_owned(),
        PoolState::Cache => "is a cache device of a pool".to_owned(),
        _ => format!("is part of unknown pool '{pool}'"),
    })
}

/// Whether a member's label was written ahead of the first transaction group that counts on the device, and of no later one
/// (docs/format/labels.md §4).
#[must_use]
pub fn is_unfinished(config: &NvList) -> bool {
    config.u64("txg") == Some(0)
}

/// Whose mark the first bytes of a device carry.
fn mark(start: &[u8]) -> Option<String> {
    let at = |offset: usize, bytes: &[u8]| start.get(offset..offset + bytes.len()) == Some(bytes);
    let byte = |offset: usize| start.get(offset).copied().unwrap_or(0);
    if at(1024 + 56, &[0x53, 0xef]) {
        // Extents among the incompatible features make it ext4, a journal among the compatible ones ext3.
        let kind = if byte(1024 + 96) & 0x40 != 0 {
            "ext4"
        } else if byte(1024 + 92) & 4 != 0 {
            "ext3"
        } else {
            "ext2"
        };
        return file_system(kind);
    }
    if let Some((_, _, kind)) = MARKS.iter().find(|(offset, bytes, _)| at(*offset, bytes)) {
        return file_system(kind);
    }
    // Swap space says what it is at the end of its first page.
    for (bytes, kind) in [(&b"SWAPSPACE2"[..], "swap"), (b"S1SUSPEND", "swsuspend")] {
        if PAGES.iter().any(|page| at(page - 10, bytes)) {
            return file_system(kind);
        }
    }
    if at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return partition_table("gpt");
    }
    let used_partition = (0..4).any(|i| byte(446 + 16 * i + 4) != 0);
    if at(510, &[0x55, 0xaa]) && used_partition { partition_table("dos") } else { None }
}

/// Whose mark the last bytes of a device of `size` bytes carry.
fn mark_at_end(end: &[u8], size: u64) -> Option<String> {
    // So many units before the end of the last whole one.
    let before = |unit: u64, units: u64| (size / unit).checked_sub(units).map(|units| units * unit);
    let at = |place: Option<u64>, offset: usize, bytes: &[u8]| {
        let first = size - end.len() as u64;
        let place = place.and_then(|place| usize::try_from(place.checked_sub(first)?).ok());
        place.is_some_and(|place| end.get(place + offset..place + offset + bytes.len()) == Some(bytes))
    };
    let md = before(64 << 10, 1);
    // Of version 0.90, in the order of the machine that wrote it, and 1.0.
    if at(md, 0, MD) || at(md, 0, &[0xa9, 0x2b, 0x4e, 0xfc]) || at(before(4096, 2), 0, MD) {
        return file_system("linux_raid_member");
    }
    let drbd = [0x6b_u8, 0x6c, 0x6d].map(|version| [0x83, 0x74, 0x02, version]);
    if drbd.iter().any(|magic| at(before(4096, 1), 60, magic)) {
        return file_system("drbd");
    }
    let in_sector =
        |sectors: u64, bytes: &[u8]| SECTORS.iter().any(|size| at(before(*size, sectors), 0, bytes));
    if in_sector(1, &[0xde, 0x11, 0xde, 0x11]) {
        return file_system("ddf_raid_member");
    }
    if in_sector(2, b"Intel Raid ISM Cfg Sig. ") {
        return file_system("isw_raid_member");
    }
    // The spare copy, where the first one is damaged.
    if in_sector(1, b"EFI PART") { partition_table("gpt") } else { None }
}

fn file_system(kind: &str) -> Option<String> {
    Some(format!("filesystem of type '{kind}'"))
}

fn partition_table(kind: &str) -> Option<String> {
    Some(format!("partition table of type '{kind}'"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::write::labels;

    #[tokio::test]
    async fn files_are_created_sparse_and_removed_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let prepared = prepare(&path, Some(128 << 20), false).await.unwrap();
        assert_eq!((prepared.facts.bytes, prepared.facts.block_device), (128 << 20, false));
        let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
        assert!(blocks < 1000, "{blocks} sectors of a sparse file");
        prepared.undo();
        assert!(!path.exists());
        let missing = prepare(&path, None, false).await.unwrap_err().to_string();
        assert_eq!(missing, format!("cannot open '{}': No such file or directory", path.display()));
    }

    /// Where the server of files answers too late nobody is there any more who would remove it.
    #[test]
    fn a_file_that_nobody_waited_for_is_gone_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let made = make_file(&path, 1 << 20).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        drop(made);
        assert!(!path.exists());
        assert_eq!(make_file(&path, 1 << 20).unwrap().unwrap().keep(), path);
        assert!(make_file(&path, 1 << 20).unwrap().is_none() && path.exists(), "it is somebody's");
    }

    /// Files of no kind that is known here were made larger and written over, although `--size` is for files to be made.
    #[tokio::test]
    async fn a_file_with_something_in_it_grows_only_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        fs::write(&path, b"mine").unwrap();
        assert_eq!(inspect(&path, Some(1 << 20)).await.unwrap().bytes, 1 << 20);
        let error = prepare(&path, Some(1 << 20), false).await.unwrap_err().to_string();
        let expected = format!(
            "'-f' to override the following errors:\n{} is a file of 4B that would grow to 1M",
            path.display()
        );
        assert!(error.ends_with(&expected), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        let prepared = prepare(&path, Some(1 << 20), true).await.unwrap();
        assert_eq!(prepared.facts.bytes, 1 << 20);
        prepared.undo();
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        prepare(&path, Some(1 << 20), true).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        let empty = dir.path().join("b.img");
        fs::write(&empty, b"").unwrap();
        prepare(&empty, Some(1 << 20), false).await.unwrap();
        assert_eq!(fs::metadata(&empty).unwrap().len(), 1 << 20);
    }

    /// A refused command left files of others longer than they were.
    #[tokio::test]
    async fn a_file_that_may_not_be_taken_keeps_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        fs::write(&path, [b"XFSB".as_slice(), &[0; 8188]].concat()).unwrap();
        prepare(&path, Some(1 << 20), false).await.unwrap_err();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
        let _used = prepare(&path, None, true).await.unwrap();
        prepare(&path, Some(1 << 20), true).await.unwrap_err();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    }

    #[tokio::test]
    async fn a_device_in_use_is_refused_even_by_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let first = prepare(&path, Some(64 << 20), false).await.unwrap();
        let error = prepare(&path, Some(64 << 20), true).await.unwrap_err();
        assert!(matches!(error, SpecError::Repair(_)), "{error}");
        assert!(error.to_string().contains("is in use by another process (pool open elsewhere"), "{error}");
        drop(first);
        prepare(&path, None, false).await.unwrap();
    }

    #[tokio::test]
    async fn what_others_left_is_only_overwritten_by_force() {
        let dir = tempfile::tempdir().unwrap();
        for (offset, bytes, what) in [
            (1080, &[0x53, 0xef][..], "filesystem of type 'ext2'"),
            (0, b"XFSB", "filesystem of type 'xfs'"),
            (3, b"NTFS    ", "filesystem of type 'ntfs'"),
            (65600, b"_BHRfS_M", "filesystem of type 'btrfs'"),
            (4086, b"SWAPSPACE2", "filesystem of type 'swap'"),
            (512, b"EFI PART", "partition table of type 'gpt'"),
        ] {
            let path = dir.path().join("a.img");
            let mut content = vec![0; 1 << 20];
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
            fs::write(&path, &content).unwrap();
            let error = prepare(&path, None, false).await.unwrap_err().to_string();
            let expected =
                format!("'-f' to override the following errors:\n{} contains a {what}", path.display());
            assert!(error.ends_with(&expected), "{error}");
            prepare(&path, None, true).await.unwrap();
        }
        let empty = vec![0; MARKED_BYTES as usize];
        assert_eq!(mark(&empty), None);
    }

    /// Disks of stopped storage clusters, and of arrays that nobody had assembled, were written over without a word.
    #[tokio::test]
    async fn what_others_left_is_named_wherever_it_stands() {
        const SIZE: u64 = 128 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let is_refused = async |size: u64, at: u64, bytes: &[u8], kind: &str| {
            // Another test's child may have the one before locked still.
            let _gone = fs::remove_file(&path);
            let file = fs::File::create(&path).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(bytes, at).unwrap();
            let error = prepare(&path, None, false).await.unwrap_err();
            assert!(matches!(error, SpecError::Override(_)), "{kind} at {at} of {size}: {error}");
            let error = error.to_string();
            assert!(error.ends_with(&format!(" of type '{kind}'")), "{kind} at {at} of {size}: {error}");
        };
        for (at, bytes, kind) in [
            (0, &b"bluestore block device"[..], "ceph_bluestore"),
            (0, b"LABELONE", "LVM2_member"),
            (0, MD, "linux_raid_member"),
            (3, b"-FVE-FS-", "BitLocker"),
            (32, b"NXSB", "apfs"),
            (516, b"!Stra0tis\x86\xff\x02^Arh", "stratis"),
            (1024, b"H+\0\x04", "hfsplus"),
            (1030, &[0x34, 0x34], "nilfs2"),
            (1536, b"LABELONE", "LVM2_member"),
            (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
            (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs"),
            (16_374, b"SWAPSPACE2", "swap"),
            (65_526, b"SWAPSPACE2", "swap"),
            (4086, b"S1SUSPEND\0", "swsuspend"),
            (32_768, b"JFS1", "jfs"),
            (32_769, b"CD001", "iso9660"),
            (65_536, &[0x01, 0x16, 0x19, 0x70], "gfs2"),
            (65_588, b"ReIsEr2Fs", "reiserfs"),
            (66_908, &[0x19, 0x01, 0x54, 0x19], "ufs"),
            (SIZE - 65_536, MD, "linux_raid_member"),
            (SIZE - 65_536, b"\xa9\x2b\x4e\xfc", "linux_raid_member"),
            (SIZE - 8192, MD, "linux_raid_member"),
            (SIZE - 4036, b"\x83\x74\x02\x6d", "drbd"),
            (SIZE - 512, b"\xde\x11\xde\x11", "ddf_raid_member"),
            (SIZE - 4096, b"\xde\x11\xde\x11", "ddf_raid_member"),
            (SIZE - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00", "isw_raid_member"),
            (SIZE - 512, b"EFI PART", "gpt"),
            (SIZE - 4096, b"EFI PART", "gpt"),
        ] {
            is_refused(SIZE, at, bytes, kind).await;
        }
        // Where the end is no multiple of what they count in.
        let odd = SIZE + (69 << 10) + 512;
        for (at, bytes, kind) in [
            (SIZE, MD, "linux_raid_member"),
            (SIZE + (60 << 10), MD, "linux_raid_member"),
            (SIZE + (64 << 10) + 60, &b"\x83\x74\x02\x6b"[..], "drbd"),
            (odd - 512, b"\xde\x11\xde\x11", "ddf_raid_member"),
            (odd - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00", "isw_raid_member"),
        ] {
            is_refused(odd, at, bytes, kind).await;
        }
        for size in [SIZE, odd] {
            let zeroes = dir.path().join(size.to_string());
            prepare(&zeroes, Some(size), false).await.unwrap();
            prepare(&zeroes, None, false).await.unwrap();
        }
    }

    /// A disk was to be had back from a pool that is gone without a word about what had been on it before.
    #[tokio::test]
    async fn what_was_at_the_end_of_a_device_is_gone_with_the_first_label_and_labels_are_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let (whole, size) = (128 << 20, (128 << 20) + (71 << 10));
        let file = fs::File::create(&path).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(MD, whole).unwrap();
        file.write_all_at(b"EFI PART", size - 512).unwrap();
        let prepared = prepare(&path, None, true).await.unwrap();
        labels::initialize_auxiliary(&prepared.disk, 7, PoolState::Destroyed).await.unwrap();
        drop(prepared);
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
        prepare(&path, None, false).await.unwrap();
    }

    #[test]
    fn names_are_looked_for_in_dev() {
        assert_eq!(resolve("/tmp/x").unwrap(), Path::new("/tmp/x"));
        assert_eq!(resolve("null").unwrap(), Path::new("/dev/null"));
        assert_eq!(
            resolve("no-such-device").unwrap_err().to_string(),
            "cannot open 'no-such-device': no such device in /dev\nmust be a full path or shorthand device name"
        );
    }
}
