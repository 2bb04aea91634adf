//! Volumes of an open pool: opened once and the same for everybody, as the last commit describes them.

use std::{collections::BTreeMap, sync::Arc};

use block::{BlockVolume as _, Identity};
use codec::checksum;
use ondisk::dsl::DatasetPhys;
use pool::{
    Pool,
    dmu::{Object, ObjectSet, ReadError},
    dsl::{Dataset, DatasetKind, HeadKind},
};

use super::{Engine, Shared, keeper::PoolKeeper};
use crate::{
    BoxFuture,
    dsl::{self, kept},
    volume::{LiveVolume, Service, SyncMode},
    write::summed::is_cheap,
    zil::Log,
};

/// Object with a volume's data.
const DATA: u64 = 1;
/// Bytes of an indirect block at most, if nothing of it can be compressed.
const INDIRECT_BYTES: u64 = 128 << 10;

/// Why a volume cannot be opened for writing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It cannot be found or read.
    #[error(transparent)]
    Lookup(#[from] pool::dsl::LookupError),
    /// A snapshot, a bookmark, a file system.
    #[error("'{0}' is not a volume that can be written to")]
    NotAVolume(String),
    /// Its content is ciphertext.
    #[error("'{0}' is encrypted: the key is not loaded, and loading keys is not supported")]
    Encrypted(String),
    /// Only a part of it was received: OpenZFS takes it away when it imports the pool, or goes on with it.
    #[error("'{0}' was received in part only: receive the rest of it with OpenZFS, or destroy it")]
    Partial(String),
    /// Its intent log holds writes that could not be replayed: without them it is not as its clients left it.
    #[error("{0}")]
    Unreplayed(String),
    /// It could not be read any more, and what was written to it before has still to be synced; or the pool is being left. To
    /// be tried again.
    #[error("'{0}' was closed, and what was written to it before is being synced")]
    Closed(String),
    /// Its structures cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Who opens a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    /// Somebody who serves it, or works on it.
    Client,
    /// Who does again what its intent log says.
    Replay,
}

impl Engine {
    /// Opens a volume for writing; the same one for everybody.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<LiveVolume>, OpenError>> {
        self.open_volume(name, OpenedBy::Client)
    }

    /// The same, for somebody else as well.
    pub(crate) fn open_volume<'a>(
        &'a self,
        name: &'a str,
        by: OpenedBy,
    ) -> BoxFuture<'a, Result<Arc<LiveVolume>, OpenError>> {
        Box::pin(async move {
            // A commit in between would make what was read here old; then once more.
            loop {
                let view = self.view();
                let dataset = view.dsl().await?.lookup(name).await?;
                self.refuse(&dataset, name)?;
                let number = dataset.object();
                if let Some(volume) = self.shared.opened(&self.shared.volumes.lock(), number)? {
                    return Ok(volume);
                }
                let (identity, service) = describe(&view, &dataset).await?;
                let (data, _) = content(&view, number).await?;
                // What clients wrote now would be written over when the log is replayed after all.
                if by == OpenedBy::Client && dsl::waits(dataset.objset().await?.phys()) {
                    return Err(OpenError::Unreplayed(format!(
                        "volume '{name}' is not served: its intent log was not replayed, as it could not be read when the \
                         pool was imported; export the pool and import it again"
                    )));
                }
                // All that were found were claimed or ended before anything else was done.
                let is_unclaimed =
                    by == OpenedBy::Client && dsl::is_unclaimed(number, dataset.objset().await?.phys());
                let kept = kept::of_directory(dataset.dir().extra(dataset.dsl()).await?, dataset.guid());
                let mut volumes = self.shared.volumes.lock();
                if !Arc::ptr_eq(&view, &self.view()) {
                    continue;
                }
                if let Some(volume) = self.shared.opened(&volumes, number)? {
                    return Ok(volume);
                }
                let txgs = self.shared.txgs.for_volume(number, None);
                let log = Log::new(number, Some(self.shared.means.clone()));
                let was_missed = is_unclaimed && self.shared.logs.get(number).is_none();
                self.shared.logs.insert(Arc::clone(&log));
                let service = self.shared.within(number, service);
                let volume = LiveVolume::new(number, identity, service, data, Arc::clone(&txgs), log);
                let shared = &self.shared;
                volume.read_through(Arc::clone(&shared.clients_source), Arc::clone(&shared.source));
                if kept::is_possible(&view) {
                    volume.keep_in(PoolKeeper::new(number, dataset.guid(), kept, &self.shared));
                }
                volume.set_holding(dataset.phys().map(dsl::Holding::from).unwrap_or_default());
                volumes.insert(number, Arc::clone(&volume));
                drop(volumes);
                if was_missed {
                    self.shared.replayed.lock().missed(name);
                }
                // Its room is known after a transaction group that was asked for it.
                self.shared.txgs.wake();
                return Ok(volume);
            }
        })
    }

    /// What can be told of a dataset before its content is looked at.
    fn refuse(&self, dataset: &Dataset, name: &str) -> Result<(), OpenError> {
        if dataset.kind() != DatasetKind::Head || dataset.head_kind() != HeadKind::Volume {
            // Of what could not be read nobody knows, and it may be one.
            let unread = dataset.unread().map(OpenError::from);
            return Err(unread.unwrap_or_else(|| OpenError::NotAVolume(name.to_owned())));
        }
        if dataset.is_encrypted() {
            return Err(OpenError::Encrypted(name.to_owned()));
        }
        if dataset.phys().is_some_and(|phys| phys.is_inconsistent()) {
            return Err(OpenError::Partial(name.to_owned()));
        }
        if let Some(why) = self.shared.replayed.lock().failed.get(&dataset.object()) {
            return Err(OpenError::Unreplayed(why.clone()));
        }
        Ok(())
    }

    /// Volumes that are open.
    #[must_use]
    pub fn open_volumes(&self) -> Vec<Arc<LiveVolume>> {
        self.shared.volumes.lock().values().cloned().collect()
    }
}

