//! `zpool offline`, `online`, `attach`, `replace`, `detach`, `clear`, `reopen`, `initialize`, `trim`: what is done with the devices of a pool
//! that is in use.
//!
//! The engine changes the tree and decides what may be; here are names, the devices that come in (locked, and nobody
//! else's, as for `zpool create`), and OpenZFS's words. Those that bring a suspended pool back
//! ([`Operation::is_remedy`](super::Operation::is_remedy)) ask for nothing that such a pool cannot give: what they did is
//! noted in the history only if the pool can be written to afterwards.

use std::{io, path::Path, sync::Arc, time::Duration};

use disk::{Disk, OpenOptions};
use engine::{
    devices::{self, NewLeaf, Onlined, SweepCommand, SweepKind},
    dsl::OpError,
    engine::Engine,
};
use pool::{
    Pool,
    import::{look_up_in_time, open_in_time},
    props::parse::Moment,
    space::{held_back, metaslab_bytes, offered, would_grow},
    status::human,
    vdev::{State, Tree, Vdev},
};
use tokio::time::Instant;

use super::{
    Answer, DeviceNew, Failure, SweepAction, SweepWish,
    cx::Cx,
    devices::{find as find_by_name, guids_at, path_of, prepare, refused as not_a_device},
    failure::{PoolError, refused},
    held::Held,
    host::Mode,
    pools::understand,
};
use crate::{disks::Sysfs, host::chain, paths::lead_to};

/// How long a device that is back and that somebody holds is asked for, and how often.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a disk that OpenZFS leaves beside the partition it makes, at the most.
const BESIDE_PARTITION: u64 = 128 << 20;

/// A pool with the engine that writes to it. `what` is what cannot be done without.
fn engine(
    held: Result<Arc<Held>, PoolError>,
    pool: &str,
    what: &str,
) -> Result<(Arc<Held>, Arc<Engine>), Failure> {
    let held = held.map_err(|error| error.of_change(what, pool))?;
    match held.engine().cloned() {
        Some(engine) => Ok((held, engine)),
        None => {
            let why = held.read_only().unwrap_or("it is not open for writing");
            Err(Failure::because(what, format_args!("pool is read-only: {why}")))
        }
    }
}

/// The guid of the device that a word means, by whatever name.
async fn find(held: &Held, what: &str, word: &str) -> Result<u64, Failure> {
    let view = held.view();
    let found = find_by_name(&view, word, |word| devices::find(&view, word)).await;
    found.map_err(|error| match &error {
        OpError::Refused(why) if why.starts_with("no such device in pool") => {
            Failure { not_found: true, ..Failure::because(what, "no such device in pool") }
        }
        other => refused(what, other),
    })
}

/// The leaf of this guid, if it is one.
fn leaf(view: &Pool, guid: u64) -> Option<Vdev> {
    view.tree().leaves().into_iter().find(|leaf| leaf.guid == guid).cloned()
}

/// After a change: its history and the cache file follow, and what could not be offered is tried. A pool that cannot be written
/// to now keeps no record.
async fn settle(cx: &Cx<'_>, held: &Held, what: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(serving) = &cx.host.serving {
        serving.try_soon(held.guid());
    }
    if cx.record.is_some() && held.suspended().is_none() {
        let noted = cx.change(held, what, |_| Box::pin(async { Ok(()) })).await;
        warnings.extend(noted.err().map(|failure| format!("done, but not in the history: {failure}")));
    }
    let kept = cx.host.remember_known_devices(held);
    warnings.extend(kept.err().map(|error| chain(&error)));
    warnings
}

/// Devices may be back, somebody says: they are looked for wherever they may be, whatever was found there before.
fn search_anew(cx: &Cx<'_>) {
    if let Some(watching) = cx.host.watching() {
        watching.changes.one_more();
    }
}

