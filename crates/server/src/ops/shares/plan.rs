//! What a change of a pool's settings comes to: which of them are written, and what is said of it. Nothing is changed here,
//! and nothing is asked but what the settings are now, so tests need no pool.

use std::{collections::BTreeSet, net::SocketAddr};

use iscsi::{Network, iqn};

use super::{Edits, Now, ShareChange};
use crate::shares::{
    Credential, PortalConfig, Rule, TargetConfig, initiator, option, portal_groups, property,
};

/// What a change comes to.
#[derive(Debug, Default)]
pub(super) struct Planned {
    /// None: it is so already.
    pub(super) edits: Option<Edits>,
    pub(super) lines: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Planned {
    /// This is written.
    fn to_write(edits: Edits) -> Self {
        Self { edits: Some(edits), ..Self::default() }
    }
}

pub(super) fn plan(now: &Now, change: ShareChange) -> Result<Planned, String> {
    match change {
        ShareChange::TargetCreate { target } => create_target(now, &target),
        ShareChange::TargetDestroy { target, .. } => destroy_target(now, target),
        ShareChange::TargetSet { target, groups, default } => {
            set_target(now, &lower(&target), groups, default)
        }
        ShareChange::LunAdd { target, volume, lun } => add_lun(now, &lower(&target), &volume, lun),
        ShareChange::LunRemove { target, disk } => remove_lun(now, &lower(&target), &disk),
        ShareChange::PortalAdd { address, group, force: _ } => {
            add_portal(now, PortalConfig { address, group })
        }
        ShareChange::PortalRemove { address, force: _ } => remove_portal(now, address),
        ShareChange::Access { target, allow, initiators, networks } => {
            let target = target.as_deref().map(lower);
            change_access(now, target.as_deref(), allow, &initiators, &networks)
        }
        ShareChange::ChapSet { target, credential } => {
            set_chap(now, target.as_deref().map(lower).as_deref(), credential)
        }
        ShareChange::ChapClear { target, user } => {
            clear_chap(now, target.as_deref().map(lower).as_deref(), user)
        }
        ShareChange::Options { dataset, options, force: _ } => set_options(&dataset, options),
    }
}

fn lower(target: &str) -> String {
    target.to_ascii_lowercase()
}

fn create_target(now: &Now, target: &str) -> Result<Planned, String> {
    let target = target_name(target)?;
    if now.users.contains_key(&property::target(&target)) {
        now.target(&target)?;
        return Err("this pool has it already".to_owned());
    }
    let mut edits = Edits::default();
    edits.pool(property::target(&target), &TargetConfig::default())?;
    Ok(Planned::to_write(edits))
}

fn destroy_target(now: &Now, target: String) -> Result<Planned, String> {
    // As it is written, if there is one: a forged pool may have what no command makes.
    let target = match now.users.contains_key(&property::target(&target)) {
        true => target,
        false => lower(&target),
    };
    if !now.users.contains_key(&property::target(&target)) {
        return Err("no such target in this pool".to_owned());
    }
    let mut edits = Edits::default();
    edits.remove(property::target(&target));
    edits.remove(property::chap(Some(&target)));
    let luns = now.luns(&target);
    let volumes: BTreeSet<&str> = luns.values().copied().collect();
    let mut warnings = Vec::new();
    for volume in luns.values() {
        warnings.extend(now.take_away(volume, &target, &volumes, &mut edits));
    }
    Ok(Planned { warnings, ..Planned::to_write(edits) })
}

fn set_target(
    now: &Now,
    target: &str,
    groups: Option<Vec<u16>>,
    default: Option<bool>,
) -> Result<Planned, String> {
    if groups.is_none() && default.is_none() {
        return Err("nothing of it is to be changed: say groups, or whether it is the default".to_owned());
    }
    let mut edits = Edits::default();
    let mut config = now.target(target)?.clone();
    if let Some(groups) = groups {
        portal_groups(&groups)?;
        config.groups = Some(groups).filter(|groups| !groups.is_empty());
    }
    if let Some(default) = default {
        config.default = default;
        // There is one at most.
        for (other, share) in now.shares.targets.iter().filter(|(other, _)| default && *other != target) {
            if share.config.default {
                let config = TargetConfig { default: false, ..share.config.clone() };
                edits.pool(property::target(other), &config)?;
            }
        }
    }
    edits.pool(property::target(target), &config)?;
    Ok(Planned::to_write(edits))
}

fn add_lun(now: &Now, target: &str, volume: &str, lun: Option<u16>) -> Result<Planned, String> {
    now.target(target)?;
    let place = now.place(volume, target, lun)?;
    let shown = place.as_ref().or_else(|| now.volumes.get(volume)?.place.as_ref());
    let lines = shown.map(|place| format!("{volume} is LUN {} of {}", place.lun, place.target));
    let mut planned = Planned { lines: lines.into_iter().collect(), ..Planned::default() };
    if let Some(place) = place {
        let mut edits = Edits::default();
        edits.dataset(volume, property::LUN, Some(place.to_string()));
        planned.edits = Some(edits);
    }
    Ok(planned)
}

fn remove_lun(now: &Now, target: &str, disk: &str) -> Result<Planned, String> {
    let luns = now.luns(target);
    let volume = match disk.parse::<u16>() {
        Ok(lun) => luns.get(&lun).copied(),
        Err(_) => luns.values().copied().find(|volume| *volume == disk),
    };
    let Some(volume) = volume else {
        now.target(target)?;
        let none = "the target has no such LUN";
        return Err(match &now.unlisted {
            Some(why) => format!("{none}, as far as volumes can be read ({why})"),
            None => none.to_owned(),
        });
    };
    let mut edits = Edits::default();
    let warnings = now.take_away(volume, target, &BTreeSet::from([volume]), &mut edits);
    Ok(Planned { warnings: warnings.into_iter().collect(), ..Planned::to_write(edits) })
}

fn add_portal(now: &Now, new: PortalConfig) -> Result<Planned, String> {
    new.check()?;
    let mut portals = portals(now)?;
    if portals.contains(&new) {
        return Ok(Planned::default());
    }
    portals.retain(|portal| portal.address != new.address);
    portals.push(new);
    portals.sort_by_key(|portal| (portal.group, portal.address));
    let mut edits = Edits::default();
    edits.pool(property::PORTALS.to_owned(), &portals)?;
    Ok(Planned::to_write(edits))
}

fn remove_portal(now: &Now, address: SocketAddr) -> Result<Planned, String> {
    let mut portals = portals(now)?;
    let before = portals.len();
    portals.retain(|portal| portal.address != address);
    if portals.len() == before {
        return Err("the pool has no such portal".to_owned());
    }
    let mut edits = Edits::default();
    match portals.is_empty() {
        true => edits.remove(property::PORTALS.to_owned()),
        false => edits.pool(property::PORTALS.to_owned(), &portals)?,
    }
    Ok(Planned::to_write(edits))
}

/// Of a target, or of discovery.
fn change_access(
    now: &Now,
    target: Option<&str>,
    allow: bool,
    initiators: &[String],
    networks: &[String],
) -> Result<Planned, String> {
    if initiators.is_empty() && networks.is_empty() {
        return Err("say whom: --initiator NAME or --network CIDR".to_owned());
    }
    let mut rule = match target {
        Some(target) => now.target(target)?.access.clone(),
        None => now.discovery()?.0,
    };
    let initiators = initiators.iter().map(|name| initiator(name)).collect::<Result<Vec<_>, _>>()?;
    let networks = networks.iter().map(|text| network(text)).collect::<Result<Vec<_>, _>>()?;
    let before = rule.clone();
    edit(&mut rule.initiators, &initiators, allow, "initiator")?;
    edit(&mut rule.networks, &networks, allow, "network")?;
    if rule == before {
        return Ok(Planned::default());
    }
    let mut warnings = Vec::new();
    if rule.is_closed() {
        let whom = target.map_or("discovery".to_owned(), |target| format!("target {target}"));
        warnings
            .push(format!("nobody is left who may use {whom}; to let everybody: 'access allow' with '*'"));
    }
    let mut edits = Edits::default();
    match target {
        Some(target) => {
            let config = TargetConfig { access: rule, ..now.target(target)?.clone() };
            edits.pool(property::target(target), &config)?;
        }
        None if rule == Rule::default() => edits.remove(property::DISCOVERY.to_owned()),
        None => edits.pool(property::DISCOVERY.to_owned(), &rule)?,
    }
    Ok(Planned { warnings, ..Planned::to_write(edits) })
}

fn set_chap(now: &Now, target: Option<&str>, credential: Credential) -> Result<Planned, String> {
    credential.auth().map_err(|error| error.to_string())?;
    let mut credentials = credentials(now, target)?;
    if credentials.contains(&credential) {
        return Ok(Planned::default());
    }
    credentials.retain(|other| other.user != credential.user);
    credentials.push(credential);
    let mut edits = Edits::default();
    edits.pool(property::chap(target), &credentials)?;
    Ok(Planned::to_write(edits))
}

/// Of one user, or of all.
fn clear_chap(now: &Now, target: Option<&str>, user: Option<String>) -> Result<Planned, String> {
    let mut credentials = credentials(now, target)?;
    let before = credentials.len();
    credentials.retain(|credential| user.as_ref().is_some_and(|user| *user != credential.user));
    if credentials.len() == before {
        let whose = user.map(|user| format!(" for '{user}'")).unwrap_or_default();
        return Err(format!("there is no credential{whose}"));
    }
    let (mut edits, mut warnings) = (Edits::default(), Vec::new());
    match credentials.is_empty() {
        true => {
            edits.remove(property::chap(target));
            warnings.push("no credential is left: nobody is asked for one any more".to_owned());
        }
        false => edits.pool(property::chap(target), &credentials)?,
    }
    Ok(Planned { warnings, ..Planned::to_write(edits) })
}

fn set_options(
    dataset: &str,
    options: impl IntoIterator<Item = (String, String)>,
) -> Result<Planned, String> {
    let mut edits = Edits::default();
    for (name, value) in options {
        let name = format!("{}{name}", property::PREFIX);
        if !value.is_empty() {
            option(&name, &value)?;
        } else {
            // Unknown names are refused whatever they are to be.
            option(&name, "").err().filter(|why| why.starts_with("the options")).map_or(Ok(()), Err)?;
        }
        edits.dataset(dataset, &name, Some(value).filter(|value| !value.is_empty()));
    }
    Ok(Planned::to_write(edits))
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn names_are_checked() {
        assert_eq!(target_name("IQN.2026-11.com.example:VMs").unwrap(), "iqn.2026-11.com.example:vms");
        assert!(target_name("vms").unwrap_err().contains("for example"));
        assert!(target_name(&iqn::for_dataset("tank/vm1")).unwrap_err().contains("tank/vm1"));
        assert!(target_name(&iqn::for_dataset("tank")).is_ok());
        for right in ["iqn.1998-01.com.vmware:*", "*", "iqn.1998-01.com.vmware:esx_01"] {
            assert_eq!(initiator(right).as_deref(), Ok(right));
        }
        assert_eq!(initiator("EUI.02004567A425678D").as_deref(), Ok("eui.02004567a425678d"));
        for wrong in ["", "host", "iqn.a b", "iqn.a,i*", "iqn.a:*x", "iqn.a:**"] {
            assert!(initiator(wrong).is_err(), "{wrong}");
        }
        assert_eq!(network("192.0.2.7").unwrap(), "192.0.2.7/32");
    }
}
