//! Properties and features of pools: what `-o` and `-O` say, and `zpool set`.

use engine::{
    create,
    dsl::{self, Properties, Stored},
    upgrade,
};
use pool::{
    features::Feature,
    props::{
        Types, Value,
        parse::{self, Moment},
    },
};

use crate::{
    host::chain,
    hostid,
    ops::{
        Answer, Assignment, Failure,
        cx::Cx,
        devices,
        held::Held,
        properties,
        shares::spare_portals,
        upgrade::{compatibility, enable, lacking, permit},
    },
    shares::{PoolShares, PortalConfig, check, property},
};

/// Pool properties that have no meaning here, and are accepted for scripts: nothing is mounted.
const WITHOUT_EFFECT: [&str; 2] = ["altroot", "version"];
/// Pool properties that take what this version lacks.
const NOT_SUPPORTED: [&str; 1] = ["dedup_table_quota"];

/// Said of `autotrim=on`.
const NO_AUTOTRIM: &str =
    "'autotrim' is kept for other software: this version does not trim by itself: use `zpool trim`";

/// What `-o` of `zpool create`, `zpool import` and `zpool add` says.
#[derive(Debug, Default)]
pub(in crate::ops) struct PoolWish {
    /// 0: what the devices are best used with.
    pub(super) ashift: Option<u32>,
    pub(super) compatibility: String,
    /// Short names, and whether they are to be enabled.
    pub(super) features: Vec<(String, bool)>,
    pub(super) properties: Properties,
    /// `cachefile`: whether it is opened by itself at the next start. Which file remembers it is not for choice.
    pub(super) is_listed: Option<bool>,
}

impl PoolWish {
    /// Whether it is about devices only: what may be said of those that come into a pool.
    pub(in crate::ops) fn is_of_devices(&self) -> bool {
        self.properties.is_empty() && self.features.is_empty()
    }

    /// log2 of the smallest block of new devices, if that is not left to them.
    pub(in crate::ops) fn ashift_of_devices(&self) -> Option<u32> {
        self.ashift.filter(|shift| *shift != 0)
    }

    pub(super) fn changes_something(&self) -> bool {
        self.ashift.is_some() || !self.is_of_devices()
    }

    /// What is kept for others that have the pool one day, and has no effect here.
    pub(super) fn notes(&self) -> Vec<String> {
        let trims = self.properties.get("autotrim") == Some(&Stored::Number(1));
        trims.then(|| NO_AUTOTRIM.to_owned()).into_iter().collect()
    }
}

pub(in crate::ops) fn understand(assignments: &[Assignment], moment: Moment) -> Result<PoolWish, String> {
    let mut wish = PoolWish { compatibility: "off".to_owned(), ..PoolWish::default() };
    for (name, text) in assignments {
        if let Some(feature) = name.strip_prefix("feature@") {
            let enabled = match text.as_str() {
                "enabled" => true,
                "disabled" if moment == Moment::Creating => false,
                _ => {
                    return Err(format!(
                        "property '{name}' can only be set to 'enabled' or 'disabled' (the latter when a pool is created)"
                    ));
                }
            };
            if Feature::by_name(feature).is_none() {
                return Err(format!("invalid feature '{feature}', '{name}'"));
            }
            wish.features.push((feature.to_owned(), enabled));
            continue;
        }
        let (name, value) = parse::pool(name, text, moment).map_err(|error| error.to_string())?;
        if NOT_SUPPORTED.contains(&name.as_str()) {
            return Err(format!("'{name}' is not supported by this version"));
        }
        if name == "bootfs" && moment == Moment::Creating {
            return Err("'bootfs' can be set once the file system is there, with 'zpool set'".to_owned());
        }
        if name == "multihost" && value == Value::Number(1) && hostid::hostid() == 0 {
            return Err("requires a non-zero system hostid: write one to /etc/hostid (zgenhostid)".to_owned());
        }
        match (name.as_str(), value) {
            ("ashift", Value::Number(shift)) => wish.ashift = u32::try_from(shift).ok(),
            ("cachefile", Value::Text(text)) => wish.is_listed = Some(text != "none"),
            (name, _) if WITHOUT_EFFECT.contains(&name) => {}
            (_, value) => {
                if let Value::Text(text) = &value {
                    check::of_pool(&name, text)?;
                }
                if let ("compatibility", Value::Text(text)) = (name.as_str(), &value) {
                    wish.compatibility.clone_from(text);
                }
                let stored = match value {
                    Value::Number(number) => Stored::Number(number),
                    Value::Text(text) => Stored::Text(text),
                };
                if wish.properties.insert(name.clone(), stored).is_some() {
                    return Err(format!("property '{name}' specified multiple times"));
                }
            }
        }
    }
    Ok(wish)
}

