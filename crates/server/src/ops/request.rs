//! What can be asked for: every command that changes something as a value, as it goes through the control socket.

use serde::{Deserialize, Serialize};

use super::{LuChange, ShareChange};

/// A property and its value as typed.
pub type Assignment = (String, String);

/// Whether a field says nothing. It is left out then: a daemon of a version that does not know it refuses it, whatever it says.
pub(super) fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

/// A command that changes something (or reads what only a pool's owner can: [`Operation::History`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Operation {
    /// `zpool create`
    PoolCreate(PoolCreate),
    /// `zpool destroy`
    PoolDestroy {
        /// Which pool.
        pool: String,
        /// Although clients are connected.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `zpool export`
    PoolExport {
        /// Which pool.
        pool: String,
        /// Although clients are connected.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `zpool import NAME`
    PoolImport(PoolImport),
    /// `zpool add`
    PoolAdd(PoolAdd),
    /// `zpool remove`
    PoolRemove {
        /// Which pool.
        pool: String,
        /// Log, cache and spare devices, as `zpool status` shows them, or their paths.
        devices: Vec<String>,
        /// Only find out whether they can be.
        #[serde(default, skip_serializing_if = "is_default")]
        dry_run: bool,
    },
    /// `zpool set`
    PoolSet {
        /// Which pool.
        pool: String,
        /// Property and value.
        property: Assignment,
    },
    /// `zpool upgrade`
    PoolUpgrade {
        /// Which pool.
        pool: String,
    },
    /// `zpool sync`
    PoolSync {
        /// Which pool.
        pool: String,
    },
    /// `zpool offline`
    DeviceOffline {
        /// Which pool.
        pool: String,
        /// As `zpool status` shows it, its path, or its guid.
        device: String,
        /// Forgotten when the pool is opened again.
        #[serde(default, skip_serializing_if = "is_default")]
        temporary: bool,
        /// As if it had failed.
        #[serde(default, skip_serializing_if = "is_default")]
        fault: bool,
    },
    /// `zpool online`
    DeviceOnline {
        /// Which pool.
        pool: String,
        /// Which device.
        device: String,
        /// Use all of it, if it has grown.
        #[serde(default, skip_serializing_if = "is_default")]
        expand: bool,
    },
    /// `zpool attach`
    DeviceAttach(DeviceNew),
    /// `zpool replace`
    DeviceReplace(DeviceNew),
    /// `zpool detach`
    DeviceDetach {
        /// Which pool.
        pool: String,
        /// Which device.
        device: String,
    },
    /// `zpool clear`
    PoolClear {
        /// Which pool.
        pool: String,
        /// Only of this device.
        #[serde(default, skip_serializing_if = "is_default")]
        device: Option<String>,
    },
    /// `zpool reopen`
    PoolReopen {
        /// Which pool.
        pool: String,
    },
    /// `zpool scrub`, `zpool resilver`
    PoolScan {
        /// Which pool.
        pool: String,
        /// What of it.
        scan: ScanWish,
    },
    /// `zpool initialize`, `zpool trim`
    DeviceSweep {
        /// Which pool.
        pool: String,
        /// Which devices; all that can, if none is named.
        #[serde(default, skip_serializing_if = "is_default")]
        devices: Vec<String>,
        /// Which.
        sweep: SweepWish,
        /// What of it.
        #[serde(default, skip_serializing_if = "is_default")]
        action: SweepAction,
        /// Bytes per second of each device at most.
        #[serde(default, skip_serializing_if = "is_default")]
        rate: Option<u64>,
    },
    /// `zpool export -F`: what was not written is given up.
    PoolAbandon {
        /// Which pool.
        pool: String,
    },
    /// `zpool history`: answered in [`Answer::history`](super::Answer::history).
    History {
        /// Which pool.
        pool: String,
    },
    /// `zfs create -V`
    CreateVolume(CreateVolume),
    /// `zfs create`
    CreateFilesystem {
        /// Full name.
        name: String,
        /// Properties.
        #[serde(default, skip_serializing_if = "is_default")]
        properties: Vec<Assignment>,
        /// Create missing parents, and be content if it exists.
        #[serde(default, skip_serializing_if = "is_default")]
        parents: bool,
        /// Only find out whether it can be.
        #[serde(default, skip_serializing_if = "is_default")]
        dry_run: bool,
    },
    /// `zfs set`
    Set {
        /// Which dataset.
        name: String,
        /// Properties, all or none of which take effect.
        properties: Vec<Assignment>,
        /// Although clients lose their disk by it, or have a write cache that they do not know of.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `zfs inherit`
    Inherit {
        /// Which dataset.
        name: String,
        /// Which property.
        property: String,
        /// Those below, too.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
        /// Back to the received value.
        #[serde(default, skip_serializing_if = "is_default")]
        received: bool,
        /// Although clients lose their disk by it, or have a write cache that they do not know of.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `zfs snapshot`: all at once or none.
    Snapshot {
        /// Full names with `@`, in one pool.
        names: Vec<String>,
        /// Of everything below, too.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
        /// User properties.
        #[serde(default, skip_serializing_if = "is_default")]
        properties: Vec<Assignment>,
    },
    /// `zfs destroy` of anything: a dataset, `a@x`, `a@x%y,z`, `a#mark`.
    Destroy(Destroy),
    /// `zfs rollback`
    Rollback {
        /// To which snapshot.
        snapshot: String,
        /// Destroy later snapshots and bookmarks.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
        /// Destroy clones of those, too.
        #[serde(default, skip_serializing_if = "is_default")]
        clones: bool,
    },
    /// `zfs clone`
    Clone {
        /// Of which snapshot.
        snapshot: String,
        /// Full name of the clone.
        name: String,
        /// Properties.
        #[serde(default, skip_serializing_if = "is_default")]
        properties: Vec<Assignment>,
        /// Create missing parents.
        #[serde(default, skip_serializing_if = "is_default")]
        parents: bool,
    },
    /// `zfs promote`
    Promote {
        /// Which clone.
        name: String,
    },
    /// `zfs rename`
    Rename {
        /// From.
        from: String,
        /// To; for a snapshot the part from `@` on is enough.
        to: String,
        /// Create missing parents.
        #[serde(default, skip_serializing_if = "is_default")]
        parents: bool,
        /// The snapshots of this name of everything below, too.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
    },
    /// `zfs hold`
    Hold {
        /// Tag.
        tag: String,
        /// Snapshots, in one pool.
        names: Vec<String>,
        /// The snapshots of these names of everything below, too.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
    },
    /// `zfs release`
    Release {
        /// Tag.
        tag: String,
        /// Snapshots, in one pool.
        names: Vec<String>,
        /// The snapshots of these names of everything below, too.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
    },
    /// `zfs holds`: answered in [`Answer::holds`](super::Answer::holds).
    Holds {
        /// Snapshots, in one pool.
        names: Vec<String>,
        /// The snapshots of these names of everything below, too.
        #[serde(default, skip_serializing_if = "is_default")]
        recursive: bool,
    },
    /// `zfs bookmark`
    Bookmark {
        /// Snapshot or bookmark.
        source: String,
        /// Full name with `#`, or the part from `#` on.
        name: String,
    },
    /// `millpond share …`
    Share {
        /// Which pool.
        pool: String,
        /// What of it.
        change: ShareChange,
    },
    /// `stmfadm …-lu`, `…-view`
    Lu {
        /// Which volume.
        volume: String,
        /// What of it.
        change: LuChange,
    },
}

/// `zpool create`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Name.
    pub pool: String,
    /// Devices, as on the command line: `mirror /a /b log /c`. Absolute paths, or names below `/dev`.
    pub devices: Vec<String>,
    /// `-o`
    #[serde(default, skip_serializing_if = "is_default")]
    pub properties: Vec<Assignment>,
    /// `-O`: of the root dataset.
    #[serde(default, skip_serializing_if = "is_default")]
    pub root_properties: Vec<Assignment>,
    /// Bytes of files that do not exist yet; without it they must.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file_size: Option<u64>,
    /// `-f`
    #[serde(default, skip_serializing_if = "is_default")]
    pub force: bool,
    /// `-n`: only say what it would be.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dry_run: bool,
    /// `-d`: no features but those given with `-o feature@…`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub no_features: bool,
}

/// `zpool import NAME`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolImport {
    /// Name or guid.
    pub pool: String,
    /// Directories and devices to search; absolute.
    #[serde(default, skip_serializing_if = "is_default")]
    pub search: Vec<std::path::PathBuf>,
    /// Another name from now on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub new_name: Option<String>,
    /// Although another host seems to have it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub force: bool,
    /// As of this transaction group: read-only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub txg: Option<u64>,
    /// As of the newest state that can be opened: read-only if that is not the newest.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recover: bool,
    /// Only say whether that would work.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dry_run: bool,
    /// Without log devices that are missing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missing_log: bool,
    /// Destroyed ones.
    #[serde(default, skip_serializing_if = "is_default")]
    pub destroyed: bool,
    /// Never write to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub read_only: bool,
    /// Properties that it gets with this.
    #[serde(default, skip_serializing_if = "is_default")]
    pub properties: Vec<Assignment>,
}

/// `zpool add`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolAdd {
    /// Which pool.
    pub pool: String,
    /// Devices, as for [`PoolCreate`].
    pub devices: Vec<String>,
    /// `-o ashift=`
    #[serde(default, skip_serializing_if = "is_default")]
    pub properties: Vec<Assignment>,
    /// Bytes of files that do not exist yet.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file_size: Option<u64>,
    /// `-f`
    #[serde(default, skip_serializing_if = "is_default")]
    pub force: bool,
    /// `-n`
    #[serde(default, skip_serializing_if = "is_default")]
    pub dry_run: bool,
}

