//! `zpool labelclear`: a device forgets that it was part of a pool.
//!
//! Only the four labels are written over, and only on a device that nobody has open: the lock that every writer of
//! a pool holds is taken first. What a daemon has closed because it is offline or faulted stays its pool's.
//! Facts: docs/format/labels.md §1, §3.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use disk::{Disk, OpenOptions};
use engine::{
    BoxFuture,
    create::device::{is_unfinished, resolve},
};
use pool::import::{Device, open_in_time};

use crate::{
    api,
    host::{chain, reason},
    ops::Failure,
};

/// Bytes of a label.
const LABEL: u64 = 256 << 10;
/// States in a label.
const ACTIVE: u64 = 0;
const EXPORTED: u64 = 1;

/// Clears the labels of a device, which may be named without `/dev`. `open` are the pools that a daemon has.
///
/// # Errors
/// It has none, is in use, or is part of one of these pools, be it offline or faulted; or it is part of a pool that could be
/// imported, or may be in use elsewhere, and `force` is not given.
pub fn clear<'a>(path: &'a Path, force: bool, open: &'a [api::Pool]) -> BoxFuture<'a, Result<(), Failure>> {
    Box::pin(async move {
        let path = meant(path);
        let name = path.display();
        let options = OpenOptions { lock: true, ..OpenOptions::default() };
        let opened = open_in_time(&path, options).await;
        let disk = opened.map_err(|error| match error.kind() {
            std::io::ErrorKind::ResourceBusy => {
                Failure::new(format!("{name} is a member (ACTIVE) of a pool: {error}"))
            }
            _ => Failure::new(format!("failed to open {name}: {}", reason(&error))),
        })?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let failed = |error: std::io::Error| {
            Failure::new(format!("failed to clear label for {name}: {}", chain(&error)))
        };
        let device = Device::read(Arc::clone(&disk)).await.map_err(failed)?;
        let Some(device) = device else {
            return Err(Failure::new(format!("failed to read label from {name}")));
        };
        if let Some((pool, state)) = excluded(open, &device) {
            return Err(Failure::new(format!(
                "{name} is a member (ACTIVE) of pool \"{pool}\", where it is {state}\nlet the pool do without it first: 'zpool detach' \
                 or 'zpool replace'"
            )));
        }
        if let Some(config) = device.config_at(u64::MAX)
            && !force
        {
            let pool = config.str("name").unwrap_or("<unknown>");
            let what = match config.u64("state") {
                // Its pool never came to be, or does without it.
                Some(ACTIVE) if is_unfinished(config) => "",
                Some(ACTIVE) => "potentially active",
                Some(EXPORTED) => "exported",
                // Destroyed, or what is left of a spare or cache device: nothing is lost.
                _ => "",
            };
            if !what.is_empty() {
                return Err(Failure::new(format!(
                    "use '-f' to override the following error:\n{name} is a member of {what} pool \"{pool}\""
                )));
            }
        }
        let size = disk.info().size / LABEL * LABEL;
        for at in [0, LABEL, size.saturating_sub(2 * LABEL), size.saturating_sub(LABEL)] {
            disk.write(at, Bytes::from(vec![0; usize::try_from(LABEL).unwrap_or(0)]))
                .await
                .map_err(failed)?;
        }
        disk.flush().await.map_err(failed)
    })
}

/// The pool that a device is a part of and that has closed it, and how it is there. One that is not used for what is on it is
/// neither offline nor faulted: that is cleared to be rid of it.
fn excluded<'a>(open: &'a [api::Pool], device: &Device) -> Option<(&'a str, &'a str)> {
    let (leaf, pool) = device.guids()?;
    let (leaf, pool) = (leaf.to_string(), pool.to_string());
    let pool = open.iter().find(|open| open.guid == pool)?;
    let state = state_of(&pool.root, &leaf)?;
    ["OFFLINE", "FAULTED"].contains(&state).then_some((&*pool.name, state))
}

fn state_of<'a>(device: &'a api::Device, guid: &str) -> Option<&'a str> {
    if device.guid == guid {
        return Some(&device.state);
    }
    device.children.iter().find_map(|child| state_of(child, guid))
}

/// What is there by this name; if nothing is, what other commands take for a device by it.
fn meant(path: &Path) -> PathBuf {
    let word = path.to_str().filter(|_| !path.exists());
    word.and_then(|word| resolve(word).ok()).unwrap_or_else(|| path.to_owned())
}
