//! What signals tell the daemon: to end, not to wait any longer while it does, or to read its files again.
//!
//! ```text
//!   SIGTERM, SIGINT                  end; once more after the grace: now
//!   SIGHUP   a terminal was closed   the same
//!            no terminal             the files of TLS are read again
//!            under nohup             nothing
//! ```
//!
//! Both kinds are listened for from the beginning: one that comes while pools are opened ends that, and one that asks for
//! certificates then ends nothing.

use std::{io, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    alerts::Alerts,
    certificates::{self, NbdTls},
    host, hostid,
};

/// How long the end may take, from the first signal on, before another one is heeded: whoever closes a terminal sends several at
/// once.
const GRACE: Duration = Duration::from_secs(10);

/// SIGTERM, SIGINT, and SIGHUP of a terminal that is closed: none is a reason to leave pools as a crash would.
pub(super) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
    /// Where there is a terminal.
    hangup: Option<Signal>,
    /// When the first of them came.
    first: Option<Instant>,
}

impl StopSignal {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: Hangup::Stop.signal()?,
            first: None,
        })
    }

    pub(super) async fn wait(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = hangup => {}
        }
        self.first.get_or_insert_with(Instant::now);
    }

    /// Another one that is sent when the [grace](GRACE) is over.
    async fn again(&mut self) {
        sleep_until(self.first.map_or_else(Instant::now, |first| first + GRACE)).await;
        while self.wait().now_or_never().is_some() {}
        self.wait().await;
    }

    /// What comes of it, unless somebody says again that it is to be now.
    pub(super) async fn unless_again<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.again() => None,
        }
    }

    /// What is in flight is finished, unless somebody says again that it is to be now.
    pub(super) async fn finish(&mut self, tasks: &mut JoinSet<()>) {
        let _given_up = self.unless_again(async { while tasks.join_next().await.is_some() {} }).await;
    }
}

/// What SIGHUP tells this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hangup {
    /// Nothing, under `nohup`.
    Nothing,
    /// Its terminal was closed.
    Stop,
    /// It has none: somebody asks it to read its files again.
    Reload,
}

impl Hangup {
    fn of_this_process() -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        match () {
            () if ignores_hangup(&read("status")) => Self::Nothing,
            () if has_terminal(&read("stat")) => Self::Stop,
            () => Self::Reload,
        }
    }

    /// The signal, if this is what it tells.
    pub(super) fn signal(self) -> io::Result<Option<Signal>> {
        let is_meant = Self::of_this_process() == self;
        is_meant.then(|| signal(SignalKind::hangup())).transpose()
    }
}

/// Reads certificates and keys again whenever somebody says so. Those that cannot be used change nothing: when those that
/// hold run out is told as before.
pub(super) async fn read_again(
    signal: Option<Signal>,
    tls: Option<NbdTls>,
    server: nbd::Server,
    alerts: Arc<Alerts>,
) {
    let (Some(mut signal), Some(tls)) = (signal, tls) else { return };
    while signal.recv().await.is_some() {
        match tls.load() {
            Ok((tls, expiries)) => {
                server.set_tls(tls);
                tracing::info!("nbd: the files of TLS were read again");
                for warning in certificates::run_out(&expiries, hostid::now()) {
                    tracing::warn!("nbd: {warning}");
                }
                alerts.set_expiries(expiries);
            }
            Err(error) => tracing::error!("nbd: TLS stays as it was: {}", host::chain(&error)),
        }
    }
}

/// Whether whoever started this process wants it to outlive its terminal, by what `/proc/self/status` says.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The first signal is the lowest bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Whether this process has a terminal, by what `/proc/self/stat` says.
fn has_terminal(stat: &str) -> bool {
    // Behind the program's name, in which anything may stand: state, parent, group, session, terminal.
    let terminal = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(4));
    terminal.is_none_or(|terminal| terminal != "0")
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpid, kill_process};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_process_has_a_terminal_whatever_it_is_called() {
        assert!(has_terminal("7 (mill) 0 pond) S 1 7 7 34816 7 4194560"));
        assert!(!has_terminal("7 (mill) 1 pond) S 1 7 7 0 -1 4194560"));
        assert!(has_terminal(""), "who cannot know stops");
    }

    /// A burst that came within the grace was heeded at its end, and what was being finished was given up; at once where it was
    /// no operation, but what clients had in flight.
    #[tokio::test(start_paused = true)]
    async fn signals_that_come_together_are_one_and_a_later_one_is_another() {
        let mut signals = StopSignal::new().unwrap();
        let send = async || {
            // Not SIGHUP, which is none under nohup.
            kill_process(getpid(), rustix::process::Signal::TERM).unwrap();
            // It may be another thread that gets it, which no virtual clock waits for.
            let (_never, delivered) = std::sync::mpsc::channel::<()>();
            let _over = delivered.recv_timeout(Duration::from_millis(20));
            tokio::task::yield_now().await;
        };
        send().await;
        signals.wait().await;
        let begun = Instant::now();
        let mut burst = std::pin::pin!(signals.again());
        assert!(timeout(GRACE / 2, &mut burst).await.is_err());
        send().await;
        send().await;
        assert!(timeout(GRACE, &mut burst).await.is_err(), "they came within the grace");
        send().await;
        burst.await;
        assert!(begun.elapsed() < 2 * GRACE);
        let mut signals = StopSignal::new().unwrap();
        send().await;
        signals.wait().await;
        send().await;
        let mut tasks = JoinSet::new();
        tasks.spawn(tokio::time::sleep(GRACE / 2));
        signals.finish(&mut tasks).await;
        assert!(tasks.is_empty(), "it was cut off");
        tasks.spawn(tokio::time::sleep(10 * GRACE));
        let mut finishing = std::pin::pin!(signals.finish(&mut tasks));
        assert!(timeout(GRACE, &mut finishing).await.is_err());
        send().await;
        assert!(timeout(GRACE, finishing).await.is_ok(), "a later one means now");
    }
}
