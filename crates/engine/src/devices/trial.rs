//! Whether a device that is to come into the pool takes writes, found out before the syncing task has to wait for it: its
//! labels are written within a transaction group, and one that swallows writes would hold that up until it has failed.

use std::{io, sync::Arc, time::Duration};

use disk::{Disk, IoBuf};
use tokio::time::timeout;

use super::refused;
use crate::{dsl::OpError, error::in_full, suspend::Suspension, write::ours::Ours};

/// Longest that it may take: a drive at rest has to spin up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes at the start of a device that are written back as they are. Members of a pool have nothing there.
const BYTES: usize = 4096;

/// Writes to the device what it has there already. Whatever else keeps it from being used is for the command to say.
pub(super) async fn try_out(disk: Arc<dyn Disk>, suspension: &Arc<Suspension>) -> Result<(), OpError> {
    let info = disk.info();
    if info.read_only || info.size < BYTES as u64 {
        return Ok(());
    }
    let disk = Ours::over(disk, suspension);
    // In a task of its own: a write that nobody waits for any more keeps its disk, and with that its lock, until it has ended.
    let trial = tokio::spawn(async move {
        let start = disk.read(0, IoBuf::with_len(BYTES)).await?;
        disk.write(0, start.freeze()).await?;
        disk.flush().await
    });
    match timeout(PATIENCE, trial).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) if error.kind() != io::ErrorKind::TimedOut => Err(refused(in_full(&error))),
        Ok(Err(error)) => Err(refused(error.to_string())),
        Ok(Ok(Err(_))) | Err(_) => Err(refused(format!("{} does not answer", info.path))),
    }
}
