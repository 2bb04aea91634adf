//! `millpond share`: targets, LUNs, portals, access and credentials, kept with the pool ([`crate::shares`]).
//!
//! What is to be destroyed or taken away must be there, and a target that is created must not: a name that was mistyped is
//! not taken for work that is done. What is added as it is already changes nothing. A refusal says what helps.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use engine::dsl::{self, Properties, Stored};
use iscsi::{LUN_MAX, Network, iqn};
use pool::{
    Pool,
    dsl::{DatasetKind, HeadKind},
    props::PoolProperties,
};
use serde::{Deserialize, Serialize};

use super::{
    Answer, Assignment, Failure,
    cut_off::{self, Reach, Setting, clients_use},
    cx::Cx,
    held::Held,
    properties::lookup,
};
use crate::{
    host::chain,
    shares::{
        Credential, Place, PoolShares, PortalConfig, Rule, TargetConfig, VolumeShare, option, property,
        to_text,
    },
};

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
        #[serde(default)]
        force: bool,
    },
    /// `target set`; what is not said stays.
    TargetSet {
        /// iSCSI name.
        target: String,
        /// Tags of portal groups; an empty list: all.
        #[serde(default)]
        groups: Option<Vec<u16>>,
        /// Views without a target group put LUNs here.
        #[serde(default)]
        default: Option<bool>,
    },
    /// `lun add`
    LunAdd {
        /// iSCSI name.
        target: String,
        /// Volume or volume snapshot.
        volume: String,
        /// Number; the lowest free one without.
        #[serde(default)]
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
        #[serde(default)]
        force: bool,
    },
    /// `portal remove`
    PortalRemove {
        /// `ADDRESS:PORT`
        address: SocketAddr,
        /// Although initiators came in there that would be in another group.
        #[serde(default)]
        force: bool,
    },
    /// `access allow` and `access deny`
    Access {
        /// iSCSI name; discovery without.
        #[serde(default)]
        target: Option<String>,
        /// Added, or taken away.
        allow: bool,
        /// Names, or beginnings with a `*` behind; `*` alone: all.
        #[serde(default)]
        initiators: Vec<String>,
        /// `192.0.2.0/24`; `*`: all.
        #[serde(default)]
        networks: Vec<String>,
    },
    /// `chap set`: one more credential, or other secrets for a name.
    ChapSet {
        /// iSCSI name; discovery without.
        #[serde(default)]
        target: Option<String>,
        /// It.
        credential: Credential,
    },
    /// `chap clear`
    ChapClear {
        /// iSCSI name; discovery without.
        #[serde(default)]
        target: Option<String>,
        /// Of this name only.
        #[serde(default)]
        user: Option<String>,
    },
    /// `set`: options of a volume, or of all below a file system. An empty value: as above it.
    Options {
        /// Dataset.
        dataset: String,
        /// `offer`, `block`, `write-cache`, `thin-threshold`.
        options: Vec<Assignment>,
        /// Although clients lose their disk or export by it.
        #[serde(default)]
        force: bool,
    },
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

/// A pool's settings, and those of all its volumes: what a change is decided by.
pub(super) struct Now {
    pub(super) users: BTreeMap<String, String>,
    pub(super) shares: PoolShares,
    pub(super) volumes: BTreeMap<String, VolumeShare>,
    /// Why some of them may be missing in `volumes`, and with them their LUNs.
    pub(super) unlisted: Option<String>,
}

impl Now {
    pub(super) async fn read(view: &Pool) -> Result<Self, String> {
        let unreadable =
            |error| format!("cannot read the properties of '{}': {}", view.name(), chain(&error));
        let users = PoolProperties::users(view).await.map_err(unreadable)?;
        let shares = PoolShares::read(view).await.map_err(unreadable)?;
        let dsl = view.dsl().await.map_err(|error| chain(&error))?;
        let (datasets, unlisted) = dsl.volumes().await.map_err(|error| chain(&error))?;
        let mut now = Self {
            users,
            shares,
            volumes: BTreeMap::new(),
            unlisted: unlisted.first().map(|error| chain(error)),
        };
        for dataset in &datasets {
            let share = VolumeShare::read(dataset).await.map_err(|error| chain(&error));
            now.list(dataset.name(), share);
        }
        Ok(now)
    }

