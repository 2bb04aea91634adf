//! What came of a drill: everything is read again, the pool is closed and checked, and the report card written.
//!
//! Acknowledged data that is gone, requests that were not answered, and a pool that is not clean are bad whatever happened.
//! Of what else was seen a line tells what it means for whoever has guests on such a pool.

use std::{sync::Arc, time::Duration};

use engine::engine::Ending;

use super::{Place, Stage};
use crate::{
    Drill,
    report::{Grade, Line, ReportCard, time},
    script::Act,
};

/// A pause a user notices, and one after which a guest complains.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(25));

impl Stage {
    /// Ends it all, and says what came of it. `unfinished` is why the script was not played to its end.
    pub(super) async fn judge(
        &mut self,
        drill: &Drill,
        place: &Place,
        unfinished: Option<String>,
    ) -> ReportCard {
        self.progress.now.lock().clone_from(&"everything is read again".to_owned());
        if let Some(clients) = self.clients.take() {
            self.load.stop(clients).await;
        }
        match self.volume().await {
            Ok(volume) => self.lost += self.load.check(&*volume).await,
            Err(error) => {
                // A power cut after which nothing could be opened may have counted them already.
                self.lost = self.lost.max(self.load.written());
                self.tell(format!("the volume cannot be opened: {error}"));
            }
        }
        let seconds = self.watch.lock().elapsed().as_secs_f64();
        let clean = self.leave().await;
        let mut lines = Vec::new();
        if let Some(why) = &unfinished {
            lines.push(Line::new("drill", "broken off", Grade::Bad, why));
        }
        self.judge_clients(drill, &mut lines);
        self.judge_pool(drill, &mut lines);
        let (value, grade, sentence) = match clean {
            Ok(()) => {
                ("clean", Grade::Good, "every block, every checksum and every space map is right".to_owned())
            }
            Err(what) => ("not clean", Grade::Bad, what),
        };
        lines.push(Line::new("check of the whole pool", value, grade, sentence));
        lines.extend(self.skipped.iter().map(|skipped| Line::new("left out", "-", Grade::Note, skipped)));
        lines.extend(drill.caveat.map(|caveat| Line::new("not judged", "-", Grade::Note, caveat)));
        let account = self.load.account.lock();
        let seen = self.watch.lock();
        ReportCard {
            drill: drill.name.to_owned(),
            about: drill.about.to_owned(),
            machine: machine(drill, place),
            story: seen.story.iter().map(|(at, text)| (round(at.as_secs_f64()), text.clone())).collect(),
            lines,
            lost: self.lost + account.wrong,
            dropped: account.dropped,
            unfinished,
            seconds: round(seconds),
            seed: self.seed,
        }
    }

    fn judge_clients(&self, drill: &Drill, lines: &mut Vec<Line>) {
        let mut account = self.load.account.lock();
        let complaints = account.complaints.join("; ");
        let lost = self.lost + account.wrong;
        let (grade, sentence) = match lost {
            0 => (Grade::Good, kept(account.writes, self.undone)),
            _ => (Grade::Bad, format!("acknowledged data is gone or wrong: {complaints}")),
        };
        lines.push(Line::new("lost", format!("{lost} blocks"), grade, sentence));
        let (grade, sentence) = match account.dropped {
            0 => (Grade::Good, format!("each of {} requests was answered", account.requests)),
            _ => (Grade::Bad, format!("clients saw errors or no answer: {complaints}")),
        };
        lines.push(Line::new("dropped", format!("{} requests", account.dropped), grade, sentence));
        if drill.fills {
            let sentence = match account.no_space {
                0 => "no write met the full pool",
                _ => {
                    "writes were told that there is no space; reads went on, and so did writes when there was room"
                }
            };
            lines.push(Line::new(
                "no space",
                format!("{} requests", account.no_space),
                Grade::Note,
                sentence,
            ));
        }
        if let Some((longest, _)) = account.longest {
            let (grade, sentence) = match longest {
                pause if pause <= PAUSES.0 => (Grade::Good, "no guest would complain"),
                pause if pause <= PAUSES.1 => {
                    (Grade::Fair, "users notice, guests bear it: they wait for 30 seconds")
                }
                _ => (Grade::Bad, "guests give up a disk that does not answer for 30 seconds"),
            };
            lines.push(Line::new("longest pause of a client", time(longest), grade, sentence));
        }
        let (before, after) = (percentile(&mut account.before), percentile(&mut account.after));
        if let (Some(before), Some(after)) = (before, after) {
            let sentence =
                format!("of 100 requests 99 were faster; {} before anything went wrong", time(before));
            lines.push(Line::new("p99 in trouble", time(after), Grade::Note, sentence));
        }
        if let Some(undone) = self.undone {
            let sentence =
                "writes nobody had asked to be stable: a power cut may take them, as from any disk";
            lines.push(Line::new(
                "rolled back by the power cut",
                format!("{undone} blocks"),
                Grade::Note,
                sentence,
            ));
        }
    }

