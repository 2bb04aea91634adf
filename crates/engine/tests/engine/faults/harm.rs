//! What goes wrong with disks, and how it is put right again.

use std::{io, ops::RangeInclusive, sync::Arc, time::Duration};

use disk::{Effect, Fault, On};
use rand::Rng;

use super::{
    budget::Harm,
    player::{Bug, Limit, Player, blank, said},
    world::DISK,
};

/// Of a million: a rule strikes now and then, often, always.
const CHANCES: [u32; 3] = [20_000, 300_000, 1_000_000];

/// Longer than anybody waits.
const LATE: RangeInclusive<Duration> = Duration::from_secs(100)..=Duration::from_secs(200);
/// What is noted of rules that make a disk so late.
const TOO_LATE: &str = "are answered far too late";

impl Player {
    /// Something goes wrong with a disk, if the limit allows it.
    pub(crate) async fn hurt(&mut self) {
        let places = self.places();
        let place = places.all[self.random.random_range(0..places.all.len())].clone();
        let (bay, path) = (place.bay, self.bays.0[place.bay].path.clone());
        if !self.bays.0[bay].is_present() {
            return;
        }
        if self.chance(12) {
            // Nothing is lost by being slow.
            let most = [20, 200, 3_000][self.random.random_range(0..3)];
            let wait = Effect::Delay(Duration::from_millis(most / 4)..=Duration::from_millis(most));
            let on = if self.random.random() { On::Read } else { On::Write };
            self.note(format!("{path}: {on:?} takes up to {most} ms"));
            let times = self.random.random_range(1..2_000);
            self.bays.0[bay].disk().inject(Fault::anywhere(on, wait).times(times));
            return;
        }
        // A log device without a twin is no redundancy: it may go, for whoever does not lose power then.
        let lonely_log = place.is_log && !places.is_safe(&self.bays, &self.harm, Some(bay));
        let allowed = lonely_log || places.is_safe(&self.bays, &self.harm, Some(bay));
        if self.limit == Limit::Redundancy && !allowed {
            return;
        }
        self.is_lied_to |= place.is_log;
        // One that never answers is waited for where nobody else has the block: only within redundancy that is not for ever.
        let kinds = match self.limit {
            _ if lonely_log => 5,
            Limit::Redundancy => 17,
            Limit::None => 14,
        };
        let kind = self.random.random_range(0..kinds);
        match kind {
            0 | 1 => {
                self.note(format!("{path}: pulled"));
                self.bays.0[bay].pull(None).await;
            }
            2 => {
                // Its cache is lost, and it may be back before anybody asked for it.
                self.note(format!("{path}: pulled, its cache is lost"));
                let seed = self.random.random();
                self.suspect(bay);
                self.bays.0[bay].pull(Some(seed)).await;
            }
            3 => self.rule(bay, "writes are refused", On::Write, Effect::Error(io::ErrorKind::Other)),
            4 => self.rule(bay, "flushes are refused", On::Flush, Effect::Error(io::ErrorKind::Other)),
            5 => self.rule(bay, "reads are refused", On::Read, Effect::Error(io::ErrorKind::Other)),
            6 => {
                self.suspect(bay);
                self.rule(bay, "writes are torn", On::Write, Effect::Tear(io::ErrorKind::Other));
            }
            7 => {
                self.suspect(bay);
                self.rule(bay, "writes are lost", On::Write, Effect::Lose);
            }
            8 => {
                self.suspect(bay);
                self.liars.insert(bay);
                let by = 4096 * self.random.random_range(-300..300);
                self.rule(bay, "writes go elsewhere", On::Write, Effect::Misdirect(by));
            }
            9 => {
                self.suspect(bay);
                self.liars.insert(bay);
                let bits = self.random.random_range(1..20);
                self.rule(bay, "bits of writes flip", On::Write, Effect::FlipBits(bits));
            }
            10 => {
                let bits = self.random.random_range(1..20);
                self.rule(bay, "bits of reads flip", On::Read, Effect::FlipBits(bits));
            }
            11 => {
                self.suspect(bay);
                self.rule(bay, "flushes do nothing", On::Flush, Effect::Lose);
            }
            12 | 13 => {
                self.suspect(bay);
                self.rot(bay).await;
            }
            14 => self.rule(bay, &format!("reads {TOO_LATE}"), On::Read, Effect::Delay(LATE)),
            15 => {
                self.suspect(bay);
                self.rule(bay, &format!("writes {TOO_LATE}"), On::Write, Effect::Delay(LATE));
            }
            _ => self.rule(bay, &format!("flushes {TOO_LATE}"), On::Flush, Effect::Delay(LATE)),
        }
        if self.bug() == Some(Bug::IgnoresFlushes) {
            for bay in &self.bays.0 {
                bay.disk().inject(Fault::anywhere(On::Flush, Effect::Lose));
            }
        }
        if self.bug() == Some(Bug::RotsBeyondParity) {
            for place in places.all {
                for _ in 0..20 {
                    self.rot(place.bay).await;
                }
            }
        }
    }

