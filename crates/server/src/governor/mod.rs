//! Keeps the daemon within its memory: looks at what is held, asks the plan, and does what it says.
//!
//! ```text
//!   bell (dirty data, requests in flight grow) ─┐
//!   alarm (the kernel: somebody waits)  ────────┼─▶ look ─▶ memory::plan ─▶ cache, gate, dirty limits, scrubs, log
//!   a tick, slower where nothing happens  ──────┘
//! ```
//!
//! The cache gives way in slices, so that clients use it in between. That something is shed is said in one line, and one
//! for each further stage, that all is back in another; so it is in the journal of every pool. Decision: docs/decisions/0015-memory.md.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use ::memory::{
    Bell, Gate, human,
    limit::{Limit, LimitError, Origin, Wish},
    machine::{Cgroup, Machine},
    plan::{Plan, Sight, Stage, Terms, Verdict, Why},
};
use block::Quiet;
use engine::engine::Engine;
use parking_lot::Mutex;
use pool::cache::BlockCache;
use serde_json::{Map, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

mod alarm;
mod episode;
pub mod pages;
mod report;
mod shares;

use self::{
    alarm::Alarm,
    episode::{Episode, News},
    shares::{beside, share, space_memory},
};
use crate::{
    events::{About, Journal},
    hostid,
    ops::{Held, Host},
};

/// Between looks at a daemon that does nothing, and longer where the kernel says by itself that memory is short: each look
/// wakes a processor that sleeps.
const IDLE: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(3);
/// Between looks at a daemon that does something.
const BUSY: Duration = Duration::from_millis(100);
/// Dirty data and requests in flight that make a daemon one that does something, and how much what is held may change from
/// one look to the next in one that does not.
const ACTIVE: u64 = 8 << 20;
const CHANGED: u64 = 1 << 20;
/// However often the bell rings.
const LEAST: Duration = Duration::from_millis(4);
/// How often the cgroup and the machine are looked at, as long as nothing is short.
const OUTSIDE: Duration = Duration::from_millis(90);
/// Between two requests to the allocator to give back what it keeps.
const RELEASE: Duration = Duration::from_millis(250);
/// How often is looked whether the cgroup has another limit.
const REBOUND: Duration = Duration::from_secs(1);
/// I/O buffers that nobody needed for so long are freed: some transaction groups, and the pause between two bursts (8 s made
/// writes that come back after a quarter of a minute dearer by an eighth).
const AGE: Duration = Duration::from_secs(20);
/// After that long without anything given back somebody who waits is let through, if there is memory for it.
const STUCK: Duration = Duration::from_secs(2);
/// Before it looks again after a fault of its own, which may be there still.
const RECOVER: Duration = Duration::from_secs(1);
/// Last to be killed, but not never: a cgroup of which nobody may be killed would stand still.
const OOM_SCORE: i32 = -999;
/// The journal's class for what is shed and taken back.
const EVENT: &str = "sysevent.io.millpond.memory";
/// Where these lines go in the log.
const LOG: &str = "millpond::memory";

/// The memory allocator of this process, which only the program knows.
pub trait Allocator: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Bytes in use, and bytes it has of the kernel for them; `None` if it does not say.
    fn in_use(&self) -> Option<(u64, u64)>;
    /// Gives back to the kernel what is not in use, and from now on soon what is freed.
    fn release(&self);
    /// Memory is not short any more: what is freed may be kept for a while for whoever wants some.
    fn relax(&self);
}

/// What somebody may say about memory.
#[derive(Clone, Debug, Default)]
pub struct MemorySettings {
    /// What the process may have; by default what its cgroup or the machine allows.
    pub limit: Option<Wish>,
    /// The cache at most.
    pub arc_max: Option<u64>,
    /// The allocator in use.
    pub allocator: Option<Arc<dyn Allocator>>,
}