/// `zpool offline`
pub(crate) async fn offline(
    cx: &Cx<'_>,
    pool: &str,
    word: &str,
    temporary: bool,
    fault: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot {} {word}", if fault { "fault" } else { "offline" });
    let (held, engine) = engine(cx.host.writable(pool).await, pool, &what)?;
    let guid = find(&held, &what, word).await?;
    if temporary && cx.host.mode() == Mode::Command {
        return Err(Failure::new(format!(
            "{what}: -t lasts until the pool is closed, and nobody has it open\nleave -t out, or serve the pool: 'millpond \
             serve {pool}'"
        )));
    }
    let done = match fault {
        true => engine.fault(guid).await,
        false => engine.offline(guid, temporary).await,
    };
    done.map_err(|error| refused(&what, &error))?;
    Ok(Answer { warnings: settle(cx, &held, &what).await, ..Answer::default() })
}

/// What a leaf that is away is now, if it is there again under its path. Whether it is really that leaf, the engine sees
/// by its label. Whoever watches the devices may have seen it come back at the same moment, and hold it to look at it.
async fn reopen_leaf(held: &Held, guid: u64, what: &str) -> Result<Option<Arc<dyn Disk>>, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Some(leaf) = leaf(&held.view(), guid) else { return Ok(None) };
        let is_open = leaf.leaf.as_ref().is_some_and(|leaf| leaf.condition.get().disk.is_some());
        let Some(path) = leaf.path.filter(|_| !is_open) else { return Ok(None) };
        let options = OpenOptions { lock: true, ..OpenOptions::default() };
        match open_in_time(&path, options).await {
            Ok(disk) => return Ok(Some(Arc::new(disk))),
            // Its name may be another's by now, who has that open: it is looked for in other places.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                if is_another(&path, guid).await {
                    return Ok(None);
                }
                // It was closed while something was under way on it, which has it open until it ends.
                let closed = leaf.leaf.as_ref().and_then(|leaf| leaf.condition.get().still_open());
                if closed.is_some() {
                    return Ok(closed);
                }
                if Instant::now() >= deadline {
                    return Err(Failure::because(what, chain(&error)));
                }
                tokio::time::sleep(PAUSE).await;
            }
            // It is not there, or the system refuses it: what state it is in is the engine's to say.
            Err(_) => return Ok(None),
        }
    }
}

/// Whether what is at a path is another device than this leaf, by its label.
async fn is_another(path: &str, guid: u64) -> bool {
    let guids = guids_at(Path::new(path)).await;
    guids.is_ok_and(|guids| guids.is_none_or(|(own, _)| own != guid))
}

/// `zpool online`
pub(crate) async fn online(cx: &Cx<'_>, pool: &str, word: &str, expand: bool) -> Result<Answer, Failure> {
    let what = format!("cannot online {word}");
    let (held, engine) = engine(cx.host.pool(pool).await, pool, &what)?;
    let guid = find(&held, &what, word).await?;
    let had = bytes_around(&held.view().tree(), guid);
    let known = leaf(&held.view(), guid).and_then(|leaf| leaf.leaf);
    let is_away = known.is_some_and(|leaf| !leaf.state().0.is_readable());
    if is_away {
        search_anew(cx);
    }
    if expand || is_away {
        // Who watches the devices may still hold what it was, and finds it wherever it is now, or lets go what was pulled; and
        // how large a file has become is known once it was looked at.
        engine.look().await;
    }
    let disk = reopen_leaf(&held, guid, &what).await?;
    let mut onlined = engine.online(guid, disk, expand).await.map_err(|error| refused(&what, &error))?;
    if onlined == Onlined::StillFaulted {
        // While it was offline nobody looked for it in other places.
        engine.look().await;
        if leaf(&held.view(), guid).is_some_and(|leaf| leaf.is_readable()) {
            onlined = Onlined::Healthy;
        }
    }
    let mut warnings = settle(cx, &held, &what).await;
    if onlined == Onlined::StillFaulted {
        // Of one that is faulted only that looks in other places.
        let is_faulted = leaf(&held.view(), guid).is_some_and(|leaf| leaf.state().0 == State::Faulted);
        let remedy = match is_faulted {
            true => "use 'zpool clear' to restore a faulted device",
            false => "use 'zpool replace' to replace devices that are no longer present",
        };
        warnings.insert(0, format!("device '{word}' onlined, but remains in faulted state\n{remedy}"));
    } else if expand {
        // As far as it could grow it has, whatever is left over.
        let tree = held.view().tree();
        if bytes_around(&tree, guid) <= had
            && let Some(why) = why_no_larger(&tree, guid).await
        {
            warnings.insert(0, format!("'{word}' was not expanded: {why}"));
        }
    }
    Ok(Answer { warnings, ..Answer::default() })
}

