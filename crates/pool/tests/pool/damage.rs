//! Damage on purpose: silent corruption within redundancy is read right, any other damage is either
//! harmless or an error that names the block; devices that fail are counted as OpenZFS counts them.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use disk::{Disk, MemDisk};
use pool::{
    Bookmark, ImportError, Pool,
    traverse::{Scopes, expand},
    verify::{Progress, verify},
};
use sha2::{Digest, Sha256};

use crate::support::{Walk, open_disks, walk};

/// A small generator with a printed seed (xorshift64*, public domain).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The image files of a directory, whole.
fn images(dir: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let file = std::fs::File::open(path).unwrap();
            let mut image = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut image, 0).unwrap();
            image
        })
        .collect()
}

fn disks(images: &[Vec<u8>]) -> Vec<Arc<dyn Disk>> {
    let disk = |(i, image): (usize, &Vec<u8>)| {
        Arc::new(MemDisk::from_bytes(image).named(format!("disk{i}"))) as Arc<dyn Disk>
    };
    images.iter().enumerate().map(disk).collect()
}

/// What is added to the byte at a place.
type Flips = BTreeMap<u64, u8>;

/// An image that many rounds share, with what this one flipped: a copy for each round would be most of their time.
#[derive(Debug)]
struct Flipped {
    name: String,
    image: Arc<Vec<u8>>,
    /// What is flipped, by where.
    flips: Flips,
}

impl Disk for Flipped {
    fn info(&self) -> disk::DiskInfo {
        let like = MemDisk::new(self.image.len() as u64).named(self.name.clone());
        like.info()
    }
    fn read(&self, offset: u64, mut buf: disk::IoBuf) -> disk::DiskFuture<'_, disk::IoBuf> {
        let end = offset + buf.len() as u64;
        let Some(bytes) = self.image.get(offset as usize..end as usize) else {
            return Box::pin(async { Err(std::io::Error::other("beyond the end")) });
        };
        buf.copy_from_slice(bytes);
        for (at, flip) in self.flips.range(offset..end) {
            buf[(at - offset) as usize] ^= flip;
        }
        Box::pin(async { Ok(buf) })
    }
    fn write(&self, _: u64, _: bytes::Bytes) -> disk::DiskFuture<'_, ()> {
        unreachable!("what only reads a pool writes nothing")
    }
    fn write_through(&self, _: u64, _: bytes::Bytes) -> disk::DiskFuture<'_, ()> {
        unreachable!("what only reads a pool writes nothing")
    }
    fn flush(&self) -> disk::DiskFuture<'_, ()> {
        unreachable!("what only reads a pool writes nothing")
    }
    fn trim(&self, _: u64, _: u64) -> disk::DiskFuture<'_, ()> {
        unreachable!("what only reads a pool writes nothing")
    }
}

/// Byte ranges of the allocatable space that are in use, as far as non-zero content shows.
fn used(image: &[u8]) -> Vec<usize> {
    let first = 4 << 20;
    (first..image.len() - (512 << 10)).step_by(4096).filter(|&at| image[at..at + 4096] != [0; 4096]).collect()
}

async fn read_all(images: &[Vec<u8>]) -> (Walk, u64) {
    let pool = open_disks(disks(images)).await.unwrap();
    let walk = walk(&pool).await;
    let counted = pool.tree().leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
    (walk, counted)
}

/// Overwrites pages on `victims` with noise and expects everything to read as before.
async fn survives(fixture: &str, victims: &[usize], share: u64, seed: u64) {
    survives_without(&[], fixture, victims, share, seed).await;
}

/// The same while children are away.
async fn survives_without(absent: &[usize], fixture: &str, victims: &[usize], share: u64, seed: u64) {
    let fixture = fixtures::pool(fixture);
    let mut images = images(&fixture.dir);
    let (before, clean) = read_all(&images).await;
    assert_eq!((&before.errors[..], clean), (&[][..], 0));
    let mut random = Random(seed);
    for &victim in victims {
        for at in used(&images[victim]) {
            if random.below(100) < share {
                images[victim][at..at + 4096].iter_mut().for_each(|byte| *byte = random.next() as u8);
            }
        }
    }
    let there: Vec<Vec<u8>> = (0..images.len())
        .filter(|child| !absent.contains(child))
        .map(|child| std::mem::take(&mut images[child]))
        .collect();
    let (after, counted) = read_all(&there).await;
    assert_eq!(after.errors, [""; 0], "{} seed {seed}", fixture.name);
    assert_eq!((after.blocks, after.digest), (before.blocks, before.digest));
    assert!(counted > 0, "{}: damage was met and must be counted", fixture.name);
}

