//! `millpond share`: who is offered what. The settings are the pool's: a daemon that has it open is asked, otherwise the
//! pool is opened here.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{BufRead as _, IsTerminal as _, Read as _},
    net::{IpAddr, SocketAddr},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use serde_json::{Map, Value, json};
use server::{
    api::share::{Access, PoolShares, SilentPool, Target, Volume},
    ops::{Credential, Failure, Operation, Secret, ShareChange},
    pool::props::value::bytes,
};

use crate::{
    act::{Act, assignments},
    args::{
        Share, ShareAccess, ShareChap, ShareChapSet, ShareCommand, ShareList, ShareLun, SharePortal,
        ShareTarget, ShareWhat,
    },
    ask::Ask,
    context::{Context, print},
    json, stderr,
    table::{Column, render},
    zpool::finish,
};

/// Where initiators expect a target.
const PORT: u16 = 3260;
/// Longest secret line, in bytes.
const LINE_MAX: u64 = 4096;

pub(crate) async fn run(args: Share, context: &Context) -> anyhow::Result<ExitCode> {
    let answer = Ask::new(context).await?.shares().await?;
    let pools = Pools { chosen: args.pool, all: answer.found.pools, silent: answer.found.silent };
    let (pool, change) = match args.command {
        ShareCommand::List(args) => return list(&pools, &args, &answer.failures),
        ShareCommand::Portal(SharePortal::List { scripted, json }) => {
            let mut failures = answer.failures;
            failures.extend(pools.left_out());
            print(&portals(&pools, scripted, json, &failures))?;
            return Ok(finish(&failures));
        }
        command => match understand(&pools, command) {
            Ok(understood) => understood,
            Err(failure) => {
                let mut act = Act::new(context).await?;
                answer.failures.iter().for_each(|failure| say!("{failure}"));
                act.refuse(failure);
                return Ok(act.finish().await);
            }
        },
    };
    let mut act = Act::new(context).await?;
    let answer = act.attempt(Operation::Share { pool, change }).await.unwrap_or_default();
    let text: String = answer.lines.iter().map(|line| format!("{line}\n")).collect();
    act.finish_printed(print(&text)).await
}

/// The pools there are, and the one that was named.
struct Pools {
    chosen: Option<String>,
    all: Vec<PoolShares>,
    /// What these have is not known.
    silent: Vec<SilentPool>,
}

impl Pools {
    /// The pool that is named, or the only one.
    fn one(&self) -> Result<String, Failure> {
        if let Some(pool) = &self.chosen {
            return Ok(pool.clone());
        }
        let answering = self.all.iter().map(|pool| &pool.pool);
        let names: Vec<&String> = answering.chain(self.silent.iter().map(|pool| &pool.pool)).collect();
        match names.as_slice() {
            [pool] => Ok((*pool).clone()),
            [] => Err(Failure::new("no pools available")),
            _ => Err(Failure {
                code: 2,
                ..Failure::new("there are several pools: say which is meant with --pool")
            }),
        }
    }

    /// The pool that has a target.
    fn of_target(&self, target: &str) -> Result<String, Failure> {
        if let Some(pool) = &self.chosen {
            return Ok(pool.clone());
        }
        let target = target.to_ascii_lowercase();
        let has = |pool: &&PoolShares| {
            pool.targets.iter().any(|found| found.name == target)
                || pool.problems.iter().any(|problem| problem.contains(&format!("target {target} ")))
        };
        match self.all.iter().filter(has).collect::<Vec<_>>().as_slice() {
            [pool] => Ok(pool.pool.clone()),
            [_, _, ..] => Err(Failure {
                code: 2,
                ..Failure::new(format!(
                    "several pools have a target {target}: say which is meant with --pool"
                ))
            }),
            [] if !self.silent.is_empty() => Err(Failure::new(format!(
                "cannot open target '{target}': no such target in the pools that answer\nif {} has it, say so with --pool",
                self.silent.iter().map(|pool| format!("'{}'", pool.pool)).collect::<Vec<_>>().join(" or ")
            ))),
            [] => Err(Failure {
                not_found: true,
                ..Failure::new(format!(
                    "cannot open target '{target}': no such target\nto create it: 'millpond share target create {target}'"
                ))
            }),
        }
    }

