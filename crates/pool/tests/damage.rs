//! Damage on purpose: silent corruption within redundancy is read right, any other damage is either
//! harmless or an error that names the block; devices that fail are counted as OpenZFS counts them.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly, its helpers too")]

mod support;

use std::{collections::BTreeSet, os::unix::fs::FileExt, path::Path, sync::Arc};

use disk::{Disk, MemDisk};
use support::{Walk, open_disks, walk};

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

/// Byte ranges of the allocatable space that are in use, as far as non-zero content shows.
fn used(image: &[u8]) -> Vec<usize> {
    let first = 4 << 20;
    (first..image.len() - (512 << 10))
        .step_by(4096)
        .filter(|&at| image[at..at + 4096].iter().any(|&b| b != 0))
        .collect()
}

async fn read_all(images: &[Vec<u8>]) -> (Walk, u64) {
    let pool = open_disks(disks(images)).await.unwrap();
    let walk = walk(&pool).await;
    let counted = pool.tree().leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
    (walk, counted)
}

/// Overwrites pages on `victims` with noise and expects everything to read as before.
async fn survives(fixture: &str, victims: &[usize], share: u64, seed: u64) {
    let Some(fixture) = fixtures::try_pool(fixture) else { return };
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
    let (after, counted) = read_all(&images).await;
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

#[tokio::test]
async fn any_damage_gives_right_bytes_or_an_error_that_names_the_block() {
    let Some(fixture) = fixtures::try_pool("single") else { return };
    let pristine = images(&fixture.dir);
    let (before, _) = read_all(&pristine).await;
    let (mut wrong, mut refused) = (0, 0);
    for seed in 1..=6 {
        let mut images = pristine.clone();
        let mut random = Random(seed);
        let used = used(&images[0]);
        for _ in 0..400 {
            let at = used[random.below(used.len() as u64) as usize] + random.below(4096) as usize;
            images[0][at] ^= 1 << random.below(8);
        }
        match open_disks(disks(&images)).await {
            Ok(pool) => {
                let walk = walk(&pool).await; // it asserts that every error names its block
                wrong += walk.errors.len();
                assert!(walk.blocks <= before.blocks, "seed {seed}");
                if walk.errors.is_empty() {
                    assert_eq!(walk.digest, before.digest, "seed {seed}: other bytes without an error");
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("block <"), "{error}");
            }
        }
    }
    assert!(wrong + refused > 0, "the damage was never met");
}

#[tokio::test]
async fn a_device_that_refuses_is_counted_and_worked_around() {
    let Some(fixture) = fixtures::try_pool("raidz2x6") else { return };
    let images = images(&fixture.dir);
    let (before, _) = read_all(&images).await;
    let mut devices = disks(&images);
    devices[3] = Arc::new(Refusing(MemDisk::from_bytes(&images[3])));
    let pool = open_disks(devices).await.unwrap();
    let after = walk(&pool).await;
    assert_eq!((after.errors.len(), after.digest), (0, before.digest));
    let leaves = pool.tree().leaves();
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
    fn flush(&self) -> disk::DiskFuture<'_, ()> {
        self.0.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> disk::DiskFuture<'_, ()> {
        self.0.trim(offset, len)
    }
}
