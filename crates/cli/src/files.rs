//! `millpond ls`, `cat` and `get`: file systems without mounting them.
//!
//! Names in a pool are bytes by strangers. They are escaped before a terminal sees them, and `get` creates every
//! entry anew, exclusively and by a name without `/`, so that nothing is ever written outside of its destination,
//! whatever links the pool holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use serde_json::json;
use server::{
    host::Foreign,
    pool::{
        dsl::DatasetKind,
        io::PoolIo,
        ondisk::zpl::FileKind,
        time::utc,
        zpl::{FileSystem, Follow, Node},
    },
};

use crate::{
    args::{Cat, Get, Ls, Rewind},
    context::{Context, FAILED},
    sparse::{Stream, copy},
};

/// Directories inside directories: more than a path of any system can name.
const DEPTH_MAX: usize = 2048;

/// Opens the file system or snapshot of this name.
async fn open(context: &Context, here: &[PathBuf], name: &str) -> anyhow::Result<(FileSystem, Arc<PoolIo>)> {
    let pool = context.open_content_of(here, name, Foreign::Warn, &Rewind::default()).await?;
    let dataset = pool.dsl().await?.lookup(name).await?;
    if dataset.kind() == DatasetKind::Bookmark {
        bail!("'{name}' is a bookmark and has no files");
    }
    if dataset.is_encrypted() {
        bail!("'{name}' is encrypted: the key is not loaded, and loading keys is not supported");
    }
    let set = dataset.objset().await.with_context(|| format!("cannot open '{name}'"))?;
    let fs = FileSystem::open(set).await.with_context(|| format!("cannot open '{name}'"))?;
    Ok((fs, Arc::clone(pool.io())))
}

pub(crate) async fn ls(args: Ls, context: &Context) -> anyhow::Result<ExitCode> {
    let (fs, _) = open(context, &args.search.search, &args.dataset).await?;
    let start = fs.lookup(args.path.as_bytes(), Follow::No).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut listing = Listing { args: &args, out: &mut out, first: true, failed: false };
    if args.json {
        write!(
            listing.out,
            "{{\"dataset\":{},\"path\":{},\"entries\":[",
            json!(args.dataset),
            json!(args.path)
        )?;
    }
    if start.kind() == FileKind::Directory {
        let prefix = args.path.trim_matches('/').as_bytes().to_vec();
        Box::pin(listing.tree(&fs, start, prefix)).await?;
    } else {
        listing.entry(args.path.as_bytes(), args.path.as_bytes(), &start).await?;
    }
    let failed = listing.failed;
    if args.json {
        writeln!(out, "]}}")?;
    }
    out.flush()?;
    Ok(if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

struct Listing<'a, W> {
    args: &'a Ls,
    out: &'a mut W,
    first: bool,
    failed: bool,
}

impl<W: io::Write> Listing<'_, W> {
    /// A directory, and with `-R` what is below.
    async fn tree(&mut self, fs: &FileSystem, start: Node, prefix: Vec<u8>) -> anyhow::Result<()> {
        let mut seen = BTreeSet::from([start.number()]);
        let mut todo = vec![(start, prefix)];
        while let Some((directory, path)) = todo.pop() {
            if self.args.recursive && !self.args.json {
                let gap = if self.first { "" } else { "\n" };
                writeln!(self.out, "{gap}/{}:", escaped(&path))?;
                self.first = false;
            }
            let entries = match directory.entries().await {
                Ok(entries) => entries,
                Err(error) => {
                    self.complain(&path, &error);
                    continue;
                }
            };
            let mut below = Vec::new();
            for entry in entries {
                let child_path = joined(&path, &entry.name);
                match fs.node(entry.object).await {
                    Ok(node) => {
                        self.entry(&entry.name, &child_path, &node).await?;
                        let is_directory = node.kind() == FileKind::Directory;
                        if self.args.recursive && is_directory && seen.insert(node.number()) {
                            below.push((node, child_path));
                        }
                    }
                    Err(error) => self.complain(&child_path, &error),
                }
            }
            todo.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn complain(&mut self, path: &[u8], error: &dyn std::fmt::Display) {
        say!("/{}: {error}", escaped(path));
        self.failed = true;
    }

    async fn entry(&mut self, name: &[u8], path: &[u8], node: &Node) -> anyhow::Result<()> {
        let stat = node.stat();
        let target = match node.target().await {
            Ok(target) => target,
            Err(error) => {
                self.complain(path, &error);
                None
            }
        };
        if self.args.json {
            let mut object = json!({
                "name": String::from_utf8_lossy(name),
                "path": format!("/{}", String::from_utf8_lossy(path).trim_start_matches('/')),
                "object": node.number(),
                "type": word(node.kind()),
                "mode": format!("{:o}", stat.mode & 0o7777),
                "uid": stat.uid, "gid": stat.gid,
                "links": stat.links,
                "size": stat.size,
                "mtime": format!("{}.{:09}", stat.mtime.0, stat.mtime.1),
            });
            if let Some(target) = target {
                object["target"] = json!(String::from_utf8_lossy(&target));
            }
            let comma = if std::mem::take(&mut self.first) { "" } else { "," };
            write!(self.out, "{comma}{object}")?;
            return Ok(());
        }
        if self.args.long {
            let (uid, gid, size) = (stat.uid, stat.gid, stat.size);
            let (mode, links, time) = (permissions(node.kind(), stat.mode), stat.links, utc(stat.mtime.0));
            write!(self.out, "{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} {}", escaped(name))?;
            match target {
                Some(target) => writeln!(self.out, " -> {}", escaped(&target))?,
                None => writeln!(self.out)?,
            }
        } else {
            writeln!(self.out, "{}", escaped(name))?;
        }
        Ok(())
    }
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut all = path.to_vec();
    if !all.is_empty() {
        all.push(b'/');
    }
    all.extend_from_slice(name);
    all
}

/// A name as a terminal may see it.
fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                c.to_string().bytes().for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
            } else {
                text.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
    }
    text
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Regular => "file",
        FileKind::Fifo => "fifo",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Socket => "socket",
        FileKind::Unknown(_) => "thing of unknown kind",
    }
}

