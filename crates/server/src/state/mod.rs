//! The cache file: which pools were imported, and on which devices they were.
//!
//! One JSON file in the state directory. It is a hint, never an authority: what a pool is, its own labels say.
//! So a device that moved is found again by searching, and whoever only looks does so, too, where the file cannot be read.
//! Only how a pool was imported (to be read only, for one), how new it was, and which have
//! another state since, its labels cannot say: those that do may be the ones that are late. Where that cannot be read no pool
//! is opened for writing unless it is imported anew. The file is replaced as a whole (write aside, flush, rename), so a crash
//! leaves the old or the new one.
//!
//! Two commands at once: each reads, changes and replaces under a lock file ([`locks`]), so neither loses the other's pool.

mod files;
mod locks;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::files::{probe, read_bounded};
pub use self::locks::{Claim, Claimed};
pub(crate) use self::{
    files::{makes_no_sense, read_json, replace, replace_json},
    locks::{CommandTurn, lock},
};

/// Name of the cache file in the state directory.
pub(crate) const FILE: &str = "pools.json";
/// Its version. Whoever knows another one may have to know what this one does not.
const VERSION: u32 = 1;

/// A pool that was imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Its name.
    pub name: String,
    /// Its guid, in decimal: JSON readers lose the low digits of numbers this large.
    #[serde(with = "decimal")]
    pub guid: u64,
    /// Absolute paths of its devices.
    pub devices: Vec<PathBuf>,
    /// It was imported by force although another host seemed to have it.
    #[serde(default)]
    pub forced: bool,
    /// It was imported as of this transaction group or the newest before it (`-T`, or what `-F` came to).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txg: Option<u64>,
    /// It was imported although log devices were missing (`-m`).
    #[serde(default)]
    pub missing_log: bool,
    /// It was imported although it had been destroyed (`-D`).
    #[serde(default)]
    pub destroyed: bool,
    /// It was imported to be read only (`-o readonly=on`).
    #[serde(default)]
    pub read_only: bool,
    /// Nothing was written to it, so its labels say what they said before: exported, for one. Files of older versions do
    /// not tell.
    #[serde(default = "unknown")]
    pub untouched: bool,
    /// The id that its labels give this host, which may have got another since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostid: Option<u64>,
    /// It is not to be opened by itself (`cachefile=none`): it counts as imported until the machine or a daemon starts. That
    /// is the start of the machine which was the last then; none of them, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// A transaction group that it had: what is older than that is not opened unasked while a device is missing. The last
    /// one only if a device was away then. 0 if nothing is known of that.
    #[serde(default)]
    pub newest: u64,
    /// Devices on which the pool was gone on with from a state that this host has or gave up: guid, and the newest
    /// transaction group that they have from it. With a newer one they are not of the pool as it is. Nothing is said of those
    /// that are in use again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub apart: BTreeMap<u64, u64>,
    /// Devices that alone have some of it, and without which it was imported by name all the same: guid, and the newest
    /// transaction group of which they have something. No start waits for them until it was open with them again. Only of a pool
    /// that can be read and not written to: else its devices tell that it was gone on with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub without: BTreeMap<u64, u64>,
    /// What only a newer version knows, as that wrote it: it may be all that keeps an old state of the pool from being opened.
    #[serde(flatten)]
    pub unread: BTreeMap<String, serde_json::Value>,
}

const fn unknown() -> bool {
    true
}

impl Remembered {
    /// Where it was, in words.
    #[must_use]
    pub fn places(&self) -> String {
        self.devices.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Whether it was imported as of an earlier transaction group because its newest state could not be read (`-F`). Who wishes
    /// for an earlier one wishes to read it only.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.txg.is_some() && !self.read_only
    }

