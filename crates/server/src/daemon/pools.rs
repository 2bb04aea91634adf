//! Which pools a daemon has at its start: those that were named, or everything that is its own; and what becomes of those that
//! are not open in time.
//!
//! ```text
//!   named ────────▶ found                              must open, or the daemon does not start
//!   everything ──▶ found ─ lapsed, another's, …  ─▶ opened side by side (`opening`) ─▶ served
//!                                                              └▶ failed, still being opened, absent ─▶ `Late`
//! ```
//!
//! What is not opened is said, and so is why.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::join_all;

use super::{Config, Event, ServeError, Tell};
use crate::{
    host::{self, HostError, Known},
    late::{Late, Missing},
    opening::{self, Outcome, Wanted},
    ops::{Host, LOCK_PATIENCE, has_usable_name},
    paths::real,
    state::{Remembered, StateError},
};

/// Opens what was named, or everything that is this daemon's. What was named must open; of what is where `-d` says, something
/// must, or is waited for because it is imported here; where nobody said that there is any, pools may be created later.
/// Those of everything that are not open in the end are answered, and whatever is there and does not answer.
pub(super) async fn open(config: &Config, host: &Arc<Host>, tell: &mut Tell) -> Result<Late, ServeError> {
    let is_named = !config.pools.is_empty();
    let is_asked_for = is_named || !config.places.named().is_empty();
    // How a pool was imported, and how new it was, holds although nobody can tell at the moment: none is opened without it.
    let mut imported = config.places.state().pools().map_err(HostError::State)?;
    let mut chosen = match is_named {
        true => named(config).await?,
        false => everything(config, &mut imported, tell).await?,
    };
    for (candidate, remembered) in &mut chosen {
        // With -d it was found by searching; how it was imported holds all the same.
        let known = || imported.iter().find(|known| known.guid == candidate.guid).cloned();
        *remembered = remembered.take().or_else(known);
    }
    // Without those that were named it does not start; the others are tried again.
    let patience = if is_named { opening::IN_USE_PATIENCE } else { LOCK_PATIENCE };
    let outcomes = opening::all(host, &chosen, is_asked_for, patience).await;
    let (mut failures, mut missing, mut begun) = (String::new(), Vec::new(), Vec::new());
    for ((candidate, _), outcome) in chosen.iter().zip(outcomes) {
        let (sentence, opening) = match outcome {
            Outcome::Open(notes) => {
                notes.into_iter().for_each(|note| tell(Event::Warning(note)));
                continue;
            }
            Outcome::Failed(sentence) if is_named => return Err(ServeError::Open(sentence)),
            Outcome::Failed(sentence) => (sentence, None),
            Outcome::Late(opening) => (host::mute(&candidate.name), Some(opening)),
        };
        failures.push_str(&format!("\n{sentence}"));
        let pool = Missing {
            name: candidate.name.clone(),
            guid: candidate.guid,
            is_imported: imported.iter().any(|known| known.guid == candidate.guid),
            why: sentence.clone(),
        };
        begun.extend(opening.map(|opening| (pool.clone(), opening)));
        missing.push(pool);
        tell(Event::Warning(sentence));
    }
    if !is_named {
        missing.extend(absent(config, &imported, &chosen, tell).await);
    }
    let is_waiting = !begun.is_empty() || (!is_named && missing.iter().any(Missing::is_expected));
    if host.all().is_empty() && !is_waiting && is_asked_for {
        return Err(ServeError::NoPools(failures));
    }
    Ok(Late::new(Arc::downgrade(host), missing).with_begun(begun))
}

/// The pools that were named, each once.
async fn named(config: &Config) -> Result<Vec<Wanted>, ServeError> {
    // At once: each waits a while for devices that do not answer.
    let mut looks = Vec::with_capacity(config.pools.len());
    for name in &config.pools {
        looks.push(config.places.find(name));
    }
    let mut chosen: Vec<Wanted> = Vec::new();
    for found in join_all(looks).await {
        let found = found?;
        if chosen.iter().all(|(known, _)| known.guid != found.0.guid) {
            chosen.push(found);
        }
    }
    Ok(chosen)
}

/// The pools of a daemon that was not told which. One that was never imported here may be another's, who has it: a host that
/// shares its disks, or OpenZFS on this one, which exports none when the machine stops. One that is exported may be in a shelf
/// that is about to go elsewhere. Neither is taken because it is there, nor one because it was imported here before another
/// host had it, nor is one whose import lasts until a daemon starts: they are none of those that are `imported` any more,
/// whether that can be written down or not.
async fn everything(
    config: &Config,
    imported: &mut Vec<Remembered>,
    tell: &mut Tell,
) -> Result<Vec<Wanted>, ServeError> {
    let is_told_where = !config.places.named().is_empty();
    let lapsed = match is_told_where {
        true => Vec::new(),
        false => config.places.state().passing().map_err(HostError::State)?,
    };
    let is_over = |guid: u64| lapsed.iter().any(|pool| pool.guid == guid);
    imported.retain(|known| !is_over(known.guid));
    let unwritten = match lapsed.is_empty() {
        true => None,
        false => config.places.state().lapse().err(),
    };
    let Known { mut pools, problems, .. } = config.places.all().await.map_err(HostError::State)?;
    // The cache file may list them still.
    pools.retain(|(candidate, _)| !is_over(candidate.guid));
    let mut said = problems;
    said.extend(leave_unusable_names(&mut pools, imported));
    for Remembered { name, .. } in &lapsed {
        said.push(host::lapsed(name));
        said.extend(unwritten.iter().map(|error| still_remembered(name, error)));
    }
    if !is_told_where {
        said.extend(leave_to_others(config, &mut pools, imported));
    }
    if pools.is_empty() && awaited(config, imported).await.is_empty() {
        if is_told_where {
            return Err(ServeError::NoPools(said.iter().map(|sentence| format!("\n{sentence}")).collect()));
        }
        said.push(
            "no pool to serve yet: 'millpond zpool create' makes one, 'millpond zpool import' opens one"
                .to_owned(),
        );
    }
    said.into_iter().for_each(|sentence| tell(Event::Warning(sentence)));
    Ok(pools)
}

