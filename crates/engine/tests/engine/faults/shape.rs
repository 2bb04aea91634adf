//! An administrator changes what the pool consists of, while things go wrong: sides are attached and detached, devices,
//! log devices and spares come and go, and free space is swept.

use std::sync::Arc;

use disk::Disk;
use engine::{
    create::{self, Plan, Removal, VdevSpec},
    devices::{SweepCommand, SweepKind},
};
use pool::vdev::{Class, Kind};
use rand::Rng;

use super::{
    player::{Player, blank, said, task},
    world::DISK,
};
use crate::support::file_of;

/// Top-level devices that are more than enough.
const TOPS: usize = 6;
/// Sides of a mirror, likewise.
const SIDES: usize = 4;

impl Player {
    pub(crate) async fn change_shape(&mut self) {
        match self.random.random_range(0..10) {
            0..3 => self.attach().await,
            3 | 4 => self.detach_side().await,
            5 | 6 => self.add().await,
            7 | 8 => self.remove().await,
            _ => self.sweep().await,
        }
    }

    /// A bay nobody uses, with a new disk in it.
    fn fresh(&mut self) -> Option<usize> {
        let bay = self.unused(&self.places())?;
        self.bays.0[bay].put(blank(&self.bays.0[bay].path));
        self.harm.remove(&bay);
        self.liars.remove(&bay);
        Some(bay)
    }

    async fn attach(&mut self) {
        let places = self.places();
        let place = places.all[self.random.random_range(0..places.all.len())].clone();
        let tree = self.engine().view().tree();
        let top = &tree.tops[place.top];
        if place.is_paired || matches!(top.kind, Kind::Raidz(_)) || top.children.len() >= SIDES {
            return;
        }
        let Some(bay) = self.fresh() else { return };
        let engine = self.engine();
        let result = self.within("attach", engine.attach(place.guid, self.new_leaf(bay))).await;
        let (old, new) = (&self.bays.0[place.bay].path, &self.bays.0[bay].path);
        self.note(format!("attach {new} to {old}: {}", said(&result)));
    }

    /// One of three sides or more goes, in whatever state it is.
    async fn detach_side(&mut self) {
        let places = self.places();
        let place = places.all[self.random.random_range(0..places.all.len())].clone();
        let is_one_of_many = places.sides(place.top) > 2 && !place.is_paired;
        if !is_one_of_many || !places.is_safe(&self.bays, &self.harm, Some(place.bay)) {
            return;
        }
        let engine = self.engine();
        let result = self.within("detach", engine.detach(place.guid)).await;
        self.note(format!("detach side {}: {}", self.bays.0[place.bay].path, said(&result)));
    }

    async fn add(&mut self) {
        let tops = self.engine().view().tree().tops.len();
        let kind = self.random.random_range(0..4);
        // As many as what is added takes; two have to be free at once.
        let count = if kind < 2 { 2 } else { 1 };
        let bays: Vec<usize> = self.all_unused(&self.places()).take(count).collect();
        if (tops >= TOPS && kind != 3) || bays.len() < count {
            return;
        }
        for bay in &bays {
            self.bays.0[*bay].put(blank(&self.bays.0[*bay].path));
            self.harm.remove(bay);
            self.liars.remove(bay);
        }
        let words = ["mirror", "log mirror", "log", "spare"][kind].split(' ').map(str::to_owned);
        let paths = bays.iter().map(|bay| self.bays.0[*bay].path.clone());
        let words: Vec<String> = words.chain(paths).collect();
        let spec = VdevSpec::parse(&words).unwrap();
        let facts = file_of(DISK);
        let plan = Arc::new(Plan::new(&spec, &vec![facts; count], Some(self.ashift), true).unwrap());
        let disks: Vec<Arc<dyn Disk>> =
            bays.iter().map(|bay| self.bays.0[*bay].disk() as Arc<dyn Disk>).collect();
        let engine = self.engine();
        let op = task(move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await }));
        let result = self.within("add", engine.run(op)).await;
        self.note(format!("add {}: {}", words.join(" "), said(&result)));
    }

    /// A log device or a spare goes.
    async fn remove(&mut self) {
        let engine = self.engine();
        let view = engine.view();
        let tree = view.tree();
        let logs = tree.tops.iter().filter(|top| top.class() == Class::Log && top.kind != Kind::Hole);
        let words: Vec<String> = logs.chain(view.spares()).map(|vdev| vdev.guid.to_string()).collect();
        if words.is_empty() {
            return;
        }
        let word = &words[self.random.random_range(0..words.len())];
        let removed = async {
            let removal = Removal::find(&view, word)?;
            removal.vacate(&engine).await?;
            let leaving = removal.clone();
            engine.run(move |cx| Box::pin(async move { leaving.finish(cx).await })).await?;
            for disk in removal.disks(&engine.view().tree()) {
                // One that is away keeps its labels.
                let _cleared = engine::write::labels::clear(&disk).await;
            }
            Ok(())
        };
        let result = self.within("remove", removed).await;
        self.note(format!("remove {word}: {}", said(&result)));
    }

    async fn sweep(&mut self) {
        let places = self.places();
        let place = places.all[self.random.random_range(0..places.all.len())].clone();
        let kind = if self.random.random() { SweepKind::Initialize } else { SweepKind::Trim };
        let commands = [
            SweepCommand::Start { rate: None },
            SweepCommand::Start { rate: Some(1 << 20) },
            SweepCommand::Suspend,
        ];
        let command = commands[self.random.random_range(0..commands.len())];
        let engine = self.engine();
        let result = self.within("sweep", engine.sweep(kind, place.guid, command)).await;
        self.note(format!("{kind:?} {} {command:?}: {}", self.bays.0[place.bay].path, said(&result)));
    }
}
