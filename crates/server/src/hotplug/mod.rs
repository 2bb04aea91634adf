//! Disks that are plugged in and pulled out while the daemon runs.
//!
//! ```text
//!   kernel ── uevent ──▶ run ──(news, a moment later)──▶ Engine::look of every pool ──▶ Opener::open of what is away
//!   nobody says anything: the engine probes its devices by itself, and asks the opener every few seconds
//! ```
//!
//! A device is told of before udev has made its names in `/dev/disk`, and a shelf of disks comes as a hundred messages
//! within a second. So one look is taken when it has become quiet, and another a little later.

use std::{collections::BTreeMap, sync::Weak, time::Duration};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

mod ask;
mod looks;
mod news;
mod opener;
mod replacement;
mod uevent;

pub(crate) use opener::DeviceOpener;

use crate::ops::Host;

/// Quiet that ends a burst of messages.
const QUIET: Duration = Duration::from_millis(300);
/// Longest that a burst holds up the first look.
const BURST_MAX: Duration = Duration::from_secs(2);
/// When the second look is taken: udev has made its links by then.
const AGAIN: Duration = Duration::from_secs(3);

/// How often devices came or went, as far as the system said.
#[derive(Debug, Default)]
pub(crate) struct Changes(watch::Sender<u64>);

impl Changes {
    pub(crate) fn one_more(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    fn count(&self) -> u64 {
        *self.0.borrow()
    }

    /// Hears of each from now on.
    pub(crate) fn heard(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Listens until the daemon's pools are gone. Where the system does not let it, the engines' probing has to do.
pub(crate) async fn run(host: Weak<Host>) {
    let mut uevents = match uevent::Uevents::listen() {
        Ok(uevents) => uevents,
        Err(error) => {
            tracing::warn!(%error, "the kernel's messages about devices cannot be heard; devices are probed instead");
            return;
        }
    };
    let mut devices = news::Devices::listed_in("/sys/class/block");
    let mut looking = BTreeMap::new();
    loop {
        let mut messages = match uevents.next().await {
            Ok(first) => vec![first],
            Err(error) => {
                tracing::error!(%error, "the kernel's messages about devices are heard no more");
                return;
            }
        };
        let latest = Instant::now() + BURST_MAX;
        while Instant::now() < latest
            && let Ok(Ok(next)) = timeout_at((Instant::now() + QUIET).min(latest), uevents.next()).await
        {
            messages.push(next);
        }
        if !devices.are_news(&messages) {
            continue;
        }
        tracing::info!(first = ?messages[0], "devices changed");
        for pause in [Duration::ZERO, AGAIN] {
            tokio::time::sleep(pause).await;
            let Some(host) = host.upgrade() else { return };
            look(&host, &mut looking);
        }
    }
}

/// Lets every pool look at its devices. Nobody waits: a device that hangs holds up its own pool only, and that one is
/// not asked again meanwhile.
fn look(host: &Host, looking: &mut BTreeMap<u64, JoinHandle<()>>) {
    if let Some(watching) = host.watching() {
        watching.changes.one_more();
    }
    looking.retain(|_, task| !task.is_finished());
    for held in host.all() {
        if let Some(engine) = held.engine().cloned() {
            looking.entry(held.guid()).or_insert_with(|| tokio::spawn(async move { engine.look().await }));
        }
    }
}
