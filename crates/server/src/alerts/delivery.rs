//! From a notice to whom it is for: into the daemon's log, into the queue of each sink that wants it, and out of that by a task of
//! its own.
//!
//! A notice leaves its queue when the other side has taken it. A sink that fails for a while is a finding like any other, of which
//! all the others are told.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use engine::BoxFuture;
use tokio::{sync::Notify, task::JoinHandle};

use super::{
    Alerts, Maker,
    config::{Config, ConfigError, SinkConfig},
    message::{self, Message},
    outbox::{self, Outbox, Pace},
    sinks::Sink,
    words,
};
use crate::api::alerts::{Alert, Finding, Kind, Notice, Occasion, Severity, Tested};

/// A sink at work.
pub(super) struct Running {
    pub(super) config: SinkConfig,
    pub(super) wake: Arc<Notify>,
    pub(super) task: JoinHandle<()>,
}

impl Alerts {
    /// Into the log, and into the queues of those who want it.
    pub(super) fn tell(&self, now: u64, notices: Vec<Notice>) {
        if notices.is_empty() {
            return;
        }
        for notice in &notices {
            let line = message::headline(notice);
            match (notice.occasion, notice.alert.finding.severity) {
                (Occasion::Resolved, _) | (_, Severity::Info) => {
                    tracing::info!(target: "millpond::alert", "{line}");
                }
                (_, Severity::Warning) => tracing::warn!(target: "millpond::alert", "{line}"),
                (_, Severity::Critical) => tracing::error!(target: "millpond::alert", "{line}"),
            }
        }
        {
            let mut ledger = self.ledger.lock();
            let config = self.config.lock().0.clone();
            // Who is told of what nobody knows so far: it waits for all that there were.
            if !self.is_known.load(Relaxed) {
                for outbox in ledger.outboxes.values_mut() {
                    notices.iter().for_each(|notice| outbox.push(now, notice.clone()));
                }
            }
            for sink in &config.sinks {
                let outbox = ledger.outboxes.entry(sink.name.clone()).or_default();
                for notice in notices.iter().filter(|notice| wants(sink, &notice.alert)) {
                    outbox.push(now, notice.clone());
                }
            }
        }
        self.running.lock().values().for_each(|sink| sink.wake.notify_one());
        self.dirty.notify_one();
    }

    /// Sends what one sink's queue has, whenever it is due.
    pub(super) fn deliver(
        self: Arc<Self>,
        config: SinkConfig,
        sink: Arc<dyn Sink>,
        wake: Arc<Notify>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let pace = Pace::of(&config);
            loop {
                let wait = self.with_outbox(&config.name, |outbox, now| {
                    outbox.heed(now);
                    outbox.due(now, pace).map(|due| due.saturating_sub(now))
                });
                match wait {
                    Some(0) => {}
                    Some(seconds) => {
                        tokio::select! {
                            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                            () = wake.notified() => {}
                        }
                        continue;
                    }
                    None => {
                        wake.notified().await;
                        continue;
                    }
                }
                let Some(batch) = self.with_outbox(&config.name, Outbox::take) else { continue };
                let message =
                    Message::new(&self.host(), (self.clock)(), batch.notices.clone(), batch.dropped);
                let outcome = sink.send(&message).await;
                self.with_outbox(&config.name, |outbox, now| match &outcome {
                    Ok(_) => outbox.succeeded(now, &batch),
                    Err(error) => {
                        let after = error.after.map(|after| after.as_secs());
                        outbox.failed(now, error.text.clone(), after, error.partly);
                    }
                });
                match outcome {
                    Ok(answer) => tracing::info!(sink = config.name, answer, "alerts delivered"),
                    Err(error) => tracing::warn!(sink = config.name, %error, "alerts not delivered"),
                }
                self.dirty.notify_one();
            }
        })
    }

    fn with_outbox<T>(&self, sink: &str, act: impl FnOnce(&mut Outbox, u64) -> T) -> T {
        let now = (self.clock)();
        let mut ledger = self.ledger.lock();
        act(ledger.outboxes.entry(sink.to_owned()).or_default(), now)
    }

    /// Sinks that fail, as findings.
    pub(super) fn failing(&self) -> Vec<Finding> {
        let about = |sink: &String| Finding {
            sink: Some(sink.clone()),
            ..Finding::new(Kind::Delivery, Severity::Warning, 1)
        };
        let broken = self.broken.lock().clone();
        let ledger = self.ledger.lock();
        let waiting = |name: &String| ledger.outboxes.get(name).map_or(0, Outbox::len);
        let mut findings: Vec<Finding> =
            broken.iter().map(|(name, why)| words::unusable(about(name), waiting(name), why)).collect();
        let failing = ledger
            .outboxes
            .iter()
            .filter(|(name, outbox)| outbox.failures >= outbox::FAILURES_TELL && !broken.contains_key(*name));
        findings.extend(failing.map(|(name, outbox)| {
            let error = outbox.last_error.as_deref().unwrap_or("it fails");
            words::delivery(about(name), outbox.failures, outbox.len(), error)
        }));
        findings
    }

    /// Sends a test through one sink or all, now, and says what came of it.
    ///
    /// # Errors
    /// There is no such sink.
    pub fn test<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Vec<Tested>, ConfigError>> {
        Box::pin(async move {
            let config = self.config.lock().0.clone();
            test(&config, name, &self.host(), (self.clock)(), &self.maker).await
        })
    }
}

/// Whether a sink is to be told of this. Who heard of it at its worst hears of its end, however mild it was by then.
pub(super) fn wants(sink: &SinkConfig, alert: &Alert) -> bool {
    let finding = &alert.finding;
    let is_own = finding.kind == Kind::Delivery && finding.sink.as_ref() == Some(&sink.name);
    let in_pools = sink.pools.is_empty() || finding.pool.is_empty() || sink.pools.contains(&finding.pool);
    let severity = finding.severity.max(alert.worst);
    severity >= sink.min_severity && in_pools && !is_own
}

/// A sink as configured.
///
/// # Errors
/// Why it cannot be.
pub(super) fn made(maker: &Maker, config: &SinkConfig, host: &str) -> Result<Arc<dyn Sink>, String> {
    config.check_limits()?;
    maker(config, host)
}

pub(super) fn test<'a>(
    config: &'a Config,
    name: Option<&'a str>,
    host: &'a str,
    now: u64,
    maker: &'a Maker,
) -> BoxFuture<'a, Result<Vec<Tested>, ConfigError>> {
    Box::pin(async move {
        let chosen: Vec<&SinkConfig> =
            config.sinks.iter().filter(|sink| name.is_none_or(|name| sink.name == name)).collect();
        if let (Some(name), true) = (name, chosen.is_empty()) {
            return Err(ConfigError::NoSink(name.to_owned()));
        }
        let mut tested = Vec::new();
        for sink in chosen {
            let finding = words::test(&sink.name);
            let alert = Alert::new(0, now, finding);
            let notices = vec![Notice { occasion: Occasion::Test, time: now, alert }];
            let message = Message::new(host, now, notices, 0);
            let outcome = match made(maker, sink, host) {
                Ok(sink) => sink.send(&message).await.map_err(|error| error.text),
                Err(error) => Err(error),
            };
            let (delivered, answer) = outcome.map_or_else(|error| (false, error), |answer| (true, answer));
            tested.push(Tested { sink: sink.name.clone(), delivered, answer });
        }
        Ok(tested)
    })
}
