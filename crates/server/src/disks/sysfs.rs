//! What the system knows about a block device: the names it has below `/dev/disk`, model, serial number, size, the
//! slot of its enclosure. Read from `/sys`, `/dev/disk` and udev's notes in `/run/udev`, never from the device: a
//! disk that hangs must not hold up the message that says so.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Identity;

/// Longest file of `/sys` that is read, in bytes: a vital product data page has 256.
const FILE_MAX: u64 = 64 << 10;

/// The directories of this system; another root in tests.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl Sysfs {
    /// Below another root.
    #[cfg(test)]
    pub(crate) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The directory of a block device.
    fn block(&self, device: &Path) -> Option<PathBuf> {
        fs::canonicalize(self.at("/sys/class/block").join(device.file_name()?)).ok()
    }

    /// The block devices that share bytes with the one at `path` (absolute): the disk that it is a partition of, or its own
    /// partitions. None of a file.
    pub(crate) fn overlapping(&self, path: &str) -> Vec<PathBuf> {
        let places = (fs::canonicalize(self.at("/dev")), fs::canonicalize(self.at(path)));
        let (Ok(dev), Ok(device)) = places else { return Vec::new() };
        // A file in a directory of that may have the name of a disk.
        let block = self.block(&device).filter(|_| device.parent() == Some(dev.as_path()));
        let Some(block) = block else { return Vec::new() };
        if is_partition(&block) {
            return block.parent().and_then(node).into_iter().collect();
        }
        let below = fs::read_dir(&block).into_iter().flatten().flatten().map(|entry| entry.path());
        below.filter(|below| is_partition(below)).filter_map(|below| node(&below)).collect()
    }

    /// What is known about the device at `path` (absolute): a block device or partition. None if it is neither, or not
    /// there. What is not below `/dev` is a file: where it lies may be a server that does not answer, and a disk may have
    /// its name.
    pub(crate) fn identify(&self, path: &str) -> Option<Identity> {
        if !Path::new(path).starts_with("/dev") {
            return None;
        }
        let device = fs::canonicalize(self.at(path)).ok()?;
        let block = self.block(&device)?;
        // A partition's directory is in that of its disk.
        let disk = match is_partition(&block) {
            true => block.parent()?.to_owned(),
            false => block.clone(),
        };
        let udev = |key: &str| self.udev(&disk, key);
        let model = text(&disk.join("device/model")).or_else(|| udev("ID_MODEL"));
        let serial = serial(&disk).or_else(|| udev("ID_SERIAL_SHORT")).or_else(|| udev("ID_SERIAL"));
        let link = |dir: &str| self.link(dir, &device);
        Some(Identity {
            path: path.to_owned(),
            by_id: link("/dev/disk/by-id"),
            by_path: link("/dev/disk/by-path"),
            by_partuuid: link("/dev/disk/by-partuuid"),
            model,
            serial,
            bytes: bytes(&block),
            bay: bay(&disk),
        })
    }

    /// Bytes of the disk that the partition at `path` (absolute) is on. None if it is no partition, or not there.
    pub(crate) fn bytes_around(&self, path: &str) -> Option<u64> {
        let device = fs::canonicalize(self.at(path)).ok()?;
        let block = self.block(&device).filter(|block| is_partition(block))?;
        bytes(block.parent()?)
    }

    /// The name in a directory of `/dev/disk` that leads to `device`; of several the most telling: one with the model
    /// (`ata-…`, `nvme-MODEL`) rather than a bare number (`wwn-…`, `nvme-eui.…`).
    fn link(&self, dir: &str, device: &Path) -> Option<String> {
        let entries = fs::read_dir(self.at(dir)).ok()?;
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| fs::canonicalize(entry.path()).is_ok_and(|target| target == device))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let is_number = |name: &String| {
            ["wwn-", "nvme-eui.", "nvme-uuid.", "nvme-nvme.", "scsi-", "dm-", "lvm-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        };
        names.sort_by(|a, b| (is_number(a), a).cmp(&(is_number(b), b)));
        names.into_iter().next().map(|name| format!("{dir}/{name}"))
    }

    /// A property udev found out: lines `E:KEY=value`.
    fn udev(&self, disk: &Path, key: &str) -> Option<String> {
        let number = text(&disk.join("dev"))?;
        let notes = bounded(&self.at("/run/udev/data").join(format!("b{number}")))?;
        let notes = String::from_utf8_lossy(&notes);
        let value =
            notes.lines().find_map(|line| line.strip_prefix("E:")?.strip_prefix(key)?.strip_prefix('='))?;
        Some(value.replace('_', " ").trim().to_owned()).filter(|value| !value.is_empty())
    }
}

