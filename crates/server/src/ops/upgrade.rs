//! `zpool upgrade`: a pool gets the features that a new one would have.

use engine::{create, upgrade};
use pool::features::Feature;

use super::{Answer, Failure, cx::Cx, devices};

/// Enables what [`create::features`] says, by the pool's property `compatibility`.
pub(super) async fn upgrade(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let what = format!("cannot upgrade '{name}'");
    let held = cx.host.writable(name).await.map_err(|error| error.of_change(&what, name))?;
    let view = held.view();
    let compatibility = view.config().str("compatibility").unwrap_or("off");
    let mut lacking = create::features(compatibility).map_err(|error| devices::refused(&what, &error))?;
    lacking.retain(|guid| view.features().iter().all(|known| known.guid != *guid));
    if lacking.is_empty() {
        let line = format!("Pool '{}' already has all features enabled that a new pool has.", held.name());
        return Ok(Answer { lines: vec![line], ..Answer::default() });
    }
    let mut lines = vec![format!("Enabled the following features on '{}':", held.name())];
    lines.extend(
        lacking.iter().filter_map(|guid| Feature::by_guid(guid)).map(|feature| format!("  {}", feature.name)),
    );
    cx.change(&held, &what, false, move |cx| Box::pin(async move { upgrade::enable(cx, &lacking).await }))
        .await?;
    let warnings = cx.served(&held).await;
    Ok(Answer { lines, warnings, ..Answer::default() })
}
