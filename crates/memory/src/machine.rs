//! What the machine says about memory: cgroups of both versions, `/proc`, pressure.
//!
//! All of it are small text files of the kernel, read through a root that tests make up. A file that is not there, or
//! says what nobody understands, says nothing: a daemon serves on a kernel that lacks it.
//!
//! A cgroup's limit is the smallest of its own and of all above it, as far as they can be seen. Usage counts pages of
//! files, and in version 2 what the kernel remembers of names and inodes, which it takes back by itself: they are subtracted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Limits from here on are none: version 1 writes the largest number of pages.
const UNLIMITED: u64 = 1 << 60;
/// No file that is read here is longer.
const TEXT_MAX: u64 = 1 << 20;

/// Where the kernel's files are: `/`, or a directory of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
}

/// A cgroup directory with the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    dir: PathBuf,
    /// As people know it: its path in the hierarchy.
    name: String,
    is_v2: bool,
}

/// The cgroups a process is in, its own first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    levels: Vec<Level>,
}

/// A cgroup's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Bytes.
    pub bytes: u64,
    /// Path of the cgroup.
    pub cgroup: String,
    /// Name of the file that says so: `memory.max`, …
    pub file: &'static str,
}

/// How near the nearest limit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limit.
    pub bound: Bound,
    /// Bytes used that the kernel cannot take back by itself.
    pub used: u64,
}

impl Room {
    /// What is left, negative if it is too much already.
    #[must_use]
    pub fn left(&self) -> i64 {
        signed(self.bound.bytes).saturating_sub(signed(self.used))
    }
}

/// How long somebody waited for memory lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last ten seconds.
    pub percent: f64,
    /// Who waited is in a cgroup of ours. Otherwise it may be anybody on the machine, for a limit of his own as well.
    pub is_ours: bool,
}

/// What the kernel did to a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Times that it had to be slowed down or to take pages back: `memory.high`, `max`; in version 1 `memory.failcnt`.
    pub limit: u64,
    /// Processes that were killed for want of memory.
    pub kills: u64,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Default for Machine {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

fn text(path: &Path) -> Option<String> {
    use io::Read as _;
    // Room for most such files: else each look would be a dozen small reads.
    let mut text = String::with_capacity(4096);
    fs::File::open(path).and_then(|file| file.take(TEXT_MAX).read_to_string(&mut text)).ok()?;
    Some(text)
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// The number behind a name at the head of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

impl Machine {
    /// The kernel's files are below `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// An absolute path of the machine.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn kib(&self, file: &str, name: &str) -> Option<u64> {
        Some(field(&text(&self.path(file))?, name)?.saturating_mul(1024))
    }

    /// Memory of the machine, in bytes.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        self.kib("/proc/meminfo", "MemTotal:")
    }

    /// Memory that can be had without anybody suffering.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        self.kib("/proc/meminfo", "MemAvailable:")
    }

    /// Memory of this process that is in RAM.
    #[must_use]
    pub fn resident(&self) -> Option<u64> {
        self.kib("/proc/self/status", "VmRSS:")
    }

    /// The most that it ever was.
    #[must_use]
    pub fn resident_max(&self) -> Option<u64> {
        self.kib("/proc/self/status", "VmHWM:")
    }

    /// Where pressure on memory is told: of the cgroup where it can be had, of the machine otherwise.
    #[must_use]
    pub fn pressure_file(&self, cgroup: &Cgroup) -> PathBuf {
        cgroup.pressure_file().unwrap_or_else(|| self.machine_pressure_file())
    }

    /// Where pressure on the machine's memory is told, whoever suffers from it.
    #[must_use]
    pub fn machine_pressure_file(&self) -> PathBuf {
        self.path("/proc/pressure/memory")
    }

    /// How long somebody waited for memory: in the cgroup where that can be had, on the machine otherwise.
    #[must_use]
    pub fn stall(&self, cgroup: &Cgroup) -> Option<Stall> {
        let own = cgroup.pressure_file();
        let is_ours = own.is_some();
        let file = own.unwrap_or_else(|| self.machine_pressure_file());
        Some(Stall { percent: stall(&text(&file)?)?, is_ours })
    }

    /// Whom the kernel kills first: a number from -1000, never, to 1000.
    #[must_use]
    pub fn oom_score(&self) -> Option<i32> {
        text(&self.path("/proc/self/oom_score_adj"))?.trim().parse().ok()
    }

    /// Asks to be killed late.
    ///
    /// # Errors
    /// It may not.
    pub fn set_oom_score(&self, score: i32) -> io::Result<()> {
        fs::write(self.path("/proc/self/oom_score_adj"), format!("{score}\n"))
    }

    /// The cgroups of this process that have something to say about memory.
    #[must_use]
    pub fn cgroup(&self) -> Cgroup {
        let memberships = text(&self.path("/proc/self/cgroup")).unwrap_or_default();
        let mounts = text(&self.path("/proc/self/mountinfo")).unwrap_or_default();
        // In a hybrid the controller is in one of the two; where it is not, its files are not.
        for is_v2 in [false, true] {
            let Some(name) = memberships.lines().find_map(|line| member(line, is_v2)) else { continue };
            let Some((root, at)) = mounts.lines().find_map(|line| mount(line, is_v2)) else { continue };
            let levels = self.levels(name, &root, &at, is_v2);
            if !levels.is_empty() {
                return Cgroup { levels };
            }
        }
        Cgroup::default()
    }

    fn levels(&self, name: &str, root: &str, at: &str, is_v2: bool) -> Vec<Level> {
        let top = self.path(at);
        // In a container the path may be one that cannot be seen from inside: then the top is its own.
        let below = match root {
            "/" => name,
            _ => {
                name.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or("")
            }
        };
        let below = below.trim_start_matches('/');
        let mut dir = if below.split('/').any(|part| part == "..") { top.clone() } else { top.join(below) };
        if !dir.is_dir() {
            dir = top.clone();
        }
        let mut levels = Vec::new();
        loop {
            let rest = dir.strip_prefix(&top).unwrap_or(Path::new(""));
            let level = Level { name: format!("/{}", rest.display()), dir: dir.clone(), is_v2 };
            let usage = if is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
            // The root of version 2 has no files of this kind.
            if dir.join(usage).exists() {
                levels.push(level);
            }
            if dir == top || !dir.pop() {
                return levels;
            }
            // Version 1: without this the limits of those above mean nothing to those below.
            if !is_v2 && number(&dir.join("memory.use_hierarchy")) == Some(0) {
                return levels;
            }
        }
    }
}

