//! Devices for a pool, from the words of the command line to disks that nobody else has.
//!
//! Everything about all of them is found out before the first is touched; files that were made are removed again,
//! and those that grew are as they were, if the pool does not come about. What a device must be is `engine::create::device`'s to know.
//!
//! A device keeps the name it was given: `/dev/disk/by-id/…` means the same disk after the next start, and `/dev/sdb`,
//! to which it leads today, may be another's by then. Links are followed only to see whether two names mean one device.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use disk::{Disk, OpenOptions};
use engine::{
    EngineError,
    create::{Ashift, Plan, SpecError, VdevSpec, device},
    write::labels,
};
use pool::{
    Pool,
    import::{Device, look_up_in_time, open_in_time},
    status::human,
    vdev::Vdev,
};

use super::{Failure, held::Held, host::Host};
use crate::{
    disks::Sysfs,
    paths::{lead_to, real},
};

/// What is to be done with the devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Bytes of files that do not exist.
    pub(crate) file_size: Option<u64>,
    /// Whatever is on them, and with mixed redundancy.
    pub(crate) force: bool,
    /// log2 of the smallest block.
    pub(crate) ashift: Ashift,
}

/// A refusal of devices, in words. `what` is what cannot be done.
pub(crate) fn refused(what: &str, error: &SpecError) -> Failure {
    match error {
        SpecError::Refused(why) => Failure::because(what, why),
        other => Failure::new(other.to_string()),
    }
}

/// A device that may be overwritten, opened and locked. One that a pool of this host has is refused with the name of that
/// pool: "another process" would be the very one that says so. So is one that is offline or faulted there, and closed for that.
///
/// # Errors
/// What is wrong with it.
pub(crate) async fn prepare(
    host: &Host,
    path: &str,
    file_size: Option<u64>,
    force: bool,
) -> Result<device::Prepared, SpecError> {
    refuse_closed(host, path).await?;
    match device::prepare(Path::new(path), file_size, force).await {
        Err(error @ SpecError::Repair(_)) => match owner(host, None, Path::new(path)).await {
            Some(pool) => Err(in_use(path, &pool)),
            None => Err(error),
        },
        prepared => prepared,
    }
}

/// Refuses a device that an open pool has let go of because it is offline or faulted: it may be taken into use again, with what
/// only it has. So is the disk of such a partition, and the other way round, which are as free.
async fn refuse_closed(host: &Host, path: &str) -> Result<(), SpecError> {
    let mut closed = BTreeMap::new();
    for held in host.all() {
        let tree = held.view().tree();
        for vdev in tree.leaves() {
            if vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.get().is_let_go()) {
                closed.insert((vdev.guid, held.guid()), held.name().to_owned());
            }
        }
    }
    if closed.is_empty() {
        return Ok(());
    }
    let word = path.to_owned();
    let overlapping = move |_: &Path| Ok(Sysfs::default().overlapping(&word));
    let overlapping = look_up_in_time(Path::new(path), overlapping).await.unwrap_or_default();
    let mut places = vec![PathBuf::from(path)];
    places.extend(overlapping);
    match who_closed(&closed, places).await {
        Some(pool) => Err(in_use(path, pool)),
        None => Ok(()),
    }
}

/// Whose the first device at these places is, by its label, of those that were closed: guids of a leaf and of its pool → name of
/// that.
async fn who_closed(closed: &BTreeMap<(u64, u64), String>, places: Vec<PathBuf>) -> Option<&str> {
    for place in places {
        let guids = guids_at(&place).await.ok().flatten();
        if let Some(pool) = guids.and_then(|guids| closed.get(&guids)) {
            return Some(pool.as_str());
        }
    }
    None
}

/// Guids of the leaf that is at a path and of its pool, by its label; none if it has none.
///
/// # Errors
/// It cannot be opened or read, or does not answer.
pub(crate) async fn guids_at(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let disk = open_in_time(path, options).await?;
    Ok(Device::read(Arc::new(disk)).await?.and_then(|device| device.guids()))
}

fn in_use(path: &str, pool: &str) -> SpecError {
    SpecError::Repair(vec![format!("{path} is part of active pool '{pool}'")])
}

