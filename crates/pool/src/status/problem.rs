//! What is wrong with a pool, and what OpenZFS says about it.
//!
//! A pool can have many faults; one is shown, the one an administrator should act on first. The order of
//! the questions below is OpenZFS's, and so are the sentences: people search for them, and scripts match
//! them.

use ondisk::features::CREATED_WITH;

use super::{PoolStatus, VdevStatus};
use crate::{
    Pool,
    features::FeatureState,
    vdev::{Aux, State},
};

/// The fault to act on first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A device is gone; the others make up for it.
    MissingDevice,
    /// A device is gone that nothing replaces.
    MissingDeviceUnreplicated,
    /// A device's label is not of this pool; the others make up for it.
    CorruptLabel,
    /// The same, and nothing replaces it.
    CorruptLabelUnreplicated,
    /// A device has a newer state of the pool than this one goes on from. OpenZFS knows no such thing.
    NewerDevice,
    /// A whole top-level device is unknown.
    BadGuidSum,
    /// The pool's own metadata is damaged.
    CorruptPool,
    /// Blocks of users are lost.
    CorruptData,
    /// A device gave errors, all of which were made up for.
    FailingDevice,
    /// Another host had it last.
    HostMismatch,
    /// Another host has it now.
    HostActive {
        /// Its name.
        hostname: String,
        /// Its id.
        hostid: u64,
    },
    /// It uses features this implementation lacks.
    UnsupportedFeatures(Vec<String>),
    /// It has a version without feature flags.
    OldVersion,
    /// A device is excluded for its faults; the others make up for it.
    FaultedDevice,
    /// The same, and nothing replaces it.
    FaultedDeviceUnreplicated,
    /// A resilver is under way.
    Resilvering,
    /// A device is offline.
    OfflineDevice,
    /// A device was removed from the running system.
    RemovedDevice,
    /// Nothing can be written, and clients wait.
    SuspendedWaiting,
    /// Nothing can be written, and clients are told so.
    SuspendedFailing,
    /// Features this implementation knows are not enabled.
    FeaturesDisabled,
    /// The metadata cannot be opened, with the reason.
    Unopenable(String),
}

/// What to tell about a problem. Lines after the first begin with a tab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The `status:` text.
    pub status: String,
    /// The `action:` text.
    pub action: Option<String>,
    /// Message id, for the `see:` line.
    pub message_id: Option<&'static str>,
}

/// Where messages are explained.
pub const MESSAGE_URL: &str = "https://openzfs.github.io/openzfs-docs/msg/";

/// What devices alone tell.
pub(super) fn of_devices(status: &PoolStatus) -> Option<Problem> {
    let (mut faulted, mut missing, mut broken, mut failing, mut offline, mut removed) = Default::default();
    let mut newer = false;
    let mut look = |vdev: &VdevStatus| {
        let errors = vdev.errors;
        failing |= errors.read + errors.write + errors.checksum > 0 || vdev.state == State::Degraded;
        match (vdev.state, vdev.aux) {
            (State::Faulted, _) => faulted = true,
            (State::CantOpen, Aux::OpenFailed | Aux::BadGuidSum) => missing = true,
            (State::CantOpen, Aux::NewerState) => newer = true,
            (State::CantOpen, _) => broken = true,
            (State::Offline, _) => offline = true,
            (State::Removed, _) => removed = true,
            _ => {}
        }
    };
    walk(&status.root, &mut look);
    // Not the spares, as with OpenZFS: that one is away is said when it is wanted.
    status.l2cache.iter().for_each(|cache| walk(cache, &mut look));
    let dead = status.state == State::CantOpen;
    let unknown_top = status.root.children.iter().any(|top| top.type_word == "missing");
    Some(match () {
        () if dead && unknown_top => Problem::BadGuidSum,
        () if dead && faulted => Problem::FaultedDeviceUnreplicated,
        () if dead && missing => Problem::MissingDeviceUnreplicated,
        () if dead && broken => Problem::CorruptLabelUnreplicated,
        () if newer => Problem::NewerDevice,
        () if dead => Problem::CorruptPool,
        () if status.error_count > 0 => Problem::CorruptData,
        () if faulted => Problem::FaultedDevice,
        () if missing => Problem::MissingDevice,
        () if broken => Problem::CorruptLabel,
        () if failing => Problem::FailingDevice,
        () if offline => Problem::OfflineDevice,
        () if removed => Problem::RemovedDevice,
        () => return None,
    })
}

/// Leaves whose state matters: what happens to a device that is being replaced is being dealt with.
fn walk(vdev: &VdevStatus, visit: &mut dyn FnMut(&VdevStatus)) {
    match &vdev.children[..] {
        _ if vdev.type_word == "replacing" => {}
        [] if vdev.type_word == "root" => {}
        [] => visit(vdev),
        children => children.iter().for_each(|child| walk(child, visit)),
    }
}