/// See the module.
#[derive(Debug)]
pub struct Governor {
    /// What was wished for the limit.
    wish: Option<Wish>,
    machine: Machine,
    cgroup: Cgroup,
    /// What was wished for the cache at most.
    arc_max: Option<u64>,
    gate: Arc<Gate>,
    bell: Arc<Bell>,
    allocator: Option<Arc<dyn Allocator>>,
    /// What was resident before anything was opened.
    base: u64,
    /// Blocks lie in huge pages, where the kernel has some.
    has_huge_pages: bool,
    /// For lines that clients can cause.
    quiet: Quiet,
    /// Looks come one after the other: what an older one found is not done after a newer one.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: Limit,
    /// Of the cgroup, and when it was read.
    bound: (Option<u64>, Instant),
    plan: Plan,
    sight: Sight,
    verdict: Verdict,
    /// The daemon has started. Until then much comes within a second: what was warm, what cache devices remember.
    is_settled: bool,
    looked: Instant,
    outside: Instant,
    released: Option<Instant>,
    aged: Instant,
    /// The gate's turns, and since when they stand still.
    turns: (u64, Instant),
    /// Engines that know the bell, by guid.
    known: BTreeMap<u64, Weak<Engine>>,
    /// Where the last reduction came from, and when something was shed.
    shed_since: Option<u64>,
    shed_times: u64,
    /// How often clients were slowed down by a step.
    squeezes: u64,
    /// What of it was said.
    episode: Episode,
}

impl Governor {
    /// For the memory that this process may have.
    ///
    /// # Errors
    /// It is too little, or more than there is.
    pub fn new(settings: &MemorySettings, machine: Machine) -> Result<Arc<Self>, LimitError> {
        let limit = ::memory::limit::limit(settings.limit, &machine)?;
        let terms = Terms::new(limit.bytes, settings.arc_max, machine.total());
        let cgroup = machine.cgroup();
        let mut plan = Plan::new(terms);
        let resident = machine.resident().unwrap_or(0);
        let sight = Sight {
            resident,
            cgroup: cgroup.room().map(|room| room.left()),
            available: machine.available(),
            ..Sight::default()
        };
        let verdict = plan.look(&sight, Duration::ZERO);
        let (gate, bell) = (Gate::new(terms.in_flight()), Arc::<Bell>::default());
        gate.attach(Arc::clone(&bell), (terms.in_flight() / 16).max(1 << 20));
        let has_huge_pages = pages::furnish(&terms);
        tracing::debug!(target: LOG, has_huge_pages, "memory for blocks in huge pages");
        let now = Instant::now();
        let bound = cgroup.bound().map(|bound| bound.bytes);
        Ok(Arc::new(Self {
            wish: settings.limit,
            machine,
            cgroup,
            arc_max: settings.arc_max,
            gate,
            bell,
            allocator: settings.allocator.clone(),
            base: resident,
            quiet: Quiet::default(),
            has_huge_pages,
            turn: tokio::sync::Mutex::default(),
            state: Mutex::new(State {
                limit,
                bound: (bound, now),
                plan,
                sight,
                verdict,
                is_settled: false,
                looked: now,
                outside: now,
                released: None,
                aged: now,
                turns: (0, now),
                known: BTreeMap::new(),
                shed_since: None,
                shed_times: 0,
                squeezes: 0,
                episode: Episode::default(),
            }),
        }))
    }

