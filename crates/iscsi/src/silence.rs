//! How long a peer may say nothing: after a while it is asked for a sign of life, after as long again it is given up.

use std::time::Duration;

use tokio::time::Instant;

/// What one connection's peer was heard of.
#[derive(Debug)]
pub(crate) struct Silence {
    after: Duration,
    heard: Instant,
    asked: Option<Instant>,
}

/// What to do at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Nothing.
    Wait,
    /// Ask it.
    Ask,
    /// It is gone.
    Gone,
}

impl Silence {
    /// Asks `after` the last that was heard.
    pub(crate) fn new(after: Duration) -> Self {
        Self { after, heard: Instant::now(), asked: None }
    }

    /// Something came.
    pub(crate) fn heard(&mut self) {
        self.heard = Instant::now();
        self.asked = None;
    }

    /// When to look next.
    pub(crate) fn due(&self) -> Instant {
        let since = self.asked.unwrap_or(self.heard);
        since.checked_add(self.after).unwrap_or(since)
    }

    /// Looks; what it says is done.
    pub(crate) fn look(&mut self) -> Sign {
        let now = Instant::now();
        if now < self.due() {
            return Sign::Wait;
        }
        match self.asked.replace(now) {
            None => Sign::Ask,
            Some(_) => Sign::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, sleep_until};

    use super::*;

    /// Looks when it is due, until there is something to do: what, and how long that took.
    async fn next(silence: &mut Silence) -> (Sign, Duration) {
        let start = Instant::now();
        loop {
            sleep_until(silence.due()).await;
            match silence.look() {
                Sign::Wait => {}
                sign => return (sign, start.elapsed()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_minute_after_the_last_word_it_is_asked_and_after_another_gone() {
        let half_a_minute = Duration::from_secs(30);
        for last_word in [0, 1, 17, 29, 30] {
            let mut silence = Silence::new(half_a_minute);
            sleep(Duration::from_secs(last_word)).await;
            silence.heard();
            assert_eq!(next(&mut silence).await, (Sign::Ask, half_a_minute), "{last_word}");
            sleep(Duration::from_secs(last_word)).await;
            silence.heard(); // the answer, at last
            assert_eq!(next(&mut silence).await, (Sign::Ask, half_a_minute), "{last_word}");
            assert_eq!(next(&mut silence).await, (Sign::Gone, half_a_minute), "{last_word}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_was_due_before_something_came_finds_nothing_to_do() {
        let mut silence = Silence::new(Duration::from_secs(30));
        sleep_until(silence.due()).await;
        silence.heard();
        assert_eq!(silence.look(), Sign::Wait);
    }
}