/// `5:memory:/path`, or `0::/path` in version 2.
fn member(line: &str, is_v2: bool) -> Option<&str> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_it = if is_v2 {
        id == "0" && controllers.is_empty()
    } else {
        controllers.split(',').any(|controller| controller == "memory")
    };
    is_it.then_some(path)
}

/// Root and mount point of the hierarchy: see proc(5).
fn mount(line: &str, is_v2: bool) -> Option<(String, String)> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, at) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let (kind, _, options) = (back.next()?, back.next()?, back.next().unwrap_or(""));
    let is_it = match is_v2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    is_it.then(|| (unescaped(root), unescaped(at)))
}

/// Blanks and the like are three octal digits there.
fn unescaped(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let digits =
            more.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) => {
                let code = digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                out.push(u8::try_from(code).unwrap_or(b'?'));
                rest = more.get(3..).unwrap_or(&[]);
            }
            None => {
                out.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// `some avg10=1.23 …` of a pressure file.
fn stall(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|pair| pair.strip_prefix("avg10="))?.parse().ok()
}

impl Level {
    /// Its limits, the hard one first.
    fn bounds(&self) -> Vec<Bound> {
        let files: &[&'static str] =
            if self.is_v2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let bound = |file: &&'static str| {
            // "max" is no number.
            let bytes = number(&self.dir.join(file)).filter(|bytes| *bytes < UNLIMITED)?;
            Some(Bound { bytes, cgroup: self.name.clone(), file })
        };
        files.iter().filter_map(bound).collect()
    }

    fn used(&self) -> Option<u64> {
        let usage = if self.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        let used = number(&self.dir.join(usage))?;
        let stat = text(&self.dir.join("memory.stat")).unwrap_or_default();
        // Slabs are subtracted whole, like pages: `MemAvailable` has them, too, and what of them nobody uses the kernel takes
        // back before it kills. As nothing else makes it do so, a part that is left in would be lost to the cache for good.
        // Version 1 does not say how much they are.
        let names: &[&str] = if self.is_v2 {
            &["inactive_file", "active_file", "slab_reclaimable"]
        } else {
            &["total_inactive_file", "total_active_file"]
        };
        let back: u64 = names.iter().filter_map(|name| field(&stat, name)).fold(0, u64::saturating_add);
        Some(used.saturating_sub(back))
    }
}

