//! `zpool import`: which pool is meant, under which name and how it is opened; from then on it is kept, whatever else goes
//! wrong.

use std::{collections::BTreeSet, sync::Arc};

use pool::{
    import::{Candidate, Rewind},
    props::{parse::Moment, value},
};

use super::{
    properties::{PoolWish, assign, understand},
    search_options,
};
use crate::{
    host::{Foreign, HostError, Known, Places, Settings, chain, has_gone},
    opening::IN_USE_PATIENCE,
    ops::{
        Answer, Failure, PoolImport,
        cx::Cx,
        failure::PoolError,
        held::Held,
        host::{Host, LOCK_PATIENCE, Mode},
        names,
    },
    state::{Remembered, StateError},
};

/// State of a destroyed pool in its labels.
const DESTROYED: u64 = 2;

/// `zpool import NAME`
pub(crate) async fn import(cx: &Cx<'_>, asked: PoolImport) -> Result<Answer, Failure> {
    let (host, name) = (cx.host, asked.pool.as_str());
    let what = format!("cannot import '{name}'");
    if let Some(new_name) = &asked.new_name {
        names::pool(new_name).map_err(|why| Failure::because(&what, why))?;
    }
    let wish = understand(&asked.properties, Moment::Later).map_err(|why| Failure::because(&what, why))?;
    let around = Around::look(host, &asked).await;
    let mut around = around.map_err(|error| Failure::because(&what, chain(&error)))?;
    let candidate = around.pick(host, name, &what)?;
    // People know pools by their names; a guid tells apart those of one name.
    let what = match around.has_namesake(host, &candidate) && *name != *candidate.name {
        true => format!("cannot import '{}' ({})", candidate.name, candidate.guid),
        false => format!("cannot import '{}'", candidate.name),
    };
    // If that cannot be read it is said when this one cannot be remembered.
    let known = host.places().state().pools().unwrap_or_default();
    let new_name = asked.new_name.as_ref().unwrap_or(&candidate.name);
    around.has_room_for(host, new_name, candidate.guid, &known, &what)?;
    let settings = settings(&asked, &wish);
    let rename = asked.new_name.clone().filter(|new_name| *new_name != candidate.name);
    if rename.is_some() && settings.read_only {
        return Err(Failure::because(&what, "a pool that is imported read-only keeps its name"));
    }
    if wish.changes_something() && settings.read_only && !asked.dry_run {
        return Err(Failure::because(&what, "a pool that is imported read-only keeps its properties"));
    }
    // A daemon tries by itself, every few seconds, what is imported and not open, and has its devices as long as that takes.
    let is_tried = host.mode() != Mode::Command && known.iter().any(|known| known.guid == candidate.guid);
    let patience = if is_tried { IN_USE_PATIENCE } else { LOCK_PATIENCE };
    let opened = host.open(&candidate, None, &settings, rename, patience).await;
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
    // It is open: from here on it is kept, whatever else goes wrong, or nobody could reach it any more.
    let remembered = host.remember(&held, &settings, None);
    // What changes the pool from now on waits until it is served as it is now.
    let _turn = host.turn(held.name()).await;
    let held = host.keep(held);
    received(cx, &held, &what, wish, notes, remembered).await
}

/// The pools that there are when one is to be imported.
struct Around {
    /// Imported already.
    imported: Vec<(Remembered, Candidate)>,
    /// Not held, and destroyed if such a one is meant.
    known: Known,
}

fn is_meant(pool: &Remembered, name: &str) -> bool {
    pool.name == name || pool.guid.to_string() == name
}

fn exists(what: &str) -> Failure {
    Failure::new(format!(
        "{what}: a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name"
    ))
}

