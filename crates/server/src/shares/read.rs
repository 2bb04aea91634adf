//! What a pool's properties say about offering, and what that comes to for each volume.

use std::{collections::BTreeMap, fmt};

use block::Identity;
use engine::BoxFuture;
use iscsi::Access;
use pool::{
    Pool,
    dmu::ReadError,
    dsl::{Dataset, DatasetKind},
    props::{PoolProperties, PropertySet, Source, UserProperty},
};

use super::config::{
    Credential, LogicalUnitName, Offering, Place, PortalConfig, Rule, TargetConfig, Threshold, block, nobody,
    offering, property, targets, threshold, write_cache,
};
use crate::{api::share as api, host::chain, ops::pool_of};

/// `volmode=none`: the volume is nobody's disk, in OpenZFS of its own host and here of others.
pub(crate) const VOLMODE_NONE: u64 = 3;

/// A target, understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetShare {
    pub(crate) config: TargetConfig,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) access: Access,
}

/// Who may discover, understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiscoveryShare {
    pub(crate) rule: Rule,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) access: Access,
}

impl DiscoveryShare {
    /// Nobody may.
    fn nobody() -> Self {
        let rule = Rule { initiators: Some(Vec::new()), networks: None };
        Self { rule, credentials: Vec::new(), access: nobody() }
    }

    /// What a pool's properties say; none if they say nothing.
    fn of(users: &BTreeMap<String, String>) -> Result<Option<Self>, String> {
        let chap = property::chap(None);
        let rule = json::<Rule>(users, property::DISCOVERY)?;
        let credentials = json::<Vec<Credential>>(users, &chap)?;
        if rule.is_none() && credentials.is_none() {
            return Ok(None);
        }
        let (rule, credentials) = (rule.unwrap_or_default(), credentials.unwrap_or_default());
        rule.access(&[]).map_err(|why| strange(property::DISCOVERY, &why))?;
        let access = rule.access(&credentials).map_err(|why| strange(&chap, &why))?;
        Ok(Some(Self { rule, credentials, access }))
    }
}

/// What a pool says of targets, portals and discovery.
#[derive(Clone, Debug)]
pub(crate) struct PoolShares {
    pub(crate) targets: BTreeMap<String, TargetShare>,
    pub(crate) portals: Vec<PortalConfig>,
    /// None: nothing is said. An error: it cannot be understood, so it admits nobody to discovery.
    pub(crate) discovery: Result<Option<DiscoveryShare>, String>,
    /// What could not be understood, a sentence each.
    pub(crate) problems: Vec<String>,
}

impl Default for PoolShares {
    fn default() -> Self {
        Self { targets: BTreeMap::new(), portals: Vec::new(), discovery: Ok(None), problems: Vec::new() }
    }
}

/// What is said of a property with a text of which that is so.
pub(super) fn strange(name: &str, why: &dyn fmt::Display) -> String {
    format!("property '{name}' cannot be understood: {why}")
}

/// A property's JSON; none if it is not there.
pub(super) fn json<T: serde::de::DeserializeOwned>(
    users: &BTreeMap<String, String>,
    name: &str,
) -> Result<Option<T>, String> {
    match users.get(name) {
        // What is said of a secret's text must not quote it.
        Some(text) => match serde_json::from_str(text) {
            Ok(value) => Ok(Some(value)),
            Err(_) if property::is_secret(name) => Err(format!("property '{name}' cannot be understood")),
            Err(error) => Err(strange(name, &error)),
        },
        None => Ok(None),
    }
}

/// Whether a target of this pool may be called so, whoever wrote it down.
fn may_be_called(pool: &str, iqn: &str) -> Result<(), String> {
    let remedy = format!("'millpond share target destroy --pool {pool} {iqn}'");
    // It would be taken for the one in lower case, which may be another's.
    if iqn.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("its name is not in lower case; {remedy}, and create it anew"));
    }
    // Hosts log in to a volume by the name that is made of its own, whether it is there at the moment or not.
    let kept_for = iscsi::iqn::dataset(iqn).filter(|dataset| dataset.contains('/'));
    match kept_for.filter(|dataset| pool_of(dataset) != pool) {
        Some(dataset) => {
            Err(format!("this name is kept for '{dataset}'; {remedy}, and create it under another"))
        }
        None => Ok(()),
    }
}

