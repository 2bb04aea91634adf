//! Who would lose a disk or an export because it is to be offered otherwise: whoever asks for that is told first.
//!
//! A setting reaches every volume below its dataset that has not one of its own nearer by. Those that have clients are
//! planned again as they would be, and what the plan takes from clients is counted. `zfs inherit -r` clears the nearer ones,
//! and with `-S` what streams brought comes to hold.

use pool::{
    Pool,
    dsl::Dataset,
    props::{PropertySet, Source, Value},
};

use super::host::Cx;
use crate::{
    host::chain,
    shares::{Offering, VOLMODE_NONE, VolumeShare, offering, property},
};

/// How far a setting goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// `-r`: everything below has none of its own afterwards.
    pub(super) recursive: bool,
    /// `-S`: where a stream brought one, that holds.
    pub(super) received: bool,
}

/// What is to be set on a dataset.
#[derive(Clone, Copy, Debug)]
pub(super) enum Setting<'a> {
    /// `offer`, in words; empty: as above it.
    Offer(&'a str),
    /// `volmode=none`
    NoVolmode,
    /// `volmode` as above it.
    VolmodeAbove,
}

/// Refuses a setting that would cut clients off.
///
/// # Errors
/// Who would be, and what to do; or it cannot be found out.
pub(super) async fn spare(
    cx: &Cx<'_>,
    view: &Pool,
    dataset: &Dataset,
    setting: Setting<'_>,
    reach: Reach,
) -> Result<(), String> {
    let Some(serving) = &cx.host.serving else { return Ok(()) };
    let name = dataset.name();
    if serving.clients_below(name, false) == 0 {
        return Ok(());
    }
    // None: it takes nothing from anybody.
    let offer = match setting {
        // What makes no sense is refused for that.
        Setting::Offer(text) if !text.is_empty() => match offering(text) {
            Ok(offer) => Some(offer),
            Err(_) => return Ok(()),
        },
        Setting::Offer(_) => Some(above(view, name).await?),
        Setting::VolmodeAbove if !is_none_above(view, name).await? => None,
        Setting::NoVolmode | Setting::VolmodeAbove => Some(Offering::None),
    };
    if offer.is_none() && !reach.received {
        return Ok(());
    }
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let (volumes, _unlisted) = dsl.volumes().await.map_err(|error| chain(&error))?;
    let (mut clients, mut losing) = (0, Vec::new());
    for volume in volumes.iter().filter(|volume| is_within(volume.name(), name)) {
        if serving.clients(volume.name()) == 0 {
            continue;
        }
        let share = VolumeShare::read(volume).await.map_err(|error| chain(&error))?;
        let set_at = match setting {
            Setting::Offer(_) => share.offer_at.clone(),
            Setting::NoVolmode | Setting::VolmodeAbove => volmode_at(view, volume).await?,
        };
        if !reaches(name, volume.name(), set_at.as_deref(), reach.recursive) {
            continue;
        }
        let offer = match brought(view, volume, name, setting, reach).await? {
            // With what cannot be understood it is not offered.
            Some(Value::Text(text)) => Some(offering(&text).unwrap_or(Offering::None)),
            Some(Value::Number(number)) => is_no_volmode(Some(number)).then_some(Offering::None),
            None => offer,
        };
        let Some(offer) = offer else { continue };
        let lose = serving.cut_off_by(volume.name(), &VolumeShare { offer, ..share }.plan());
        if lose > 0 {
            clients += lose;
            losing.push(volume.name().to_owned());
        }
    }
    match losing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} {} as they are offered now ('millpond initiators'); use '-f' to cut them off",
            clients_use(clients),
            losing.join(", ")
        )),
    }
}

/// `1 client uses`, `2 clients use`.
pub(super) fn clients_use(count: usize) -> String {
    if count == 1 { "1 client uses".to_owned() } else { format!("{count} clients use") }
}

/// Whether what is set on `dataset`, and with `recursive` cleared below it, holds for `volume`, which has it from `set_at` now.
/// What a snapshot has itself it keeps.
fn reaches(dataset: &str, volume: &str, set_at: Option<&str>, recursive: bool) -> bool {
    let is_cleared = |at: &str| recursive && !at.contains('@');
    dataset == volume || set_at.is_none_or(|at| at == dataset || !is_within(at, dataset) || is_cleared(at))
}

