//! What the labels of one device say.
//!
//! Four copies of the same label, any of which may be torn or gone: each region has its own checksum,
//! so whatever verifies is used and the rest ignored. Facts: docs/format/labels.md §1–§3.

use std::{collections::BTreeMap, sync::Arc};

use codec::checksum::{Checksum, Form, embedded};
use disk::{Disk, IoBuf};
use ondisk::{
    label::{CONFIG_BYTES, CONFIG_OFFSET, Geometry, LABEL_BYTES, Ring},
    nvlist::NvList,
    uberblock::{Rank, Uberblock},
};

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
    /// Bytes of the device that block pointers can reach.
    pub allocatable: u64,
}

impl Device {
    /// Reads the labels. `Ok(None)` if the device holds no valid label at all.
    ///
    /// # Errors
    /// The device cannot be read anywhere a label could be.
    pub async fn read(disk: Arc<dyn Disk>) -> std::io::Result<Option<Self>> {
        let info = disk.info();
        let Some(geometry) = Geometry::new(info.size) else { return Ok(None) };
        let mut device = Self {
            disk: Arc::clone(&disk),
            path: info.path,
            configs: Vec::new(),
            uberblocks: BTreeMap::new(),
            allocatable: geometry.asize(),
        };
        let mut labels = Vec::new();
        let mut failure = None;
        for (number, start) in geometry.labels().into_iter().enumerate() {
            match disk.read(start, IoBuf::with_len(LABEL_BYTES as usize)).await {
                Ok(label) => labels.push((number, start, label)),
                Err(error) => failure = Some(error),
            }
        }
        if let (true, Some(error)) = (labels.is_empty(), failure) {
            return Err(error);
        }
        for (number, start, label) in &labels {
            let region = &label[CONFIG_OFFSET as usize..(CONFIG_OFFSET + CONFIG_BYTES) as usize];
            if is_sealed(region, start + CONFIG_OFFSET)
                && let Ok(config) = NvList::decode(region)
            {
                device.configs.push((*number, config));
            }
        }
        if device.configs.is_empty() {
            return Ok(None);
        }
        let ashift = device.configs.iter().find_map(|(_, config)| config.nvlist("vdev_tree")?.u64("ashift"));
        for (_, start, label) in &labels {
            match ashift {
                Some(ashift) => device.read_ring(Ring::for_ashift(ashift), *start, label),
                None => Ring::ALL.into_iter().for_each(|ring| device.read_ring(ring, *start, label)),
            }
        }
        Ok(Some(device))
    }

    fn read_ring(&mut self, ring: Ring, start: u64, label: &[u8]) {
        for region in ring.regions() {
            let slot = &label[region.offset() as usize..(region.offset() + region.bytes()) as usize];
            if let Ok(uberblock) = Uberblock::decode(slot)
                && is_sealed(slot, start + region.offset())
            {
                self.uberblocks.insert(uberblock.rank(), uberblock);
            }
        }
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

    /// Its best uberblock.
    #[must_use]
    pub fn best(&self) -> Option<Rank> {
        self.uberblocks.last_key_value().map(|(rank, _)| *rank)
    }
}

/// Whether a label region at device byte `offset` is what was written there.
fn is_sealed(region: &[u8], offset: u64) -> bool {
    embedded::verify(embedded::Kind::Label, region, Checksum([offset, 0, 0, 0]), Form::Whole).is_ok()
}
