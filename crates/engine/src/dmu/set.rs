//! [`MutSet`]: the changed objects over the last root, and the way from them to a new root.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{BlkPtrs, Bonus, Dnode, ObjectType, SLOT_BYTES, SLOTS_PER_BLOCK, flags},
    objset::{ObjsetForm, ObjsetPhys, ObjsetType, ZIL_HEADER_BYTES},
};
use pool::{
    Bookmark,
    dmu::{BlockSource, DnodeAt, Object, ReadError},
};

use super::{
    Account, NewObject,
    commit::{Commit, Shape, to_little},
    object::Staged,
    sink::Sink,
    tree::write_object,
};
use crate::{BoxFuture, EngineError, policy::SetPolicy, space::Deflate, write::BlockWriter};

/// An object set that can be changed.
///
/// When [`sync`](Self::sync) fails the set must be dropped: its changes are partly in a tree nobody points to.
#[derive(Debug)]
pub struct MutSet {
    pub(super) source: Arc<dyn BlockSource>,
    pub(super) id: u64,
    root: BlkPtr,
    /// The meta dnode in it is that of the last sync.
    pub(super) phys: ObjsetPhys,
    phys_dirty: bool,
    /// Objects that differ from the last sync; `None` is a freed one.
    pub(super) objects: BTreeMap<u64, Option<Box<Staged>>>,
    /// Freed objects whose blocks are still to be reported.
    pub(super) dying: Vec<(u64, Dnode)>,
    /// Dnodes as of the last sync: a bounded cache.
    pub(super) clean: BTreeMap<u64, Dnode>,
    /// Blocks of dnodes as of the last sync: a bounded cache. `None` is a hole.
    pub(super) dnode_blocks: BTreeMap<u64, Option<Bytes>>,
    /// Numbers known to be free.
    pub(super) spare: BTreeSet<u64>,
    /// First block of dnodes that was not searched for free numbers.
    pub(super) cursor: u64,
    /// See [`changes`](Self::changes).
    pub(super) changes: u64,
}