impl Around {
    async fn look(host: &Host, asked: &PoolImport) -> Result<Self, HostError> {
        let state = host.places().state().clone();
        let places = match asked.search.is_empty() {
            true => host.places().clone(),
            false => Places::new(asked.search.clone(), state.clone()),
        };
        // A daemon may take over what a command imported; a command finds what is imported busy.
        let mut imported = match host.mode() {
            Mode::Command => places.imported().await?,
            Mode::Daemon | Mode::ReadOnly => Vec::new(),
        };
        // One that another host has had since is imported here no more, though it is remembered: it would be in its own way.
        imported.retain(|(pool, candidate)| !has_gone(candidate, pool));
        // To try that is to open it for writing, so not for whoever only looks.
        if (asked.missing_log || asked.recover)
            && !(asked.read_only || asked.dry_run || asked.txg.is_some())
            && let Some(at) = imported.iter().position(|(pool, _)| is_meant(pool, &asked.pool))
            && let Err(PoolError::Unopenable { .. }) = host.pool(&imported[at].0.guid.to_string()).await
        {
            // All that is left of its import is that it is remembered, and for want of its log, or of its newest state, nobody
            // can open it.
            imported.remove(at);
        }
        let mut known = places.scan().await;
        if asked.search.is_empty() && host.places().named().is_empty() {
            // One that waits to be opened may be on files, which no search finds: where it was is known.
            for pool in &state.pools().unwrap_or_default() {
                if is_meant(pool, &asked.pool)
                    && known.pools.iter().all(|(candidate, _)| candidate.guid != pool.guid)
                    && let Some(candidate) = places.where_it_was(pool).await
                {
                    known.pools.push((candidate, None));
                }
            }
        }
        let is_held = |guid: u64| {
            imported.iter().any(|(pool, _)| pool.guid == guid)
                || host.all().iter().any(|held| held.guid() == guid)
        };
        known.pools.retain(|(candidate, _)| {
            !is_held(candidate.guid) && (candidate.state.id() == DESTROYED) == asked.destroyed
        });
        Ok(Self { imported, known })
    }

    /// The one that is meant; none of those that are left.
    fn pick(&mut self, host: &Host, name: &str, what: &str) -> Result<Candidate, Failure> {
        match self.known.select(name) {
            Ok(Some((candidate, _))) => Ok(candidate),
            Ok(None) => {
                let held = self.imported.iter().any(|(pool, _)| is_meant(pool, name));
                if held || host.find(name).is_some() {
                    return Err(exists(what));
                }
                let why =
                    self.known.problems.iter().map(|problem| format!("{problem}\n")).collect::<String>();
                Err(Failure {
                    not_found: true,
                    ..Failure::new(format!("{why}{what}: no such pool available"))
                })
            }
            Err(HostError::Ambiguous { guids, .. }) => {
                let guids: Vec<String> = guids.iter().map(|guid| format!("\t{guid}")).collect();
                let guids = guids.join("\n");
                Err(Failure::new(format!(
                    "{what}: more than one matching pool\nimport by numeric ID instead:\n{guids}"
                )))
            }
            Err(error) => Err(Failure::because(what, chain(&error))),
        }
    }

    fn has_namesake(&self, host: &Host, candidate: &Candidate) -> bool {
        self.known.pools.iter().any(|(other, _)| other.name == candidate.name)
            || self.is_taken(host, &candidate.name)
    }

    fn is_taken(&self, host: &Host, name: &str) -> bool {
        self.imported.iter().any(|(pool, _)| pool.name == name)
            || host.all().iter().any(|held| held.name() == name)
    }

    /// Whether the pool `guid` may be called so here; `known` are those that are remembered.
    fn has_room_for(
        &self,
        host: &Host,
        name: &str,
        guid: u64,
        known: &[Remembered],
        what: &str,
    ) -> Result<(), Failure> {
        if self.is_taken(host, name) {
            return Err(exists(what));
        }
        match known.iter().find(|known| known.name == name && known.guid != guid) {
            None => Ok(()),
            Some(other) => Err(Failure::because(
                what,
                format_args!(
                    "another pool of that name was imported from {}, and is not open\nuse the form 'zpool import <pool | id> \
                     <newpool>' to give this one a new name; or to forget the other: 'zpool export {name}'",
                    other.places()
                ),
            )),
        }
    }
}

fn settings(asked: &PoolImport, wish: &PoolWish) -> Settings {
    let rewind = match (asked.txg, asked.recover) {
        (Some(txg), _) => Rewind::To(txg),
        (None, true) => Rewind::Recover,
        (None, false) => Rewind::Latest,
    };
    Settings {
        foreign: if asked.force { Foreign::Open } else { Foreign::Refuse },
        rewind,
        destroyed: asked.destroyed,
        missing_log: asked.missing_log,
        read_only: asked.read_only || asked.dry_run || asked.txg.is_some(),
        listed: Some(wish.is_listed != Some(false)),
        ..Settings::default()
    }
}