/// Bytes in the metaslabs of the top-level device around a leaf.
fn bytes_around(tree: &Tree, guid: u64) -> Option<u64> {
    tree.top_around(guid)?.top.as_ref().map(metaslab_bytes)
}

/// Why a leaf, or the disk that it is a partition of, has more than its top-level device uses after `zpool online -e`, if so.
async fn why_no_larger(tree: &Tree, guid: u64) -> Option<String> {
    let top = tree.top_around(guid)?;
    let leaf = top.leaves().into_iter().find(|leaf| leaf.guid == guid)?;
    if let Some(why) = held_back(top, guid) {
        return Some(why);
    }
    leaf.disk_path()?;
    let (path, own) = (leaf.path.as_deref()?, leaf.leaf.as_ref()?.disk()?.info().size);
    let ask = |path: &Path| {
        let bytes = path.to_str().and_then(|path| Sysfs::default().bytes_around(path));
        bytes.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    };
    let whole = look_up_in_time(Path::new(path), ask).await.ok()?;
    let more = whole.saturating_sub(own).saturating_sub(BESIDE_PARTITION);
    would_grow(top, offered(leaf)?.saturating_add(more)).then(|| {
        format!(
            "'{path}' is a partition of {} on a disk of {}\nmake the partition larger first, with 'parted' or the like, then again",
            human(own),
            human(whole)
        )
    })
}

/// What the user typed about a new device, understood.
struct New {
    what: String,
    held: Arc<Held>,
    engine: Arc<Engine>,
    guid: u64,
    /// Its whole path.
    path: String,
    ashift: Option<u32>,
}

async fn understood(cx: &Cx<'_>, asked: &DeviceNew, verb: &str, joint: &str) -> Result<New, Failure> {
    let what = match &asked.new {
        Some(new) => {
            format!("cannot {verb} {} {joint} {}", first(verb, asked, new), second(verb, asked, new))
        }
        None => format!("cannot {verb} {}", asked.device),
    };
    let wish = understand(&asked.properties, Moment::Creating).map_err(|why| Failure::because(&what, why))?;
    if !wish.is_of_devices() {
        return Err(Failure { code: 2, ..Failure::new("only 'ashift' can be given for a new device") });
    }
    let (held, engine) = engine(cx.host.writable(&asked.pool).await, &asked.pool, &what)?;
    let guid = find(&held, &what, &asked.device).await?;
    let view = held.view();
    let in_tree = leaf(&view, guid);
    let is_in = |list: &[Vdev]| list.iter().any(|vdev| vdev.guid == guid);
    if in_tree.is_none() && is_in(view.spares()) {
        // One that is in use has a place in the tree, which another may take.
        return Err(Failure::because(&what, "device is reserved as a hot spare"));
    }
    if is_in(view.l2cache()) {
        return Err(Failure::because(&what, "device is in use as a cache"));
    }
    let path = match &asked.new {
        Some(word) => path_of(word).await.map_err(|error| not_a_device(&what, &error))?,
        None => {
            let own = in_tree.as_ref().and_then(|leaf| Some((leaf, leaf.path.as_deref()?)));
            let (leaf, path) = own.ok_or_else(|| {
                Failure::because(&what, "it has no path: say which device is to take its place")
            })?;
            let tree = held.view().tree();
            let mut paths = tree.leaves().into_iter().filter_map(|leaf| leaf.path.as_deref());
            if let Some(former) = path.strip_suffix(devices::OLD)
                && let Some(place) = paths.find(|path| devices::is_in_place(path, former))
            {
                let why = format!("it is already being replaced, by what is at '{place}' now");
                return Err(Failure::because(&what, why));
            }
            place_of(path, leaf.disk_path()).await
        }
    };
    Ok(New { what, held, engine, guid, path, ashift: wish.ashift_of_devices() })
}

