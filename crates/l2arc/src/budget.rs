//! How much may be written to a device: a bucket of bytes that fills with time.
//!
//! Flash wears with what is written to it, and its endurance is sold as device writes per day. The bucket fills at that
//! rate and holds a limited burst; a round of writing may overdraw it by what that round turns out to need, and the
//! next one waits until that is paid. By such a bucket the index grows, too, when what it lost is found again.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes that may be written, and from when on.
#[derive(Debug)]
pub(crate) struct Budget {
    /// May be negative: overdrawn.
    bytes: f64,
    /// When `bytes` was true.
    at: Instant,
    burst: u64,
}

impl Budget {
    /// A full bucket.
    pub(crate) fn new(burst: u64) -> Self {
        Self { bytes: burst as f64, at: Instant::now(), burst }
    }

    /// Lets time pass at `rate` bytes per second; what may be written now.
    pub(crate) fn available(&mut self, rate: f64) -> u64 {
        let now = Instant::now();
        let filled = self.bytes + now.duration_since(self.at).as_secs_f64() * rate;
        (self.bytes, self.at) = (filled.min(self.burst as f64), now);
        self.bytes.max(0.0) as u64
    }

    /// How long until `bytes` may be written (or a full bucket, if that is less); `None`: never, at that rate.
    pub(crate) fn wait(&mut self, bytes: u64, rate: f64) -> Option<Duration> {
        self.available(rate);
        let lacking = bytes.min(self.burst) as f64 - self.bytes;
        if lacking <= 0.0 {
            return Some(Duration::ZERO);
        }
        // Rounded up to the timer's tick: a wait that is too short is followed by another.
        (rate > 0.0).then(|| Duration::from_secs_f64((lacking / rate).clamp(0.001, 1e9)))
    }

    /// Bytes were written.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.bytes -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_overdrawn_is_waited_for() {
        let mut budget = Budget::new(1000);
        assert_eq!(budget.wait(5000, 100.0), Some(Duration::ZERO), "a full bucket is enough for anything");
        budget.spend(1500);
        assert_eq!(budget.available(100.0), 0);
        let wait = budget.wait(500, 100.0).unwrap();
        assert_eq!(wait.as_secs(), 10);
        tokio::time::sleep(wait).await;
        assert!((500..=501).contains(&budget.available(100.0)));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(budget.available(100.0), 1000, "no more than the burst");
        budget.spend(1000);
        assert_eq!(budget.wait(1, 0.0), None);
    }
}