/// Properties of a root dataset whose pool will have these features, and those of `at_hand` that a value needs. What lz4 comes to
/// without its own is what `on` does.
pub(super) fn root_properties(
    assignments: &[Assignment],
    enabled: &mut Vec<&'static str>,
    at_hand: &[&'static Feature],
) -> Result<Properties, String> {
    let mut all = Properties::new();
    for (name, text) in assignments {
        let parsed = parse::dataset(name, text, Types::FILESYSTEM, Moment::Creating)
            .map_err(|error| error.to_string())?;
        let parse::Parsed::Value(name, value) = parsed else {
            return Err(parse::ParseError::AutoOnVolumes("refreservation").to_string());
        };
        properties::supported(&name, &value)?;
        if let Some(guid) = properties::feature_of(&name, &value)
            && guid != "org.illumos:lz4_compress"
            && !enabled.contains(&guid)
        {
            let (feature, mut with) = (Feature::by_guid(guid), enabled.clone());
            if let Some(feature) = feature {
                enable(feature, &mut with);
            }
            let mut new = with.iter().skip(enabled.len());
            let may_come =
                with.contains(&guid) && new.all(|new| at_hand.iter().any(|known| known.guid == *new));
            if !may_come {
                let short = feature.map_or(guid, |feature| feature.name);
                return Err(format!(
                    "pool and or dataset must be upgraded to set this property or value\nto allow it: '-o feature@{short}=enabled'"
                ));
            }
            *enabled = with;
        }
        let stored = match value {
            Value::Number(number) => Stored::Number(number),
            Value::Text(text) => Stored::Text(text),
        };
        if all.insert(name.clone(), stored).is_some() {
            return Err(format!("property '{name}' specified multiple times"));
        }
    }
    Ok(all)
}

/// `zpool set`
pub(crate) async fn set(cx: &Cx<'_>, name: &str, property: &Assignment) -> Result<Answer, Failure> {
    let what = format!("cannot set property for '{name}'");
    let wish = understand(std::slice::from_ref(property), Moment::Later)
        .map_err(|why| Failure::because(&what, why))?;
    let held = cx.host.writable(name).await.map_err(|error| error.of_change(&what, name))?;
    spare(cx, &held, property).await.map_err(|why| Failure::because(&what, why))?;
    let (mut warnings, is_listed) = (wish.notes(), wish.is_listed);
    assign(cx, &held, &what, wish).await?;
    if let Some(is_listed) = is_listed {
        cx.host.list(&held, is_listed).map_err(|error| Failure::because(&what, chain(&error)))?;
    }
    warnings.extend(cx.served(&held).await);
    Ok(Answer { warnings, ..Answer::default() })
}

/// Refuses what takes its target from initiators that are logged in, or their reservations with a portal's group.
async fn spare(cx: &Cx<'_>, held: &Held, (name, text): &Assignment) -> Result<(), String> {
    let Some(serving) = &cx.host.serving else { return Ok(()) };
    if name == property::PORTALS {
        let now = PoolShares::read(&held.view()).await.map_err(|error| chain(&error))?.portals;
        let then: Vec<PortalConfig> = serde_json::from_str(text).unwrap_or_default();
        return spare_portals(serving, held.name(), &now, &then).await;
    }
    let Some(iqn) = name.strip_prefix(property::TARGET).filter(|_| text.is_empty()) else { return Ok(()) };
    match serving.sessions_of(held.name(), iqn) {
        0 => Ok(()),
        sessions => Err(format!(
            "{sessions} initiators are logged in ('millpond initiators'); use 'millpond share target destroy -f {iqn}' to cut \
             them off"
        )),
    }
}

/// Gives a pool that is open properties, all of them or none. `what` is what cannot be done if it is refused.
pub(super) async fn assign(cx: &Cx<'_>, held: &Held, what: &str, wish: PoolWish) -> Result<(), Failure> {
    let mut properties = wish.properties;
    if let Some(shift) = wish.ashift {
        properties.insert("ashift".to_owned(), Stored::Number(shift.into()));
    }
    let view = held.view();
    let features: Vec<_> = wish.features.iter().filter_map(|(name, _)| Feature::by_name(name)).collect();
    let wanted = lacking(&view, &features);
    let given = match properties.get("compatibility") {
        Some(Stored::Text(set)) => Some(set.as_str()),
        _ => None,
    };
    if let Some(set) = given {
        create::permitted(set).map_err(|error| devices::refused(what, &error))?;
    }
    if !wanted.is_empty() {
        let set = given.unwrap_or_else(|| compatibility(&view));
        permit(set, &wanted).map_err(|why| Failure::because(what, why))?;
    }
    cx.change(held, what, move |cx| {
        Box::pin(async move {
            // First what may be refused.
            upgrade::enable(cx, &wanted).await?;
            if properties.is_empty() { Ok(()) } else { dsl::set_pool(cx, &properties).await }
        })
    })
    .await
}
