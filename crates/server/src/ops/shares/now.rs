//! A pool's settings as they are: what a change of them is decided by, and what may be said of a target or of a place in one.

use std::collections::{BTreeMap, BTreeSet};

use iscsi::LUN_MAX;
use pool::{Pool, props::PoolProperties};

use super::Edits;
use crate::{
    host::chain,
    shares::{Credential, DiscoveryShare, Place, PoolShares, Rule, TargetConfig, VolumeShare, property},
};

/// A pool's settings, and those of all its volumes: what a change is decided by.
pub(in crate::ops) struct Now {
    pub(in crate::ops) users: BTreeMap<String, String>,
    pub(in crate::ops) shares: PoolShares,
    pub(in crate::ops) volumes: BTreeMap<String, VolumeShare>,
    /// Why some of them may be missing in `volumes`, and with them their LUNs.
    pub(in crate::ops) unlisted: Option<String>,
}

impl Now {
    pub(in crate::ops) async fn read(view: &Pool) -> Result<Self, String> {
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
    pub(super) fn list(&mut self, volume: &str, share: Result<VolumeShare, String>) {
        match share {
            Ok(share) => drop(self.volumes.insert(volume.to_owned(), share)),
            Err(why) if self.unlisted.is_none() => self.unlisted = Some(format!("'{volume}': {why}")),
            Err(_) => {}
        }
    }

    /// Why a volume that is there is none of the [`volumes`](Self::volumes), or nothing is known of it.
    pub(in crate::ops) fn not_listed(&self) -> String {
        match &self.unlisted {
            Some(why) => format!("its settings are not known, because not all volumes can be read ({why})"),
            None => "it is not a volume".to_owned(),
        }
    }

    /// The settings of a target that must be there.
    pub(in crate::ops) fn target(&self, iqn: &str) -> Result<&TargetConfig, String> {
        match self.shares.targets.get(iqn) {
            Some(target) => Ok(&target.config),
            None if self.users.contains_key(&property::target(iqn)) => Err(self.unreadable(iqn)),
            None => Err(format!(
                "no such target in this pool\nto create it: 'millpond share target create {iqn}'"
            )),
        }
    }

    /// What is said of discovery, which is not to be replaced if it cannot be understood.
    pub(super) fn discovery(&self) -> Result<(Rule, Vec<Credential>), String> {
        let name = |why: &str| match why.contains(property::DISCOVERY) {
            true => property::DISCOVERY,
            false => property::CHAP,
        };
        match &self.shares.discovery {
            Ok(discovery) => {
                let DiscoveryShare { rule, credentials, .. } = discovery.clone().unwrap_or_default();
                Ok((rule, credentials))
            }
            Err(why) => Err(format!("{why}\nto give it up: 'zpool set {}= POOL'", name(why))),
        }
    }

    fn unreadable(&self, iqn: &str) -> String {
        let why = self.shares.problems.iter().find(|problem| problem.contains(iqn));
        let why = why.map_or("its settings cannot be understood", String::as_str);
        format!("{why}\nto give them up: 'millpond share target destroy {iqn}'")
    }

    /// What a target's LUNs are.
    pub(in crate::ops) fn luns(&self, iqn: &str) -> BTreeMap<u16, &str> {
        let placed = |(name, share): (&'_ String, &VolumeShare)| -> Option<(u16, String)> {
            let place = share.place.as_ref().filter(|place| place.target == iqn)?;
            Some((place.lun, name.clone()))
        };
        let numbers: BTreeMap<u16, String> = self.volumes.iter().filter_map(placed).collect();
        let name = |name: &String| self.volumes.get_key_value(name).map(|(name, _)| name.as_str());
        numbers.iter().filter_map(|(lun, volume)| Some((*lun, name(volume)?))).collect()
    }

    /// The lowest number that neither a LUN has nor one that was deleted and may come back.
    fn free(&self, iqn: &str) -> Result<u16, String> {
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
    pub(in crate::ops) fn place(
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
    pub(super) fn take_away(
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
