//! A lone client of this machine is answered on the processor that it runs on.
//!
//! A client and a server that take turns are fastest on one processor, which changes from one to the other without being
//! woken. The scheduler parts them: whoever is woken goes to a processor that has nothing to do, and to wake that up takes
//! longer than the request, in a virtual machine above all. It leaves them where they are only if nothing else runs there
//! but what gives way to everybody (`SCHED_IDLE`). So the thread that answers gives way while it sends, goes on when its
//! client sleeps, with the next request there already, and moves to its client's processor if they were parted
//! (`docs/decisions/0019`).
//!
//! Who gives way may have to wait for long where processors are wanted by others. So a thread of its own watches over that:
//! after [`PATIENCE`] it takes back what was given, and for a while nobody gives way any more, for longer each time
//! ([`Pause`]).

use std::{
    os::fd::BorrowedFd,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    thread::{Builder, Thread, park, park_timeout},
    time::Duration,
};

use disk::{give_way, is_usual};
use rustix::{
    net::sockopt::socket_incoming_cpu,
    thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

use crate::link::micros;

/// How long a thread may have given way, in microseconds. Clients that take longer for their turn are not looked for.
const PATIENCE: u64 = 2_000;
/// How often that is looked at while threads give way.
const WATCH: Duration = Duration::from_millis(2);
/// After so many looks at which nobody had given way the watch rests until somebody does.
const QUIET: u32 = 250;
/// How long nobody gives way after one had to wait, in microseconds: the first time, when it may have been the machine as a
/// whole that stood still for a moment, and at most.
const PAUSE: (u64, u64) = (20_000, 30_000_000);

/// The thread that gives way: one at a time, because one connection looks at a time.
static THREAD: AtomicI32 = AtomicI32::new(0);
/// Since when it does, in microseconds; 0 if none does.
static SINCE: AtomicU64 = AtomicU64::new(0);
/// How often a thread gave way.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// Until when nobody gives way, in microseconds.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// Where threads of this process may run that do not follow anybody. Known once it is known that who has given way may take it
/// back, which containers may forbid.
static HOME: OnceLock<CpuSet> = OnceLock::new();
/// Whether the watch rests.
static RESTS: AtomicBool = AtomicBool::new(false);

/// Whether threads may give way now.
pub(crate) fn is_on() -> bool {
    watch().is_some() && UNTIL.load(Relaxed) <= micros()
}

/// Gives way for as long as this lives.
#[derive(Debug)]
pub(crate) struct Way {
    thread: i32,
}

impl Way {
    /// Nothing where that is not allowed, or where somebody had to wait for long.
    pub(crate) fn give() -> Option<Self> {
        let watch = watch()?;
        let now = micros();
        if UNTIL.load(Relaxed) > now {
            return None;
        }
        let thread = gettid().as_raw_nonzero().get();
        THREAD.store(thread, SeqCst);
        SINCE.store(now, SeqCst);
        GIVEN.fetch_add(1, SeqCst);
        // Before it gives way: it might not come to it afterwards.
        if RESTS.swap(false, SeqCst) {
            watch.unpark();
        }
        let way = Self { thread };
        give_way(thread, true).is_ok().then_some(way)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // It was allowed a moment ago; if it is not any more nobody gives way again.
        if give_way(self.thread, false).is_err() {
            UNTIL.store(u64::MAX, Relaxed);
        }
        // Last, so that it is seen to wait as long as it does.
        SINCE.store(0, SeqCst);
    }
}

/// Moves to the processor from which `socket` was sent to, if this thread is on another and may run there; which it was.
pub(crate) fn follow(socket: BorrowedFd<'_>) -> Option<usize> {
    let home = HOME.get()?;
    let theirs = usize::try_from(socket_incoming_cpu(socket).ok()?).ok()?;
    if theirs == sched_getcpu() || theirs >= CpuSet::MAX_CPU || !home.is_set(theirs) {
        return None;
    }
    let mut there = CpuSet::new();
    there.set(theirs);
    sched_setaffinity(None, &there).ok()?;
    let now = sched_getcpu();
    // It stays where it is, and may go where it might. If the machine takes processors away at this very moment, it may go
    // where that leaves it.
    let _taken_away = sched_setaffinity(None, home);
    Some(now)
}

/// Where a thread may run that was confined no more than the process was when it started: everywhere, so that processors that
/// come later are used too. To be asked by a thread that followed nobody.
fn home() -> Option<CpuSet> {
    let was = sched_getaffinity(None).ok()?;
    let mut everywhere = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| everywhere.set(cpu));
    sched_setaffinity(None, &everywhere).ok()?;
    // The system leaves of it what the process may have.
    if sched_getaffinity(None).ok()? == was {
        return Some(everywhere);
    }
    sched_setaffinity(None, &was).ok()?;
    Some(was)
}

