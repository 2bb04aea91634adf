//! How fast scans are on devices that take their time, on pools that have aged: random overwrites, snapshots that came
//! and went. Devices are models and the clock is virtual, so that the numbers are those of the code.
//!
//! The yardstick is a pass over everything that is allocated, sorted by offset, in the same model: what nobody beats who
//! reads no more than he has to, and what no scan reaches that has to find its blocks first.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::BlockVolume;
use disk::{Disk, IoBuf, ModelDisk, Profile};
use engine::{engine::Engine, events::ScanKind, scan::ScanCommand, volume::LiveVolume};
use futures_util::future::join_all;
use ondisk::label::DATA_OFFSET;
use pool::{
    Pool,
    traverse::{Scopes, expand},
    vdev::Kind,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::{
    scans::{MIB, close, open_without, over, scribble},
    support::{POOL, World, as_disks, data, noise, plain, quiet, reads::Counting, start_caching, start_on},
};

const BLOCK: usize = 16384;
const VOLUME: u64 = 96 * MIB;
/// Longest transfer of the yardstick, and how many are queued.
const TRANSFER: u64 = 1 << 20;
const DEPTH: usize = 4;

/// A pool that was written to for a long time. With `away`, those disks missed all of it.
async fn aged(layout: &str, away: &[usize]) -> World {
    let (world, running) = World::create(layout, 12, 320 << 20, 11).await;
    let name = format!("{POOL}/v");
    drop(running.volume(&name, VOLUME, BLOCK as u32, plain()).await);
    running.export().await;
    let engine = open_without(&world, away, quiet()).await;
    let volume = engine.volume(&name).await.unwrap();
    for number in 0..VOLUME / BLOCK as u64 {
        let bytes = noise(number, BLOCK as u64);
        volume.write(number * BLOCK as u64, data(bytes), block::Durability::Cached).await.unwrap();
    }
    engine.sync().await.unwrap();
    for round in 0..6u64 {
        scribble(&volume, 20 + round, 700, BLOCK).await;
        let (snapshot, old) = (format!("{name}@s{round}"), format!("s{}", round.wrapping_sub(2)));
        let of = name.clone();
        crate::scans::take_snapshot(&engine, snapshot).await;
        if round >= 2 {
            crate::scans::drop_snapshot(&engine, format!("{of}@{old}")).await;
        }
        engine.sync().await.unwrap();
    }
    for _ in 0..6 {
        engine.sync().await.unwrap();
    }
    drop(volume);
    close(engine).await;
    world
}

fn models(world: &World, profile: Profile) -> Vec<Arc<ModelDisk>> {
    let model = |(media, seed)| Arc::new(ModelDisk::new(Arc::clone(media) as Arc<dyn Disk>, profile, seed));
    world.media.iter().zip(1..).map(model).collect()
}

async fn start(disks: &[Arc<ModelDisk>]) -> Arc<Engine> {
    start_on(as_disks(disks), 1, quiet()).await.unwrap()
}

/// Everything that is allocated, on each leaf: by index of the disk, merged.
async fn allocated(pool: &Arc<Pool>, disks: usize) -> Vec<BTreeMap<u64, u64>> {
    let scopes = Scopes::read(pool).await;
    let mut extents: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut stack = scopes.roots();
    while let Some(visit) = stack.pop() {
        for dva in visit.pointer.dvas() {
            extents.insert((dva.vdev, dva.offset), dva.asize);
        }
        if visit.has_children() {
            let content = pool.io().read_block(&visit.pointer, visit.at).await.unwrap();
            stack.extend(expand(&visit, &scopes.all[visit.scope as usize], &content).visits);
        }
    }
    let mut merged: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for ((vdev, offset), len) in extents {
        match merged.last_entry() {
            Some(mut last) if last.key().0 == vdev && last.key().1 + *last.get() == offset => {
                *last.get_mut() += len
            }
            _ => drop(merged.insert((vdev, offset), len)),
        }
    }
    let mut leaves = vec![BTreeMap::new(); disks];
    let tree = pool.tree();
    let number = |leaf: &pool::vdev::Vdev| -> usize {
        leaf.path.as_deref().unwrap().trim_start_matches("/disks/d").parse().unwrap()
    };
    for ((vdev, offset), len) in merged {
        let top = tree.top(vdev.into()).unwrap();
        for leaf in top.leaves() {
            let (from, len) = match &top.kind {
                Kind::Raidz(geometry) => {
                    let width = geometry.children as u64;
                    let from = (offset >> 12) / width;
                    let to = ((offset + len) >> 12).div_ceil(width);
                    (from << 12, (to - from) << 12)
                }
                _ => (offset, len),
            };
            leaves[number(leaf)].insert(DATA_OFFSET + from, len);
        }
    }
    leaves
}

/// How long an offset-sorted pass takes that does no more than that.
async fn yardstick(disks: &[Arc<ModelDisk>], extents: &[BTreeMap<u64, u64>], write: &[usize]) -> Duration {
    let begin = Instant::now();
    join_all(disks.iter().enumerate().map(|(n, disk)| {
        let extents = &extents[n];
        async move {
            let mut pieces = Vec::new();
            for (&from, &len) in extents {
                let mut at = from;
                while at < from + len {
                    let part = TRANSFER.min(from + len - at);
                    pieces.push((at, part));
                    at += part;
                }
            }
            let mut queue = std::collections::VecDeque::new();
            for (at, len) in pieces {
                if queue.len() == DEPTH {
                    let _done: Result<_, _> = Box::pin(queue.pop_front().unwrap()).await;
                }
                let disk = Arc::clone(disk);
                let is_target = write.contains(&n);
                queue.push_back(tokio::spawn(async move {
                    if is_target {
                        let data = disk.read(at, IoBuf::with_len(len as usize));
                        drop(data);
                        disk.write(at, vec![0; len as usize].into()).await.unwrap();
                    } else {
                        disk.read(at, IoBuf::with_len(len as usize)).await.unwrap();
                    }
                }));
            }
            for rest in queue {
                rest.await.unwrap();
            }
        }
    }))
    .await;
    begin.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_idle_scrub_is_nearly_as_fast_as_a_sorted_pass() {
    for layout in ["mirror d0 d1", "raidz d0 d1 d2 d3"] {
        let world = aged(layout, &[]).await;
        let extents = allocated(&world.look().await.unwrap(), world.media.len()).await;
        let bytes: u64 = extents.iter().flat_map(BTreeMap::values).sum();
        let runs: usize = extents.iter().map(BTreeMap::len).sum();
        let pass = yardstick(&models(&world, Profile::hdd_5400()), &extents, &[]).await;
        let engine = start(&models(&world, Profile::hdd_5400())).await;
        let begin = Instant::now();
        engine.scan(ScanCommand::Scrub).await.unwrap();
        let done = over(&engine).await;
        let took = begin.elapsed();
        println!(
            "{layout}: {bytes} bytes in {runs} runs: a sorted pass takes {pass:?}, the scrub {took:?}: {done:?}"
        );
        assert_eq!(done.errors, 0, "{layout}");
        let share = pass.as_secs_f64() / took.as_secs_f64();
        assert!(share >= 0.85, "{layout}: {share:.2} of a sorted pass");
        close(engine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_resilver_is_nearly_as_fast_as_a_sorted_pass() {
    for (layout, away) in [("mirror d0 d1", 1), ("raidz d0 d1 d2 d3", 2)] {
        let world = aged(layout, &[away]).await;
        let extents = allocated(&world.look().await.unwrap(), world.media.len()).await;
        // What is on them afterwards is of no interest.
        let pass = yardstick(&models(&world.fork(), Profile::hdd_5400()), &extents, &[away]).await;
        let begin = Instant::now();
        let engine = start(&models(&world, Profile::hdd_5400())).await;
        let opened = begin.elapsed();
        let done = over(&engine).await;
        let took = begin.elapsed() - opened;
        println!(
            "{layout}: a sorted pass takes {pass:?}, the resilver {took:?} (after {opened:?}): {done:?}"
        );
        assert_eq!((done.kind, done.errors), (ScanKind::Resilver, 0), "{layout}");
        let share = pass.as_secs_f64() / took.as_secs_f64();
        assert!(share >= 0.85, "{layout}: {share:.2} of a sorted pass");
        close(engine).await;
        world.verify(layout).await;
    }
}

/// Random reads, one after the other: how long each took.
async fn reader(volume: Arc<LiveVolume>, seed: u64, count: usize) -> Vec<Duration> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut times = Vec::new();
    for _ in 0..count {
        let at = random.random_range(0..VOLUME / BLOCK as u64) * BLOCK as u64;
        let begin = Instant::now();
        volume.read(at, BLOCK).await.unwrap();
        // What comes from memory says nothing about devices.
        if begin.elapsed() > Duration::from_millis(1) {
            times.push(begin.elapsed());
        }
    }
    times
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

#[tokio::test(start_paused = true)]
async fn readers_hardly_notice_a_scrub_and_it_moves_on_all_the_same() {
    for (layout, profile) in
        [("mirror d0 d1", Profile::hdd_5400()), ("raidz d0 d1 d2 d3", Profile::hdd_7200())]
    {
        let world = aged(layout, &[]).await;
        let engine = start(&models(&world, profile)).await;
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        reader(Arc::clone(&volume), 1, 100).await;
        let mut alone = reader(Arc::clone(&volume), 2, 2500).await;
        engine.scan(ScanCommand::Scrub).await.unwrap();
        let begin = Instant::now();
        let mut beside = Vec::new();
        let mut moved = 0;
        // Not all of the way: what is promised is promised while it lasts.
        for round in 0..25 {
            beside.extend(reader(Arc::clone(&volume), 3 + round, 100).await);
            let progress = engine.scan_progress().unwrap();
            if progress.ended.is_some() {
                break;
            }
            moved = progress.issued;
        }
        let rate = moved as f64 / begin.elapsed().as_secs_f64() / MIB as f64;
        let (alone, beside) = (p99(&mut alone), p99(&mut beside));
        println!("{layout}: p99 {alone:?} alone, {beside:?} beside a scrub that reads {rate:.1} MiB/s");
        assert!(beside <= alone * 2, "{layout}: {beside:?} beside a scrub, {alone:?} alone");
        assert!(rate >= 2.0, "{layout}: {rate:.1} MiB/s");
        drop(volume);
        close(engine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_the_end_comes_true() {
    let (mut right, mut said) = (0, 0);
    for (layout, profile) in [
        ("mirror d0 d1", Profile::hdd_5400()),
        ("raidz d0 d1 d2 d3", Profile::hdd_7200()),
        ("mirror d0 d1 mirror d2 d3", Profile::hdd_7200()),
    ] {
        let world = aged(layout, &[]).await;
        // Slower than any disk: a way of minutes through a pool that fits into memory.
        let engine = start(&models(&world, profile.stretched(10))).await;
        let begin = Instant::now();
        engine.scan(ScanCommand::Scrub).await.unwrap();
        let mut ranges = Vec::new();
        loop {
            let progress = engine.scan_progress().unwrap();
            if progress.ended.is_some() {
                break;
            }
            ranges.extend(progress.remaining.map(|range| (begin.elapsed(), range)));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let took = begin.elapsed();
        let is_right = |(at, range): &&(Duration, Range<Duration>)| {
            let left = took - *at;
            range.start <= left && left <= range.end
        };
        let good = ranges.iter().filter(is_right).count();
        println!(
            "{layout}: {took:?}, {good} of {} ranges were right: {:?} … {:?}",
            ranges.len(),
            ranges.first(),
            ranges.last()
        );
        (right, said) = (right + good, said + ranges.len());
        let width = |n: usize| (ranges[n].1.end - ranges[n].1.start).as_secs_f64();
        assert!(ranges.len() >= 6 && width(ranges.len() - 1) < width(0), "{layout}: it narrows");
        close(engine).await;
    }
    assert!(right * 100 >= said * 80, "{right} of {said}");
}

/// All metadata was read again for each bit of data that fitted into the memory of the scan, so that its time grew with the
/// square of the pool.
#[tokio::test(start_paused = true)]
async fn how_often_a_scan_reads_all_pointers_does_not_depend_on_its_memory() {
    for (away, kind) in [(&[][..], ScanKind::Scrub), (&[1], ScanKind::Resilver)] {
        let world = aged("mirror d0 d1", away).await;
        let pool = world.look().await.unwrap();
        let scopes = Scopes::read(&pool).await;
        let (mut places, mut blocks, mut data) = (Vec::new(), 0, 0);
        let mut stack = scopes.roots();
        while let Some(visit) = stack.pop() {
            if visit.pointer.level() == 1 && visit.at.object != 0 {
                blocks += 1;
                let place = |start: u64, len: u64| DATA_OFFSET + start..DATA_OFFSET + start + len;
                places.extend(visit.pointer.dvas().map(|dva| place(dva.offset, dva.asize)));
            }
            data += u64::from(!visit.has_children());
            if visit.has_children() {
                let content = pool.io().read_block(&visit.pointer, visit.at).await.unwrap();
                stack.extend(expand(&visit, &scopes.all[visit.scope as usize], &content).visits);
            }
        }
        drop(pool);
        let reads = Arc::new(AtomicU64::new(0));
        let watched = |media: &Arc<disk::MemDisk>| {
            let places = places.clone();
            Counting::over(Arc::clone(media) as Arc<dyn Disk>, &reads, move |read| {
                places.iter().filter(|place| read.start < place.end && place.start < read.end).count() as u64
            })
        };
        // Nothing that was read is kept.
        let engine = start_caching(world.media.iter().map(watched).collect(), 1, quiet(), 0).await.unwrap();
        engine.set_scan_memory(0);
        if kind == ScanKind::Scrub {
            engine.scan(ScanCommand::Scrub).await.unwrap();
        }
        let done = over(&engine).await;
        assert_eq!((done.kind, done.errors), (kind, 0));
        let reads = reads.load(Relaxed);
        println!("{kind:?}: {reads} reads of {blocks} blocks of pointers to {data} blocks");
        // Sixteen had room at a time.
        assert!(data / 16 > 300, "{data}");
        assert!(reads < blocks * 80, "{kind:?}: {reads} reads of {blocks} blocks");
        engine.sync().await.unwrap();
        close(engine).await;
        world.verify("after it").await;
    }
}
