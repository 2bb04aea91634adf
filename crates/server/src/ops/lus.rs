//! Logical units by the names of COMSTAR's `stmfadm`: what Proxmox's "ZFS over iSCSI" asks a storage server to do.
//!
//! ```text
//!   create-lu   the volume has a name (32 digits)      add-view     and a LUN
//!   delete-lu   both are gone, and remembered          import-lu    the name is back; a view gets the LUN it had
//! ```
//!
//! The name is for those who manage. What hosts know the disk by is made of guids, as ever: a volume that is destroyed and
//! created again under its name would otherwise be taken for the old one.

use std::collections::BTreeMap;

use iscsi::iqn;
use pool::dsl::{DatasetKind, HeadKind};
use serde::{Deserialize, Serialize};

use super::{
    Answer, Failure,
    cut_off::{self, Reach, Setting},
    cx::Cx,
    pool_of,
    properties::{effective, lookup},
    request::is_default,
    shares::{Edits, Now, apply, free_for_lun},
};
use crate::{
    host::chain,
    shares::{LogicalUnitName, Place, TargetConfig, VolumeShare, naa, property},
};

/// What is done to a logical unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LuChange {
    /// `create-lu`
    Create {
        /// What stands before the dataset's name: `/dev/zvol/rdsk`.
        base: String,
        /// 32 hexadecimal digits; without, what hosts know it by.
        #[serde(default, skip_serializing_if = "is_default")]
        guid: Option<String>,
        /// Whether initiators find the write cache on; as it is without.
        #[serde(default, skip_serializing_if = "is_default")]
        write_cache: Option<bool>,
    },
    /// `delete-lu`
    Delete,
    /// `import-lu`
    Import {
        /// What stands before the dataset's name.
        base: String,
    },
    /// `modify-lu`
    Modify {
        /// Bytes it is to have: those of the volume.
        #[serde(default, skip_serializing_if = "is_default")]
        size: Option<u64>,
        /// Whether initiators find the write cache on.
        #[serde(default, skip_serializing_if = "is_default")]
        write_cache: Option<bool>,
    },
    /// `add-view`
    View {
        /// Target; the pool's default or only one without.
        #[serde(default, skip_serializing_if = "is_default")]
        target: Option<String>,
        /// Number; the one it had, or the lowest free one without.
        #[serde(default, skip_serializing_if = "is_default")]
        lun: Option<u16>,
    },
    /// `remove-view`
    Unview,
}

fn write_cache(edits: &mut Edits, volume: &str, on: Option<bool>) {
    if let Some(on) = on {
        edits.dataset(volume, property::WRITE_CACHE, Some(if on { "on" } else { "off" }.to_owned()));
    }
}

/// Whether it can be the name of a logical unit.
fn guid(text: &str) -> Result<String, String> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| text.to_ascii_lowercase()).ok_or_else(|| format!("'{text}' is not 32 hexadecimal digits"))
}

/// Does it to a volume. The answer to [`LuChange::Create`] and [`LuChange::Import`] is the name.
pub(crate) async fn change(cx: &Cx<'_>, volume: &str, change: LuChange) -> Result<Answer, Failure> {
    let what = format!("cannot change logical unit '{volume}'");
    let held = cx.host.writable(pool_of(volume)).await.map_err(|error| error.of_dataset(&what, volume))?;
    let view = held.view();
    let dataset = lookup(&view, volume).await?;
    if let Some(error) = dataset.unread() {
        return Err(Failure::because(&what, chain(&error)));
    }
    if dataset.head_kind() != HeadKind::Volume || dataset.kind() != DatasetKind::Head {
        return Err(Failure::because(&what, "it is not a volume"));
    }
    if let LuChange::Modify { size: Some(size), .. } = change {
        let has = effective(&dataset).await?.number("volsize").unwrap_or(0);
        if size != has {
            let why = format!(
                "the volume has {has} bytes and not {size}: a logical unit is as large as its volume\nto change both: 'zfs set \
                 volsize={size} {volume}'"
            );
            return Err(Failure::because(&what, why));
        }
    }
    let now = Now::read(&view).await.map_err(|why| Failure::because(&what, why))?;
    if matches!(change, LuChange::Create { .. }) {
        free_for_lun(cx, &now, volume).map_err(|why| Failure::because(&what, why))?;
    }
    if let LuChange::Create { write_cache: Some(true), .. }
    | LuChange::Modify { write_cache: Some(true), .. } = &change
    {
        let setting = Setting::Ours(property::WRITE_CACHE, Some("on"));
        let spared = cut_off::spare(cx, &view, &dataset, setting, Reach::default(), false).await;
        spared.map_err(|why| Failure::because(&what, why))?;
    }
    // Those of volumes that may have to do with it: its own, and of each whose name another may take.
    let mut naas = BTreeMap::from([(volume.to_owned(), naa(&view, &dataset))]);
    for (other, share) in &now.volumes {
        if share.name.as_ref().is_some_and(|name| name.deleted) {
            naas.insert(other.clone(), naa(&view, &lookup(&view, other).await?));
        }
    }
    let planned = plan(&now, volume, &naas, change);
    let (edits, lines) = planned.map_err(|why| Failure::because(&what, why))?;
    let warnings = match edits {
        Some(edits) => apply(cx, &held, &what, edits).await?,
        None => Vec::new(),
    };
    Ok(Answer { lines, warnings, ..Answer::default() })
}

