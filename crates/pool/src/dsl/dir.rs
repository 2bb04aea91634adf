//! A DSL dir: a name in the tree, with the properties set there and the space of everything below.

use std::{collections::BTreeMap, sync::Arc};

use ondisk::{dnode::ObjectType, dsl::DirPhys, zap::Value as ZapValue};
use tokio::sync::OnceCell;

use super::{Dsl, check_bonus};
use crate::{
    BoxFuture,
    dmu::{DnodeAt, Object, ObjectSet, ReadError},
    io::Bookmark as At,
    zap::Zap,
};

/// A dir.
#[derive(Debug)]
pub struct Dir {
    object: u64,
    name: String,
    parent: Option<Arc<Self>>,
    depth: usize,
    phys: DirPhys,
    /// As found: its type says whether it has extra attributes.
    dnode: DnodeAt,
    properties: OnceCell<BTreeMap<String, ZapValue>>,
    extra: OnceCell<BTreeMap<String, ZapValue>>,
}

/// A dir as read, before it has a name.
pub(super) struct Read {
    pub(super) phys: DirPhys,
    dnode: DnodeAt,
}

/// Reads dir `object`.
pub(super) async fn read_phys(mos: &ObjectSet, object: u64) -> Result<Read, ReadError> {
    let dnode = mos.dnode(object).await?;
    check_bonus(&dnode, ObjectType::DSL_DIR)?;
    let at = At { objset: 0, object, level: 0, blkid: 0 };
    let phys = DirPhys::decode(&dnode.dnode.bonus, dnode.order).map_err(ReadError::malformed(at))?;
    Ok(Read { phys, dnode })
}

impl Dir {
    pub(super) fn new(object: u64, name: String, parent: Option<Arc<Self>>, read: Read) -> Self {
        let depth = parent.as_ref().map_or(0, |parent| parent.depth + 1);
        let Read { phys, dnode } = read;
        Self { object, name, parent, depth, phys, dnode, properties: OnceCell::new(), extra: OnceCell::new() }
    }

    /// Object number in the MOS.
    #[must_use]
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Full name, pool first.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dir above; none above the root.
    #[must_use]
    pub fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// Number of dirs above.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The structure on disk.
    #[must_use]
    pub fn phys(&self) -> &DirPhys {
        &self.phys
    }

    /// The properties set here, as they stand on disk: names may carry suffixes such as `$recvd`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn properties<'a>(
        &'a self,
        dsl: &'a Dsl,
    ) -> BoxFuture<'a, Result<&'a BTreeMap<String, ZapValue>, ReadError>> {
        Box::pin(
            async move { self.properties.get_or_try_init(|| read_map(dsl.mos(), self.phys.props)).await },
        )
    }

    /// Attributes of the dir that later features added.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn extra<'a>(
        &'a self,
        dsl: &'a Dsl,
    ) -> BoxFuture<'a, Result<&'a BTreeMap<String, ZapValue>, ReadError>> {
        Box::pin(async move { self.extra.get_or_try_init(|| read_extra(dsl.mos(), &self.dnode)).await })
    }

    /// The map of children: name → dir. None if it never had any.
    pub(super) async fn child_map(&self, dsl: &Dsl) -> Result<Option<Zap>, ReadError> {
        match self.phys.child_map {
            0 => Ok(None),
            map => Zap::open_in(dsl.mos(), map).await.map(Some),
        }
    }

    /// Under which name the child with this object number stands in the map of children.
    pub(super) async fn child_name(&self, dsl: &Dsl, child: u64) -> Result<Option<String>, ReadError> {
        let Some(map) = self.child_map(dsl).await? else { return Ok(None) };
        let found = map.numbers().await?.into_iter().find(|(_, object)| *object == child);
        Ok(found.map(|(name, _)| name))
    }
}

/// Reads a ZAP whose names are text into memory; object 0 is an empty one.
pub(super) async fn read_map(mos: &ObjectSet, object: u64) -> Result<BTreeMap<String, ZapValue>, ReadError> {
    if object == 0 {
        return Ok(BTreeMap::new());
    }
    to_map(Zap::open_in(mos, object).await?).await
}

/// Reads the attributes of a DSL object that has been turned into a ZAP; none if it was not.
pub(super) async fn read_extra(
    mos: &ObjectSet,
    found: &DnodeAt,
) -> Result<BTreeMap<String, ZapValue>, ReadError> {
    if !found.dnode.object_type.is_zap() {
        return Ok(BTreeMap::new());
    }
    let object = Object::new(Arc::clone(mos.source()), mos.id(), found.clone())?;
    to_map(Zap::open(object).await?).await
}

async fn to_map(zap: Zap) -> Result<BTreeMap<String, ZapValue>, ReadError> {
    let mut entries = zap.entries();
    let mut map = BTreeMap::new();
    while let Some((key, value)) = entries.next().await? {
        if let Some(Ok(name)) = key.name().map(|name| String::from_utf8(name.to_vec())) {
            map.insert(name, value);
        }
    }
    Ok(map)
}
