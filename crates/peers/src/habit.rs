//! Whether a connection sleeps or looks between two requests: what costs less of the processors, here and now, is measured.
//!
//! A client that sends one request at a time waits for two wake-ups each, its own and ours. On a processor with nothing else
//! to do a wake-up costs more than the request: it has to be woken itself, in a virtual machine by its host. Who looks at its
//! socket instead is there when the request comes, and spends what that wait takes. Which is cheaper hangs on the machine and
//! on what else runs there, by a factor of two either way (`docs/decisions/0019`): so both are tried in turns and the cheaper
//! one is kept for a while.
//!
//! Rounds count, from one wait for a request to the next. Nothing is tried while they are slow, so that nothing ever looks
//! for a client that rests; nor while they carry many requests, which share a wake-up; nor beside other busy connections,
//! which would wait for the processor, and whose costs would be taken for ours.

use std::time::Duration;

/// Rounds of a sample, at whose end is seen whether the client is still one to look for.
const SAMPLE: u32 = 32;
/// Samples of rest at least, and at most if the client was none again and again.
const REST: (u32, u32) = (32, 2048);
/// Samples in a row that show no such client; one may show the machine's other work.
const UNFIT: u32 = 3;
/// Parts of a trial: asleep and looking in turns.
const PARTS: u32 = 2;
/// How long a part lasts, and how much of that does not count. Either habit leaves client and server on the processors where
/// they were, and for some milliseconds that is due to the habit before it.
const PART: Duration = Duration::from_millis(250);
const SETTLES: Duration = Duration::from_millis(150);
/// How long a verdict is kept, at least and, if trials end alike, at most.
const KEEP: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// A round that takes longer than this waits for its client, not for wake-ups.
const QUICK: Duration = Duration::from_millis(1);
/// Requests of a round that share its wake-up, at most.
const FEW: u64 = 2;
/// Looks in vain of a sample, at most: they cost, and are cheaper told by their number than by a clock.
const MISSES: u32 = SAMPLE / 2;
/// Rounds of other connections during a sample, at most.
const OTHERS: u64 = SAMPLE as u64 / 8;

/// What clocks and counters show.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// Since some moment.
    pub(crate) wall: Duration,
    /// Time of processors that this process has used, all its threads together.
    pub(crate) cpu: Duration,
    /// Requests of this connection.
    pub(crate) served: u64,
    /// Rounds of all connections that do not look, while some connection does.
    pub(crate) others: u64,
    /// What another connection has found out.
    pub(crate) known: Option<Verdict>,
}

/// What costs less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// To look.
    pub(crate) looks: bool,
    /// When it should be tried again.
    pub(crate) until: Duration,
}

/// What a connection has learned.
#[derive(Debug)]
pub(crate) struct Habit {
    course: Course,
    /// Rounds that are left of the sample.
    left: u32,
    /// Looks of the sample that were in vain.
    misses: u32,
    /// Samples in a row that were not fit.
    unfit: u32,
    /// Samples to rest, the next time.
    rest: u32,
    /// The last verdict, to look, and for how long it was kept.
    verdict: (bool, Duration),
}

#[derive(Debug)]
enum Course {
    /// For so many samples nothing is measured: the client is slow, or others are busy.
    Rest(u32),
    /// A trial: its part, when that began, the end of the last sample, and what was measured asleep and looking.
    Try { part: u32, began: Duration, last: Reading, spent: [Spent; 2] },
    /// As was found out, and the end of the last sample.
    Keep { verdict: Verdict, last: Reading },
}

/// Requests, and processor time they took.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    requests: u64,
    cpu: Duration,
}

impl Spent {
    /// Nanoseconds of a request.
    fn each(self) -> u128 {
        self.cpu.as_nanos().checked_div(self.requests.into()).unwrap_or(u128::MAX)
    }
}

impl Default for Habit {
    fn default() -> Self {
        let verdict = (false, Duration::ZERO);
        Self { course: Course::Rest(1), left: SAMPLE, misses: 0, unfit: 0, rest: REST.0, verdict }
    }
}

impl Habit {
    /// Has decided to look already.
    #[cfg(test)]
    pub(crate) fn looking() -> Self {
        let verdict = Verdict { looks: true, until: Duration::MAX };
        let course = Course::Keep { verdict, last: Reading::default() };
        Self { course, left: u32::MAX, ..Self::default() }
    }