/// `zpool attach` and `zpool replace`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceNew {
    /// Which pool.
    pub pool: String,
    /// The device it joins, or whose place it takes.
    pub device: String,
    /// The new one: a path, a name below `/dev`, or a hot spare of the pool. None: what is in the old one's place now.
    #[serde(default, skip_serializing_if = "is_default")]
    pub new: Option<String>,
    /// `-o ashift=`
    #[serde(default, skip_serializing_if = "is_default")]
    pub properties: Vec<Assignment>,
    /// Whatever is on it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub force: bool,
}

/// What is wanted of scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScanWish {
    /// Begin a scrub, or let a paused one go on.
    Scrub,
    /// Only blocks in the error log.
    ScrubErrors,
    /// Only what was written since the last scrub that went through.
    ScrubNew,
    /// Halt the scrub.
    Pause,
    /// End the scrub.
    Stop,
    /// Begin a resilver anew.
    Resilver,
}

/// What is done with free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SweepWish {
    /// Written over.
    Initialize,
    /// The device is told that it need not keep it.
    Trim,
}

/// What is wanted of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SweepAction {
    /// Begin, or go on.
    #[default]
    Start,
    /// Halt.
    Suspend,
    /// End.
    Cancel,
    /// Forget that it ever was.
    Forget,
}