fn plan(
    now: &Now,
    volume: &str,
    naas: &BTreeMap<String, String>,
    change: LuChange,
) -> Result<(Option<Edits>, Vec<String>), String> {
    let naa = naas.get(volume).map_or("", String::as_str);
    let share = now.volumes.get(volume).ok_or_else(|| now.not_listed())?;
    let mut edits = Edits::default();
    // One that got its LUN from 'millpond share' is known by what hosts call it.
    let known = share.name.clone().or_else(|| {
        let base = "/dev/zvol/rdsk".to_owned();
        let name = LogicalUnitName { guid: naa.to_owned(), base, deleted: false, was: None };
        share.place.is_some().then_some(name)
    });
    let keep_of = |edits: &mut Edits, volume: &str, name: &LogicalUnitName| -> Result<(), String> {
        let text = crate::shares::to_text(name)?;
        edits.dataset(volume, property::LU, Some(text));
        Ok(())
    };
    let keep = |edits: &mut Edits, name: &LogicalUnitName| keep_of(edits, volume, name);
    let there =
        || known.clone().filter(|name| !name.deleted).ok_or_else(|| "there is no logical unit".to_owned());
    let mut lines = Vec::new();
    match change {
        LuChange::Create { base, guid: wanted, write_cache: cache } => {
            let wanted = wanted.as_deref().map(guid).transpose()?;
            if let Some(active) = known.as_ref().filter(|name| !name.deleted)
                && wanted.as_ref().is_some_and(|wanted| *wanted != active.guid)
            {
                return Err(format!("it is logical unit {} already; delete that first", active.guid));
            }
            let guid = wanted.or_else(|| known.as_ref().map(|name| name.guid.clone()));
            let guid = guid.unwrap_or_else(|| naa.to_owned());
            for (other, share) in now.volumes.iter().filter(|(other, _)| *other != volume) {
                match share.name.as_ref().filter(|name| name.guid == guid) {
                    // It stays closed, by the name that is its own: without any it would be offered to everybody.
                    Some(name) if name.deleted => {
                        let own = naas.get(other).cloned().unwrap_or_default();
                        keep_of(&mut edits, other, &LogicalUnitName { guid: own, ..name.clone() })?;
                    }
                    Some(_) => return Err(format!("'{other}' is logical unit {guid}")),
                    None => {}
                }
            }
            let was = known.and_then(|name| name.was);
            keep(&mut edits, &LogicalUnitName { guid: guid.clone(), base, deleted: false, was })?;
            write_cache(&mut edits, volume, cache);
            lines.push(guid);
        }
        LuChange::Delete => {
            let was = share.place.as_ref().map(Place::to_string);
            let name = there()?;
            let was = was.or_else(|| name.was.clone());
            keep(&mut edits, &LogicalUnitName { deleted: true, was, ..name })?;
            edits.dataset(volume, property::LUN, None);
        }
        LuChange::Import { base } => {
            let name = known.ok_or(
                "it never was a logical unit: there is nothing to import; create one with create-lu",
            )?;
            lines.push(name.guid.clone());
            if !name.deleted {
                return Ok((None, lines));
            }
            let holds = |share: &VolumeShare| {
                share.name.as_ref().is_some_and(|other| !other.deleted && other.guid == name.guid)
            };
            if let Some((other, _)) =
                now.volumes.iter().find(|(other, share)| *other != volume && holds(share))
            {
                return Err(format!("'{other}' is logical unit {} now", name.guid));
            }
            keep(&mut edits, &LogicalUnitName { deleted: false, base, ..name })?;
        }
        LuChange::Modify { write_cache: cache, .. } => {
            there()?;
            if cache.is_none() {
                return Ok((None, lines));
            }
            write_cache(&mut edits, volume, cache);
        }
        LuChange::View { target, lun } => {
            let name = there()?;
            let (target, create) = match target {
                Some(target) => (target.to_ascii_lowercase(), false),
                None => default_target(now, pool_of(volume))?,
            };
            match create {
                true => edits.pool(
                    property::target(&target),
                    &TargetConfig { default: true, ..TargetConfig::default() },
                )?,
                false => drop(now.target(&target)?),
            }
            // As long as nobody knows whose the number is now, it has to be said.
            let was: Option<Place> = name.was.as_ref().and_then(|was| was.parse().ok());
            let is_free = |lun: &u16| now.unlisted.is_none() && !now.luns(&target).contains_key(lun);
            let before = was.filter(|was| was.target == target && is_free(&was.lun));
            let lun = lun.or_else(|| before.filter(|_| share.place.is_none()).map(|was| was.lun));
            let Some(place) = now.place(volume, &target, lun)? else { return Ok((None, lines)) };
            edits.dataset(volume, property::LUN, Some(place.to_string()));
            keep(&mut edits, &LogicalUnitName { was: None, ..name })?;
        }
        LuChange::Unview => {
            let name = there()?;
            let Some(place) = &share.place else { return Ok((None, lines)) };
            edits.dataset(volume, property::LUN, None);
            keep(&mut edits, &LogicalUnitName { was: Some(place.to_string()), ..name })?;
        }
    }
    Ok((Some(edits), lines))
}

