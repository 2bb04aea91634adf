//! Who this host is, as pools record it: an id and a name, written into labels by whoever imports a pool.

use std::path::Path;

/// Id of this host: `/etc/hostid`, four bytes in this machine's order; 0 if it has none.
#[must_use]
pub fn hostid() -> u64 {
    read(Path::new("/etc/hostid")).unwrap_or(0)
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

#[cfg(test)]
mod tests {
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
