//! A new device in the place of one that is gone, taken if nothing is on it.
//!
//! Nobody was asked, so what could be anybody's is left alone: that a device has none of the marks of which `zpool replace`
//! warns is not enough, both of its ends have to be zero. And what is left alone is only read, at each look; why it was not taken
//! is told once.

use std::{
    io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use disk::{Disk, DiskInfo, IoBuf};
use engine::{
    create::{self, device::Prepared},
    devices::NewLeaf,
    events::DeviceName,
};
use pool::space::{addressable, misfit_in};
use serde_json::{Map, json};

use super::{
    DeviceOpener,
    ask::{label, look_up, open_to_look},
};
use crate::{events::names, host::chain, hostid};

/// Bytes at either end of a device that are all zero if it holds nothing: labels, partition tables and superblocks of all
/// kinds are there, also of those nobody here has heard of.
const BLANK_BYTES: u64 = 1 << 20;

impl DeviceOpener {
    /// The device that takes the part of another, if there is one.
    pub(super) async fn take_place(&self, device: &DeviceName) -> Option<NewLeaf> {
        // One that failed may be where it was.
        if let Some(path) = &device.path
            && may_be(&label(Path::new(path)).await, device.guid)
        {
            return None;
        }
        for place in self.place(device) {
            if look_up(&place, |place| place.metadata().map(drop)).await.is_err() {
                continue;
            }
            let misfit = |info: &DiskInfo, is_file| self.misfit(device.guid, info, is_file);
            match take_blank(&place, misfit).await {
                Ok(prepared) => {
                    self.refused.lock().remove(&device.guid);
                    tracing::warn!(
                        device = device.name,
                        place = %place.display(),
                        "nothing is on the device in its place, which takes its part"
                    );
                    return Some(NewLeaf {
                        path: place.to_str()?.to_owned(),
                        is_file: !prepared.facts.block_device,
                        disk: prepared.disk,
                        ashift: None,
                    });
                }
                Err(why) => self.not_taken(device, &place, &why),
            }
        }
        None
    }

    /// The place of a device that is gone: a port, or a file's path. Names like `/dev/sdc` are no places: the next disk
    /// gets them wherever it is plugged in.
    fn place(&self, device: &DeviceName) -> Vec<PathBuf> {
        let path = device.path.clone().map(PathBuf::from);
        let is_place = |path: &PathBuf| {
            ["/dev/disk/by-path", "/dev/disk/by-vdev"].iter().any(|dir| path.starts_with(dir))
                || (!path.starts_with("/dev") && path.is_absolute())
        };
        let known = self.disks.get(device.guid).and_then(|known| known.by_path).map(PathBuf::from);
        let mut places: Vec<PathBuf> = Vec::new();
        for place in path.into_iter().filter(is_place).chain(known) {
            // Of a disk that OpenZFS partitioned it is the disk: a new one has no partition, and one that has is somebody's.
            let whole = place.to_str().filter(|_| place.starts_with("/dev")).and_then(without_partition);
            let place = whole.map_or(place.clone(), PathBuf::from);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Why a device cannot be a leaf in the place of another.
    fn misfit(&self, guid: u64, info: &DiskInfo, is_file: bool) -> Option<String> {
        let tree = self.engine.upgrade()?.view().tree();
        let top = tree.top_around(guid)?;
        misfit_in(top, info.size, addressable(is_file, info))
    }

    /// Says what is in the place of a device and was not taken, once for each reason.
    fn not_taken(&self, device: &DeviceName, place: &Path, why: &str) {
        let said = format!("{}: {why}", place.display());
        if self.refused.lock().insert(device.guid, said.clone()) == Some(said) {
            return;
        }
        tracing::warn!(device = device.name, place = %place.display(), why, "not taken as a replacement");
        let mut pairs = Map::new();
        pairs.insert("vdev_guid".to_owned(), json!(device.guid.to_string()));
        pairs.insert("vdev_path".to_owned(), json!(place.display().to_string()));
        pairs.insert("io_millpond_for".to_owned(), json!(device.name));
        pairs.insert("io_millpond_why".to_owned(), json!(why));
        let (class, pairs) = names::millpond("sysevent", "replacement_refused", pairs);
        let (about, journal) = &self.journal;
        journal.add(about, &class, (hostid::now(), 0), pairs, None);
    }
}

/// The disk of a partition's name in `/dev/disk/by-path`; none if it is no partition's.
fn without_partition(name: &str) -> Option<&str> {
    let (whole, number) = name.rsplit_once("-part")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(whole)
}

/// This device, if nothing is on it. `misfit` says why it is of no use, by what it is and whether that is a file.
async fn take_blank(
    place: &Path,
    misfit: impl Fn(&DiskInfo, bool) -> Option<String>,
) -> Result<Prepared, String> {
    let seen =
        look_up(place, |path| Ok((path.canonicalize()?, path.metadata()?.file_type().is_block_device())));
    let (real, is_block_device) = seen.await.map_err(|error| error.to_string())?;
    let name = real.file_name().filter(|_| real.starts_with("/dev"));
    if name.is_some_and(|name| Path::new("/sys/class/block").join(name).join("partition").exists()) {
        return Err("it is a partition of a disk that somebody partitioned".to_owned());
    }
    // What is left as it is must not have been open for writing: udev would say that it changed, and all be looked at again.
    let disk = open_to_look(place).await.map_err(|error| error.to_string())?;
    if let Some(why) = misfit(&disk.info(), !is_block_device) {
        return Err(why);
    }
    create::device::check(place, Arc::clone(&disk), false).await.map_err(|error| chain(&error))?;
    is_blank(&*disk).await?;
    // Now it is locked, and somebody may have written to it meanwhile.
    let prepared = create::device::prepare(place, None, false).await.map_err(|error| chain(&error))?;
    is_blank(&*prepared.disk).await?;
    Ok(prepared)
}

/// Whether a device is zero at both ends; what is there and what helps, if it is not.
async fn is_blank(disk: &dyn Disk) -> Result<(), String> {
    let size = disk.info().size;
    let len = size.min(BLANK_BYTES);
    for at in [0, size - len] {
        let read = disk.read(at, IoBuf::with_len(len as usize)).await;
        let bytes = read.map_err(|error| chain(&error))?;
        if let Some(offset) = bytes.iter().position(|byte| *byte != 0) {
            return Err(format!(
                "something is on it (at byte {}); if it is not needed: 'zpool replace' with -f, or zeroes over its first and last MiB \
                 ('blkdiscard -z' writes them over all of it)",
                at + offset as u64
            ));
        }
    }
    Ok(())
}

/// Whether a device may be that of this guid, by what its label claims: one that is there and cannot be read may be any, and
/// is no blank one.
fn may_be(label: &io::Result<Option<u64>>, guid: u64) -> bool {
    match label {
        Ok(found) => *found == Some(guid),
        Err(error) => {
            // Nothing is there that could be read.
            let unread =
                [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput, io::ErrorKind::PermissionDenied];
            !unread.contains(&error.kind())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt as _};

    use engine::devices::Opener as _;

    use super::{
        super::opener::tests::{device, guid, images, mirror, opener},
        *,
    };

    #[tokio::test]
    async fn only_an_unused_device_in_the_same_place_is_a_replacement() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        assert!(opener.replacement(&wanted).await.is_none(), "it is still the old one");
        assert!(opener.journal.1.since(0, None).is_empty(), "which was faulted, and is nothing to tell of");
        fs::remove_file(&paths[0]).unwrap();
        assert!(opener.replacement(&wanted).await.is_none(), "nothing is there");
        fs::File::create(&paths[0]).unwrap().set_len(64 << 20).unwrap();
        let new = opener.replacement(&wanted).await.unwrap();
        assert_eq!((new.path.as_str(), new.is_file), (paths[0].to_str().unwrap(), true));
        drop(new);
        // A name that the next disk gets wherever it is plugged in is no place.
        let floating = DeviceName { path: Some("/dev/sdzz".into()), ..wanted };
        assert!(opener.place(&floating).is_empty());
        let port = DeviceName { path: Some("/dev/disk/by-path/pci-1-ata-3-part1".into()), ..floating };
        assert_eq!(
            opener.place(&port),
            [PathBuf::from("/dev/disk/by-path/pci-1-ata-3")],
            "never a partition"
        );
        assert_eq!(without_partition("/dev/disk/by-path/pci-part1-x"), None);
    }

    /// Found by reading: a drive that refused reads was told of as a replacement for itself that was not taken.
    #[test]
    fn a_drive_that_cannot_be_read_may_be_the_one_that_failed() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind));
        assert!(may_be(&Ok(Some(7)), 7));
        assert!(may_be(&failed(io::ErrorKind::Other), 7), "it refuses reads");
        assert!(may_be(&failed(io::ErrorKind::TimedOut), 7), "it does not answer");
        assert!(!may_be(&Ok(Some(8)), 7));
        assert!(!may_be(&Ok(None), 7));
        assert!(!may_be(&failed(io::ErrorKind::NotFound), 7));
    }

    /// Only some fourteen marks in the first 68 KiB kept a disk from being overwritten.
    #[tokio::test]
    async fn a_device_with_anything_at_its_beginning_or_end_is_no_replacement() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        let size = (64 << 20) + 4096;
        // What is known by its mark, and data of nobody knows whom.
        for (at, mark, kind) in [
            (0, &b"bluestore block device"[..], Some("ceph_bluestore")),
            (3, b"-FVE-FS-", Some("BitLocker")),
            (32, b"NXSB", Some("apfs")),
            (BLANK_BYTES - 1, b"x", None),
            (size - (64 << 10), &[0xfc, 0x4e, 0x2b, 0xa9], None),
            (size - (8 << 10), &[0xfc, 0x4e, 0x2b, 0xa9], Some("linux_raid_member")),
            (size - 512, b"EFI PART", Some("gpt")),
            (size - 1, b"x", None),
        ] {
            let _gone = fs::remove_file(&paths[0]);
            let file = fs::File::create(&paths[0]).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(mark, at).unwrap();
            assert!(opener.replacement(&wanted).await.is_none(), "{at}");
            assert!(opener.replacement(&wanted).await.is_none(), "{at}");
            // Another test's child has this file open, locked, until it is another program: that is told, too.
            let why = match kind {
                Some(kind) => format!(" of type '{kind}'"),
                None => format!("something is on it (at byte {at})"),
            };
            let told = opener.journal.1.since(0, None);
            let events = told.iter().map(|told| &told.zevent);
            let said = events.filter(|event| event.pairs["io_millpond_why"].as_str().unwrap().contains(&why));
            let classes: Vec<&str> = said.map(|event| event.class.as_str()).collect();
            assert_eq!(classes, ["sysevent.io.millpond.replacement_refused"], "{at}: said once");
        }
        let _gone = fs::remove_file(&paths[0]);
        fs::File::create(&paths[0]).unwrap().set_len(size).unwrap();
        assert!(opener.replacement(&wanted).await.is_some(), "nothing is on it");
    }

    /// It was taken, for the pool to refuse it: each minute anew, opened for writing, on which udev says that it changed; and
    /// whoever had put it there was not told.
    #[tokio::test]
    async fn a_replacement_that_does_not_fit_is_only_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("new");
        fs::File::create(&place).unwrap().set_len(64 << 20).unwrap();
        // Whoever opens it for writing locks it, and could not.
        let user = fs::File::open(&place).unwrap();
        user.lock().unwrap();
        let misfit = |info: &DiskInfo, is_file: bool| Some(format!("{} {is_file}", info.size));
        let why = take_blank(&place, misfit).await.map(drop).unwrap_err();
        assert_eq!(why, format!("{} true", 64 << 20));
    }

    /// `wipefs` was what helps, which takes marks away and nothing else: the device was refused as before.
    #[tokio::test]
    async fn a_device_that_was_used_is_a_replacement_once_there_are_zeroes_at_both_ends() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        let size = 64 << 20;
        fs::remove_file(&paths[0]).unwrap();
        let file = fs::File::create(&paths[0]).unwrap();
        file.set_len(size).unwrap();
        // The entries of a partition table without its marks: of Linux.
        let kind = b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4";
        for at in [1024, size - 33 * 512] {
            file.write_all_at(kind, at).unwrap();
        }
        assert!(opener.replacement(&wanted).await.is_none());
        let told = opener.journal.1.since(0, None);
        let why = told[0].zevent.pairs["io_millpond_why"].as_str().unwrap();
        assert!(why.starts_with("something is on it (at byte 1024)"), "{why}");
        assert!(why.contains("zeroes over its first and last MiB") && !why.contains("wipefs"), "{why}");
        for at in [0, size - BLANK_BYTES] {
            file.write_all_at(&vec![0; BLANK_BYTES as usize], at).unwrap();
        }
        assert!(opener.replacement(&wanted).await.is_some());
    }
}