    /// Whether its import was to last for a while only, and no longer.
    fn is_over(&self) -> bool {
        self.boot.as_ref().is_some_and(|boot| *boot != self::boot())
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    pools: Vec<Remembered>,
    /// As of [`Remembered`].
    #[serde(flatten)]
    unread: BTreeMap<String, serde_json::Value>,
}

/// What is known of a file of any version.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Why the cache file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The system refused.
    #[error("cannot {doing} '{}'", path.display())]
    Io {
        /// `read`, `write`, …
        doing: &'static str,
        /// Which file or directory.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Somebody does not let go of the lock.
    #[error(
        "cannot lock '{}': another process has held it for {} s; 'fuser {}' says which, and once that has ended this can be tried again",
        path.display(), waited.as_secs(), path.display()
    )]
    Held {
        /// Which file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// There is one daemon for a state directory: two would tell people of each other's pools, and each write over what the
    /// other remembers.
    #[error(
        "'{}' is the state directory of another daemon{}: stop that one, or give this one a directory of its own \
         (--state DIR)",
        dir.display(), process.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The other's process, as it says.
        process: Option<String>,
    },
    /// What is in it is not to be understood without what this version does not know.
    #[error(
        "'{}' was written by a newer version (its format is {version}; known here is {}): serve the pools with that \
         version, or, with all their devices there, put the file aside and import them again",
        path.display(), VERSION
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// The version of its format.
        version: u32,
    },
    /// Another command has a pool.
    #[error("another command has it{}", process.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Taken {
        /// Its process, as it says.
        process: Option<String>,
    },
    /// It is no cache file of ours.
    #[error("'{}' is not a cache file of this version; remove it and import the pools again", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// The cache file of one state directory.
#[derive(Clone, Debug)]
pub struct State {
    dir: PathBuf,
}

impl State {
    /// The cache file in `dir`, which need not exist yet.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// In `dir` if given, else where this user's is: `/var/lib/millpond` for root, otherwise
    /// `millpond` below `XDG_STATE_HOME` (`~/.local/state`).
    #[must_use]
    pub fn new(dir: Option<&Path>) -> Self {
        match dir {
            Some(dir) => Self::at(dir),
            None => Self::at(default_dir()),
        }
    }

    /// The state directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cache file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// All imported pools, by name. None if there is no file, or what should be its directory is none.
    ///
    /// # Errors
    /// The file is there and cannot be read or understood.
    pub fn pools(&self) -> Result<Vec<Remembered>, StateError> {
        let mut pools = self.all()?;
        pools.retain(|pool| !pool.is_over());
        Ok(pools)
    }

    /// Guids of those that were imported for a while, which is over: they are opened when somebody says so.
    ///
    /// # Errors
    /// As of [`pools`](Self::pools).
    pub fn over(&self) -> Result<Vec<u64>, StateError> {
        Ok(self.all()?.iter().filter(|pool| pool.is_over()).map(|pool| pool.guid).collect())
    }

    /// Whether the pool of this guid was imported for a while, be that over or not.
    ///
    /// # Errors
    /// As of [`pools`](Self::pools).
    pub fn is_for_a_while(&self, guid: u64) -> Result<bool, StateError> {
        Ok(self.all()?.iter().any(|pool| pool.guid == guid && pool.boot.is_some()))
    }

    /// Those whose imports last until a daemon starts.
    ///
    /// # Errors
    /// As of [`pools`](Self::pools).
    pub fn passing(&self) -> Result<Vec<Remembered>, StateError> {
        let mut passing = self.pools()?;
        passing.retain(|pool| pool.boot.is_some());
        Ok(passing)
    }

