//! Small histories as words: each letter is something that clients, an administrator or a device do.
//!
//! ```text
//!   volume v (4 KiB blocks)   w s m  cached: a block, a part of one, parts of three     u  unmap
//!                             F S M  the same, stable     z  zeroes, stable     l  flush
//!   volume b (8 KiB blocks)   k  cached, a part of a block     K  a block, stable     L  flush
//!                             y  its `sync` property changes
//!   volume w (64 KiB blocks)  i  a block, stable   j  a part of one, stable   o  its `logbias` changes
//!   all                       2  three stable writes at once   t  sync
//!   administrator             p  snapshot v   r  roll back   c  clone and write to the clone   d  destroy
//!   devices                   g  a sync begins and is held, or goes on   h  the same, held half way
//!                             x  the log device refuses writes   v  it vanishes
//! ```
//!
//! While a sync is held, nobody waits for what cannot be answered: it is asked for, and its answer noted whenever
//! it comes. So log writes happen in the middle of a transaction group, and commands wait beside them.

use std::sync::Arc;

use block::{Asked, BlockVolume, Durability, VolumeError};
use engine::{
    dsl::{self, OpError, Properties},
    engine::{Ending, Engine, OpFuture},
    sync::Syncer,
    volume::LiveVolume,
};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{
    recorder::{Health, Recording, SECTOR, Tape},
    twin::{Span, Sync, Twin, sectors},
};
use crate::support::{POOL, World, content, data, noise, quiet, start_on};

/// All letters; the last two need a log device.
pub const LETTERS: &[u8] = b"wsmuFSMzlkKLy2ijotprcdghxv";
/// Letters about devices that fail.
pub const FAILURES: usize = 2;

const V_BLOCK: u64 = 4096;
const B_BLOCK: u64 = 8192;
const V_BYTES: u64 = 4 * V_BLOCK;
const B_BYTES: u64 = 2 * B_BLOCK;
const W_BLOCK: u64 = 64 << 10;
const W_BYTES: u64 = 2 * W_BLOCK;

const STABLE: Durability = Durability::Stable(Asked::Fua);

/// What devices a pool is made of, and which of them are its log.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub name: &'static str,
    pub words: &'static str,
    /// Number of the log device that fails.
    pub log: Option<usize>,
    /// Devices without which it must do, one at a time.
    pub spare: &'static [usize],
    /// How volume b treats what must be durable.
    pub sync: Sync,
}

/// A history that was played.
pub struct History {
    pub recording: Recording,
    pub media: Vec<Arc<disk::MemDisk>>,
    pub twin: Twin,
}

fn number(name: &str, value: u64) -> Properties {
    Properties::from([(name.to_owned(), dsl::Stored::Number(value))])
}

fn sync_property(sync: Sync) -> Properties {
    let value = match sync {
        Sync::Standard => 0,
        Sync::Always => 1,
        Sync::Disabled => 2,
    };
    number("sync", value)
}

/// A pool with three volumes, exported: where all histories of a layout begin.
pub async fn template(layout: &Layout) -> World {
    let (world, running) = World::create(layout.words, 12, 64 << 20, 1).await;
    let properties = sync_property(layout.sync);
    drop(running.volume(&format!("{POOL}/v"), V_BYTES, V_BLOCK as u32, Properties::new()).await);
    drop(running.volume(&format!("{POOL}/b"), B_BYTES, B_BLOCK as u32, properties).await);
    drop(running.volume(&format!("{POOL}/w"), W_BYTES, W_BLOCK as u32, Properties::new()).await);
    running.export().await;
    world
}

/// A range of a volume and what it holds afterwards.
#[derive(Clone, Copy)]
struct Change {
    offset: u64,
    len: u64,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Write,
    Zero,
    Unmap,
}

/// A volume that is written to.
#[derive(Clone)]
struct Target {
    live: Arc<LiveVolume>,
    number: usize,
    block: u64,
}

/// What tasks share.
struct Shared {
    engine: Arc<Engine>,
    tape: Arc<Tape>,
    twin: Mutex<Twin>,
    snapshots: Mutex<Vec<String>>,
    clones: Mutex<Vec<String>>,
}

struct Player {
    shared: Arc<Shared>,
    layout: Layout,
    v: Target,
    b: Target,
    w: Target,
    throughput: bool,
    held: bool,
    under_way: Vec<JoinHandle<()>>,
    command: Option<JoinHandle<()>>,
    counter: u64,
}

