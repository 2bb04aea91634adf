//! Looks at the pool all the time: how it was and for how long, and what anybody would have been told.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use engine::{
    engine::Engine,
    events::{Event, IoError, ScanKind, ScanStep},
};
use parking_lot::Mutex;
use pool::vdev::State;
use tokio::time::{Instant, sleep};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(100);
/// Lines of a story.
const STORY_MAX: usize = 60;

/// What was seen.
#[derive(Debug)]
pub(crate) struct Seen {
    began: Instant,
    pub(crate) story: Vec<(Duration, String)>,
    /// Once per device and kind.
    told: BTreeSet<String>,
    pub(crate) degraded: Duration,
    pub(crate) suspended: Duration,
    /// The first trouble.
    pub(crate) trouble: Option<Duration>,
    /// Paths of the devices that were hurt.
    pub(crate) hurt: BTreeSet<String>,
    /// The first thing after it that a person would have been told, and when.
    pub(crate) noticed: Option<(Duration, String)>,
    pub(crate) repaired: u64,
    pub(crate) resilvered: u64,
}

pub(crate) type Watch = Arc<Mutex<Seen>>;

pub(crate) fn new() -> Watch {
    Arc::new(Mutex::new(Seen {
        began: Instant::now(),
        story: Vec::new(),
        told: BTreeSet::new(),
        degraded: Duration::ZERO,
        suspended: Duration::ZERO,
        trouble: None,
        hurt: BTreeSet::new(),
        noticed: None,
        repaired: 0,
        resilvered: 0,
    }))
}

impl Seen {
    /// Something was done, or happened.
    pub(crate) fn tell(&mut self, text: impl Into<String>) {
        if self.story.len() < STORY_MAX {
            self.story.push((self.began.elapsed(), text.into()));
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn hear(&mut self, event: &Event) {
        match event {
            Event::Repaired { bytes, .. } => self.repaired += bytes,
            Event::Scan { kind: ScanKind::Resilver, step: ScanStep::Finished, processed, .. } => {
                self.resilvered += processed;
            }
            _ => {}
        }
        let Some((text, is_alarming)) = describe(event) else { return };
        // An alarm about another device is no notice of this one.
        let is_about_it =
            device_of(event).is_none_or(|path| self.hurt.is_empty() || self.hurt.contains(path));
        if is_alarming && is_about_it && self.trouble.is_some() && self.noticed.is_none() {
            self.noticed = Some((self.began.elapsed(), text.clone()));
        }
        // Errors come in swarms.
        let swarm = matches!(event, Event::IoFailed { .. } | Event::Repaired { .. } | Event::DataLost { .. });
        let key = text.split(':').next().unwrap_or_default().to_owned();
        if !swarm || self.told.insert(format!("{key} {:?}", std::mem::discriminant(event))) {
            self.tell(text);
        }
    }
}

/// Nothing is lacking anywhere.
pub(crate) fn is_whole(engine: &Engine) -> bool {
    let tree = engine.view().tree();
    tree.state().0 == State::Healthy
        && tree.leaves().iter().all(|vdev| {
            vdev.leaf.as_ref().is_none_or(|leaf| {
                let standing = leaf.condition.get();
                standing.state().0 == State::Healthy && !standing.resilvering && leaf.missed.get().is_empty()
            })
        })
}

/// Watches until aborted.
pub(crate) async fn run(engine: Arc<Engine>, watch: Watch) {
    let mut newest = 0;
    loop {
        let look = Instant::now();
        sleep(PERIOD).await;
        let passed = look.elapsed();
        let events = engine.events().since(newest);
        newest = events.last().map_or(newest, |record| record.number);
        let mut seen = watch.lock();
        events.iter().for_each(|record| seen.hear(&record.event));
        if engine.suspended().is_some() {
            seen.suspended += passed;
        }
        if !is_whole(&engine) {
            seen.degraded += passed;
        }
    }
}

/// The path of the device that an event is about.
fn device_of(event: &Event) -> Option<&str> {
    match event {
        Event::DeviceState { device, .. }
        | Event::IoFailed { device: Some(device), .. }
        | Event::Slow { device, .. }
        | Event::SpareActivated { device, .. }
        | Event::LogDeviceFailed { device } => device.path.as_deref(),
        _ => None,
    }
}

/// In words, and whether somebody should look.
fn describe(event: &Event) -> Option<(String, bool)> {
    Some(match event {
        Event::DeviceState { device, to, aux, why, .. } => {
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            (format!("{} is {}{why}", device.name, to.word(*aux)), *to != State::Healthy)
        }
        Event::PoolState { to, .. } => {
            (format!("the pool is {}", to.word(pool::vdev::Aux::None)), *to != State::Healthy)
        }
        Event::IoFailed { device: Some(device), error, count, .. } => {
            let what = match error {
                IoError::Read => "read error",
                IoError::Write => "write error",
                IoError::Checksum => "checksum error",
            };
            let s = if *count == 1 { "" } else { "s" };
            (format!("{}: {count} {what}{s}", device.name), true)
        }
        Event::IoFailed { device: None, .. } => return None,
        Event::DataLost { what, .. } => (format!("lost: {what}"), true),
        Event::Repaired { device, .. } => {
            (format!("{}: wrong bytes are replaced by right ones", device.name), false)
        }
        Event::Scan { kind, step, processed, errors } => {
            let kind = match kind {
                ScanKind::Scrub => "scrub",
                ScanKind::Resilver => "resilver",
            };
            let step = match step {
                ScanStep::Started => "begins",
                ScanStep::Continued => "goes on",
                ScanStep::Paused => "pauses",
                ScanStep::Resumed => "goes on",
                ScanStep::Cancelled => "is cancelled",
                ScanStep::Finished => {
                    let bytes = pool::status::human(*processed);
                    return Some((
                        format!("a {kind} is done: {bytes} written, {errors} errors"),
                        *errors > 0,
                    ));
                }
            };
            (format!("a {kind} {step}"), false)
        }
        Event::SpareActivated { spare, device } => {
            (format!("spare {} stands in for {}", spare.name, device.name), true)
        }
        Event::SpareReturned { spare } => (format!("spare {} is free again", spare.name), false),
        Event::Slow { device, latency, peers, sits_out } => {
            let text = if *sits_out {
                let (own, others) = (latency.as_millis(), peers.as_millis());
                format!("{} is slow ({own} ms, others {others} ms) and is not read from", device.name)
            } else {
                format!("{} is read from again", device.name)
            };
            (text, *sits_out)
        }
        Event::Suspended { why } => (format!("the pool is suspended: {why}"), true),
        Event::Resumed => ("the pool goes on".to_owned(), false),
        Event::LogDeviceFailed { device } => (format!("log device {} cannot be used", device.name), true),
        Event::SpaceLow { percent } => (format!("{percent} % of the pool is used"), true),
        _ => return None,
    })
}