/// Those that are waited for and were found on none of the devices they were on.
async fn absent(config: &Config, imported: &[Remembered], found: &[Wanted], tell: &mut Tell) -> Vec<Missing> {
    let mut missing = Vec::new();
    for pool in awaited(config, imported).await {
        if found.iter().any(|(found, _)| found.guid == pool.guid) {
            continue;
        }
        let why = host::absent(pool);
        tell(Event::Warning(why.clone()));
        missing.push(Missing { name: pool.name.clone(), guid: pool.guid, is_imported: true, why });
    }
    missing
}

/// Those of the imported pools that a daemon waits for which was not told which: all, or those that were where `-d` says.
async fn awaited<'a>(config: &Config, imported: &'a [Remembered]) -> Vec<&'a Remembered> {
    if config.places.named().is_empty() {
        return imported.iter().collect();
    }
    let named = real(config.places.named()).await;
    // A disk has many names below /dev.
    let is_dev = |path: &Path| path.starts_with("/dev");
    let was_there = |device: &PathBuf| {
        named.iter().any(|named| device.starts_with(named) || (is_dev(device) && is_dev(named)))
    };
    let mut meant = Vec::new();
    for pool in imported {
        if real(&pool.devices).await.iter().any(was_there) {
            meant.push(pool);
        }
    }
    meant
}

/// Pools with names that none may have are not waited for either: such a name would reach into another's. A sentence each.
fn leave_unusable_names(pools: &mut Vec<Wanted>, imported: &mut Vec<Remembered>) -> Vec<String> {
    let mut said = Vec::new();
    pools.retain(|(candidate, _)| match has_usable_name(candidate) {
        Ok(()) => true,
        Err(why) => {
            imported.retain(|known| known.guid != candidate.guid);
            said.push(why);
            false
        }
    });
    said
}

/// Those that were never imported here, or that another host has had since, are not waited for either. A sentence each, and one for
/// what cannot be forgotten.
fn leave_to_others(config: &Config, pools: &mut Vec<Wanted>, imported: &mut Vec<Remembered>) -> Vec<String> {
    let mut said = Vec::new();
    let is_anothers = |(candidate, remembered): &mut Wanted| {
        remembered.is_none() || host::is_given_away(candidate, remembered.as_ref())
    };
    for (candidate, remembered) in pools.extract_if(.., is_anothers) {
        said.push(match host::is_given_away(&candidate, remembered.as_ref()) {
            true => host::given_away(&candidate),
            false => host::never_imported(&candidate.name),
        });
        imported.retain(|known| known.guid != candidate.guid);
        if remembered.is_some()
            && let Err(error) = config.places.state().forget(&candidate.guid.to_string())
        {
            said.push(still_remembered(&candidate.name, &error));
        }
    }
    said
}

/// What is said of a pool that is not opened, if that cannot be written down.
fn still_remembered(name: &str, error: &StateError) -> String {
    format!("pool '{name}' stays remembered: {}", host::chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::Places, state::State};

    /// A stranger's was tried again for ever, and whoever asked for what 'tank' does not have was told that it may come.
    #[tokio::test]
    async fn a_pool_with_a_name_that_none_may_have_is_not_waited_for() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let (well, _) = places.find("psingle").await.unwrap();
        let mut forged = well.clone();
        "tank/vms".clone_into(&mut forged.name);
        let mut pools = vec![(forged, None), (well, None)];
        let said = leave_unusable_names(&mut pools, &mut Vec::new());
        assert!(said.len() == 1 && said[0].contains("cannot open 'tank/vms'"), "{said:?}");
        assert!(pools.len() == 1 && pools[0].0.name == "psingle");
    }

    /// It went to the terminal and into the log as it was: escape sequences, line feeds, however long.
    #[tokio::test]
    async fn a_name_that_none_may_have_is_shown_in_a_line_of_its_length() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let (mut forged, _) = places.find("psingle").await.unwrap();
        forged.name = "a\n\u{1b}[2J".to_owned();
        let said = has_usable_name(&forged).unwrap_err();
        assert!(said.starts_with("cannot open 'a\u{fffd}\u{fffd}[2J': invalid character"), "{said:?}");
        forged.name = "x".repeat(70_000);
        let said = has_usable_name(&forged).unwrap_err();
        assert!(said.len() < 400 && said.contains("x': name is too long"), "{said:.400}");
    }
}