impl PoolShares {
    /// Reads them.
    ///
    /// # Errors
    /// The pool's properties cannot be read.
    pub(crate) async fn read(pool: &Pool) -> Result<Self, ReadError> {
        Ok(Self::of(pool.name(), &PoolProperties::users(pool).await?))
    }

    fn of(pool: &str, users: &BTreeMap<String, String>) -> Self {
        let mut shares = Self::default();
        for (iqn, config) in targets(users) {
            let read = || {
                may_be_called(pool, &iqn)?;
                let config = config.map_err(|why| strange(&property::target(&iqn), &why))?;
                let credentials: Vec<Credential> =
                    json(users, &property::chap(Some(&iqn)))?.unwrap_or_default();
                let access = config.access.access(&credentials).map_err(|error| error.to_string())?;
                Ok(TargetShare { config, credentials, access })
            };
            match read() {
                Ok(target) => {
                    shares.targets.insert(iqn, target);
                }
                Err::<_, String>(why) => shares.problems.push(format!("target {iqn} is not offered: {why}")),
            }
        }
        match json(users, property::PORTALS) {
            Ok(portals) => shares.portals = portals.unwrap_or_default(),
            Err(why) => shares.problems.push(why),
        }
        shares.discovery = DiscoveryShare::of(users);
        if let Err(why) = &shares.discovery {
            shares.problems.push(format!(
                "pool '{pool}' admits nobody to discovery, and nobody may discover whom settings of another do not admit: {why}"
            ));
        }
        shares
    }

    /// Whether not everybody gets to a target. One that cannot be understood, or is not there, lets nobody in.
    pub(crate) fn is_guarded(&self, target: &str) -> bool {
        self.targets.get(target).is_none_or(|share| {
            let TargetConfig { access, groups, .. } = &share.config;
            *access != Rule::default() || groups.is_some() || !share.credentials.is_empty()
        })
    }

    /// Who may discover; nobody if that cannot be understood. None: nothing is said.
    pub(crate) fn discovery(&self) -> Option<DiscoveryShare> {
        self.discovery.clone().unwrap_or_else(|_| Some(DiscoveryShare::nobody()))
    }
}

/// What the properties of a volume or snapshot say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeShare {
    pub(crate) offer: Offering,
    /// `offer` is set here, and not above it.
    pub(crate) offer_is_own: bool,
    /// The dataset on which it is; none if nobody said anything.
    pub(crate) offer_at: Option<String>,
    /// Its own LUN.
    pub(crate) place: Option<Place>,
    /// Its own name for `stmfadm`.
    pub(crate) name: Option<LogicalUnitName>,
    /// Somebody decides by LUNs who gets it, or, of a snapshot, who gets its volume.
    pub(crate) managed: bool,
    pub(crate) block: u32,
    pub(crate) write_cache: bool,
    pub(crate) threshold: Threshold,
    /// What cannot be understood: then it is not offered.
    pub(crate) problem: Option<String>,
}

/// The dataset on which that is set which `dataset` has from `source`.
pub(crate) fn set_at(source: &Source, dataset: &Dataset) -> String {
    match source {
        Source::Inherited(at) => at.clone(),
        _ => dataset.name().to_owned(),
    }
}

impl VolumeShare {
    /// Reads it.
    ///
    /// # Errors
    /// The properties cannot be read.
    pub(crate) async fn read(dataset: &Dataset) -> Result<Self, ReadError> {
        let share = Self::as_set(dataset).await?;
        Ok(share.with_volmode(PropertySet::number_of_head(dataset, "volmode").await?))
    }

    /// What a volume has that is to be made below `parent`: what it inherits, with this `volmode` if it is given one.
    ///
    /// # Errors
    /// The properties cannot be read.
    pub(crate) async fn below(parent: &Dataset, volmode: Option<u64>) -> Result<Self, ReadError> {
        let inherited = Self::as_set(parent).await?;
        let volmode = match volmode {
            None => PropertySet::number_of_head(parent, "volmode").await?,
            given => given,
        };
        // Places and names are not inherited.
        let none = Self { offer_is_own: false, place: None, name: None, managed: false, ..inherited };
        Ok(none.with_volmode(volmode))
    }