    /// The gate of all connections.
    #[must_use]
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// What the cache may have to begin with, in bytes.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        usize::try_from(self.state.lock().verdict.target).unwrap_or(usize::MAX)
    }

    /// What the process may have, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.state.lock().limit.bytes
    }

    fn terms(&self) -> Terms {
        self.state.lock().plan.terms()
    }

    /// A sentence if more was wished for the cache than the whole process may have.
    #[must_use]
    pub fn beyond_limit(&self) -> Option<String> {
        let limit = self.limit();
        let wished = self.arc_max.filter(|wished| *wished > limit)?;
        Some(format!(
            "the cache may have {} and the whole daemon {}: what holds is the smaller, and the cache has what others leave of it",
            human(wished),
            human(limit)
        ))
    }

    /// Asks the kernel to kill others first, if it has to kill. A sentence if it may not be asked.
    #[must_use]
    pub fn last_to_be_killed(&self) -> Option<String> {
        let now = self.machine.oom_score()?;
        if now <= OOM_SCORE {
            return None;
        }
        let error = self.machine.set_oom_score(OOM_SCORE).err()?;
        Some(format!(
            "oom_score_adj stays {now} ({error}): when memory runs out the kernel may kill this daemon before others; \
             give it CAP_SYS_RESOURCE (root has it, in most containers it has not), or set OOMScoreAdjust={OOM_SCORE} in its unit"
        ))
    }

    /// Looks and acts until the host is gone, whatever happens: nobody else keeps the daemon within its memory.
    pub async fn govern(self: Arc<Self>, host: Weak<Host>, journal: Arc<Journal>) {
        again_and_again(|| Arc::clone(&self).run(host.clone(), Arc::clone(&journal))).await;
    }

    /// The same, as long as nothing panics.
    async fn run(self: Arc<Self>, host: Weak<Host>, journal: Arc<Journal>) {
        // When others take the machine's memory it is they who wait, and nothing is told of that in a cgroup of our own.
        let mut alarm = Alarm::new(&self.machine.pressure_file(&self.cgroup));
        let mut machine = Alarm::new(&self.machine.machine_pressure_file());
        let mut next = Instant::now();
        // It ends with this.
        let mut beside = JoinSet::new();
        if self.has_huge_pages {
            beside.spawn(pages::collapse());
        }
        loop {
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.bell.heard() => {}
                () = alarm.rings() => {}
                () = machine.rings() => {}
            }
            let earliest = self.state.lock().looked + LEAST;
            sleep_until(earliest).await;
            let Some(host) = host.upgrade() else { return };
            let busy = self.look(&host, &journal).await || !self.state.lock().is_settled;
            let idle = if alarm.is_set() && machine.is_set() { WATCHED } else { IDLE };
            next = Instant::now() + if busy { BUSY } else { idle };
        }
    }

    /// One look. Whether another one is due soon.
    async fn look(&self, host: &Host, journal: &Journal) -> bool {
        let _turn = self.turn.lock().await;
        let cache = host.cache();
        let engines: Vec<Arc<Engine>> = {
            let pools = host.all();
            self.bound_ahead(&pools);
            pools.iter().filter_map(|held| held.engine().map(Arc::clone)).collect()
        };
        let now = Instant::now();
        let (terms, before, verdict, sight, is_active, release, is_aged) = {
            let mut state = self.state.lock();
            let is_aged = now.duration_since(state.aged) >= AGE;
            if is_aged {
                state.aged = now;
            }
            self.meet(&mut state, &engines);
            let elapsed = now.duration_since(state.looked);
            let is_due = state.verdict.is_short || now.duration_since(state.outside) >= OUTSIDE;
            let (sight, moving) = self.see(&state.sight, &cache, &engines, is_due);
            let is_active = is_active(&state.sight, &sight, moving);
            if is_due {
                state.outside = now;
                self.rebound(&mut state, now);
            }
            let terms = state.plan.terms();
            let before = state.verdict;
            let verdict = state.plan.look(&sight, elapsed);
            state.squeezes += u64::from(verdict.squeeze > before.squeeze);
            let release = verdict.is_short && state.released.is_none_or(|at| at.elapsed() >= RELEASE);
            if release {
                state.released = Some(now);
            }
            (state.sight, state.verdict, state.looked) = (sight, verdict, now);
            self.unstick(&mut state, &sight, elapsed);
            (terms, before, verdict, sight, is_active, release, is_aged)
        };
        self.apply(&terms, &verdict, &cache, &engines).await;
        if is_aged && disk::age_idle() {
            // Beside the looks: it may take a tenth of a second.
            let cache = Arc::clone(&cache);
            drop(tokio::spawn(async move { cache.gather().await }));
        }
        if release {
            // What is kept for use again, here and by the allocator.
            disk::set_idle_max(1 << 20);
            if let Some(allocator) = &self.allocator {
                allocator.release();
            }
        } else if before.is_short && !verdict.is_short {
            pages::allow_idle(&terms);
            if let Some(allocator) = &self.allocator {
                allocator.relax();
            }
        }
        if before.stage != verdict.stage {
            self.follow(&before, &verdict, &sight, host, journal);
        }
        verdict.is_short
            || verdict.stage > Stage::Nothing
            || is_active
            || self.gate.waiting() > 0
            || self.gate.aside() > 0
            || (verdict.is_growing && sight.cache + sight.cache / 8 >= verdict.target)
    }

    /// New engines are told of the bell and of their shares.
    fn meet(&self, state: &mut State, engines: &[Arc<Engine>]) {
        let share = share(&state.plan.terms(), engines.len());
        state.known.retain(|_, engine| engine.strong_count() > 0);
        for engine in engines {
            let guid = engine.view().guid();
            let is_known = state.known.get(&guid).is_some_and(|known| known.as_ptr() == Arc::as_ptr(engine));
            if !is_known {
                let beside = beside(&state.plan.terms(), engines.len());
                engine.attach_bell(
                    Arc::clone(&self.bell),
                    (share / 8).max(1 << 20),
                    (beside / 16).max(1 << 20),
                );
                state.known.insert(guid, Arc::downgrade(engine));
            }
        }
    }

    /// The cgroup may have got another limit: what the daemon may have follows, or what it sheds by the one before it would
    /// shed for good.
    fn rebound(&self, state: &mut State, now: Instant) {
        let (before, read) = state.bound;
        if now.duration_since(read) < REBOUND {
            return;
        }
        let bound = self.cgroup.bound().map(|bound| bound.bytes);
        state.bound = (bound, now);
        if bound == before {
            return;
        }
        let limit = ::memory::limit::now(self.wish, &self.machine);
        let had = state.limit.bytes;
        if limit.bytes.abs_diff(had) <= had / 16 {
            return;
        }
        let terms = Terms::new(limit.bytes, self.arc_max, self.machine.total());
        state.plan.set_terms(terms);
        pages::allow_idle(&terms);
        let (has, had, origin) = (human(limit.bytes), human(had), origin(&limit));
        tracing::info!(target: LOG, "the daemon may have {has} of memory from now on, it was {had}: {origin}");
        state.limit = limit;
    }

    /// What is read ahead is in no account before it is in the cache: all of it together is to fit the reserve.
    fn bound_ahead(&self, pools: &[Arc<Held>]) {
        let most = (self.limit() / 32 / pools.len().max(1) as u64).clamp(1 << 20, 64 << 20);
        for held in pools {
            held.view().io().set_ahead_max(most);
        }
    }

    /// What there is to see; and of it the bytes of dirty data, with what transaction groups take beside it, and of requests in
    /// flight, which come and go.
    fn see(
        &self,
        before: &Sight,
        cache: &BlockCache,
        engines: &[Arc<Engine>],
        outside: bool,
    ) -> (Sight, u64) {
        let (mut dirty, mut at_most, mut others, mut beyond) = (0, 0, 0, 0);
        for engine in engines {
            dirty += engine.txgs().dirty() + engine.write_memory().0;
            at_most += engine.txgs().dirty_at_most() + engine.write_memory_at_most();
            others += engine.second().memory() + engine.scan_memory() + engine.space_memory();
            beyond += engine.second().beyond();
        }
        let flight = self.gate.used();
        let mut sight = Sight {
            resident: self.machine.resident().unwrap_or(before.resident),
            cache: cache.size() as u64,
            parts: dirty + flight + self.gate.buffers() + others + disk::bytes_idle() as u64,
            beyond,
            coming: at_most.saturating_sub(dirty) + self.gate.used_at_most().saturating_sub(flight),
            ..*before
        };
        if outside {
            sight.cgroup = self.cgroup.room().map(|room| room.left());
            sight.available = self.machine.available();
            sight.stall = self.machine.stall(&self.cgroup).unwrap_or_default();
        }
        (sight, dirty + flight)
    }

    /// Clients that hold what they took and do nothing must not be in the way of others: what they hold is set aside, and
    /// those who owe something are expelled. If nothing comes back even so, somebody is let through now and then.
    fn unstick(&self, state: &mut State, sight: &Sight, elapsed: Duration) {
        let terms = state.plan.terms();
        let has_room = sight.resident + terms.reserve / 2 < terms.limit;
        let was_aside = self.gate.aside() > 0;
        let watched = self.gate.watch(elapsed, has_room);
        if watched.aside > 0 && !was_aside {
            let aside = human(watched.aside);
            self.quiet.say(|left_out| {
                tracing::info!(target: LOG, left_out, "requests hold {aside} of what may be in flight and do not go on: others may have as much more");
            });
        }
        for one in &watched.expelled {
            let (held, owed, max) = (human(one.held), human(one.owed), human(self.gate.max()));
            let (name, still) = (&one.name, one.still.as_secs());
            self.quiet.say(|left_out| {
                tracing::warn!(
                    target: LOG,
                    left_out,
                    "{name} holds {held} of the {max} that may be in flight, and for {still} s has neither sent nor taken the {owed} \
                     of it that wait for it, while others wait: its connection is ended"
                );
            });
        }
        let turns = self.gate.turns();
        if self.gate.waiting() == 0 || turns != state.turns.0 {
            state.turns = (turns, Instant::now());
        } else if state.turns.1.elapsed() >= STUCK && has_room && self.gate.let_one_pass() {
            self.quiet.say(|left_out| {
                tracing::info!(target: LOG, left_out, "nothing of what is in flight comes back: a request that waited is let through");
            });
        }
    }

    async fn apply(&self, terms: &Terms, verdict: &Verdict, cache: &BlockCache, engines: &[Arc<Engine>]) {
        let target = usize::try_from(verdict.target).unwrap_or(usize::MAX);
        // Before the cache, whose memory they are: what it may have then is for blocks.
        cache.keep_advice(verdict.stage < Stage::Statistics);
        while !cache.approach(target) {
            tokio::task::yield_now().await;
        }
        let share = share(terms, engines.len());
        self.gate.set_max((terms.in_flight() >> verdict.squeeze).max(4 << 20));
        // All that scans may take, for one pool or for many.
        let scans = (terms.limit / 32 / engines.len().max(1) as u64).clamp(1 << 20, 192 << 20);
        for engine in engines {
            engine.txgs().set_dirty_max((share >> verdict.squeeze).max(4 << 20));
            engine.set_write_memory((beside(terms, engines.len()) >> verdict.squeeze).max(4 << 20));
            engine.set_scan_memory(usize::try_from(scans).unwrap_or(usize::MAX));
            engine.set_space_memory(space_memory(terms, verdict.stage, engines.len()));
            engine.hold_scrubs(verdict.stage >= Stage::Scans);
            if verdict.stage >= Stage::Index {
                engine.second().shed();
            }
        }
    }

    /// Something is shed, or taken back: says so, if it is news, and why.
    fn follow(&self, before: &Verdict, now: &Verdict, sight: &Sight, host: &Host, journal: &Journal) {
        let news = {
            let mut state = self.state.lock();
            if now.stage == Stage::Nothing {
                state.shed_since = None;
            } else if before.stage == Stage::Nothing {
                state.shed_since = Some(hostid::now());
                state.shed_times += 1;
            }
            state.episode.goes_on(now.stage)
        };
        if now.stage >= Stage::Statistics && before.stage < Stage::Statistics {
            journal.keep(crate::events::KEPT_SHORT);
        } else if now.stage == Stage::Nothing {
            journal.keep(crate::events::KEPT);
        }
        let Some(news) = news else { return };
        let why = self.why(now.why, sight);
        let target = human(now.target);
        let line = match news {
            News::Worse => {
                let shed = now.stage.names().join(", ");
                let line = format!(
                    "memory is short ({why}): shed {shed}; the cache may have {target}, volumes are served on"
                );
                // Volumes are served on: what gave way comes back by itself.
                tracing::warn!(target: LOG, "{line}");
                line
            }
            News::Over => {
                let line =
                    format!("memory is there again: nothing is shed any more; the cache may have {target}");
                tracing::info!(target: LOG, "{line}");
                line
            }
        };
        for held in host.all() {
            let about = About { pool: held.name().to_owned(), guid: held.guid() };
            let mut pairs = Map::new();
            pairs.insert("shed".to_owned(), json!(now.stage.names()));
            pairs.insert("reason".to_owned(), json!(why));
            pairs.insert("arc_target".to_owned(), json!(now.target));
            pairs.insert("message".to_owned(), json!(line));
            journal.add(&about, EVENT, hostid::moment(), pairs, None);
        }
    }

    /// Who takes the memory, with figures.
    fn why(&self, why: Why, sight: &Sight) -> String {
        match why {
            Why::Cgroup => {
                let left = u64::try_from(sight.cgroup.unwrap_or(0)).unwrap_or(0);
                format!("{} leave {}", why.word(), human(left))
            }
            Why::Machine => {
                format!("the machine has {} available", human(sight.available.unwrap_or(0)))
            }
            Why::Pressure => format!("somebody waits for memory {:.0}% of the time", sight.stall.percent),
            Why::Limit | Why::Cap => format!(
                "{} of {} resident, {} of them dirty data, requests and the like",
                human(sight.resident),
                human(self.limit()),
                human(sight.parts)
            ),
        }
    }
}

