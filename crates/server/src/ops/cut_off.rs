//! Who would lose a disk or an export because it is to be offered otherwise, or its writes because the disk gets a write cache
//! that its host does not know of: whoever asks for that is told first.
//!
//! A setting reaches every volume below its dataset that has not one of its own nearer by. Those that have clients are
//! planned again as they would be, and what the plan takes from clients is counted. `zfs inherit -r` clears the nearer ones,
//! and with `-S` what streams brought comes to hold.

use std::fmt;

use pool::{
    Pool,
    dsl::{Dataset, DatasetKind},
    props::{PropertySet, Source, Value},
};

use super::cx::Cx;
use crate::{
    host::chain,
    shares::{Plan, VOLMODE_NONE, VolumeShare, property, set_at},
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
    /// One of [`property::OF_VOLUMES`], and its text; none: as above it.
    Ours(&'a str, Option<&'a str>),
    /// `volmode=none`
    NoVolmode,
    /// `volmode` as above it.
    VolmodeAbove,
}

impl<'a> Setting<'a> {
    fn property(self) -> &'a str {
        match self {
            Self::Ours(name, _) => name,
            Self::NoVolmode | Self::VolmodeAbove => "volmode",
        }
    }
}

/// What a property is, and on which dataset that is set.
#[derive(Clone, Debug)]
struct Set {
    value: Value,
    at: String,
    /// A stream brought it there.
    received: bool,
}

impl Set {
    fn on(dataset: &str, value: Value) -> Self {
        Self { value, at: dataset.to_owned(), received: false }
    }

    /// As `volume` has it: text and source.
    fn text(self, volume: &str) -> Option<(String, Source)> {
        let source = match (self.at == volume, self.received) {
            (false, _) => Source::Inherited(self.at),
            (true, false) => Source::Local,
            (true, true) => Source::Received,
        };
        match self.value {
            Value::Text(text) => Some((text, source)),
            Value::Number(_) => None,
        }
    }
}

/// Clients, and the volumes and snapshots that they use.
#[derive(Debug, Default)]
struct Users {
    clients: usize,
    volumes: Vec<String>,
}

impl Users {
    fn add(&mut self, volume: &Dataset, clients: usize) {
        if clients > 0 {
            self.clients += clients;
            self.volumes.push(volume.name().to_owned());
        }
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", clients_use(self.clients), self.volumes.join(", "))
    }
}

/// Refuses a setting that would cut clients off, or switch the write cache on under hosts that found it off: these send no
/// flushes, and would lose what they take for stable. With `force` only another block size, under which nobody can be cut off:
/// hosts would go on with the one that they know. Under whom the write cache comes on is a warning then.
///
/// # Errors
/// Who would be, and what to do; or it cannot be found out.
pub(super) async fn spare(
    cx: &Cx<'_>,
    view: &Pool,
    dataset: &Dataset,
    setting: Setting<'_>,
    reach: Reach,
    force: bool,
) -> Result<Option<String>, String> {
    let Some(serving) = &cx.host.serving else { return Ok(None) };
    let name = dataset.name();
    let is_block = setting.property() == property::BLOCK;
    let is_cache = setting.property() == property::WRITE_CACHE;
    if force && !is_block && !is_cache {
        return Ok(None);
    }
    let used = serving.used(|dataset| is_within(dataset, name));
    if used.is_empty() {
        return Ok(None);
    }
    // None: nobody says anything.
    let set = match setting {
        Setting::Ours(_, Some(text)) => Some(Set::on(name, Value::Text(text.to_owned()))),
        Setting::NoVolmode => Some(Set::on(name, Value::Number(VOLMODE_NONE))),
        Setting::Ours(_, None) | Setting::VolmodeAbove => above(view, name, setting).await?,
    };
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let (volumes, unlisted) = dsl.volumes().await.map_err(|error| chain(&error))?;
    let is_listed = |name: &str| volumes.iter().any(|volume| volume.name() == name);
    if let Some(error) = unlisted.first().filter(|_| !force)
        && let Some(name) = used.iter().find(|name| !is_listed(name))
    {
        return Err(format!(
            "cannot find out whether clients of '{name}' would be cut off: {}; use '-f' to do it all the same",
            chain(error)
        ));
    }
    let (mut losing, mut deceived, mut problem) = (Users::default(), Users::default(), None);
    for volume in volumes.iter().filter(|volume| used.contains(volume.name())) {
        let set_at = match setting {
            Setting::Ours(property, _) => text_at(volume, property).await?,
            Setting::NoVolmode | Setting::VolmodeAbove => volmode_at(volume).await?,
        };
        if !reaches(name, volume.name(), set_at.as_deref(), reach.recursive) {
            continue;
        }
        let set = brought(view, volume, name, setting, reach).await?.or_else(|| set.clone());
        let share = share_with(volume, setting, set).await?;
        // With what cannot be understood it is not offered.
        let plan = if share.problem.is_some() { Plan::default() } else { share.plan() };
        let lose = serving.cut_off_by(volume.name(), &plan, is_block);
        losing.add(volume, lose);
        if lose > 0 {
            problem = problem.or(share.problem);
        }
        // Nothing is ever written to a snapshot.
        if is_cache && volume.kind() == DatasetKind::Head {
            deceived.add(volume, serving.deceived_by(volume.name(), &plan));
        }
    }
    if losing.clients == 0 || (force && !is_block) {
        return under_write_cache(&deceived, force);
    }
    let problem = problem.map(|problem| format!("{problem}\n")).unwrap_or_default();
    let remedy = match is_block {
        true => ": disconnect them first, because a disk cannot change its block size under them",
        false => "; use '-f' to cut them off",
    };
    let offered = if losing.volumes.len() == 1 { "it is offered" } else { "they are offered" };
    Err(format!("{problem}{losing} as {offered} now ('millpond initiators'){remedy}"))
}

