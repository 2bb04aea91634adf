//! Which histories there are: few of them, and yet any two values of different dimensions meet somewhere.
//!
//! Layouts and sector sizes are met in full, a history each. What a volume chooses for itself is dealt out to the
//! volumes of a history: always the combination that brings most pairs that did not meet yet.

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng, rngs::StdRng};

pub(crate) const LAYOUTS: [&str; 8] = [
    "d0",
    "d0 d1",
    "mirror d0 d1",
    "raidz1 d0 d1 d2",
    "raidz2 d0 d1 d2 d3",
    "raidz3 d0 d1 d2 d3 d4",
    "mirror d0 d1 mirror d2 d3",
    "raidz1 d0 d1 d2 log d3 cache d4 spare d5",
];
/// Log2 of a sector.
pub(crate) const ASHIFTS: [u32; 2] = [12, 9];
pub(crate) const BLOCKS: [u32; 6] = [4096, 8192, 16384, 32768, 65536, 131_072];
pub(crate) const COMPRESSIONS: [&str; 8] =
    ["off", "lz4", "lzjb", "zle", "gzip-1", "gzip-9", "zstd", "zstd-fast"];
pub(crate) const CHECKSUMS: [&str; 7] =
    ["fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"];
pub(crate) const COPIES: [u64; 2] = [1, 2];

/// Histories in which every pair is met.
pub(crate) const ALL: usize = LAYOUTS.len() * ASHIFTS.len();
/// Volumes in each that are chosen pairwise.
const VOLUMES: usize = 6;

/// What one volume is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) block: u32,
    pub(crate) compression: &'static str,
    pub(crate) checksum: &'static str,
    pub(crate) copies: u64,
}

/// What one history is like.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) layout: &'static str,
    pub(crate) ashift: u32,
    pub(crate) volumes: Vec<Choice>,
}

type Row = [usize; 6];
/// Two dimensions, and a value of each.
type Pair = (usize, usize, usize, usize);

fn pairs(row: &Row) -> impl Iterator<Item = Pair> {
    let pair = |(a, b): (usize, usize)| (a, b, row[a], row[b]);
    (0..row.len()).flat_map(|a| (a + 1..6).map(move |b| (a, b))).map(pair)
}

fn candidates(history: usize) -> impl Iterator<Item = Row> {
    let (layout, ashift) = (history % LAYOUTS.len(), history / LAYOUTS.len() % ASHIFTS.len());
    let count = BLOCKS.len() * COMPRESSIONS.len() * CHECKSUMS.len() * COPIES.len();
    (0..count).map(move |number| {
        let (block, rest) = (number % BLOCKS.len(), number / BLOCKS.len());
        let (compression, rest) = (rest % COMPRESSIONS.len(), rest / COMPRESSIONS.len());
        let (checksum, copies) = (rest % CHECKSUMS.len(), rest / CHECKSUMS.len());
        [layout, ashift, block, compression, checksum, copies]
    })
}

fn choice(row: &Row) -> Choice {
    Choice {
        block: BLOCKS[row[2]],
        compression: COMPRESSIONS[row[3]],
        checksum: CHECKSUMS[row[4]],
        copies: COPIES[row[5]],
    }
}

/// The rows of the first histories, and every pair in them.
fn deal() -> (Vec<Vec<Row>>, BTreeSet<Pair>) {
    let mut met = BTreeSet::new();
    let mut random = StdRng::seed_from_u64(1);
    let mut dealt = Vec::new();
    for history in 0..ALL {
        let mut rows = Vec::new();
        for _ in 0..VOLUMES {
            let mut all: Vec<Row> = candidates(history).collect();
            let start = random.random_range(0..all.len());
            all.rotate_left(start);
            let new = |row: &Row| pairs(row).filter(|pair| !met.contains(pair)).count();
            let best = all.into_iter().max_by_key(new).expect("there are candidates");
            met.extend(pairs(&best));
            rows.push(best);
        }
        dealt.push(rows);
    }
    (dealt, met)
}

/// The plan of a history: of the first ones pairwise, of all others by chance.
pub(crate) fn plan(seed: u64) -> Plan {
    let cell = (seed % ALL as u64) as usize;
    let volumes = match usize::try_from(seed) {
        Ok(history) if history < ALL => deal().0[history].iter().map(choice).collect(),
        _ => {
            let mut random = StdRng::seed_from_u64(seed);
            let all: Vec<Row> = candidates(cell).collect();
            (0..VOLUMES).map(|_| choice(&all[random.random_range(0..all.len())])).collect()
        }
    };
    Plan { layout: LAYOUTS[cell % LAYOUTS.len()], ashift: ASHIFTS[cell / LAYOUTS.len()], volumes }
}

#[test]
fn any_two_values_of_different_dimensions_meet_in_one_of_the_first_histories() {
    let met = deal().1;
    let sizes =
        [LAYOUTS.len(), ASHIFTS.len(), BLOCKS.len(), COMPRESSIONS.len(), CHECKSUMS.len(), COPIES.len()];
    let mut expected = 0;
    for (a, first) in sizes.iter().enumerate() {
        expected += sizes[a + 1..].iter().map(|second| first * second).sum::<usize>();
    }
    assert_eq!(met.len(), expected, "pairs");
}