    /// What a volume has when `from`, which is it or above it, has come below `parent`: what is set from `from` on it takes
    /// along, the rest it inherits there.
    ///
    /// # Errors
    /// The properties cannot be read.
    pub(crate) async fn moved(volume: &Dataset, from: &str, parent: &Dataset) -> Result<Self, ReadError> {
        let is_left = |source: &Source| match source {
            Source::Inherited(at) => {
                at.strip_prefix(from).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('/'))
            }
            Source::Default => true,
            _ => false,
        };
        let mut users = PropertySet::users(volume).await?;
        users.retain(|(.., source)| !is_left(source));
        for (name, text, source) in PropertySet::users(parent).await? {
            if users.iter().all(|(known, ..)| *known != name) {
                users.push((name, text, Source::Inherited(set_at(&source, parent))));
            }
        }
        let source = PropertySet::source_of_head(volume, "volmode").await?;
        let is_inherited = source.is_none_or(|source| is_left(&source));
        let has_volmode = if is_inherited { parent } else { volume };
        let volmode = PropertySet::number_of_head(has_volmode, "volmode").await?;
        Ok(Self::of_dataset(&users, volume).with_volmode(volmode))
    }

    /// What a volume or snapshot has when it has this text of one of our properties, from this source; none: nobody set it.
    ///
    /// # Errors
    /// The properties cannot be read.
    pub(crate) async fn with(
        volume: &Dataset,
        property: &str,
        set: Option<(String, Source)>,
    ) -> Result<Self, ReadError> {
        let mut users = PropertySet::users(volume).await?;
        users.retain(|(name, ..)| name != property);
        users.extend(set.map(|(text, source)| (property.to_owned(), text, source)));
        let share = Self::of_dataset(&users, volume);
        Ok(share.with_volmode(PropertySet::number_of_head(volume, "volmode").await?))
    }

    /// What its own properties say, and those of users above it.
    ///
    /// # Errors
    /// The properties cannot be read.
    pub(crate) async fn as_set(dataset: &Dataset) -> Result<Self, ReadError> {
        Ok(Self::of_dataset(&PropertySet::users(dataset).await?, dataset))
    }

    fn of_dataset(users: &[UserProperty], dataset: &Dataset) -> Self {
        let head = dataset.name().split('@').next().unwrap_or_default();
        let offer = users.iter().find(|(name, ..)| name == property::OFFER);
        let offer_at = offer.map(|(.., source)| set_at(source, dataset));
        Self { offer_at, ..Self::of(users, head) }
    }

    pub(crate) fn with_volmode(self, volmode: Option<u64>) -> Self {
        let offer = if volmode == Some(VOLMODE_NONE) { Offering::None } else { self.offer };
        Self { offer, ..self }
    }

    fn of(users: &[(String, String, Source)], head: &str) -> Self {
        let mut share = Self { block: 512, write_cache: true, ..Self::default() };
        let mut problem = None;
        for (name, text, source) in users {
            let is_own = *source == Source::Local;
            // A snapshot shows what its volume has.
            let of_volume = matches!(source, Source::Inherited(from) if from == head);
            let read = match name.as_str() {
                property::LUN if is_own || of_volume => {
                    share.managed = true;
                    text.parse().map(|place| share.place = Some(place).filter(|_| is_own))
                }
                property::LU if is_own || of_volume => {
                    share.managed = true;
                    let parsed = serde_json::from_str(text).map_err(|error| error.to_string());
                    parsed.map(|name| share.name = Some(name).filter(|_| is_own))
                }
                property::OFFER => {
                    share.offer_is_own = is_own;
                    offering(text).map(|offer| share.offer = offer)
                }
                property::BLOCK => block(text).map(|block| share.block = block),
                property::WRITE_CACHE => write_cache(text).map(|on| share.write_cache = on),
                property::THIN_THRESHOLD => threshold(text).map(|threshold| share.threshold = threshold),
                _ => Ok(()),
            };
            if let Err(why) = read {
                problem = Some(strange(name, &why));
            }
        }
        share.problem = problem;
        share
    }

    /// What is to be offered of it.
    pub(crate) fn plan(&self) -> Plan {
        let free = !self.managed;
        Plan {
            nbd: match self.offer {
                Offering::Auto => free,
                Offering::All | Offering::Nbd => true,
                Offering::Iscsi | Offering::None => false,
            },
            own: free && matches!(self.offer, Offering::Auto | Offering::All | Offering::Iscsi),
            place: self.place.clone(),
            block: self.block,
            write_cache: self.write_cache,
            threshold: self.threshold,
        }
    }
}

/// How one volume or snapshot is to be offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Over NBD.
    pub(crate) nbd: bool,
    /// As a target of its own.
    pub(crate) own: bool,
    /// As a LUN of a target that was set up.
    pub(crate) place: Option<Place>,
    pub(crate) block: u32,
    pub(crate) write_cache: bool,
    pub(crate) threshold: Threshold,
}

