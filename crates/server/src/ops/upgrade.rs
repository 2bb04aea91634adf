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
    cx.change(&held, &what, move |cx| Box::pin(async move { upgrade::enable(cx, &lacking).await })).await?;
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
    // What it leaves out may be what the set is there for: whoever lacks the list is not told to do without.
    let permitted = create::permitted(compatibility).map_err(|error| {
        let [own, shipped] = create::COMPATIBILITY_DIRECTORIES;
        format!(
            "{error}\nthe pool's compatibility set is '{compatibility}'; lists named without a path are looked for in '{own}' \
             and '{shipped}'"
        )
    })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice was to switch off what protects a boot pool, because this host did not have the list.
    #[test]
    fn who_lacks_a_list_is_told_where_it_belongs_and_not_to_do_without() {
        const ZSTD: [&str; 1] = ["org.freebsd:zstd_compress"];
        let said = permit("nonsense", &ZSTD).unwrap_err();
        assert_eq!(
            said,
            "could not read/parse feature file(s): nonsense\nthe pool's compatibility set is 'nonsense'; lists named without a \
             path are looked for in '/etc/zfs/compatibility.d' and '/usr/share/zfs/compatibility.d'"
        );
        let said = permit("grub2-2.12", &ZSTD).unwrap_err();
        assert!(
            said.starts_with("feature 'zstd_compress' is not in") && said.ends_with("or to 'off'"),
            "{said}"
        );
        assert_eq!(permit("off", &ZSTD), Ok(()));
    }
}
