//! An end: who takes a pool elsewhere has its devices, or is told that something may still land on them.

use std::sync::Weak;

use bytes::Bytes;
use disk::{DiskFuture, DiskInfo, IoBuf};
use tokio::sync::watch;

use super::*;
use crate::{
    host,
    late::{Late, Missing},
    opening::{self, Outcome},
    ops::{LOCK_PATIENCE, SweepAction, SweepWish, Watching},
};

/// Who exported it heard nothing, and the next host had what it wrote first where the trim was.
#[tokio::test(start_paused = true)]
async fn who_exports_a_pool_is_told_of_a_trim_that_is_not_answered() {
    const HOUR: Duration = Duration::from_secs(3600);
    let world = World::new().await;
    // The first is only to see whether the device can.
    world.disk.inject(Fault::anywhere(On::Trim, Effect::Delay(HOUR..=HOUR)).after(1).times(1));
    let trim = Operation::DeviceSweep {
        pool: "tank".to_owned(),
        devices: Vec::new(),
        sweep: SweepWish::Trim,
        action: SweepAction::Start,
        rate: None,
    };
    world.run(trim).await.unwrap();
    eventually("it is asked", async || world.disk.counts().trims > 1).await;
    let export = Operation::PoolExport { pool: "tank".to_owned(), force: false };
    let answer = world.run(export).await.unwrap();
    let [warning] = &answer.warnings[..] else { panic!("{:?}", answer.warnings) };
    assert_eq!(
        warning,
        "/disks/a owes answers, and what it was given may still land there: use it on no other host before 'fuser -v DEVICE' \
         shows that nobody has it"
    );
}

/// A disk of which writes go on when nobody waits for them any more, and that is open until they have ended: as the kernel does it.
#[derive(Debug)]
struct Detached(Arc<FaultDisk>);

impl Disk for Detached {
    fn info(&self) -> DiskInfo {
        self.0.info()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.0.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        let disk = Arc::clone(&self.0);
        let written = tokio::spawn(async move { disk.write(offset, data).await });
        Box::pin(async move { written.await.unwrap() })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        self.0.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.0.trim(offset, len)
    }
}

/// The export was done when the attempt had been dropped. What that had given a disk landed later, when another host had the pool,
/// and on this one it could not be imported.
#[tokio::test(start_paused = true)]
async fn who_exports_a_pool_that_is_late_has_its_devices_or_is_told_that_they_are_not_free() {
    static MEDIA: Mutex<Option<Arc<MemDisk>>> = Mutex::new(None);
    static TAKES: Mutex<Duration> = Mutex::new(Duration::ZERO);
    static LOCKED: Mutex<Weak<FaultDisk>> = Mutex::new(Weak::new());
    fn writable() -> import::Opener {
        Arc::new(|_| {
            let mut locked = LOCKED.lock();
            if locked.strong_count() > 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::ResourceBusy));
            }
            let media = MEDIA.lock().clone().unwrap() as Arc<dyn Disk>;
            let (disk, takes) = (Arc::new(FaultDisk::new(media, 1)), *TAKES.lock());
            disk.inject(Fault::anywhere(On::Write, Effect::Delay(takes..=takes)));
            *locked = Arc::downgrade(&disk);
            Ok(Arc::new(Detached(disk)) as Arc<dyn Disk>)
        })
    }
    let is_free = || LOCKED.lock().strong_count() == 0;
    // A start waits 20 s for its pools, and an export 15 s for an attempt. After a minute that one has failed by itself.
    for (takes, after, is_in_time) in
        [(30, 0, true), (50, 0, false), (80, 50, true), (120, 50, false), (120, 52, false)]
    {
        let world = World::new().await;
        world.host.remember(&world.host.find("tank").unwrap(), &Settings::default(), None).unwrap();
        world.engine.end(Ending::Close).await.unwrap();
        let media = Arc::new(world.media.fork());
        *MEDIA.lock() = Some(Arc::clone(&media));
        *TAKES.lock() = Duration::from_secs(takes);
        let dir = world.host.places().state().dir();
        let places = Places::new(Vec::new(), State::at(dir));
        let host = Host::new(places, Mode::Daemon, Settings::default()).with_watching(Watching::alone(dir));
        let host = Arc::new(host.with_writable(writable));
        let candidate = found(media as Arc<dyn Disk>).await;
        let (name, guid, why) = ("tank".to_owned(), candidate.guid, host::mute("tank"));
        let missing = Missing { name, guid, is_imported: true, why };
        let mut outcomes = opening::all(&host, &[(candidate, None)], true, LOCK_PATIENCE).await;
        let Outcome::Late(opening) = outcomes.remove(0) else { panic!("its disk does not answer") };
        let late = Late::new(Arc::downgrade(&host), vec![missing.clone()]);
        let late = Arc::new(late.with_begun(vec![(missing, opening)]));
        let (stop, stopping) = watch::channel(false);
        let trying = tokio::spawn(late.run(stopping));
        tokio::time::sleep(Duration::from_secs(after) + Duration::from_millis(10)).await;
        assert!(!is_free(), "something was begun");
        let operation = Operation::PoolExport { pool: "tank".to_owned(), force: false };
        let answer = run(&host, Request { operation, command: None, user: 0 }).await.unwrap();
        let told: &[&str] = match is_in_time {
            true => &[],
            false => &[
                "'tank' was just being opened, and its devices do not let go of it yet: import it nowhere before \
                        'fuser -v DEVICE' shows that nobody has them",
            ],
        };
        assert_eq!(answer.warnings, told);
        assert_eq!(is_free(), is_in_time);
        stop.send_replace(true);
        trying.await.unwrap();
        // Nobody waits for what was told of.
        tokio::time::sleep(Duration::from_secs(takes)).await;
        assert!(is_free() && host.find("tank").is_none());
    }
}
