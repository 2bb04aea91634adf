//! `zpool create`, `destroy`, `export`, `import`, `add`, `remove`, `set`, `sync`, `history`.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use disk::Disk;
use engine::{
    create::{self, CreateOptions, Plan, PlannedLeaf, Removal},
    dsl::{self, OpError, Properties, Stored},
    engine::{Ending, Engine},
    mos::features as counts,
    second::{self, Config as TierConfig},
};
use pool::{
    Pool,
    dsl::DatasetKind,
    features::Feature,
    import::Rewind,
    props::{
        Types, Value,
        parse::{self, Moment},
        value::{self, bytes},
    },
    status::human,
};

use super::{
    Answer, Assignment, Failure, PoolAdd, PoolCreate, PoolImport,
    cx::{Cx, Record},
    devices::{self, Wish},
    failure::{PoolError, refused, suspended},
    held::Held,
    host::{LOCK_PATIENCE, Mode, seed, workers},
    names, pool_of, properties,
};
use crate::{
    history,
    host::{Foreign, HostError, Places, Settings, chain},
    hostid, logs,
    shares::{TargetConfig, property},
    state::Remembered,
};

/// State of a destroyed pool in its labels.
const DESTROYED: u64 = 2;
/// Pool properties that have no meaning here, and are accepted for scripts: nothing is mounted.
const WITHOUT_EFFECT: [&str; 2] = ["altroot", "version"];
/// Bytes of a volume's block, unless it was made otherwise.
const VOLUME_BLOCK: u64 = 16 << 10;
/// log2 of a sector, where it makes next to no difference.
const SECTOR_SHIFT: u32 = 12;
/// Pool properties that take what this version lacks.
const NOT_SUPPORTED: [&str; 2] = ["bootfs", "dedup_table_quota"];

/// Said of `autotrim=on`.
const NO_AUTOTRIM: &str =
    "'autotrim' is kept for other software: this version does not trim by itself: use `zpool trim`";

/// What `-o` of `zpool create`, `zpool import` and `zpool add` says.
#[derive(Debug, Default)]
pub(super) struct PoolWish {
    pub(super) ashift: Option<u32>,
    compatibility: String,
    /// Short names, and whether they are to be enabled.
    features: Vec<(String, bool)>,
    properties: Properties,
    /// `cachefile`: whether it is opened by itself at the next start. Which file remembers it is not for choice.
    is_listed: Option<bool>,
}

impl PoolWish {
    /// Whether it is about devices only: what may be said of those that come into a pool.
    pub(super) fn is_of_devices(&self) -> bool {
        self.properties.is_empty() && self.features.is_empty()
    }

    fn changes_something(&self) -> bool {
        self.ashift.is_some() || !self.is_of_devices()
    }

    /// What is kept for others that have the pool one day, and has no effect here.
    fn notes(&self) -> Vec<String> {
        let trims = self.properties.get("autotrim") == Some(&Stored::Number(1));
        trims.then(|| NO_AUTOTRIM.to_owned()).into_iter().collect()
    }
}

pub(super) fn understand(assignments: &[Assignment], moment: Moment) -> Result<PoolWish, String> {
    let mut wish = PoolWish { compatibility: "off".to_owned(), ..PoolWish::default() };
    for (name, text) in assignments {
        if let Some(feature) = name.strip_prefix("feature@") {
            let enabled = match text.as_str() {
                "enabled" => true,
                "disabled" if moment == Moment::Creating => false,
                _ => {
                    return Err(format!(
                        "property '{name}' can only be set to 'enabled' or 'disabled' (the latter when a pool is created)"
                    ));
                }
            };
            if Feature::by_name(feature).is_none() {
                return Err(format!("invalid feature '{feature}', '{name}'"));
            }
            wish.features.push((feature.to_owned(), enabled));
            continue;
        }
        let (name, value) = parse::pool(name, text, moment).map_err(|error| error.to_string())?;
        if NOT_SUPPORTED.contains(&name.as_str()) {
            return Err(format!("'{name}' is not supported by this version"));
        }
        if name == "multihost" && value == Value::Number(1) && hostid::hostid() == 0 {
            return Err("requires a non-zero system hostid: write one to /etc/hostid (zgenhostid)".to_owned());
        }
        match (name.as_str(), value) {
            ("ashift", Value::Number(0)) => {}
            ("ashift", Value::Number(shift)) => wish.ashift = u32::try_from(shift).ok(),
            ("cachefile", Value::Text(text)) => wish.is_listed = Some(text != "none"),
            (name, _) if WITHOUT_EFFECT.contains(&name) => {}
            (_, value) => {
                if let ("compatibility", Value::Text(text)) = (name.as_str(), &value) {
                    wish.compatibility.clone_from(text);
                }
                let stored = match value {
                    Value::Number(number) => Stored::Number(number),
                    Value::Text(text) => Stored::Text(text),
                };
                if wish.properties.insert(name.clone(), stored).is_some() {
                    return Err(format!("property '{name}' specified multiple times"));
                }
            }
        }
    }
    Ok(wish)
}

