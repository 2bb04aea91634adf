//! A dataset as the user names it: a live file system or volume, a snapshot of one, or a bookmark.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, slice,
    sync::Arc,
};

use ondisk::{
    dnode::ObjectType,
    dsl::{BookmarkPhys, DatasetPhys, dataset_flags, keys},
    objset::ObjsetType,
    zap::{OwnedKey, Value as ZapValue},
};
use tokio::sync::OnceCell;

use super::{
    Dir, Dsl, LookupError, Named, Reached, check_bonus, dir, reclaim::killed_since, walk::children_of,
};
use crate::{
    BoxFuture,
    dmu::{DnodeAt, ObjectSet, ReadError},
    io::Bookmark as At,
    props::{PropertySet, Types},
    zap::{Numbers, Zap},
};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// A live file system or volume.
    Head,
    /// `@name`.
    Snapshot,
    /// `#name`.
    Bookmark,
}

/// What a live dataset holds, and its snapshots with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Files.
    Filesystem,
    /// A block device.
    Volume,
    /// Neither (stress tests make such), or its object set cannot be read: see [`Dataset::unread`].
    Other,
}

impl HeadKind {
    /// What an object set holds.
    pub(crate) fn of(set: &ObjectSet) -> Self {
        match set.kind() {
            ObjsetType::FileSystem => Self::Filesystem,
            ObjsetType::Volume => Self::Volume,
            ObjsetType::Meta | ObjsetType::Other => Self::Other,
        }
    }

    /// As a set of types for the property table.
    #[must_use]
    pub fn types(self) -> Types {
        match self {
            Self::Filesystem => Types::FILESYSTEM,
            Self::Volume => Types::VOLUME,
            Self::Other => Types::NONE,
        }
    }
}

/// A hold on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its name.
    pub tag: String,
    /// When it was placed, in seconds since 1970.
    pub time: u64,
}

/// A dataset, snapshot or bookmark. Cheap to clone.
#[derive(Clone)]
pub struct Dataset(Arc<Inner>);

struct Inner {
    dsl: Dsl,
    dir: Arc<Dir>,
    name: String,
    head_kind: HeadKind,
    state: State,
    objset: OnceCell<Arc<ObjectSet>>,
    /// Of a head: why its object set could not be read when it was found.
    unread: Option<Box<ReadError>>,
}

enum State {
    /// A head or a snapshot: one state of the data.
    Data {
        phys: Box<DatasetPhys>,
        found: Box<DnodeAt>,
        head: Option<Dataset>,
    },
    Bookmark {
        phys: BookmarkPhys,
        head: Dataset,
    },
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({})", self.0.name)
    }
}

impl Dataset {
    fn new(dsl: &Dsl, dir: Arc<Dir>, name: String, head_kind: HeadKind, state: State) -> Self {
        let (dsl, objset) = (dsl.clone(), OnceCell::new());
        Self(Arc::new(Inner { dsl, dir, name, head_kind, state, objset, unread: None }))
    }

    /// The live dataset of `dir`.
    pub(super) async fn head(dsl: &Dsl, dir: Arc<Dir>) -> Result<Self, ReadError> {
        let (phys, found) = read_phys(dsl.mos(), dir.phys().head_dataset).await?;
        // A dataset whose object set is lost still has a name, space and properties, and stays in the tree.
        let opened = ObjectSet::open(Arc::clone(dsl.mos().source()), found.number, phys.bp).await;
        let (objset, unread) = match opened {
            Ok(set) => (Some(set), None),
            // It has none.
            Err(ReadError::Inconsistent { .. }) => (None, None),
            Err(error) => (None, Some(Box::new(error))),
        };
        let head_kind = objset.as_ref().map_or(HeadKind::Other, |set| HeadKind::of(set));
        let name = dir.name().to_owned();
        let state = State::Data { phys: Box::new(phys), found: Box::new(found), head: None };
        let (dsl, objset) = (dsl.clone(), OnceCell::new_with(objset));
        Ok(Self(Arc::new(Inner { dsl, dir, name, head_kind, state, objset, unread })))
    }