/// The thread that watches, once it is known that it can do what it is there for.
fn watch() -> Option<&'static Thread> {
    static WATCHES: OnceLock<Option<Thread>> = OnceLock::new();
    let started = WATCHES.get_or_init(|| {
        // Whoever chose another policy for this process knows why.
        if !is_usual(gettid().as_raw_nonzero().get()).unwrap_or(false) {
            return None;
        }
        let started = Builder::new().name("watch-courtesy".to_owned()).spawn(|| {
            let own = gettid().as_raw_nonzero().get();
            if give_way(own, true).and_then(|()| give_way(own, false)).is_ok()
                && let Some(home) = home()
            {
                HOME.get_or_init(|| home);
                keep_watch();
            }
        });
        started.ok().map(|handle| handle.thread().clone())
    });
    started.as_ref().filter(|_| HOME.get().is_some())
}

/// For how long nobody gives way, in microseconds.
#[derive(Debug, Default)]
struct Pause {
    /// Since when he had to wait for whom the last one was.
    cause: u64,
    /// The last one.
    length: u64,
    /// When it ended, or will.
    end: u64,
}

impl Pause {
    /// One has to wait since `cause`, as is seen at `now`: when the pause for that ends. It is twice as long as the one before,
    /// unless all went well for longer than that had lasted. Whoever is seen to wait again, because he has not had his turn
    /// yet, makes no difference.
    fn follow(&mut self, cause: u64, now: u64) -> u64 {
        if cause == self.cause {
            return self.end;
        }
        self.cause = cause;
        let went_well = now.saturating_sub(self.end) > self.length.max(PAUSE.0 * 50);
        self.length = if went_well { PAUSE.0 } else { (self.length * 2).clamp(PAUSE.0, PAUSE.1) };
        self.end = now.saturating_add(self.length);
        self.end
    }
}

