//! Progress of long work: a bar on a terminal, plain lines in a pipe, always on standard error.

use std::{collections::BTreeMap, future::Future, io::IsTerminal as _, pin::pin, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use server::pool::status::human;
use tokio::time::Instant;

/// How often a bar moves.
pub(crate) const BAR: Duration = Duration::from_millis(100);
/// How often a line is printed.
const LINES: Duration = Duration::from_secs(5);

/// A bar whose message says all but the share.
pub(crate) const IN_WORDS: &str = "{prefix} [{bar:30}] {percent:>3}%  {msg}";

/// Bytes done, and in all as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) done: u64,
    pub(crate) total: u64,
}

/// Does `work` and shows how far it is. `what` is what is being done, for example `verify tank`.
pub(crate) async fn watch<T>(what: &str, amount: impl Fn() -> Amount, work: impl Future<Output = T>) -> T {
    let style = "{prefix} [{bar:30}] {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
    let bar = bar(what, style, 0);
    let started = Instant::now();
    let every = if bar.is_some() { BAR } else { LINES };
    beside(bar, every, work, |bar| match bar {
        Some(bar) => amount().show_on(bar),
        None => say!("{what}: {}", line(amount(), started.elapsed())),
    })
    .await
}

/// Does `work`, and looks at it every so often until it is over. Then the bar goes, if there is one.
pub(crate) async fn beside<T>(
    bar: Option<ProgressBar>,
    every: Duration,
    work: impl Future<Output = T>,
    look: impl Fn(Option<&ProgressBar>),
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            result = &mut work => {
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
                return result;
            }
            () = tokio::time::sleep(every) => {}
        }
        look(bar.as_ref());
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

    fn percent(self) -> u128 {
        u128::from(self.done) * 100 / u128::from(self.total.max(self.done).max(1))
    }

    fn show_on(self, bar: &ProgressBar) {
        bar.set_length(self.total.max(self.done));
        bar.set_position(self.done);
    }
}

impl Meter {
    pub(crate) fn new(what: &str) -> Self {
        Self::with_style(what, "{prefix} [{bar:30}] {percent:>3}%  {bytes} of {total_bytes}  {msg}")
    }

    /// For work that is counted in blocks.
    pub(crate) fn of_blocks(what: &str) -> Self {
        Self::with_style(what, IN_WORDS)
    }

    fn with_style(what: &str, style: &str) -> Self {
        Self { bar: bar(what, style, 0), said: Instant::now(), paces: BTreeMap::new() }
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
        let (percent, rate) = (amount.percent(), human(rate));
        let line = format!("{done} of {total} blocks ({percent}%), {rate}/s");
        self.tell(what, amount, format!("{done} of {total} blocks  {rate}/s"), &line);
    }

    /// `rate` is bytes per second, `rest` how long it takes, in words.
    pub(crate) fn show(&mut self, what: &str, amount: Amount, rate: u64, rest: &str) {
        let (done, total) = (human(amount.done), human(amount.total));
        let (percent, rate) = (amount.percent(), human(rate));
        let behind = if rest.is_empty() { String::new() } else { format!(", {rest}") };
        let line = format!("{done} of {total} ({percent}%), {rate}/s{behind}");
        self.tell(what, amount, format!("{rate}/s  {rest}"), &line);
    }

    /// `message` is what stands behind a bar, `line` what is printed where there is none.
    fn tell(&mut self, what: &str, amount: Amount, message: String, line: &str) {
        match &self.bar {
            Some(bar) => {
                amount.show_on(bar);
                bar.set_prefix(what.to_owned());
                bar.set_message(message);
            }
            None if self.said.elapsed() >= LINES => {
                self.said = Instant::now();
                say!("{what}: {line}");
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

/// A bar in this style before which stands what is being done, if there is a terminal to show it. It begins as one of so many
/// in all.
pub(crate) fn bar(what: &str, style: &str, total: u64) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        bar
    })
}

/// `1.2G of 4.0G (30%), 811M/s, 4 s left`
fn line(amount: Amount, elapsed: Duration) -> String {
    let Amount { done, total } = amount;
    let rate = (done as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    let left = total.saturating_sub(done).checked_div(rate);
    match (total, left) {
        (0, _) | (_, None) => format!("{}, {}/s", human(done), human(rate)),
        (total, Some(left)) => {
            let percent = amount.percent();
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