    /// Ends those.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub fn lapse(&self) -> Result<(), StateError> {
        self.change(|pools| {
            let passing = pools.iter_mut().filter(|pool| pool.boot.is_some());
            passing.for_each(|pool| pool.boot = Some(String::new()));
            true
        })
        .map(drop)
    }

    /// What is remembered of the pool of this guid, also if its import is over. Nothing if that cannot be read.
    pub(crate) fn known(&self, guid: u64) -> Option<Remembered> {
        self.all().ok()?.into_iter().find(|pool| pool.guid == guid)
    }

    /// Remembers that a pool had got as far as `newest`, which devices are `apart`, and that those which are `used` are not
    /// any more. Nothing of one that is not imported.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub(crate) fn note_newest(
        &self,
        guid: u64,
        newest: u64,
        apart: &BTreeMap<u64, u64>,
        used: &BTreeSet<u64>,
    ) -> Result<(), StateError> {
        self.change_newest(guid, |before| before.max(newest), apart, used)
    }

    /// The same of a pool that goes on from an earlier state, at the transaction group `newest`.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub(crate) fn go_on_from(
        &self,
        guid: u64,
        newest: u64,
        apart: &BTreeMap<u64, u64>,
    ) -> Result<(), StateError> {
        self.change_newest(guid, |before| before.min(newest), apart, &BTreeSet::new())
    }

    /// Remembers that a pool which was imported without some devices is open with those which are `used`: starts wait for these
    /// again.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub(crate) fn note_used(&self, guid: u64, used: &BTreeSet<u64>) -> Result<(), StateError> {
        self.change(|pools| {
            let Some(pool) = pools.iter_mut().find(|pool| pool.guid == guid) else { return false };
            let before = pool.without.len();
            pool.without.retain(|guid, _| !used.contains(guid));
            pool.without.len() != before
        })
        .map(drop)
    }

    fn change_newest(
        &self,
        guid: u64,
        change: impl FnOnce(u64) -> u64,
        apart: &BTreeMap<u64, u64>,
        used: &BTreeSet<u64>,
    ) -> Result<(), StateError> {
        self.change(|pools| {
            let Some(pool) = pools.iter_mut().find(|pool| pool.guid == guid) else { return false };
            let before = (pool.newest, pool.apart.clone());
            pool.newest = change(pool.newest);
            // What was given up once is not less so for what came later.
            for (guid, both) in apart {
                pool.apart.entry(*guid).or_insert(*both);
            }
            pool.apart.retain(|guid, _| !used.contains(guid));
            pool.newest != before.0 || pool.apart != before.1
        })
        .map(drop)
    }

    fn all(&self) -> Result<Vec<Remembered>, StateError> {
        Ok(self.contents()?.pools)
    }

    fn contents(&self) -> Result<Contents, StateError> {
        let path = self.file();
        let text = match fs::File::open(&path).and_then(|file| read_bounded(&file)) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Contents::default());
            }
            Err(source) => return Err(StateError::Io { doing: "read", path, source }),
        };
        let malformed = |source| StateError::Malformed { path: path.clone(), source };
        let Head { version } = serde_json::from_str(&text).map_err(malformed)?;
        if version > VERSION {
            return Err(StateError::Newer { path, version });
        }
        serde_json::from_str(&text).map_err(malformed)
    }

    /// Whether something can be remembered, as far as that can be known before.
    ///
    /// # Errors
    /// The directory cannot be made, or nothing can be written there.
    pub fn check(&self) -> Result<(), StateError> {
        let lock = lock(&self.dir)?;
        // In a full file system the lock's file, which is there already, can still be opened.
        let path = self.dir.join("probe");
        probe(&path).map_err(failed("write", &path))?;
        drop(lock);
        Ok(())
    }

    /// Remembers `pool`, in place of one with the same guid. Another of its name stays: its drives may be late, and nobody
    /// else remembers where they were. Devices that are known to be apart stay so if they `may_be_apart`, by their guids.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub fn remember(&self, pool: Remembered, may_be_apart: impl Fn(u64) -> bool) -> Result<(), StateError> {
        self.change(|pools| {
            let mut pool = pool;
            // Devices may have gone away, or come back with another state, since the caller looked.
            if let Some(known) = pools.iter().find(|known| known.guid == pool.guid) {
                pool.newest = pool.newest.max(known.newest);
                for (guid, both) in known.apart.iter().filter(|(guid, _)| may_be_apart(**guid)) {
                    pool.apart.entry(*guid).or_insert(*both);
                }
            }
            pools.retain(|known| known.guid != pool.guid);
            pools.push(pool);
            pools.sort_by(|a, b| a.name.cmp(&b.name));
            true
        })
        .map(drop)
    }

    /// Forgets the pool of this name or guid. Whether there was one.
    ///
    /// # Errors
    /// The file cannot be read or replaced.
    pub fn forget(&self, name_or_guid: &str) -> Result<bool, StateError> {
        let guid = name_or_guid.parse::<u64>().ok();
        self.change(|pools| {
            let before = pools.len();
            pools.retain(|known| known.name != name_or_guid && Some(known.guid) != guid);
            pools.len() != before
        })
    }

    /// Reads, changes, and replaces the file if `change` says that there is something new.
    fn change(&self, change: impl FnOnce(&mut Vec<Remembered>) -> bool) -> Result<bool, StateError> {
        let lock = lock(&self.dir)?;
        let mut contents = self.contents()?;
        let changed = change(&mut contents.pools);
        if changed {
            let path = self.file();
            let aside = self.dir.join(format!("{FILE}.new"));
            let mut text = serde_json::to_string_pretty(&Contents { version: VERSION, ..contents })
                .map_err(|source| StateError::Malformed { path: path.clone(), source })?;
            text.push('\n');
            replace(&aside, &path, &self.dir, text.as_bytes(), 0o644).map_err(failed("write", &path))?;
        }
        // The lock goes with the file handle.
        drop(lock);
        Ok(changed)
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |source| StateError::Io { doing, path, source }
}