    fn is_meant(&self, pool: &str) -> bool {
        self.chosen.as_ref().is_none_or(|chosen| chosen == pool)
    }

    /// What a list goes without.
    fn left_out(&self) -> impl Iterator<Item = String> {
        self.silent.iter().filter(|pool| self.is_meant(&pool.pool)).map(|pool| pool.problem.clone())
    }

    fn of(&self, what: &ShareWhat) -> Result<String, Failure> {
        what.target.as_ref().map_or_else(|| self.one(), |target| self.of_target(target))
    }
}

fn understand(pools: &Pools, command: ShareCommand) -> Result<(String, ShareChange), Failure> {
    let pool_of = |dataset: &str| server::ops::pool_of(dataset).to_owned();
    Ok(match command {
        ShareCommand::Target(ShareTarget::Create { target }) => {
            let pool = pools.of_target(&target).or_else(|_| pools.one())?;
            (pool, ShareChange::TargetCreate { target })
        }
        ShareCommand::Target(ShareTarget::Destroy { force, target }) => {
            // One whose settings are all that is left of it is known to its pool only.
            let pool = pools.of_target(&target).or_else(|missing| pools.one().map_err(|_| missing))?;
            (pool, ShareChange::TargetDestroy { target, force })
        }
        ShareCommand::Target(ShareTarget::Set { groups, default, target }) => {
            let groups = groups.map(|words| tags(&words)).transpose()?;
            (pools.of_target(&target)?, ShareChange::TargetSet { target, groups, default })
        }
        ShareCommand::Lun(ShareLun::Add { target, volume, lun }) => {
            (pool_of(&volume), ShareChange::LunAdd { target, volume, lun })
        }
        ShareCommand::Lun(ShareLun::Remove { target, disk }) => {
            (pools.of_target(&target)?, ShareChange::LunRemove { target, disk })
        }
        ShareCommand::Portal(SharePortal::Add { force, group, address: text }) => {
            (pools.one()?, ShareChange::PortalAdd { address: address(&text)?, group, force })
        }
        ShareCommand::Portal(SharePortal::Remove { force, address: text }) => {
            let address = address(&text)?;
            let shown = address.to_string();
            let has = |pool: &&PoolShares| pool.portals.iter().any(|portal| portal.address == shown);
            let owner = pools.all.iter().find(has).map(|pool| pool.pool.clone());
            let pool = pools.chosen.clone().or(owner).map_or_else(|| pools.one(), Ok)?;
            (pool, ShareChange::PortalRemove { address, force })
        }
        ShareCommand::Access(access) => {
            let (allow, whom) = match access {
                ShareAccess::Allow(whom) => (true, whom),
                ShareAccess::Deny(whom) => (false, whom),
            };
            let pool = pools.of(&whom.what)?;
            let (initiators, networks) = (whom.initiators, whom.networks);
            (pool, ShareChange::Access { target: whom.what.target, allow, initiators, networks })
        }
        ShareCommand::Chap(ShareChap::Set(set)) => {
            let pool = pools.of(&set.what)?;
            let credential = credential(&set)?;
            (pool, ShareChange::ChapSet { target: set.what.target, credential })
        }
        ShareCommand::Chap(ShareChap::Clear { user, what }) => {
            (pools.of(&what)?, ShareChange::ChapClear { target: what.target, user })
        }
        ShareCommand::Set(set) => {
            let (dataset, words) =
                set.words.split_last().map_or((String::new(), &[][..]), |(last, rest)| (last.clone(), rest));
            if words.is_empty() {
                return Err(wrong(
                    "missing OPTION=VALUE: offer, block, write-cache or thin-threshold".to_owned(),
                ));
            }
            let (options, force) = (assignments(words)?, set.force);
            (pool_of(&dataset), ShareChange::Options { dataset, options, force })
        }
        ShareCommand::List(_) | ShareCommand::Portal(SharePortal::List { .. }) => {
            return Err(Failure::new("nothing is changed by a list"));
        }
    })
}

fn wrong(message: String) -> Failure {
    Failure { code: 2, ..Failure::new(message) }
}

