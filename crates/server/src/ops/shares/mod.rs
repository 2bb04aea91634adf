//! `millpond share`: targets, LUNs, portals, access and credentials, kept with the pool ([`crate::shares`]).
//!
//! What is to be destroyed or taken away must be there, and a target that is created must not: a name that was mistyped is
//! not taken for work that is done. What is added as it is already changes nothing. A refusal says what helps.

use std::{collections::BTreeMap, net::SocketAddr};

use engine::dsl::{self, Properties, Stored};
use pool::dsl::{DatasetKind, HeadKind};
use serde::{Deserialize, Serialize};

use super::{
    Answer, Assignment, Failure,
    cut_off::{self, Reach, Setting, clients_use},
    cx::Cx,
    held::Held,
    properties::lookup,
    request::is_default,
};
use crate::{
    host::chain,
    serving::Serving,
    shares::{Credential, PortalConfig, option, property, to_text},
};

mod now;
mod plan;
#[cfg(test)]
mod tests;

pub(super) use now::Now;
use plan::{Planned, plan};

/// What `millpond share` changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ShareChange {
    /// `target create`
    TargetCreate {
        /// iSCSI name.
        target: String,
    },
    /// `target destroy`
    TargetDestroy {
        /// iSCSI name.
        target: String,
        /// Although initiators are logged in.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `target set`; what is not said stays.
    TargetSet {
        /// iSCSI name.
        target: String,
        /// Tags of portal groups; an empty list: all.
        #[serde(default, skip_serializing_if = "is_default")]
        groups: Option<Vec<u16>>,
        /// Views without a target group put LUNs here.
        #[serde(default, skip_serializing_if = "is_default")]
        default: Option<bool>,
    },
    /// `lun add`
    LunAdd {
        /// iSCSI name.
        target: String,
        /// Volume or volume snapshot.
        volume: String,
        /// Number; the lowest free one without.
        #[serde(default, skip_serializing_if = "is_default")]
        lun: Option<u16>,
    },
    /// `lun remove`
    LunRemove {
        /// iSCSI name.
        target: String,
        /// Volume or snapshot, or the number.
        disk: String,
    },
    /// `portal add`
    PortalAdd {
        /// `ADDRESS:PORT`
        address: SocketAddr,
        /// Portal group tag.
        group: u16,
        /// Although initiators came in there in another group.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `portal remove`
    PortalRemove {
        /// `ADDRESS:PORT`
        address: SocketAddr,
        /// Although initiators came in there that would be in another group.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
    /// `access allow` and `access deny`
    Access {
        /// iSCSI name; discovery without.
        #[serde(default, skip_serializing_if = "is_default")]
        target: Option<String>,
        /// Added, or taken away.
        allow: bool,
        /// Names, or beginnings with a `*` behind; `*` alone: all.
        #[serde(default, skip_serializing_if = "is_default")]
        initiators: Vec<String>,
        /// `192.0.2.0/24`; `*`: all.
        #[serde(default, skip_serializing_if = "is_default")]
        networks: Vec<String>,
    },
    /// `chap set`: one more credential, or other secrets for a name.
    ChapSet {
        /// iSCSI name; discovery without.
        #[serde(default, skip_serializing_if = "is_default")]
        target: Option<String>,
        /// It.
        credential: Credential,
    },
    /// `chap clear`
    ChapClear {
        /// iSCSI name; discovery without.
        #[serde(default, skip_serializing_if = "is_default")]
        target: Option<String>,
        /// Of this name only.
        #[serde(default, skip_serializing_if = "is_default")]
        user: Option<String>,
    },
    /// `set`: options of a volume, or of all below a file system. An empty value: as above it.
    Options {
        /// Dataset.
        dataset: String,
        /// `offer`, `block`, `write-cache`, `thin-threshold`.
        options: Vec<Assignment>,
        /// Although clients lose their disk or export by it, or have a write cache that they do not know of.
        #[serde(default, skip_serializing_if = "is_default")]
        force: bool,
    },
}

impl ShareChange {
    /// What cannot be done if it is refused.
    fn sentence(&self) -> String {
        let of = |target: &Option<String>| target.clone().unwrap_or_else(|| "discovery".to_owned());
        match self {
            Self::TargetCreate { target } => format!("cannot create target '{target}'"),
            Self::TargetDestroy { target, .. } => format!("cannot destroy target '{target}'"),
            Self::TargetSet { target, .. } => format!("cannot change target '{target}'"),
            Self::LunAdd { target, volume, .. } => format!("cannot add '{volume}' to target '{target}'"),
            Self::LunRemove { target, disk } => format!("cannot remove '{disk}' from target '{target}'"),
            Self::PortalAdd { address, .. } => format!("cannot add portal {address}"),
            Self::PortalRemove { address, .. } => format!("cannot remove portal {address}"),
            Self::Access { target, .. } => format!("cannot change who may use '{}'", of(target)),
            Self::ChapSet { target, .. } | Self::ChapClear { target, .. } => {
                format!("cannot change the credentials of '{}'", of(target))
            }
            Self::Options { dataset, .. } => format!("cannot set options of '{dataset}'"),
        }
    }
}

/// What is to be written.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    /// Properties of the pool; empty: removed.
    pool: Properties,
    /// Properties of datasets; none: no longer set there.
    datasets: BTreeMap<String, BTreeMap<String, Option<String>>>,
}

impl Edits {
    /// A property of the pool. Nothing in particular is kept as an empty JSON object or list where it must be there.
    pub(super) fn pool(&mut self, name: String, value: &impl Serialize) -> Result<(), String> {
        self.pool.insert(name, Stored::Text(to_text(value)?));
        Ok(())
    }

    fn remove(&mut self, name: String) {
        self.pool.insert(name, Stored::Text(String::new()));
    }

    pub(super) fn dataset(&mut self, dataset: &str, name: &str, value: Option<String>) {
        self.datasets.entry(dataset.to_owned()).or_default().insert(name.to_owned(), value);
    }
}

/// Does it, and lets what is served follow.
pub(super) async fn apply(
    cx: &Cx<'_>,
    held: &Held,
    what: &str,
    edits: Edits,
) -> Result<Vec<String>, Failure> {
    write(cx, held, what, edits).await?;
    Ok(cx.served(held).await)
}

async fn write(cx: &Cx<'_>, held: &Held, what: &str, edits: Edits) -> Result<(), Failure> {
    cx.change(held, what, move |cx| {
        Box::pin(async move {
            if !edits.pool.is_empty() {
                dsl::set_pool(cx, &edits.pool).await?;
            }
            for (dataset, values) in &edits.datasets {
                let mut set = Properties::new();
                for (name, value) in values {
                    match value {
                        Some(text) => drop(set.insert(name.clone(), Stored::Text(text.clone()))),
                        None => dsl::inherit(cx, dataset, name, false).await?,
                    }
                }
                if !set.is_empty() {
                    dsl::set(cx, dataset, &set).await?;
                }
            }
            Ok(())
        })
    })
    .await
}

/// `millpond share …`
pub(crate) async fn change(cx: &Cx<'_>, pool: &str, change: ShareChange) -> Result<Answer, Failure> {
    let what = change.sentence();
    let held = cx.host.writable(pool).await.map_err(|error| error.of_pool(pool))?;
    let view = held.view();
    let now = Now::read(&view).await.map_err(|why| Failure::because(&what, why))?;
    if let ShareChange::LunAdd { volume, .. } = &change {
        let dataset = lookup(&view, volume).await?;
        if let Some(error) = dataset.unread() {
            return Err(Failure::because(&what, chain(&error)));
        }
        if dataset.head_kind() != HeadKind::Volume || dataset.kind() == DatasetKind::Bookmark {
            return Err(Failure::because(&what, "only volumes and their snapshots can be LUNs"));
        }
        free_for_lun(cx, &now, volume).map_err(|why| Failure::because(&what, why))?;
    }
    let serving = cx.host.serving.as_ref();
    if let ShareChange::TargetDestroy { target, force: false } = &change
        && let Some(sessions) = serving.map(|serving| serving.sessions_of(held.name(), target))
        && sessions > 0
    {
        let why =
            format!("{sessions} initiators are logged in ('millpond initiators'); use '-f' to cut them off");
        return Err(Failure::because(&what, why));
    }
    if let Some(serving) = serving
        && let Some(then) = portals_after(&now.shares.portals, &change)
    {
        let spared = spare_portals(serving, held.name(), &now.shares.portals, &then).await;
        spared.map_err(|why| Failure::because(&what, why))?;
    }
    let mut said: Vec<String> = Vec::new();
    if let ShareChange::Options { dataset, options, force } = &change {
        let found = lookup(&view, dataset).await?;
        let is_busy = || serving.is_some_and(|serving| !serving.clients_below(dataset, false).is_empty());
        if options.iter().any(|(name, _)| name == "block") && is_busy() {
            let why = "initiators are logged in: a disk cannot change its block size under them";
            return Err(Failure::because(&what, why));
        }
        for ours in [property::OFFER, property::WRITE_CACHE] {
            let is_meant = |name: &str| ours.strip_prefix(property::PREFIX) == Some(name);
            let Some((_, text)) = options.iter().rev().find(|(name, _)| is_meant(name)) else { continue };
            let text = Some(text.as_str()).filter(|text| !text.is_empty());
            // What makes no sense is refused for that.
            if text.is_some_and(|text| option(ours, text).is_err()) {
                continue;
            }
            let setting = Setting::Ours(ours, text);
            let spared = cut_off::spare(cx, &view, &found, setting, Reach::default(), *force).await;
            said.extend(spared.map_err(|why| Failure::because(&what, why))?);
        }
    }
    let forced = match &change {
        ShareChange::PortalAdd { address, force: true, .. } => Some(*address),
        _ => None,
    };
    let planned = plan(&now, change).map_err(|why| Failure::because(&what, why))?;
    let Planned { edits, lines, mut warnings } = planned;
    if let Some(edits) = edits {
        write(cx, &held, &what, edits).await?;
    }
    if let (Some(address), Some(serving)) = (forced, serving) {
        serving.portals().give(held.name(), address).await;
    }
    warnings.extend(said);
    // Also where the pool said so already: it may not be so, and why is said.
    warnings.extend(cx.served(&held).await);
    Ok(Answer { lines, warnings, ..Answer::default() })
}

/// A pool's portals after a change of them that is not to be done whoever came in there.
fn portals_after(now: &[PortalConfig], change: &ShareChange) -> Option<Vec<PortalConfig>> {
    let (address, new) = match change {
        ShareChange::PortalAdd { address, group, force: false } => {
            (address, Some(PortalConfig { address: *address, group: *group }))
        }
        ShareChange::PortalRemove { address, force: false } => (address, None),
        _ => return None,
    };
    let others = now.iter().filter(|portal| portal.address != *address).cloned();
    Some(others.chain(new).collect())
}

/// Refuses other portals of a pool than it has where initiators came in who would not have their reservations when they log in
/// again.
///
/// # Errors
/// How many they are, and where.
pub(super) async fn spare_portals(
    serving: &Serving,
    pool: &str,
    now: &[PortalConfig],
    then: &[PortalConfig],
) -> Result<(), String> {
    for PortalConfig { address, group } in then.iter().filter(|portal| !now.contains(portal)) {
        let sessions = serving.portals().sessions_of_others(*address, *group);
        if sessions > 0 {
            return Err(format!(
                "portal {address}: {sessions} initiators came in there in another portal group ('millpond initiators'), and would \
                 not have their reservations in this one when they log in again; use '-f' of 'millpond share portal add' to change \
                 it"
            ));
        }
    }
    let is_gone = |portal: &&PortalConfig| then.iter().all(|other| other.address != portal.address);
    for PortalConfig { address, .. } in now.iter().filter(is_gone) {
        let sessions = serving.portals().sessions_of_others_without(pool, *address).await;
        if sessions > 0 {
            return Err(format!(
                "portal {address}: {sessions} initiators came in there in another portal group ('millpond initiators') than it has \
                 without this pool, and would not have their reservations when they log in again; use '-f' of 'millpond share portal \
                 remove' to remove it"
            ));
        }
    }
    Ok(())
}

/// A volume that becomes a LUN is no longer what it was offered as: nobody may be using it as that.
pub(super) fn free_for_lun(cx: &Cx<'_>, now: &Now, volume: &str) -> Result<(), String> {
    let is_managed = now.volumes.get(volume).is_some_and(|share| share.managed);
    let clients = cx.host.serving.as_ref().map_or(0, |serving| serving.clients_below(volume, false).len());
    match clients {
        _ if is_managed => Ok(()),
        0 => Ok(()),
        clients => Err(format!(
            "{} it, or its snapshots, as they are offered now ('millpond initiators'): disconnect them first",
            clients_use(clients)
        )),
    }
}