    fn suspect(&mut self, bay: usize) {
        self.harm.entry(bay).or_default().suspect = true;
        self.is_lied_to = true;
    }

    fn rule(&mut self, bay: usize, what: &str, on: On, effect: Effect) {
        let chance = CHANCES[self.random.random_range(0..CHANCES.len())];
        let path = &self.bays.0[bay].path;
        let text = format!("{path}: {what}, {effect:?}, {} %", f64::from(chance) / 1e4);
        self.note(&text);
        self.bays.0[bay].disk().inject(Fault::anywhere(on, effect).chance_ppm(chance));
        self.harm.entry(bay).or_default().rules.push(what.to_owned());
    }

    /// Bits flip where something is, or in a label.
    pub(crate) async fn rot(&mut self, bay: usize) {
        let media = self.bays.0[bay].media();
        for _ in 0..400 {
            let page = if self.chance(5) {
                self.random.random_range(0..(512 << 10) / 4096) * 4096
            } else {
                self.random.random_range((4 << 20) / 4096..DISK / 4096) * 4096
            };
            if media.snapshot(page..page + 4096).iter().all(|byte| *byte == 0) {
                continue;
            }
            let end = (page + 4096 * self.random.random_range(1..=16)).min(DISK);
            let bits = self.random.random_range(1..100);
            self.note(format!("{}: {bits} bits flip in {page}..{end}", self.bays.0[bay].path));
            self.bays.0[bay].disk().rot(page..end, bits).await.unwrap();
            return;
        }
    }

    /// One disk is put right.
    pub(crate) async fn mend_something(&mut self) {
        let absent = |bay: &usize| !self.bays.0[*bay].is_present();
        let amiss: Vec<usize> =
            (0..self.bays.0.len()).filter(|bay| absent(bay) || self.harm.contains_key(bay)).collect();
        if amiss.is_empty() {
            return;
        }
        let bay = amiss[self.random.random_range(0..amiss.len())];
        self.mend(bay).await;
    }

    /// Rules end, a disk that was pulled returns, one way or another, and is taken online.
    pub(crate) async fn mend(&mut self, bay: usize) {
        let places = self.places();
        let path = self.bays.0[bay].path.clone();
        let had_rules = self.harm.get_mut(&bay).map(|harm| std::mem::take(&mut harm.rules));
        if let Some(rules) = had_rules.filter(|rules| !rules.is_empty()) {
            self.note(format!("{path}: works again"));
            self.bays.0[bay].heal();
            // Not before it has answered what it was asked; each rule may have made that later.
            let late = rules.iter().filter(|rule| rule.ends_with(TOO_LATE)).count();
            if late > 0 {
                tokio::time::sleep(*LATE.end() * u32::try_from(late).unwrap()).await;
            }
        }
        if !self.bays.0[bay].is_present() {
            self.return_disk(bay).await;
        }
        self.harm.retain(|_, harm| *harm != Harm::default());
        let engine = self.engine();
        self.within("look", engine.look()).await;
        let Some(place) = places.in_bay(bay).cloned() else { return };
        if self.harm.get(&bay).is_some_and(|harm| harm.empty) {
            let result = self.within("replace", engine.replace(place.guid, self.new_leaf(bay))).await;
            self.note(format!("replace {path}: {}", said(&result)));
            if result.is_ok() {
                self.harm.remove(&bay);
                self.liars.remove(&bay);
            }
            return;
        }
        let cleared = self.within("clear", engine.clear(Some(place.guid))).await;
        self.note(format!("clear {path}: {}", said(&cleared)));
        if !self.online(&place.guid, bay).await && self.liars.contains(&bay) {
            // None of its labels is right any more: it is a new disk to whoever finds it.
            self.harm.entry(bay).or_default().empty = true;
        }
    }

    async fn return_disk(&mut self, bay: usize) {
        let path = self.bays.0[bay].path.clone();
        let is_leaf = self.places().in_bay(bay).is_some_and(|place| !place.is_log);
        match self.random.random_range(0..10) {
            0 | 1 if is_leaf => {
                self.note(format!("{path}: comes back empty"));
                self.bays.0[bay].put(blank(&path));
                self.harm.insert(bay, Harm { empty: true, ..Harm::default() });
            }
            2 if is_leaf => {
                // As it was when it was last forked: the copy somebody made of it.
                self.note(format!("{path}: an image of it comes back"));
                let media = Arc::new(self.bays.0[bay].media().fork());
                self.suspect(bay);
                self.bays.0[bay].put(media);
            }
            _ => {
                self.note(format!("{path}: comes back"));
                self.bays.0[bay].plug();
            }
        }
        if self.bug() == Some(Bug::ForgetsWhatWasMissed) {
            self.forget_missed(bay);
        }
    }

    /// The mistake of [`Bug::ForgetsWhatWasMissed`].
    fn forget_missed(&mut self, bay: usize) {
        let _ = bay;
    }
}
