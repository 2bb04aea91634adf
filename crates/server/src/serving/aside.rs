//! A volume whose content is about to be replaced is nobody's meanwhile: a host that came in would keep what it read of the
//! old content, and what it wrote would lie on top of the new. Nor is one that is about to go, or to get another name: whoever
//! came in would lose it.
//!
//! It stays the disk it is, with its reservations: who wants to log in is told to try again. Its export is gone, and comes
//! back when the pool is followed. A pool that is suspended on the way does it when it goes on, and whoever asked for it was
//! answered before: so it lasts as long as somebody may still do it.

use std::{
    collections::{BTreeSet, btree_map::Entry},
    sync::Arc,
};

use block::BlockVolume;
use iscsi::{LogicalUnit, Shut};
use parking_lot::Mutex;

use super::Serving;
use crate::ops::Held;

/// Why a volume is busy that is nobody's disk any more.
const WRITTEN_TO: &str = "dataset is busy: a write that came by a LUN of it which was taken away is still on its way: try \
                          again when it has ended; 'zpool status' names devices that do not answer";

/// A volume that nobody can begin to use until this is [over](Self::over), at the latest when it is dropped.
pub(crate) struct Aside {
    serving: Arc<Serving>,
    pool: u64,
    name: String,
    /// Its content is to be another, not its name alone.
    replaces: bool,
    /// None: it is over.
    kept: Mutex<Option<Kept>>,
}

/// The disk, if it is one, and its target.
type Kept = Option<(Arc<LogicalUnit>, Shut)>;

impl Serving {
    /// Lets nobody begin to use a volume whose content is to be replaced, and ends what was promised of what it holds. Writes
    /// are waited for that came by a disk of it which was taken away: they would lie on top of the new content. An error says
    /// why that cannot be. Either way its pool has to be followed afterwards.
    pub(crate) async fn set_aside(
        self: &Arc<Self>,
        held: &Held,
        name: &str,
    ) -> Result<Arc<Aside>, &'static str> {
        // Whatever is offered of it: where it is not open nothing can land.
        let mut open = held.engine().map(|engine| engine.open_volumes()).unwrap_or_default();
        open.retain(|volume| volume.identity().name == name);
        for volume in open {
            if !self.last_writes_ended(&(volume as Arc<dyn BlockVolume>)).await {
                return Err(WRITTEN_TO);
            }
        }
        let aside = self.put_aside(held, &[name.to_owned()], true).ok().and_then(|mut asides| asides.pop());
        aside.ok_or("dataset is busy")
    }

    /// The same at once, for volumes and snapshots that are to go, or to get another name, all or none: then it is the name of
    /// one that somebody uses. What is still written to one that goes fails, and one that is renamed stays the volume it is.
    pub(crate) fn set_aside_all(
        self: &Arc<Self>,
        held: &Held,
        names: &[String],
    ) -> Result<Vec<Arc<Aside>>, String> {
        self.put_aside(held, names, false)
    }

    /// There may be a hundred thousand snapshots among them: who is connected to one is asked of all at once.
    fn put_aside(
        self: &Arc<Self>,
        held: &Held,
        names: &[String],
        replaces: bool,
    ) -> Result<Vec<Arc<Aside>>, String> {
        let meant: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let used = || {
            let used = self.used(|name| meant.contains(name));
            names.iter().find(|name| used.contains(*name)).cloned()
        };
        // Before: those who are connected are not cut off.
        if let Some(name) = used() {
            return Err(name);
        }
        let asides = self.shut_out(held, names, replaces);
        // Again: from here on nobody comes in.
        if let Some(name) = used() {
            self.let_in(held, &asides);
            return Err(name);
        }
        self.take_exports(held, &asides);
        for aside in &asides {
            if let Some(Some((unit, _))) = &*aside.kept.lock() {
                unit.revoke_tokens();
            }
        }
        Ok(asides)
    }

    /// Nobody can begin to use them from here on. Whoever does already notices nothing.
    pub(super) fn shut_out(
        self: &Arc<Self>,
        held: &Held,
        names: &[String],
        replaces: bool,
    ) -> Vec<Arc<Aside>> {
        let pool = held.guid();
        let begin = |name: &String| {
            *self.asides.lock().entry((pool, name.clone())).or_default() += 1;
            let (serving, name, kept) = (Arc::clone(self), name.clone(), Mutex::new(Some(None)));
            Arc::new(Aside { serving, pool, name, replaces, kept })
        };
        let asides: Vec<Arc<Aside>> = names.iter().map(begin).collect();
        {
            let entries = self.entries.lock();
            for aside in &asides {
                if let Some(entry) = entries.get(&aside.name).filter(|_| !held.is_withdrawn()) {
                    if entry.is_in_nbd {
                        self.registry.hide(&aside.name);
                    }
                    let kept = entry.disk.as_ref().map(|disk| (Arc::clone(&disk.unit), disk.target.shut()));
                    *aside.kept.lock() = Some(kept);
                }
            }
        }
        asides
    }

    /// Takes [`shut_out`](Self::shut_out) back, but for what somebody else means to set aside.
    pub(super) fn let_in(&self, held: &Held, asides: &[Arc<Aside>]) {
        asides.iter().for_each(|aside| aside.spare());
        let entries = self.entries.lock();
        for aside in asides.iter().filter(|aside| !self.is_aside(aside.pool, &aside.name)) {
            let entry = entries.get(&aside.name).filter(|_| !held.is_withdrawn());
            if entry.is_some_and(|entry| entry.is_in_nbd) {
                self.registry.show(&aside.name);
            }
        }
    }

    /// Nobody has these exports, and they are gone.
    fn take_exports(&self, held: &Held, asides: &[Arc<Aside>]) {
        let mut entries = self.entries.lock();
        for aside in asides {
            if let Some(entry) = entries.get_mut(&aside.name).filter(|_| !held.is_withdrawn())
                && std::mem::take(&mut entry.is_in_nbd)
            {
                self.registry.remove(&aside.name);
            }
        }
    }

    /// Whether a volume of this pool is not to be offered at the moment.
    pub(super) fn is_aside(&self, pool: u64, name: &str) -> bool {
        self.asides.lock().contains_key(&(pool, name.to_owned()))
    }
}

impl Aside {
    /// It is over, and the content is what it was: nobody has to be told of anything.
    pub(crate) fn spare(&self) {
        self.end(|_| {});
    }

    /// Its content was replaced, or may have been: hosts that come back are told so.
    pub(crate) fn over(&self) {
        // Of what was copied meanwhile, too, tokens stand for nothing.
        self.end(LogicalUnit::content_replaced);
    }

    fn end(&self, tell: impl FnOnce(&LogicalUnit)) {
        let Some(kept) = self.kept.lock().take() else { return };
        let key = (self.pool, self.name.clone());
        if let Entry::Occupied(mut others) = self.serving.asides.lock().entry(key) {
            *others.get_mut() -= 1;
            if *others.get() == 0 {
                others.remove();
            }
        }
        if let Some((unit, shut)) = kept {
            // Before anybody is let in.
            tell(&unit);
            drop(shut);
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        match self.replaces {
            true => self.over(),
            false => self.spare(),
        }
        self.serving.try_soon(self.pool);
    }
}
