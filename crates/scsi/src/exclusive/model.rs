//! Changes of chance to a disk of a few blocks, and a book that is kept of them in the plainest way: whoever begins had nobody
//! in its way, and whenever all has come to rest, whoever waits has.

use std::{cell::RefCell, time::Duration};

use futures_util::future::{join, join_all};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Exclusive, turns::Kind};

const BLOCKS: u64 = 8;
const BLOCK: u64 = 512;
const CHANGES: usize = 200;
/// What holds something lets go of it with a tick, and who waits gives up with one.
const TICK: Duration = Duration::from_millis(10);
/// Behind a tick: when somebody comes.
const COMES: Duration = Duration::from_millis(4);
/// Behind a tick: when all has come to rest.
const RESTS: Duration = Duration::from_millis(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Begun,
    Seen,
    Over,
}

#[derive(Debug)]
struct Line {
    kind: Kind,
    /// One bit each.
    blocks: u32,
    state: State,
    /// Lines of those that had begun when it came, and might change something yet.
    unseen: Vec<usize>,
}

impl Line {
    fn changes(&self) -> bool {
        matches!(self.kind, Kind::Beside | Kind::Alone)
    }
}

/// In the order in which they came.
#[derive(Default)]
struct Book(RefCell<Vec<Line>>);

impl Book {
    fn comes(&self, kind: Kind, blocks: u32) -> usize {
        let mut lines = self.0.borrow_mut();
        let unseen = lines.iter().enumerate().filter(|(_, it)| it.changes() && it.state == State::Begun);
        let unseen = unseen.map(|(number, _)| number).collect();
        lines.push(Line { kind, blocks, state: State::Waits, unseen });
        lines.len() - 1
    }

    fn is_now(&self, who: usize, state: State) {
        self.0.borrow_mut()[who].state = state;
    }

    /// Whether somebody that came before is in its way.
    fn is_kept(&self, who: usize) -> bool {
        let lines = self.0.borrow();
        let me = &lines[who];
        lines[..who].iter().enumerate().any(|(number, it)| {
            let is_unseen = matches!(it.state, State::Waits | State::Begun);
            let is_under_way = it.state != State::Over;
            match (me.kind, it.kind) {
                (_, Kind::Past | Kind::Drain) => false,
                (Kind::Past, _) => me.unseen.contains(&number) && is_unseen,
                (Kind::Drain, _) => is_under_way,
                (Kind::Beside, Kind::Beside) => false,
                _ => is_unseen && it.blocks & me.blocks != 0,
            }
        })
    }

    /// Whether all have come and gone; who waits has to have a reason.
    fn look(&self) -> bool {
        let waiting: Vec<usize> = {
            let lines = self.0.borrow();
            (0..lines.len()).filter(|who| lines[*who].state == State::Waits).collect()
        };
        for who in waiting {
            assert!(self.is_kept(who), "{who} waits for nothing: {:#?}", self.0.borrow());
        }
        let lines = self.0.borrow();
        lines.len() == CHANGES && lines.iter().all(|line| line.state == State::Over)
    }
}

/// What somebody is to do, in ticks.
#[derive(Clone, Copy, Debug)]
struct Plan {
    kind: Kind,
    blocks: u32,
    comes: u32,
    patience: u32,
    changes: u32,
    /// 0: it is over when it is seen.
    settles: u32,
}

impl Plan {
    fn of(random: &mut StdRng) -> Self {
        let kind = match random.random_range(0..20) {
            0 => Kind::Drain,
            1..=2 => Kind::Past,
            3..=9 => Kind::Alone,
            _ => Kind::Beside,
        };
        let is_change = matches!(kind, Kind::Beside | Kind::Alone);
        // None of some, several ranges of others.
        let block = |random: &mut StdRng| 1_u32 << random.random_range(0..BLOCKS);
        let blocks = (0..random.random_range(0..4)).fold(0, |blocks, _| blocks | block(random));
        Self {
            kind,
            blocks: if is_change { blocks } else { 0 },
            comes: random.random_range(0..120),
            patience: if random.random_bool(0.2) { random.random_range(1..8) } else { u32::from(u16::MAX) },
            changes: if is_change { random.random_range(1..5) } else { 0 },
            settles: if is_change { random.random_range(0..4) } else { 0 },
        }
    }

    async fn run(self, disk: &Exclusive, book: &Book, start: Instant) {
        let wait = async |ticks: u32| {
            let now = u32::try_from(start.elapsed().as_millis() / TICK.as_millis()).unwrap();
            sleep_until(start + TICK * (now + ticks)).await;
        };
        sleep_until(start + TICK * self.comes + COMES).await;
        let ranges: Vec<(u64, u64)> = (0..BLOCKS)
            .filter(|block| self.blocks & (1_u32 << block) != 0)
            .map(|block| (block * BLOCK, BLOCK))
            .collect();
        let who = book.comes(self.kind, self.blocks);
        let begins = disk.begin(self.kind, &ranges);
        let Ok(mut hold) = timeout_at(start + TICK * (self.comes + self.patience), begins).await else {
            return book.is_now(who, State::Over);
        };
        assert!(!book.is_kept(who), "{who} passed somebody: {:#?}", book.0.borrow());
        if self.changes > 0 {
            book.is_now(who, State::Begun);
            wait(self.changes).await;
        }
        if self.settles > 0 {
            book.is_now(who, State::Seen);
            hold.seen();
            wait(self.settles).await;
        }
        book.is_now(who, State::Over);
        drop(hold);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_begins_before_its_turn_and_nobody_waits_for_nothing() {
    for seed in 0..50 {
        let mut random = StdRng::seed_from_u64(seed);
        let (disk, book, start) = (Exclusive::default(), Book::default(), Instant::now());
        let changes = (0..CHANGES).map(|_| Plan::of(&mut random).run(&disk, &book, start));
        let looks = async {
            for tick in 0.. {
                sleep_until(start + TICK * tick + RESTS).await;
                if book.look() {
                    break;
                }
            }
        };
        join(join_all(changes), looks).await;
        assert!(disk.turns().is_empty(), "seed {seed}");
    }
}