    fn judge_pool(&self, drill: &Drill, lines: &mut Vec<Line>) {
        let seen = self.watch.lock();
        if !seen.suspended.is_zero() {
            let sentence = "nothing could be written meanwhile";
            lines.push(Line::new("suspended", time(seen.suspended), Grade::Bad, sentence));
        }
        let sentence = "with less redundancy than it should have";
        lines.push(Line::new("degraded", time(seen.degraded), Grade::Note, sentence));
        if self.waited_for_whole {
            let (value, grade, sentence) = match self.whole_after {
                Some(after) if self.by_hand => {
                    (time(after), Grade::Fair, "after zpool clear and zpool online")
                }
                Some(after) => (time(after), Grade::Good, "by itself, counted from the last repair"),
                None => ("not".to_owned(), Grade::Bad, "it did not get its redundancy back"),
            };
            lines.push(Line::new("whole again", value, grade, sentence));
        }
        if seen.resilvered > 0 {
            let bytes = pool::status::human(seen.resilvered);
            lines.push(Line::new("resilvered", bytes, Grade::Note, "what the disks had missed"));
        }
        if let Some((repaired, errors)) = self.scrub {
            let grade = if errors == 0 { Grade::Good } else { Grade::Bad };
            let bytes = pool::status::human(repaired);
            let sentence = format!("found by the scrub and written again; {errors} blocks beyond repair");
            lines.push(Line::new("repaired by the scrub", bytes, grade, sentence));
        } else if drill.script.iter().any(|act| matches!(act, Act::Scrub(_))) {
            lines.push(Line::new("scrub", "none", Grade::Bad, "it could not be done"));
        }
        if seen.repaired > 0 {
            let bytes = pool::status::human(seen.repaired);
            let sentence = "wrong bytes replaced by right ones";
            lines.push(Line::new("healed while reading", bytes, Grade::Note, sentence));
        }
        if let Some(trouble) = seen.trouble {
            let (value, grade, sentence) = match &seen.noticed {
                Some((at, text)) => (format!("after {}", time(*at - trouble)), Grade::Good, text.as_str()),
                None if drill.caveat.is_some() => ("-".to_owned(), Grade::Note, "no alert was due"),
                None => ("never".to_owned(), Grade::Fair, "nobody would have been told"),
            };
            lines.push(Line::new("noticed", value, grade, sentence));
        }
    }

    /// Closes the pool and checks all of it.
    pub(super) async fn leave(&mut self) -> Result<(), String> {
        if let Some(clients) = self.clients.take() {
            self.load.stop(clients).await;
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        let Some(engine) = self.engine.take() else { return Err("the pool is not open".to_owned()) };
        if let Some(why) = engine.suspended() {
            self.bounded(engine.abandon()).await;
            return Err(format!("it is suspended: {why}"));
        }
        match self.bounded(engine.end(Ending::Export)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(format!("it cannot be exported: {error}")),
            None => return Err("it cannot be exported".to_owned()),
        }
        drop(engine);
        let pool = self.look().await.map_err(|error| error.to_string())?;
        let report = pool::verify::verify(&pool, &Arc::new(pool::verify::Progress::default())).await;
        match report.problems.first() {
            None if report.is_clean() => Ok(()),
            None if report.thin > 0 => {
                Err(format!("{} blocks have less redundancy than they should", report.thin))
            }
            None => Err("space is accounted wrongly".to_owned()),
            Some(first) => Err(format!("{} problems, the first: {first:?}", report.problems_total)),
        }
    }
}

/// What the drill was played on.
fn machine(drill: &Drill, place: &Place) -> String {
    match place {
        Place::Simulated { layout, .. } => {
            let logs = ["", " with a log device", " with mirrored log devices"][drill.log.count().min(2)];
            format!("{layout}{logs}, simulated")
        }
        Place::Files { files, pool } => format!("a copy of pool '{pool}' ({} files)", files.len()),
    }
}

/// What can be said where nothing is lost: of so many acknowledged writes, a power cut may have taken some back.
fn kept(writes: u64, undone: Option<u64>) -> String {
    match undone {
        None | Some(0) => format!("all of {writes} acknowledged writes are there, byte for byte"),
        Some(_) => "all writes that were acknowledged as stable are there, byte for byte; what else the power cut took \
                    stands below"
            .to_owned(),
    }
}

fn percentile(micros: &mut [u32]) -> Option<Duration> {
    micros.sort_unstable();
    let at = (micros.len() * 99 / 100).min(micros.len().checked_sub(1)?);
    Some(Duration::from_micros(micros[at].into()))
}

fn round(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A card said that every acknowledged write was there, and three lines below how many were not.
    #[test]
    fn a_card_does_not_say_that_what_was_rolled_back_is_there() {
        for undone in [None, Some(0)] {
            assert_eq!(kept(7, undone), "all of 7 acknowledged writes are there, byte for byte");
        }
        let said = kept(7, Some(2));
        assert!(said.starts_with("all writes that were acknowledged as stable are there"), "{said}");
    }
}