    /// All that came is answered: whether to look for the next request. `now` is asked at the ends of samples.
    pub(crate) fn looks(&mut self, now: impl FnOnce() -> Reading) -> bool {
        if self.left == 0 {
            self.turn(now);
        }
        self.left = self.left.saturating_sub(1);
        match self.course {
            Course::Rest(_) => false,
            Course::Try { part, .. } => part % 2 == 1,
            Course::Keep { verdict, .. } => verdict.looks,
        }
    }

    /// What it has found out, for others.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.course {
            Course::Keep { verdict, .. } => Some(verdict),
            Course::Rest(_) | Course::Try { .. } => None,
        }
    }

    /// Whether it measures or looks: then other connections count their rounds.
    pub(crate) fn is_awake(&self) -> bool {
        matches!(self.course, Course::Try { .. } | Course::Keep { verdict: Verdict { looks: true, .. }, .. })
    }

    /// A look was in vain.
    pub(crate) fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
        if self.misses > MISSES {
            self.rest();
        }
    }

    /// Sleeps for now; what was learned is forgotten.
    pub(crate) fn rest(&mut self) {
        let rest = self.rest.saturating_mul(2).min(REST.1);
        *self = Self { course: Course::Rest(self.rest), rest, ..Self::default() };
    }

    /// A sample ended.
    fn turn(&mut self, now: impl FnOnce() -> Reading) {
        (self.left, self.misses) = (SAMPLE, 0);
        match &mut self.course {
            Course::Rest(samples) if *samples > 1 => *samples -= 1,
            Course::Rest(_) => {
                let now = now();
                self.course = match now.known.filter(|known| known.until > now.wall) {
                    Some(verdict) => Course::Keep { verdict, last: now },
                    None => Course::trial(now),
                };
            }
            Course::Try { part, began, last, spent } => {
                let now = now();
                let before = std::mem::replace(last, now);
                let Some(sample) = sample(&before, &now) else { return self.unfit() };
                self.unfit = 0;
                let since = |at: Duration| at.saturating_sub(*began);
                if since(before.wall) >= SETTLES {
                    let spent = &mut spent[(*part % 2) as usize];
                    spent.requests += sample.requests;
                    spent.cpu += sample.cpu;
                }
                if since(now.wall) >= PART {
                    (*part, *began) = (*part + 1, now.wall);
                    if *part == PARTS {
                        let [asleep, looking] = spent.map(Spent::each);
                        self.keep(looking <= asleep, now);
                    }
                }
            }
            Course::Keep { verdict, last } => {
                let now = now();
                let before = std::mem::replace(last, now);
                if now.wall >= verdict.until {
                    self.course = Course::trial(now);
                } else if verdict.looks && sample(&before, &now).is_none() {
                    self.unfit();
                } else {
                    self.unfit = 0;
                }
            }
        }
    }

    /// A sample showed no client to look for.
    fn unfit(&mut self) {
        self.unfit = self.unfit.saturating_add(1);
        if self.unfit >= UNFIT {
            self.rest();
        }
    }

    /// A trial ended.
    fn keep(&mut self, looks: bool, now: Reading) {
        let (before, kept) = self.verdict;
        let time = if looks == before { kept.saturating_mul(2).clamp(KEEP.0, KEEP.1) } else { KEEP.0 };
        self.verdict = (looks, time);
        self.rest = REST.0;
        let verdict = Verdict { looks, until: now.wall.saturating_add(time) };
        self.course = Course::Keep { verdict, last: now };
    }
}

impl Course {
    fn trial(now: Reading) -> Self {
        Self::Try { part: 0, began: now.wall, last: now, spent: [Spent::default(); 2] }
    }
}

