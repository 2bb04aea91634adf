//! What can be asked of a whole pool: `zpool create`, `destroy`, `export`, `import`, `add`, `remove`, `set`, `sync`, `history`.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use super::{Answer, Failure, cx::Cx, held::Held, pool_of};
use crate::history;

mod creation;
mod import;
mod layout;
mod leave;
mod properties;
mod vdevs;

pub(super) use creation::create;
pub(super) use import::import;
pub(super) use leave::{abandon, destroy, export};
pub(super) use properties::{set, understand};
pub(super) use vdevs::{add, remove};

/// `zpool sync`
pub(crate) async fn sync(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let held = cx.host.writable(name).await.map_err(|error| error.of_pool(name))?;
    if let Some(engine) = held.engine() {
        let synced = engine.sync().await;
        synced.map_err(|error| Failure::because(&format!("sync '{name}' failed"), error))?;
    }
    Ok(Answer::default())
}

/// `zpool history`
pub(crate) async fn history(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let held: Arc<Held> = cx.host.readable(pool_of(name)).await.map_err(|error| error.of_pool(name))?;
    let (history, warnings) = history::read(&held.view()).await.map_err(Failure::new)?;
    Ok(Answer { history, warnings, ..Answer::default() })
}

/// Where its devices are found, as options of `zpool import`.
fn search_options<'a>(devices: impl Iterator<Item = &'a Path>) -> String {
    let dirs: BTreeSet<&Path> = devices.filter_map(Path::parent).collect();
    dirs.into_iter().map(|dir| format!(" -d {}", dir.display())).collect()
}
