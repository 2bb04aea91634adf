//! `zpool scrub` and `zpool resilver`: what is wanted of scans, and OpenZFS's words if it cannot be.

use engine::{
    events::ScanKind,
    scan::{Progress, ScanCommand},
};

use super::{Answer, Failure, ScanWish, cx::Cx, failure::refused, host::Mode};

impl ScanWish {
    fn command(self) -> ScanCommand {
        match self {
            Self::Scrub => ScanCommand::Scrub,
            Self::ScrubErrors => ScanCommand::ScrubErrors,
            Self::ScrubNew => ScanCommand::ScrubNew,
            Self::Pause => ScanCommand::Pause,
            Self::Stop => ScanCommand::Stop,
            Self::Resilver => ScanCommand::Resilver,
        }
    }

    /// What cannot be done if it is refused.
    fn sentence(self, pool: &str) -> String {
        match self {
            Self::Scrub | Self::ScrubErrors | Self::ScrubNew => format!("cannot scrub {pool}"),
            Self::Pause => format!("cannot pause scrubbing {pool}"),
            Self::Stop => format!("cannot cancel scrubbing {pool}"),
            Self::Resilver => format!("cannot restart resilver on {pool}"),
        }
    }

    /// Whether the scan that is under way is what is wished for.
    fn is_met_by(self, scan: &Progress) -> bool {
        let is_scrub = scan.kind == ScanKind::Scrub && scan.running;
        match self {
            Self::Scrub | Self::ScrubNew => is_scrub && scan.logged.is_none(),
            Self::ScrubErrors => is_scrub && scan.logged.is_some(),
            Self::Pause | Self::Stop | Self::Resilver => false,
        }
    }
}

/// Begins, halts or ends a scan.
pub(crate) async fn scan(cx: &Cx<'_>, pool: &str, wish: ScanWish) -> Result<Answer, Failure> {
    let what = wish.sentence(pool);
    let held = cx.host.writable(pool).await.map_err(|error| error.of_change(&what, pool))?;
    let Some(engine) = held.engine() else {
        return Err(Failure::because(&what, "pool is read-only"));
    };
    // A command has just opened the pool: a scrub that is under way was left in the middle, and goes on with whoever asks
    // for one.
    if cx.host.mode() == Mode::Command && engine.scan_progress().is_some_and(|scan| wish.is_met_by(&scan)) {
        return Ok(Answer::default());
    }
    engine.scan(wish.command()).await.map_err(|error| refused(&what, &error))?;
    if cx.record.is_some() {
        cx.change(&held, &what, |_| Box::pin(async { Ok(()) })).await?;
    }
    Ok(Answer::default())
}