impl MutSet {
    /// The set `root` points to. `id` is its dataset's object in the MOS, 0 for the MOS.
    pub fn open(
        source: Arc<dyn BlockSource>,
        id: u64,
        root: BlkPtr,
    ) -> BoxFuture<'static, Result<Self, EngineError>> {
        Box::pin(async move {
            let at = Bookmark { objset: id, object: 0, level: -1, blkid: 0 };
            let wrong = |what| EngineError::Read(ReadError::Inconsistent { at, what });
            if root.is_hole() {
                return Err(wrong("the dataset has no object set"));
            }
            if root.object_type() != ObjectType::OBJSET || root.level() != 0 {
                return Err(wrong("not a block pointer to an object set"));
            }
            if root.uses_crypt() {
                return Err(EngineError::Unsupported("encrypted datasets can only be read".into()));
            }
            let content = source.read(&root, at).await?;
            let mut phys = ObjsetPhys::decode(&content, root.order()).map_err(ReadError::malformed(at))?;
            if root.order() == Order::Big {
                // It will be written in little endian, and this part is kept as bytes.
                to_little(&mut phys.zil_header);
            }
            let bytes = phys.meta_dnode.data_block_bytes();
            if !bytes.is_power_of_two() || phys.meta_dnode.blkptrs.is_empty() {
                return Err(wrong("the blocks of dnodes have an impossible size"));
            }
            let set = Self::over(source, id, root, phys);
            set.meta()?;
            Ok(set)
        })
    }

    /// A new, empty set.
    pub fn create(source: Arc<dyn BlockSource>, id: u64, kind: ObjsetType) -> Self {
        let blkptrs = BlkPtrs::new(&[BlkPtr::EMPTY; 3]).expect("three is a legal number of pointers");
        let meta_dnode = Dnode {
            object_type: ObjectType::DNODE,
            indirect_shift: 17,
            levels: 1,
            bonus_type: ObjectType::NONE,
            checksum_id: 0,
            compression_id: 0,
            flags: flags::USED_BYTES,
            data_sectors: SLOTS_PER_BLOCK as u16,
            extra_slots: 0,
            max_block_id: 0,
            used: 0,
            reserved: ([0; 3], [0; 32]),
            blkptrs,
            bonus: Bonus::new(&[]),
            spill: None,
        };
        let phys = ObjsetPhys {
            meta_dnode,
            zil_header: [0; ZIL_HEADER_BYTES],
            kind,
            flags: 0,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            user_used: None,
            group_used: None,
            project_used: None,
            form: ObjsetForm::Project,
        };
        let mut set = Self::over(source, id, BlkPtr::EMPTY, phys);
        set.phys_dirty = true;
        set
    }

    fn over(source: Arc<dyn BlockSource>, id: u64, root: BlkPtr, phys: ObjsetPhys) -> Self {
        Self {
            source,
            id,
            root,
            phys,
            phys_dirty: false,
            objects: BTreeMap::new(),
            dying: Vec::new(),
            clean: BTreeMap::new(),
            dnode_blocks: BTreeMap::new(),
            spare: BTreeSet::new(),
            cursor: 0,
            changes: 0,
        }
    }

    /// Reads through another source from now on (the device tree was extended).
    pub fn set_source(&mut self, source: Arc<dyn BlockSource>) {
        self.source = source;
    }

    /// Its root block's fields (flags, log header, kind).
    pub fn phys(&self) -> &ObjsetPhys {
        &self.phys
    }

    /// Changes fields of the root block (not the dnodes in it); makes the set dirty.
    pub fn phys_mut(&mut self) -> &mut ObjsetPhys {
        self.phys_dirty = true;
        self.changes += 1;
        &mut self.phys
    }

    /// Its dataset's object in the MOS, 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The pointer of the last [`sync`](Self::sync), or what it was opened from.
    pub fn root(&self) -> &BlkPtr {
        &self.root
    }

    /// Something changed since the last sync.
    pub fn is_dirty(&self) -> bool {
        self.phys_dirty || !self.objects.is_empty() || !self.dying.is_empty()
    }

    /// How often something in it was changed, or made ready to be. The same number as before: nothing was.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The array of dnodes as of the last sync.
    pub(super) fn meta(&self) -> Result<Object, ReadError> {
        let dnode = self.phys.meta_dnode.clone();
        Object::new(Arc::clone(&self.source), self.id, DnodeAt { number: 0, dnode, order: Order::Little })
    }

    /// Its bonus.
    pub async fn bonus(&mut self, number: u64) -> Result<Vec<u8>, EngineError> {
        Ok(self.dnode(number).await?.bonus.to_vec())
    }

    /// Replaces its bonus; it may be longer than before if it fits.
    pub async fn set_bonus(&mut self, number: u64, bonus: &[u8]) -> Result<(), EngineError> {
        self.staged(number).await?.set_bonus(bonus)
    }

    /// Changes its type (DSL objects become ZAPs when they get attributes, and back).
    pub async fn set_type(&mut self, number: u64, object_type: ObjectType) -> Result<(), EngineError> {
        self.staged(number).await?.dnode.object_type = object_type;
        Ok(())
    }

    /// Writes everything that changed, bottom up, and returns the new root. Blocks of this set that were born in
    /// this transaction group are written again in their places (MOS, later passes).
    pub fn sync<'a>(
        &'a mut self,
        out: &'a mut BlockWriter,
        policy: &'a SetPolicy,
        deflate: &'a Deflate,
        account: &'a mut dyn Account,
    ) -> BoxFuture<'a, Result<BlkPtr, EngineError>> {
        Box::pin(self.sync_to(out, policy, deflate, account))
    }

    /// [`sync`](Self::sync) to anything that stores blocks.
    pub(crate) async fn sync_to<S: Sink>(
        &mut self,
        out: &mut S,
        policy: &SetPolicy,
        deflate: &Deflate,
        account: &mut dyn Account,
    ) -> Result<BlkPtr, EngineError> {
        if !self.is_dirty() {
            return Ok(self.root);
        }
        let source = Arc::clone(&self.source);
        let mut commit = Commit { source: &source, objset: self.id, out, policy, deflate, account, delta: 0 };
        for (number, dnode) in std::mem::take(&mut self.dying) {
            commit.bury(number, &dnode).await?;
        }
        let per_block = self.slots_per_block();
        let mut blocks: BTreeMap<u64, Vec<(u64, Option<Dnode>)>> = BTreeMap::new();
        for (number, staged) in std::mem::take(&mut self.objects) {
            let dnode = match staged {
                Some(staged) => Some(write_object(&mut commit, number, *staged).await?),
                None => None,
            };
            blocks.entry(number / per_block).or_default().push((number, dnode));
        }

        let mut meta = Staged::new(self.phys.meta_dnode.clone());
        let mut written = Vec::new();
        for (block, changes) in blocks {
            let content = self.splice(block, &changes).await?;
            if let Some(content) = &content {
                meta.put(block, content.clone())?;
            } else {
                meta.punch(block..block + 1);
            }
            written.push((block, content));
            for (number, dnode) in changes {
                match dnode {
                    Some(dnode) => self.clean.insert(number, dnode),
                    None => self.clean.remove(&number),
                };
            }
        }
        self.phys.meta_dnode = write_object(&mut commit, 0, meta).await?;
        for (block, content) in written {
            self.keep_block(block, content);
        }
        self.bound_caches();

        // Current software has the long form, and makes it of shorter ones.
        self.phys.form = ObjsetForm::Project;
        let content = self.phys.encode(Order::Little).map_err(EngineError::encode("objset"))?;
        let fill = self.phys.meta_dnode.blkptrs.iter().map(BlkPtr::fill).fold(0, u64::saturating_add);
        let shape = Shape { object_type: ObjectType::OBJSET, ..Shape::of(0, &self.phys.meta_dnode) };
        let mut job = commit.job(&shape, 0, 0, content.into(), fill, self.root);
        job.at.level = -1;
        let pointers = commit.write(vec![job]).await?;
        let Some(root) = pointers.first().copied().filter(|root| !root.is_hole()) else {
            return Err(EngineError::Encode { what: "objset", detail: "it was stored as a hole".into() });
        };
        commit.replace(&self.root, &root);
        self.root = root;
        self.phys_dirty = false;
        Ok(root)
    }

    /// A block of dnodes with changes; `None` if none is left in it.
    async fn splice(
        &mut self,
        block: u64,
        changes: &[(u64, Option<Dnode>)],
    ) -> Result<Option<Bytes>, EngineError> {
        let first = block * self.slots_per_block();
        let mut content = match self.dnode_block(block).await? {
            Some(content) => content.to_vec(),
            None => vec![0; self.phys.meta_dnode.data_block_bytes() as usize],
        };
        // What was there goes first, with all slots it had: others may be in them now.
        for (number, _) in changes {
            let at = (number - first) as usize * SLOT_BYTES;
            let end = (at + Dnode::slots_at(&content[at..]) * SLOT_BYTES).min(content.len());
            content[at..end].fill(0);
        }
        for (number, dnode) in changes {
            let Some(dnode) = dnode else { continue };
            let at = (number - first) as usize * SLOT_BYTES;
            let bytes = dnode.encode(Order::Little).map_err(EngineError::encode("dnode"))?;
            let Some(place) = content.get_mut(at..at + bytes.len()) else {
                return Err(EngineError::Encode {
                    what: "dnode",
                    detail: format!("object {number} does not fit into its block"),
                });
            };
            place.copy_from_slice(&bytes);
        }
        Ok(content.iter().any(|byte| *byte != 0).then(|| content.into()))
    }

    /// An object as of the last sync, for reading.
    pub async fn object(&mut self, number: u64) -> Result<Object, EngineError> {
        let dnode = self.committed(number).await?.ok_or_else(|| self.missing(number))?;
        Ok(Object::new(Arc::clone(&self.source), self.id, DnodeAt { number, dnode, order: Order::Little })?)
    }

    /// Allocates an object with any free number.
    pub async fn allocate(&mut self, new: NewObject<'_>) -> Result<u64, EngineError> {
        let staged = Staged::create(&new)?;
        let number = self.take_number().await?;
        self.changes += 1;
        self.objects.insert(number, Some(Box::new(staged)));
        Ok(number)
    }

    /// Allocates the object `number`, which must be free.
    pub async fn claim(&mut self, number: u64, new: NewObject<'_>) -> Result<(), EngineError> {
        let staged = Staged::create(&new)?;
        self.take_this_number(number).await?;
        self.changes += 1;
        self.objects.insert(number, Some(Box::new(staged)));
        Ok(())
    }
}
