//! Every order of a few operations, in a world so small that all of them can be tried.
//!
//! One volume of two blocks. Letters: write a block, punch it, snapshot, clone the newest snapshot and write to
//! the clone, destroy the newest clone or snapshot, roll back, sync; and a gate that holds every device write, so
//! that whatever follows happens while a transaction group is being synced. All words over that alphabet up to a
//! length are played; contents of everything are compared with a twin, and the pool is verified block by block.
//! `MILLPOND_WORD=whtgsw` plays one word; `MILLPOND_DEPTH=6` all up to that length (`make sim`).

use std::sync::Arc;

use crate::support::{self, POOL, World, content, data, quiet};
use block::{BlockVolume, Durability};
use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf, MemDisk};
use engine::{
    dsl::{self, OpError, Properties},
    engine::Engine,
};
use tokio::{sync::watch, task::JoinHandle};

const BLOCK: usize = 4096;
const LETTERS: &[u8] = b"whscfrtg";

/// Holds writes and flushes while it is closed.
#[derive(Debug)]
struct Gate {
    inner: Arc<MemDisk>,
    open: watch::Receiver<bool>,
}

impl Gate {
    async fn pass(&self) {
        let mut open = self.open.clone();
        drop(open.wait_for(|open| *open).await);
    }
}

impl Disk for Gate {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.pass().await;
            self.inner.write(offset, data).await
        })
    }
    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.pass().await;
            self.inner.write_through(offset, data).await
        })
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.pass().await;
            self.inner.flush().await
        })
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.inner.trim(offset, len)
    }
}

/// What a command, once it ran, does to the twin.
enum Command {
    Snapshot(String),
    Clone(String, String),
    DestroyClone(String),
    DestroySnapshot(String),
    Rollback(String),
}

/// One dataset of the twin.
#[derive(Clone)]
struct Copy {
    name: String,
    bytes: Vec<u8>,
    /// Snapshot it was cloned from.
    origin: Option<String>,
}

struct Play {
    engine: Arc<Engine>,
    gate: watch::Sender<bool>,
    syncing: Option<JoinHandle<()>>,
    queued: Vec<(Command, JoinHandle<Result<(), OpError>>)>,
    volume: Vec<u8>,
    snapshots: Vec<Copy>,
    clones: Vec<Copy>,
    counter: u8,
}

impl Play {
    async fn letter(&mut self, letter: u8) {
        self.counter += 1;
        let name = format!("{POOL}/v");
        match letter {
            b'w' => {
                let offset = usize::from(self.counter % 2) * BLOCK;
                let bytes: Vec<u8> =
                    (0..BLOCK).map(|i| (i as u8).wrapping_mul(self.counter) ^ (i >> 4) as u8).collect();
                self.volume[offset..offset + BLOCK].copy_from_slice(&bytes);
                let volume = self.engine.volume(&name).await.unwrap();
                volume.write(offset as u64, data(bytes), Durability::Cached).await.unwrap();
            }
            b'h' => {
                self.volume[..BLOCK].fill(0);
                let volume = self.engine.volume(&name).await.unwrap();
                volume.unmap(0, BLOCK as u64, Durability::Cached).await.unwrap();
            }
            b's' => {
                let snapshot = format!("{name}@{}", self.counter);
                let names = vec![snapshot.clone()];
                self.command(Command::Snapshot(snapshot), true, move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                })
                .await;
            }
            b'c' => {
                let Some(snapshot) = self.snapshots.last().map(|copy| copy.name.clone()) else { return };
                if self.queued.iter().any(|(c, _)| matches!(c, Command::DestroySnapshot(_))) {
                    return;
                }
                let clone = format!("{POOL}/c{}", self.counter);
                let (from, to) = (snapshot.clone(), clone.clone());
                self.command(Command::Clone(snapshot, clone), false, move |cx| {
                    Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await })
                })
                .await;
            }
            b'f' => self.free().await,
            b'r' => {
                let Some(snapshot) = self.snapshots.last().map(|copy| copy.name.clone()) else { return };
                let queued = self
                    .queued
                    .iter()
                    .any(|(c, _)| matches!(c, Command::Snapshot(_) | Command::DestroySnapshot(_)));
                if queued {
                    return;
                }
                let to = snapshot.clone();
                self.command(Command::Rollback(snapshot), false, move |cx| {
                    Box::pin(async move { dsl::rollback(cx, &to).await })
                })
                .await;
            }
            b't' => {
                self.open_gate().await;
                self.engine.sync().await.unwrap();
            }
            b'g' if self.syncing.is_some() => self.open_gate().await,
            b'g' => {
                self.gate.send_replace(false);
                let engine = Arc::clone(&self.engine);
                self.syncing = Some(tokio::spawn(async move { engine.sync().await.unwrap() }));
                // Let it run into the gate.
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
            }
            other => panic!("no letter {}", char::from(other)),
        }
    }

    /// Destroys the newest clone, else the newest snapshot.
    async fn free(&mut self) {
        if !self.queued.is_empty() {
            return;
        }
        if let Some(clone) = self.clones.last().map(|copy| copy.name.clone()) {
            let name = clone.clone();
            self.command(Command::DestroyClone(clone), false, move |cx| {
                Box::pin(async move { dsl::destroy_head(cx, &name).await })
            })
            .await;
        } else if let Some(snapshot) = self.snapshots.last().map(|copy| copy.name.clone()) {
            let names = vec![snapshot.clone()];
            self.command(Command::DestroySnapshot(snapshot), false, move |cx| {
                Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
            })
            .await;
        }
    }

    async fn command<F>(&mut self, command: Command, is_snapshot: bool, op: F)
    where
        F: for<'a> FnOnce(&'a mut engine::sync::Syncer) -> engine::engine::OpFuture<'a, ()>
            + Clone
            + Send
            + 'static,
    {
        let engine = Arc::clone(&self.engine);
        let running = tokio::spawn(async move { support::run(&engine, is_snapshot, op).await });
        tokio::task::yield_now().await;
        self.queued.push((command, running));
        if self.syncing.is_none() {
            self.settle().await;
        }
    }

    async fn open_gate(&mut self) {
        if let Some(syncing) = self.syncing.take() {
            self.gate.send_replace(true);
            syncing.await.unwrap();
            self.settle().await;
        }
    }

    /// Waits for the commands under way and does the same to the twin.
    async fn settle(&mut self) {
        for (command, running) in std::mem::take(&mut self.queued) {
            running.await.unwrap().unwrap();
            match command {
                Command::Snapshot(name) => {
                    self.snapshots.push(Copy { name, bytes: self.volume.clone(), origin: None });
                }
                Command::Clone(snapshot, name) => {
                    let mut bytes =
                        self.snapshots.iter().find(|copy| copy.name == snapshot).unwrap().bytes.clone();
                    // The clone's own content, so that sharing ends.
                    bytes[..BLOCK].fill(self.counter);
                    let volume = self.engine.volume(&name).await.unwrap();
                    volume.write(0, data(vec![self.counter; BLOCK]), Durability::Cached).await.unwrap();
                    self.clones.push(Copy { name, bytes, origin: Some(snapshot) });
                }
                Command::DestroyClone(name) => self.clones.retain(|copy| copy.name != name),
                Command::DestroySnapshot(name) => self.snapshots.retain(|copy| copy.name != name),
                Command::Rollback(name) => {
                    self.volume = self.snapshots.iter().find(|copy| copy.name == name).unwrap().bytes.clone();
                }
            }
        }
    }
}

