//! Volumes have descendants while things go wrong: snapshots are cloned, clones take the place of what they were cloned
//! from and are destroyed, and properties change under their clients.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use engine::dsl::{self, Properties, Stored};
use rand::Rng;
use tokio::sync::RwLock;

use super::{
    load::Seat,
    player::{Player, task},
};
use crate::support::POOL;

/// Volumes that are more than enough.
const VOLUMES: usize = 7;

impl Player {
    pub(crate) async fn change_family(&mut self) {
        match self.random.random_range(0..6) {
            0 | 1 => self.clone_one().await,
            2 => self.promote().await,
            3 => self.destroy_one().await,
            _ => self.set().await,
        }
    }

    /// Volumes that are there.
    fn living(&self) -> Vec<usize> {
        (0..self.seats.len()).filter(|which| !self.seats[*which].is_gone.load(Relaxed)).collect()
    }

    async fn clone_one(&mut self) {
        let count = self.snapshots.len();
        if count == 0 || self.living().len() >= VOLUMES {
            return;
        }
        let (snapshot, (of, frozen)) =
            self.snapshots.iter().nth(self.random.random_range(0..count)).expect("one that was counted");
        let (snapshot, ledger) =
            (snapshot.clone(), self.seats[*of].ledger.descendant(self.names + 1, frozen));
        self.names += 1;
        let name = format!("{POOL}/c{}", self.names);
        let (from, to) = (snapshot.clone(), name.clone());
        let op = task(move |cx| {
            Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await })
        });
        self.run(format!("clone {snapshot} {name}"), false, op).await;
        let seat = Seat { name, ledger, gate: RwLock::default(), is_gone: false.into() };
        self.origins.insert(self.seats.len(), snapshot);
        self.seats.push(Arc::new(seat));
        self.work_on(self.seats.len() - 1).await;
    }

    async fn promote(&mut self) {
        let living = self.living();
        let clones: Vec<usize> =
            living.into_iter().filter(|which| self.origins.contains_key(which)).collect();
        if clones.is_empty() {
            return;
        }
        let clone = clones[self.random.random_range(0..clones.len())];
        let origin = self.origins[&clone].clone();
        let from = self.snapshots[&origin].0;
        let name = self.seats[clone].name.clone();
        let promoted = name.clone();
        let op = task(move |cx| Box::pin(async move { dsl::promote(cx, &promoted).await }));
        self.run(format!("promote {name} of {origin}"), false, op).await;
        // What is as old as the origin or older goes over.
        let number = |snapshot: &str| snapshot.split_once('@').map(|(_, number)| number.to_owned());
        let moving: Vec<String> = self
            .snapshots
            .iter()
            .filter(|(snapshot, (of, _))| *of == from && number(snapshot) <= number(&origin))
            .map(|(snapshot, _)| snapshot.clone())
            .collect();
        let ancestor = self.origins.remove(&from);
        self.origins.remove(&clone);
        self.origins.insert(from, origin);
        for old in moving {
            let (_, frozen) = self.snapshots.remove(&old).expect("one of them");
            let new = format!("{name}@{}", number(&old).expect("a snapshot"));
            self.origins
                .values_mut()
                .filter(|origin| **origin == old)
                .for_each(|origin| origin.clone_from(&new));
            self.snapshots.insert(new, (clone, frozen));
        }
        if let Some(ancestor) = ancestor {
            self.origins.insert(clone, ancestor);
        }
    }

    /// A volume without snapshots goes, under its clients.
    async fn destroy_one(&mut self) {
        let living = self.living();
        let is_alone = |which: &usize| self.snapshots.values().all(|(of, _)| of != which);
        let alone: Vec<usize> = living.iter().copied().filter(is_alone).collect();
        if alone.is_empty() || living.len() < 3 {
            return;
        }
        let which = alone[self.random.random_range(0..alone.len())];
        let seat = Arc::clone(&self.seats[which]);
        let _gate = seat.gate.write().await;
        seat.is_gone.store(true, Relaxed);
        self.origins.remove(&which);
        let name = seat.name.clone();
        let op = task(move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await }));
        self.run(format!("destroy {}", seat.name), false, op).await;
    }

    async fn set(&mut self) {
        let living = self.living();
        let name = self.seats[living[self.random.random_range(0..living.len())]].name.clone();
        // Off, lz4, on; fletcher4, SHA-256; standard, always.
        let choices: [(&str, &[u64]); 5] = [
            ("compression", &[2, 15, 1]),
            ("copies", &[1, 2, 3]),
            ("checksum", &[7, 8]),
            ("logbias", &[0, 1]),
            ("sync", &[0, 1]),
        ];
        let (property, values) = choices[self.random.random_range(0..choices.len())];
        let value = values[self.random.random_range(0..values.len())];
        let properties = Properties::from([(property.to_owned(), Stored::Number(value))]);
        let of = name.clone();
        let op = task(move |cx| Box::pin(async move { dsl::set(cx, &of, &properties).await }));
        self.run(format!("set {property}={value} {name}"), false, op).await;
    }
}