/// Adds a feature behind those it needs.
fn enable(feature: &'static Feature, enabled: &mut Vec<&'static str>) {
    if enabled.contains(&feature.guid) {
        return;
    }
    for needed in feature.depends.iter().filter_map(|guid| Feature::by_guid(guid)) {
        enable(needed, enabled);
    }
    enabled.push(feature.guid);
}

/// The layout, and what it holds.
fn describe(plan: &Plan, pool: &str, is_new: bool) -> Vec<String> {
    let mut lines: Vec<String> = plan.describe(pool).lines().map(str::to_owned).collect();
    let capacities = plan.capacity();
    if capacities.iter().all(|capacity| capacity.bytes == 0) {
        return lines; // nothing of it holds volumes: cache, log, spare
    }
    let about = if is_new {
        "volumes written in full would fit, by volblocksize, with parity and padding:"
    } else {
        "further volumes written in full would fit, by volblocksize, with parity and padding:"
    };
    lines.extend([String::new(), about.to_owned()]);
    for capacity in capacities {
        lines.push(format!("\t{:>5}  {}", bytes(capacity.block.into()), bytes(capacity.bytes)));
    }
    lines
}

/// What cache devices ask of memory when they are full of blocks of these sizes, and what becomes of them at a restart.
fn about_caches(plan: &Plan, blocks: &BTreeSet<u64>, config: &TierConfig) -> Vec<String> {
    let mut lines = Vec::new();
    for leaf in &plan.caches {
        let full = |block: &u64| {
            format!(
                "{} with {} blocks",
                human(second::memory_needed(leaf.facts.bytes, *block)),
                human(*block)
            )
        };
        let full: Vec<String> = blocks.iter().rev().map(full).collect();
        lines.push(format!(
            "cache device {}: {} bytes of memory for each block it holds; full, {}",
            leaf.path,
            second::BLOCK_NEEDS,
            full.join(", ")
        ));
        lines.extend(what_is_forgotten(leaf, config));
    }
    lines
}

/// That a cache device is too small to remember what it holds, if it is.
fn what_is_forgotten(leaf: &PlannedLeaf, config: &TierConfig) -> Option<String> {
    if second::remembers(leaf.facts.bytes, SECTOR_SHIFT, config) {
        return None;
    }
    // Exact: `human` makes 1024M of the 1023.5M that there are of 1G.
    let reach = second::reach(leaf.facts.bytes) as f64 / f64::from(1 << 20);
    Some(format!(
        "cache device {}: of its {}, {reach}M lie before the labels at its end, which is less than {}, so what it holds is \
         forgotten when the pool is opened again",
        leaf.path,
        human(leaf.facts.bytes),
        human(config.persist_min)
    ))
}

/// The same behind something else.
fn below(mut lines: Vec<String>) -> Vec<String> {
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}

/// The block sizes of a pool's volumes; where there is none, that of the next.
async fn volume_blocks(pool: &Pool) -> BTreeSet<u64> {
    let mut blocks = BTreeSet::new();
    if let Ok(dsl) = pool.dsl().await
        && let Ok((volumes, _unread)) = dsl.volumes().await
    {
        for volume in volumes.iter().filter(|volume| volume.kind() == DatasetKind::Head) {
            if let Ok(set) = volume.objset().await
                && let Ok(shape) = pool::volume::shape(set.as_ref()).await
            {
                blocks.insert(shape.block);
            }
        }
    }
    if blocks.is_empty() { BTreeSet::from([VOLUME_BLOCK]) } else { blocks }
}

