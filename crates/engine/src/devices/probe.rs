//! Whether a device is there, and answers: asked of itself, or of who opens it, and never for longer than [`PROBE`].
//!
//! One that does not answer says nothing: it may be busy with a bad sector, at rest, or about to fail. What follows from that is
//! for whoever asks.

use std::{io, sync::Arc, time::Duration};

use disk::{Disk, DiskFuture};
use tokio::time::timeout;

use super::Opener;
use crate::{error::in_full, events::DeviceName};

/// How long a device may take to say that it is there.
pub(super) const PROBE: Duration = Duration::from_secs(10);
/// Probes in a row that must fail before a device that is there counts as failed.
pub(super) const PROBES_FAILED: u32 = 3;

/// What a probe came to.
pub(super) enum Probed {
    Here,
    Gone,
    Failing(String),
    /// It does not answer.
    Silent,
}

/// Whether it is there and works.
pub(super) async fn probe(disk: &Arc<dyn Disk>) -> Probed {
    probed(disk.probe()).await
}

/// Whether it is there, without waking it: that it works is not said.
pub(super) async fn glance(disk: &Arc<dyn Disk>) -> Probed {
    probed(disk.presence()).await
}

/// Whether it is there and works, where it does not matter how it does not.
pub(crate) async fn answers(disk: &Arc<dyn Disk>) -> bool {
    matches!(probe(disk).await, Probed::Here)
}

async fn probed(answer: DiskFuture<'_, ()>) -> Probed {
    match timeout(PROBE, answer).await {
        Ok(Ok(())) => Probed::Here,
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Probed::Gone,
        Ok(Err(error)) => Probed::Failing(in_full(&error)),
        Err(_) => Probed::Silent,
    }
}

/// What the opener finds of a device.
pub(super) async fn open(opener: &dyn Opener, device: &DeviceName) -> Option<Arc<dyn Disk>> {
    match timeout(PROBE, opener.open(device)).await {
        Ok(Ok(disk)) => return Some(disk),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(Err(error)) => tracing::debug!(device = device.name, %error, "cannot be opened"),
        Err(_) => tracing::debug!(device = device.name, "does not answer"),
    }
    None
}