    /// A volume with its settings, or why they cannot be read: that one is as if it were not there, and others can be changed.
    fn list(&mut self, volume: &str, share: Result<VolumeShare, String>) {
        match share {
            Ok(share) => drop(self.volumes.insert(volume.to_owned(), share)),
            Err(why) if self.unlisted.is_none() => self.unlisted = Some(format!("'{volume}': {why}")),
            Err(_) => {}
        }
    }

    /// Why a volume that is there is none of the [`volumes`](Self::volumes), or nothing is known of it.
    pub(super) fn not_listed(&self) -> String {
        match &self.unlisted {
            Some(why) => format!("its settings are not known, because not all volumes can be read ({why})"),
            None => "it is not a volume".to_owned(),
        }
    }

    /// The settings of a target that must be there.
    pub(super) fn target(&self, iqn: &str) -> Result<&TargetConfig, String> {
        match self.shares.targets.get(iqn) {
            Some(target) => Ok(&target.config),
            None if self.users.contains_key(&property::target(iqn)) => Err(self.unreadable(iqn)),
            None => Err(format!(
                "no such target in this pool\nto create it: 'millpond share target create {iqn}'"
            )),
        }
    }

    /// What is said of discovery, which is not to be replaced if it cannot be understood.
    fn discovery(&self) -> Result<(Rule, Vec<Credential>), String> {
        let name = |why: &str| match why.contains(property::DISCOVERY) {
            true => property::DISCOVERY,
            false => property::CHAP,
        };
        match &self.shares.discovery {
            Ok(discovery) => Ok(discovery.clone().unwrap_or_default()),
            Err(why) => Err(format!("{why}\nto give it up: 'zpool set {}= POOL'", name(why))),
        }
    }

    fn unreadable(&self, iqn: &str) -> String {
        let why = self.shares.problems.iter().find(|problem| problem.contains(iqn));
        let why = why.map_or("its settings cannot be understood", String::as_str);
        format!("{why}\nto give them up: 'millpond share target destroy {iqn}'")
    }

    /// What a target's LUNs are.
    pub(super) fn luns(&self, iqn: &str) -> BTreeMap<u16, &str> {
        let placed = |(name, share): (&'_ String, &VolumeShare)| -> Option<(u16, String)> {
            let place = share.place.as_ref().filter(|place| place.target == iqn)?;
            Some((place.lun, name.clone()))
        };
        let numbers: BTreeMap<u16, String> = self.volumes.iter().filter_map(placed).collect();
        let name = |name: &String| self.volumes.get_key_value(name).map(|(name, _)| name.as_str());
        numbers.iter().filter_map(|(lun, volume)| Some((*lun, name(volume)?))).collect()
    }

    /// The lowest number that neither a LUN has nor one that was deleted and may come back.
    pub(super) fn free(&self, iqn: &str) -> Result<u16, String> {
        if let Some(why) = &self.unlisted {
            return Err(format!(
                "which numbers are free is not known, because not all volumes can be read ({why}); say a number"
            ));
        }
        let taken = self.luns(iqn);
        let kept: BTreeSet<u16> = self
            .volumes
            .values()
            .filter_map(|share| share.name.as_ref()?.was.as_ref()?.parse::<Place>().ok())
            .filter(|place| place.target == iqn)
            .map(|place| place.lun)
            .collect();
        let free = |lun: &u16| !taken.contains_key(lun);
        let best = (0..=LUN_MAX).find(|lun| free(lun) && !kept.contains(lun));
        best.or_else(|| (0..=LUN_MAX).find(free)).ok_or_else(|| format!("target {iqn} is full"))
    }

    /// The place for a volume, if it may have it; none if it has it already.
    pub(super) fn place(
        &self,
        volume: &str,
        target: &str,
        lun: Option<u16>,
    ) -> Result<Option<Place>, String> {
        let now = self.volumes.get(volume).ok_or_else(|| self.not_listed())?.place.as_ref();
        if let Some(now) = now {
            if now.target == target && lun.is_none_or(|lun| lun == now.lun) {
                return Ok(None);
            }
            return Err(format!(
                "it is LUN {} of {}: one volume has one place, so that hosts never meet it under two\nto move it, first: \
                 'millpond share lun remove {} {volume}'",
                now.lun, now.target, now.target
            ));
        }
        let luns = self.luns(target);
        let lun = match lun {
            Some(lun) if lun > LUN_MAX => return Err(format!("LUN {lun} is above {LUN_MAX}")),
            Some(lun) => match luns.get(&lun) {
                Some(other) => return Err(format!("LUN {lun} of {target} is {other}")),
                None => lun,
            },
            None => self.free(target)?,
        };
        Ok(Some(Place { target: target.to_owned(), lun }))
    }