/// Whether a block device of this directory is a partition.
fn is_partition(block: &Path) -> bool {
    block.join("partition").exists()
}

/// Where the block device of this directory is opened.
fn node(block: &Path) -> Option<PathBuf> {
    Some(Path::new("/dev").join(block.file_name()?))
}

/// The size of what the kernel tells of in this directory.
fn bytes(block: &Path) -> Option<u64> {
    // Sectors of 512 bytes, whatever the device has.
    text(&block.join("size"))?.parse::<u64>().ok()?.checked_mul(512)
}

/// NVMe says it in a file, SCSI and SATA in page 0x80 (four bytes, then the number), virtio beside the disk.
fn serial(disk: &Path) -> Option<String> {
    if let Some(serial) = text(&disk.join("device/serial")).or_else(|| text(&disk.join("serial"))) {
        return Some(serial);
    }
    let page = bounded(&disk.join("device/vpd_pg80"))?;
    printable(page.get(4..)?)
}

/// The slot in an enclosure that has told the kernel which disk sits where.
fn bay(disk: &Path) -> Option<String> {
    let entries = fs::read_dir(disk.join("device")).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let slot = name.strip_prefix("enclosure_device:")?.trim().to_owned();
        (!slot.is_empty()).then_some(slot)
    })
}

fn bounded(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut content = Vec::new();
    fs::File::open(path).ok()?.take(FILE_MAX).read_to_end(&mut content).ok()?;
    Some(content)
}

fn text(path: &Path) -> Option<String> {
    printable(&bounded(path)?)
}