/// `zfs create -V`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Full name.
    pub name: String,
    /// Bytes; rounded up to whole blocks.
    pub size: u64,
    /// Properties, `volblocksize` among them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub properties: Vec<Assignment>,
    /// Thin: reserve nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sparse: bool,
    /// Create missing parents, and be content if it exists.
    #[serde(default, skip_serializing_if = "is_default")]
    pub parents: bool,
    /// Only find out whether it can be.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dry_run: bool,
}

/// `zfs destroy`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destroy {
    /// A dataset, `a@x`, `a@x%y,z`, or `a#mark`.
    pub name: String,
    /// What is below it; for snapshots: those of these names of everything below.
    #[serde(default, skip_serializing_if = "is_default")]
    pub recursive: bool,
    /// Clones, too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clones: bool,
    /// Snapshots that are held or have clones go when they no longer are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub defer: bool,
    /// Only say what it would be.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dry_run: bool,
    /// Say how much becomes free by it, as if it were only to be said: that reads the lists of all that goes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub measure: bool,
}

/// An operation and who wants it. A key that is not known is refused, because it may have been a condition: `Request` itself
/// cannot say so beside `flatten`, so what it does not know reaches [`Operation`], and that does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What to do.
    #[serde(flatten)]
    pub operation: Operation,
    /// What was typed, for the pool's history; nothing is recorded without it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub command: Option<String>,
    /// User id, for the same purpose.
    #[serde(default, skip_serializing_if = "is_default")]
    pub user: u64,
}

