//! Progress of long work: a bar on a terminal, plain lines in a pipe, always on standard error.

use std::{collections::BTreeMap, future::Future, io::IsTerminal as _, pin::pin, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use server::pool::status::human;
use tokio::time::Instant;

/// How often a bar moves.
const BAR: Duration = Duration::from_millis(100);
/// How often a line is printed.
const LINES: Duration = Duration::from_secs(5);

/// Bytes done, and in all as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) done: u64,
    pub(crate) total: u64,
}

/// Does `work` and shows how far it is. `what` is what is being done, for example `verify tank`.
pub(crate) async fn watch<T>(what: &str, amount: impl Fn() -> Amount, work: impl Future<Output = T>) -> T {
    let bar = std::io::stderr().is_terminal().then(|| bar(what));
    let started = Instant::now();
    let mut work = pin!(work);
    loop {
        let wait = tokio::time::sleep(if bar.is_some() { BAR } else { LINES });
        tokio::select! {
            biased;
            result = &mut work => {
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                return result;
            }
            () = wait => {}
        }
        let now = amount();
        match &bar {
            Some(bar) => {
                bar.set_length(now.total.max(now.done));
                bar.set_position(now.done);
            }
            None => say!("{what}: {}", line(now, started.elapsed())),
        }
    }
}

/// Shows work that somebody else does and estimates.
pub(crate) struct Meter {
    bar: Option<ProgressBar>,
    said: Instant,
    /// What is being done → how fast, where only the amount is known.
    paces: BTreeMap<String, Pace>,
}

/// How fast something goes on, from when it was first seen: how long it took before that nobody here knows.
struct Pace {
    since: Instant,
    first: Amount,
}

impl Pace {
    fn new(now: Instant, amount: Amount) -> Self {
        Self { since: now, first: amount }
    }

    /// Bytes per second.
    fn rate(&mut self, now: Instant, amount: Amount) -> u64 {
        if amount.total != self.first.total {
            // One of several came, or is over: nobody did just now what it had done before.
            *self = Self::new(now, amount);
        }
        let seconds = now.duration_since(self.since).as_secs_f64().max(0.001);
        // What goes on after a pause may begin a little before where it was.
        (amount.done.saturating_sub(self.first.done) as f64 / seconds) as u64
    }
}

impl Amount {
    pub(crate) fn left(self) -> u64 {
        self.total.saturating_sub(self.done)
    }
}

impl Meter {
    pub(crate) fn new(what: &str) -> Self {
        Self::with_style(what, "{prefix} [{bar:30}] {percent:>3}%  {bytes} of {total_bytes}  {msg}")
    }

    /// For work that is counted in blocks.
    pub(crate) fn of_blocks(what: &str) -> Self {
        Self::with_style(what, "{prefix} [{bar:30}] {percent:>3}%  {msg}")
    }

    fn with_style(what: &str, style: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| foreign_bar(what, style));
        Self { bar, said: Instant::now(), paces: BTreeMap::new() }
    }

    /// Work of which only the amount is known: the rest is reckoned from it.
    pub(crate) fn show_amount(&mut self, what: &str, amount: Amount) {
        let now = Instant::now();
        let pace = self.paces.entry(what.to_owned()).or_insert_with(|| Pace::new(now, amount));
        let rate = pace.rate(now, amount);
        self.show(what, amount, rate, "");
    }

    /// Work that is counted in blocks, at so many bytes per second.
    pub(crate) fn show_blocks(&mut self, what: &str, amount: Amount, rate: u64) {
        let Amount { done, total } = amount;
        match &self.bar {
            Some(bar) => {
                bar.set_length(total.max(done));
                bar.set_position(done);
                bar.set_prefix(what.to_owned());
                bar.set_message(format!("{done} of {total} blocks  {}/s", human(rate)));
            }
            None if self.said.elapsed() >= LINES => {
                self.said = Instant::now();
                let percent = u128::from(done) * 100 / u128::from(total.max(done).max(1));
                say!("{what}: {done} of {total} blocks ({percent}%), {}/s", human(rate));
            }
            None => {}
        }
    }

    /// `rate` is bytes per second, `rest` how long it takes, in words.
    pub(crate) fn show(&mut self, what: &str, amount: Amount, rate: u64, rest: &str) {
        let Amount { done, total } = amount;
        match &self.bar {
            Some(bar) => {
                bar.set_length(total.max(done));
                bar.set_position(done);
                bar.set_prefix(what.to_owned());
                bar.set_message(format!("{}/s  {rest}", human(rate)));
            }
            None if self.said.elapsed() >= LINES => {
                self.said = Instant::now();
                let percent = u128::from(done) * 100 / u128::from(total.max(done).max(1));
                let rest = if rest.is_empty() { String::new() } else { format!(", {rest}") };
                say!("{what}: {} of {} ({percent}%), {}/s{rest}", human(done), human(total), human(rate));
            }
            None => {}
        }
    }

    /// It is over: the bar goes.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn foreign_bar(what: &str, style: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what.to_owned());
    bar
}

fn bar(what: &str) -> ProgressBar {
    let style = "{msg} [{bar:30}] {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what.to_owned());
    bar
}

/// `1.2G of 4.0G (30%), 811M/s, 4 s left`
fn line(Amount { done, total }: Amount, elapsed: Duration) -> String {
    let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let left = total.saturating_sub(done).checked_div(rate);
    match (total, left) {
        (0, _) | (_, None) => format!("{}, {}/s", human(done), human(rate)),
        (total, Some(left)) => {
            let percent = u128::from(done) * 100 / u128::from(total.max(done).max(1));
            format!("{} of {} ({percent}%), {}/s, {left} s left", human(done), human(total), human(rate))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_rate_and_remaining_time() {
        let amount = Amount { done: 1 << 30, total: 4 << 30 };
        assert_eq!(line(amount, Duration::from_secs(2)), "1G of 4G (25%), 512M/s, 6 s left");
        assert_eq!(line(Amount { done: 512, total: 0 }, Duration::from_secs(1)), "512B, 512B/s");
    }

    /// All that had ever been trimmed was told as done within the five seconds since somebody began to wait for the rest. Then a
    /// device whose trim went on made it "800G/s": all that had been trimmed of it before was told as done just now.
    #[test]
    fn what_was_done_before_somebody_looked_makes_no_rate() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let of = |done, total| Amount { done, total };
        let mut pace = Pace::new(start, of(500, 1000));
        assert_eq!(pace.rate(at(0), of(500, 1000)), 0);
        assert_eq!(pace.rate(at(5), of(510, 1000)), 2);
        // The device that had most of it is complete.
        assert_eq!(pace.rate(at(6), of(40, 200)), 0);
        assert_eq!(pace.rate(at(8), of(60, 200)), 10);
        // One joins that had much of it.
        assert_eq!(pace.rate(at(9), of(460, 1200)), 0);
        assert_eq!(pace.rate(at(11), of(480, 1200)), 10);
        assert_eq!(pace.rate(at(12), of(450, 1200)), 0, "it begins a row before where it was");
    }
}