impl Plan {
    /// Whether hosts find the same disk there as by another plan for the same volume. Everything else that a plan says is
    /// put right under them.
    pub(crate) fn is_same_disk(&self, other: &Self) -> bool {
        self.is_same_place(other) && self.block == other.block
    }

    /// Whether it is at the same place, of whatever form.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        (self.own, &self.place) == (other.own, &other.place)
    }
}

/// The name hosts know a volume by, as they print it.
pub(crate) fn naa(pool: &Pool, dataset: &Dataset) -> String {
    let identity = Identity { name: dataset.name().to_owned(), guid: dataset.guid(), pool_guid: pool.guid() };
    iscsi::naa(&identity).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn access(rule: &Rule, credentials: &[Credential]) -> api::Access {
    let chap = |credential: &Credential| api::Chap {
        user: credential.user.clone(),
        mutual_user: credential.mutual_user.clone(),
    };
    api::Access {
        initiators: rule.initiators.clone(),
        networks: rule.networks.clone(),
        chap: credentials.iter().map(chap).collect(),
    }
}

/// What a pool keeps about offering, without what only a daemon knows. What could not be read is among the problems.
pub fn report(pool: &Pool) -> BoxFuture<'_, api::PoolShares> {
    Box::pin(async move {
        let mut report = api::PoolShares { pool: pool.name().to_owned(), ..api::PoolShares::default() };
        let shares = match PoolShares::read(pool).await {
            Ok(shares) => shares,
            Err(error) => {
                report.problems.push(format!(
                    "cannot read the properties of '{}': {}",
                    pool.name(),
                    chain(&error)
                ));
                return report;
            }
        };
        let discovery = shares.discovery();
        report.problems = shares.problems;
        for (iqn, target) in &shares.targets {
            report.targets.push(api::Target {
                name: iqn.clone(),
                default: target.config.default,
                groups: target.config.groups.clone(),
                access: access(&target.config.access, &target.credentials),
                luns: Vec::new(),
                sessions: None,
            });
        }
        let portal = |portal: &PortalConfig| api::Portal {
            address: portal.address.to_string(),
            group: portal.group,
            listening: None,
            problem: None,
        };
        report.portals = shares.portals.iter().map(portal).collect();
        report.discovery = discovery.map(|share| access(&share.rule, &share.credentials));
        let listed = match pool.dsl().await {
            Ok(dsl) => dsl.volumes().await,
            Err(error) => Err(error),
        };
        let (datasets, problems) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                report.problems.push(format!(
                    "cannot list the datasets of '{}': {}",
                    pool.name(),
                    chain(&error)
                ));
                return report;
            }
        };
        report.problems.extend(problems.iter().map(|problem| chain(problem)));
        let heads = datasets.iter().filter(|dataset| dataset.kind() == DatasetKind::Head);
        report.problems.extend(heads.filter_map(Dataset::unread).map(|problem| chain(&problem)));
        for dataset in &datasets {
            match volume(pool, dataset, &mut report.problems).await {
                // It may be a file system. A LUN it is, whatever it is.
                Ok(volume) if volume.target.is_none() && dataset.unread().is_some() => {}
                Ok(volume) => report.volumes.push(volume),
                Err(error) => {
                    report.problems.push(format!(
                        "cannot read the properties of '{}': {}",
                        dataset.name(),
                        chain(&error)
                    ));
                }
            }
        }
        report.volumes.retain(|volume| !volume.name.contains('@') || volume.target.is_some());
        for volume in &report.volumes {
            let (Some(name), Some(lun)) = (&volume.target, volume.lun) else { continue };
            match report.targets.iter_mut().find(|target| target.name == *name) {
            Some(target) => target.luns.push(api::Lun { lun, volume: volume.name.clone(), naa: volume.naa.clone() }),
            None => report.problems.push(format!(
                "{} is to be LUN {lun} of {name}, and the pool has no such target: 'millpond share target create {name}', or \
                 'millpond share lun remove {name} {}'",
                volume.name, volume.name
            )),
        }
        }
        report.targets.iter_mut().for_each(|target| target.luns.sort_by_key(|lun| lun.lun));
        report
    })
}