#[tokio::test]
async fn one_side_of_a_mirror_may_lie() {
    survives("mirror2", &[1], 90, 2).await;
}

#[tokio::test]
async fn as_many_raidz_children_as_there_is_parity_may_lie() {
    survives("raidz1x3", &[1], 50, 3).await;
    survives("raidz2x6", &[0, 4], 40, 4).await;
    survives("expansion", &[2], 40, 5).await;
}

/// What is absent is rebuilt from parity, which is then as much a suspect as data.
#[tokio::test]
async fn parity_may_lie_while_another_child_is_away() {
    survives_without(&[3], "raidz2x6", &[0], 60, 6).await;
    survives_without(&[0], "raidz2x6", &[5], 60, 7).await;
}

/// Content of every block that can be read, by its bookmark; and the errors.
#[derive(Default)]
struct Contents {
    right: BTreeMap<Bookmark, [u8; 32]>,
    errors: Vec<String>,
}

/// Reads every block of the pool in the ordinary way, by the walk that `verify` uses.
async fn contents(pool: &Arc<Pool>) -> Contents {
    let scopes = Scopes::read(pool).await;
    let mut found = Contents::default();
    let mut todo = scopes.roots();
    while let Some(visit) = todo.pop() {
        match pool.io().read_block_uncached(&visit.pointer, visit.at).await {
            Ok(content) => {
                found.right.insert(visit.at, Sha256::digest(&content).into());
                if visit.has_children() {
                    todo.extend(expand(&visit, &scopes.all[visit.scope as usize], &content).visits);
                }
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&visit.at.to_string()), "the error names the block: {text}");
                found.errors.push(text);
            }
        }
    }
    found
}