fn tags(words: &str) -> Result<Vec<u16>, Failure> {
    if words == "all" {
        return Ok(Vec::new());
    }
    let tag = |word: &str| {
        word.parse().map_err(|_| {
            wrong(format!("'{word}' is not a portal group tag: give numbers from 1 to 65535, or 'all'"))
        })
    };
    words.split(',').map(tag).collect()
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let found = text.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse::<IpAddr>().ok()?, PORT)));
    found.ok_or_else(|| {
        wrong(format!("'{text}' is not an address: give ADDR or ADDR:PORT, for example 192.0.2.10:{PORT}"))
    })
}

// ---- secrets ----

fn credential(set: &ShareChapSet) -> Result<Credential, Failure> {
    let failed = |error: std::io::Error, path: &Path| {
        Failure::new(format!("cannot read a secret from '{}': {error}", path.display()))
    };
    let from = |path: &Option<std::path::PathBuf>, whose: &str, what: &str| match path {
        Some(path) if path.as_os_str() != "-" => {
            let file = std::fs::File::open(path).map_err(|error| failed(error, path))?;
            first_line(&mut std::io::BufReader::new(file)).map_err(|error| failed(error, path))
        }
        _ => ask(whose, what).map_err(|error| failed(error, Path::new("standard input"))),
    };
    let secret = from(&set.secret_file, &set.user, "initiator")?;
    let mutual_secret = match &set.mutual_user {
        Some(user) => Some(from(&set.mutual_secret_file, user, "target")?),
        None => None,
    };
    Ok(Credential {
        user: set.user.clone(),
        secret: Secret::new(secret),
        mutual_user: set.mutual_user.clone(),
        mutual_secret: mutual_secret.map(Secret::new),
    })
}