/// Where what takes the place of a leaf at `path` is: there, or where the `disk` is that OpenZFS had partitioned, as a new one
/// has no partition.
async fn place_of(path: &str, disk: Option<&str>) -> String {
    let Some(disk) = disk else { return path.to_owned() };
    match look_up_in_time(Path::new(path), |path| path.metadata().map(drop)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => disk.to_owned(),
        _ => path.to_owned(),
    }
}

/// OpenZFS says `cannot attach NEW to OLD` and `cannot replace OLD with NEW`.
fn first<'a>(verb: &str, asked: &'a DeviceNew, new: &'a str) -> &'a str {
    if verb == "attach" { new } else { &asked.device }
}

fn second<'a>(verb: &str, asked: &'a DeviceNew, new: &'a str) -> &'a str {
    if verb == "attach" { &asked.device } else { new }
}

/// Locks a device that is to come in, and makes sure that nobody else has it.
async fn prepared(cx: &Cx<'_>, new: &New, force: bool) -> Result<NewLeaf, Failure> {
    let prepared = prepare(cx.host, &new.path, None, force).await;
    let prepared = prepared.map_err(|error| not_a_device(&new.what, &error))?;
    new.engine.try_out(&prepared.disk).await.map_err(|error| refused(&new.what, &error))?;
    Ok(NewLeaf {
        path: new.path.clone(),
        disk: prepared.disk,
        is_file: !prepared.facts.block_device,
        ashift: new.ashift,
    })
}

/// `zpool attach`
pub(crate) async fn attach(cx: &Cx<'_>, asked: DeviceNew) -> Result<Answer, Failure> {
    let new = understood(cx, &asked, "attach", "to").await?;
    let leaf = prepared(cx, &new, asked.force).await?;
    let attached = new.engine.attach(new.guid, leaf).await;
    attached.map_err(|error| refused(&new.what, &error))?;
    Ok(Answer { warnings: settle(cx, &new.held, &new.what).await, ..Answer::default() })
}

/// The hot spare that a word means, which is this path.
async fn spare_meant<'a>(view: &'a Pool, word: &str, path: &str) -> Option<&'a Vdev> {
    let paths = view.spares().iter().map(|spare| spare.path.clone().unwrap_or_default().into()).collect();
    let lead_there = lead_to(Path::new(path), paths).await;
    let mut spares = view.spares().iter().zip(lead_there);
    let is_meant = |(spare, leads_there): &(&Vdev, bool)| {
        *leads_there
            || spare.guid.to_string() == word
            || spare.display_name() == word
            || spare.disk_path() == Some(path)
    };
    spares.find(is_meant).map(|(spare, _)| spare)
}

/// `zpool replace`
pub(crate) async fn replace(cx: &Cx<'_>, asked: DeviceNew) -> Result<Answer, Failure> {
    let new = understood(cx, &asked, "replace", "with").await?;
    let view = new.held.view();
    let spare = match &asked.new {
        Some(word) => spare_meant(&view, word, &new.path).await,
        None => None,
    };
    let replaced = match spare {
        // A hot spare of the pool is locked already, and its label says whose it is.
        Some(spare) => match new.engine.try_out_spare(spare.guid).await {
            Ok(()) => new.engine.activate_spare(new.guid, spare.guid, new.ashift).await,
            Err(error) => Err(error),
        },
        None => {
            let leaf = prepared(cx, &new, asked.force).await?;
            new.engine.replace(new.guid, leaf).await.map(drop)
        }
    };
    replaced.map_err(|error| refused(&new.what, &error))?;
    Ok(Answer { warnings: settle(cx, &new.held, &new.what).await, ..Answer::default() })
}

/// `zpool detach`
pub(crate) async fn detach(cx: &Cx<'_>, pool: &str, word: &str) -> Result<Answer, Failure> {
    let what = format!("cannot detach {word}");
    let (held, engine) = engine(cx.host.writable(pool).await, pool, &what)?;
    let guid = find(&held, &what, word).await?;
    let is_away = leaf(&held.view(), guid).is_some_and(|leaf| !leaf.is_readable());
    engine.detach(guid).await.map_err(|error| refused(&what, &error))?;
    if is_away {
        // Who watches the devices clears the labels of one that was closed, and makes a spare one at rest.
        engine.look().await;
    }
    Ok(Answer { warnings: settle(cx, &held, &what).await, ..Answer::default() })
}

