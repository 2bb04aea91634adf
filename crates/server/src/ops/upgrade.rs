//! Features that an open pool gets: `zpool upgrade` gives it those that a new one would have, and its property `compatibility`
//! says which may come at all.

use engine::{create, upgrade};
use pool::{Pool, features::Feature};

use super::{Answer, Failure, cx::Cx, devices};

/// Enables what [`create::features`] says, by the pool's property `compatibility`.
pub(super) async fn upgrade(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let what = format!("cannot upgrade '{name}'");
    let held = cx.host.writable(name).await.map_err(|error| error.of_change(&what, name))?;
    let view = held.view();
    let mut lacking =
        create::features(compatibility(&view)).map_err(|error| devices::refused(&what, &error))?;
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

/// The pool's property.
pub(super) fn compatibility(pool: &Pool) -> &str {
    pool.config().str("compatibility").unwrap_or("off")
}

/// Adds a feature behind those it needs.
pub(super) fn enable(feature: &'static Feature, enabled: &mut Vec<&'static str>) {
    if enabled.contains(&feature.guid) {
        return;
    }
    for needed in feature.depends.iter().filter_map(|guid| Feature::by_guid(guid)) {
        enable(needed, enabled);
    }
    enabled.push(feature.guid);
}

/// Guids of these features and those they need, as far as the pool lacks them.
pub(super) fn lacking(pool: &Pool, features: &[&'static Feature]) -> Vec<&'static str> {
    let mut wanted = Vec::new();
    for &feature in features {
        enable(feature, &mut wanted);
    }
    wanted.retain(|guid| pool.features().iter().all(|known| known.guid != *guid));
    wanted
}

/// Refuses features, by guid, that somebody lacks who is to use a pool with this `compatibility`.
///
/// # Errors
/// Which is left out, or why nobody can tell, with the remedy.
pub(super) fn permit(compatibility: &str, guids: &[&str]) -> Result<(), String> {
    const REMEDY: &str = "consider setting 'compatibility' to a less restrictive set, or to 'off'";
    let permitted = create::permitted(compatibility).map_err(|error| format!("{error}\n{REMEDY}"))?;
    let mut features = guids.iter().filter_map(|guid| Feature::by_guid(guid));
    match features.find(|feature| !permitted.contains(feature)) {
        None => Ok(()),
        Some(feature) => {
            let name = feature.name;
            Err(format!(
                "feature '{name}' is not in the pool's compatibility set '{compatibility}'\n{REMEDY}"
            ))
        }
    }
}