/// The pool of a dataset's name: `tank` of `tank/vm1@monday`.
#[must_use]
pub fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or_default()
}

impl Operation {
    /// What it is about, by the name it was called by; the first, if there are several.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::PoolCreate(PoolCreate { pool: name, .. })
            | Self::PoolImport(PoolImport { pool: name, .. })
            | Self::PoolAdd(PoolAdd { pool: name, .. })
            | Self::PoolDestroy { pool: name, .. }
            | Self::PoolExport { pool: name, .. }
            | Self::PoolRemove { pool: name, .. }
            | Self::PoolSet { pool: name, .. }
            | Self::PoolUpgrade { pool: name }
            | Self::PoolSync { pool: name }
            | Self::DeviceOffline { pool: name, .. }
            | Self::DeviceOnline { pool: name, .. }
            | Self::DeviceAttach(DeviceNew { pool: name, .. })
            | Self::DeviceReplace(DeviceNew { pool: name, .. })
            | Self::DeviceDetach { pool: name, .. }
            | Self::PoolClear { pool: name, .. }
            | Self::PoolReopen { pool: name }
            | Self::PoolScan { pool: name, .. }
            | Self::DeviceSweep { pool: name, .. }
            | Self::PoolAbandon { pool: name }
            | Self::Share { pool: name, .. }
            | Self::History { pool: name }
            | Self::CreateVolume(CreateVolume { name, .. })
            | Self::CreateFilesystem { name, .. }
            | Self::Set { name, .. }
            | Self::Inherit { name, .. }
            | Self::Destroy(Destroy { name, .. })
            | Self::Rollback { snapshot: name, .. }
            | Self::Clone { snapshot: name, .. }
            | Self::Promote { name }
            | Self::Rename { from: name, .. }
            | Self::Bookmark { source: name, .. }
            | Self::Lu { volume: name, .. } => name,
            Self::Snapshot { names, .. }
            | Self::Hold { names, .. }
            | Self::Release { names, .. }
            | Self::Holds { names, .. } => names.first().map_or("", String::as_str),
        }
    }

    /// The pool it is about; of [`Operation::PoolImport`] what it is called before.
    #[must_use]
    pub fn pool(&self) -> &str {
        pool_of(self.subject())
    }

    /// Whether it begins with a pool that nobody has open: such an operation goes to the daemon if there is one.
    #[must_use]
    pub fn brings_a_pool(&self) -> bool {
        matches!(self, Self::PoolCreate(_) | Self::PoolImport(_))
    }

    /// Whether it is there to end a suspension: it waits for no other operation, and is not refused.
    #[must_use]
    pub fn is_remedy(&self) -> bool {
        matches!(
            self,
            Self::PoolClear { .. }
                | Self::PoolReopen { .. }
                | Self::DeviceOnline { .. }
                | Self::PoolAbandon { .. }
        )
    }

    /// Whether it changes nothing, and asks only how its pool was at the last commit: it waits for no other operation, and
    /// none for it. Not one that brings a pool: what a dry run of it opens is to be nobody else's meanwhile.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        match self {
            Self::Holds { .. } | Self::History { .. } => true,
            Self::Destroy(Destroy { dry_run, .. })
            | Self::CreateVolume(CreateVolume { dry_run, .. })
            | Self::CreateFilesystem { dry_run, .. }
            | Self::PoolAdd(PoolAdd { dry_run, .. })
            | Self::PoolRemove { dry_run, .. } => *dry_run,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_after_a_journey_as_json() {
        let request = Request {
            operation: Operation::CreateVolume(CreateVolume {
                name: "tank/vm1".into(),
                size: 10 << 30,
                properties: vec![("volblocksize".into(), "8K".into())],
                sparse: true,
                parents: false,
                dry_run: false,
            }),
            command: Some("zfs create -s -V 10G -b 8K tank/vm1".into()),
            user: 1000,
        };
        let text = serde_json::to_string(&request).unwrap();
        assert!(
            text.starts_with(r#"{"operation":"create-volume","name":"tank/vm1","size":10737418240"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
        let short = r#"{"operation": "snapshot", "names": ["tank/vm1@a"]}"#;
        let request: Request = serde_json::from_str(short).unwrap();
        assert_eq!(request.operation.pool(), "tank");
        assert_eq!(request.command, None);
    }

    /// After an upgrade the new program's `zfs destroy` was refused by the daemon that was still the old one, for a field that
    /// asked for nothing.
    #[test]
    fn what_says_nothing_is_not_sent() {
        for request in [
            r#"{"operation": "pool-create", "pool": "tank", "devices": ["/a"]}"#,
            r#"{"operation": "pool-destroy", "pool": "tank"}"#,
            r#"{"operation": "pool-export", "pool": "tank"}"#,
            r#"{"operation": "pool-import", "pool": "tank"}"#,
            r#"{"operation": "pool-add", "pool": "tank", "devices": ["/a"]}"#,
            r#"{"operation": "pool-remove", "pool": "tank", "devices": ["/a"]}"#,
            r#"{"operation": "pool-set", "pool": "tank", "property": ["comment", ""]}"#,
            r#"{"operation": "pool-upgrade", "pool": "tank"}"#,
            r#"{"operation": "pool-sync", "pool": "tank"}"#,
            r#"{"operation": "device-offline", "pool": "tank", "device": "/a"}"#,
            r#"{"operation": "device-online", "pool": "tank", "device": "/a"}"#,
            r#"{"operation": "device-attach", "pool": "tank", "device": "/a"}"#,
            r#"{"operation": "device-replace", "pool": "tank", "device": "/a"}"#,
            r#"{"operation": "device-detach", "pool": "tank", "device": "/a"}"#,
            r#"{"operation": "pool-clear", "pool": "tank"}"#,
            r#"{"operation": "pool-reopen", "pool": "tank"}"#,
            r#"{"operation": "pool-scan", "pool": "tank", "scan": "scrub"}"#,
            r#"{"operation": "device-sweep", "pool": "tank", "sweep": "trim"}"#,
            r#"{"operation": "pool-abandon", "pool": "tank"}"#,
            r#"{"operation": "history", "pool": "tank"}"#,
            r#"{"operation": "create-volume", "name": "tank/v", "size": 0}"#,
            r#"{"operation": "create-filesystem", "name": "tank/f"}"#,
            r#"{"operation": "set", "name": "tank/v", "properties": []}"#,
            r#"{"operation": "inherit", "name": "tank/v", "property": "compression"}"#,
            r#"{"operation": "snapshot", "names": ["tank/v@a"]}"#,
            r#"{"operation": "destroy", "name": "tank/v"}"#,
            r#"{"operation": "rollback", "snapshot": "tank/v@a"}"#,
            r#"{"operation": "clone", "snapshot": "tank/v@a", "name": "tank/c"}"#,
            r#"{"operation": "promote", "name": "tank/c"}"#,
            r#"{"operation": "rename", "from": "tank/v", "to": "tank/w"}"#,
            r#"{"operation": "hold", "tag": "", "names": []}"#,
            r#"{"operation": "release", "tag": "", "names": []}"#,
            r#"{"operation": "holds", "names": []}"#,
            r##"{"operation": "bookmark", "source": "tank/v@a", "name": "#a"}"##,
            r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "create", "base": ""}}"#,
            r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "delete"}}"#,
            r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "import", "base": ""}}"#,
            r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "modify"}}"#,
            r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "view"}}"#,
            r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "unview"}}"#,
        ] {
            is_sent_as_it_is(request);
        }
        for change in [
            r#"{"what": "target-create", "target": "iqn.a:b"}"#,
            r#"{"what": "target-destroy", "target": "iqn.a:b"}"#,
            r#"{"what": "target-set", "target": "iqn.a:b"}"#,
            // This says something: all portal groups.
            r#"{"what": "target-set", "target": "iqn.a:b", "groups": []}"#,
            r#"{"what": "lun-add", "target": "iqn.a:b", "volume": "tank/v"}"#,
            r#"{"what": "lun-remove", "target": "iqn.a:b", "disk": "0"}"#,
            r#"{"what": "portal-add", "address": "192.0.2.1:3260", "group": 1}"#,
            r#"{"what": "portal-remove", "address": "192.0.2.1:3260"}"#,
            r#"{"what": "access", "allow": false}"#,
            r#"{"what": "chap-set", "credential": {"user": "a", "secret": "123456789012"}}"#,
            r#"{"what": "chap-clear"}"#,
            r#"{"what": "options", "dataset": "tank/v", "options": []}"#,
        ] {
            is_sent_as_it_is(&format!(r#"{{"operation": "share", "pool": "tank", "change": {change}}}"#));
        }
    }

    #[track_caller]
    fn is_sent_as_it_is(request: &str) {
        let written: serde_json::Value = serde_json::from_str(request).unwrap();
        let understood: Request = serde_json::from_str(request).unwrap();
        assert_eq!(serde_json::to_value(&understood).unwrap(), written);
    }

    /// `"dry-run": true` was ignored, and what was only to be looked at destroyed.
    #[test]
    fn a_slip_of_the_pen_in_a_request_is_refused_by_its_name() {
        for (request, key) in [
            (r#"{"operation": "destroy", "name": "tank/v2", "dry-run": true}"#, "dry-run"),
            (r#"{"operation": "destroy", "name": "tank/v2", "dry_run": true, "usr": 7}"#, "usr"),
            (r#"{"operation": "pool-remove", "pool": "tank", "devices": [], "dryrun": true}"#, "dryrun"),
            (r#"{"operation": "pool-scan", "pool": "tank", "scan": "scrub", "wait": true}"#, "wait"),
            (
                r#"{"operation": "share", "pool": "tank", "change":
                    {"what": "target-create", "target": "iqn.2026-11.com.example:a", "group": 1}}"#,
                "group",
            ),
            (
                r#"{"operation": "share", "pool": "tank", "change": {"what": "chap-set", "targt": "iqn.a:b",
                    "credential": {"user": "a", "secret": "123456789012"}}}"#,
                "targt",
            ),
            (
                r#"{"operation": "lu", "volume": "tank/v", "change": {"what": "view", "lun_number": 1}}"#,
                "lun_number",
            ),
        ] {
            let error = serde_json::from_str::<Request>(request).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{key}`")), "{request}: {error}");
        }
        let whole =
            r#"{"operation": "destroy", "name": "tank/v2", "dry_run": true, "command": "x", "user": 7}"#;
        let request: Request = serde_json::from_str(whole).unwrap();
        assert_eq!((request.command.as_deref(), request.user), (Some("x"), 7));
    }
}