/// Number of damaged pools: 1000 in the tests, ten times as many in `make sim`.
fn rounds() -> u64 {
    std::env::var("MILLPOND_SIM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1000)
}

/// The seeds to try: one if `MILLPOND_SEED` says which.
fn seeds() -> Vec<u64> {
    let parse = |text: String| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match std::env::var("MILLPOND_SEED").ok().and_then(parse) {
        Some(seed) => vec![seed],
        None => (1..=rounds()).map(|round| round.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect(),
    }
}

/// Flips up to a few thousand bytes, most of them where something is; sometimes in labels too.
fn flip(images: &[Arc<Vec<u8>>], used: &[Vec<usize>], random: &mut Random) -> Vec<Arc<dyn Disk>> {
    let mut flipped = vec![BTreeMap::new(); images.len()];
    let most = 1 << random.below(12);
    let flips = 1 + random.below(most);
    let labels = random.below(4) == 0;
    for _ in 0..flips {
        let victim = random.below(images.len() as u64) as usize;
        let (image, used) = (&images[victim], &used[victim]);
        let page = match random.below(20) {
            0 if labels => random.below(128) as usize * 4096,
            1 => random.below(image.len() as u64 / 4096) as usize * 4096,
            _ => used[random.below(used.len() as u64) as usize],
        };
        let at = page as u64 + random.below(4096);
        *flipped[victim].entry(at).or_default() ^= 1 + random.below(255) as u8;
    }
    let disk = |(i, (image, flips)): (usize, (&Arc<Vec<u8>>, Flips))| {
        Arc::new(Flipped { name: format!("disk{i}"), image: Arc::clone(image), flips }) as Arc<dyn Disk>
    };
    images.iter().zip(flipped).enumerate().map(disk).collect()
}

#[tokio::test]
async fn flipped_bytes_give_right_bytes_or_an_error_that_names_the_block() {
    flip_and_read(0).await;
}

#[tokio::test]
async fn flipped_bytes_give_right_bytes_or_an_error_that_names_the_block_part_2() {
    flip_and_read(1).await;
}

/// Every second seed, beginning with this one: rounds are independent, and there is more than one processor.
async fn flip_and_read(first: usize) {
    // One without redundancy, one with a mirror, one with parity: what heals, and what cannot.
    let names = ["single", "mirror2", "raidz1x3"];
    let (mut wrong, mut refused, mut healed) = (0, 0, 0);
    let mut pristine = Vec::new();
    for name in names {
        let fixture = fixtures::pool(name);
        let images = images(&fixture.dir);
        let pool = open_disks(disks(&images)).await.unwrap();
        let before = contents(&pool).await;
        assert_eq!((&before.errors[..], before.right.len() > 500), (&[][..], true), "{name}");
        let used: Vec<Vec<usize>> = images.iter().map(|image| used(image)).collect();
        let images: Vec<Arc<Vec<u8>>> = images.into_iter().map(Arc::new).collect();
        pristine.push((name, images, used, pool.uberblock().txg, before));
    }
    for (round, seed) in seeds().into_iter().enumerate().skip(first).step_by(2) {
        let (name, images, used, txg, before) = &pristine[(seed % pristine.len() as u64) as usize];
        println!("round {round}: {name}, MILLPOND_SEED={seed:#x}");
        let disks = flip(images, used, &mut Random(seed));
        let work = async {
            match open_disks(disks).await {
                Ok(pool) => {
                    let after = contents(&pool).await;
                    for (at, sum) in &after.right {
                        let same = before.right.get(at) == Some(sum) || pool.uberblock().txg != *txg;
                        assert!(same, "block {at} has other bytes");
                    }
                    wrong += after.errors.len();
                    healed += usize::from(after.errors.is_empty());
                    let progress = Arc::new(Progress::default());
                    let report = verify(&pool, &progress).await;
                    assert_eq!(report.is_intact(), after.errors.is_empty(), "{:?}", report.problems.first());
                }
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    let is_about_labels = !matches!(error, ImportError::Metadata { .. });
                    assert!(text.contains("block <") || is_about_labels, "{text}");
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(120), work).await.expect("it ends");
    }
    println!("{wrong} blocks refused, {refused} pools refused, {healed} pools read whole");
    assert!(wrong + refused > 0 || std::env::var_os("MILLPOND_SEED").is_some(), "the damage was never met");
}

#[tokio::test]
async fn a_device_that_refuses_is_counted_and_worked_around() {
    let fixture = fixtures::pool("raidz2x6");
    let images = images(&fixture.dir);
    let (before, _) = read_all(&images).await;
    let mut devices = disks(&images);
    devices[3] = Arc::new(Refusing(MemDisk::from_bytes(&images[3])));
    let pool = open_disks(devices).await.unwrap();
    let after = walk(&pool).await;
    assert_eq!((after.errors.len(), after.digest), (0, before.digest));
    let tree = pool.tree();
    let leaves = tree.leaves();
    let guilty: BTreeSet<usize> =
        leaves.iter().enumerate().filter(|(_, leaf)| leaf.counters.get().read > 0).map(|(i, _)| i).collect();
    assert_eq!(guilty, BTreeSet::from([3]));
    assert!(leaves.iter().all(|leaf| leaf.counters.get().checksum == 0));
}

/// Answers for its labels and for nothing else.
#[derive(Debug)]
struct Refusing(MemDisk);

impl Disk for Refusing {
    fn info(&self) -> disk::DiskInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: disk::IoBuf) -> disk::DiskFuture<'_, disk::IoBuf> {
        if (4 << 20..self.0.info().size - (512 << 10)).contains(&offset) {
            return Box::pin(async { Err(std::io::Error::other("medium error")) });
        }
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: bytes::Bytes) -> disk::DiskFuture<'_, ()> {
        self.0.write(offset, data)
    }
    fn write_through(&self, offset: u64, data: bytes::Bytes) -> disk::DiskFuture<'_, ()> {
        self.0.write_through(offset, data)
    }
    fn flush(&self) -> disk::DiskFuture<'_, ()> {
        self.0.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> disk::DiskFuture<'_, ()> {
        self.0.trim(offset, len)
    }
}