/// `zpool create`
pub(crate) async fn create(cx: &Cx<'_>, new: PoolCreate) -> Result<Answer, Failure> {
    let host = cx.host;
    let what = format!("cannot create '{}'", new.pool);
    if new.pool.contains('/') {
        return Err(Failure::new(format!(
            "{what}: invalid character '/' in pool name\nuse 'zfs create' to create a dataset"
        )));
    }
    names::pool(&new.pool).map_err(|why| Failure::because(&what, why))?;
    if host.mode() == Mode::ReadOnly {
        return Err(Failure::because(&what, "the daemon was started with --readonly"));
    }
    let wish = understand(&new.properties, Moment::Creating).map_err(|why| Failure::because(&what, why))?;
    let mut enabled = match new.no_features {
        true => Vec::new(),
        false => create::features(&wish.compatibility).map_err(|error| devices::refused(&what, &error))?,
    };
    for (name, on) in &wish.features {
        let Some(feature) = Feature::by_name(name) else { continue };
        match on {
            true => enable(feature, &mut enabled),
            false => enabled.retain(|guid| *guid != feature.guid),
        }
    }
    let root = root_properties(&new.root_properties, &enabled).map_err(|why| Failure::because(&what, why))?;
    let known = host.places().imported().await.map_err(|error| Failure::because(&what, chain(&error)))?;
    let taken = known.iter().any(|(pool, _)| pool.name == new.pool) || host.find(&new.pool).is_some();
    if taken && host.readable(&new.pool).await.is_ok() {
        return Err(Failure::because(&what, "pool already exists"));
    }
    if taken {
        return Err(Failure::because(
            &what,
            format_args!(
                "pool already exists: it is imported here, and not open\nto forget it: 'zpool export {}'",
                new.pool
            ),
        ));
    }
    let late = host.places().state().pools().map_err(|error| Failure::because(&what, chain(&error)))?;
    if let Some(late) = late.iter().find(|pool| pool.name == new.pool) {
        return Err(Failure::because(
            &what,
            format_args!(
                "pool already exists: it was imported from {}, where nothing of it is now\nto forget it: 'zpool export {}'",
                late.places(),
                late.name
            ),
        ));
    }
    let device_wish = Wish { file_size: new.file_size, force: new.force, ashift: wish.ashift };
    let plan = devices::plan(&new.devices, &what, device_wish).await?;
    let (blocks, tier) = (BTreeSet::from([VOLUME_BLOCK]), host.tier());
    if new.dry_run {
        let mut lines =
            vec![format!("would create '{}' with the following layout:", new.pool), String::new()];
        lines.extend(describe(&plan, &new.pool, true));
        lines.extend(below(about_caches(&plan, &blocks, &tier)));
        return Ok(Answer { lines, warnings: wish.notes(), ..Answer::default() });
    }
    host.places().state().check().map_err(|error| {
        let why = chain(&error);
        Failure::because(
            &what,
            format_args!(
                "it could not be remembered for the next command: {why}\nto have that elsewhere: '--state DIR', or MILLPOND_STATE"
            ),
        )
    })?;
    let mut warnings = wish.notes();
    let taken = devices::take(host, &plan, &what, device_wish).await?;
    let options = CreateOptions {
        name: new.pool.clone(),
        features: enabled,
        pool_properties: wish.properties,
        root_properties: root,
        hostid: hostid::hostid(),
        hostname: hostid::hostname(),
        now: hostid::now(),
        seed: seed(),
        cache: host.cache(),
        workers: workers(),
        history: cx.record.as_ref().map(Record::to_nvlist),
    };
    let syncer = Box::pin(create::create(&plan, &taken.disks(), options)).await;
    let syncer = syncer.map_err(|error| refused(&what, &error))?;
    let engine = Box::pin(Engine::start_caching(syncer, host.options(), host.tier())).await;
    let engine = engine.map_err(|error| Failure::because(&what, chain(&error)))?;
    taken.keep();
    // What changes the pool from now on waits until it is served as it is now.
    let _turn = host.turn(&new.pool).await;
    let held = host.keep(Held::writing(engine));
    let settings = Settings { listed: Some(wish.is_listed != Some(false)), ..Settings::default() };
    let remembered = host.remember(&held, &settings, None);
    warnings.extend(cx.served(&held).await);
    if let Err(error) = remembered {
        return Err(Failure::new(format!(
            "'{}' is created, and cannot be remembered for the next command: {}\nto have it then: 'zpool import{} {}'",
            new.pool,
            chain(&error),
            search_options(plan.paths().into_iter().map(Path::new)),
            new.pool
        )));
    }
    let replayed = held.engine().and_then(|engine| logs::replayed(engine));
    let mut lines: Vec<String> = replayed.as_ref().and_then(logs::replayed_line).into_iter().collect();
    lines.extend(about_caches(&plan, &blocks, &tier));
    Ok(Answer { lines, warnings, ..Answer::default() })
}

/// Where its devices are found, as options of `zpool import`.
fn search_options<'a>(devices: impl Iterator<Item = &'a Path>) -> String {
    let dirs: BTreeSet<&Path> = devices.filter_map(Path::parent).collect();
    dirs.into_iter().map(|dir| format!(" -d {}", dir.display())).collect()
}

/// Properties of a root dataset whose pool will have these features. What lz4 comes to without its own is what `on` does.
fn root_properties(assignments: &[Assignment], enabled: &[&str]) -> Result<Properties, String> {
    let mut all = Properties::new();
    for (name, text) in assignments {
        let parsed = parse::dataset(name, text, Types::FILESYSTEM, Moment::Creating)
            .map_err(|error| error.to_string())?;
        let parse::Parsed::Value(name, value) = parsed else {
            return Err(parse::ParseError::AutoOnVolumes("refreservation").to_string());
        };
        properties::supported(&name, &value)?;
        if let Some(guid) = properties::feature_of(&name, &value)
            && guid != "org.illumos:lz4_compress"
            && !enabled.contains(&guid)
        {
            let short = Feature::by_guid(guid).map_or(guid, |feature| feature.name);
            return Err(format!(
                "pool and or dataset must be upgraded to set this property or value\nto allow it: '-o feature@{short}=enabled'"
            ));
        }
        let stored = match value {
            Value::Number(number) => Stored::Number(number),
            Value::Text(text) => Stored::Text(text),
        };
        if all.insert(name.clone(), stored).is_some() {
            return Err(format!("property '{name}' specified multiple times"));
        }
    }
    Ok(all)
}

