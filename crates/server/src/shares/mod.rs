//! What is offered to whom, as the pool keeps it: targets, portals, access, LUNs.
//!
//! ```text
//!   pool      org.millpond:target:IQN   who may use the target, through which portal groups     JSON
//!             org.millpond:chap:IQN     its credentials; without :IQN those of discovery        JSON, secrets in clear text
//!             org.millpond:portals      where the pool wants to be reached                      JSON
//!             org.millpond:discovery    who may discover                                        JSON
//!   volume    org.millpond:lun          "IQN NUMBER"                   counts where it was set, is never inherited
//!             org.millpond:lu           its name for stmfadm, if it has one                     JSON
//!             org.millpond:offer, block, write-cache, thin-threshold   as any property: inherited, or set here
//! ```
//!
//! These are user properties: OpenZFS keeps them and does not mind them, a rollback does not touch them, a rename takes
//! them along, a clone does not get its origin's (but is closed if that was, and the same kind of disk), and a received copy does not take its
//! source's LUN (values from a stream do not count for `lun` and `lu`). With nothing set everything is offered to everybody who reaches the server.
//!
//! What cannot be understood closes a door and never opens one: a target whose settings are unreadable is not there, a
//! volume whose settings are is not offered.

pub(crate) mod check;
mod config;
mod portals;
mod read;

/// Highest LUN.
pub use iscsi::LUN_MAX;

#[cfg(test)]
pub(crate) use self::read::TargetShare;
pub use self::{
    config::{
        Credential, Secret,
        property::{is_secret, without_secret},
    },
    read::report,
};
pub(crate) use self::{
    config::{
        LogicalUnitName, Offering, Place, PortalConfig, Rule, TargetConfig, Threshold, initiator, option,
        portal_groups, property, to_text,
    },
    portals::{Portals, take_covered},
    read::{DiscoveryShare, Plan, PoolShares, VOLMODE_NONE, VolumeShare, naa, set_at},
};