    /// Takes the LUN of a volume, or of a snapshot, away; `leaving` are all that lose theirs. What was for some only is not
    /// for everybody because it is no LUN any more: it stays closed until somebody says otherwise. What it is now is a
    /// sentence.
    fn take_away(
        &self,
        volume: &str,
        target: &str,
        leaving: &BTreeSet<&str>,
        edits: &mut Edits,
    ) -> Option<String> {
        let share = self.volumes.get(volume)?;
        edits.dataset(volume, property::LUN, None);
        let of_volume = volume.split_once('@').and_then(|(head, _)| Some((head, self.volumes.get(head)?)));
        let managed = share.name.is_some()
            || of_volume.is_some_and(|(head, share)| {
                share.name.is_some() || share.place.is_some() && !leaving.contains(head)
            });
        let plan = VolumeShare { managed, place: None, ..share.clone() }.plan();
        if plan.own && !share.offer_is_own && self.shares.is_guarded(target) {
            // Who has it over NBD beside its LUN has it still.
            let kept = if share.plan().nbd { "nbd" } else { "none" };
            edits.dataset(volume, property::OFFER, Some(kept.to_owned()));
            let left = if share.plan().nbd { "over NBD only" } else { "to nobody" };
            return Some(format!(
                "{volume} is offered {left} now; 'millpond share set offer= {volume}' offers it to everybody again"
            ));
        }
        let as_what = match (plan.own, plan.nbd) {
            (true, true) => "as a target of its own and over NBD",
            (true, false) => "as a target of its own",
            (false, true) => "over NBD",
            (false, false) => return Some(format!("{volume} is offered to nobody now")),
        };
        Some(format!(
            "{volume} is offered to everybody now, {as_what}; to close it: 'millpond share set offer=none {volume}'"
        ))
    }
}

/// An iSCSI name of a target, in lower case.
fn target_name(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    if !iqn::is_valid(&name) {
        return Err(format!(
            "'{name}' is not an iSCSI name: iqn.YEAR-MONTH.DOMAIN:NAME with letters, digits, '-', '.' and ':', for example \
             iqn.2026-11.com.example:vms"
        ));
    }
    match iqn::dataset(&name) {
        Some(dataset) if dataset.contains('/') => Err(format!(
            "this name is kept for '{dataset}', which has it as long as it has no LUN elsewhere: take another"
        )),
        _ => Ok(name),
    }
}

