//! What the labels of one device say.
//!
//! Four copies of the same label, any of which may be torn or gone: each region has its own checksum,
//! so whatever verifies is used and the rest ignored. A device that was in another pool before may still
//! carry that pool's labels at one end: it belongs to whom most labels say, and to whom the first one
//! says if they are even. Facts: docs/format/labels.md §1–§3.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use codec::checksum::{Checksum, Form, embedded};
use disk::{Disk, IoBuf};
use ondisk::{
    label::{CONFIG_BYTES, CONFIG_OFFSET, Geometry, LABEL_BYTES, LABELS, Ring},
    nvlist::NvList,
    uberblock::{Rank, Uberblock},
};

use crate::{BoxFuture, io::join::join_all, vdev::deadline};

/// A disk that is well and busy answers before, and one that has not by now may never do.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// One device and what its labels say.
#[derive(Clone, Debug)]
pub struct Device {
    /// The device.
    pub disk: Arc<dyn Disk>,
    /// Where it was found.
    pub path: String,
    /// Configurations that verified, with the number of their label (0–3).
    pub configs: Vec<(usize, NvList)>,
    /// Valid uberblocks of all labels.
    pub uberblocks: BTreeMap<Rank, Uberblock>,
    /// The newest transaction group that all its labels have got to; 0 if there is none. A device that was copied while it was
    /// in use has the labels at its begin as of when that began, and those at its end as of when it was over.
    pub everywhere: u64,
    /// Bytes of the device that block pointers can reach.
    pub allocatable: u64,
}