/// `zpool add`
pub(crate) async fn add(cx: &Cx<'_>, new: PoolAdd) -> Result<Answer, Failure> {
    let what = format!("cannot add to '{}'", new.pool);
    let wish = understand(&new.properties, Moment::Creating).map_err(|why| Failure::because(&what, why))?;
    if !wish.is_of_devices() {
        return Err(Failure { code: 2, ..Failure::new("only 'ashift' can be given when devices are added") });
    }
    let held = match new.dry_run {
        true => cx.host.readable(&new.pool).await,
        false => cx.host.writable(&new.pool).await,
    };
    let held = held.map_err(|error| error.of_change(&what, &new.pool))?;
    let device_wish = Wish { file_size: new.file_size, force: new.force, ashift: wish.ashift };
    let plan = devices::plan(&new.devices, &what, device_wish).await?;
    if !new.force {
        plan.check_like(&held.view().tree()).map_err(|error| devices::refused(&what, &error))?;
    }
    let caches = about_caches(&plan, &volume_blocks(&held.view()).await, &cx.host.tier());
    if new.dry_run {
        let mut lines =
            vec![format!("would update '{}' to the following configuration:", held.name()), String::new()];
        lines.extend(describe(&plan, held.name(), false));
        lines.extend(below(caches));
        return Ok(Answer { lines, ..Answer::default() });
    }
    let taken = devices::take(cx.host, &plan, &what, device_wish).await?;
    let disks = taken.disks();
    cx.change(&held, &what, false, move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await }))
        .await?;
    taken.keep();
    let kept = cx.host.remember_devices(&held);
    let warnings = kept.err().map(|error| chain(&error)).into_iter().collect();
    Ok(Answer { lines: caches, warnings, ..Answer::default() })
}

/// `zpool remove`
pub(crate) async fn remove(
    cx: &Cx<'_>,
    name: &str,
    words: &[String],
    dry_run: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot remove from '{name}'");
    let held = cx.host.writable(name).await.map_err(|error| error.of_change(&what, name))?;
    let Some(engine) = held.engine() else {
        return Err(Failure::because(&what, "pool is read-only"));
    };
    // All of them are known, and of no use any more, before the first is gone.
    let mut removals: Vec<(Removal, &String)> = Vec::with_capacity(words.len());
    for word in words {
        let what = format!("cannot remove {word}");
        let view = held.view();
        let found = devices::find(&view, word, |word| Removal::find(&view, word));
        let removal = found.map_err(|error| refused(&what, &error))?;
        // One device may have several names here.
        if removals.iter().all(|(known, _)| !known.is_same(&removal)) {
            removals.push((removal, word));
        }
    }
    if dry_run {
        return Ok(Answer::default());
    }
    for (removal, word) in &removals {
        let vacated = removal.vacate(engine).await;
        vacated.map_err(|error| refused(&format!("cannot remove {word}"), &error))?;
    }
    let removals: Vec<Removal> = removals.into_iter().map(|(removal, _)| removal).collect();
    let leaving = removals.clone();
    let what = format!("cannot remove {}", words.join(", "));
    let change = cx.change(&held, &what, false, move |cx| {
        Box::pin(async move { Removal::finish_all(&leaving, cx).await })
    });
    change.await?;
    let tree = held.view().tree();
    let disks: Vec<Arc<dyn Disk>> = removals.iter().flat_map(|removal| removal.disks(&tree)).collect();
    let mut warnings = Vec::new();
    for disk in disks {
        // The pool does not know it any more: its labels would only confuse people.
        let path = disk.info().path;
        let cleared = match engine.suspension().may_write() {
            Ok(()) => devices::clear(disk).await,
            // It may be in another host's pool by now.
            Err(error) => Err(error),
        };
        if let Err(error) = cleared {
            warnings.push(format!("{path}: its labels could not be cleared: {}", chain(&error)));
        }
    }
    let kept = cx.host.remember_devices(&held);
    warnings.extend(kept.err().map(|error| chain(&error)));
    Ok(Answer { warnings, ..Answer::default() })
}

/// `zpool destroy`
pub(crate) async fn destroy(cx: &Cx<'_>, name: &str, force: bool) -> Result<Answer, Failure> {
    let held = cx.host.writable(name).await.map_err(|error| {
        let is_only_remembered = matches!(error, PoolError::Unopenable { .. });
        let mut failure = error.of_pool(name);
        if is_only_remembered {
            failure.message.push_str(&format!("\nto forget it: 'zpool export {name}'"));
        }
        failure
    })?;
    leave(cx, &held, force, &format!("cannot destroy '{name}'"), Ending::Destroy).await
}