/// Does it, and lets what is served follow.
pub(super) async fn apply(
    cx: &Cx<'_>,
    held: &Held,
    what: &str,
    edits: Edits,
) -> Result<Vec<String>, Failure> {
    cx.change(held, what, false, move |cx| {
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
    .await?;
    Ok(cx.served(held).await)
}

/// `millpond share …`
pub(crate) async fn change(cx: &Cx<'_>, pool: &str, change: ShareChange) -> Result<Answer, Failure> {
    let what = change.sentence();
    let held = cx.host.writable(pool).await.map_err(|error| error.of_pool(pool))?;
    let view = held.view();
    let now = Now::read(&view).await.map_err(|why| Failure::because(&what, why))?;
    if let ShareChange::LunAdd { volume, .. } = &change {
        let dataset = lookup(&view, volume).await?;
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
    if let ShareChange::PortalAdd { address, group, force: false } = &change
        && !now.shares.portals.contains(&PortalConfig { address: *address, group: *group })
        && let Some(sessions) = serving.map(|serving| serving.portals().sessions_of_others(*address, *group))
        && sessions > 0
    {
        let why = format!(
            "{sessions} initiators came in there in another portal group ('millpond initiators'), and would not have their \
             reservations in this one when they log in again; use '-f' to change it"
        );
        return Err(Failure::because(&what, why));
    }
    if let (ShareChange::PortalRemove { address, force: false }, Some(serving)) = (&change, serving) {
        let sessions = serving.portals().sessions_of_others_without(held.name(), *address).await;
        if sessions > 0 {
            let why = format!(
                "{sessions} initiators came in there in another portal group ('millpond initiators') than it has without this \
                 pool, and would not have their reservations when they log in again; use '-f' to remove it"
            );
            return Err(Failure::because(&what, why));
        }
    }
    if let ShareChange::Options { dataset, options, force } = &change {
        let found = lookup(&view, dataset).await?;
        let is_busy = || serving.is_some_and(|serving| serving.clients_below(dataset, false) > 0);
        if options.iter().any(|(name, _)| name == "block") && is_busy() {
            let why = "initiators are logged in: a disk cannot change its block size under them";
            return Err(Failure::because(&what, why));
        }
        // What makes no sense is refused for that.
        let makes_sense = |text: &str| text.is_empty() || option(property::OFFER, text).is_ok();
        let offer = options.iter().rev().find(|(name, _)| name == "offer");
        if let Some((_, text)) = offer.filter(|(_, text)| makes_sense(text)) {
            let setting = Setting::Ours(property::OFFER, Some(text.as_str()).filter(|text| !text.is_empty()));
            let spared = cut_off::spare(cx, &view, &found, setting, Reach::default(), *force).await;
            spared.map_err(|why| Failure::because(&what, why))?;
        }
    }
    let planned = plan(&now, change).map_err(|why| Failure::because(&what, why))?;
    let Planned { edits, lines, mut warnings } = planned;
    if let Some(edits) = edits {
        warnings.extend(apply(cx, &held, &what, edits).await?);
    }
    Ok(Answer { lines, warnings, ..Answer::default() })
}

/// A volume that becomes a LUN is no longer what it was offered as: nobody may be using it as that.
pub(super) fn free_for_lun(cx: &Cx<'_>, now: &Now, volume: &str) -> Result<(), String> {
    let is_managed = now.volumes.get(volume).is_some_and(|share| share.managed);
    let clients = cx.host.serving.as_ref().map_or(0, |serving| serving.clients_below(volume, false));
    match clients {
        _ if is_managed => Ok(()),
        0 => Ok(()),
        clients => Err(format!(
            "{} it, or its snapshots, as they are offered now ('millpond initiators'): disconnect them first",
            clients_use(clients)
        )),
    }
}

/// What a change comes to.
#[derive(Debug, Default)]
struct Planned {
    /// None: it is so already.
    edits: Option<Edits>,
    lines: Vec<String>,
    warnings: Vec<String>,
}

fn plan(now: &Now, change: ShareChange) -> Result<Planned, String> {
    let mut planned = Planned::default();
    let mut edits = Edits::default();
    match change {
        ShareChange::TargetCreate { target } => {
            let target = target_name(&target)?;
            if now.users.contains_key(&property::target(&target)) {
                now.target(&target)?;
                return Err("this pool has it already".to_owned());
            }
            edits.pool(property::target(&target), &TargetConfig::default())?;
        }
        ShareChange::TargetDestroy { target, .. } => {
            let target = target.to_ascii_lowercase();
            if !now.users.contains_key(&property::target(&target)) {
                return Err("no such target in this pool".to_owned());
            }
            edits.remove(property::target(&target));
            edits.remove(property::chap(Some(&target)));
            let luns = now.luns(&target);
            let volumes: BTreeSet<&str> = luns.values().copied().collect();
            for volume in luns.values() {
                planned.warnings.extend(now.take_away(volume, &target, &volumes, &mut edits));
            }
        }
        ShareChange::TargetSet { groups: None, default: None, .. } => {
            return Err("nothing of it is to be changed: say groups, or whether it is the default".to_owned());
        }
        ShareChange::TargetSet { target, groups, default } => {
            let target = target.to_ascii_lowercase();
            let mut config = now.target(&target)?.clone();
            if let Some(groups) = groups {
                if groups.contains(&0) {
                    return Err("portal group tags are numbers from 1 to 65535".to_owned());
                }
                config.groups = Some(groups).filter(|groups| !groups.is_empty());
            }
            if let Some(default) = default {
                config.default = default;
                // There is one at most.
                for (other, share) in
                    now.shares.targets.iter().filter(|(other, _)| default && **other != target)
                {
                    if share.config.default {
                        let config = TargetConfig { default: false, ..share.config.clone() };
                        edits.pool(property::target(other), &config)?;
                    }
                }
            }
            edits.pool(property::target(&target), &config)?;
        }
        ShareChange::LunAdd { target, volume, lun } => {
            let target = target.to_ascii_lowercase();
            now.target(&target)?;
            let place = now.place(&volume, &target, lun)?;
            let shown = place.as_ref().or_else(|| now.volumes.get(&volume)?.place.as_ref());
            planned
                .lines
                .extend(shown.map(|place| format!("{volume} is LUN {} of {}", place.lun, place.target)));
            let Some(place) = place else { return Ok(planned) };
            edits.dataset(&volume, property::LUN, Some(place.to_string()));
        }
        ShareChange::LunRemove { target, disk } => {
            let target = target.to_ascii_lowercase();
            let luns = now.luns(&target);
            let volume = match disk.parse::<u16>() {
                Ok(lun) => luns.get(&lun).copied(),
                Err(_) => luns.values().copied().find(|volume| *volume == disk),
            };
            let Some(volume) = volume else {
                now.target(&target)?;
                let none = "the target has no such LUN";
                return Err(match &now.unlisted {
                    Some(why) => format!("{none}, as far as volumes can be read ({why})"),
                    None => none.to_owned(),
                });
            };
            let volumes = BTreeSet::from([volume]);
            planned.warnings.extend(now.take_away(volume, &target, &volumes, &mut edits));
        }
        ShareChange::PortalAdd { address, group, force: _ } => {
            if group == 0 || address.port() == 0 {
                return Err("a portal has a port, and a portal group tag from 1 to 65535".to_owned());
            }
            let mut portals = portals(now)?;
            if portals.contains(&PortalConfig { address, group }) {
                return Ok(planned);
            }
            portals.retain(|portal| portal.address != address);
            portals.push(PortalConfig { address, group });
            portals.sort_by_key(|portal| (portal.group, portal.address));
            edits.pool(property::PORTALS.to_owned(), &portals)?;
        }
        ShareChange::PortalRemove { address, force: _ } => {
            let mut portals = portals(now)?;
            let before = portals.len();
            portals.retain(|portal| portal.address != address);
            if portals.len() == before {
                return Err("the pool has no such portal".to_owned());
            }
            match portals.is_empty() {
                true => edits.remove(property::PORTALS.to_owned()),
                false => edits.pool(property::PORTALS.to_owned(), &portals)?,
            }
        }
        ShareChange::Access { target, allow, initiators, networks } => {
            if initiators.is_empty() && networks.is_empty() {
                return Err("say whom: --initiator NAME or --network CIDR".to_owned());
            }
            let target = target.map(|target| target.to_ascii_lowercase());
            let mut rule = match &target {
                Some(target) => now.target(target)?.access.clone(),
                None => now.discovery()?.0,
            };
            let initiators = initiators.iter().map(|name| initiator(name)).collect::<Result<Vec<_>, _>>()?;
            let networks = networks.iter().map(|text| network(text)).collect::<Result<Vec<_>, _>>()?;
            let before = rule.clone();
            edit(&mut rule.initiators, &initiators, allow, "initiator")?;
            edit(&mut rule.networks, &networks, allow, "network")?;
            if rule == before {
                return Ok(planned);
            }
            if rule.is_closed() {
                let whom =
                    target.as_deref().map_or("discovery".to_owned(), |target| format!("target {target}"));
                planned.warnings.push(format!(
                    "nobody is left who may use {whom}; to let everybody: 'access allow' with '*'"
                ));
            }
            match &target {
                Some(target) => {
                    let config = TargetConfig { access: rule, ..now.target(target)?.clone() };
                    edits.pool(property::target(target), &config)?;
                }
                None if rule == Rule::default() => edits.remove(property::DISCOVERY.to_owned()),
                None => edits.pool(property::DISCOVERY.to_owned(), &rule)?,
            }
        }
        ShareChange::ChapSet { target, credential } => {
            let target = target.map(|target| target.to_ascii_lowercase());
            credential.auth().map_err(|error| error.to_string())?;
            let mut credentials = credentials(now, target.as_deref())?;
            if credentials.contains(&credential) {
                return Ok(planned);
            }
            credentials.retain(|other| other.user != credential.user);
            credentials.push(credential);
            edits.pool(property::chap(target.as_deref()), &credentials)?;
        }
        ShareChange::ChapClear { target, user } => {
            let target = target.map(|target| target.to_ascii_lowercase());
            let mut credentials = credentials(now, target.as_deref())?;
            let before = credentials.len();
            credentials.retain(|credential| user.as_ref().is_some_and(|user| *user != credential.user));
            if credentials.len() == before {
                let whose = user.map(|user| format!(" for '{user}'")).unwrap_or_default();
                return Err(format!("there is no credential{whose}"));
            }
            match credentials.is_empty() {
                true => {
                    edits.remove(property::chap(target.as_deref()));
                    planned
                        .warnings
                        .push("no credential is left: nobody is asked for one any more".to_owned());
                }
                false => edits.pool(property::chap(target.as_deref()), &credentials)?,
            }
        }
        ShareChange::Options { dataset, options, force: _ } => {
            for (name, value) in options {
                let name = format!("{}{name}", property::PREFIX);
                if !value.is_empty() {
                    option(&name, &value)?;
                } else {
                    // Unknown names are refused whatever they are to be.
                    option(&name, "")
                        .err()
                        .filter(|why| why.starts_with("the options"))
                        .map_or(Ok(()), Err)?;
                }
                edits.dataset(&dataset, &name, Some(value).filter(|value| !value.is_empty()));
            }
        }
    }
    planned.edits = Some(edits);
    Ok(planned)
}

fn portals(now: &Now) -> Result<Vec<PortalConfig>, String> {
    let unreadable = now.users.contains_key(property::PORTALS) && now.shares.portals.is_empty();
    match now.shares.problems.iter().find(|problem| unreadable && problem.contains(property::PORTALS)) {
        Some(problem) => Err(format!("{problem}\nto give them up: 'zpool set {}= POOL'", property::PORTALS)),
        None => Ok(now.shares.portals.clone()),
    }
}

fn credentials(now: &Now, target: Option<&str>) -> Result<Vec<Credential>, String> {
    match target {
        Some(target) => {
            now.target(target)?;
            Ok(now.shares.targets.get(target).map(|share| share.credentials.clone()).unwrap_or_default())
        }
        None => Ok(now.discovery()?.1),
    }
}

/// The name of an initiator, or the beginning of some.
fn initiator(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    let plain = name.strip_suffix('*').unwrap_or(&name);
    let is_beginning =
        name.ends_with('*') && plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:".contains(&b));
    if !is_beginning && !iqn::is_valid(plain) {
        return Err(format!(
            "'{name}' is not the iSCSI name of an initiator, nor the beginning of some with a '*' behind"
        ));
    }
    Ok(name)
}

fn network(text: &str) -> Result<String, String> {
    match text {
        "*" => Ok("*".to_owned()),
        text => text.parse::<Network>().map(|network| network.to_string()).map_err(|error| error.to_string()),
    }
}

/// Adds to a list or takes away from it; everybody is no list, and nobody an empty one.
fn edit(list: &mut Option<Vec<String>>, names: &[String], allow: bool, what: &str) -> Result<(), String> {
    for name in names {
        match (allow, name.as_str(), list.as_mut()) {
            (true, "*", _) => *list = None,
            (false, "*", _) => *list = Some(Vec::new()),
            (true, _, Some(all)) if !all.contains(name) => all.push(name.clone()),
            (true, _, Some(_)) => {}
            (true, _, None) => *list = Some(vec![name.clone()]),
            (false, _, Some(all)) if all.contains(name) => all.retain(|other| other != name),
            (false, _, Some(_)) => return Err(format!("{what} {name} was not allowed")),
            (false, _, None) => {
                return Err(format!(
                    "every {what} is allowed, and {name} with them: say who else may with 'access allow'"
                ));
            }
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::{LogicalUnitName, Offering};

    fn now() -> Now {
        let users: BTreeMap<String, String> =
            [("org.millpond:target:iqn.a:t".to_owned(), "{}".to_owned())].into_iter().collect();
        let mut shares = PoolShares::default();
        shares.targets.insert("iqn.a:t".to_owned(), crate::shares::TargetShare::default());
        let at = |lun| VolumeShare {
            place: Some(Place { target: "iqn.a:t".to_owned(), lun }),
            managed: true,
            ..VolumeShare::default()
        };
        let was = LogicalUnitName {
            guid: "6".repeat(32),
            base: String::new(),
            deleted: true,
            was: Some("iqn.a:t 1".to_owned()),
        };
        let volumes = [
            ("tank/a", at(0)),
            ("tank/b", at(2)),
            ("tank/c", VolumeShare::default()),
            ("tank/d", VolumeShare { name: Some(was), ..VolumeShare::default() }),
        ];
        let volumes = volumes.into_iter().map(|(name, share)| (name.to_owned(), share)).collect();
        Now { users, shares, volumes, unlisted: None }
    }

    /// The number of a disk that could not be read was given to another, and hosts met that under it.
    #[test]
    fn no_number_is_free_while_nobody_knows_whose_it_is() {
        let now = Now { unlisted: Some("object 7 cannot be read".to_owned()), ..now() };
        let said = now.place("tank/c", "iqn.a:t", None).unwrap_err();
        assert!(said.contains("object 7 cannot be read") && said.contains("say a number"), "{said}");
        assert_eq!(now.place("tank/c", "iqn.a:t", Some(9)).unwrap().unwrap().lun, 9);
    }

    /// One whose properties could not be read kept everything in its pool from being changed, credentials included.
    #[test]
    fn a_volume_that_cannot_be_read_is_left_alone_and_others_are_changed() {
        let mut now = now();
        now.volumes.remove("tank/b");
        now.list("tank/b", Err("a block is damaged".to_owned()));
        now.list("tank/e", Ok(VolumeShare::default()));
        assert!(now.volumes.contains_key("tank/e"));
        assert_eq!(now.place("tank/e", "iqn.a:t", Some(9)).unwrap().unwrap().lun, 9);
        assert!(
            plan(&now, ShareChange::TargetCreate { target: "iqn.2026-11.com.example:t".to_owned() }).is_ok()
        );
        let remove = ShareChange::LunRemove { target: "iqn.a:t".to_owned(), disk: "tank/b".to_owned() };
        for said in [
            now.place("tank/b", "iqn.a:t", Some(8)).unwrap_err(),
            now.place("tank/e", "iqn.a:t", None).unwrap_err(),
            plan(&now, remove).unwrap_err(),
        ] {
            assert!(said.contains("'tank/b': a block is damaged"), "{said}");
        }
    }

    #[test]
    fn numbers_are_the_lowest_free_and_those_of_deleted_disks_wait_for_them() {
        let now = now();
        assert_eq!(now.place("tank/c", "iqn.a:t", None).unwrap().unwrap().lun, 3);
        assert_eq!(now.place("tank/c", "iqn.a:t", Some(1)).unwrap().unwrap().lun, 1);
        assert!(now.place("tank/c", "iqn.a:t", Some(2)).unwrap_err().contains("tank/b"));
        assert_eq!(now.place("tank/a", "iqn.a:t", None).unwrap(), None);
        assert!(now.place("tank/a", "iqn.a:t", Some(7)).unwrap_err().contains("lun remove"));
    }

    #[test]
    fn what_was_for_some_only_is_not_for_everybody_without_its_lun() {
        let lost = |now: &Now, disk: &str| {
            let change = ShareChange::LunRemove { target: "iqn.a:t".to_owned(), disk: disk.to_owned() };
            let planned = plan(now, change).unwrap();
            let offer = planned.edits.unwrap().datasets[disk].get(property::OFFER).cloned().flatten();
            (offer, planned.warnings.concat())
        };
        let mut now = now();
        let (offer, said) = lost(&now, "tank/a");
        assert!(
            offer.is_none() && said.contains("to everybody now") && said.contains("offer=none"),
            "{said}"
        );
        let target = now.shares.targets.get_mut("iqn.a:t").unwrap();
        target.config.access.initiators = Some(vec!["iqn.b:x".to_owned()]);
        let (offer, said) = lost(&now, "tank/a");
        assert!(offer.as_deref() == Some("none") && said.contains("share set offer= tank/a"), "{said}");
        // Somebody has decided already, there or above it.
        for (offer, offer_is_own, written, word) in [
            (Offering::All, true, None, "everybody"),
            (Offering::None, false, None, "nobody"),
            (Offering::Nbd, false, None, "over NBD"),
            (Offering::All, false, Some("nbd"), "over NBD only"),
            (Offering::Iscsi, false, Some("none"), "nobody"),
        ] {
            let share = now.volumes.get_mut("tank/a").unwrap();
            (share.offer, share.offer_is_own) = (offer, offer_is_own);
            let (kept, said) = lost(&now, "tank/a");
            assert!(kept.as_deref() == written && said.contains(word), "{offer:?}: {kept:?}, {said}");
        }
        // A snapshot goes with its volume, and what stmfadm manages is nobody's without a view.
        let place = Some(Place { target: "iqn.a:t".to_owned(), lun: 5 });
        let snapshot = VolumeShare { place, ..now.volumes["tank/b"].clone() };
        now.volumes.insert("tank/b@s".to_owned(), snapshot);
        assert_eq!(lost(&now, "tank/b@s"), (None, "tank/b@s is offered to nobody now".to_owned()));
    }

    #[test]
    fn who_takes_the_last_one_away_closes_the_door() {
        let mut list = None;
        let name = ["iqn.b:x".to_owned()];
        let mut edit = |name: &[String], allow| {
            let edited = edit(&mut list, name, allow, "initiator");
            edited.map(|()| list.clone())
        };
        assert!(edit(&name, false).unwrap_err().contains("every initiator is allowed"));
        assert_eq!(edit(&name, true), Ok(Some(name.to_vec())));
        assert_eq!(edit(&name, true), Ok(Some(name.to_vec())));
        assert_eq!(edit(&name, false), Ok(Some(Vec::new())));
        assert!(edit(&name, false).unwrap_err().contains("was not allowed"));
        assert_eq!(edit(&["*".to_owned()], true), Ok(None));
    }

    /// They were warnings, with exit code 0: a script with a mistyped name went on as if it had been done.
    #[test]
    fn what_is_to_be_taken_away_and_is_not_there_is_an_error_and_so_is_a_target_that_is_there() {
        let (target, nobody) = ("iqn.a:t".to_owned(), "iqn.a:none".to_owned());
        let deny = |initiator: &str| ShareChange::Access {
            target: Some(target.clone()),
            allow: false,
            initiators: vec![initiator.to_owned()],
            networks: Vec::new(),
        };
        for (change, word) in [
            (ShareChange::TargetCreate { target: target.clone() }, "already"),
            (ShareChange::TargetCreate { target: target.to_uppercase() }, "already"),
            (ShareChange::TargetDestroy { target: nobody.clone(), force: false }, "no such target"),
            (ShareChange::TargetSet { target: target.clone(), groups: None, default: None }, "nothing"),
            (ShareChange::LunRemove { target: target.clone(), disk: "tank/c".to_owned() }, "no such LUN"),
            (ShareChange::LunRemove { target: target.clone(), disk: "1".to_owned() }, "no such LUN"),
            (ShareChange::LunRemove { target: nobody, disk: "tank/a".to_owned() }, "no such target"),
            (
                ShareChange::PortalRemove { address: "192.0.2.1:3260".parse().unwrap(), force: false },
                "no such portal",
            ),
            (deny("iqn.b:x"), "every initiator is allowed"),
            (ShareChange::ChapClear { target: Some(target.clone()), user: None }, "no credential"),
            (
                ShareChange::ChapClear { target: Some(target.clone()), user: Some("eve".to_owned()) },
                "no credential for 'eve'",
            ),
        ] {
            let said = plan(&now(), change.clone()).map(|planned| planned.warnings).unwrap_err();
            assert!(said.contains(word), "{change:?}: {said}");
        }
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(target_name("IQN.2026-11.com.example:VMs").unwrap(), "iqn.2026-11.com.example:vms");
        assert!(target_name("vms").unwrap_err().contains("for example"));
        assert!(target_name(&iqn::for_dataset("tank/vm1")).unwrap_err().contains("tank/vm1"));
        assert!(target_name(&iqn::for_dataset("tank")).is_ok());
        assert!(initiator("iqn.1998-01.com.vmware:*").is_ok() && initiator("*").is_ok());
        assert!(initiator("host").is_err() && initiator("iqn.a b").is_err());
        assert_eq!(network("192.0.2.7").unwrap(), "192.0.2.7/32");
    }

    #[test]
    fn a_change_with_a_secret_survives_the_journey_and_is_not_printed() {
        let change = ShareChange::ChapSet {
            target: Some("iqn.a:t".to_owned()),
            credential: serde_json::from_str(r#"{"user":"u","secret":"a secret of size"}"#).unwrap(),
        };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<ShareChange>(&text).unwrap(), change);
        assert!(!format!("{change:?}").contains("of size"));
    }
}