impl Device {
    /// Reads the labels. `Ok(None)` if the device holds no valid label at all.
    ///
    /// # Errors
    /// The device cannot be read anywhere a label could be, or does not answer for half a minute.
    pub fn read(disk: Arc<dyn Disk>) -> BoxFuture<'static, std::io::Result<Option<Self>>> {
        Self::read_within(disk, ANSWER)
    }

    /// The same of a device that is given so long to answer.
    pub(super) fn read_within(
        disk: Arc<dyn Disk>,
        patience: Duration,
    ) -> BoxFuture<'static, std::io::Result<Option<Self>>> {
        Box::pin(async move {
            let info = disk.info();
            let Some(geometry) = Geometry::new(info.size) else { return Ok(None) };
            let mut device = Self {
                disk: Arc::clone(&disk),
                path: info.path,
                configs: Vec::new(),
                uberblocks: BTreeMap::new(),
                everywhere: 0,
                allocatable: geometry.asize(),
            };
            let mut reads: Vec<BoxFuture<'_, (u64, Option<std::io::Result<IoBuf>>)>> =
                Vec::with_capacity(LABELS);
            for start in geometry.labels() {
                let read = disk.read(start, IoBuf::with_len(LABEL_BYTES as usize));
                reads.push(Box::pin(async move { (start, deadline::within(read, patience).await) }));
            }
            let mut labels = Vec::new();
            let mut failure = None;
            for (number, (start, answer)) in join_all(reads, LABELS).await.into_iter().enumerate() {
                match answer {
                    Some(Ok(label)) => labels.push((number, start, label)),
                    Some(Err(error)) => failure = Some(error),
                    None => failure = Some(deadline::late("read of a label", patience)),
                }
            }
            if let (true, Some(error)) = (labels.is_empty(), failure) {
                return Err(error);
            }
            let mut copies = embedded::Copies::default();
            for (number, start, label) in &labels {
                let region = &label[CONFIG_OFFSET as usize..(CONFIG_OFFSET + CONFIG_BYTES) as usize];
                if copies.verify(region, Checksum([start + CONFIG_OFFSET, 0, 0, 0])).is_ok()
                    && let Ok(config) = NvList::decode(region)
                {
                    device.configs.push((*number, config));
                }
            }
            let Some(owner) = majority(&device.configs) else { return Ok(None) };
            let (own, stale): (Vec<_>, Vec<_>) =
                device.configs.into_iter().partition(|(_, config)| identity(config) == owner);
            device.configs = own;
            let said_by = |list: &[(usize, NvList)], number: usize| list.iter().any(|(n, _)| *n == number);
            let ashift =
                device.configs.iter().find_map(|(_, config)| config.nvlist("vdev_tree")?.u64("ashift"));
            let rings = match ashift {
                Some(ashift) => vec![Ring::for_ashift(ashift)],
                None => Ring::ALL.to_vec(),
            };
            let (mut doubtful, mut everywhere) = (Vec::new(), None::<u64>);
            for (number, start, label) in &labels {
                let found = rings.iter().flat_map(|ring| uberblocks(*ring, *start, label)).map(|(_, ub)| ub);
                match (said_by(&device.configs, *number), said_by(&stale, *number)) {
                    (true, _) => {
                        let own: BTreeMap<Rank, Uberblock> = found.map(|ub| (ub.rank(), ub)).collect();
                        if let Some(newest) = own.keys().next_back() {
                            everywhere = Some(everywhere.map_or(newest.txg, |txg| txg.min(newest.txg)));
                        }
                        device.uberblocks.extend(own);
                    }
                    (_, true) => {}
                    // Its configuration is torn: whose ring it is, only its content can tell.
                    _ => doubtful.extend(found),
                }
            }
            let known: BTreeSet<u64> = device.uberblocks.values().map(|ub| ub.guid_sum).collect();
            doubtful.retain(|ub| known.is_empty() || known.contains(&ub.guid_sum));
            device.uberblocks.extend(doubtful.into_iter().map(|ub| (ub.rank(), ub)));
            device.everywhere = everywhere.or(device.best().map(|best| best.txg)).unwrap_or(0);
            Ok(Some(device))
        })
    }

    /// The newest configuration that was written in or before `txg`; if all are younger, the oldest.
    /// (A label newer than the uberblock belongs to a commit that never happened.)
    #[must_use]
    pub fn config_at(&self, txg: u64) -> Option<&NvList> {
        let txg_of = |config: &NvList| config.u64("txg").unwrap_or(0);
        let all = || self.configs.iter().map(|(_, config)| config);
        all()
            .filter(|config| txg_of(config) <= txg)
            .max_by_key(|c| txg_of(c))
            .or_else(|| all().min_by_key(|c| txg_of(c)))
    }

    /// Guid of this leaf, and guid of the pool it belongs to: 0 for a spare or cache device.
    #[must_use]
    pub fn guids(&self) -> Option<(u64, u64)> {
        let config = self.config_at(u64::MAX)?;
        Some((config.u64("guid")?, config.u64("pool_guid").unwrap_or(0)))
    }

    /// Whether a label at its end is of the same leaf as the device. None is if it has grown since they were written.
    #[must_use]
    pub fn has_ends(&self) -> bool {
        self.configs.iter().any(|(number, _)| *number >= LABELS / 2)
    }

    /// Its best uberblock.
    #[must_use]
    pub fn best(&self) -> Option<Rank> {
        self.uberblocks.last_key_value().map(|(rank, _)| *rank)
    }
}

/// The pool and the leaf a label is of.
fn identity(config: &NvList) -> (u64, u64) {
    (config.u64("pool_guid").unwrap_or(0), config.u64("guid").unwrap_or(0))
}

/// Whose most labels are; the first label's owner if several have as many.
fn majority(configs: &[(usize, NvList)]) -> Option<(u64, u64)> {
    let votes = |owner| configs.iter().filter(|(_, config)| identity(config) == owner).count();
    let owners = configs.iter().map(|(_, config)| identity(config));
    owners.rev().max_by_key(|&owner| votes(owner))
}

/// The valid uberblocks of a label at device byte `start`, with their slots in its ring.
pub fn uberblocks(ring: Ring, start: u64, label: &[u8]) -> impl Iterator<Item = (u64, Uberblock)> {
    (0..).zip(ring.regions()).filter_map(move |(slot, region)| {
        let bytes = label.get(region.offset() as usize..(region.offset() + region.bytes()) as usize)?;
        let uberblock = Uberblock::decode(bytes).ok()?;
        is_sealed(bytes, start + region.offset()).then_some((slot, uberblock))
    })
}

/// Whether a label region at device byte `offset` is what was written there.
#[must_use]
pub fn is_sealed(region: &[u8], offset: u64) -> bool {
    embedded::verify(embedded::Kind::Label, region, Checksum([offset, 0, 0, 0]), Form::Whole).is_ok()
}
