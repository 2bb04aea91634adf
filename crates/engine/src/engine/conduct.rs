//! How a pool behaves when devices fail: what its properties say, and what a suspension does.

use std::sync::Arc;

use pool::{Pool, dmu::ReadError, zap::Zap};

use super::Shared;
use crate::{events::Event, suspend::OnChange};

/// What the pool's properties say about failing devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conduct {
    /// While the pool is suspended new writes fail instead of waiting, and so do reads of what devices have that are away
    /// (`failmode=continue`).
    pub is_failing: bool,
    /// The system is to stop instead (`failmode=panic`), which a program does not do.
    pub panics: bool,
    /// A new device in the place of one that is gone takes its place in the pool (`autoreplace`).
    pub autoreplace: bool,
    /// The pool grows with its devices (`autoexpand`).
    pub autoexpand: bool,
}

impl Conduct {
    /// As the pool has it.
    pub(super) async fn of(view: &Pool) -> Result<Self, ReadError> {
        let Some(object) = view.directory().get_u64("pool_props").await? else { return Ok(Self::default()) };
        let properties = Zap::open_in(view.mos(), object).await?;
        let number = async |name| Ok::<u64, ReadError>(properties.get_u64(name).await?.unwrap_or(0));
        let failmode = number("failmode").await?;
        Ok(Self {
            is_failing: failmode == 1,
            panics: failmode == 2,
            autoreplace: number("autoreplace").await? == 1,
            autoexpand: number("autoexpand").await? == 1,
        })
    }
}

impl Shared {
    /// The pool's properties say this now.
    pub(super) fn conduct_is(&self, conduct: Conduct) {
        self.suspension.let_reads_fail(conduct.is_failing);
        self.conduct.store(Arc::new(conduct));
    }
}

/// What a suspension means for clients, and for those who read events.
pub(super) fn on_suspension(shared: &Arc<Shared>, name: &str) -> OnChange {
    let (shared, name) = (Arc::downgrade(shared), name.to_owned());
    Box::new(move |why| {
        let Some(shared) = shared.upgrade() else { return };
        let Some(why) = why else {
            tracing::warn!(pool = name, "the pool goes on");
            shared.txgs.fail_changes(None);
            shared.sweeps.go_on();
            return shared.events.tell(Event::Resumed);
        };
        tracing::error!(pool = name, %why, "the pool is suspended");
        let conduct = **shared.conduct.load();
        if conduct.panics {
            tracing::error!(pool = name, "failmode=panic: only this pool stops, as with failmode=wait");
        }
        if conduct.is_failing {
            shared.txgs.fail_changes(Some(format!("pool '{name}' is suspended: {why}")));
        }
        shared.events.tell(Event::Suspended { why: why.to_string() });
    })
}
