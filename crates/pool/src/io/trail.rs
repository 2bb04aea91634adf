//! What went wrong while one block was read: kept until it is known whether the block was read at all.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    error::{BlockErrorKind, Evidence},
    vdev::{Demand, Vdev, Work, deadline::Patience},
};

/// Enough to tell every column of a wide stripe; more would only repeat itself.
const EVIDENCE_MAX: usize = 64;

/// The failures on the way to one block.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    evidence: Mutex<Vec<Evidence>>,
    /// Some device answered, and the answer was wrong.
    wrong: AtomicBool,
    /// A structure on the way contradicts itself.
    malformed: Mutex<Option<String>>,
    /// Something that is not implemented stands in the way.
    unsupported: Mutex<Option<String>>,
    /// It is a scan that reads.
    scan: bool,
    /// Nobody has asked for it yet.
    ahead: bool,
    /// Some device did not answer in time,
    late: AtomicBool,
    /// and nobody else has the block, so that it is waited for.
    endless: AtomicBool,
    /// What refuses will be asked again, by somebody who tells of it.
    quiet: bool,
    /// Nobody is to blame if the block is not there,
    tentative: bool,
    /// nor for refusing it.
    unblamed: bool,
    /// Nothing tells its bytes from older ones.
    blind: AtomicBool,
    /// Somebody who may have it did not answer at all.
    silent: AtomicBool,
    /// Of those, somebody who was asked, and may answer the next time.
    unanswered: AtomicBool,
    guilty: Mutex<Guilty>,
}

/// Who did what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guilty {
    /// Leaves that answered wrongly and should not have.
    pub(crate) corrupt: SmallVec<[u64; 4]>,
    /// Leaves that refused just now.
    pub(crate) refused: SmallVec<[u64; 4]>,
}

impl Trail {
    /// Of a block that may never have been written: what answers otherwise has done nothing wrong.
    pub(crate) fn tentative() -> Self {
        Self { tentative: true, ..Self::default() }
    }

    /// Of a block that is only looked at, maybe because it is known to be damaged: whatever goes wrong is no news.
    pub(crate) fn unblamed() -> Self {
        Self { tentative: true, unblamed: true, ..Self::default() }
    }

    /// Of several blocks at once: whatever is not perfect is read again.
    pub(crate) fn quiet() -> Self {
        Self { quiet: true, ..Self::default() }
    }

    /// Whether it counts that a device refused.
    pub(crate) fn tells(&self) -> bool {
        !self.quiet && !self.unblamed
    }

    /// Whether several blocks are read at once.
    pub(crate) fn is_joined(&self) -> bool {
        self.quiet
    }

    /// Of a block that a scan reads.
    pub(crate) fn of_scan() -> Self {
        Self { scan: true, ..Self::default() }
    }

    /// Whether nobody has asked for it yet.
    pub(crate) fn ahead(self, ahead: bool) -> Self {
        Self { ahead, ..self }
    }

    /// What kind of read it is.
    pub(crate) fn work(&self) -> Work {
        match (self.scan, self.ahead) {
            (true, _) => Work::Scrub,
            (false, true) => Work::AsyncRead,
            (false, false) => Work::SyncRead,
        }
    }

    /// For whom is read.
    pub(crate) fn demand(&self) -> Demand {
        if self.scan { Demand::Scan } else { Demand::Client }
    }

    /// How long a device may take to answer.
    pub(crate) fn patience(&self) -> Patience {
        match self.scan {
            _ if self.endless.load(Relaxed) => Patience::Endless,
            true => Patience::Long,
            false => Patience::Short,
        }
    }

    /// Some device took too long.
    pub(crate) fn late(&self) {
        self.late.store(true, Relaxed);
    }

