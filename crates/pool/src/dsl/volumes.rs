//! The volumes of a pool: by name, and all there is to serve.

use std::sync::Arc;

use block::Identity;

use super::{Dataset, DatasetKind, Dsl, HeadKind, LookupError, Reached};
use crate::{
    BoxFuture, Pool,
    cache::{Caching, Keep},
    dmu::{BlockSource, ReadError},
    props::PropertySet,
    volume::{OpenVolumeError, Volume},
};

/// The properties that say what caches may keep of a dataset, and what may be read ahead.
pub const CACHING: [&str; 3] = ["primarycache", "secondarycache", "prefetch"];

/// Why a volume of a name could not be opened. Prints as `zfs` says it where `zfs` has a word for it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeLookupError {
    /// Nothing has this name, or what leads to it cannot be read.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// Something has, and cannot be opened as a volume.
    #[error(transparent)]
    Open(#[from] OpenVolumeError),
}

impl Dataset {
    /// Opens it as a volume.
    ///
    /// # Errors
    /// It is none, is encrypted, was received in part only, or cannot be read.
    pub fn open_volume(&self) -> BoxFuture<'_, Result<Arc<Volume>, OpenVolumeError>> {
        Box::pin(async move {
            let name = self.name().to_owned();
            if self.head_kind() == HeadKind::Filesystem || self.kind() == DatasetKind::Bookmark {
                return Err(OpenVolumeError::NotAVolume(name));
            }
            if self.phys().is_some_and(|phys| phys.is_inconsistent()) {
                return Err(OpenVolumeError::Partial(name));
            }
            let pool_guid = self.dsl().pool_guid();
            let identity = Identity { name: name.clone(), guid: self.guid(), pool_guid };
            let unreadable = |source| OpenVolumeError::Read { name: name.clone(), source };
            let set = self.objset().await.map_err(unreadable)?;
            self.tell_caches(&**set.source()).await.map_err(unreadable)?;
            Ok(Arc::new(Volume::open(&set, identity).await?))
        })
    }

    /// Tells what caches may keep of it and what may be read ahead, as its properties say now.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tell_caches<'a>(
        &'a self,
        source: &'a dyn BlockSource,
    ) -> BoxFuture<'a, Result<PropertySet, ReadError>> {
        Box::pin(async move {
            let properties = self.properties().await?;
            let keep = |name: &str| Keep::from_number(properties.number(name).unwrap_or(2));
            let [primary, secondary, prefetch] = CACHING.map(keep);
            source.set_caching(self.object(), Caching { primary, secondary });
            source.set_prefetch(self.object(), prefetch);
            Ok(properties)
        })
    }
}

impl Dsl {
    /// Opens the volume or volume snapshot of this name.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn open_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<Volume>, VolumeLookupError>> {
        Box::pin(async move { Ok(self.lookup(name).await?.open_volume().await?) })
    }

    /// Every volume and volume snapshot, in the order of [`tree`](Self::tree), encrypted ones too, and what
    /// [may be](Dataset::may_be_volume) one; and what could not be listed.
    ///
    /// # Errors
    /// The root dataset cannot be read.
    pub fn volumes(&self) -> BoxFuture<'_, Result<Reached, ReadError>> {
        Box::pin(async move {
            let (mut heads, mut errors) = self.heads(self.root().await?).await;
            heads.retain(Dataset::may_be_volume);
            let (snapshots, failed) = self.snapshots_of(&heads).await;
            errors.extend(failed);
            let mut all = Vec::new();
            for (head, snapshots) in heads.into_iter().zip(snapshots) {
                all.push(head);
                all.extend(snapshots);
            }
            Ok((all, errors))
        })
    }
}

impl Pool {
    /// Every dataset, snapshot and bookmark of the pool, in the order of [`Dsl::tree`]; and what could not be read.
    ///
    /// # Errors
    /// The root dataset cannot be read.
    pub fn datasets(&self) -> BoxFuture<'_, Result<Reached, ReadError>> {
        Box::pin(async move {
            let dsl = self.dsl().await?;
            Ok(dsl.tree(dsl.root().await?).await)
        })
    }

    /// The live datasets of the pool, in the order of [`Dsl::tree`]; and what could not be read, with all that is below it.
    ///
    /// # Errors
    /// The root dataset cannot be read.
    pub fn heads(&self) -> BoxFuture<'_, Result<Reached, ReadError>> {
        Box::pin(async move {
            let dsl = self.dsl().await?;
            Ok(dsl.heads(dsl.root().await?).await)
        })
    }

    /// Opens the volume or volume snapshot of this name.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn open_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<Volume>, VolumeLookupError>> {
        Box::pin(async move {
            let dsl =
                self.dsl().await.map_err(|source| LookupError::Read { name: name.to_owned(), source })?;
            dsl.open_volume(name).await
        })
    }
}