/// Where a view goes that names no target, and whether that has to be created: the pool's default, or its only one, or one
/// named after the pool. With settings that cannot be understood a target is closed, and may be the one that is meant.
fn default_target(now: &Now, pool: &str) -> Result<(String, bool), String> {
    let mut targets = now.shares.targets.iter();
    if let Some((iqn, _)) = targets.clone().find(|(_, share)| share.config.default) {
        return Ok((iqn.clone(), false));
    }
    for iqn in now.users.keys().filter_map(|name| name.strip_prefix(property::TARGET)) {
        now.target(iqn).map_err(|why| {
            format!("{why}\nto choose another one, name it with --target-group (in Proxmox: comstar_tg)")
        })?;
    }
    match (targets.next(), targets.next()) {
        (None, _) => Ok((iqn::for_dataset(pool), true)),
        (Some((iqn, _)), None) => Ok((iqn.clone(), false)),
        _ => Err(
            "the pool has several targets: name one with --target-group (in Proxmox: comstar_tg), or say which is meant with \
             'millpond share target set IQN --default on'"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::{PoolShares, TargetShare};

    /// A volume got the LUN back that it once had, whoever had it now: hosts of one that could not be read met another under it.
    #[test]
    fn a_view_gets_no_number_back_while_nobody_knows_whose_it_is() {
        const TARGET: &str = "iqn.a:t";
        let was = Some(format!("{TARGET} 1"));
        let name = LogicalUnitName { guid: "6".repeat(32), base: String::new(), deleted: false, was };
        let share = VolumeShare { name: Some(name), managed: true, ..VolumeShare::default() };
        let mut shares = PoolShares::default();
        shares.targets.insert(TARGET.to_owned(), TargetShare::default());
        let volumes = BTreeMap::from([("tank/a".to_owned(), share)]);
        let mut now = Now { users: BTreeMap::new(), shares, volumes, unlisted: None };
        let view = |now: &Now, lun| {
            let change = LuChange::View { target: Some(TARGET.to_owned()), lun };
            plan(now, "tank/a", &BTreeMap::new(), change).map(|(edits, _)| format!("{edits:?}"))
        };
        assert!(view(&now, None).unwrap().contains("iqn.a:t 1"));
        now.unlisted = Some("object 7 cannot be read".to_owned());
        let said = view(&now, None).unwrap_err();
        assert!(said.contains("object 7 cannot be read") && said.contains("say a number"), "{said}");
        assert!(view(&now, Some(1)).unwrap().contains("iqn.a:t 1"));
    }

    /// The target that is named after the pool was made anew, open to everybody, in place of one that was closed because a newer
    /// version had written its settings.
    #[test]
    fn a_view_replaces_no_target_whose_settings_cannot_be_understood() {
        const OTHER: &str = "iqn.a:t";
        let name = LogicalUnitName { guid: "6".repeat(32), base: String::new(), deleted: false, was: None };
        let share = VolumeShare { name: Some(name), managed: true, ..VolumeShare::default() };
        let volumes = BTreeMap::from([("tank/a".to_owned(), share)]);
        let own = property::target(&iqn::for_dataset("tank"));
        let users = BTreeMap::from([(own, r#"{"fenced":true}"#.to_owned())]);
        let mut now = Now { users, shares: PoolShares::default(), volumes, unlisted: None };
        let view = |now: &Now| {
            let change = LuChange::View { target: None, lun: None };
            plan(now, "tank/a", &BTreeMap::new(), change).map(|(edits, _)| format!("{edits:?}"))
        };
        let said = view(&now).unwrap_err();
        assert!(said.contains("cannot be understood") && said.contains("--target-group"), "{said}");
        // Nor does it go to another one, unless that is said to be meant.
        now.shares.targets.insert(OTHER.to_owned(), TargetShare::default());
        assert!(view(&now).unwrap_err().contains("cannot be understood"));
        now.shares.targets.get_mut(OTHER).unwrap().config.default = true;
        assert!(view(&now).unwrap().contains("iqn.a:t 0"));
    }
}
