//! The pools that a daemon has when it starts: opened side by side, for each takes as long as its devices do.
//!
//! A device may answer for its labels and for nothing else, and what nobody else has is waited for without end. That is one
//! pool's affair: the others are opened and served, and what is not open after a while goes on being opened ([`crate::late`]).

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::join_all;
use pool::import::{Candidate, look_up_in_time};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    ops::{Held, Host},
    state::Remembered,
};

/// How long a daemon that starts waits for its pools to be open.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How long devices that somebody else has are asked for if the daemon cannot start without them: a command that gives way
/// has to close its pool first. What is left of [`PATIENCE`] is for opening it.
pub(crate) const IN_USE_PATIENCE: Duration = Duration::from_secs(15);

/// How long devices are waited for that are missing while others of their pool are there: shelves do not answer at once.
const LATECOMERS: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);

/// A pool that was opened, with what the user should know about it; or why it was not, as a sentence.
pub(crate) type Opened = Result<(Held, Vec<String>), String>;

/// A pool that was found, and how it was imported.
pub(crate) type Wanted = (Candidate, Option<Remembered>);

/// A pool that is being opened, by a task of its own. Dropped, it is given up, as by [`give_up`](Self::give_up).
#[derive(Debug)]
pub(crate) struct Opening {
    task: JoinSet<Opened>,
    /// Its part of what is remembered of what was warm, until it is open.
    expected: Option<Arc<()>>,
}

impl Opening {
    fn begin(
        host: &Arc<Host>,
        (candidate, remembered): &Wanted,
        is_asked_for: bool,
        patience: Duration,
    ) -> Self {
        let expected = host.watching().map(|watching| watching.warmth.expect());
        let (host, mut candidate, remembered) = (Arc::clone(host), candidate.clone(), remembered.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Some(remembered) = &remembered {
                candidate = with_latecomers(&host, candidate, remembered).await;
            }
            host.reach(&candidate, remembered.as_ref(), is_asked_for, patience).await
        });
        Self { task, expected }
    }

    /// What comes of it. Nothing is lost if that is not waited for to the end.
    pub(crate) async fn end(&mut self) -> Opened {
        let ended = self.task.join_next().await.and_then(Result::ok);
        self.expected = None;
        ended.unwrap_or_else(|| Err("the attempt to open it ended abnormally".to_owned()))
    }

    /// Gives it up where it is, and waits until that is so.
    pub(crate) async fn give_up(mut self) {
        self.task.shutdown().await;
    }
}

/// A pool with those of its devices that come a moment after the others. Opened without them it would have to be resilvered;
/// and a transaction group that a power cut left on them alone cannot be told from one that was acknowledged there. What had
/// ended without them is whole, and hosts wait for it; and so is what has all of them, wherever they were.
async fn with_latecomers(host: &Host, candidate: Candidate, remembered: &Remembered) -> Candidate {
    let deadline = Instant::now() + LATECOMERS;
    let newest = candidate.uberblocks.first().map_or(0, |best| best.txg);
    let is_whole =
        newest == remembered.newest || (newest > remembered.newest && candidate.lacking().is_empty());
    if is_whole || !is_one_missing(&remembered.devices, deadline).await {
        return candidate;
    }
    tracing::debug!(pool = candidate.name, "some of its devices are awaited");
    while Instant::now() < deadline && is_one_missing(&remembered.devices, deadline).await {
        sleep(LOOK).await;
    }
    match host.places().where_it_was(remembered).await {
        Some(again) if again.devices.len() > candidate.devices.len() => again,
        _ => candidate,
    }
}

/// Whether one of these paths leads nowhere, or does not say where until then: a server of files may be away.
async fn is_one_missing(devices: &[PathBuf], deadline: Instant) -> bool {
    let mut looks = Vec::with_capacity(devices.len());
    for path in devices {
        looks.push(look_up_in_time(path, |path| path.metadata().map(drop)));
    }
    match timeout_at(deadline, join_all(looks)).await {
        Ok(looks) => looks.iter().any(Result::is_err),
        Err(_) => true,
    }
}

/// What came of a pool within the time.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is kept; what the user should know.
    Open(Vec<String>),
    /// Why not, as a sentence.
    Failed(String),
    /// It is still being opened.
    Late(Opening),
}