    /// Whether some device took too long.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Relaxed)
    }

    /// The block was not found. True if it is worth waiting for who was late; from here on that is done, and everybody is
    /// asked again. Nobody waits for what nobody has asked for.
    pub(crate) fn has_to_wait(&self) -> bool {
        let has_to = !self.ahead && self.late.load(Relaxed) && !self.endless.swap(true, Relaxed);
        if has_to {
            self.unanswered.store(false, Relaxed);
        }
        has_to
    }

    /// Whether devices are waited for as long as it takes. Any of them may never answer, so all that may have the block are
    /// asked together then, and who has it first is taken.
    pub(crate) fn is_endless(&self) -> bool {
        self.endless.load(Relaxed)
    }

    /// Whether the block was not waited for because nobody has asked for it: that it was not found says nothing.
    pub(crate) fn is_given_up(&self) -> bool {
        self.ahead && self.is_late()
    }

    /// Nothing will tell the block's bytes from older ones: who may have those is not asked.
    pub(crate) fn be_blind(&self) {
        self.blind.store(true, Relaxed);
    }

    /// Whether who may have older bytes is not to be asked.
    pub(crate) fn is_blind(&self) -> bool {
        self.blind.load(Relaxed)
    }

    /// Whether a wrong answer counts.
    pub(crate) fn counts(&self) -> bool {
        !self.tentative
    }

    /// This leaf gave other bytes than were written to it.
    pub(crate) fn corrupt(&self, guid: u64) {
        note(&mut self.guilty.lock().corrupt, guid);
    }

    /// This leaf refused to answer.
    pub(crate) fn refused(&self, guid: u64) {
        note(&mut self.guilty.lock().refused, guid);
    }

    /// Who did what since this was asked last. `None` if all went well.
    pub(crate) fn take_guilty(&self) -> Option<Guilty> {
        let guilty = std::mem::take(&mut *self.guilty.lock());
        (!guilty.corrupt.is_empty() || !guilty.refused.is_empty()).then_some(guilty)
    }

    pub(crate) fn fault(&self, device: &Vdev, offset: u64, fault: impl Into<String>) {
        let mut evidence = self.evidence.lock();
        if evidence.len() < EVIDENCE_MAX {
            let device = device.path.clone().unwrap_or_else(|| device.display_name());
            evidence.push(Evidence { device, offset, fault: fault.into() });
        }
    }

    /// This device was asked, and did not answer.
    pub(crate) fn unanswered(&self, device: &Vdev, offset: u64, fault: impl Into<String>) {
        self.unanswered.store(true, Relaxed);
        self.silent(device, offset, fault);
    }

    /// This device did not answer, or could not be asked.
    pub(crate) fn silent(&self, device: &Vdev, offset: u64, fault: impl Into<String>) {
        self.silent.store(true, Relaxed);
        self.fault(device, offset, fault);
    }

    pub(crate) fn wrong(&self, device: &Vdev, offset: u64) {
        self.wrong.store(true, Relaxed);
        self.fault(device, offset, "checksum mismatch");
    }

    pub(crate) fn malformed(&self, what: impl Into<String>) {
        self.malformed.lock().get_or_insert_with(|| what.into());
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) {
        self.unsupported.lock().get_or_insert_with(|| what.into());
    }

    /// The failure as a whole, and what led to it.
    pub(crate) fn conclude(self) -> (BlockErrorKind, Vec<Evidence>) {
        let kind = match (self.malformed.into_inner(), self.unsupported.into_inner()) {
            // Who asks for such a block takes it that there is none if this says so, for good. Others may have missed what
            // this one has.
            _ if self.tentative && self.unanswered.load(Relaxed) => BlockErrorKind::Device,
            _ if self.wrong.load(Relaxed) => BlockErrorKind::Checksum,
            (_, Some(what)) => BlockErrorKind::Unsupported(what),
            (Some(what), None) => BlockErrorKind::Malformed(what),
            // Everybody was asked, and nobody has it, whatever they missed.
            (None, None) if self.tentative && !self.silent.load(Relaxed) => BlockErrorKind::Checksum,
            (None, None) => BlockErrorKind::Device,
        };
        (kind, self.evidence.into_inner())
    }
}

/// Adds a device to a list, once.
pub(super) fn note<const N: usize>(list: &mut SmallVec<[u64; N]>, guid: u64) {
    if !list.contains(&guid) {
        list.push(guid);
    }
}
