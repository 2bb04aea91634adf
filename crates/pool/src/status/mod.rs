//! How a pool is, as a value: the tree of its devices with states, notes and counters, what is wrong,
//! and OpenZFS's sentences about it.
//!
//! `zpool status`, `zpool list -v` and `zpool import` are three ways to print a [`PoolStatus`]; tables and
//! JSON are the command line's business, the words are here. Facts: docs/format/vdevs.md §9.

mod errlog;
mod problem;
mod progress;

pub use errlog::{ERROR_LOG_MAX, LoggedError, error_log};
pub use problem::{Advice, IMPORTABLE, MESSAGE_URL, Problem};
pub use progress::{expansion_line, removal_line};

pub use crate::props::value::bytes as human;

use std::collections::BTreeSet;

use ondisk::scan::{ScanFunc, ScanState};

use crate::{
    Pool,
    space::{Misfit, Space, TopSpace, addressable, misfit},
    text::clean,
    vdev::{Aux, Class, Errors, Kind, State, Tree, Vdev},
};

/// One device, at one moment. Its texts are [`clean`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevStatus {
    /// As `zpool status` names it: short path, `mirror-0`, or a guid.
    pub name: String,
    /// The word in its configuration: `disk`, `mirror`, `raidz`, …
    pub type_word: String,
    /// Its guid.
    pub guid: u64,
    /// Its index in its parent.
    pub id: u64,
    /// Full path of a leaf.
    pub path: Option<String>,
    /// Full path at which it is not used because it has a newer state of the pool ([`Aux::NewerState`]): `path` is where
    /// it was, and may be another's by now.
    pub newer_at: Option<String>,
    /// State.
    pub state: State,
    /// Why.
    pub aux: Aux,
    /// Was not there when the pool was opened.
    pub not_present: bool,
    /// What stands behind the counters.
    pub note: Option<String>,
    /// A leaf that is there and lacks what a resilver has not given it yet.
    pub lacks: bool,
    /// Errors since the pool was opened.
    pub errors: Errors,
    /// I/Os that took longer than [`crate::vdev::SLOW`], of a leaf.
    pub slow: Option<u64>,
    /// Much slower than its peers: not read from while others can answer.
    pub sits_out: bool,
    /// It was found out since the pool was opened whether it is slow, of a leaf.
    pub judged: bool,
    /// Which devices of the pool it is nothing for, of a hot spare at rest.
    pub misfit: Option<Misfit>,
    /// Which allocations it is for; meaningful for top-level devices.
    pub class: Class,
    /// Size and use, for top-level devices whose space maps were read.
    pub space: Option<TopSpace>,
    /// Size of the device itself in bytes, for a leaf that is there.
    pub device_bytes: Option<u64>,
    /// Devices below.
    pub children: Vec<Self>,
}

/// A pool, at one moment. Its texts are [`clean`].
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// State of the whole.
    pub state: State,
    /// Why.
    pub aux: Aux,
    /// What is wrong, if anything is; the worst of several.
    pub problem: Option<Problem>,
    /// Root: its children are the top-level devices, of all classes.
    pub root: VdevStatus,
    /// Hot spares.
    pub spares: Vec<VdevStatus>,
    /// Cache devices.
    pub l2cache: Vec<VdevStatus>,
    /// Number of blocks in the error log.
    pub error_count: u64,
}