/// What a stream brought and `-S` makes hold for a volume: the nearest of those at the datasets that are changed.
async fn brought(
    view: &Pool,
    volume: &Dataset,
    name: &str,
    setting: Setting<'_>,
    reach: Reach,
) -> Result<Option<Value>, String> {
    if !reach.received {
        return Ok(None);
    }
    let property = match setting {
        Setting::Offer(_) => property::OFFER,
        Setting::NoVolmode | Setting::VolmodeAbove => "volmode",
    };
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let head = volume.name().split('@').next().unwrap_or_default();
    let mut at = if reach.recursive { head } else { name };
    while is_within(at, name) {
        let dataset = dsl.lookup(at).await.map_err(|error| chain(&error))?;
        let value = PropertySet::received(&dataset, property).await.map_err(|error| chain(&error))?;
        if value.is_some() {
            return Ok(value);
        }
        let Some((above, _)) = at.rsplit_once('/') else { break };
        at = above;
    }
    Ok(None)
}

/// Whether it is this dataset, a snapshot of it, or below it.
pub(super) fn is_within(name: &str, dataset: &str) -> bool {
    name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// What a dataset has of `offer` if it says nothing itself.
async fn above(view: &Pool, name: &str) -> Result<Offering, String> {
    let Some(at) = name.rfind(['/', '@']) else { return Ok(Offering::default()) };
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let parent = dsl.lookup(&name[..at]).await.map_err(|error| chain(&error))?;
    let users = PropertySet::users(&parent).await.map_err(|error| chain(&error))?;
    let text = users.iter().find(|(name, ..)| name == property::OFFER).map(|(_, text, _)| text.as_str());
    Ok(text.and_then(|text| offering(text).ok()).unwrap_or_default())
}

/// Whether a dataset has `volmode=none` if it says nothing itself.
async fn is_none_above(view: &Pool, name: &str) -> Result<bool, String> {
    let Some(at) = name.rfind('/') else { return Ok(false) };
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let parent = dsl.lookup(&name[..at]).await.map_err(|error| chain(&error))?;
    let number = PropertySet::number_of_head(&parent, "volmode").await.map_err(|error| chain(&error))?;
    Ok(is_no_volmode(number))
}

/// The dataset from which a volume, or a snapshot's, has its `volmode`.
async fn volmode_at(view: &Pool, volume: &Dataset) -> Result<Option<String>, String> {
    let head = volume.name().split('@').next().unwrap_or_default();
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let head = dsl.lookup(head).await.map_err(|error| chain(&error))?;
    let properties = head.properties().await.map_err(|error| chain(&error))?;
    Ok(properties.get("volmode").and_then(|property| match &property.source {
        Source::Inherited(from) => Some(from.clone()),
        Source::Local | Source::Received => Some(head.name().to_owned()),
        _ => None,
    }))
}

/// Whether a number of `volmode` is `none`.
pub(super) fn is_no_volmode(number: Option<u64>) -> bool {
    number == Some(VOLMODE_NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reaches_what_has_none_nearer_by() {
        for (dataset, volume, set_at, expected, if_recursive) in [
            ("tank", "tank/a/v", None, true, true),
            ("tank", "tank/a/v", Some("tank"), true, true),
            ("tank", "tank/a/v", Some("tank/a"), false, true),
            ("tank", "tank/a/v", Some("tank/a/v"), false, true),
            ("tank/a", "tank/a/v", Some("tank"), true, true),
            ("tank/a/v", "tank/a/v", Some("tank/a/v"), true, true),
            ("tank/a/v", "tank/a/v@s", Some("tank/a/v"), true, true),
            ("tank", "tank/a/v@s", Some("tank/a/v"), false, true),
            ("tank", "tank/a/v@s", Some("tank/a/v@s"), false, false),
            ("tank/a", "tank/a/v", Some("tank/ab"), true, true),
        ] {
            let reached = [false, true].map(|recursive| reaches(dataset, volume, set_at, recursive));
            assert_eq!(reached, [expected, if_recursive], "{dataset} {volume} {set_at:?}");
        }
        assert!(is_within("tank/a@s", "tank/a") && !is_within("tank/ab", "tank/a"));
    }
}