impl Cgroup {
    /// Whether there is any.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.levels.is_empty()
    }

    /// Where pressure on its memory is told. Version 1 has no such file.
    fn pressure_file(&self) -> Option<PathBuf> {
        let own = self.levels.first().filter(|level| level.is_v2)?;
        Some(own.dir.join("memory.pressure")).filter(|path| path.exists())
    }

    /// The smallest limit.
    #[must_use]
    pub fn bound(&self) -> Option<Bound> {
        self.levels.iter().flat_map(Level::bounds).min_by_key(|bound| bound.bytes)
    }

    /// The limit that is nearest now.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        let rooms = self.levels.iter().flat_map(|level| {
            let bounds = level.bounds();
            let used = if bounds.is_empty() { None } else { level.used() };
            bounds.into_iter().filter_map(move |bound| Some(Room { bound, used: used? }))
        });
        rooms.min_by_key(Room::left)
    }

    /// What happened at the limits of its own.
    #[must_use]
    pub fn hits(&self) -> Hits {
        let Some(own) = self.levels.first() else { return Hits::default() };
        if own.is_v2 {
            let events = text(&own.dir.join("memory.events")).unwrap_or_default();
            let count = |name| field(&events, name).unwrap_or(0);
            return Hits { limit: count("high").saturating_add(count("max")), kills: count("oom_kill") };
        }
        let control = text(&own.dir.join("memory.oom_control")).unwrap_or_default();
        Hits {
            limit: number(&own.dir.join("memory.failcnt")).unwrap_or(0),
            kills: field(&control, "oom_kill").unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine made of files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let machine = Machine::at(dir.path());
        (dir, machine)
    }

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_1_has_the_smallest_limit_of_the_whole_path() {
        let at = "sys/fs/cgroup/memory";
        let (_dir, machine) = machine(&[
            ("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/box/pond\n0::/elsewhere\n"),
            ("proc/self/mountinfo", &format!("31 23 0:28 / / rw - ext4 /dev/a rw\n{V1}{V2}")),
            (&format!("{at}/memory.usage_in_bytes"), "9000000000\n"),
            (&format!("{at}/memory.limit_in_bytes"), "9223372036854771712\n"),
            (&format!("{at}/memory.use_hierarchy"), "1\n"),
            (&format!("{at}/box/memory.usage_in_bytes"), "250000000\n"),
            (&format!("{at}/box/memory.limit_in_bytes"), "268435456\n"),
            (&format!("{at}/box/memory.use_hierarchy"), "1\n"),
            (
                &format!("{at}/box/memory.stat"),
                "cache 7\ntotal_inactive_file 50000000\ntotal_active_file 1000000\n",
            ),
            (&format!("{at}/box/pond/memory.usage_in_bytes"), "100\n"),
            (&format!("{at}/box/pond/memory.limit_in_bytes"), "1073741824\n"),
            (&format!("{at}/box/pond/memory.failcnt"), "17\n"),
            (&format!("{at}/box/pond/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ]);
        let cgroup = machine.cgroup();
        let bound = Bound { bytes: 256 << 20, cgroup: "/box".into(), file: "memory.limit_in_bytes" };
        assert_eq!(cgroup.bound(), Some(bound.clone()));
        assert_eq!(cgroup.room(), Some(Room { bound, used: 199_000_000 }));
        assert_eq!(cgroup.room().unwrap().left(), (256 << 20) - 199_000_000);
        assert_eq!(cgroup.hits(), Hits { limit: 17, kills: 2 });
    }

    #[test]
    fn version_1_without_hierarchy_is_bound_by_its_own_limit_only() {
        let at = "sys/fs/cgroup/memory";
        let (_dir, machine) = machine(&[
            ("proc/self/cgroup", "4:memory:/box/pond\n"),
            ("proc/self/mountinfo", V1),
            (&format!("{at}/memory.usage_in_bytes"), "1\n"),
            (&format!("{at}/box/memory.usage_in_bytes"), "1\n"),
            (&format!("{at}/box/memory.limit_in_bytes"), "1000000\n"),
            (&format!("{at}/box/memory.use_hierarchy"), "0\n"),
            (&format!("{at}/box/pond/memory.usage_in_bytes"), "1\n"),
            (&format!("{at}/box/pond/memory.limit_in_bytes"), "5000000\n"),
        ]);
        assert_eq!(machine.cgroup().bound().unwrap().bytes, 5_000_000);
    }

    #[test]
    fn version_2_counts_what_slows_down_as_a_limit_and_max_as_none() {
        let at = "sys/fs/cgroup";
        let files = [
            ("proc/self/cgroup".to_owned(), "0::/system.slice/millpond.service\n".to_owned()),
            ("proc/self/mountinfo".to_owned(), V2.to_owned()),
            (format!("{at}/cgroup.procs"), String::new()),
            (format!("{at}/system.slice/memory.current"), "700\n".to_owned()),
            (format!("{at}/system.slice/memory.max"), "1000000\n".to_owned()),
            (format!("{at}/system.slice/millpond.service/memory.current"), "900000\n".to_owned()),
            (format!("{at}/system.slice/millpond.service/memory.max"), "max\n".to_owned()),
            (format!("{at}/system.slice/millpond.service/memory.high"), "800000\n".to_owned()),
            (
                format!("{at}/system.slice/millpond.service/memory.stat"),
                "anon 5\ninactive_file 200000\n".to_owned(),
            ),
            (
                format!("{at}/system.slice/millpond.service/memory.events"),
                "low 0\nhigh 5\nmax 2\noom_kill 1\n".to_owned(),
            ),
            (
                format!("{at}/system.slice/millpond.service/memory.pressure"),
                "some avg10=12.50 avg60=0.00\nfull avg10=0\n".to_owned(),
            ),
            (
                "proc/pressure/memory".to_owned(),
                "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n".to_owned(),
            ),
        ];
        let borrowed: Vec<(&str, &str)> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let (_dir, machine) = machine(&borrowed);
        let cgroup = machine.cgroup();
        let bound = cgroup.bound().unwrap();
        assert_eq!((bound.bytes, bound.file), (800_000, "memory.high"));
        assert_eq!(bound.cgroup, "/system.slice/millpond.service");
        assert_eq!(cgroup.room().unwrap().left(), 100_000);
        assert_eq!(cgroup.hits(), Hits { limit: 7, kills: 1 });
        assert_eq!(machine.stall(&cgroup), Some(Stall { percent: 12.5, is_ours: true }));
        assert_eq!(machine.stall(&Cgroup::default()), Some(Stall { percent: 1.0, is_ours: false }));
    }

    /// After a walk over many files the cache gave way for their names and inodes, which the kernel would have forgotten.
    #[test]
    fn in_version_2_what_the_kernel_remembers_of_files_is_room() {
        let (_dir, machine) = machine(&[
            ("proc/self/cgroup", "0::/pond\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/pond/memory.current", "900000\n"),
            ("sys/fs/cgroup/pond/memory.max", "1000000\n"),
            (
                "sys/fs/cgroup/pond/memory.stat",
                "active_file 100000\nslab_reclaimable 300000\nslab_unreclaimable 20000\nslab 320000\n",
            ),
        ]);
        assert_eq!(machine.cgroup().room().map(|room| (room.used, room.left())), Some((500_000, 500_000)));
    }

    #[test]
    fn inside_a_container_the_top_of_the_mount_is_its_own_cgroup() {
        let (_dir, machine) = machine(&[
            ("proc/self/cgroup", "4:memory:/docker/0123\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/0123 /sys/fs/cgroup/memory\\040x ro - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/memory x/memory.usage_in_bytes", "1\n"),
            ("sys/fs/cgroup/memory x/memory.limit_in_bytes", "5000000\n"),
        ]);
        let bound = machine.cgroup().bound().unwrap();
        assert_eq!((bound.bytes, bound.cgroup.as_str()), (5_000_000, "/"));
        // One whose path leads out of what it can see.
        let (_dir, machine) = self::machine(&[
            ("proc/self/cgroup", "0::/../../other\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.current", "1\n"),
            ("sys/fs/cgroup/memory.max", "7000000\n"),
        ]);
        assert_eq!(machine.cgroup().bound().unwrap().bytes, 7_000_000);
    }

    #[test]
    fn what_is_not_there_or_makes_no_sense_says_nothing() {
        let (_dir, machine) = machine(&[
            ("proc/self/cgroup", "nonsense\n4:memory\n:::\n"),
            ("proc/self/mountinfo", "1 2 3\n - - \n"),
            ("proc/meminfo", "MemTotal:       16384 kB\nMemAvailable: x kB\n"),
            ("proc/pressure/memory", "some\n"),
        ]);
        let cgroup = machine.cgroup();
        assert!(cgroup.is_none() && cgroup.bound().is_none() && cgroup.room().is_none());
        assert_eq!((machine.total(), machine.available()), (Some(16 << 20), None));
        assert_eq!((machine.resident(), machine.stall(&cgroup)), (None, None));
        assert!(Machine::default().resident().is_some_and(|bytes| bytes > 0), "this process is there");
    }
}
