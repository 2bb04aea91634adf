//! What a drill does, act by act: what is done to disks, to the power, to the pool, and what a person does who helps.
//!
//! What is waited for may not come: that is told, and the next act follows. A command that fails, and a power cut after which
//! there is no pool, end the script.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use block::{BlockVolume as _, Durability, Segment, VolumeError};
use engine::{dsl, engine::Engine, scan::ScanCommand};
use rand::Rng as _;
use tokio::time::{Instant, sleep, timeout};

use super::{COMMAND, Stage, cannot_open};
use crate::{LabError, machine::Bay, report::time, script::Act, watch::is_whole};

/// After this long of waiting for a pool to become whole a person helps.
const HELP_AFTER: Duration = Duration::from_secs(60);

impl Stage {
    pub(super) async fn play(&mut self, script: &[Act]) -> Result<(), LabError> {
        for act in script {
            let before = self.progress.done.load(Relaxed);
            let estimate = act.estimate();
            if act.is_trouble() {
                self.load.in_trouble.store(true, Relaxed);
                let mut seen = self.watch.lock();
                let now = seen.elapsed();
                seen.trouble.get_or_insert(now);
            }
            Box::pin(self.act(*act, before)).await?;
            self.progress.done.store(before + estimate.as_millis() as u64, Relaxed);
        }
        Ok(())
    }