/// Whether a daemon does something: by what comes and goes. What only lies there, however much it is, tells nothing: what is
/// known of cache devices, buffers of connections and those kept for use again.
fn is_active(before: &Sight, now: &Sight, moving: u64) -> bool {
    moving > ACTIVE || now.parts.abs_diff(before.parts) > CHANGED
}

/// Does something until it ends by itself. If it panics, that is said, and it is begun anew.
async fn again_and_again<F>(begin: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    // What was begun ends with this.
    let mut task = JoinSet::new();
    loop {
        task.spawn(begin());
        let Some(Err(error)) = task.join_next().await else { return };
        tracing::error!(target: LOG, %error, "the watch over memory failed, and begins anew");
        sleep(RECOVER).await;
    }
}

/// How a limit reads in a sentence.
fn origin(limit: &Limit) -> String {
    match &limit.origin {
        Origin::Given => "given with --memory-limit".to_owned(),
        other => other.to_string(),
    }
}

/// Looks once at everything as soon as pools are open, so that nothing is served under limits made for nothing.
pub(crate) async fn settle(governor: &Governor, host: &Host, journal: &Journal) {
    governor.look(host, journal).await;
    // Their devices are open and their first blocks are here: what they take is seen now.
    sleep(LEAST).await;
    governor.look(host, journal).await;
    governor.state.lock().is_settled = true;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::Mode,
    };

    /// Nobody looked before the last pool was offered, while the cache and the index filled by what the first one had; and then
    /// up to three seconds went by between two looks.
    #[tokio::test(start_paused = true)]
    async fn what_comes_while_pools_are_being_opened_is_seen_at_once() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("proc/self");
        std::fs::create_dir_all(&own).unwrap();
        let takes =
            |mib: u64| std::fs::write(own.join("status"), format!("VmRSS: {} kB\n", mib << 10)).unwrap();
        takes(30);
        let settings = MemorySettings { limit: Some(Wish::Bytes(1 << 30)), ..MemorySettings::default() };
        let governor = Governor::new(&settings, Machine::at(root.path())).unwrap();
        let places = Places::new(Vec::new(), crate::state::State::at(root.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let mut governing = JoinSet::new();
        governing.spawn(Arc::clone(&governor).govern(Arc::downgrade(&host), Arc::default()));
        let is_short = || governor.state.lock().verdict.is_short;
        sleep(BUSY / 2).await;
        assert!(!is_short());
        takes(1000);
        sleep(2 * BUSY).await;
        assert!(is_short());
    }

    /// What was shed by the limit at the start, in a cgroup that has less now, came back never: scrubs waited for good.
    #[tokio::test(start_paused = true)]
    async fn a_cgroup_that_gets_another_limit_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let allow = |mib: u64| write("sys/fs/cgroup/pond/memory.max", &format!("{}\n", mib << 20));
        write("proc/self/status", "VmRSS: 40960 kB\n");
        write("proc/self/cgroup", "0::/pond\n");
        write("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/pond/memory.current", "41943040\n");
        allow(8192);
        let governor = Governor::new(&MemorySettings::default(), Machine::at(root.path())).unwrap();
        assert_eq!(governor.limit(), 7680 << 20);
        let places = Places::new(Vec::new(), crate::state::State::at(root.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let mut governing = JoinSet::new();
        governing.spawn(Arc::clone(&governor).govern(Arc::downgrade(&host), Arc::default()));
        let stage = || governor.state.lock().verdict.stage;
        for (mib, limit) in [(640, 600), (630, 600), (8192, 7680), (64, 128)] {
            allow(mib);
            sleep(Duration::from_secs(60)).await;
            assert_eq!(governor.limit(), limit << 20, "of {mib} MiB");
            assert!(mib == 64 || stage() == Stage::Nothing, "of {mib} MiB: {:?}", stage());
        }
    }

    /// With a large cache device, or huge pages, it looked ten times a second for ever.
    #[test]
    fn a_daemon_that_only_holds_much_does_nothing() {
        let holds = |parts: u64| Sight { parts, ..Sight::default() };
        assert!(!is_active(&holds(640 << 20), &holds(640 << 20), 0));
        assert!(!is_active(&holds(640 << 20), &holds(641 << 20), 0));
        assert!(is_active(&holds(640 << 20), &holds(648 << 20), 0), "something comes");
        assert!(is_active(&holds(648 << 20), &holds(640 << 20), 0), "something goes");
        assert!(is_active(&holds(9 << 20), &holds(9 << 20), 9 << 20), "as much comes as goes");
    }

    /// Nobody noticed, and the cache stayed as large as it was whatever else came.
    #[tokio::test(start_paused = true)]
    async fn who_watches_over_memory_goes_on_after_a_panic_and_ends_with_who_waits_for_it() {
        let begun = Arc::<AtomicU32>::default();
        let watch = |end: fn() -> bool| {
            let begun = Arc::clone(&begun);
            again_and_again(move || {
                let times = begun.fetch_add(1, Relaxed) + 1;
                let held = Arc::clone(&begun);
                async move {
                    assert!(times > 2, "a fault, held by {}", Arc::strong_count(&held));
                    if !end() {
                        std::future::pending::<()>().await;
                    }
                }
            })
        };
        let before = Instant::now();
        watch(|| true).await;
        assert_eq!((begun.load(Relaxed), before.elapsed()), (3, 2 * RECOVER));
        let ended = tokio::time::timeout(RECOVER, watch(|| false)).await;
        assert!(ended.is_err());
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&begun), 1, "nothing of it is left");
    }
}