/// What else is to be done with a pool that is open and kept, and what is said of all of it. `notes` are of its opening.
async fn received(
    cx: &Cx<'_>,
    held: &Arc<Held>,
    what: &str,
    wish: PoolWish,
    notes: Vec<String>,
    remembered: Result<(), StateError>,
) -> Result<Answer, Failure> {
    let mut warnings = notes;
    let mut unset = None;
    if wish.changes_something() {
        warnings.extend(wish.notes());
        let set = assign(cx, held, &format!("cannot set properties of '{}'", held.name()), wish).await;
        unset = set.err().map(|why| Failure::new(format!("{why}\nit is imported all the same")));
    } else if held.engine().is_some() && cx.record.is_some() {
        let noted = cx.change(held, what, |_| Box::pin(async { Ok(()) })).await;
        warnings.extend(noted.err().map(|why| format!("its history does not tell of the import: {why}")));
    }
    warnings.extend(cx.served(held).await);
    if let Some(serving) = &cx.host.serving {
        warnings.extend(serving.portals().opened_by(held.name()).await);
    }
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
    match unset {
        Some(failure) => Err(failure),
        None => Ok(Answer { warnings, ..Answer::default() }),
    }
}

#[cfg(test)]
mod tests {
    use engine::engine::{Ending, Engine, Options};
    use pool::import::{OpenOptions, open, writable};

    use super::*;
    use crate::{
        hostid,
        ops::{IN_USE, Operation, Request, run},
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

    /// The agent of a cluster had a pool back from a host that had died, without a daemon: it was said to exist already.
    #[tokio::test]
    async fn an_import_of_a_pool_that_another_host_has_had_since_is_decided_by_its_labels() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let import = async |force| {
            let host = Arc::new(Host::new(places.clone(), Mode::Command, Settings::default()));
            let import = PoolImport { pool: "psingle".to_owned(), force, ..PoolImport::default() };
            let request = Request { operation: Operation::PoolImport(import), command: None, user: 0 };
            let outcome = run(&host, request).await;
            host.close().await.unwrap();
            outcome.map(drop)
        };
        import(true).await.unwrap();
        let said = import(true).await.unwrap_err().message;
        assert!(said.contains("already exists"), "{said}");
        let (candidate, _) = places.scan().await.pools.remove(0);
        let locked = candidate.reopen(&writable()).await.unwrap();
        let forced = OpenOptions { force: true, ..OpenOptions::default() };
        let going_on = engine::open::OpenOptions {
            rename: None,
            hostid: hostid::hostid() + 1,
            hostname: "theirs".to_owned(),
            now: hostid::now(),
            seed: 1,
            workers: 0,
        };
        let theirs = engine::open::open(open(&locked, &forced).await.unwrap(), going_on).await.unwrap();
        let theirs = Engine::start(theirs, Options::default()).await.unwrap();
        theirs.end(Ending::Close).await.unwrap();
        drop((theirs, locked));
        let said = import(false).await.unwrap_err().message;
        assert!(said.contains("previously in use from another system"), "{said}");
        import(true).await.unwrap();
    }