fn first_line(input: &mut impl std::io::BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    input.take(LINE_MAX).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// The next line of standard input, unseen if somebody types it.
fn ask(whose: &str, what: &str) -> std::io::Result<String> {
    let typed = std::io::stdin().is_terminal();
    let echo = |word: &str| Command::new("stty").arg(word).stdin(Stdio::inherit()).status();
    if typed {
        stderr::text(format!("secret of '{whose}' ({what}): "));
        if !echo("-echo").is_ok_and(|status| status.success()) {
            stderr::text("(what you type is shown) ".to_owned());
        }
    }
    let line = first_line(&mut std::io::stdin().lock());
    if typed {
        // A terminal that did not hide it need not be told to show it.
        let _shown = echo("echo");
        say!();
    }
    line
}

// ---- lists ----

fn list(pools: &Pools, args: &ShareList, failures: &[String]) -> anyhow::Result<ExitCode> {
    let mut chosen: Vec<PoolShares> =
        pools.all.iter().filter(|pool| pools.is_meant(&pool.pool)).cloned().collect();
    let mut failures = failures.to_vec();
    if args.names.is_empty() {
        failures.extend(pools.left_out());
    } else {
        for name in &args.names {
            let known = chosen.iter().any(|pool| {
                pool.pool == *name
                    || pool.targets.iter().any(|target| target.name == *name)
                    || pool.volumes.iter().any(|volume| volume.name == *name)
            });
            let silent = pools.silent.iter().filter(|pool| pools.is_meant(&pool.pool));
            match silent.clone().find(|silent| silent.pool == server::ops::pool_of(name)) {
                _ if known => {}
                Some(silent) => failures.push(silent.problem.clone()),
                None if silent.clone().next().is_some() => {
                    failures.push(format!(
                        "cannot open '{name}': no such pool, target or volume in the pools that answer"
                    ));
                    failures.extend(pools.left_out());
                }
                None => failures.push(format!("cannot open '{name}': no such pool, target or volume")),
            }
        }
        let mut said = BTreeSet::new();
        failures.retain(|failure| said.insert(failure.clone()));
        let named = |name: &str| args.names.iter().any(|named| named == name);
        for pool in chosen.iter_mut().filter(|pool| !named(&pool.pool)) {
            pool.volumes.retain(|volume| named(&volume.name) || volume.target.as_deref().is_some_and(named));
            let volumes = &pool.volumes;
            pool.targets.iter_mut().for_each(|target| {
                let whole = named(&target.name);
                target.luns.retain(|lun| whole || volumes.iter().any(|volume| volume.name == lun.volume));
            });
            pool.targets.retain(|target| named(&target.name) || !target.luns.is_empty());
            pool.portals.clear();
        }
        chosen.retain(|pool| named(&pool.pool) || !pool.targets.is_empty() || !pool.volumes.is_empty());
    }
    if !args.names.is_empty() && chosen.is_empty() {
        return Ok(finish(&failures));
    }
    if args.json {
        let entries: Map<String, Value> =
            chosen.iter().map(|pool| (pool.pool.clone(), json!(pool))).collect();
        print(&json::partial("millpond share list", "pools", entries, &failures))?;
        return Ok(finish(&failures));
    }
    let mut text = table(&chosen, args.scripted);
    if args.verbose {
        chosen.iter().for_each(|pool| details(pool, &mut text));
    }
    for problem in chosen.iter().flat_map(|pool| &pool.problems) {
        say!("warning: {problem}");
    }
    print(&text)?;
    Ok(finish(&failures))
}

fn table(pools: &[PoolShares], scripted: bool) -> String {
    let columns = [
        Column::left("TARGET"),
        Column::right("LUN", 3),
        Column::left("VOLUME"),
        Column::right("SIZE", 5),
        Column::left("NAA"),
        Column::left("NBD"),
        Column::left("ACCESS"),
    ];
    let row = |target: &str, lun: String, volume: Option<&Volume>, access: &str| {
        let size = volume.filter(|volume| volume.size > 0).map(|volume| match scripted {
            true => volume.size.to_string(),
            false => bytes(volume.size),
        });
        vec![
            target.to_owned(),
            lun,
            volume.map_or("-", |volume| volume.name.as_str()).to_owned(),
            size.unwrap_or_else(|| "-".to_owned()),
            volume.map_or("-", |volume| volume.naa.as_str()).to_owned(),
            volume.map_or("-", |volume| if volume.nbd { "on" } else { "off" }).to_owned(),
            access.to_owned(),
        ]
    };
    let mut rows = Vec::new();
    for pool in pools {
        let find = |name: &str| pool.volumes.iter().find(|volume| volume.name == name);
        for target in &pool.targets {
            let access = access(&target.access);
            let luns = target
                .luns
                .iter()
                .map(|lun| row(&target.name, lun.lun.to_string(), find(&lun.volume), &access));
            rows.extend(luns);
            if target.luns.is_empty() {
                rows.push(row(&target.name, "-".to_owned(), None, &access));
            }
        }
        let settled = |volume: &&Volume| {
            volume.target.as_ref().is_some_and(|name| pool.targets.iter().any(|t| t.name == *name))
        };
        for volume in pool.volumes.iter().filter(|volume| !settled(volume)) {
            match &volume.own_target {
                Some(own) => rows.push(row(own, "0".to_owned(), Some(volume), "everybody")),
                None => rows.push(row("-", "-".to_owned(), Some(volume), "-")),
            }
        }
    }
    render(&columns, &rows, scripted)
}

/// Who may use a target, in a word or two.
fn access(access: &Access) -> String {
    let count = |list: &Option<Vec<String>>, what: &str| match list.as_deref() {
        None => None,
        Some([one]) => Some(one.clone()),
        Some(all) => Some(format!("{} {what}", all.len())),
    };
    let closed = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
    if closed(&access.initiators) || closed(&access.networks) {
        return "nobody".to_owned();
    }
    let mut words: Vec<String> = count(&access.initiators, "initiators").into_iter().collect();
    words.extend(count(&access.networks, "networks"));
    if !access.chap.is_empty() {
        words.push("chap".to_owned());
    }
    if words.is_empty() { "everybody".to_owned() } else { words.join(", ") }
}

fn details(pool: &PoolShares, out: &mut String) {
    let mut say = |text: String| writeln!(out, "{text}").expect("a String takes any text");
    let words = |list: &Option<Vec<String>>| match list.as_deref() {
        None => "any".to_owned(),
        Some([]) => "none".to_owned(),
        Some(all) => all.join(" "),
    };
    let chap = |access: &Access| match access.chap.as_slice() {
        [] => "not asked for".to_owned(),
        all => {
            let one = |chap: &server::api::share::Chap| match &chap.mutual_user {
                Some(mutual) => format!("{} (mutual: {mutual})", chap.user),
                None => chap.user.clone(),
            };
            all.iter().map(one).collect::<Vec<_>>().join(" ")
        }
    };
    let who = |access: &Access, say: &mut dyn FnMut(String)| {
        say(format!("    initiators     {}", words(&access.initiators)));
        say(format!("    networks       {}", words(&access.networks)));
        say(format!("    CHAP           {}", chap(access)));
    };
    for target in &pool.targets {
        let Target { name, default, groups, access, sessions, .. } = target;
        say(format!("\ntarget {name} of {}{}", pool.pool, if *default { " (default)" } else { "" }));
        who(access, &mut say);
        let groups = groups.as_ref().map_or("all".to_owned(), |groups| {
            groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        });
        say(format!("    portal groups  {groups}"));
        if let Some(sessions) = sessions {
            say(format!("    logged in      {sessions}"));
        }
    }
    if let Some(discovery) = &pool.discovery {
        say(format!("\ndiscovery, by {}", pool.pool));
        who(discovery, &mut say);
    }
    for volume in &pool.volumes {
        say(format!(
            "\nvolume {}: offer={} block={} write-cache={} thin-threshold={}",
            volume.name,
            volume.offer,
            volume.block,
            if volume.write_cache { "on" } else { "off" },
            volume.thin_threshold
        ));
        if let Some(problem) = &volume.problem {
            say(format!("    not offered: {problem}"));
        }
        if let Some(lu) = &volume.lu {
            say(format!(
                "    stmfadm: {} {}{}",
                lu.guid,
                lu.source,
                if lu.deleted { " (deleted)" } else { "" }
            ));
        }
    }
}

fn portals(pools: &Pools, scripted: bool, as_json: bool, failures: &[String]) -> String {
    let meant = pools.all.iter().filter(|pool| pools.is_meant(&pool.pool));
    if as_json {
        let entries: Map<String, Value> =
            meant.map(|pool| (pool.pool.clone(), json!(pool.portals))).collect();
        return json::partial("millpond share portal list", "pools", entries, failures);
    }
    let columns = ["PORTAL", "GROUP", "POOL", "STATE"].map(Column::left);
    let mut rows = Vec::new();
    for pool in meant {
        for portal in &pool.portals {
            let state = match (&portal.problem, portal.listening) {
                (Some(problem), _) => problem.clone(),
                (None, Some(true)) => "listens".to_owned(),
                (None, Some(false)) => "does not listen".to_owned(),
                (None, None) => "-".to_owned(),
            };
            rows.push(vec![portal.address.clone(), portal.group.to_string(), pool.pool.clone(), state]);
        }
    }
    if rows.is_empty() && !scripted && failures.is_empty() {
        return "no portals: the daemon listens where 'serve --iscsi' says, at 127.0.0.1:3260 if it says nothing\n".to_owned();
    }
    render(&columns, &rows, scripted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_usual_port_unless_they_say_another() {
        let parsed = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(parsed("192.0.2.1").unwrap(), "192.0.2.1:3260");
        assert_eq!(parsed("192.0.2.1:3261").unwrap(), "192.0.2.1:3261");
        assert_eq!(parsed("2001:db8::1").unwrap(), "[2001:db8::1]:3260");
        assert_eq!(parsed("[2001:db8::1]:99").unwrap(), "[2001:db8::1]:99");
        assert!(parsed("storage.example").unwrap_err().message.contains("for example"));
    }

    #[test]
    fn access_is_told_in_a_word() {
        let with = |initiators: Option<&[&str]>| Access {
            initiators: initiators.map(|all| all.iter().map(|name| (*name).to_owned()).collect()),
            ..Access::default()
        };
        assert_eq!(access(&with(None)), "everybody");
        assert_eq!(access(&with(Some(&[]))), "nobody");
        assert_eq!(access(&with(Some(&["iqn.a:b"]))), "iqn.a:b");
        assert_eq!(access(&with(Some(&["iqn.a:b", "iqn.a:c"]))), "2 initiators");
    }

    #[test]
    fn a_secret_is_one_line() {
        assert_eq!(first_line(&mut &b"secret\r\nnext\n"[..]).unwrap(), "secret");
        assert_eq!(first_line(&mut &b"no end"[..]).unwrap(), "no end");
    }
}