/// `zpool clear`
pub(crate) async fn clear(cx: &Cx<'_>, pool: &str, word: Option<&str>) -> Result<Answer, Failure> {
    let what = format!("cannot clear errors for {}", word.unwrap_or(pool));
    let (held, engine) = engine(cx.host.pool(pool).await, pool, &what)?;
    let guid = match word {
        Some(word) => Some(find(&held, &what, word).await?),
        None => None,
    };
    search_anew(cx);
    engine.clear(guid).await.map_err(|error| refused(&what, &error))?;
    Ok(Answer { warnings: settle(cx, &held, &what).await, ..Answer::default() })
}

/// `zpool reopen`
pub(crate) async fn reopen(cx: &Cx<'_>, pool: &str) -> Result<Answer, Failure> {
    let what = format!("cannot reopen '{pool}'");
    let (held, engine) = engine(cx.host.pool(pool).await, pool, &what)?;
    search_anew(cx);
    engine.look().await;
    Ok(Answer { warnings: settle(cx, &held, &what).await, ..Answer::default() })
}

/// `zpool initialize`, `zpool trim`
pub(crate) async fn sweep(
    cx: &Cx<'_>,
    pool: &str,
    words: &[String],
    (wish, action): (SweepWish, SweepAction),
    rate: Option<u64>,
) -> Result<Answer, Failure> {
    let (kind, verb) = match wish {
        SweepWish::Initialize => (SweepKind::Initialize, "initialize"),
        SweepWish::Trim => (SweepKind::Trim, "trim"),
    };
    let command = match action {
        SweepAction::Start => SweepCommand::Start { rate },
        SweepAction::Suspend => SweepCommand::Suspend,
        SweepAction::Cancel => SweepCommand::Cancel,
        SweepAction::Forget => SweepCommand::Forget,
    };
    let what = |word: &str| match action {
        SweepAction::Start => format!("cannot {verb} '{word}'"),
        SweepAction::Suspend => format!("cannot suspend {verb} of '{word}'"),
        SweepAction::Cancel => format!("cannot cancel {verb} of '{word}'"),
        SweepAction::Forget => format!("cannot forget {verb} of '{word}'"),
    };
    let (held, engine) = engine(cx.host.writable(pool).await, pool, &what(pool))?;
    let mut targets = Vec::new();
    for word in words {
        targets.push((find(&held, &what(word), word).await?, word.clone()));
    }
    if words.is_empty() {
        let tree = held.view().tree();
        // What waits for a device that is away can be stopped.
        let is_meant = |leaf: &&Vdev| action != SweepAction::Start || leaf.is_readable();
        let meant = tree.leaves().into_iter().filter(is_meant);
        targets.extend(meant.map(|leaf| (leaf.guid, leaf.display_name())));
    }
    // Whoever names no device means those that can: the first reason is told if none could.
    let (mut done, mut refusal) = (0, None);
    for (guid, word) in targets {
        match engine.sweep(kind, guid, command).await {
            Ok(()) => done += 1,
            Err(error) => {
                let failure = refused(&what(&word), &error);
                if !words.is_empty() {
                    return Err(failure);
                }
                refusal.get_or_insert(failure);
            }
        }
    }
    match refusal.filter(|_| done == 0) {
        Some(failure) => Err(failure),
        None => Ok(Answer { warnings: settle(cx, &held, &what(pool)).await, ..Answer::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was refused, as there is no such partition on a new disk.
    #[tokio::test]
    async fn a_replacement_in_the_place_of_a_partitioned_disk_is_the_disk() {
        let (partition, disk) = ("/dev/disk/by-path/none-part1", "/dev/disk/by-path/none");
        assert_eq!(place_of(partition, Some(disk)).await, disk);
        assert_eq!(place_of(partition, None).await, partition, "somebody else made it");
        assert_eq!(place_of("/dev/null", Some(disk)).await, "/dev/null", "it is there");
    }
}