/// What a device says about itself is anybody's guess: only what can be printed on one line.
fn printable(bytes: &[u8]) -> Option<String> {
    let text: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A system with a SATA disk `sdc` in slot 3 with one partition, an NVMe disk, and a loop device.
    fn system() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let make = |path: &str| fs::create_dir_all(root.join(path)).unwrap();
        let write = |path: &str, content: &[u8]| fs::write(root.join(path), content).unwrap();
        for path in [
            "dev/disk/by-id",
            "dev/disk/by-path",
            "dev/disk/by-partuuid",
            "sys/class/block",
            "run/udev/data",
            "sys/devices/ata1/block/sdc/device",
            "sys/devices/ata1/block/sdc/sdc1",
            "sys/devices/nvme/nvme0n1/device",
            "sys/devices/loop0",
        ] {
            make(path);
        }
        let sdc = "sys/devices/ata1/block/sdc";
        write(&format!("{sdc}/size"), b"15628053168\n");
        write(&format!("{sdc}/dev"), b"8:32\n");
        write(&format!("{sdc}/device/model"), b"ST8000NM000A-2KE\n");
        write(&format!("{sdc}/device/vpd_pg80"), b"\0\x80\0\x14            WSD1ABCD");
        make(&format!("{sdc}/device/enclosure_device:Slot 03"));
        write(&format!("{sdc}/sdc1/partition"), b"1\n");
        write(&format!("{sdc}/sdc1/size"), b"15628034048\n");
        write("sys/devices/nvme/nvme0n1/size", b"1000\n");
        write("sys/devices/nvme/nvme0n1/dev", b"259:0\n");
        write("sys/devices/nvme/nvme0n1/device/serial", b"S4EVNX0M      \n");
        write("run/udev/data/b259:0", b"S:disk/by-id/x\nE:ID_MODELS=no\nE:ID_MODEL=Samsung_SSD_970\n");
        write("sys/devices/loop0/size", b"8\n");
        for (name, target) in [
            ("sdc", "../../devices/ata1/block/sdc"),
            ("sdc1", "../../devices/ata1/block/sdc/sdc1"),
            ("nvme0n1", "../../devices/nvme/nvme0n1"),
            ("loop0", "../../devices/loop0"),
        ] {
            symlink(target, root.join("sys/class/block").join(name)).unwrap();
            write(&format!("dev/{name}"), b"");
        }
        for (link, target) in [
            ("by-id/ata-ST8000NM000A-2KE_WSD1ABCD-part1", "../../sdc1"),
            ("by-id/ata-ST8000NM000A-2KE_WSD1ABCD", "../../sdc"),
            ("by-id/wwn-0x5000c500c1-part1", "../../sdc1"),
            ("by-path/pci-0000:00:1f.2-ata-3-part1", "../../sdc1"),
            ("by-partuuid/0e5d-12", "../../sdc1"),
        ] {
            symlink(target, root.join("dev/disk").join(link)).unwrap();
        }
        dir
    }

    #[test]
    fn the_disk_of_a_partition_has_a_size() {
        let dir = system();
        let around = |path| Sysfs::below(dir.path()).bytes_around(path);
        assert_eq!(around("/dev/disk/by-partuuid/0e5d-12"), Some(15_628_053_168 * 512));
        assert_eq!((around("/dev/sdc"), around("/dev/sdx1")), (None, None));
    }

    #[test]
    fn a_disk_is_named_so_that_a_person_finds_it() {
        let dir = system();
        let found = Sysfs::below(dir.path()).identify("/dev/sdc1").unwrap();
        assert_eq!(
            found,
            Identity {
                path: "/dev/sdc1".into(),
                by_id: Some("/dev/disk/by-id/ata-ST8000NM000A-2KE_WSD1ABCD-part1".into()),
                by_path: Some("/dev/disk/by-path/pci-0000:00:1f.2-ata-3-part1".into()),
                by_partuuid: Some("/dev/disk/by-partuuid/0e5d-12".into()),
                model: Some("ST8000NM000A-2KE".into()),
                serial: Some("WSD1ABCD".into()),
                bytes: Some(15_628_034_048 * 512),
                bay: Some("Slot 03".into()),
            }
        );
        let by_link = Sysfs::below(dir.path()).identify("/dev/disk/by-id/wwn-0x5000c500c1-part1").unwrap();
        assert_eq!((by_link.serial, by_link.by_id), (found.serial, found.by_id));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let dir = system();
        let sysfs = Sysfs::below(dir.path());
        let nvme = sysfs.identify("/dev/nvme0n1").unwrap();
        assert_eq!(
            (nvme.model.as_deref(), nvme.serial.as_deref()),
            (Some("Samsung SSD 970"), Some("S4EVNX0M"))
        );
        let bare = sysfs.identify("/dev/loop0").unwrap();
        assert_eq!(bare, Identity { path: "/dev/loop0".into(), bytes: Some(4096), ..Identity::default() });
        assert_eq!(sysfs.identify("/dev/sdz"), None);
    }

    #[test]
    fn a_disk_shares_bytes_with_its_partitions() {
        let dir = system();
        let sysfs = Sysfs::below(dir.path());
        fs::create_dir(dir.path().join("dev/shm")).unwrap();
        fs::write(dir.path().join("dev/shm/sdc"), b"").unwrap();
        for (path, others) in [
            ("/dev/sdc", &["/dev/sdc1"][..]),
            ("/dev/sdc1", &["/dev/sdc"]),
            ("/dev/disk/by-id/ata-ST8000NM000A-2KE_WSD1ABCD", &["/dev/sdc1"]),
            ("/dev/disk/by-partuuid/0e5d-12", &["/dev/sdc"]),
            ("/dev/loop0", &[]),
            ("/dev/sdz", &[]),
            ("/dev/shm/sdc", &[]),
        ] {
            let others: Vec<PathBuf> = others.iter().map(PathBuf::from).collect();
            assert_eq!(sysfs.overlapping(path), others, "{path}");
        }
    }

    #[test]
    fn a_file_is_not_looked_at_and_not_taken_for_the_disk_of_its_name() {
        let dir = system();
        for name in ["image", "sdc"] {
            fs::write(dir.path().join(name), b"").unwrap();
            assert_eq!(Sysfs::below(dir.path()).identify(&format!("/{name}")), None, "{name}");
        }
    }
}
