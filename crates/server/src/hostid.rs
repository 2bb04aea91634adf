//! Who this host is, as pools record it: an id and a name, written into labels by whoever imports a pool.

use std::path::Path;

use ring::digest::{SHA256, digest};

/// Where systemd, or D-Bus without it, keeps what a machine is known by.
const MACHINE_IDS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// Id of this host: `/etc/hostid`, four bytes in this machine's order. Few hosts have that file, and without an id none
/// knows another's pools: then it follows from the machine's own id. 0 if there is neither.
#[must_use]
pub fn hostid() -> u64 {
    let machine =
        || MACHINE_IDS.iter().find_map(|path| of_machine(&std::fs::read_to_string(path).unwrap_or_default()));
    read(Path::new("/etc/hostid")).filter(|id| *id != 0).or_else(machine).unwrap_or(0)
}

/// The id of a machine's own, which is not to be seen in labels: 32 bits of its hash. None if it has not got its own yet.
fn of_machine(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let hash = digest(&SHA256, format!("millpond hostid {}", text.to_ascii_lowercase()).as_bytes());
    let (word, _rest) = hash.as_ref().split_first_chunk::<4>()?;
    Some(u64::from(u32::from_le_bytes(*word).max(1)))
}

#[expect(
    clippy::host_endian_bytes,
    reason = "the file is in the order of the machine that wrote it: this one"
)]
fn read(path: &Path) -> Option<u64> {
    let bytes = std::fs::read(path).ok()?;
    let word: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(word).into())
}

/// Name of this host, as the kernel knows it.
#[must_use]
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// Effective user of this process, in number: who a pool's history says it was.
#[must_use]
pub fn user() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid().into())
}

/// Wall clock, in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0)
}

/// The same, with nanoseconds.
#[must_use]
pub fn moment() -> (u64, u32) {
    let now = jiff::Timestamp::now();
    (u64::try_from(now.as_second()).unwrap_or(0), u32::try_from(now.subsec_nanosecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_without_that_file_has_an_id_that_stays() {
        let id = super::of_machine("0123456789abcdef0123456789abcdef\n");
        assert_eq!(id, super::of_machine("0123456789ABCDEF0123456789ABCDEF"));
        assert!(id.is_some_and(|id| id != 0 && u32::try_from(id).is_ok()), "{id:?}");
        assert_ne!(id, super::of_machine("0123456789abcdef0123456789abcdee"));
        for text in ["", "uninitialized\n", "0123"] {
            assert_eq!(super::of_machine(text), None, "{text}");
        }
    }

    #[test]
    #[expect(clippy::host_endian_bytes, reason = "as above")]
    fn the_id_is_the_first_four_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hostid");
        assert_eq!(super::read(&path), None);
        std::fs::write(&path, 0x00bab10c_u32.to_ne_bytes()).unwrap();
        assert_eq!(super::read(&path), Some(0x00ba_b10c));
        std::fs::write(&path, [1, 2]).unwrap();
        assert_eq!(super::read(&path), None);
    }
}