fn permissions(kind: FileKind, mode: u32) -> String {
    let mut text = String::from(match kind {
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
        FileKind::Socket => "s",
        FileKind::Regular => "-",
        FileKind::Unknown(_) => "?",
    });
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

pub(crate) async fn cat(args: Cat, context: &Context) -> anyhow::Result<ExitCode> {
    let (fs, io) = open(context, &args.search.search, &args.dataset).await?;
    let node = fs.lookup(args.path.as_bytes(), Follow::Yes).await?;
    match node.kind() {
        FileKind::Regular => {}
        FileKind::Directory => bail!("{}: is a directory", args.path),
        other => bail!("{}: is not a file but a {}", args.path, word(other)),
    }
    let mut out = Stream::new(io::stdout());
    let size = node.stat().size;
    copy(node.object(), &io, size, &mut out).await?;
    out.finish(size)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn get(args: Get, context: &Context) -> anyhow::Result<ExitCode> {
    let (fs, io) = open(context, &args.search.search, &args.dataset).await?;
    let node = fs.lookup(args.path.as_bytes(), Follow::No).await?;
    let last = args.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = match last {
        "" | "." | ".." => args.dataset.rsplit(['/', '@']).next().unwrap_or("files").to_owned(),
        last => last.to_owned(),
    };
    let target = match args.output {
        Some(output) if output.is_dir() => output.join(name),
        Some(output) => output,
        None => PathBuf::from(name),
    };
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let mut copier = Copier { fs: &fs, io, is_root, linked: BTreeMap::new(), problems: 0 };
    copier.top(node, &target).await?;
    if copier.problems > 0 {
        bail!("{} entries could not be copied", copier.problems);
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies a tree out of a file system.
struct Copier<'f> {
    fs: &'f FileSystem,
    io: Arc<PoolIo>,
    is_root: bool,
    /// Files with several names that were copied already.
    linked: BTreeMap<u64, PathBuf>,
    problems: u64,
}

impl Copier<'_> {
    async fn top(&mut self, node: Node, target: &Path) -> anyhow::Result<()> {
        if node.kind() != FileKind::Directory {
            return self
                .one(&node, target)
                .await
                .with_context(|| format!("cannot write '{}'", target.display()));
        }
        make_dir(target).with_context(|| format!("cannot create '{}'", target.display()))?;
        // Directories get their modes and times when all is in them.
        let mut made = Vec::new();
        let mut seen = BTreeSet::from([node.number()]);
        let mut todo = vec![(node, target.to_path_buf(), 0)];
        while let Some((directory, path, depth)) = todo.pop() {
            match directory.entries().await {
                Ok(entries) => {
                    for entry in entries {
                        if !is_safe(&entry.name) {
                            self.complain(
                                &path,
                                format!("a name that no file may have: {}", escaped(&entry.name)),
                            );
                            continue;
                        }
                        let child_path = path.join(OsStr::from_bytes(&entry.name));
                        let child = match self.fs.node(entry.object).await {
                            Ok(child) => child,
                            Err(error) => {
                                self.complain(&child_path, error);
                                continue;
                            }
                        };
                        if child.kind() != FileKind::Directory {
                            if let Err(error) = self.one(&child, &child_path).await {
                                self.complain(&child_path, format!("{error:#}"));
                            }
                        } else if depth >= DEPTH_MAX || !seen.insert(child.number()) {
                            self.complain(&child_path, "directories lead in a circle");
                        } else if let Err(error) = make_dir(&child_path) {
                            self.complain(&child_path, error);
                        } else {
                            todo.push((child, child_path, depth + 1));
                        }
                    }
                }
                Err(error) => self.complain(&path, error),
            }
            made.push((directory, path));
        }
        for (directory, path) in made.into_iter().rev() {
            if let Err(error) = File::open(&path).and_then(|file| self.attributes(&directory, &file, &path)) {
                self.complain(&path, error);
            }
        }
        Ok(())
    }

    fn complain(&mut self, path: &Path, what: impl std::fmt::Display) {
        say!("{}: {what}", escaped(path.as_os_str().as_bytes()));
        self.problems += 1;
    }

    /// Anything but a directory.
    async fn one(&mut self, node: &Node, path: &Path) -> anyhow::Result<()> {
        match node.kind() {
            FileKind::Regular => {
                if node.stat().links > 1 {
                    if let Some(first) = self.linked.get(&node.number()) {
                        return Ok(fs::hard_link(first, path)?);
                    }
                    self.linked.insert(node.number(), path.to_path_buf());
                }
                // Who may read it is known when it gets its mode.
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                let size = node.stat().size;
                let filled = async {
                    file.set_len(size)?;
                    copy(node.object(), &self.io, size, &mut file).await
                };
                if let Err(error) = filled.await {
                    // Half a file is worse than none.
                    fs::remove_file(path)?;
                    self.linked.remove(&node.number());
                    return Err(error);
                }
                self.attributes(node, &file, path)?;
            }
            FileKind::Symlink => {
                let target = node.target().await?.unwrap_or_default();
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), path)?;
                if self.is_root {
                    let (uid, gid) = owner(node);
                    std::os::unix::fs::lchown(path, uid, gid)?;
                }
            }
            other => bail!("not copied: it is a {}", word(other)),
        }
        Ok(())
    }

    fn attributes(&self, node: &Node, file: &File, path: &Path) -> io::Result<()> {
        let stat = node.stat();
        if self.is_root {
            let (uid, gid) = owner(node);
            std::os::unix::fs::fchown(file, uid, gid)?;
        }
        // Without ownership, a set-uid bit would mean somebody else than it did.
        let mode = if self.is_root { stat.mode & 0o7777 } else { stat.mode & 0o1777 };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        let time = |(seconds, nanoseconds): (u64, u64)| {
            let since =
                Duration::new(seconds, u32::try_from(nanoseconds).ok().filter(|n| *n < 1_000_000_000)?);
            SystemTime::UNIX_EPOCH.checked_add(since)
        };
        if let (Some(modified), Some(accessed)) = (time(stat.mtime), time(stat.atime)) {
            let times = fs::FileTimes::new().set_modified(modified).set_accessed(accessed);
            // A directory is open for reading only, which is enough for its owner.
            file.set_times(times)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

/// A directory into which nobody else looks before it has its mode.
fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// The owner as the system can hold it: foreign domains are left to the number.
fn owner(node: &Node) -> (Option<u32>, Option<u32>) {
    (u32::try_from(node.stat().uid & 0xffff_ffff).ok(), u32::try_from(node.stat().gid & 0xffff_ffff).ok())
}

/// Whether a name stays in its directory.
fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_judged() {
        assert_eq!(escaped("grün\n\u{1b}[31m".as_bytes()), "grün\\012\\033[31m");
        assert_eq!(escaped(b"a\xffb"), "a\\377b");
        assert!([&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0"].iter().all(|name| !is_safe(name)));
        assert!(is_safe(b"...") && is_safe(b"a b"));
    }

    #[test]
    fn modes_read_as_ls_shows_them() {
        assert_eq!(permissions(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(permissions(FileKind::Regular, 0o4644), "-rwSr--r--");
    }
}
