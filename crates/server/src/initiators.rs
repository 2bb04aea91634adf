//! Who is connected and what they do, and what of the pools' settings only a daemon knows.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use iscsi::{Registration, SessionInfo, Target, tally};

use crate::{
    answers::Pools,
    api::{
        initiators::{Absent, InitiatorList, LunUse, NbdClient, Session},
        share::ShareList,
    },
    clock, hostid,
    serving::Serving,
};

/// Everybody who is connected now.
#[must_use]
pub fn list(serving: &Serving) -> InitiatorList {
    let at_ns = clock::nanos();
    let targets: BTreeMap<String, Arc<Target>> =
        serving.targets().list().into_iter().map(|target| (target.iqn().to_owned(), target)).collect();
    let mut sessions: Vec<Session> = serving
        .targets()
        .sessions()
        .iter()
        .map(|info| session(info, targets.get(&info.target).map(|target| &**target)))
        .collect();
    sessions.sort_by(|a, b| {
        (&a.initiator, &a.target, &a.portal, &a.isid).cmp(&(&b.initiator, &b.target, &b.portal, &b.isid))
    });
    let nbd = serving.nbd_server().connections().into_iter().map(|connection| {
        let counters = connection.counters;
        NbdClient {
            id: connection.id,
            address: connection.peer,
            volume: connection.export,
            reads: counters.reads,
            writes: counters.writes,
            others: counters.flushes + counters.discards + counters.others,
            read_bytes: counters.read_bytes,
            write_bytes: counters.write_bytes,
        }
    });
    InitiatorList {
        at_ns,
        started_ns: clock::started(),
        latency_bounds: (0..tally::LATENCY_BUCKETS).map(tally::bucket_bound).collect(),
        absent: absent(&targets, &sessions),
        sessions,
        nbd: nbd.collect(),
    }
}

/// Who is registered and seen with no session: a disk may refuse everybody because of a host that is dead.
fn absent(targets: &BTreeMap<String, Arc<Target>>, sessions: &[Session]) -> Vec<Absent> {
    let mut absent = Vec::new();
    for (name, target) in targets {
        for (lun, unit) in target.luns() {
            for one in unit.registrations() {
                let (port, group) = (&*one.nexus.initiator, one.nexus.port);
                let is_shown = |session: &Session| {
                    (&session.target, session.group) == (name, group)
                        && session.luns.iter().any(|used| used.lun == lun && used.registered)
                        && format!("{},i,0x{}", session.initiator, session.isid) == port
                };
                if sessions.iter().any(is_shown) {
                    continue;
                }
                absent.push(Absent {
                    port: port.to_owned(),
                    group,
                    target: name.clone(),
                    lun,
                    volume: unit.volume().identity().name,
                    holds: held(&one),
                });
            }
        }
    }
    absent
}

fn session(info: &SessionInfo, target: Option<&Target>) -> Session {
    let [a, b, c, d, e, f] = info.isid;
    let isid = format!("{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}");
    let counters = &info.counters;
    let port = format!("{},i,0x{isid}", info.initiator);
    let luns = counters.luns.list().into_iter().filter_map(|(lun, tally)| {
        let unit = target.and_then(|target| target.unit(lun));
        let registered = unit.as_ref().map(|unit| unit.registrations()).unwrap_or_default();
        let mine = |one: &&Registration| *one.nexus.initiator == port && one.nexus.port == info.portal.group;
        let mine = registered.iter().find(mine);
        let now = tally.get();
        // A session may see hundreds of disks and use one.
        if now.reads + now.writes + now.others + now.under_way == 0 && mine.is_none() {
            return None;
        }
        Some(LunUse {
            lun,
            volume: unit.map(|unit| unit.volume().identity().name).unwrap_or_default(),
            reads: now.reads,
            writes: now.writes,
            others: now.others,
            from_memory: now.from_memory,
            read_bytes: now.read_bytes,
            write_bytes: now.write_bytes,
            under_way: now.under_way,
            queue_ns: now.queue_ns,
            busy_ns: now.busy_ns,
            latency: now.latency,
            registered: mine.is_some(),
            holds: mine.and_then(held),
        })
    });
    Session {
        initiator: info.initiator.clone(),
        address: info.peer.to_string(),
        portal: info.portal.address.to_string(),
        group: info.portal.group,
        target: info.target.clone(),
        isid,
        since: hostid::now().saturating_sub(info.since.elapsed().as_secs()),
        user: info.user.clone(),
        commands: counters.commands.load(Relaxed),
        bytes_in: counters.bytes_in.load(Relaxed),
        bytes_out: counters.bytes_out.load(Relaxed),
        luns: luns.collect(),
    }
}

/// What is held by this registration.
fn held(one: &Registration) -> Option<String> {
    one.kind.filter(|_| one.holds).map(|kind| reservation(kind).to_owned())
}

/// A type of persistent reservation, in words.
fn reservation(kind: u8) -> &'static str {
    match kind {
        1 => "write exclusive",
        3 => "exclusive access",
        5 => "write exclusive, registrants only",
        6 => "exclusive access, registrants only",
        7 => "write exclusive, all registrants",
        8 => "exclusive access, all registrants",
        _ => "unknown",
    }
}

/// What open pools keep about offering, and what has come of it.
pub(crate) async fn shares(pools: &Pools, serving: &Serving) -> ShareList {
    let mut list = pools.shares().await;
    let portals = serving.portals().list();
    for pool in &mut list.pools {
        for target in &mut pool.targets {
            target.sessions = Some(serving.sessions_of(&pool.pool, &target.name) as u64);
        }
        pool.problems.extend(serving.conflicts(&pool.pool));
        for portal in &mut pool.portals {
            let found = portals.iter().find(|open| open.address.to_string() == portal.address);
            portal.listening = Some(found.is_some_and(|open| open.problem.is_none()));
            portal.problem = found
                .and_then(|open| open.problem.clone().or_else(|| open.other_group(&pool.pool, portal.group)));
        }
    }
    list
}
