//! A volume whose content is about to be replaced is nobody's meanwhile: a host that came in would keep what it read of the
//! old content, and what it wrote would lie on top of the new. Nor is one that is about to go, or to get another name: whoever
//! came in would lose it.
//!
//! It stays the disk it is, with its reservations: who wants to log in is told to try again. Its export is gone, and comes
//! back when the pool is followed. A pool that is suspended on the way does it when it goes on, and whoever asked for it was
//! answered before: so it lasts as long as somebody may still do it.

use std::sync::Arc;

use iscsi::{LogicalUnit, Shut};
use parking_lot::Mutex;

use super::Serving;
use crate::ops::Held;

/// A volume that nobody can begin to use until this is [over](Self::over), at the latest when it is dropped.
pub(crate) struct Aside {
    serving: Arc<Serving>,
    pool: u64,
    name: String,
    /// None: it is over.
    kept: Mutex<Option<Kept>>,
}

/// The disk, if it is one, and its target.
type Kept = Option<(Arc<LogicalUnit>, Shut)>;

impl Serving {
    /// Lets nobody begin to use a volume, and ends what was promised of what it holds. None if somebody uses it. Either way
    /// its pool has to be followed afterwards.
    pub(crate) fn set_aside(self: &Arc<Self>, held: &Held, name: &str) -> Option<Arc<Aside>> {
        // Before: those who are connected are not cut off.
        if self.clients(name) > 0 {
            return None;
        }
        let (pool, name) = (held.guid(), name.to_owned());
        let aside = Arc::new(Aside { serving: Arc::clone(self), pool, name, kept: Mutex::new(Some(None)) });
        {
            let mut asides = self.asides.lock();
            asides.retain(|other| other.strong_count() > 0);
            asides.push(Arc::downgrade(&aside));
        }
        {
            let mut entries = self.entries.lock();
            if let Some(entry) = entries.get_mut(&aside.name).filter(|_| !held.is_withdrawn()) {
                if std::mem::take(&mut entry.is_in_nbd) {
                    self.registry.remove(&aside.name);
                }
                let kept = entry.disk.as_ref().map(|disk| (Arc::clone(&disk.unit), disk.target.shut()));
                *aside.kept.lock() = Some(kept);
            }
        }
        // Again: from here on nobody comes in.
        if self.clients(&aside.name) > 0 {
            aside.spare();
            return None;
        }
        if let Some(Some((unit, _))) = &*aside.kept.lock() {
            unit.revoke_tokens();
        }
        Some(aside)
    }

    /// The same for several volumes and snapshots, all or none: then it is the name of one that somebody uses.
    pub(crate) fn set_aside_all(
        self: &Arc<Self>,
        held: &Held,
        names: &[String],
    ) -> Result<Vec<Arc<Aside>>, String> {
        let mut asides: Vec<Arc<Aside>> = Vec::with_capacity(names.len());
        for name in names {
            let Some(aside) = self.set_aside(held, name) else {
                asides.iter().for_each(|aside| aside.spare());
                return Err(name.clone());
            };
            asides.push(aside);
        }
        Ok(asides)
    }

    /// Whether a volume of this pool is not to be offered at the moment.
    pub(super) fn is_aside(&self, pool: u64, name: &str) -> bool {
        let is_meant =
            |aside: Arc<Aside>| aside.pool == pool && aside.name == name && aside.kept.lock().is_some();
        self.asides.lock().iter().any(|aside| aside.upgrade().is_some_and(is_meant))
    }
}

impl Aside {
    /// It is over, and the content is what it was: nobody has to be told of anything.
    pub(crate) fn spare(&self) {
        drop(self.kept.lock().take());
    }

    /// Its content was replaced, or may have been: hosts that come back are told so.
    pub(crate) fn over(&self) {
        let kept = self.kept.lock().take();
        if let Some(Some((unit, shut))) = kept {
            // Before anybody is let in. Of what was copied meanwhile, too, tokens stand for nothing.
            unit.content_replaced();
            drop(shut);
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.over();
        self.serving.try_soon(self.pool);
    }
}