    /// Full name: `pool/a`, `pool/a@s`, `pool/a#b`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The last part of the name, without separator.
    #[must_use]
    pub fn last_name(&self) -> &str {
        self.0.name.rsplit(['/', '@', '#']).next().unwrap_or_default()
    }

    /// What the name stands for.
    #[must_use]
    pub fn kind(&self) -> DatasetKind {
        match &self.0.state {
            State::Data { head: None, .. } => DatasetKind::Head,
            State::Data { head: Some(_), .. } => DatasetKind::Snapshot,
            State::Bookmark { .. } => DatasetKind::Bookmark,
        }
    }

    /// What the live dataset holds.
    #[must_use]
    pub fn head_kind(&self) -> HeadKind {
        self.0.head_kind
    }

    /// Why it is not known what the live dataset holds, which may be a volume all the same: its object set could not be read
    /// when it was found. None for one that has no object set, which is neither.
    #[must_use]
    pub fn unread(&self) -> Option<LookupError> {
        let head = &self.live().0;
        let source = ReadError::clone(head.unread.as_deref()?);
        Some(LookupError::Read { name: head.name.clone(), source })
    }

    /// Whether it is a volume, or part of one, or may be: as long as it is [unread](Self::unread) nobody knows.
    #[must_use]
    pub fn may_be_volume(&self) -> bool {
        self.head_kind() == HeadKind::Volume || self.live().0.unread.is_some()
    }