/// The pool that has this device: an open one, or `own`.
async fn owner(host: &Host, own: Option<&Held>, path: &Path) -> Option<String> {
    let open = host.all();
    let (mut names, mut places) = (Vec::new(), Vec::new());
    for held in open.iter().map(|held| &**held).chain(own) {
        for place in places_of(&held.view()) {
            names.push(held.name());
            places.push(place);
        }
    }
    let leads = lead_to(path, places).await;
    let found = names.into_iter().zip(leads).find_map(|(name, leads)| leads.then_some(name));
    found.map(str::to_owned)
}

/// Where the devices are that a pool has open.
fn places_of(pool: &Pool) -> Vec<PathBuf> {
    let tree = pool.tree();
    let beside = pool.spares().iter().chain(pool.l2cache());
    let disks = tree.leaves().into_iter().chain(beside).filter_map(|vdev| vdev.leaf.as_ref()?.disk());
    disks.map(|disk| PathBuf::from(disk.info().path)).collect()
}

/// The whole path of a device, by the name that a word gives it.
///
/// # Errors
/// There is no such device.
pub(crate) async fn path_of(word: &str) -> Result<String, SpecError> {
    let path = device::resolve(word)?;
    // What goes up again leads elsewhere once a directory on the way is gone.
    let goes_up = path.components().any(|part| part == Component::ParentDir);
    let directory = match path.parent().filter(|_| goes_up) {
        Some(directory) => look_up_in_time(directory, Path::canonicalize).await.ok(),
        None => None,
    };
    let whole = match (directory, path.file_name()) {
        (Some(directory), Some(name)) => directory.join(name),
        _ => std::path::absolute(&path).unwrap_or_else(|_| path.clone()),
    };
    Ok(whole.to_string_lossy().into_owned())
}

/// What `find` finds in a pool by a word: as it was typed, as the path that it means, or by the name under which the pool
/// knows the device that this leads to.
///
/// # Errors
/// Of `find`, for the word as it was typed, unless the pool knows the device by another name.
pub(crate) async fn find<T, E>(view: &Pool, word: &str, find: impl Fn(&str) -> Result<T, E>) -> Result<T, E> {
    let error = match find(word) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let Ok(path) = path_of(word).await else { return Err(error) };
    if path != word
        && let Ok(found) = find(&path)
    {
        return Ok(found);
    }
    known_as(view, &path).await.map_or(Err(error), |known| find(&known))
}

/// The path by which a pool knows the device that another path leads to. A device that is away may have had a name that
/// leads to another by now: those that are there come first.
async fn known_as(view: &Pool, path: &str) -> Option<String> {
    let tree = view.tree();
    let all = tree.leaves().into_iter().chain(view.spares()).chain(view.l2cache());
    // Of a partition that OpenZFS made, the disk as well.
    let all: Vec<(&Vdev, &str)> = all
        .flat_map(|leaf| {
            let paths = [leaf.path.as_deref(), leaf.disk_path()];
            paths.into_iter().flatten().map(move |path| (leaf, path))
        })
        .collect();
    let places = all.iter().map(|(_, path)| PathBuf::from(*path)).collect();
    let lead_there = lead_to(Path::new(path), places).await;
    let same: Vec<&Vdev> =
        all.into_iter().zip(lead_there).filter_map(|((leaf, _), leads)| leads.then_some(leaf)).collect();
    let is_there = |leaf: &&&Vdev| leaf.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_some());
    same.iter().find(is_there).or(same.first())?.path.clone()
}

/// Clears the labels of a device that left its pool.
///
/// # Errors
/// It cannot be written to.
pub(crate) async fn clear(disk: Arc<dyn Disk>) -> Result<(), EngineError> {
    let info = disk.info();
    if !info.read_only {
        return labels::clear(&disk).await;
    }
    // Cache and spare devices are only looked at while they wait.
    let options = OpenOptions { lock: true, ..OpenOptions::default() };
    let opened = open_in_time(&info.path, options).await;
    let writable = opened.map_err(|error| EngineError::Device(error.to_string()))?;
    labels::clear(&(Arc::new(writable) as Arc<dyn Disk>)).await
}