impl Shared {
    /// The volume that is open already. One that was closed because it cannot be read serves nobody; with nothing left to be
    /// synced it may be opened anew.
    fn opened(
        &self,
        volumes: &BTreeMap<u64, Arc<LiveVolume>>,
        number: u64,
    ) -> Result<Option<Arc<LiveVolume>>, OpenError> {
        let Some(volume) = volumes.get(&number) else { return Ok(None) };
        match volume.is_closed() {
            false => Ok(Some(Arc::clone(volume))),
            true if volume.is_over() && self.ending.lock().is_none() => Ok(None),
            true => Err(OpenError::Closed(volume.identity().name)),
        }
    }

    /// How a volume is served: of one that is being made small clients have what is going to be left, and it may have been
    /// opened after that began.
    pub(super) fn within(&self, number: u64, service: Service) -> Service {
        let most = self.shrinking.load().get(&number).copied().unwrap_or(u64::MAX);
        Service { size: service.size.min(most), ..service }
    }
}

pub(super) async fn dataset_phys(view: &Pool, number: u64) -> Result<DatasetPhys, ReadError> {
    let found = view.mos().dnode(number).await?;
    let at = pool::Bookmark { object: number, ..pool::Bookmark::default() };
    DatasetPhys::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))
}

/// The data object and the name of a volume in a committed state.
pub(crate) async fn content(view: &Arc<Pool>, number: u64) -> Result<(Object, String), OpenError> {
    let phys = dataset_phys(view, number).await?;
    let set = ObjectSet::open(view.io().clone(), number, phys.bp).await?;
    let name = view.dsl().await?.head_name(number).await?.unwrap_or_default();
    Ok((set.object(DATA).await?, name))
}

/// What a block of so many bytes counts at most, with all its copies, on the devices there are.
pub(super) fn price(view: &Pool, block: u64, copies: u8) -> u64 {
    pool::space::block_space(&view.tree(), block) * u64::from(copies)
}

/// The same for an indirect block above blocks that have so many copies.
pub(super) fn price_above(view: &Pool, copies: u8) -> u64 {
    price(view, INDIRECT_BYTES, (copies + 1).min(3))
}

/// Who a volume is and how its clients are to be treated.
pub(crate) async fn describe(view: &Pool, dataset: &Dataset) -> Result<(Identity, Service), OpenError> {
    let pool_guid = dataset.dsl().pool_guid();
    let identity = Identity { name: dataset.name().to_owned(), guid: dataset.guid(), pool_guid };
    let shape = pool::volume::shape(dataset.objset().await?.as_ref()).await?;
    let properties = dataset.tell_caches(&**view.io()).await?;
    let number = |name: &str| properties.number(name).unwrap_or(0);
    let sync = match number("sync") {
        1 => SyncMode::Always,
        2 => SyncMode::Disabled,
        _ => SyncMode::Standard,
    };
    let is_plain = number("compression") & 0x7f == u64::from(codec::compress::Algorithm::Off.id());
    // Should the group be synced with another one after all, it is computed then.
    let checksum = match number("checksum") {
        0 | 1 => Some(checksum::Algorithm::Fletcher4),
        id => u8::try_from(id).ok().and_then(checksum::Algorithm::from_id),
    };
    let copies = number("copies").clamp(1, 3) as u8;
    let service = Service {
        size: shape.size,
        // A legal block is at most 16 MiB, so it fits.
        block: u32::try_from(shape.block).unwrap_or(u32::MAX),
        read_only: number("readonly") == 1,
        sync,
        block_space: price(view, shape.block, copies),
        indirect_space: price_above(view, copies),
        copies,
        throughput: number("logbias") == 1,
        sum_early: checksum.filter(|algorithm| is_plain && is_cheap(*algorithm)),
        punch_zeroes: !is_plain,
    };
    Ok((identity, service))
}