async fn play(template: &World, word: &[u8]) {
    let world = template.fork();
    let (gate, open) = watch::channel(true);
    let wrap = |media: Arc<MemDisk>| Arc::new(Gate { inner: media, open: open.clone() }) as Arc<dyn Disk>;
    let engine = world.open_over(wrap, quiet()).await;
    let mut play = Play {
        engine,
        gate,
        syncing: None,
        queued: Vec::new(),
        volume: vec![0; 2 * BLOCK],
        snapshots: Vec::new(),
        clones: Vec::new(),
        counter: 0,
    };
    for letter in word {
        play.letter(*letter).await;
    }
    play.open_gate().await;
    play.engine.sync().await.unwrap();
    let volume = play.engine.volume(&format!("{POOL}/v")).await.unwrap();
    assert!(content(&*volume).await == play.volume, "the volume");
    for copy in &play.clones {
        let volume = play.engine.volume(&copy.name).await.unwrap();
        assert!(content(&*volume).await == copy.bytes, "{} of {:?}", copy.name, copy.origin);
    }
    let view = play.engine.view();
    for copy in &play.snapshots {
        let volume = view.open_volume(&copy.name).await.unwrap();
        assert!(content(&*volume).await == copy.bytes, "{}", copy.name);
    }
    play.engine.end(engine::engine::Ending::Export).await.unwrap();
    world.verify("at the end").await;
}

fn words(depth: usize) -> impl Iterator<Item = Vec<u8>> {
    let count = LETTERS.len().pow(depth as u32);
    (0..count).map(move |mut number| {
        let mut word = Vec::with_capacity(depth);
        for _ in 0..depth {
            word.push(LETTERS[number % LETTERS.len()]);
            number /= LETTERS.len();
        }
        word
    })
}

#[tokio::test(start_paused = true)]
async fn every_order_of_a_few_operations_keeps_every_copy() {
    let (world, running) = World::create("d0", 12, 64 << 20, 1).await;
    drop(running.volume(&format!("{POOL}/v"), 2 * BLOCK as u64, BLOCK as u32, Properties::new()).await);
    running.export().await;
    let chosen = std::env::var("MILLPOND_WORD").ok();
    let depth = support::number("MILLPOND_DEPTH").map_or(4, |depth| depth as usize);
    let all: Box<dyn Iterator<Item = Vec<u8>>> = match chosen {
        Some(word) => Box::new(std::iter::once(word.into_bytes())),
        None => Box::new(words(depth)),
    };
    let mut played = 0_u64;
    for word in all {
        let outcome =
            futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(play(&world, &word))).await;
        if let Err(panic) = outcome {
            eprintln!("MILLPOND_WORD={}", String::from_utf8_lossy(&word));
            std::panic::resume_unwind(panic);
        }
        played += 1;
    }
    println!("{played} orders of operations");
}