/// `zpool export`
pub(crate) async fn export(cx: &Cx<'_>, name: &str, force: bool) -> Result<Answer, Failure> {
    let what = format!("cannot export '{name}'");
    let held = match cx.host.pool(name).await {
        Ok(held) => held,
        // Imported, and no longer on its devices: there is nothing to write to, only to forget.
        Err(PoolError::Missing(hint)) => {
            return match cx.host.places().state().forget(name) {
                Ok(true) => Ok(Answer::default()),
                Ok(false) => Err(PoolError::Missing(hint).of_pool(name)),
                Err(error) => Err(Failure::because(&what, chain(&error))),
            };
        }
        // Likewise: too little of it is left, or another host has it. What its devices say stays as it is.
        Err(PoolError::Unopenable { guid, why }) => {
            let forgotten = cx.host.places().state().forget(&guid.to_string());
            forgotten.map_err(|error| Failure::because(&what, chain(&error)))?;
            let why = why.lines().next().unwrap_or_default();
            let warning = format!(
                "{why}\nit is forgotten, and its devices were not touched; to have it back: 'zpool import {name}'"
            );
            return Ok(Answer { warnings: vec![warning], ..Answer::default() });
        }
        Err(error) => return Err(error.of_pool(name)),
    };
    if let Some(why) = held.suspended() {
        let give_up = format!("to give up what could not be written: 'zpool export -F {name}'");
        return Err(Failure::new(format!("{what}: {}\n{give_up}", suspended(name, &why))));
    }
    spare_clients(cx, &held, force, &what)?;
    if held.engine().is_some() && cx.record.is_some() {
        // The last thing its history tells.
        cx.change(&held, &what, false, |_| Box::pin(async { Ok(()) })).await?;
    }
    leave(cx, &held, force, &what, Ending::Export).await
}

/// `zpool export -F`: for a pool that cannot be written to any more, and will not be. One that can be loses what is not on
/// its devices yet, and its clients, for nothing.
pub(crate) async fn abandon(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let Some(held) = cx.host.find(name) else {
        // A command without a daemon has nothing that waits.
        return Box::pin(export(cx, name, true)).await;
    };
    let Some(why) = held.suspended() else {
        return Err(Failure::new(format!(
            "cannot give up '{name}': it is not suspended\nuse 'zpool export {name}', with '-f' even if clients are connected"
        )));
    };
    if let Some(serving) = &cx.host.serving {
        serving.withdraw_pool(&held).await;
        serving.names_are_free();
    }
    let mut warnings = Vec::new();
    if let Some(engine) = held.engine() {
        engine.abandon().await;
        warnings.push(format!("'{name}' was suspended ({why}): what was not flushed is lost"));
    }
    cx.host.release(held.guid());
    let forgotten = cx.host.places().state().forget(&held.guid().to_string());
    warnings.extend(forgotten.err().map(|error| chain(&error)));
    Ok(Answer { warnings, ..Answer::default() })
}

/// A pool with clients stays, unless that is overridden.
fn spare_clients(cx: &Cx<'_>, held: &Held, force: bool, what: &str) -> Result<(), Failure> {
    let is_busy = cx.host.serving.as_ref().is_some_and(|serving| serving.clients_of_pool(held.name()) > 0);
    if is_busy && !force { Err(Failure::because(what, "pool is busy")) } else { Ok(()) }
}

/// Ends a pool's life here.
async fn leave(cx: &Cx<'_>, held: &Held, force: bool, what: &str, ending: Ending) -> Result<Answer, Failure> {
    spare_clients(cx, held, force, what)?;
    if let Some(serving) = &cx.host.serving {
        serving.withdraw_pool(held).await;
        serving.names_are_free();
    }
    let ended = cx.host.end(held, ending).await;
    ended.map_err(|error| Failure::because(what, chain(&error)))?;
    let forgotten = cx.host.places().state().forget(&held.guid().to_string());
    let warnings = forgotten.err().map(|error| chain(&error)).into_iter().collect();
    Ok(Answer { warnings, ..Answer::default() })
}

