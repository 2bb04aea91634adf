//! Who is offered what, as values: the shape of `/v1/share` and of `millpond share list`.
//!
//! No secret is in here.

use serde::{Deserialize, Serialize};

/// Answer of `/v1/share`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareList {
    /// Pools, by name.
    pub pools: Vec<PoolShares>,
    /// Pools that did not answer or could not be opened, by name: what they have is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<SilentPool>,
}

/// A pool that did not answer, or could not be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentPool {
    /// Its name.
    pub pool: String,
    /// Why, and what helps.
    pub problem: String,
}

/// What one pool keeps about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolShares {
    /// Name of the pool.
    pub pool: String,
    /// Targets that were set up, by name.
    pub targets: Vec<Target>,
    /// Where the pool wants to be reached.
    pub portals: Vec<Portal>,
    /// Who may discover, if that is restricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<Access>,
    /// Volumes, and those snapshots that have a LUN.
    pub volumes: Vec<Volume>,
    /// What could not be read or understood, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// `stmfadm add-view` without a target group puts LUNs here.
    pub default: bool,
    /// Tags of the portal groups through which it is reached; all if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<u16>>,
    /// Who may log in.
    pub access: Access,
    /// Its disks.
    pub luns: Vec<Lun>,
    /// Initiators logged in now, if a daemon answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
}

/// Who may come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Names of initiators; one that ends in `*` means all that begin so. Nothing said: any. An empty list: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiators: Option<Vec<String>>,
    /// Where from. Nothing said: anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// Credentials, one of which must be proven; without any, none is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<Chap>,
}

/// A credential without its secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chap {
    /// The initiator's name for CHAP.
    pub user: String,
    /// The target's, if it proves itself, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
}

/// A disk of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lun {
    /// Its number.
    pub lun: u16,
    /// The volume or snapshot.
    pub volume: String,
    /// What hosts know it by: 32 hexadecimal digits.
    pub naa: String,
}

/// A portal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portal {
    /// Address and port.
    pub address: String,
    /// Portal group tag.
    pub group: u16,
    /// Whether a daemon listens there, if one answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<bool>,
    /// Why it does not, or in which other group it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// How a volume is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Dataset name.
    pub name: String,
    /// Bytes; 0 of a snapshot that is no LUN, and where they cannot be read, which is among the problems.
    pub size: u64,
    /// What hosts know it by.
    pub naa: String,
    /// The target it is a LUN of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its number there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// `auto`, `all`, `iscsi`, `nbd`, `none`.
    pub offer: String,
    /// Name of the target of its own that it is offered as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_target: Option<String>,
    /// Offered over NBD.
    pub nbd: bool,
    /// Bytes of a logical block: 512 (512e) or 4096 (4Kn).
    pub block: u32,
    /// Whether initiators find the write cache on.
    pub write_cache: bool,
    /// `auto`, `none`, bytes, or a share of its size.
    pub thin_threshold: String,
    /// Its name for `stmfadm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lu: Option<LogicalUnit>,
    /// Why it is not offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What `stmfadm` calls a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogicalUnit {
    /// 32 hexadecimal digits.
    pub guid: String,
    /// `/dev/zvol/rdsk/tank/vm1`
    pub source: String,
    /// Deleted, and can be imported again.
    pub deleted: bool,
}
