//! A gate for log lines that a client can cause: a few per period, then a count of those left out, so
//! that nobody can fill a disk by sending garbage. Nor by the length of a line, where it tells what a client made up
//! ([`shown`]). Here because the engine, the targets and the daemon need it.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(10);
const PER_PERIOD: u32 = 10;
/// Characters of what a client made up; longer than most names that exist.
const SHOWN: usize = 100;

/// What a client made up, as far as it is worth a line. It is to be escaped by whoever writes it.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut rest = text.chars();
    let mut shown: String = rest.by_ref().take(SHOWN).collect();
    if rest.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Says how often a target may write such a line. See the module.
#[derive(Debug, Default)]
pub struct Quiet {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Quiet {
    /// Says something unless too much was said lately; `say` gets the number of lines left out before, if there were any.
    pub fn say(&self, say: impl FnOnce(Option<u64>)) {
        if let Some(left_out) = self.allow(Instant::now()) {
            say(Some(left_out).filter(|lines| *lines > 0));
        }
    }

    /// Whether to write a line now, and how many were left out before it.
    fn allow(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fresh = state.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD);
        if fresh {
            state.since = Some(now);
            state.said = 0;
        }
        if state.said >= PER_PERIOD {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.said = state.said.saturating_add(1);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_client_made_up_the_beginning_is_shown() {
        assert_eq!(shown("tank/vm"), "tank/vm");
        let whole = "é".repeat(SHOWN);
        assert_eq!(shown(&whole), whole);
        assert_eq!(shown(&(whole.clone() + "é")), whole + "…");
    }

    #[test]
    fn after_ten_lines_the_rest_of_the_period_is_counted_not_written() {
        let quiet = Quiet::default();
        let start = Instant::now();
        assert!((0..10).all(|_| quiet.allow(start) == Some(0)));
        assert!((0..7).all(|_| quiet.allow(start).is_none()));
        assert_eq!(quiet.allow(start + PERIOD), Some(7));
        assert_eq!(quiet.allow(start + PERIOD), Some(0));
    }
}