/// `zpool import NAME`
pub(crate) async fn import(cx: &Cx<'_>, asked: PoolImport) -> Result<Answer, Failure> {
    let (host, name) = (cx.host, asked.pool.as_str());
    let what = format!("cannot import '{name}'");
    if let Some(new_name) = &asked.new_name {
        names::pool(new_name).map_err(|why| Failure::because(&what, why))?;
    }
    let wish = understand(&asked.properties, Moment::Later).map_err(|why| Failure::because(&what, why))?;
    let exists = |what: &str| {
        Failure::new(format!(
            "{what}: a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name"
        ))
    };
    let state = host.places().state().clone();
    let places = match asked.search.is_empty() {
        true => host.places().clone(),
        false => Places::new(asked.search.clone(), state.clone()),
    };
    let failed = |error: &dyn std::error::Error| Failure::because(&what, chain(error));
    // A daemon may take over what a command imported; a command finds what is imported busy.
    let mut imported = match host.mode() {
        Mode::Command => places.imported().await.map_err(|error| failed(&error))?,
        Mode::Daemon | Mode::ReadOnly => Vec::new(),
    };
    let is_meant = |pool: &Remembered| pool.name == *name || pool.guid.to_string() == *name;
    // To try that is to open it for writing, so not for whoever only looks.
    if (asked.missing_log || asked.recover)
        && !(asked.read_only || asked.dry_run || asked.txg.is_some())
        && let Some(at) = imported.iter().position(|(pool, _)| is_meant(pool))
        && let Err(PoolError::Unopenable { .. }) = host.pool(&imported[at].0.guid.to_string()).await
    {
        // All that is left of its import is that it is remembered, and for want of its log, or of its newest state, nobody can
        // open it.
        imported.remove(at);
    }
    let is_held = |guid: u64| {
        imported.iter().any(|(pool, _)| pool.guid == guid)
            || host.all().iter().any(|held| held.guid() == guid)
    };
    let mut known = places.scan().await;
    known.pools.retain(|(candidate, _)| {
        !is_held(candidate.guid) && (candidate.state.id() == DESTROYED) == asked.destroyed
    });
    let problems = known.problems.clone();
    let candidate = match known.select(name) {
        Ok(Some((candidate, _))) => candidate,
        Ok(None) => {
            let held = imported.iter().any(|(pool, _)| is_meant(pool));
            if held || host.find(name).is_some() {
                return Err(exists(&what));
            }
            let why = problems.iter().map(|problem| format!("{problem}\n")).collect::<String>();
            return Err(Failure {
                not_found: true,
                ..Failure::new(format!("{why}{what}: no such pool available"))
            });
        }
        Err(HostError::Ambiguous { guids, .. }) => {
            let guids: Vec<String> = guids.iter().map(|guid| format!("\t{guid}")).collect();
            let guids = guids.join("\n");
            return Err(Failure::new(format!(
                "{what}: more than one matching pool\nimport by numeric ID instead:\n{guids}"
            )));
        }
        Err(error) => return Err(failed(&error)),
    };
    let has_namesake = known.pools.iter().any(|(other, _)| other.name == candidate.name)
        || imported.iter().any(|(pool, _)| pool.name == candidate.name)
        || host.all().iter().any(|held| held.name() == candidate.name);
    // People know pools by their names; a guid tells apart those of one name.
    let what = match has_namesake && *name != *candidate.name {
        true => format!("cannot import '{}' ({})", candidate.name, candidate.guid),
        false => format!("cannot import '{}'", candidate.name),
    };
    let new_name = asked.new_name.clone().unwrap_or_else(|| candidate.name.clone());
    let taken = imported.iter().any(|(pool, _)| pool.name == new_name)
        || host.all().iter().any(|held| held.name() == new_name);
    if taken {
        return Err(exists(&what));
    }
    // If that cannot be read it is said when this one cannot be remembered.
    let known = state.pools().unwrap_or_default();
    let is_waited_for = |known: &&Remembered| known.name == new_name && known.guid != candidate.guid;
    if let Some(other) = known.iter().find(is_waited_for) {
        return Err(Failure::because(
            &what,
            format_args!(
                "another pool of that name was imported from {}, and is not open\nuse the form 'zpool import <pool | id> \
                 <newpool>' to give this one a new name; or to forget the other: 'zpool export {new_name}'",
                other.places()
            ),
        ));
    }
    let rewind = match (asked.txg, asked.recover) {
        (Some(txg), _) => Rewind::To(txg),
        (None, true) => Rewind::Recover,
        (None, false) => Rewind::Latest,
    };
    let settings = Settings {
        foreign: if asked.force { Foreign::Open } else { Foreign::Refuse },
        rewind,
        destroyed: asked.destroyed,
        missing_log: asked.missing_log,
        read_only: asked.read_only || asked.dry_run || asked.txg.is_some(),
        listed: Some(wish.is_listed != Some(false)),
        ..Settings::default()
    };
    let rename = asked.new_name.clone().filter(|new_name| *new_name != candidate.name);
    if rename.is_some() && settings.read_only {
        return Err(Failure::because(&what, "a pool that is imported read-only keeps its name"));
    }
    if wish.changes_something() && settings.read_only && !asked.dry_run {
        return Err(Failure::because(&what, "a pool that is imported read-only keeps its properties"));
    }
    let opened = host.open(&candidate, None, &settings, rename, LOCK_PATIENCE).await;
    // Its text without `cannot open …`: here it is `cannot import …`.
    let (held, notes) = opened.map_err(|sentence| {
        let prefix = format!("cannot open '{}': ", candidate.name);
        Failure::because(&what, sentence.strip_prefix(&prefix).unwrap_or(&sentence))
    })?;
    if asked.dry_run {
        let when = value::date(held.view().uberblock().timestamp, |_| 0, true);
        let line = format!("Would be able to return {} to its state as of {when} UTC.", held.name());
        return Ok(Answer { warnings: vec![line], ..Answer::default() });
    }
    let mut warnings = notes;
    // It is open: from here on it is kept, whatever else goes wrong, or nobody could reach it any more.
    let remembered = host.remember(&held, &settings, None);
    // What changes the pool from now on waits until it is served as it is now.
    let _turn = host.turn(held.name()).await;
    let held = host.keep(held);
    let mut unset = None;
    if wish.changes_something() {
        warnings.extend(wish.notes());
        let set = assign(cx, &held, &format!("cannot set properties of '{}'", held.name()), wish).await;
        unset = set.err().map(|why| Failure::new(format!("{why}\nit is imported all the same")));
    } else if held.engine().is_some() && cx.record.is_some() {
        let noted = cx.change(&held, &what, false, |_| Box::pin(async { Ok(()) })).await;
        warnings.extend(noted.err().map(|why| format!("its history does not tell of the import: {why}")));
    }
    warnings.extend(cx.served(&held).await);
    // Opening it had the same to say of what it could not write.
    let mut said = BTreeSet::new();
    warnings.retain(|warning| said.insert(warning.clone()));
    if let Err(error) = remembered {
        let (why, devices) = (chain(&error), crate::host::devices(&held.view()));
        warnings.retain(|warning| *warning != why);
        warnings.push(format!(
            "'{0}' is imported, and cannot be remembered for the next command: {why}\nto have it then: 'zpool import{1} {0}'",
            held.name(),
            search_options(devices.iter().map(|path| path.as_path())),
        ));
        warnings.extend(unset.map(|failure| failure.message));
        return Err(Failure::new(warnings.join("\n")));
    }
    if let Some(failure) = unset {
        return Err(failure);
    }
    Ok(Answer { warnings, ..Answer::default() })
}