/// Arranges what the user typed, without touching it.
///
/// # Errors
/// What is wrong with which device.
pub(crate) async fn plan(words: &[String], what: &str, wish: Wish) -> Result<Plan, Failure> {
    let refused = |error: SpecError| match (&error, wish.file_size) {
        (SpecError::Open { reason, .. }, None) if reason == "No such file or directory" => {
            Failure::new(format!("{error}\nto create files, give their size with --size"))
        }
        _ => refused(what, &error),
    };
    // The largest offset of a file is that of a signed number.
    if let Some(size) = wish.file_size.filter(|size| i64::try_from(*size).is_err()) {
        return Err(Failure::because(what, format!("files of {} would be too large", human(size))));
    }
    let mut spec = VdevSpec::parse(words).map_err(refused)?;
    let mut whole = Vec::new();
    for word in spec.paths() {
        whole.push(path_of(word).await.map_err(refused)?);
    }
    // Under two names it is still one device.
    let places: Vec<PathBuf> = whole.iter().map(PathBuf::from).collect();
    let places = real(&places).await;
    let really = places.iter().map(|place| place.to_string_lossy().into_owned());
    spec.set_paths(whole).map_err(refused)?;
    spec.clone().set_paths(really).map_err(refused)?;
    let mut facts = Vec::new();
    for path in spec.paths() {
        facts.push(device::inspect(Path::new(path), wish.file_size).await.map_err(refused)?);
    }
    Plan::with(&spec, &facts, wish.ashift, wish.force).map_err(refused)
}

/// Whether [`take`] would refuse devices of a plan, as far as that can be seen without taking them. `own` is the pool that they
/// are for, which may be open for this only.
///
/// # Errors
/// What is wrong with which device.
pub(crate) async fn check(
    host: &Host,
    plan: &Plan,
    what: &str,
    wish: Wish,
    own: Option<&Held>,
) -> Result<(), Failure> {
    for path in plan.paths() {
        check_one(host, path, wish, own).await.map_err(|error| refused(what, &error))?;
    }
    Ok(())
}

async fn check_one(host: &Host, path: &str, wish: Wish, own: Option<&Held>) -> Result<(), SpecError> {
    let device = Path::new(path);
    if let Some(pool) = owner(host, own, device).await {
        return Err(in_use(path, &pool));
    }
    refuse_closed(host, path).await?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    match open_in_time(device, options).await {
        Ok(disk) => device::check(device, Arc::new(disk), wish.force).await,
        // It is to be made: what there is was opened for the plan.
        Err(_) => Ok(()),
    }
}

/// Devices that are ours until this is dropped or the pool is there.
pub(crate) struct Taken {
    prepared: Vec<device::Prepared>,
}

impl Taken {
    /// In the order of [`Plan::paths`].
    pub(crate) fn disks(&self) -> Vec<Arc<dyn Disk>> {
        self.prepared.iter().map(|device| Arc::clone(&device.disk)).collect()
    }

    /// The pool is there: its files stay.
    pub(crate) fn keep(mut self) {
        self.prepared.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.prepared.drain(..).for_each(device::Prepared::undo);
    }
}

/// Opens and locks the devices of a plan.
///
/// # Errors
/// What is wrong with which device; files that were made are gone again.
pub(crate) async fn take(host: &Host, plan: &Plan, what: &str, wish: Wish) -> Result<Taken, Failure> {
    let mut taken = Taken { prepared: Vec::new() };
    for path in plan.paths() {
        let prepared = prepare(host, path, wish.file_size, wish.force).await;
        taken.prepared.push(prepared.map_err(|error| refused(what, &error))?);
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Found by reading: with `-f` the whole disk was taken of a partition that was offline, as nothing said whose that is.
    #[tokio::test]
    async fn a_device_is_refused_for_what_shares_its_bytes() {
        let dir = fixtures::pool("mirror2").copy();
        let (mut guids, mut images) = (None, Vec::new());
        for entry in fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if let Ok(Some(found)) = guids_at(&path).await {
                guids = Some(found);
                images.push(path);
            }
        }
        let last = images.pop().unwrap();
        let blank = dir.path().join("blank");
        fs::File::create(&blank).unwrap().set_len(64 << 20).unwrap();
        let closed = BTreeMap::from([(guids.unwrap(), "tank".to_owned())]);
        let free = vec![dir.path().join("nothing"), blank.clone(), images[0].clone()];
        assert_eq!(who_closed(&closed, free).await, None);
        assert_eq!(who_closed(&closed, vec![blank, last]).await, Some("tank"));
    }
}