    async fn act(&mut self, act: Act, before: u64) -> Result<(), LabError> {
        match act {
            Act::Wait(duration) => self.wait(duration.mul_f64(self.pace), before).await,
            Act::Pull(n) => self.on_victim(n, "is pulled out", Bay::pull),
            Act::Return(n) => {
                self.on_victim(n, "is put back", Bay::plug);
                // The system tells the daemon that a device came.
                self.bounded(self.engine()?.look()).await;
            }
            Act::Slow(n, by) => {
                self.on_victim(n, &format!("takes {} longer for every command", time(by)), |bay| {
                    bay.slow(by)
                });
            }
            Act::Corrupt(n, every) => {
                let text =
                    format!("gives wrong bytes in one of {every} reads, and rots in {} places", every * 10);
                self.on_victim(n, &text, |bay| bay.misread(every));
                if let Some(bay) = self.victims.get(n).and_then(|path| self.machine.find(path)) {
                    let hit = bay.rot(every as usize * 10, &mut self.random).await;
                    hit.map_err(|source| LabError::File { path: bay.path.clone(), source })?;
                }
            }
            Act::Lie(n) => self.on_victim(n, "acknowledges flushes and does nothing", Bay::lie),
            Act::AllLie => {
                self.tell("all disks acknowledge flushes and do nothing");
                self.machine.bays.iter().for_each(Bay::lie);
            }
            Act::Heal(n) => self.on_victim(n, "works again", Bay::heal),
            Act::PullLog => self.on_log("dies", Bay::pull),
            Act::ReturnLog => {
                self.on_log("is back", Bay::plug);
                self.bounded(self.engine()?.look()).await;
            }
            Act::PowerCut => self.power_cut().await?,
            Act::UntilWhole(patience) => self.until_whole(patience).await?,
            Act::Scrub(patience) => self.scrub(patience).await?,
            Act::Fill => self.fill().await?,
            Act::MakeRoom => {
                self.tell("what filled the pool is destroyed");
                let name = self.ballast();
                self.command(move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await })).await?;
            }
            Act::Hog(bytes) => {
                self.tell(format!("another program takes {} of memory", pool::status::human(bytes as u64)));
                // Written to, or it would be no more than a promise.
                self.hogged.push(vec![0x5a; bytes]);
            }
        }
        Ok(())
    }

    async fn wait(&self, duration: Duration, before: u64) {
        let start = Instant::now();
        while start.elapsed() < duration {
            sleep((duration - start.elapsed()).min(Duration::from_millis(200))).await;
            let done = start.elapsed().as_millis() as f64 / self.pace;
            self.progress.done.store(before + done as u64, Relaxed);
        }
    }

    fn on_victim(&mut self, n: usize, what: &str, act: impl FnOnce(&Bay)) {
        match self.victims.get(n).and_then(|path| self.machine.find(path)) {
            Some(bay) => {
                self.tell(format!("{} {what}", bay.path));
                self.watch.lock().hurt.insert(bay.path.clone());
                act(bay);
            }
            None => self.skipped.push(format!("redundancy does not bear that disk {} {what}", n + 1)),
        }
    }

    pub(super) fn log(&self) -> Option<&Bay> {
        self.logs.first().and_then(|path| self.machine.find(path))
    }

    fn on_log(&self, what: &str, act: impl FnOnce(&Bay)) {
        // What needs one does not begin without.
        let Some(bay) = self.log() else { return };
        self.tell(format!("log device {} {what}", bay.path));
        self.watch.lock().hurt.insert(bay.path.clone());
        act(bay);
    }

    /// A command that is not to hang, and if it does is part of the story.
    pub(super) async fn bounded<T>(&self, command: impl Future<Output = T>) -> Option<T> {
        let result = timeout(COMMAND, command).await.ok();
        if result.is_none() {
            self.tell("a command hangs");
        }
        result
    }

    async fn power_cut(&mut self) -> Result<(), LabError> {
        self.tell("the power goes");
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        if let Some(clients) = self.clients.take() {
            self.load.cut(clients);
        }
        let cut = self.machine.power_cut().await;
        cut.map_err(|source| LabError::File { path: self.pool.clone(), source })?;
        if let Some(engine) = self.engine.take() {
            // It finds its disks gone for good.
            self.bounded(engine.abandon()).await;
        }
        tokio::task::yield_now().await;
        match self.open().await {
            Ok(engine) => self.engine = Some(engine),
            Err(error) => {
                self.lost += self.load.written();
                self.tell(error.to_string());
                return Err(error);
            }
        }
        let volume = match self.volume().await {
            Ok(volume) => volume,
            Err(error) => {
                self.lost += self.load.written();
                return Err(error);
            }
        };
        let (lost, undone) = self.load.settle(&*volume).await;
        self.tell(format!("the power is back, the pool is open; {lost} blocks lost"));
        self.lost += lost;
        self.undone = Some(self.undone.unwrap_or(0) + undone);
        self.work().await
    }

    async fn until_whole(&mut self, patience: Duration) -> Result<(), LabError> {
        let patience = patience.mul_f64(self.pace);
        self.waited_for_whole = true;
        let engine = self.engine()?;
        let start = Instant::now();
        let mut helped = start;
        self.progress.now.lock().clone_from(&"until the pool is whole".to_owned());
        while start.elapsed() < patience {
            if is_whole(&engine) {
                let took = start.elapsed();
                self.whole_after = Some(took);
                self.tell(format!("the pool is whole, {} after the last repair", time(took)));
                return Ok(());
            }
            if helped.elapsed() > HELP_AFTER.mul_f64(self.pace)
                && engine.scan_progress().is_none_or(|scan| !scan.running)
            {
                helped = Instant::now();
                if !std::mem::replace(&mut self.by_hand, true) {
                    self.tell("a person types zpool clear and zpool online");
                }
                self.help(&engine).await;
            }
            sleep(Duration::from_millis(500)).await;
        }
        self.whole_after = None;
        self.tell(format!("after {} the pool is not whole yet", time(patience)));
        Ok(())
    }

    /// What a person does with a pool that does not become well by itself.
    async fn help(&self, engine: &Arc<Engine>) {
        self.bounded(engine.clear(None)).await;
        for vdev in engine.view().tree().leaves() {
            let here = vdev.path.as_deref().and_then(|path| self.machine.find(path));
            if let Some(bay) = here.filter(|bay| bay.is_present() && !vdev.is_readable()) {
                self.bounded(engine.online(vdev.guid, Some(bay.device()), false)).await;
            }
        }
    }

    async fn scrub(&mut self, patience: Duration) -> Result<(), LabError> {
        let patience = patience.mul_f64(self.pace);
        let engine = self.engine()?;
        self.tell("a scrub is asked for");
        let start = Instant::now();
        // A resilver that runs comes first.
        loop {
            match self.bounded(engine.scan(ScanCommand::Scrub)).await {
                Some(Ok(())) => break,
                Some(Err(error))
                    if start.elapsed() > patience / 4 || error.to_string() == "not supported" =>
                {
                    self.tell(format!("no scrub: {error}"));
                    return Ok(());
                }
                _ => sleep(Duration::from_secs(2)).await,
            }
        }
        while start.elapsed() < patience {
            sleep(Duration::from_millis(200)).await;
            if let Some(scan) = engine.scan_progress().filter(|scan| scan.ended.is_some()) {
                self.scrub = Some((scan.processed, scan.errors));
                return Ok(());
            }
        }
        self.tell(format!("the scrub is not done after {}", time(patience)));
        Ok(())
    }

    fn ballast(&self) -> String {
        format!("{}/millpond-ballast", self.pool)
    }

    async fn fill(&mut self) -> Result<(), LabError> {
        const PIECE: usize = 256 << 10;
        self.tell("the pool is being filled");
        let name = self.ballast();
        self.create_volume(&name, 1 << 40).await?;
        let ballast = self.engine()?.volume(&name).await.map_err(cannot_open)?;
        let mut piece = vec![0; PIECE];
        for offset in (0..1_u64 << 40).step_by(PIECE) {
            self.random.fill(&mut piece[..]);
            let data = std::iter::once(Segment::Data(piece.clone().into())).collect();
            match timeout(COMMAND, ballast.write(offset, data, Durability::Cached)).await {
                Ok(Ok(())) => {}
                Ok(Err(VolumeError::NoSpace)) => break,
                Ok(Err(error)) => return Err(cannot_open(error)),
                Err(_) => {
                    self.tell("a write hangs");
                    break;
                }
            }
        }
        self.tell("the pool is full");
        Ok(())
    }
}