async fn volume(
    pool: &Pool,
    dataset: &Dataset,
    problems: &mut Vec<String>,
) -> Result<api::Volume, ReadError> {
    let share = VolumeShare::read(dataset).await?;
    let mut size = 0;
    // Of the many snapshots, only those are shown that are LUNs.
    if dataset.kind() == DatasetKind::Head || share.place.is_some() {
        match PropertySet::read_some(dataset, Some(&["volsize"])).await {
            Ok(properties) => size = properties.number("volsize").unwrap_or(0),
            // It is what it is set up as all the same.
            Err(error) => {
                problems.push(format!("cannot read the size of '{}': {}", dataset.name(), chain(&error)));
            }
        }
    }
    let threshold = match share.threshold {
        Threshold::Auto => "auto".to_owned(),
        Threshold::Never => "none".to_owned(),
        Threshold::Bytes(bytes) => bytes.to_string(),
        Threshold::Percent(percent) => format!("{percent}%"),
    };
    let plan = share.plan();
    Ok(api::Volume {
        name: dataset.name().to_owned(),
        size,
        naa: naa(pool, dataset),
        target: share.place.as_ref().map(|place| place.target.clone()),
        lun: share.place.as_ref().map(|place| place.lun),
        offer: share.offer.word().to_owned(),
        own_target: plan.own.then(|| iscsi::iqn::for_dataset(dataset.name())),
        nbd: plan.nbd,
        block: share.block,
        write_cache: share.write_cache,
        thin_threshold: threshold,
        lu: share.name.map(|name| api::LogicalUnit {
            source: format!("{}/{}", name.base, dataset.name()),
            guid: name.guid,
            deleted: name.deleted,
        }),
        problem: share.problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(users: &[(&str, &str, Source)]) -> VolumeShare {
        let users: Vec<_> = users
            .iter()
            .map(|(name, text, source)| (format!("org.millpond:{name}"), (*text).to_owned(), source.clone()))
            .collect();
        VolumeShare::of(&users, "tank/v")
    }

    #[test]
    fn a_lun_counts_only_where_it_was_set() {
        assert_eq!((of(&[]).plan().nbd, of(&[]).plan().own), (true, true));
        let own = of(&[("lun", "iqn.a:t 3", Source::Local)]).plan();
        assert_eq!((own.nbd, own.own, own.place.unwrap().lun), (false, false, 3));
        // Of a snapshot, whose volume has a LUN: neither has it one, nor does everybody get it.
        let snapshot = of(&[("lun", "iqn.a:t 3", Source::Inherited("tank/v".into()))]).plan();
        assert_eq!((snapshot.nbd, snapshot.own, snapshot.place), (false, false, None));
        for source in [Source::Received, Source::Inherited("tank".into())] {
            let copy = of(&[("lun", "iqn.a:t 3", source)]).plan();
            assert_eq!((copy.own, copy.place), (true, None));
        }
    }

    #[test]
    fn options_are_inherited_and_what_is_strange_is_a_problem() {
        let from = || Source::Inherited("tank".into());
        let share =
            of(&[("offer", "none", from()), ("block", "4096", from()), ("write-cache", "off", from())]);
        assert_eq!(
            (share.plan().nbd, share.plan().own, share.block, share.write_cache),
            (false, false, 4096, false)
        );
        assert_eq!(share.problem, None);
        let all = of(&[("offer", "all", Source::Local), ("lun", "iqn.a:t 0", Source::Local)]).plan();
        assert!(all.nbd && !all.own && all.place.is_some());
        for (name, text) in [("block", "513"), ("offer", "everyone"), ("lun", "x"), ("lu", "{}")] {
            assert!(of(&[(name, text, Source::Local)]).problem.is_some(), "{name}");
        }
    }

    #[test]
    fn settings_of_a_target_that_are_not_understood_leave_it_out() {
        let users = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let users: BTreeMap<String, String> = users(&[
            ("org.millpond:target:iqn.a:one", "{}"),
            ("org.millpond:target:iqn.a:two", r#"{"newer":1}"#),
            ("org.millpond:target:iqn.a:three", "{}"),
            ("org.millpond:chap:iqn.a:three", r#"[{"user":"u","secret":"hunter2"}]"#),
            ("org.millpond:chap", "hunter3"),
        ]);
        let shares = PoolShares::of("tank", &users);
        assert_eq!(shares.targets.keys().collect::<Vec<_>>(), ["iqn.a:one"]);
        assert_eq!(shares.problems.len(), 3, "{:?}", shares.problems);
        assert!(shares.discovery().unwrap().rule.is_closed());
        assert!(!shares.problems.concat().contains("hunter"), "{:?}", shares.problems);
    }
}
