//! What is served under which name, and how an export comes and goes while clients are connected.
//!
//! A connection looks its export up once, in the handshake, and then holds the volume. When the export is
//! removed, [`Export::removed`] wakes every such connection: it finishes what is in flight, answers what
//! else it has received with `ESHUTDOWN` and closes, after which nobody holds the volume and the pool can be closed.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Bound,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use block::BlockVolume;
use tokio::sync::watch;

use crate::proto::MAX_STRING;

/// A name in the export list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Export name, for a volume its dataset name.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}

/// An export a client chose.
#[derive(Clone)]
pub struct Export {
    /// Canonical name.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// What is served.
    pub volume: Arc<dyn BlockVolume>,
    /// Its sender lives in the registry: gone means removed. `None`: never removed.
    gone: Option<watch::Receiver<()>>,
}

impl Export {
    /// An export that is never removed.
    pub fn new(name: &str, description: &str, volume: Arc<dyn BlockVolume>) -> Self {
        Self { name: name.to_owned(), description: description.to_owned(), volume, gone: None }
    }

    /// Resolves once the export was removed from its registry.
    pub fn removed(&self) -> impl Future<Output = ()> + Send + use<> {
        let gone = self.gone.clone();
        async move {
            match gone {
                // Nothing is ever sent: `changed` ends when the sender is dropped.
                Some(mut gone) => while gone.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where connections find their export. [`Registry`] is the usual one.
pub trait Exports: Send + Sync + 'static {
    /// The next exports, `most` at most, in the order a list shows them: those behind the name `after`, or the first. None
    /// if there are no more.
    fn list(&self, after: Option<&str>, most: usize) -> Vec<ExportEntry>;
    /// The export of that name. The empty name is the default export, if there is one.
    fn lookup(&self, name: &str) -> Option<Export>;
    /// Whether an export that is not there may come in a moment: who chooses it has no answer until then.
    fn is_awaited(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// Why an export was not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// There is one of that name; the old one stays.
    #[error("an export named {0:?} exists already")]
    Exists(String),
    /// Empty, or longer than the protocol's strings.
    #[error("an export name has 1 to {MAX_STRING} bytes")]
    Name,
}

/// Says what the empty name stands for.
type Unnamed = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Says of an export that is not there whether it may come.
type Awaited = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Exports by name. Additions and removals show at once, to `LIST` and to new connections.
#[derive(Default)]
pub struct Registry {
    exports: RwLock<BTreeMap<String, Entry>>,
    unnamed: OnceLock<Unnamed>,
    awaited: OnceLock<Awaited>,
}

#[derive(Debug)]
struct Entry {
    export: Export,
    /// Nobody new finds it.
    is_hidden: bool,
    /// Dropped with the entry; that is how connections learn of it.
    _present: watch::Sender<()>,
}

impl Registry {
    /// No exports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves `volume` as `name` from now on.
    pub fn insert(
        &self,
        name: &str,
        description: &str,
        volume: Arc<dyn BlockVolume>,
    ) -> Result<(), RegistryError> {
        if name.is_empty() || name.len() > MAX_STRING {
            return Err(RegistryError::Name);
        }
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        if exports.contains_key(name) {
            return Err(RegistryError::Exists(name.to_owned()));
        }
        let (sender, gone) = watch::channel(());
        let export =
            Export { name: name.to_owned(), description: bounded(description), volume, gone: Some(gone) };
        exports.insert(name.to_owned(), Entry { export, is_hidden: false, _present: sender });
        Ok(())
    }

    /// The empty name stands for the export that `unnamed` names, and without it for none. Set once; later calls do nothing.
    pub fn set_unnamed(&self, unnamed: impl Fn() -> Option<String> + Send + Sync + 'static) {
        drop(self.unnamed.set(Box::new(unnamed)));
    }

    /// Who chooses an export that is not there, and that `awaited` says may come, is kept waiting: many clients give a disk up
    /// for good whose name is unknown. Set once; later calls do nothing.
    pub fn set_awaited(&self, awaited: impl Fn(&str) -> bool + Send + Sync + 'static) {
        drop(self.awaited.set(Box::new(awaited)));
    }

    /// Lets nobody find `name` any more; its connections stay. Whether there is one.
    pub fn hide(&self, name: &str) -> bool {
        self.set_hidden(name, true)
    }

    /// Takes [`hide`](Self::hide) back.
    pub fn show(&self, name: &str) -> bool {
        self.set_hidden(name, false)
    }

    fn set_hidden(&self, name: &str, is_hidden: bool) -> bool {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = exports.get_mut(name) else { return false };
        entry.is_hidden = is_hidden;
        true
    }

    /// Gives an export another description, for those who list. Whether there is one of that name.
    pub fn describe(&self, name: &str, description: &str) -> bool {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = exports.get_mut(name) else { return false };
        entry.export.description = bounded(description);
        true
    }

    /// Stops serving `name`; its connections finish what is in flight and close. Whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.exports.write().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("exports", &self.exports).finish_non_exhaustive()
    }
}

/// As much of a description as the protocol's strings hold.
fn bounded(description: &str) -> String {
    let mut description = description.to_owned();
    while description.len() > MAX_STRING {
        description.pop();
    }
    description
}

impl Exports for Registry {
    fn list(&self, after: Option<&str>, most: usize) -> Vec<ExportEntry> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        exports
            .range::<str, _>(behind)
            .map(|(_, entry)| entry)
            .filter(|entry| !entry.is_hidden)
            .take(most)
            .map(|entry| ExportEntry {
                name: entry.export.name.clone(),
                description: entry.export.description.clone(),
            })
            .collect()
    }

    fn lookup(&self, name: &str) -> Option<Export> {
        // Before the lock: who says it has locks of their own.
        let unnamed = match name.is_empty() {
            true => Some((self.unnamed.get()?)()?),
            false => None,
        };
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let entry = exports.get(unnamed.as_deref().unwrap_or(name));
        entry.filter(|entry| !entry.is_hidden).map(|entry| entry.export.clone())
    }

    fn is_awaited(&self, name: &str) -> bool {
        self.awaited.get().is_some_and(|awaited| awaited(name))
    }
}

#[cfg(test)]
mod tests {
    use block::MemVolume;
    use futures_util::FutureExt;

    use super::*;

    fn volume() -> Arc<dyn BlockVolume> {
        Arc::new(MemVolume::new("t", 1 << 20, 4096))
    }

    /// It led to another disk when one export came and the other one went.
    #[test]
    fn the_empty_name_is_what_it_is_said_to_be_whatever_else_there_is() {
        let registry = Registry::new();
        let name = || registry.lookup("").map(|export| export.name);
        registry.insert("tank/vm1@monday", "", volume()).unwrap();
        assert_eq!(name(), None, "nobody has said it");
        registry.set_unnamed(|| Some("tank/vm1".to_owned()));
        assert_eq!(name(), None);
        registry.insert("tank/vm1", "", volume()).unwrap();
        assert_eq!(name().as_deref(), Some("tank/vm1"));
        assert!(registry.remove("tank/vm1"));
        assert!(!registry.remove("tank/vm1"));
        assert_eq!(name(), None);
    }

    #[tokio::test]
    async fn a_hidden_export_is_found_by_nobody_and_keeps_those_who_have_it() {
        let registry = Registry::new();
        registry.insert("a", "", volume()).unwrap();
        registry.insert("b", "", volume()).unwrap();
        let names = || registry.list(None, 1).into_iter().map(|entry| entry.name).collect::<Vec<_>>();
        let before = registry.lookup("a").unwrap();
        assert!(registry.hide("a"));
        assert!(registry.lookup("a").is_none());
        assert_eq!(names(), ["b"]);
        assert_eq!(registry.insert("a", "", volume()), Err(RegistryError::Exists("a".into())));
        assert!(before.removed().now_or_never().is_none());
        assert!(registry.show("a"));
        assert_eq!(registry.lookup("a").unwrap().name, "a");
        assert_eq!(names(), ["a"]);
        registry.hide("a");
        registry.remove("a");
        before.removed().await;
        assert!(!registry.hide("a") && !registry.show("a"));
    }

    #[test]
    fn names_are_unique_and_of_legal_length() {
        let registry = Registry::new();
        registry.insert("a", "first", volume()).unwrap();
        assert_eq!(registry.insert("a", "second", volume()), Err(RegistryError::Exists("a".into())));
        assert_eq!(registry.lookup("a").unwrap().description, "first");
        assert_eq!(registry.insert("", "", volume()), Err(RegistryError::Name));
        assert_eq!(registry.insert(&"x".repeat(4097), "", volume()), Err(RegistryError::Name));
    }

    #[tokio::test]
    async fn a_removed_export_wakes_those_who_hold_it() {
        let registry = Registry::new();
        registry.insert("a", "", volume()).unwrap();
        let (before, after) = (registry.lookup("a").unwrap(), registry.lookup("a").unwrap());
        assert!(before.removed().now_or_never().is_none());
        registry.remove("a");
        after.removed().await;
    }
}