/// `zpool set`
pub(crate) async fn set(cx: &Cx<'_>, name: &str, property: &Assignment) -> Result<Answer, Failure> {
    let what = format!("cannot set property for '{name}'");
    let wish = understand(std::slice::from_ref(property), Moment::Later)
        .map_err(|why| Failure::because(&what, why))?;
    let held = cx.host.writable(name).await.map_err(|error| error.of_change(&what, name))?;
    spare_target(cx, &held, property).map_err(|why| Failure::because(&what, why))?;
    let (mut warnings, is_listed) = (wish.notes(), wish.is_listed);
    assign(cx, &held, &what, wish).await?;
    if let Some(is_listed) = is_listed {
        cx.host.list(&held, is_listed).map_err(|error| Failure::because(&what, chain(&error)))?;
    }
    warnings.extend(cx.served(&held).await);
    Ok(Answer { warnings, ..Answer::default() })
}

/// Refuses what takes a target from initiators that are logged in: no text of its settings, or one that is none.
fn spare_target(cx: &Cx<'_>, held: &Held, (name, text): &Assignment) -> Result<(), String> {
    let (Some(serving), Some(iqn)) = (&cx.host.serving, name.strip_prefix(property::TARGET)) else {
        return Ok(());
    };
    let sessions = serving.sessions_of(held.name(), iqn);
    if sessions == 0 || serde_json::from_str::<TargetConfig>(text).is_ok() {
        return Ok(());
    }
    Err(format!(
        "{sessions} initiators are logged in ('millpond initiators'), and these are no settings of a target; use 'millpond share \
         target destroy -f {iqn}' to cut them off"
    ))
}

/// Gives a pool that is open properties, all of them or none. `what` is what cannot be done if it is refused.
async fn assign(cx: &Cx<'_>, held: &Held, what: &str, wish: PoolWish) -> Result<(), Failure> {
    let mut properties = wish.properties;
    if let Some(shift) = wish.ashift {
        properties.insert("ashift".to_owned(), Stored::Number(shift.into()));
    }
    let mut features = Vec::new();
    for (name, _) in &wish.features {
        features.extend(Feature::by_name(name));
    }
    let has: Vec<String> = held.view().features().iter().map(|feature| feature.guid.clone()).collect();
    let mut wanted = Vec::new();
    features.into_iter().for_each(|feature| enable(feature, &mut wanted));
    wanted.retain(|guid| !has.iter().any(|known| known == guid));
    cx.change(held, what, false, move |cx| {
        Box::pin(async move {
            // First all that may be refused.
            for guid in &wanted {
                if let Some(why) = counts::obstacle(&mut cx.mos, guid).await? {
                    return Err(OpError::Refused(why.to_owned()));
                }
            }
            for guid in wanted {
                counts::enable(&mut cx.mos, guid, cx.txg).await?;
            }
            if properties.is_empty() { Ok(()) } else { dsl::set_pool(cx, &properties).await }
        })
    })
    .await
}

/// `zpool sync`
pub(crate) async fn sync(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let held = cx.host.writable(name).await.map_err(|error| error.of_pool(name))?;
    if let Some(engine) = held.engine() {
        let synced = engine.sync().await;
        synced.map_err(|error| Failure::because(&format!("sync '{name}' failed"), error))?;
    }
    Ok(Answer::default())
}

/// `zpool history`
pub(crate) async fn history(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let held: Arc<Held> = cx.host.readable(pool_of(name)).await.map_err(|error| error.of_pool(name))?;
    let (history, warnings) = history::read(&held.view()).await.map_err(Failure::new)?;
    Ok(Answer { history, warnings, ..Answer::default() })
}

#[cfg(test)]
mod tests {
    use engine::create::DeviceFacts;

    use super::*;
    use crate::{
        ops::{Host, Operation, Request, run},
        state::State,
    };