/// Plays a word. A word that begins with `^` begins after a few stable writes and a sync.
pub async fn play(template: &World, layout: &Layout, word: &[u8], seed: u64) -> History {
    let world = template.fork();
    let tape = Tape::new(world.media.len(), Some(seed));
    let engine = start_on(tape.disks(&world.media), 1, quiet()).await.unwrap();
    let mut twin = Twin::default();
    let mut target = async |name: &str, block: u64, sync: Sync| {
        let name = format!("{POOL}/{name}");
        let live = engine.volume(&name).await.unwrap();
        let base = sectors(&content(&*live).await);
        let number = twin.volume(&name, block, sync, base, Span { issued: 0, done: Some(0) });
        Target { live, number, block }
    };
    let v = target("v", V_BLOCK, Sync::Standard).await;
    let b = target("b", B_BLOCK, layout.sync).await;
    let w = target("w", W_BLOCK, Sync::Standard).await;
    engine.sync().await.unwrap();
    let warm = word.first() == Some(&b'^');
    if warm {
        for target in [&v, &b, &w] {
            for _ in 0..2 {
                let zeroes = data(vec![0; SECTOR as usize]);
                target.live.write(0, zeroes, STABLE).await.unwrap();
            }
        }
    }
    let media = world.media.iter().map(|disk| Arc::new(disk.fork())).collect();
    tape.start();
    let shared = Arc::new(Shared {
        engine,
        tape,
        twin: Mutex::new(twin),
        snapshots: Mutex::default(),
        clones: Mutex::default(),
    });
    let mut player = Player {
        shared: Arc::clone(&shared),
        layout: *layout,
        v,
        b,
        w,
        throughput: false,
        held: false,
        under_way: Vec::new(),
        command: None,
        counter: 0,
    };
    for letter in &word[usize::from(warm)..] {
        player.letter(*letter).await;
    }
    player.let_go().await;
    let recording = shared.tape.stop();
    shared.engine.end(Ending::Close).await.unwrap();
    let mut twin = shared.twin.lock().clone();
    twin.settle();
    History { recording, media, twin }
}

impl Player {
    async fn letter(&mut self, letter: u8) {
        self.counter += 1;
        let (v, b) = (self.v.clone(), self.b.clone());
        let turn = self.counter % 2;
        let write = |offset, len| Change { offset, len, how: How::Write };
        let whole = write(turn * V_BLOCK, V_BLOCK);
        let part = write(turn * V_BLOCK + (1 + self.counter % 3) * SECTOR, 2 * SECTOR);
        let several = write(V_BLOCK / 2, 2 * V_BLOCK);
        match letter {
            b'w' => self.change(&v, whole, Durability::Cached).await,
            b's' => self.change(&v, part, Durability::Cached).await,
            b'm' => self.change(&v, several, Durability::Cached).await,
            b'u' => self.change(&v, Change { how: How::Unmap, ..several }, Durability::Cached).await,
            b'F' => self.change(&v, whole, STABLE).await,
            b'S' => self.change(&v, part, STABLE).await,
            b'M' => self.change(&v, several, STABLE).await,
            b'z' => {
                let zero = Change { offset: 2 * SECTOR, len: V_BLOCK + 2 * SECTOR, how: How::Zero };
                self.change(&v, zero, STABLE).await;
            }
            b'l' => self.flush(&v).await,
            b'k' => self.change(&b, write(turn * B_BLOCK + 3 * SECTOR, 7 * SECTOR), Durability::Cached).await,
            b'K' => self.change(&b, write(turn * B_BLOCK, B_BLOCK), STABLE).await,
            b'L' => self.flush(&b).await,
            b'i' => {
                let w = self.w.clone();
                self.change(&w, write(turn * W_BLOCK, W_BLOCK), STABLE).await;
            }
            b'j' => {
                let w = self.w.clone();
                self.change(&w, write(turn * W_BLOCK + 8 * SECTOR, 16 * SECTOR), STABLE).await;
            }
            b'o' => {
                self.throughput = !self.throughput;
                self.set("w", number("logbias", u64::from(self.throughput))).await;
            }
            b'y' if !self.held => {
                let next = match self.shared.twin.lock().sync(b.number) {
                    Sync::Standard => Sync::Always,
                    Sync::Always => Sync::Disabled,
                    Sync::Disabled => Sync::Standard,
                };
                self.set("b", sync_property(next)).await;
                self.shared.twin.lock().set_sync(b.number, next);
            }
            // What is asked for while that changes may be treated either way.
            b'y' => {}
            b'2' => {
                self.spawn_change(&v, whole, STABLE);
                self.spawn_change(&b, write(0, B_BLOCK), STABLE);
                self.spawn_change(&v, write(3 * V_BLOCK, V_BLOCK), STABLE);
                self.answers().await;
            }
            b't' => {
                self.let_go().await;
                self.shared.sync().await;
            }
            b'p' => self.snapshot().await,
            b'r' => self.roll_back().await,
            b'c' => self.clone_newest().await,
            b'd' => self.destroy().await,
            b'g' | b'h' if self.held => self.let_go().await,
            b'g' | b'h' => {
                let allowance = if letter == b'g' { 0 } else { 1 + (self.counter % 5) as u32 * 2 };
                self.shared.tape.close(allowance);
                self.held = true;
                let shared = Arc::clone(&self.shared);
                self.under_way.push(tokio::spawn(async move { shared.sync().await }));
                settle().await;
            }
            b'x' | b'v' => {
                let health = if letter == b'x' { Health::RefusesWrites } else { Health::Gone };
                if let Some(log) = self.layout.log {
                    self.shared.tape.set_health(log, health);
                }
            }
            other => panic!("no letter {}", char::from(other)),
        }
    }