fn default_dir() -> PathBuf {
    if is_root() {
        return PathBuf::from("/var/lib/millpond");
    }
    user_dir("XDG_STATE_HOME", ".local/state").unwrap_or_else(env::temp_dir).join("millpond")
}

/// A directory of this user: the variable's if it is absolute, else below the home directory.
fn user_dir(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    set.or_else(|| env::home_dir().map(|home| home.join(below_home)))
}

/// Which start of this machine was the last, as its kernel calls it.
pub(crate) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

/// Whether this process is root's: the owner of its own entry in `/proc` is its effective user.
#[must_use]
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

mod decimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, guid: u64) -> Remembered {
        Remembered {
            name: name.into(),
            guid,
            devices: vec!["/dev/x".into()],
            forced: false,
            txg: None,
            missing_log: false,
            destroyed: false,
            read_only: false,
            untouched: false,
            hostid: None,
            boot: None,
            newest: 0,
            apart: BTreeMap::new(),
            without: BTreeMap::new(),
            unread: BTreeMap::new(),
        }
    }

    fn remember(state: &State, pool: Remembered) -> Result<(), StateError> {
        state.remember(pool, |_| true)
    }

    #[test]
    fn what_is_remembered_is_there_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("deep/er"));
        assert_eq!(state.pools().unwrap(), []);
        assert!(!state.forget("tank").unwrap());
        remember(&state, pool("tank", u64::MAX)).unwrap();
        remember(&state, pool("lake", 2)).unwrap();
        assert_eq!(state.pools().unwrap(), [pool("lake", 2), pool("tank", u64::MAX)]);
        // The same pool under another name is still one pool.
        remember(&state, pool("pond", 2)).unwrap();
        assert_eq!(state.pools().unwrap(), [pool("pond", 2), pool("tank", u64::MAX)]);
        // Another of its name does not push it out.
        remember(&state, pool("pond", 3)).unwrap();
        assert_eq!(state.pools().unwrap().len(), 3);
        assert!(state.forget("3").unwrap());
        assert!(state.forget("pond").unwrap());
        assert!(state.forget("18446744073709551615").unwrap());
        assert_eq!(state.pools().unwrap(), []);
    }

    /// What `cachefile=none` asked for was accepted and not done.
    #[test]
    fn an_import_for_a_while_is_over_when_the_machine_or_a_daemon_starts() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        let passing = Remembered { boot: Some(boot()), ..pool("tank", 1) };
        remember(&state, passing.clone()).unwrap();
        remember(&state, Remembered { boot: Some("an earlier one".into()), ..pool("lake", 2) }).unwrap();
        remember(&state, pool("pond", 3)).unwrap();
        assert_eq!([1, 2, 3].map(|guid| state.is_for_a_while(guid).unwrap()), [true, true, false]);
        assert_eq!(state.pools().unwrap(), [pool("pond", 3), passing.clone()]);
        assert_eq!(state.over().unwrap(), [2]);
        assert_eq!(state.passing().unwrap(), std::slice::from_ref(&passing));
        state.lapse().unwrap();
        assert_eq!(state.passing().unwrap(), []);
        assert_eq!((state.pools().unwrap(), state.over().unwrap()), (vec![pool("pond", 3)], vec![2, 1]));
        // Imported again.
        remember(&state, passing).unwrap();
        assert_eq!((state.pools().unwrap().len(), state.over().unwrap()), (2, vec![2]));
    }

    /// Nothing said how new a pool had been: a start went back to whatever was there.
    #[test]
    fn how_new_a_pool_was_is_not_lost_unless_it_goes_on_from_an_earlier_state() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        let none = BTreeSet::new();
        state.note_newest(1, 50, &BTreeMap::new(), &none).unwrap();
        assert_eq!(state.known(1), None, "nobody imported it");
        let old = r#"{"version": 1, "pools": [{"name": "tank", "guid": "1", "devices": ["/dev/x"]}]}"#;
        fs::write(state.file(), old).unwrap();
        assert_eq!(state.known(1).unwrap().newest, 0);
        state.note_newest(1, 50, &BTreeMap::from([(u64::MAX, 40)]), &none).unwrap();
        state.note_newest(1, 45, &BTreeMap::from([(u64::MAX, 45)]), &none).unwrap();
        let known = state.known(1).unwrap();
        assert_eq!((known.newest, &known.apart), (50, &BTreeMap::from([(u64::MAX, 40)])));
        // Whoever remembers it again looked before that.
        remember(&state, Remembered { newest: 0, ..known }).unwrap();
        assert_eq!(state.known(1).unwrap().newest, 50);
        state.go_on_from(1, 30, &BTreeMap::new()).unwrap();
        assert_eq!(state.known(1).unwrap().newest, 30);
    }

    /// Found by reading: whoever remembered a pool anew undid what was found out of its devices since it had looked, and the
    /// next start took another state for the pool. And what was found out once held for good, whatever was on them since.
    #[test]
    fn a_device_is_apart_until_it_is_used_or_gone_whoever_remembers_its_pool_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        remember(&state, pool("tank", 1)).unwrap();
        let looked = state.known(1).unwrap();
        let apart = || state.known(1).unwrap().apart;
        let all = BTreeMap::from([(7, 40), (8, 40), (9, 40)]);
        state.note_newest(1, 50, &all, &BTreeSet::new()).unwrap();
        remember(&state, looked.clone()).unwrap();
        assert_eq!(apart(), all);
        state.note_newest(1, 0, &BTreeMap::new(), &BTreeSet::from([7])).unwrap();
        assert_eq!(apart(), BTreeMap::from([(8, 40), (9, 40)]));
        state.remember(looked, |guid| guid != 8).unwrap();
        assert_eq!((apart(), state.known(1).unwrap().newest), (BTreeMap::from([(9, 40)]), 50));
    }

    #[test]
    fn a_file_that_is_not_ours_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        fs::write(state.file(), "{nonsense").unwrap();
        let error = state.pools().unwrap_err();
        assert!(error.to_string().contains("pools.json"), "{error}");
        assert!(remember(&state, pool("tank", 1)).is_err());
        assert_eq!(fs::read_to_string(state.file()).unwrap(), "{nonsense");
    }

    /// The version was not looked at, and what a newer one had added was erased by the first change: it may have been what kept
    /// an old state of the pool from being opened.
    #[test]
    fn what_a_newer_version_wrote_is_kept_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        let newer = r#"{"version": 1, "guards": [7], "pools": [{"name": "tank", "guid": "1", "devices": ["/dev/x"],
            "apart": {"18446744073709551615": 40}, "guard": {"of": 18446744073709551615}}]}"#;
        fs::write(state.file(), newer).unwrap();
        state.note_newest(1, 50, &BTreeMap::new(), &BTreeSet::new()).unwrap();
        let kept: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(state.file()).unwrap()).unwrap();
        assert_eq!(kept["guards"], serde_json::json!([7]));
        assert_eq!(kept["pools"][0]["guard"]["of"], u64::MAX);
        let known = state.known(1).unwrap();
        assert_eq!((known.newest, known.apart), (50, BTreeMap::from([(u64::MAX, 40)])));
        // What cannot be understood at all is not taken for what is known.
        for text in [r#"{"version": 2, "pools": []}"#, r#"{"version": 2, "tanks": {}}"#] {
            fs::write(state.file(), text).unwrap();
            let error = state.pools().unwrap_err();
            assert!(matches!(error, StateError::Newer { version: 2, .. }), "{error:?}");
            assert!(error.to_string().contains("pools.json"), "{error}");
            assert!(remember(&state, pool("tank", 1)).is_err());
            assert_eq!(fs::read_to_string(state.file()).unwrap(), text);
        }
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_has_no_list() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("state"));
        fs::write(state.dir(), "").unwrap();
        assert_eq!(state.pools().unwrap(), []);
        assert!(state.check().is_err(), "nothing can be kept there");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kept.json/in the way")).unwrap();
        assert!(replace_json(dir.path(), "kept.json", &1).is_err());
        assert!(!dir.path().join("kept.json.new").exists());
    }

    /// The lock's file was there, so it passed where nothing could be written: a pool was created that nobody remembered.
    #[test]
    fn a_directory_in_which_nothing_can_be_written_is_found_out_although_its_lock_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        state.check().unwrap();
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        // As if there was no room for another file, for root too.
        fs::create_dir_all(dir.path().join("probe/in the way")).unwrap();
        let error = state.check().unwrap_err();
        assert!(error.to_string().contains("cannot write"), "{error}");
    }

    #[test]
    fn commands_at_the_same_time_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for guid in 0..16 {
                let state = State::at(dir.path());
                scope.spawn(move || remember(&state, pool(&format!("pool{guid}"), guid)).unwrap());
            }
        });
        assert_eq!(State::at(dir.path()).pools().unwrap().len(), 16);
    }
}