    /// A daemon tells who has a pool with a torn log to import it with `-m`. It had the devices itself most of the time, to try
    /// the pool again, and the import was refused because it is in use.
    #[tokio::test]
    async fn an_import_of_a_pool_that_the_daemon_waits_for_waits_for_its_attempt_to_open_it() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let daemon = || Arc::new(Host::new(places.clone(), Mode::Daemon, Settings::default()));
        let import = async |host: &Arc<Host>| {
            let import = PoolImport { pool: "psingle".to_owned(), force: true, ..PoolImport::default() };
            run(host, Request { operation: Operation::PoolImport(import), command: None, user: 0 }).await
        };
        let before = daemon();
        import(&before).await.unwrap();
        before.close().await.unwrap();
        let (host, attempt) = (daemon(), daemon());
        let (candidate, _) = places.scan().await.pools.remove(0);
        let settings = Settings { foreign: Foreign::Open, ..Settings::default() };
        let (held, _) = attempt.open(&candidate, None, &settings, None, LOCK_PATIENCE).await.unwrap();
        let (outcome, ()) = tokio::join!(import(&host), async {
            // Longer than what a killed process leaves is waited for. Files answer by the clock of the machine.
            tokio::time::sleep(2 * LOCK_PATIENCE).await;
            held.engine().unwrap().end(Ending::Close).await.unwrap();
            drop(held);
        });
        outcome.unwrap();
        let held = host.find("psingle").unwrap();
        host.end(&held, Ending::Export).await.unwrap();
    }

    /// The attempt had the devices and waited for its turn, which the import had, which waited for the devices.
    #[tokio::test]
    async fn an_import_waits_for_no_attempt_that_waits_for_its_turn() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let host = Arc::new(Host::new(places.clone(), Mode::Daemon, Settings::default()));
        let (candidate, _) = places.scan().await.pools.remove(0);
        let settings = Settings { foreign: Foreign::Open, ..Settings::default() };
        let (held, _) = host.open(&candidate, None, &settings, None, LOCK_PATIENCE).await.unwrap();
        host.remember(&held, &settings, None).unwrap();
        let arrival = host.arrival(held.guid());
        let import = PoolImport { pool: "psingle".to_owned(), force: true, ..PoolImport::default() };
        let request = Request { operation: Operation::PoolImport(import), command: None, user: 0 };
        let said =
            tokio::time::timeout(IN_USE_PATIENCE / 2, run(&host, request)).await.expect("it is in vain");
        assert!(said.unwrap_err().message.contains(IN_USE));
        drop(arrival);
        held.engine().unwrap().end(Ending::Close).await.unwrap();
    }

    /// A stranger's pool that was called `tank/vms` took over what pool `tank` had there, with its clients.
    #[tokio::test]
    async fn a_pool_with_a_name_that_no_pool_can_have_comes_in_under_another_only() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let (candidate, _) = host.places().scan().await.pools.remove(0);
        let strange = Some("tank/vms".to_owned());
        let opened = host.open(&candidate, None, &Settings::default(), strange, LOCK_PATIENCE).await;
        let (held, _) = opened.unwrap();
        held.engine().unwrap().end(Ending::Export).await.unwrap();
        drop(held);
        let import = async |pool: &str, new_name: Option<&str>, read_only: bool| {
            let (pool, new_name) = (pool.to_owned(), new_name.map(str::to_owned));
            let import = PoolImport { pool, new_name, read_only, ..PoolImport::default() };
            run(&host, Request { operation: Operation::PoolImport(import), command: None, user: 0 }).await
        };
        let guid = candidate.guid.to_string();
        let remedy = format!("'zpool import {guid} NEWNAME'");
        for (pool, read_only) in [("tank/vms", false), (guid.as_str(), false), (guid.as_str(), true)] {
            let failure = import(pool, None, read_only).await.unwrap_err();
            assert!(failure.message.contains("invalid character '/'"), "{failure}");
            assert!(failure.message.contains(&remedy) && host.all().is_empty(), "{failure}");
        }
        import(&guid, Some("lake"), false).await.unwrap();
        let held = host.find("lake").expect("it has the name that it was given");
        host.end(&held, Ending::Export).await.unwrap();
    }

    /// It came in under the name that its labels give it, beside the pool that had it here.
    #[tokio::test]
    async fn a_pool_that_can_only_be_read_does_not_come_in_under_a_name_that_nobody_asked_for() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let host = Arc::new(Host::new(places, Mode::ReadOnly, Settings::default()));
        let (pool, new_name) = ("psingle".to_owned(), Some("lake".to_owned()));
        let import = PoolImport { pool, new_name, ..PoolImport::default() };
        let request = Request { operation: Operation::PoolImport(import), command: None, user: 0 };
        let failure = run(&host, request).await.unwrap_err();
        assert!(failure.message.contains("what is only read keeps its name"), "{failure}");
        assert!(host.all().is_empty());
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
}