    /// The engine ran, locked the devices, and no command could reach it: the daemon had to be ended.
    #[tokio::test]
    async fn a_pool_that_cannot_be_remembered_is_imported_all_the_same_and_it_is_said() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let state = State::at(kept.path());
        std::fs::write(state.file(), "{nonsense").unwrap();
        let places = Places::new(vec![dir.path().to_owned()], state);
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let import = PoolImport { pool: "psingle".to_owned(), ..PoolImport::default() };
        let request = Request { operation: Operation::PoolImport(import), command: None, user: 0 };
        let failure = run(&host, request).await.unwrap_err();
        assert_eq!(failure.message.matches("pools.json").count(), 1, "{failure}");
        let remedy = format!("'zpool import -d {} psingle'", dir.path().display());
        assert!(failure.code == 1 && failure.message.contains(&remedy), "{failure}");
        let held = host.find("psingle").expect("it is open, and can be exported");
        host.end(&held, Ending::Export).await.unwrap();
    }

    /// It ended with success, and the next command knew no such pool.
    #[tokio::test]
    async fn a_pool_that_cannot_be_remembered_is_created_and_how_to_find_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("state"));
        // As if the directory had no room for another file.
        std::fs::create_dir_all(dir.path().join("state/pools.json.new/in the way")).unwrap();
        let host = Arc::new(Host::new(Places::new(Vec::new(), state), Mode::Command, Settings::default()));
        let disk = dir.path().join("disk");
        let create = PoolCreate {
            pool: "tank".to_owned(),
            devices: vec![disk.display().to_string()],
            file_size: Some(64 << 20),
            ..PoolCreate::default()
        };
        let request = Request { operation: Operation::PoolCreate(create), command: None, user: 0 };
        let failure = run(&host, request).await.unwrap_err();
        let remedy = format!("'zpool import -d {} tank'", dir.path().display());
        assert!(failure.code == 1 && failure.message.contains(&remedy), "{failure}");
        host.close().await.unwrap();
        let found = Places::new(vec![dir.path().to_owned()], State::at(dir.path().join("none"))).scan().await;
        assert_eq!(found.pools.len(), 1);
    }

    /// A user who may not write to the state directory had a pool on his devices, and an error.
    #[tokio::test]
    async fn a_pool_that_nothing_could_remember_is_not_created() {
        let dir = tempfile::tempdir().unwrap();
        // Root may write everywhere; but this is no file.
        std::fs::create_dir_all(dir.path().join("state/lock")).unwrap();
        let state = State::at(dir.path().join("state"));
        let host = Arc::new(Host::new(Places::new(Vec::new(), state), Mode::Command, Settings::default()));
        let disk = dir.path().join("disk");
        let create = PoolCreate {
            pool: "tank".to_owned(),
            devices: vec![disk.display().to_string()],
            file_size: Some(64 << 20),
            ..PoolCreate::default()
        };
        let request = Request { operation: Operation::PoolCreate(create), command: None, user: 0 };
        let failure = run(&host, request).await.unwrap_err();
        assert!(failure.message.starts_with("cannot create 'tank': it could not be remembered"), "{failure}");
        assert!(failure.code == 1 && failure.message.contains("--state DIR"), "{failure}");
        assert!(!disk.exists() && host.find("tank").is_none(), "nothing was touched");
    }

    #[tokio::test]
    async fn an_import_sets_properties_and_refuses_what_cannot_be_before_it_opens_anything() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let import = async |properties: &[(&str, &str)], read_only| {
            let properties =
                properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let import =
                PoolImport { pool: "psingle".into(), properties, read_only, ..PoolImport::default() };
            run(&host, Request { operation: Operation::PoolImport(import), command: None, user: 0 }).await
        };
        for (properties, read_only, word) in [
            ([("nonsense", "1")], false, "invalid property 'nonsense'"),
            ([("failmode", "never")], false, "'failmode' must be one of"),
            ([("comment", "rack 7")], true, "keeps its properties"),
        ] {
            let failure = import(&properties, read_only).await.unwrap_err();
            assert!(failure.message.contains(word), "{failure}");
            assert!(host.find("psingle").is_none(), "{word}");
        }
        import(&[("comment", "rack 7"), ("failmode", "continue"), ("cachefile", "none")], false)
            .await
            .unwrap();
        let held = host.find("psingle").unwrap();
        let shown = crate::view::held(&held).await;
        let value = |name: &str| shown.property(name).map(|property| property.exact.clone());
        assert_eq!((value("comment"), value("failmode")), (Some("rack 7".into()), Some("continue".into())));
        assert_eq!(value("cachefile"), Some("none".into()));
        host.end(&held, Ending::Export).await.unwrap();
    }

    #[test]
    fn a_cache_device_that_is_too_small_by_its_labels_only_is_told_so() {
        let said = |bytes| {
            let facts = DeviceFacts { bytes, block_device: true, logical_sector: 512, physical_sector: 4096 };
            what_is_forgotten(&PlannedLeaf { path: "/dev/c".to_owned(), facts }, &TierConfig::default())
        };
        let line = said(1 << 30).unwrap();
        assert!(
            line.contains("of its 1G, 1023.5M lie before the labels at its end, which is less than 1G"),
            "{line}"
        );
        assert_eq!(said((1 << 30) + (512 << 10)), None);
    }
}
