//! `zpool create`: nothing is touched before all that can be refused is, and what has been created is never out of reach.

use std::{collections::BTreeSet, path::Path};

use engine::{
    create::{self, Ashift, CreateOptions},
    dsl::Stored,
    engine::Engine,
};
use pool::{features::Feature, props::parse::Moment};

use super::{
    layout::{VOLUME_BLOCK, about_caches, below, describe},
    properties::{root_properties, understand},
    search_options,
};
use crate::{
    host::{Settings, chain},
    hostid, logs,
    ops::{
        Answer, Failure, PoolCreate,
        cx::{Cx, Record},
        devices::{self, Wish},
        failure::refused,
        held::Held,
        host::{Mode, seed, workers},
        names,
        upgrade::enable,
    },
};

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
    let mut wish =
        understand(&new.properties, Moment::Creating).map_err(|why| Failure::because(&what, why))?;
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
    // Scripts know pools that have all features: what a value needs comes with it, unless somebody leaves it out.
    let mut at_hand = match new.no_features {
        true => Vec::new(),
        false => create::permitted(&wish.compatibility).map_err(|error| devices::refused(&what, &error))?,
    };
    at_hand.retain(|feature| !wish.features.iter().any(|(name, on)| name == feature.name && !on));
    let root = root_properties(&new.root_properties, &mut enabled, &at_hand)
        .map_err(|why| Failure::because(&what, why))?;
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
    let ashift = Ashift { asked: wish.ashift_of_devices(), ..Ashift::default() };
    let device_wish = Wish { file_size: new.file_size, force: new.force, ashift };
    let plan = devices::plan(&new.devices, &what, device_wish).await?;
    plan.check_features(|guid| enabled.contains(&guid)).map_err(|error| devices::refused(&what, &error))?;
    let (blocks, tier) = (BTreeSet::from([VOLUME_BLOCK]), host.tier());
    if new.dry_run {
        devices::check(host, &plan, &what, device_wish, None).await?;
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
    if let Some(shift) = ashift.asked {
        // Devices that are added later are to be alike.
        wish.properties.insert("ashift".to_owned(), Stored::Number(shift.into()));
    }
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
    // Nor does another command find it open once it is remembered.
    let (turn, _) = host.turn_among_commands(engine.view().guid()).await.unwrap_or_default();
    let held = host.keep(Held::writing(engine).in_turn(turn));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        host::Places,
        ops::{Host, Operation, Request, run},
        state::State,
    };

    /// A command that creates `tank` on a new file in `dir`, and what it says in the end.
    async fn refused_create(dir: &Path, state: State) -> (Arc<Host>, Failure) {
        let host = Arc::new(Host::new(Places::new(Vec::new(), state), Mode::Command, Settings::default()));
        let create = PoolCreate {
            pool: "tank".to_owned(),
            devices: vec![dir.join("disk").display().to_string()],
            file_size: Some(64 << 20),
            ..PoolCreate::default()
        };
        let request = Request { operation: Operation::PoolCreate(create), command: None, user: 0 };
        let failure = run(&host, request).await.unwrap_err();
        (host, failure)
    }

    /// It ended with success, and the next command knew no such pool.
    #[tokio::test]
    async fn a_pool_that_cannot_be_remembered_is_created_and_how_to_find_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("state"));
        // As if the directory had no room for another file.
        std::fs::create_dir_all(dir.path().join("state/pools.json.new/in the way")).unwrap();
        let (host, failure) = refused_create(dir.path(), state).await;
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
        let (host, failure) = refused_create(dir.path(), state).await;
        assert!(failure.message.starts_with("cannot create 'tank': it could not be remembered"), "{failure}");
        assert!(failure.code == 1 && failure.message.contains("--state DIR"), "{failure}");
        assert!(!dir.path().join("disk").exists() && host.find("tank").is_none(), "nothing was touched");
    }
}
