//! Clients: each owns a part of a volume, writes it, reads it back and compares, while anything goes on below.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{Asked, BlockVolume, Durability, VolumeError, flatten};
use engine::{engine::Engine, volume::LiveVolume};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    sync::RwLock,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    ledger::{Ledger, UNIT},
    player::Bug,
};
use crate::support::data;

/// An operation that takes longer than this in virtual time hangs.
pub(crate) const HANG: Duration = Duration::from_secs(900);
/// Clients of a volume.
const CLIENTS: usize = 2;

/// What clients found out.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// What must never be.
    pub(crate) wrong: Mutex<Vec<String>>,
    /// Operations that were refused.
    pub(crate) refused: Mutex<Vec<String>>,
    pub(crate) operations: AtomicU64,
    /// Clients end after what they are doing.
    pub(crate) leaving: AtomicBool,
    /// Clients take their time: something is waited for that takes hours.
    pub(crate) leisure: AtomicBool,
}

impl Findings {
    pub(crate) fn wrong(&self, text: String) {
        self.wrong.lock().push(text);
    }
}

/// A volume of the campaign.
pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) ledger: Ledger,
    /// Held for reading by an operation, for writing by whoever needs the clients to stand still.
    pub(crate) gate: RwLock<()>,
    /// It was destroyed.
    pub(crate) is_gone: AtomicBool,
}

/// Clients at work; dropping ends them.
pub(crate) struct Clients(Vec<JoinHandle<()>>);

impl Clients {
    pub(crate) fn join(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }

    /// They finish what they are about, and go.
    pub(crate) async fn leave(mut self, findings: &Findings) {
        findings.leaving.store(true, Relaxed);
        for client in std::mem::take(&mut self.0) {
            if timeout(HANG * 2, client).await.is_err() {
                findings.wrong("a client does not come to an end".to_owned());
            }
        }
        findings.leaving.store(false, Relaxed);
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Sets clients to work on all volumes.
pub(crate) async fn start(
    engine: &Arc<Engine>,
    seats: &[Arc<Seat>],
    findings: &Arc<Findings>,
    bug: Option<Bug>,
    seed: u64,
) -> Clients {
    let mut clients = Vec::new();
    let living = seats.iter().filter(|seat| !seat.is_gone.load(Relaxed));
    for (number, seat) in (0_u64..).zip(living) {
        let Ok(volume) = engine.volume(&seat.name).await else {
            findings.refused.lock().push(format!("{}: cannot be opened", seat.name));
            continue;
        };
        let share = seat.ledger.units() / CLIENTS;
        for which in 0..CLIENTS {
            let client = Client {
                engine: Arc::clone(engine),
                volume: Arc::clone(&volume),
                seat: Arc::clone(seat),
                findings: Arc::clone(findings),
                first: which * share,
                units: share,
                random: StdRng::seed_from_u64(seed ^ number << 16 ^ (which as u64) << 8),
                bug,
                old: None,
            };
            clients.push(tokio::spawn(client.work()));
        }
    }
    Clients(clients)
}

struct Client {
    engine: Arc<Engine>,
    volume: Arc<LiveVolume>,
    seat: Arc<Seat>,
    findings: Arc<Findings>,
    first: usize,
    units: usize,
    random: StdRng,
    bug: Option<Bug>,
    /// What a bug of the simulator answers with.
    old: Option<(usize, Vec<u8>)>,
}

impl Client {
    async fn work(mut self) {
        while !self.findings.leaving.load(Relaxed) {
            let pause = Duration::from_micros(self.random.random_range(0..200_000));
            sleep(pause * if self.findings.leisure.load(Relaxed) { 100 } else { 1 }).await;
            let seat = Arc::clone(&self.seat);
            let _gate = seat.gate.read().await;
            if seat.is_gone.load(Relaxed) {
                return;
            }
            self.findings.operations.fetch_add(1, Relaxed);
            match self.random.random_range(0..100) {
                0..45 => self.read().await,
                45..75 => self.write(false).await,
                75..80 => self.write_zeroes().await,
                80..97 => self.write(true).await,
                _ => self.flush().await,
            }
        }
    }

    fn place(&mut self) -> (usize, usize) {
        let count = self.random.random_range(1..=12).min(self.units);
        (self.first + self.random.random_range(0..=self.units - count), count)
    }

    async fn read(&mut self) {
        let (first, count) = self.place();
        let answer = self.volume.read((first * UNIT) as u64, count * UNIT);
        match timeout(HANG, answer).await {
            Err(_) => self.findings.wrong(format!("{}: a read hangs", self.seat.name)),
            Ok(Err(error)) => self.refused("read", first, count, &error),
            Ok(Ok(found)) => {
                let mut bytes = flatten(&found);
                if self.bug == Some(Bug::AnswersFromThePast) {
                    if let Some((at, old)) = &self.old
                        && *at == first
                        && old.len() <= bytes.len()
                    {
                        bytes[..old.len()].copy_from_slice(old);
                    }
                    self.old = Some((first, bytes[..UNIT].to_vec()));
                }
                if let Err(what) = self.seat.ledger.check(first, &bytes) {
                    self.findings.wrong(format!("a read got wrong bytes: {what}"));
                }
            }
        }
    }

    async fn write(&mut self, stable: bool) {
        let (first, count) = self.place();
        let (version, bytes) = self.seat.ledger.begin(first, count);
        let durability = if stable { Durability::Stable(Asked::Fua) } else { Durability::Cached };
        let mut answer = self.volume.write((first * UNIT) as u64, data(bytes), durability);
        loop {
            match timeout(HANG, &mut answer).await {
                // While the pool is suspended a write may wait; what else should it do.
                Err(_) if self.engine.suspended().is_some() => {}
                Err(_) => return self.findings.wrong(format!("{}: a write hangs", self.seat.name)),
                Ok(Err(error)) => return self.refused("write", first, count, &error),
                Ok(Ok(())) => return self.seat.ledger.acknowledge(first, count, version, stable),
            }
        }
    }

    async fn write_zeroes(&mut self) {
        let (first, count) = self.place();
        self.seat.ledger.begin_zeroes(first, count);
        let stable = self.random.random();
        let durability = if stable { Durability::Stable(Asked::Fua) } else { Durability::Cached };
        // Parts of blocks, too, which an unmap would leave as they are.
        let (offset, len) = ((first * UNIT) as u64, (count * UNIT) as u64);
        let mut answer = self.volume.write_zeroes(offset, len, false, durability);
        loop {
            match timeout(HANG, &mut answer).await {
                Err(_) if self.engine.suspended().is_some() => {}
                Err(_) => return self.findings.wrong(format!("{}: writing zeroes hangs", self.seat.name)),
                Ok(Err(error)) => return self.refused("write zeroes", first, count, &error),
                Ok(Ok(())) => return self.seat.ledger.acknowledge_zeroes(first, count, stable),
            }
        }
    }

    async fn flush(&mut self) {
        let marks = self.seat.ledger.marks();
        loop {
            match timeout(HANG, self.volume.flush()).await {
                Err(_) if self.engine.suspended().is_some() => {}
                Err(_) => return self.findings.wrong(format!("{}: a flush hangs", self.seat.name)),
                Ok(Err(error)) => return self.refused("flush", 0, 0, &error),
                Ok(Ok(())) => return self.seat.ledger.durable(&marks),
            }
        }
    }

    fn refused(&self, what: &str, first: usize, count: usize, error: &VolumeError) {
        let name = &self.seat.name;
        self.findings.refused.lock().push(format!("{what} {name} {first}+{count}: {error}"));
    }
}