/// What becomes of a setting by which these have a disk with a write cache that they do not know of.
fn under_write_cache(deceived: &Users, force: bool) -> Result<Option<String>, String> {
    match (deceived.clients, force) {
        (0, _) => Ok(None),
        (_, false) => Err(format!(
            "{deceived} and found no write cache ('millpond initiators'): hosts look once, and would go on without flushes, so \
             that a crash takes what they hold for stable; log them out first, or use '-f' of 'zfs set' or 'millpond share set' \
             and let each log out and in again, by all of its paths"
        )),
        (_, true) => Ok(Some(format!(
            "{deceived} and found no write cache, which there is now: hosts look once, so let each log out and in again, by all \
             of its paths; until then a crash takes what it holds for stable"
        ))),
    }
}

/// How a volume is to be offered with what is set for it.
async fn share_with(volume: &Dataset, setting: Setting<'_>, set: Option<Set>) -> Result<VolumeShare, String> {
    let share = match setting {
        Setting::Ours(property, _) => {
            let set = set.and_then(|set| set.text(volume.name()));
            VolumeShare::with(volume, property, set).await
        }
        Setting::NoVolmode | Setting::VolmodeAbove => {
            let volmode = set.and_then(|set| set.value.as_number());
            VolumeShare::as_set(volume).await.map(|share| share.with_volmode(volmode))
        }
    };
    share.map_err(|error| chain(&error))
}

/// `1 client uses`, `2 clients use`.
pub(super) fn clients_use(count: usize) -> String {
    if count == 1 { "1 client uses".to_owned() } else { format!("{count} clients use") }
}

/// Whether what is set on `dataset`, and with `recursive` cleared below it, holds for `volume`, which has it from `set_at` now.
fn reaches(dataset: &str, volume: &str, set_at: Option<&str>, recursive: bool) -> bool {
    dataset == volume || recursive || set_at.is_none_or(|at| at == dataset || !is_within(at, dataset))
}

/// What a stream brought and `-S` makes hold for a volume: the nearest of those at the datasets that are changed.
async fn brought(
    view: &Pool,
    volume: &Dataset,
    name: &str,
    setting: Setting<'_>,
    reach: Reach,
) -> Result<Option<Set>, String> {
    if !reach.received {
        return Ok(None);
    }
    let property = setting.property();
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let mut at = if reach.recursive { volume.name() } else { name };
    while is_within(at, name) {
        let dataset = dsl.lookup(at).await.map_err(|error| chain(&error))?;
        let value = PropertySet::received(&dataset, property).await.map_err(|error| chain(&error))?;
        if let Some(value) = value {
            return Ok(Some(Set { received: true, ..Set::on(at, value) }));
        }
        let Some(end) = at.rfind(['/', '@']) else { break };
        at = &at[..end];
    }
    Ok(None)
}

/// Whether it is this dataset, a snapshot of it, or below it.
pub(super) fn is_within(name: &str, dataset: &str) -> bool {
    name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// What a dataset has if it says nothing itself.
async fn above(view: &Pool, name: &str, setting: Setting<'_>) -> Result<Option<Set>, String> {
    let Some(at) = name.rfind(['/', '@']) else { return Ok(None) };
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let parent = dsl.lookup(&name[..at]).await.map_err(|error| chain(&error))?;
    match setting {
        Setting::Ours(property, _) => {
            let users = PropertySet::users(&parent).await.map_err(|error| chain(&error))?;
            let found = users.into_iter().find(|(name, ..)| name == property);
            Ok(found.map(|(_, text, source)| Set::on(&set_at(&source, &parent), Value::Text(text))))
        }
        Setting::NoVolmode | Setting::VolmodeAbove => {
            let number = PropertySet::number_of_head(&parent, "volmode").await;
            let number = number.map_err(|error| chain(&error))?;
            Ok(number.map(|number| Set::on(parent.name(), Value::Number(number))))
        }
    }
}

/// The dataset from which a volume, or a snapshot, has a property of ours.
async fn text_at(volume: &Dataset, property: &str) -> Result<Option<String>, String> {
    let users = PropertySet::users(volume).await.map_err(|error| chain(&error))?;
    let found = users.iter().find(|(name, ..)| name == property);
    Ok(found.map(|(.., source)| set_at(source, volume)))
}

/// The dataset from which a volume, or a snapshot's, has its `volmode`.
async fn volmode_at(volume: &Dataset) -> Result<Option<String>, String> {
    let source = PropertySet::source_of_head(volume, "volmode").await.map_err(|error| chain(&error))?;
    Ok(source.map(|source| set_at(&source, volume.live())))
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
            ("tank", "tank/a/v@s", Some("tank/a/v@s"), false, true),
            ("tank/a", "tank/a/v", Some("tank/ab"), true, true),
        ] {
            let reached = [false, true].map(|recursive| reaches(dataset, volume, set_at, recursive));
            assert_eq!(reached, [expected, if_recursive], "{dataset} {volume} {set_at:?}");
        }
        assert!(is_within("tank/a@s", "tank/a") && !is_within("tank/ab", "tank/a"));
    }
}