/// What was spent between these; nothing if it does not say what a lone client's requests cost.
fn sample(before: &Reading, now: &Reading) -> Option<Spent> {
    let requests = now.served.saturating_sub(before.served);
    let is_quick = now.wall.saturating_sub(before.wall) <= QUICK * SAMPLE;
    let is_alone = now.others.saturating_sub(before.others) <= OTHERS;
    let is_single = requests > 0 && requests <= FEW * u64::from(SAMPLE);
    let fits = is_quick && is_alone && is_single;
    fits.then(|| Spent { requests, cpu: now.cpu.saturating_sub(before.cpu) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a round takes so many microseconds of time and of processors, asleep and looking.
    struct Machine {
        asleep: (u64, u64),
        looking: (u64, u64),
        requests: u64,
        others: u64,
        now: Reading,
        looks: u32,
    }

    impl Machine {
        fn new(asleep: (u64, u64), looking: (u64, u64)) -> Self {
            Self { asleep, looking, requests: 1, others: 0, now: Reading::default(), looks: 0 }
        }

        /// So many rounds; how many of them looked.
        fn run(&mut self, habit: &mut Habit, rounds: u32) -> u32 {
            self.looks = 0;
            for _ in 0..rounds {
                let looks = habit.looks(|| self.now);
                let (wall, cpu) = if looks { self.looking } else { self.asleep };
                self.now.wall += Duration::from_micros(wall);
                self.now.cpu += Duration::from_micros(cpu);
                self.now.served += self.requests;
                self.now.others += self.others;
                self.looks += u32::from(looks);
            }
            self.looks
        }
    }

    #[test]
    fn what_costs_less_is_kept_and_tried_again_when_the_machine_changes() {
        let mut habit = Habit::default();
        let mut machine = Machine::new((120, 50), (40, 42));
        machine.run(&mut habit, 100_000);
        let looks = machine.run(&mut habit, 100_000);
        assert!(looks > 95_000, "where wake-ups are dear it looks: {looks}");
        (machine.asleep, machine.looking) = ((40, 30), (45, 60));
        machine.run(&mut habit, 1_000_000);
        let looks = machine.run(&mut habit, 100_000);
        assert!(looks < 10_000, "where processors are awake it sleeps, and seldom tries: {looks}");
        machine.looking = (40, 29);
        machine.run(&mut habit, 1_000_000);
        assert!(machine.run(&mut habit, 100_000) > 90_000, "and looks again");
    }

    #[test]
    fn what_a_habit_leaves_behind_is_not_counted_for_the_next() {
        let mut habit = Habit::default();
        // Either is cheap for the first moments after the other, and looking is cheaper in the long run.
        let mut machine = Machine::new((100, 90), (100, 60));
        let mut since_other = 0_u64;
        let (mut before, mut looked) = (false, 0);
        for _ in 0..200_000 {
            let now = machine.now;
            let looks = habit.looks(|| now);
            since_other = if looks == before { since_other + 100 } else { 0 };
            before = looks;
            let settled = since_other > 100_000;
            let cpu = match looks {
                true if settled => 60,
                true => 200,
                false if settled => 90,
                false => 10,
            };
            machine.now.wall += Duration::from_micros(100);
            machine.now.cpu += Duration::from_micros(cpu);
            machine.now.served += 1;
            looked += u32::from(looks);
        }
        assert!(looked > 150_000, "{looked}");
    }

    #[test]
    fn a_slow_client_many_requests_at_a_time_and_company_are_never_looked_for() {
        let mut slow = Machine::new((2000, 50), (2000, 10));
        assert_eq!(slow.run(&mut Habit::default(), 100_000), 0, "slow");
        let mut many = Machine { requests: 8, ..Machine::new((120, 50), (40, 10)) };
        assert_eq!(many.run(&mut Habit::default(), 100_000), 0, "many at a time");
        let mut company = Machine { others: 1, ..Machine::new((120, 50), (40, 10)) };
        assert_eq!(company.run(&mut Habit::default(), 100_000), 0, "beside others");
    }

    #[test]
    fn looks_in_vain_end_it_before_a_sample_does_and_for_longer_each_time() {
        let mut habit = Habit::default();
        let mut machine = Machine::new((120, 50), (40, 10));
        machine.run(&mut habit, 10_000);
        for rests in [REST.0, REST.0 * 2, REST.0 * 4] {
            machine.now.known = habit.verdict();
            assert!(habit.looks(|| machine.now));
            (0..=MISSES).for_each(|_| habit.missed());
            assert_eq!(machine.run(&mut habit, rests * SAMPLE), 0, "the client has become slow");
            assert!(machine.run(&mut habit, SAMPLE) > 0, "what was found out is still known");
        }
    }

    #[test]
    fn what_another_connection_found_out_is_not_tried_again() {
        let mut machine = Machine::new((120, 50), (40, 60));
        let known = Verdict { looks: true, until: Duration::from_secs(1) };
        machine.now.known = Some(known);
        let mut habit = Habit::default();
        assert_eq!(machine.run(&mut habit, 1000), 1000 - SAMPLE);
        assert_eq!(habit.verdict(), Some(known));
        machine.run(&mut habit, 100_000);
        assert!(machine.run(&mut habit, 10_000) < 10_000, "until its time is over");
    }
}