/// Opens these pools, and keeps those that are open in time; `patience` as of [`Host::open`]. What came of each, in their
/// order.
pub(crate) async fn all(
    host: &Arc<Host>,
    pools: &[Wanted],
    is_asked_for: bool,
    patience: Duration,
) -> Vec<Outcome> {
    let deadline = Instant::now() + PATIENCE;
    let begin = |pool: &Wanted| Opening::begin(host, pool, is_asked_for, patience);
    // Of two that have one name, the second is opened if the first is not.
    let has_namesake = |i: usize| pools[..i].iter().any(|(earlier, _)| earlier.name == pools[i].0.name);
    let begun: Vec<Option<Opening>> =
        pools.iter().enumerate().map(|(i, pool)| (!has_namesake(i)).then(|| begin(pool))).collect();
    let mut outcomes = Vec::with_capacity(pools.len());
    for (pool, opening) in pools.iter().zip(begun) {
        let mut opening = opening.unwrap_or_else(|| begin(pool));
        let opened = timeout_at(deadline, opening.end()).await;
        outcomes.push(match opened {
            Err(_elapsed) => Outcome::Late(opening),
            Ok(Err(why)) => Outcome::Failed(why),
            Ok(Ok((held, mut notes))) => match host.receive(held).await {
                Ok((_, more)) => {
                    notes.extend(more);
                    Outcome::Open(notes)
                }
                Err(why) => Outcome::Failed(why),
            },
        });
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use std::fs;

    use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
    use pool::import::{self, Sources};
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        host::{Places, Settings},
        late::{Late, Missing},
        ops::{LOCK_PATIENCE, Mode, Operation, PoolCreate, Request, Watching, run},
        state::State,
    };

    /// A pool of one device, in memory.
    async fn found(fixture: &str) -> (Candidate, Arc<FaultDisk>) {
        let bytes = fs::read(&fixtures::pool(fixture).images()[0]).unwrap();
        let media = MemDisk::new(bytes.len() as u64);
        media.restore(0, &bytes);
        let disk = Arc::new(FaultDisk::new(Arc::new(media), 1));
        let mut found = import::scan(&Sources::disks([Arc::clone(&disk) as Arc<dyn Disk>])).await;
        (found.pools.remove(0), disk)
    }

    fn hang(disk: &FaultDisk) {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(DAY..=DAY)));
    }

    fn host(mode: Mode, dir: &tempfile::TempDir) -> Arc<Host> {
        let settings = Settings { read_only: true, ..Settings::default() };
        Arc::new(Host::new(Places::new(Vec::new(), State::at(dir.path())), mode, settings))
    }

    fn missing(candidate: &Candidate) -> Missing {
        let (name, guid) = (candidate.name.clone(), candidate.guid);
        Missing { name, guid, is_imported: false, why: crate::host::mute(&candidate.name) }
    }

    /// No pool was opened, and the daemon never ready, as long as the devices of the first one did not answer.
    #[tokio::test]
    async fn a_pool_whose_devices_hang_keeps_no_other_from_being_opened() {
        let (hung, disk) = found("single").await;
        let (well, _) = found("ashift9-single").await;
        let (dir, stop) = (tempfile::tempdir().unwrap(), watch::Sender::new(false));
        let host = host(Mode::ReadOnly, &dir);
        hang(&disk);
        tokio::time::pause();
        let began = Instant::now();
        let wanted: [Wanted; 2] = [(hung.clone(), None), (well.clone(), None)];
        let mut outcomes = all(&host, &wanted, true, LOCK_PATIENCE).await;
        assert!(matches!(&outcomes[..], [Outcome::Late(_), Outcome::Open(_)]), "{outcomes:?}");
        assert!((PATIENCE..PATIENCE + LOOK).contains(&began.elapsed()));
        let names = || host.all().iter().map(|held| held.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(), std::slice::from_ref(&well.name));
        // When they answer, it is open as well.
        disk.heal();
        let Outcome::Late(mut opening) = outcomes.remove(0) else { unreachable!("as above") };
        let late = Late::new(Arc::downgrade(&host), vec![missing(&hung)]);
        late.receive(&missing(&hung), opening.end().await, &stop.subscribe()).await;
        assert!(names().contains(&hung.name) && late.list().is_empty(), "{:?}", late.list());
    }

    /// Pools that were opened before it had taken its part of what is remembered of what was warm.
    #[tokio::test]
    async fn a_pool_is_expected_until_it_is_open() {
        let (hung, disk) = found("single").await;
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { read_only: true, ..Settings::default() };
        let host = Host::new(Places::new(Vec::new(), State::at(dir.path())), Mode::ReadOnly, settings);
        let host = Arc::new(host.with_watching(Watching::alone(dir.path())));
        // Without who counts them, and this look.
        let expected = || Arc::strong_count(&host.watching().unwrap().warmth.expect()) - 2;
        hang(&disk);
        tokio::time::pause();
        let mut outcomes = all(&host, &[(hung, None)], true, LOCK_PATIENCE).await;
        let Outcome::Late(mut opening) = outcomes.remove(0) else { panic!("it does not answer") };
        assert_eq!(expected(), 1);
        disk.heal();
        let _opened = opening.end().await.unwrap();
        assert_eq!(expected(), 0);
    }

    /// Hosts waited for the old path of a device that has another one now.
    #[tokio::test]
    async fn nobody_waits_for_where_a_device_was_that_is_there() {
        let (candidate, _) = found("single").await;
        let dir = tempfile::tempdir().unwrap();
        let host = host(Mode::ReadOnly, &dir);
        let (guid, gone) = (candidate.guid.to_string(), dir.path().join("gone"));
        let remembered = json!({ "name": "psingle", "guid": guid, "devices": [gone] });
        let remembered: Remembered = serde_json::from_value(remembered).unwrap();
        tokio::time::pause();
        let began = Instant::now();
        assert_eq!(with_latecomers(&host, candidate, &remembered).await.devices.len(), 1);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// Who created or imported a pool waited for the devices of another that was late and did not answer.
    #[tokio::test]
    async fn a_pool_is_created_while_a_late_one_hangs() {
        let (hung, disk) = found("single").await;
        let (dir, stop) = (tempfile::tempdir().unwrap(), watch::Sender::new(false));
        let host = host(Mode::Daemon, &dir);
        hang(&disk);
        let late = Late::new(Arc::downgrade(&host), vec![missing(&hung)]);
        let opening = tokio::spawn({
            let stop = stop.subscribe();
            async move { late.open(&missing(&hung), &hung, None, &stop).await }
        });
        sleep(Duration::from_millis(50)).await;
        let create = PoolCreate {
            pool: "tank".to_owned(),
            devices: vec![dir.path().join("d0").display().to_string()],
            file_size: Some(128 << 20),
            ..PoolCreate::default()
        };
        let request = Request { operation: Operation::PoolCreate(create), command: None, user: 0 };
        let created = tokio::time::timeout(Duration::from_secs(60), run(&host, request)).await;
        created.expect("it waits for nobody").unwrap();
        assert!(!opening.is_finished());
        opening.abort();
        host.close().await.unwrap();
    }
}