impl VdevStatus {
    /// The word in the STATE column.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.state.word(self.aux)
    }

    /// A tree of devices.
    #[must_use]
    pub fn of(vdev: &Vdev, space: Option<&TopSpace>) -> Self {
        let (state, aux) = vdev.state();
        let leaf = vdev.leaf.as_ref();
        let not_present = leaf.is_some_and(|leaf| {
            let now = leaf.condition.get();
            let is_there = matches!(now.refused, Aux::TooSmall | Aux::NewerState);
            now.disk.is_none() && !is_there && !now.offline && !now.removed && !now.faulted
        });
        let lacks = leaf.is_some_and(|leaf| {
            let now = leaf.condition.get();
            now.resilvering && now.disk.is_some()
        });
        let mut status = Self {
            name: clean(&vdev.display_name()),
            type_word: clean(vdev.type_word()),
            guid: vdev.guid,
            id: vdev.id,
            path: vdev.path.as_deref().map(clean),
            newer_at: leaf
                .filter(|_| aux == Aux::NewerState)
                .and_then(|leaf| leaf.condition.get().refused_at.as_deref().map(clean)),
            state,
            aux,
            not_present,
            note: None,
            lacks,
            errors: vdev.counters.get(),
            slow: leaf.map(|leaf| leaf.pulse.slow()),
            sits_out: leaf.is_some_and(|leaf| leaf.condition.get().sits_out),
            judged: leaf.is_some_and(|leaf| leaf.pulse.is_judged()),
            misfit: None,
            class: vdev.class(),
            space: space.copied(),
            device_bytes: leaf.and_then(|leaf| leaf.disk()).map(|disk| disk.info().size),
            children: vdev.children.iter().map(|child| Self::of(child, None)).collect(),
        };
        status.note = status.status_note();
        if not_present && status.path.is_some() {
            status.name = vdev.guid.to_string();
        }
        status
    }

    /// A hot spare of a pool with this tree.
    #[must_use]
    pub fn of_spare(spare: &Vdev, tree: &Tree) -> Self {
        let mut status = Self::of(spare, None);
        let is_in_use = tree.leaves().iter().any(|leaf| leaf.guid == spare.guid);
        if let Some(disk) = spare.leaf.as_ref().and_then(|leaf| leaf.disk())
            && !is_in_use
        {
            let info = disk.info();
            let sector = addressable(spare.kind == Kind::File, &info);
            status.misfit =
                misfit(tree, info.size, sector).map(|misfit| Misfit { why: clean(&misfit.why), ..misfit });
            if let Some(misfit) = &status.misfit {
                status.note.get_or_insert_with(|| misfit.why.clone());
            }
        }
        status
    }

    fn status_note(&self) -> Option<String> {
        match (&self.path, self.aux.note()) {
            (Some(path), _) if self.not_present => Some(format!("was {path}")),
            (_, Some(note)) => Some(note.to_owned()),
            _ if self.lacks => Some("(awaiting resilver)".to_owned()),
            _ => None,
        }
    }

    /// Those that are away, and have a path of which another has been found by now, are called by their guid: what is done to the
    /// path is done to that one.
    fn call_by_guid(&mut self, taken: &BTreeSet<String>) {
        let is_away = self.device_bytes.is_none() && !self.not_present;
        if let Some(path) = self.path.as_ref().filter(|path| is_away && taken.contains(*path)) {
            let was = format!("was {path}");
            self.note = Some(match self.note.take() {
                Some(note) => format!("{was}, {note}"),
                None => was,
            });
            self.name = self.guid.to_string();
        }
        self.children.iter_mut().for_each(|child| child.call_by_guid(taken));
    }

    /// This device and all below, depth first.
    pub fn walk(&self, visit: &mut dyn FnMut(&Self)) {
        visit(self);
        self.children.iter().for_each(|child| child.walk(visit));
    }

    /// The line about it in `zpool import`: name (a path even if it is gone) and what stands behind the
    /// state.
    #[must_use]
    pub fn import_name(&self) -> String {
        match &self.path {
            Some(path) if self.not_present || self.name == self.guid.to_string() => {
                crate::vdev::short_name(path)
            }
            _ => self.name.clone(),
        }
    }
}

impl PoolStatus {
    /// The status of an open pool. `space` adds sizes; see [`Pool::space`].
    #[must_use]
    pub fn of(pool: &Pool, space: Option<&Space>, error_count: u64) -> Self {
        let mut status = Self::of_tree(pool.name(), pool.guid(), &pool.tree(), space);
        status.spares = pool.spares().iter().map(|spare| VdevStatus::of_spare(spare, &pool.tree())).collect();
        status.l2cache = pool.l2cache().iter().map(|cache| VdevStatus::of(cache, None)).collect();
        status.error_count = error_count;
        let resilvering = pool
            .scan()
            .is_some_and(|scan| scan.func() == ScanFunc::Resilver && scan.state() == ScanState::Scanning);
        status.problem = problem::of_pool(&status, pool, resilvering);
        status
    }

    /// The status of devices alone: of a pool that could not be opened.
    #[must_use]
    pub fn of_tree(name: &str, guid: u64, tree: &Tree, space: Option<&Space>) -> Self {
        let (state, aux) = tree.state();
        let shown = |vdev: &&Vdev| !matches!(vdev.kind, Kind::Hole);
        let children = tree
            .tops
            .iter()
            .filter(shown)
            .map(|top| VdevStatus::of(top, space.and_then(|space| space.tops.get(top.id as usize))))
            .collect();
        let name = clean(name);
        let mut root = VdevStatus {
            name: name.clone(),
            type_word: "root".to_owned(),
            guid,
            id: 0,
            path: None,
            newer_at: None,
            state,
            aux,
            not_present: false,
            note: aux.note().map(str::to_owned),
            lacks: false,
            errors: tree.counters.get(),
            slow: None,
            sits_out: false,
            judged: false,
            misfit: None,
            class: Class::Normal,
            space: space.map(|space| space.total),
            device_bytes: None,
            children,
        };
        let mut taken = BTreeSet::new();
        root.walk(&mut |vdev| {
            if vdev.device_bytes.is_some() {
                taken.extend(vdev.path.clone());
            }
        });
        root.call_by_guid(&taken);
        let mut status = Self {
            name,
            guid,
            state,
            aux,
            problem: None,
            root,
            spares: Vec::new(),
            l2cache: Vec::new(),
            error_count: 0,
        };
        status.problem = problem::of_devices(&status);
        status
    }

    /// The word for the whole pool.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.state.word(self.aux)
    }

    /// Top-level devices of one class.
    pub fn tops(&self, class: Class) -> impl Iterator<Item = &VdevStatus> {
        self.root.children.iter().filter(move |top| top.class == class)
    }
}