fn keep_watch() {
    let (mut seen, mut quiet, mut pause) = (0, 0, Pause::default());
    loop {
        park_timeout(WATCH);
        let (since, now) = (SINCE.load(SeqCst), micros());
        if since != 0 && now.saturating_sub(since) >= PATIENCE {
            UNTIL.fetch_max(pause.follow(since, now), SeqCst);
            // If it has taken that back meanwhile, this changes nothing. It is there: it has not come back from sending.
            let _gone = give_way(THREAD.load(SeqCst), false);
        }
        let given = GIVEN.load(SeqCst);
        quiet = if given == seen && since == 0 { quiet + 1 } else { 0 };
        seen = given;
        if quiet >= QUIET {
            quiet = 0;
            RESTS.store(true, SeqCst);
            if GIVEN.load(SeqCst) == seen {
                park();
            }
            RESTS.store(false, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net,
        os::fd::AsFd as _,
        sync::mpsc,
        thread::yield_now,
    };

    use super::*;
    use crate::link::ALONE;

    /// Until the watch has found out whether it can do its part; if it cannot here, that is said.
    fn is_allowed() -> bool {
        let own = gettid().as_raw_nonzero().get();
        let asked = Builder::new().spawn(|| {
            let own = gettid().as_raw_nonzero().get();
            give_way(own, true).and_then(|()| give_way(own, false)).is_ok()
        });
        if !asked.unwrap().join().unwrap() || !is_usual(own).unwrap() {
            println!("NOT RUN: threads that gave way may not take it back here");
            return false;
        }
        UNTIL.store(0, Relaxed);
        while !is_on() {
            yield_now();
        }
        true
    }

    #[test]
    fn who_gave_way_is_as_before_when_it_has_sent() {
        let _alone = ALONE.blocking_lock();
        if !is_allowed() {
            return;
        }
        let own = gettid().as_raw_nonzero().get();
        let way = Way::give().unwrap();
        assert!(!is_usual(own).unwrap() || UNTIL.load(SeqCst) != 0, "or it had to wait");
        drop(way);
        assert!(is_usual(own).unwrap());
        assert_eq!(SINCE.load(SeqCst), 0);
    }

    #[test]
    fn who_has_given_way_for_long_does_not_any_more_and_nobody_does_for_a_while() {
        let _alone = ALONE.blocking_lock();
        if !is_allowed() {
            return;
        }
        let (told, hears) = mpsc::channel();
        // It does not come back from sending, as if others had its processor.
        let stuck = Builder::new().spawn(move || {
            let way = Way::give().unwrap();
            let own = gettid().as_raw_nonzero().get();
            while !is_usual(own).unwrap() {
                yield_now();
            }
            told.send(UNTIL.load(SeqCst)).unwrap();
            drop(way);
        });
        assert_ne!(hears.recv().unwrap(), 0, "nobody gives way for a while");
        stuck.unwrap().join().unwrap();
        while !is_on() {
            yield_now();
        }
    }

    #[test]
    fn pauses_grow_where_it_is_crowded_and_are_short_again_when_it_is_not() {
        let (mut pause, mut now) = (Pause::default(), 7_000_000);
        let mut lengths = Vec::new();
        for _ in 0..14 {
            // At once after each, and seen more than once.
            let end = pause.follow(now - PATIENCE, now);
            assert_eq!(pause.follow(now - PATIENCE, now + 2 * PATIENCE), end);
            lengths.push(end - now);
            now = end + PATIENCE;
        }
        assert_eq!(lengths[..4], [20_000, 40_000, 80_000, 160_000]);
        assert_eq!(lengths[13], PAUSE.1);
        now += PAUSE.1 / 2;
        assert_eq!(pause.follow(now - PATIENCE, now) - now, PAUSE.1, "half as long is not well");
        now += PAUSE.1 * 3;
        assert_eq!(pause.follow(now - PATIENCE, now) - now, PAUSE.0);
    }

    #[test]
    fn who_follows_goes_where_its_client_was_and_may_go_where_it_might() {
        let _alone = ALONE.blocking_lock();
        if !is_allowed() {
            return;
        }
        let allowed = sched_getaffinity(None).unwrap();
        let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let pin = |cpu| {
            let mut there = CpuSet::new();
            there.set(cpu);
            sched_setaffinity(None, &there).unwrap();
        };
        for (ours, theirs) in processors.iter().zip(processors.iter().skip(1).chain(&processors)) {
            let (ours, theirs) = (*ours, *theirs);
            let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let client = Builder::new().spawn(move || {
                pin(theirs);
                let mut stream = net::TcpStream::connect(address).unwrap();
                stream.write_all(b"a request").unwrap();
                stream
            });
            let (mut stream, _) = listener.accept().unwrap();
            let _client = client.unwrap().join().unwrap();
            stream.read_exact(&mut [0; 9]).unwrap();
            // As an earlier one may have left it.
            pin(ours);
            assert_eq!(follow(stream.as_fd()), (ours != theirs).then_some(theirs));
            if ours != theirs {
                assert_eq!(sched_getaffinity(None).unwrap(), allowed);
                assert_eq!(follow(stream.as_fd()).unwrap_or(theirs), theirs);
            }
        }
    }
}