/// What an open pool tells besides.
pub(super) fn of_pool(status: &PoolStatus, pool: &Pool, resilvering: bool) -> Option<Problem> {
    if resilvering {
        return Some(Problem::Resilvering);
    }
    of_devices(status).or_else(|| lacks_features(pool.features(), pool).then_some(Problem::FeaturesDisabled))
}

/// Whether features are not enabled that a pool created here has. A pool with a `compatibility` property lacks what its
/// administrator chose to lack.
fn lacks_features(enabled: &[FeatureState], pool: &Pool) -> bool {
    let chosen = pool.config().str("compatibility").is_some_and(|set| set != "off");
    !chosen && CREATED_WITH.iter().any(|guid| enabled.iter().all(|known| known.guid != *guid))
}

impl Problem {
    fn message_id(&self) -> Option<&'static str> {
        Some(match self {
            Self::MissingDevice => "ZFS-8000-2Q",
            Self::MissingDeviceUnreplicated => "ZFS-8000-3C",
            Self::CorruptLabel => "ZFS-8000-4J",
            Self::CorruptLabelUnreplicated => "ZFS-8000-5E",
            Self::BadGuidSum => "ZFS-8000-6X",
            Self::CorruptPool | Self::Unopenable(_) => "ZFS-8000-72",
            Self::CorruptData => "ZFS-8000-8A",
            Self::FailingDevice => "ZFS-8000-9P",
            Self::HostMismatch | Self::HostActive { .. } => "ZFS-8000-EY",
            Self::SuspendedWaiting => "ZFS-8000-HC",
            Self::SuspendedFailing => "ZFS-8000-JQ",
            _ => return None,
        })
    }

    /// What `zpool status` says about it.
    #[must_use]
    pub fn in_status(&self) -> Advice {
        let (status, action) = match self {
            Self::MissingDevice => (
                "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to continue functioning in a degraded state.",
                "Attach the missing device and online it using 'zpool online'.",
            ),
            Self::MissingDeviceUnreplicated | Self::BadGuidSum => (
                "One or more devices could not be opened.  There are insufficient\n\treplicas for the pool to continue functioning.",
                "Attach the missing device and online it using 'zpool online'.",
            ),
            Self::CorruptLabel => (
                "One or more devices could not be used because the label is missing or\n\tinvalid.  Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.",
                "Replace the device using 'zpool replace'.",
            ),
            Self::CorruptLabelUnreplicated => (
                "One or more devices could not be used because the label is missing \n\tor invalid.  There are insufficient replicas for the pool to continue\n\tfunctioning.",
                "Destroy and re-create the pool from\n\ta backup source.",
            ),
            Self::NewerDevice => (
                "One or more devices have a newer state of the pool than the others and\n\tare not used: what was acknowledged there may be nowhere else.",
                "Decide which of the two is wanted before a device is cleared or\n\treplaced; 'millpond alert status' and docs/drives.md say how.",
            ),
            Self::CorruptPool | Self::Unopenable(_) => (
                "The pool metadata is corrupted and the pool cannot be opened.",
                "Destroy and re-create the pool from\n\ta backup source.",
            ),
            Self::CorruptData => (
                "One or more devices has experienced an error resulting in data\n\tcorruption.  Applications may be affected.",
                "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from backup.",
            ),
            Self::FailingDevice => (
                "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made to correct the error.  Applications are unaffected.",
                "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool clear' or replace the device with 'zpool replace'.",
            ),
            Self::HostMismatch | Self::HostActive { .. } => (
                "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool was previously imported into a system with a different hostid,\n\tand then was verbatim imported into this system.",
                "Export this pool on all systems on which it is imported.\n\tThen import it to correct the mismatch.",
            ),
            Self::UnsupportedFeatures(_) => (
                "The pool cannot be accessed on this system because it uses the\n\tfollowing feature(s) not supported on this system:",
                "Access the pool from a system that supports the required feature(s),\n\tor restore the pool from backup.",
            ),
            Self::OldVersion => (
                "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used, but some features are unavailable.",
                "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\tpool will no longer be accessible on software that does not support\n\tfeature flags.",
            ),
            Self::FaultedDevice => (
                "One or more devices are faulted in response to persistent errors.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.",
                "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
            ),
            Self::FaultedDeviceUnreplicated => (
                "One or more devices are faulted in response to persistent errors.  There are insufficient replicas for the pool to\n\tcontinue functioning.",
                "Destroy and re-create the pool from a backup source.  Manually marking the device\n\trepaired using 'zpool clear' may allow some data to be recovered.",
            ),
            Self::Resilvering => (
                "One or more devices is currently being resilvered.  The pool will\n\tcontinue to function, possibly in a degraded state.",
                "Wait for the resilver to complete.",
            ),
            Self::OfflineDevice => (
                "One or more devices has been taken offline by the administrator.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.",
                "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
            ),
            Self::RemovedDevice => (
                "One or more devices has been removed by the administrator.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.",
                "Online the device using zpool online' or replace the device with\n\t'zpool replace'.",
            ),
            Self::SuspendedWaiting | Self::SuspendedFailing => (
                "One or more devices are faulted in response to IO failures.",
                "Make sure the affected devices are connected, then run 'zpool clear'.",
            ),
            Self::FeaturesDisabled => (
                "Some supported and requested features are not enabled on the pool.\n\tThe pool can still be used, but some features are unavailable.",
                "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no longer be accessible by software that does not support\n\tthe features. See zpool-features(7) for details.",
            ),
        };
        self.advice(status.to_owned(), Some(action.to_owned()))
    }

    /// What `zpool import` says about it in its list; `state` is that of the pool.
    #[must_use]
    pub fn in_import(&self, state: State) -> Advice {
        let status = match self {
            Self::MissingDevice | Self::MissingDeviceUnreplicated | Self::BadGuidSum => {
                "One or more devices are missing from the system."
            }
            Self::CorruptLabel | Self::CorruptLabelUnreplicated => {
                "One or more devices contains corrupted data."
            }
            Self::NewerDevice => "One or more devices have a newer state of the pool.",
            Self::CorruptData => "The pool data is corrupted.",
            Self::OfflineDevice => "One or more devices are offlined.",
            Self::RemovedDevice | Self::FailingDevice => "One or more devices are removed.",
            Self::CorruptPool | Self::Unopenable(_) => "The pool metadata is corrupted.",
            Self::OldVersion => "The pool is formatted using a legacy on-disk version.",
            Self::FeaturesDisabled => {
                "Some supported features are not enabled on the pool.\n\t(Note that they may be intentionally disabled if the\n\t'compatibility' property is set.)"
            }
            Self::UnsupportedFeatures(features) => {
                let mut text =
                    "The pool uses the following feature(s) not supported on this system:".to_owned();
                features.iter().for_each(|feature| text.push_str(&format!("\n\t{feature}")));
                return self.advice(text, Some(self.import_action(state)));
            }
            Self::HostActive { .. } => "The pool is currently imported by another system.",
            Self::HostMismatch => "The pool was last accessed by another system.",
            Self::FaultedDevice | Self::FaultedDeviceUnreplicated => "One or more devices are faulted.",
            Self::Resilvering => "One or more devices were being resilvered.",
            Self::SuspendedWaiting | Self::SuspendedFailing => "One or more devices are faulted.",
        };
        self.advice(status.to_owned(), Some(self.import_action(state)))
    }

    fn import_action(&self, state: State) -> String {
        match (state, self) {
            (State::Healthy, Self::OldVersion | Self::FeaturesDisabled) => {
                "The pool can be imported using its name or numeric identifier, though\n\tsome features will not be available without an explicit 'zpool upgrade'.".to_owned()
            }
            (State::Healthy, Self::HostMismatch) => {
                "The pool can be imported using its name or numeric identifier and\n\tthe '-f' flag.".to_owned()
            }
            (State::Healthy, _) => IMPORTABLE.to_owned(),
            (State::Degraded, _) => {
                "The pool can be imported despite missing or damaged devices.  The\n\tfault tolerance of the pool may be compromised if imported.".to_owned()
            }
            (_, Self::UnsupportedFeatures(_)) => {
                "The pool cannot be imported. Access the pool on a system that supports\n\tthe required feature(s), or recreate the pool from backup.".to_owned()
            }
            (_, Self::HostActive { hostname, hostid }) => {
                format!("The pool must be exported from {hostname} (hostid={hostid:x})\n\tbefore it can be safely imported.")
            }
            (_, Self::MissingDevice | Self::MissingDeviceUnreplicated | Self::BadGuidSum) => {
                "The pool cannot be imported. Attach the missing\n\tdevices and try again.".to_owned()
            }
            _ => "The pool cannot be imported due to damaged devices or data.".to_owned(),
        }
    }

    fn advice(&self, status: String, action: Option<String>) -> Advice {
        Advice { status, action, message_id: self.message_id() }
    }
}

/// The `action:` of `zpool import` for a pool without problems.
pub const IMPORTABLE: &str = "The pool can be imported using its name or numeric identifier.";
