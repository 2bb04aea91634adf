//! Small files of the state directory, each replaced as a whole: written aside, flushed, renamed, so a crash leaves the old one or
//! the new one. What is kept in them is theirs who keep it.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

/// Larger than any real cache file by far: 10 000 pools of 100 devices are 10 MB.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes that are written to see whether there is room: more than file systems keep beside a file's name.
const PROBE: usize = 4096;

/// A JSON file; none if it is not there.
///
/// # Errors
/// It is there and cannot be read, or is no such thing.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::File::open(path).and_then(|file| read_bounded(&file)) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error of that is about what is in the file, which was read: no JSON, cut short, or something else than is known.
pub(crate) fn makes_no_sense(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Replaces the file `name` in `dir` as a whole; only its owner may read it.
pub(crate) fn replace_json(dir: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut text = serde_json::to_string_pretty(content)?;
    text.push('\n');
    replace(&dir.join(format!("{name}.new")), &dir.join(name), dir, text.as_bytes(), 0o600)
}

/// Whether there is room for a small file, which does not stay.
pub(super) fn probe(path: &Path) -> io::Result<()> {
    let mut file = create_anew(path, 0o600)?;
    let written = file.write_all(&[b' '; PROBE]).and_then(|()| file.sync_all());
    fs::remove_file(path)?;
    written
}

fn create_anew(path: &Path, mode: u32) -> io::Result<fs::File> {
    // Some of what is kept here are secrets, and one left behind may have been readable.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::File::options().write(true).create_new(true).mode(mode).open(path)
}

/// Replaces the file `path` in `dir` as a whole; `aside`, in the same directory, is where it is written first.
pub(crate) fn replace(aside: &Path, path: &Path, dir: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = create_anew(aside, mode)?;
    let written = (|| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(aside, path)
    })();
    if let Err(error) = written {
        // Half of it is of no use to anybody, and holds space that the next attempt may want.
        let _gone = fs::remove_file(aside);
        return Err(error);
    }
    // The rename itself is durable only with its directory.
    fs::File::open(dir)?.sync_all()
}

pub(super) fn read_bounded(file: &fs::File) -> io::Result<String> {
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