    /// Waits for answers, or for as long as they can come while a sync is held.
    async fn answers(&mut self) {
        if self.held {
            settle().await;
        } else {
            for task in self.under_way.drain(..).chain(self.command.take()) {
                task.await.unwrap();
            }
        }
    }

    async fn let_go(&mut self) {
        self.held = false;
        self.shared.tape.open();
        self.answers().await;
    }

    fn spawn_change(&mut self, target: &Target, change: Change, durability: Durability) {
        let (shared, target, counter) = (Arc::clone(&self.shared), target.clone(), self.counter);
        self.under_way.push(tokio::spawn(async move {
            shared.change(&target, change, counter, durability).await;
        }));
    }

    async fn change(&mut self, target: &Target, change: Change, durability: Durability) {
        self.spawn_change(target, change, durability);
        self.answers().await;
    }

    async fn flush(&mut self, target: &Target) {
        let (shared, target) = (Arc::clone(&self.shared), target.clone());
        self.under_way.push(tokio::spawn(async move {
            let issued = shared.tape.mark();
            target.live.flush().await.unwrap();
            shared.twin.lock().barrier(Some(target.number), issued, shared.tape.mark());
        }));
        self.answers().await;
    }

    /// One command at a time: what two of them do together is not this test's question.
    async fn command(&mut self, command: impl Future<Output = ()> + Send + 'static) {
        self.command = Some(tokio::spawn(command));
        self.answers().await;
    }

    fn is_busy(&self) -> bool {
        self.command.as_ref().is_some_and(|command| !command.is_finished())
    }

    async fn set(&mut self, volume: &str, properties: Properties) {
        if self.is_busy() {
            return;
        }
        let (shared, name) = (Arc::clone(&self.shared), format!("{POOL}/{volume}"));
        self.command(async move {
            shared.run(move |cx| Box::pin(async move { dsl::set(cx, &name, &properties).await })).await;
        })
        .await;
    }