    /// Its type, as `zfs list` prints it; `None` for datasets that are neither file system nor volume, which `zfs`
    /// does not list.
    #[must_use]
    pub fn type_word(&self) -> Option<&'static str> {
        Some(match (self.kind(), self.0.head_kind) {
            (_, HeadKind::Other) => return None,
            (DatasetKind::Head, HeadKind::Filesystem) => "filesystem",
            (DatasetKind::Head, HeadKind::Volume) => "volume",
            (DatasetKind::Snapshot, _) => "snapshot",
            (DatasetKind::Bookmark, _) => "bookmark",
        })
    }

    /// Its type for the property table.
    #[must_use]
    pub fn types(&self) -> Types {
        match self.kind() {
            DatasetKind::Head => self.0.head_kind.types(),
            DatasetKind::Snapshot => Types::SNAPSHOT,
            DatasetKind::Bookmark => Types::BOOKMARK,
        }
    }

    /// The tree it belongs to.
    #[must_use]
    pub fn dsl(&self) -> &Dsl {
        &self.0.dsl
    }

    /// Its place in the tree.
    #[must_use]
    pub fn dir(&self) -> &Arc<Dir> {
        &self.0.dir
    }

    /// The live dataset it is a part of: itself for a head.
    #[must_use]
    pub fn live(&self) -> &Self {
        match &self.0.state {
            State::Data { head: Some(head), .. } | State::Bookmark { head, .. } => head,
            State::Data { head: None, .. } => self,
        }
    }

    /// The structure on disk of a head or snapshot.
    #[must_use]
    pub fn phys(&self) -> Option<&DatasetPhys> {
        match &self.0.state {
            State::Data { phys, .. } => Some(phys),
            State::Bookmark { .. } => None,
        }
    }

    /// Whether it is a snapshot that is to be destroyed (`zfs destroy -d`), and is kept by nothing but its holds and so many
    /// clones.
    #[must_use]
    pub fn goes_after(&self, clones: u64) -> bool {
        // The dataset after it is counted with its clones.
        let is_last = |phys: &DatasetPhys| phys.children.checked_sub(1) == Some(clones);
        self.phys().is_some_and(|phys| phys.flags & dataset_flags::DEFER_DESTROY != 0 && is_last(phys))
    }

    /// The structure on disk of a bookmark.
    #[must_use]
    pub fn bookmark_phys(&self) -> Option<&BookmarkPhys> {
        match &self.0.state {
            State::Data { .. } => None,
            State::Bookmark { phys, .. } => Some(phys),
        }
    }

    /// Object number in the MOS (`objsetid`); 0 for a bookmark.
    #[must_use]
    pub fn object(&self) -> u64 {
        match &self.0.state {
            State::Data { found, .. } => found.number,
            State::Bookmark { .. } => 0,
        }
    }

    /// Its guid; a bookmark has its snapshot's.
    #[must_use]
    pub fn guid(&self) -> u64 {
        match &self.0.state {
            State::Data { phys, .. } => phys.guid,
            State::Bookmark { phys, .. } => phys.guid,
        }
    }

    /// Txg of its creation.
    #[must_use]
    pub fn create_txg(&self) -> u64 {
        match &self.0.state {
            State::Data { phys, .. } => phys.creation_txg,
            State::Bookmark { phys, .. } => phys.creation_txg,
        }
    }

    /// Whether its content is ciphertext. Keys cannot be loaded, so it is out of reach.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.phys().is_some_and(|phys| phys.bp.uses_crypt())
    }

    /// Its object set.
    ///
    /// # Errors
    /// It cannot be read, or this is a bookmark and has none.
    pub fn objset(&self) -> BoxFuture<'_, Result<Arc<ObjectSet>, ReadError>> {
        Box::pin(async move {
            let State::Data { phys, found, .. } = &self.0.state else {
                let at = At { objset: 0, object: self.0.dir.object(), level: 0, blkid: 0 };
                return Err(ReadError::Inconsistent { at, what: "a bookmark has no content" });
            };
            let source = self.0.dsl.mos().source();
            let set =
                self.0.objset.get_or_try_init(|| ObjectSet::open(Arc::clone(source), found.number, phys.bp));
            set.await.map(Arc::clone)
        })
    }

    /// Attributes that later features added to the dataset.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn extra(&self) -> BoxFuture<'_, Result<BTreeMap<String, ZapValue>, ReadError>> {
        Box::pin(async move {
            match &self.0.state {
                State::Data { found, .. } => dir::read_extra(self.0.dsl.mos(), found).await,
                State::Bookmark { .. } => Ok(BTreeMap::new()),
            }
        })
    }

    /// Live datasets right below, by name; and those that cannot be read.
    ///
    /// # Errors
    /// The list of children cannot be read.
    pub fn children(&self) -> BoxFuture<'_, Result<Reached, ReadError>> {
        Box::pin(async move {
            let found = children_of(slice::from_ref(self)).await.pop();
            found.unwrap_or_else(|| Ok(Reached::default()))
        })
    }

    /// Names of the dirs right below, each with its number; without those that are not listed.
    pub(super) async fn child_numbers(&self) -> Result<Numbers, ReadError> {
        let map = match self.kind() {
            DatasetKind::Head => self.0.dir.child_map(&self.0.dsl).await?,
            DatasetKind::Snapshot | DatasetKind::Bookmark => None,
        };
        let Some(map) = map else { return Ok(Numbers::new()) };
        let mut numbers = map.numbers().await?;
        numbers.retain(|(name, _)| !name.starts_with(['$', '%']));
        Ok(numbers)
    }

    /// The live dataset of the dir `object`, which stands under this name among those right below.
    pub(super) async fn child(&self, name: &str, object: u64) -> Result<Self, ReadError> {
        let dsl = &self.0.dsl;
        Self::head(dsl, dsl.dir_at(object, &self.0.dir, name).await?).await
    }

    /// Its snapshots, oldest first.
    ///
    /// # Errors
    /// A snapshot or the list of them cannot be read.
    pub fn snapshots(&self) -> BoxFuture<'_, Result<Vec<Self>, ReadError>> {
        Box::pin(async move {
            let found = self.each_snapshot().await?;
            let mut snapshots = found.into_iter().map(|(_, found)| found).collect::<Result<Vec<_>, _>>()?;
            snapshots.sort_by_key(Self::create_txg);
            Ok(snapshots)
        })
    }

    /// The same as far as they can be read; and those that cannot.
    ///
    /// # Errors
    /// The list of them cannot be read.
    pub fn readable_snapshots(&self) -> BoxFuture<'_, Result<Reached, ReadError>> {
        Box::pin(async move {
            let (mut snapshots, mut failed) = (Vec::new(), Vec::new());
            for (name, found) in self.each_snapshot().await? {
                match found {
                    Ok(snapshot) => snapshots.push(snapshot),
                    Err(source) => {
                        failed.push(LookupError::Read { name: format!("{}@{name}", self.0.name), source });
                    }
                }
            }
            snapshots.sort_by_key(Self::create_txg);
            Ok((snapshots, failed))
        })
    }

    /// Names of its snapshots, in no order; none if there are more than `most`: then no snapshot is read. However many there
    /// are, this takes little memory for each.
    ///
    /// # Errors
    /// The list of them cannot be read.
    pub fn snapshot_names(&self, most: usize) -> BoxFuture<'_, Result<Option<Named>, ReadError>> {
        Box::pin(async move {
            let (mut names, mut failed) = (Vec::new(), Vec::new());
            let Some(map) = self.snapshot_map().await? else { return Ok(Some((names, failed))) };
            let Some(numbers) = map.numbers_within(most).await? else { return Ok(None) };
            for (name, object) in numbers {
                match read_phys(self.0.dsl.mos(), object).await {
                    Ok((phys, _)) => names.push((name, phys.creation_txg)),
                    Err(source) => {
                        failed.push(LookupError::Read { name: format!("{}@{name}", self.0.name), source });
                    }
                }
            }
            Ok(Some((names, failed)))
        })
    }

    /// Those of its snapshots whose object numbers are among these.
    ///
    /// # Errors
    /// The list of them, or one of these, cannot be read.
    pub fn snapshots_among<'a>(&'a self, objects: &'a [u64]) -> BoxFuture<'a, Result<Vec<Self>, ReadError>> {
        Box::pin(async move {
            let wanted: BTreeSet<u64> = objects.iter().copied().collect();
            let mut found = Vec::new();
            if let Some(map) = self.snapshot_map().await? {
                for (name, object) in map.numbers().await? {
                    if wanted.contains(&object) {
                        found.push(self.snapshot_at(&name, object).await?);
                    }
                }
            }
            Ok(found)
        })
    }

    async fn each_snapshot(&self) -> Result<Vec<(String, Result<Self, ReadError>)>, ReadError> {
        let numbers = self.snapshot_numbers().await?;
        let objects: Vec<u64> = numbers.iter().map(|(_, object)| *object).collect();
        let found = self.0.dsl.mos().dnodes(&objects).await;
        let each = numbers.into_iter().zip(found).map(|((name, _), dnode)| {
            let snapshot = dnode.and_then(|dnode| self.snapshot_in(&name, dnode));
            (name, snapshot)
        });
        Ok(each.collect())
    }

    /// Names of its snapshots, without what they are of, each with its object number.
    pub(super) async fn snapshot_numbers(&self) -> Result<Numbers, ReadError> {
        match self.snapshot_map().await? {
            Some(map) => map.numbers().await,
            None => Ok(Numbers::new()),
        }
    }

    /// The snapshot of this name, if there is one: with just this, or with one that is the same for the dataset.
    ///
    /// # Errors
    /// What leads to it cannot be read.
    pub fn snapshot<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Self>, ReadError>> {
        Box::pin(async move {
            let Some(map) = self.snapshot_map().await? else { return Ok(None) };
            if let Some(object) = map.get_u64(name).await? {
                return self.snapshot_at(name, object).await.map(Some);
            }
            let Some(phys) = self.phys().filter(|phys| phys.ignores_case()) else { return Ok(None) };
            let names = map.numbers().await?;
            match names.into_iter().find(|(other, _)| phys.is_same_name(other, name)) {
                Some((name, object)) => self.snapshot_at(&name, object).await.map(Some),
                None => Ok(None),
            }
        })
    }

    async fn snapshot_map(&self) -> Result<Option<Zap>, ReadError> {
        match (self.kind(), self.phys()) {
            (DatasetKind::Head, Some(phys)) if phys.snap_names != 0 => {
                Zap::open_in(self.0.dsl.mos(), phys.snap_names).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn snapshot_at(&self, name: &str, object: u64) -> Result<Self, ReadError> {
        self.snapshot_in(name, self.0.dsl.mos().dnode(object).await?)
    }

    /// The snapshot of this name whose dnode was found.
    pub(super) fn snapshot_in(&self, name: &str, found: DnodeAt) -> Result<Self, ReadError> {
        let (phys, found) = phys_in(found)?;
        let name = format!("{}@{name}", self.0.name);
        let state = State::Data { phys: Box::new(phys), found: Box::new(found), head: Some(self.clone()) };
        Ok(Self::new(&self.0.dsl, Arc::clone(&self.0.dir), name, self.0.head_kind, state))
    }

    /// Its bookmarks, oldest first.
    ///
    /// # Errors
    /// The list of them cannot be read.
    pub fn bookmarks(&self) -> BoxFuture<'_, Result<Vec<Self>, ReadError>> {
        Box::pin(async move {
            let Some(map) = self.bookmark_map().await? else { return Ok(Vec::new()) };
            let mut bookmarks = Vec::new();
            let mut entries = map.entries();
            while let Some((key, value)) = entries.next().await? {
                if let OwnedKey::Name(name) = key
                    && let Ok(name) = String::from_utf8(name)
                {
                    bookmarks.push(self.bookmark_at(&map, &name, &value)?);
                }
            }
            bookmarks.sort_by_key(Self::create_txg);
            Ok(bookmarks)
        })
    }

    /// The bookmark of this name, if there is one: with just this, or with one that is the same for the dataset.
    ///
    /// # Errors
    /// What leads to it cannot be read.
    pub fn bookmark<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Self>, ReadError>> {
        Box::pin(async move {
            let Some(map) = self.bookmark_map().await? else { return Ok(None) };
            if let Some(value) = map.get(name).await? {
                return self.bookmark_at(&map, name, &value).map(Some);
            }
            let Some(phys) = self.phys().filter(|phys| phys.ignores_case()) else { return Ok(None) };
            let bookmarks = self.bookmarks().await?;
            Ok(bookmarks.into_iter().find(|other| phys.is_same_name(other.last_name(), name)))
        })
    }

    async fn bookmark_map(&self) -> Result<Option<Zap>, ReadError> {
        if self.kind() != DatasetKind::Head {
            return Ok(None);
        }
        match self.extra().await?.get(keys::BOOKMARKS).and_then(ZapValue::as_u64) {
            Some(object) => Zap::open_in(self.0.dsl.mos(), object).await.map(Some),
            None => Ok(None),
        }
    }

    fn bookmark_at(&self, map: &Zap, name: &str, value: &ZapValue) -> Result<Self, ReadError> {
        let words: Vec<u64> = value.integers().collect();
        let phys =
            BookmarkPhys::from_words(&words).map_err(ReadError::malformed(map.object().bookmark(0, 0)))?;
        let name = format!("{}#{name}", self.0.name);
        let state = State::Bookmark { phys, head: self.clone() };
        Ok(Self::new(&self.0.dsl, Arc::clone(&self.0.dir), name, self.0.head_kind, state))
    }

    /// Whether this property is set on the snapshot itself; never of anything else, which has them in its directory.
    ///
    /// # Errors
    /// The list of its properties cannot be read.
    pub fn has_own<'a>(&'a self, property: &'a str) -> BoxFuture<'a, Result<bool, ReadError>> {
        Box::pin(async move {
            match self.phys().map(|phys| phys.props) {
                Some(object) if object != 0 && self.kind() == DatasetKind::Snapshot => {
                    let own = Zap::open_in(self.0.dsl.mos(), object).await?;
                    Ok(own.get(property).await?.is_some())
                }
                _ => Ok(false),
            }
        })
    }

    /// Holds on this snapshot, by tag.
    ///
    /// # Errors
    /// The list of them cannot be read.
    pub fn holds(&self) -> BoxFuture<'_, Result<Vec<Hold>, ReadError>> {
        Box::pin(async move {
            match self.phys().map(|phys| phys.user_refs) {
                None | Some(0) => Ok(Vec::new()),
                Some(object) => {
                    let holds = Zap::open_in(self.0.dsl.mos(), object).await?.numbers().await?;
                    Ok(holds.into_iter().map(|(tag, time)| Hold { tag, time }).collect())
                }
            }
        })
    }

    /// The snapshot it was cloned from, if it is a clone.
    ///
    /// # Errors
    /// What leads to that snapshot cannot be read.
    pub fn origin(&self) -> BoxFuture<'_, Result<Option<String>, ReadError>> {
        Box::pin(async move {
            let origin = self.0.dir.phys().origin;
            if self.kind() != DatasetKind::Head || origin == 0 {
                return Ok(None);
            }
            let (phys, _) = read_phys(self.0.dsl.mos(), origin).await?;
            // Every ordinary dataset is formally a clone of the pool's empty first snapshot.
            if phys.prev_snap == 0 && self.is_internal(phys.dir).await? {
                return Ok(None);
            }
            let dir = self.0.dsl.dir(phys.dir).await?;
            let head = Self::head(&self.0.dsl, Arc::clone(&dir)).await?;
            let names = match head.snapshot_map().await? {
                Some(map) => map.numbers().await?,
                None => Vec::new(),
            };
            let name = names.into_iter().find(|(_, object)| *object == origin);
            Ok(name.map(|(name, _)| format!("{}@{name}", dir.name())))
        })
    }

    /// Whether a dir is one of the pool's own.
    async fn is_internal(&self, dir: u64) -> Result<bool, ReadError> {
        let dir = self.0.dsl.dir(dir).await?;
        Ok(dir.name().rsplit('/').next().is_some_and(|name| name.starts_with('$')))
    }

    /// Names of the clones made of this snapshot, in the order in which OpenZFS lists them.
    ///
    /// # Errors
    /// The list, or what gives a clone its name, cannot be read.
    pub fn clones(&self) -> BoxFuture<'_, Result<Vec<String>, ReadError>> {
        Box::pin(async move {
            let Some(list) = self.phys().map(|phys| phys.next_clones).filter(|list| *list != 0) else {
                return Ok(Vec::new());
            };
            let dsl = &self.0.dsl;
            let mut clones = Vec::new();
            let map = Zap::open_in(dsl.mos(), list).await?;
            let mut entries = map.entries();
            while let Some((_, value)) = entries.next().await? {
                if let Some(object) = value.as_u64() {
                    // The oldest snapshot of the clone, or the clone itself: the dir is the same.
                    let (phys, _) = read_phys(dsl.mos(), object).await?;
                    clones.push(dsl.dir(phys.dir).await?.name().to_owned());
                }
            }
            Ok(clones)
        })
    }

    /// Bytes the dir and what is below it may still use, its own reservations for this dataset not counted.
    #[must_use]
    pub fn available_in_dir(&self) -> u64 {
        super::space::available(self.0.dsl.space(), &self.0.dir)
    }

    /// Its properties.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor cannot be read.
    pub fn properties(&self) -> BoxFuture<'_, Result<PropertySet, ReadError>> {
        PropertySet::read(self)
    }

    /// Bytes written since the snapshot before it: what the dataset has now and had not then.
    ///
    /// # Errors
    /// The earlier snapshot or the list of freed blocks cannot be read.
    pub fn written(&self) -> BoxFuture<'_, Result<u64, ReadError>> {
        Box::pin(async move {
            let Some(phys) = self.phys() else { return Ok(0) };
            if phys.prev_snap == 0 {
                return Ok(phys.referenced_bytes);
            }
            let mos = self.0.dsl.mos();
            let (previous, _) = read_phys(mos, phys.prev_snap).await?;
            let freed = deadlist_bytes(mos, phys.deadlist).await?;
            Ok(phys.referenced_bytes.saturating_add(freed).saturating_sub(previous.referenced_bytes))
        })
    }

    /// Bytes written since `since`, an earlier snapshot of the same chain: what the dataset has now and had not then; `None` if
    /// it is not one.
    ///
    /// # Errors
    /// A snapshot between them or its list of freed blocks cannot be read.
    pub fn written_since<'a>(&'a self, since: &'a Self) -> BoxFuture<'a, Result<Option<u64>, ReadError>> {
        Box::pin(async move {
            let (Some(phys), Some(then)) = (self.phys(), since.phys()) else { return Ok(None) };
            let mos = self.0.dsl.mos();
            let empty = self.dsl().directory().get_u64("empty_bpobj").await?;
            let mut freed = 0u64;
            let mut at = *phys;
            let mut object = self.object();
            // A live dataset is older than its own snapshots; from one of those on, each is older than the last.
            let mut may_go_up = phys.next_snap == 0;
            while object != since.object() {
                // Going back in time, strictly: a chain that does not is forged.
                if at.prev_snap == 0 || at.prev_snap_txg < then.creation_txg {
                    return Ok(None);
                }
                // What was born behind it and is dead again was never in it; of what comes right behind it all is older.
                let younger = match at.prev_snap == since.object() {
                    true => 0,
                    false => killed_since(self.dsl(), at.deadlist, then.creation_txg, empty).await?,
                };
                let dead = deadlist_bytes(mos, at.deadlist).await?;
                freed = freed.saturating_add(dead.saturating_sub(younger));
                let (previous, _) = read_phys(mos, at.prev_snap).await?;
                if previous.creation_txg >= at.creation_txg && !may_go_up {
                    return Ok(None);
                }
                may_go_up = false;
                object = at.prev_snap;
                at = previous;
            }
            Ok(Some(phys.referenced_bytes.saturating_add(freed).saturating_sub(then.referenced_bytes)))
        })
    }
}

/// Reads the dataset structure `object`.
pub(super) async fn read_phys(mos: &ObjectSet, object: u64) -> Result<(DatasetPhys, DnodeAt), ReadError> {
    phys_in(mos.dnode(object).await?)
}

/// The dataset structure in this dnode, with it.
fn phys_in(found: DnodeAt) -> Result<(DatasetPhys, DnodeAt), ReadError> {
    check_bonus(&found, ObjectType::DSL_DATASET)?;
    let at = At { objset: 0, object: found.number, level: 0, blkid: 0 };
    let phys = DatasetPhys::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
    Ok((phys, found))
}

/// Space of the blocks on a deadlist.
async fn deadlist_bytes(mos: &ObjectSet, object: u64) -> Result<u64, ReadError> {
    if object == 0 {
        return Ok(0);
    }
    let found = mos.dnode(object).await?;
    // Old pools have a plain list of block pointers instead, whose header begins with their number.
    let word = if found.dnode.bonus_type == ObjectType::DEADLIST_HEADER { 0 } else { 8 };
    let at = At { objset: 0, object, level: 0, blkid: 0 };
    found.order.u64_at("deadlist header", &found.dnode.bonus, word).map_err(ReadError::malformed(at))
}
