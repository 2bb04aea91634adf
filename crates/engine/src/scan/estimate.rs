//! How long a scan will take: a range, because nobody knows.
//!
//! The way already made is cut into stretches of about the same length; how long each took says what a byte costs and
//! how much that varies. What is left costs the same, give or take: the more of the way is behind, and the more even it
//! was, the narrower the range.

use std::{collections::VecDeque, ops::Range, time::Duration};

use tokio::time::Instant;

/// Stretches kept; when there are more, neighbours are joined, so that they cover the whole way.
const STRETCHES: usize = 64;
/// Less than this is no stretch.
const SHORTEST: Duration = Duration::from_millis(500);
/// Of the last stretches, how many say what it is like now.
const LATELY: usize = 8;

/// Measures a scan.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    since: Option<Instant>,
    bytes: u64,
    /// Bytes and seconds.
    stretches: VecDeque<(f64, f64)>,
    /// A new stretch is at least as long as this.
    length: f64,
}

impl Meter {
    /// The scan begins, or goes on after a rest.
    pub(super) fn start(&mut self) {
        (self.since, self.bytes) = (Some(Instant::now()), 0);
    }

    /// So many more bytes are done.
    pub(super) fn add(&mut self, bytes: u64) {
        let Some(since) = self.since else { return self.start() };
        self.bytes += bytes;
        let seconds = since.elapsed().as_secs_f64();
        if since.elapsed() < SHORTEST || self.bytes == 0 || (self.bytes as f64) < self.length {
            return;
        }
        self.stretches.push_back((self.bytes as f64, seconds));
        self.start();
        if self.stretches.len() > STRETCHES {
            let all = std::mem::take(&mut self.stretches);
            let mut all = all.into_iter();
            while let Some(first) = all.next() {
                let second = all.next().unwrap_or((0.0, 0.0));
                self.stretches.push_back((first.0 + second.0, first.1 + second.1));
            }
            let bytes: f64 = self.stretches.iter().map(|stretch| stretch.0).sum();
            self.length = bytes / self.stretches.len() as f64;
        }
    }

    /// Bytes per second lately.
    pub(super) fn rate(&self) -> Option<f64> {
        let last = self.stretches.iter().rev().take(LATELY);
        let (bytes, seconds) = last.fold((0.0, 0.0), |sum, stretch| (sum.0 + stretch.0, sum.1 + stretch.1));
        (seconds > 0.0).then(|| bytes / seconds)
    }

    /// How long `left` bytes will take; `is_known`: they are all there is.
    pub(super) fn remaining(&self, left: u64, is_known: bool) -> Option<Range<Duration>> {
        if left == 0 {
            return Some(Duration::ZERO..Duration::ZERO);
        }
        let count = self.stretches.len();
        if count < 2 {
            return None;
        }
        let (bytes, seconds) =
            self.stretches.iter().fold((0.0, 0.0), |sum, stretch| (sum.0 + stretch.0, sum.1 + stretch.1));
        let overall = seconds / bytes;
        let lately = 1.0 / self.rate()?;
        // What a byte cost varied so much from stretch to stretch.
        let variance: f64 = self
            .stretches
            .iter()
            .map(|(bytes, seconds)| (seconds / bytes - overall).powi(2) * bytes)
            .sum::<f64>()
            / bytes;
        let left = left as f64;
        // Neighbouring stretches resemble each other: as if there were only a quarter of them on the way.
        let ahead = (left / (bytes / count as f64) / 4.0).max(1.0);
        let behind = (count as f64 / 4.0).max(1.0);
        let doubt = variance.sqrt() * (1.0 / ahead + 1.0 / behind).sqrt();
        let share = left / (left + bytes);
        let floor = 0.03 + 0.12 * share + if is_known { 0.0 } else { 0.15 * share };
        let (low, high) = (overall.min(lately), overall.max(lately));
        let low = (low - 1.6 * doubt).max(low / 4.0) * (1.0 - floor) * left;
        let high = (high + 1.6 * doubt) * (1.0 + floor) * left + 1.0;
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Some(duration(low)..duration(high))
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    /// A way whose pieces take as long as they like: even, uneven, slower to the end.
    async fn play(seed: u64, cost: impl Fn(f64, f64) -> f64) -> (usize, usize, Vec<f64>) {
        const PIECES: u64 = 400;
        let mut random = StdRng::seed_from_u64(seed);
        let mut meter = Meter::default();
        meter.start();
        let begin = Instant::now();
        let mut said = Vec::new();
        for piece in 0..PIECES {
            let seconds = cost(piece as f64 / PIECES as f64, random.random());
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            meter.add(1 << 20);
            if piece % 20 == 19 {
                said.extend(
                    meter.remaining((PIECES - 1 - piece) << 20, true).map(|range| (begin.elapsed(), range)),
                );
            }
        }
        let all = begin.elapsed();
        let right =
            said.iter().filter(|(at, range)| range.start <= all - *at && all - *at <= range.end).count();
        let widths = said.iter().map(|(_, range)| (range.end - range.start).as_secs_f64()).collect();
        (right, said.len(), widths)
    }

    #[tokio::test(start_paused = true)]
    async fn the_truth_is_nearly_always_within_the_range_and_the_range_narrows() {
        let (mut right, mut all) = (0, 0);
        for seed in 0..20 {
            for (what, played) in [
                ("even", play(seed, |_, chance| 0.9 + 0.2 * chance).await),
                ("uneven", play(seed, |_, chance| if chance < 0.1 { 8.0 } else { 0.5 + chance }).await),
                ("slower to the end", play(seed, |at, chance| 0.8 + 0.6 * at + 0.3 * chance).await),
            ] {
                (right, all) = (right + played.0, all + played.1);
                let (first, last) = (played.2[0], played.2[played.2.len() - 2]);
                assert!(last < first / 2.0, "{what}: {first} s wide in the beginning, {last} s in the end");
            }
        }
        assert!(right * 100 >= all * 80, "{right} of {all}");
    }
}