    async fn snapshot(&mut self) {
        if self.is_busy() {
            return;
        }
        let name = format!("{POOL}/v@{}", self.counter);
        let (shared, number) = (Arc::clone(&self.shared), self.v.number);
        self.command(async move {
            let names = vec![name.clone()];
            let span = shared
                .run_snapshot(move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                })
                .await;
            let frozen = shared.engine.view().open_volume(&name).await.unwrap();
            let found = sectors(&content(&*frozen).await);
            shared.twin.lock().snapshot(&name, number, found, span).unwrap();
            shared.snapshots.lock().push(name);
        })
        .await;
    }

    async fn roll_back(&mut self) {
        let Some(snapshot) = self.shared.snapshots.lock().last().cloned() else { return };
        if self.is_busy() {
            return;
        }
        let (shared, number) = (Arc::clone(&self.shared), self.v.number);
        self.command(async move {
            {
                let mut twin = shared.twin.lock();
                let base = twin.content(&snapshot);
                twin.roll_back(number, base, shared.tape.mark());
            }
            let name = snapshot;
            shared.run(move |cx| Box::pin(async move { dsl::rollback(cx, &name).await })).await;
            shared.twin.lock().rolled_back(number, shared.tape.mark());
        })
        .await;
    }

    async fn clone_newest(&mut self) {
        let Some(snapshot) = self.shared.snapshots.lock().last().cloned() else { return };
        if self.is_busy() {
            return;
        }
        let (shared, counter) = (Arc::clone(&self.shared), self.counter);
        self.command(async move {
            let name = format!("{POOL}/c{counter}");
            let number = {
                let mut twin = shared.twin.lock();
                let base = twin.content(&snapshot);
                let span = Span { issued: shared.tape.mark(), done: None };
                twin.volume(&name, V_BLOCK, Sync::Standard, base, span)
            };
            let (from, to) = (snapshot.clone(), name.clone());
            let span = shared
                .run(move |cx| {
                    Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await })
                })
                .await;
            shared.twin.lock().created(number, span.done.unwrap_or(usize::MAX));
            shared.clones.lock().push(name.clone());
            let live = shared.engine.volume(&name).await.unwrap();
            let target = Target { live, number, block: V_BLOCK };
            let first = Change { offset: 0, len: V_BLOCK, how: How::Write };
            shared.change(&target, first, counter, STABLE).await;
        })
        .await;
    }

    /// The newest clone, else the newest snapshot.
    async fn destroy(&mut self) {
        if self.is_busy() {
            return;
        }
        let clone = self.shared.clones.lock().pop();
        let is_clone = clone.is_some();
        let Some(name) = clone.or_else(|| self.shared.snapshots.lock().pop()) else { return };
        let shared = Arc::clone(&self.shared);
        self.command(async move {
            let issued = shared.tape.mark();
            shared.twin.lock().destroyed(&name, Span { issued, done: None });
            let victim = name.clone();
            let span = shared
                .run(move |cx| {
                    Box::pin(async move {
                        match is_clone {
                            true => dsl::destroy_head(cx, &victim).await,
                            false => dsl::destroy_snapshots(cx, &[victim], false).await,
                        }
                    })
                })
                .await;
            shared.twin.lock().destroyed(&name, Span { issued, ..span });
        })
        .await;
    }
}

impl Shared {
    async fn change(&self, target: &Target, change: Change, counter: u64, durability: Durability) {
        let Change { offset, len, how } = change;
        let bytes = match how {
            How::Write => noise(counter << 8 | target.number as u64, len),
            How::Zero | How::Unmap => vec![0; len as usize],
        };
        let result: Result<(), VolumeError> = match how {
            How::Write => {
                let op = self.issue(target, offset, &bytes, durability);
                let result = target.live.write(offset, data(bytes), durability).await;
                self.acknowledge(op, result)
            }
            How::Zero => {
                let op = self.issue(target, offset, &bytes, durability);
                let result = target.live.write_zeroes(offset, len, false, durability).await;
                self.acknowledge(op, result)
            }
            How::Unmap => {
                // Parts of blocks keep their content.
                let whole =
                    offset.next_multiple_of(target.block)..(offset + len) / target.block * target.block;
                let freed = &bytes[..(whole.end - whole.start) as usize];
                let op = self.issue(target, whole.start, freed, durability);
                let result = target.live.unmap(offset, len, durability).await;
                self.acknowledge(op, result)
            }
        };
        result.unwrap();
    }

    fn issue(&self, target: &Target, offset: u64, bytes: &[u8], durability: Durability) -> usize {
        let stable = durability != Durability::Cached;
        self.twin.lock().issue(target.number, offset, sectors(bytes), stable, self.tape.mark())
    }

    fn acknowledge(&self, op: usize, result: Result<(), VolumeError>) -> Result<(), VolumeError> {
        if result.is_ok() {
            self.twin.lock().acknowledge(op, self.tape.mark());
        }
        result
    }

    async fn sync(&self) {
        let issued = self.tape.mark();
        self.engine.sync().await.unwrap();
        self.twin.lock().barrier(None, issued, self.tape.mark());
    }

    async fn run<F>(&self, op: F) -> Span
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.ordered(self.engine.run(op)).await
    }

    async fn run_snapshot<F>(&self, op: F) -> Span
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.ordered(self.engine.run_snapshot(op)).await
    }

    /// Runs a command, which comes after everything acknowledged before.
    async fn ordered(&self, command: impl Future<Output = Result<(), OpError>>) -> Span {
        let issued = self.tape.mark();
        command.await.unwrap();
        let done = self.tape.mark();
        self.twin.lock().barrier(None, issued, done);
        Span { issued, done: Some(done) }
    }
}

/// Lets everybody get as far as possible while a sync is held.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
}
