//! Deterministic synthetic workloads, in integer arithmetic only.
//!
//! * Numbers: SplitMix64. `state += 0x9e3779b97f4a7c15`, then its finaliser of `state`. `below(n)` is the upper
//!   half of the 128-bit product with n.
//! * Zipf over N ranks, N a power of two: weight `2^40 / i` (exponent 1) or `2^56 / isqrt(isqrt(i^3 << 64))`
//!   (exponent 3/4), integers; a draw is the first rank whose cumulative weight exceeds `below(total)`; rank r
//!   (from 0) is block `(r * 0x9e3779b1 + 12345) mod N`.
//!
//! Each function says what its workload is; the reference results were made from the same definitions.

use std::collections::BTreeSet;

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        cache::mix(self.0)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Few are drawn often.
pub(crate) struct Zipf(Vec<u64>);

#[derive(Clone, Copy)]
pub(crate) enum Exponent {
    One,
    ThreeQuarters,
}

impl Zipf {
    pub(crate) fn new(n: u64, exponent: Exponent) -> Self {
        assert!(n.is_power_of_two());
        let weight = |i: u64| match exponent {
            Exponent::One => (1 << 40) / i,
            Exponent::ThreeQuarters => {
                let cube = u128::from(i).pow(3) << 64;
                (1 << 56) / cube.isqrt().isqrt() as u64
            }
        };
        let mut sum = 0;
        Self(
            (1..=n)
                .map(|i| {
                    sum += weight(i);
                    sum
                })
                .collect(),
        )
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let drawn = rng.below(self.0[self.0.len() - 1]);
        let rank = self.0.partition_point(|sum| *sum <= drawn) as u64;
        (rank * 0x9e37_79b1 + 12345) % self.0.len() as u64
    }
}

/// Takes a request: microseconds, R or W, first block, blocks.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(u64, char, u64, u64);

/// The requests of a workload by name, in order.
pub(crate) fn generate(kind: &str, seed: u64, emit: Emit<'_>) {
    let mut rng = Rng(seed);
    match kind {
        "zipf" => zipf(&mut rng, emit),
        "zipfscan" => zipfscan(&mut rng, emit),
        "loop" => loops(&mut rng, emit),
        "bootstorm" => bootstorm(&mut rng, emit),
        _ => panic!("no workload is called {kind}"),
    }
}

/// Two million reads, exponent 3/4, over 2^18 blocks.
fn zipf(rng: &mut Rng, emit: Emit<'_>) {
    let zipf = Zipf::new(1 << 18, Exponent::ThreeQuarters);
    for k in 0..2_000_000 {
        emit(k * 100, 'R', zipf.draw(rng), 1);
    }
}

/// Zipf of exponent 1 over 2^17 blocks; after every 150 000 requests a sequential scan of one of three regions of
/// 2^17 blocks, 32 blocks a request, each followed by one Zipf read.
fn zipfscan(rng: &mut Rng, emit: Emit<'_>) {
    let zipf = Zipf::new(1 << 17, Exponent::One);
    let mut time = (0..).step_by(100);
    let mut read = |block, blocks| emit(time.next().unwrap(), 'R', block, blocks);
    for round in 0..8 {
        for _ in 0..150_000 {
            read(zipf.draw(rng), 1);
        }
        let base = (1 << 17) * (1 + round % 3);
        for chunk in 0..(1 << 17) / 32 {
            read(base + chunk * 32, 32);
            read(zipf.draw(rng), 1);
        }
    }
}

/// Twelve passes over 100 000 blocks, 16 a request, each followed by two Zipf reads (3/4) of 2^16 other blocks.
fn loops(rng: &mut Rng, emit: Emit<'_>) {
    let zipf = Zipf::new(1 << 16, Exponent::ThreeQuarters);
    let mut time = (0..).step_by(100);
    let mut read = |block, blocks| emit(time.next().unwrap(), 'R', block, blocks);
    for _ in 0..12 {
        for chunk in 0..100_000 / 16 {
            read((1 << 16) + chunk * 16, 16);
            for _ in 0..2 {
                read(zipf.draw(rng), 1);
            }
        }
    }
}

const GUESTS: u64 = 40;
/// Blocks of the golden image, and of each overlay behind it.
const IMAGE: u64 = 1 << 20;

/// Forty clones of one golden image boot half a second apart, then run. The boot is 6000 runs of blocks drawn once;
/// every guest replaces 5 in 100 by its own. After 30 in 100 reads it writes to its overlay; what it wrote it reads
/// from there. Then 4000 requests each, 60 in 100 reads. All are merged by time, then guest, then order.
fn bootstorm(rng: &mut Rng, emit: Emit<'_>) {
    let (one, flat) = (Zipf::new(1 << 15, Exponent::One), Zipf::new(1 << 15, Exponent::ThreeQuarters));
    let run = |rng: &mut Rng| {
        let extent = one.draw(rng);
        let within = rng.below(32);
        let spread = 1 + rng.below(6);
        let blocks = 1 + rng.below(1 << spread);
        (extent * 32 + within, blocks.min(32 - within))
    };
    let boot: Vec<(u64, u64)> = (0..6000).map(|_| run(rng)).collect();
    let mut requests: Vec<(u64, u64, char, u64, u64)> = Vec::new();
    for number in 0..GUESTS {
        let mut rng = Rng(rng.next());
        let mut time = number * 500_000 + rng.below(400_000);
        let mut guest = Guest { number, own: BTreeSet::new(), requests: &mut requests };
        for shared in &boot {
            let (start, blocks) = if rng.below(100) < 5 { run(&mut rng) } else { *shared };
            guest.read(time, start, blocks);
            if rng.below(100) < 30 {
                let extent = one.draw(&mut rng);
                guest.write(time, extent * 32, 1 + rng.below(8));
            }
            time += 1000 + rng.below(2000);
        }
        for _ in 0..4000 {
            let reads = rng.below(100) < 60;
            let start = flat.draw(&mut rng) * 32;
            let blocks = 1 + rng.below(4);
            if reads {
                guest.read(time, start, blocks)
            } else {
                guest.write(time, start, blocks)
            }
            time += 5000 + rng.below(10_000);
        }
    }
    // Stable: requests of one guest at one time keep their order.
    requests.sort_by_key(|(time, guest, ..)| (*time, *guest));
    for (time, _, op, block, blocks) in requests {
        emit(time, op, block, blocks);
    }
}

struct Guest<'a> {
    number: u64,
    /// Blocks it has written.
    own: BTreeSet<u64>,
    requests: &'a mut Vec<(u64, u64, char, u64, u64)>,
}

impl Guest<'_> {
    /// One request for each contiguous piece of the overlay or of the golden image.
    fn read(&mut self, time: u64, start: u64, blocks: u64) {
        let end = start + blocks;
        let mut at = start;
        while at < end {
            let is_own = self.own.contains(&at);
            let piece = (at..end).take_while(|block| self.own.contains(block) == is_own).count() as u64;
            let base = if is_own { (self.number + 1) * IMAGE } else { 0 };
            self.requests.push((time, self.number, 'R', base + at, piece));
            at += piece;
        }
    }

    fn write(&mut self, time: u64, start: u64, blocks: u64) {
        self.own.extend(start..start + blocks);
        self.requests.push((time, self.number, 'W', (self.number + 1) * IMAGE + start, blocks));
    }
}
