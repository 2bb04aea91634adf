//! The forms in which properties hold it, and nothing else.

use std::{collections::BTreeMap, fmt, net::SocketAddr, str::FromStr};

use iscsi::{Access, AccessError, Auth, LUN_MAX};
use serde::{Deserialize, Serialize};

/// Names of the properties.
pub(crate) mod property {
    /// What all of them begin with.
    pub(crate) const PREFIX: &str = "org.millpond:";
    /// And those of targets, before the target's name.
    pub(crate) const TARGET: &str = "org.millpond:target:";
    /// Credentials; a colon and the target's name follow, or nothing for those of discovery.
    pub(crate) const CHAP: &str = "org.millpond:chap";
    pub(crate) const PORTALS: &str = "org.millpond:portals";
    pub(crate) const DISCOVERY: &str = "org.millpond:discovery";
    pub(crate) const LUN: &str = "org.millpond:lun";
    pub(crate) const LU: &str = "org.millpond:lu";
    pub(crate) const OFFER: &str = "org.millpond:offer";
    pub(crate) const BLOCK: &str = "org.millpond:block";
    pub(crate) const WRITE_CACHE: &str = "org.millpond:write-cache";
    pub(crate) const THIN_THRESHOLD: &str = "org.millpond:thin-threshold";
    /// Those that say how a volume is offered.
    pub(crate) const OF_VOLUMES: [&str; 6] = [LUN, LU, OFFER, BLOCK, WRITE_CACHE, THIN_THRESHOLD];

    /// The property of a target's settings.
    pub(crate) fn target(iqn: &str) -> String {
        format!("{TARGET}{iqn}")
    }

    /// The property of a target's credentials; of discovery's without a target.
    pub(crate) fn chap(iqn: Option<&str>) -> String {
        iqn.map_or_else(|| CHAP.to_owned(), |iqn| format!("{CHAP}:{iqn}"))
    }

    /// Whether the value of the property of this name is nobody's business.
    pub fn is_secret(name: &str) -> bool {
        name.strip_prefix(CHAP).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// A word of a command as it may be told to others: without the value that it gives such a property.
    #[must_use]
    pub fn without_secret(word: String) -> String {
        let at = word.find(CHAP).unwrap_or(word.len());
        let (before, assignment) = word.split_at(at);
        match assignment.split_once('=') {
            Some((name, value)) if is_secret(name) && !value.is_empty() => format!("{before}{name}=(hidden)"),
            _ => word,
        }
    }
}

/// A pattern that no initiator's name fits: a name is never empty.
const NOBODY: &str = "";

/// What nobody passes.
pub(crate) fn nobody() -> Access {
    Access { initiators: vec![NOBODY.to_owned()], ..Access::default() }
}

/// Who may come, by what they say of themselves and where they come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Names, or beginnings of names with a `*` behind. None: any. Empty: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) initiators: Option<Vec<String>>,
    /// Networks. None: any. Empty: nowhere, so nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) networks: Option<Vec<String>>,
}

impl Rule {
    /// Whether nobody passes.
    pub(crate) fn is_closed(&self) -> bool {
        let none = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
        none(&self.initiators) || none(&self.networks)
    }

    /// The same for the targets, with credentials.
    pub(crate) fn access(&self, credentials: &[Credential]) -> Result<Access, AccessError> {
        let mut access = Access {
            initiators: self.initiators.clone().unwrap_or_default(),
            networks: Vec::new(),
            auth: credentials.iter().map(Credential::auth).collect::<Result<_, _>>()?,
            or: Vec::new(),
        };
        if self.is_closed() {
            access.initiators = nobody().initiators;
        }
        for network in self.networks.iter().flatten() {
            access.networks.push(network.parse()?);
        }
        Ok(access)
    }

    /// Whether `millpond share` would write it: a name that no session has lets nobody in, and keeps all others out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        for name in self.initiators.iter().flatten() {
            let right = initiator(name)?;
            if *name != right {
                return Err(format!(
                    "'{name}' fits no initiator: their names are in lower case here, '{right}'"
                ));
            }
        }
        self.access(&[]).map(drop).map_err(|why| why.to_string())
    }
}

/// The name of an initiator, or the beginning of some, as sessions have it: in lower case.
///
/// # Errors
/// No initiator has such a name.
pub(crate) fn initiator(name: &str) -> Result<String, String> {
    let name = name.to_ascii_lowercase();
    let is_right = match name.strip_suffix('*') {
        Some(start) => start.is_empty() || (iscsi::iqn::may_be_host(start) && !start.contains('*')),
        None => iscsi::iqn::is_typed(&name) && iscsi::iqn::may_be_host(&name) && !name.contains('*'),
    };
    if !is_right {
        return Err(format!(
            "'{name}' is not the iSCSI name of an initiator, nor the beginning of some with a '*' behind"
        ));
    }
    Ok(name)
}

/// A target's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TargetConfig {
    #[serde(default)]
    pub(crate) access: Rule,
    /// Tags of the portal groups through which it is reached. None: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) groups: Option<Vec<u16>>,
    /// Views that name no target get their LUN here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) default: bool,
}

impl TargetConfig {
    /// Whether `millpond share` would write it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.access.check()?;
        match self.groups.as_deref() {
            None => Ok(()),
            // Where a command says none, all are meant.
            Some([]) => Err("no portal group leads to it: leave 'groups' out for all of them".to_owned()),
            Some(tags) => portal_groups(tags),
        }
    }
}

/// Whether there can be portal groups of these tags.
///
/// # Errors
/// What tags are.
pub(crate) fn portal_groups(tags: &[u16]) -> Result<(), String> {
    match tags.contains(&0) {
        true => Err("portal group tags are numbers from 1 to 65535".to_owned()),
        false => Ok(()),
    }
}

/// Something that must not be shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub(crate) String);

impl Secret {
    /// Hides it.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What an initiator proves itself by, and what is answered if it asks the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// The initiator's name for CHAP.
    pub user: String,
    /// And its secret.
    pub secret: Secret,
    /// The target's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
    /// And its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_secret: Option<Secret>,
}

impl Credential {
    pub(crate) fn auth(&self) -> Result<Auth, AccessError> {
        let auth = Auth::new(&self.user, self.secret.0.as_bytes())?;
        match (&self.mutual_user, &self.mutual_secret) {
            (Some(user), Some(secret)) => auth.mutual(user, secret.0.as_bytes()),
            (None, None) => Ok(auth),
            _ => Err(AccessError::Name),
        }
    }
}

/// A portal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PortalConfig {
    pub(crate) address: SocketAddr,
    /// Portal group tag.
    pub(crate) group: u16,
}

impl PortalConfig {
    /// Whether it can be one.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.group, self.address.port()) {
            (0, _) | (_, 0) => Err("a portal has a port, and a portal group tag from 1 to 65535".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Where a volume is: which LUN of which target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) target: String,
    pub(crate) lun: u16,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a target's name and a LUN from 0 to {LUN_MAX}");
        let (target, lun) = text.split_once(' ').ok_or_else(wrong)?;
        let lun = lun.parse().ok().filter(|lun| *lun <= LUN_MAX).ok_or_else(wrong)?;
        if !iscsi::iqn::is_valid(target) {
            return Err(wrong());
        }
        Ok(Self { target: target.to_owned(), lun })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.target, self.lun)
    }
}

/// What `stmfadm` knows of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogicalUnitName {
    /// 32 hexadecimal digits: a name to manage it by. What hosts see as its identity is another.
    pub(crate) guid: String,
    /// What stood before the dataset's name when it was made: listings repeat it.
    pub(crate) base: String,
    /// Deleted; a later import brings it back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) deleted: bool,
    /// Where it was when it was deleted: it gets the same place if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) was: Option<String>,
}

/// How a volume is offered besides its LUN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Offering {
    /// As a target of its own and over NBD, until somebody gives it a LUN.
    #[default]
    Auto,
    /// The same, and over NBD even with a LUN.
    All,
    /// As a target of its own, unless it has a LUN.
    Iscsi,
    /// Over NBD.
    Nbd,
    /// Not at all.
    None,
}

impl Offering {
    pub(crate) const WORDS: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("all", Self::All),
        ("iscsi", Self::Iscsi),
        ("nbd", Self::Nbd),
        ("none", Self::None),
    ];

    pub(crate) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, offering)| *offering == self).map_or("auto", |(word, _)| word)
    }
}

/// When hosts are warned that room gets scarce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Threshold {
    /// As `lookout.rs` thinks right.
    #[default]
    Auto,
    Never,
    /// Fewer bytes than this are left.
    Bytes(u64),
    /// Less of the volume's size than this is left, in percent.
    Percent(u8),
}

impl Threshold {
    /// In bytes, for a volume of this size; 0: never. `usual`: if nothing is said.
    pub(crate) fn bytes(self, size: u64, usual: u64) -> u64 {
        match self {
            Self::Auto => usual,
            Self::Never => 0,
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => size / 100 * u64::from(percent),
        }
    }
}

/// Understands the options of a volume.
///
/// # Errors
/// What they can be.
pub(crate) fn option(name: &str, value: &str) -> Result<(), String> {
    match name {
        property::OFFER => offering(value).map(drop),
        property::BLOCK => block(value).map(drop),
        property::WRITE_CACHE => write_cache(value).map(drop),
        property::THIN_THRESHOLD => threshold(value).map(drop),
        _ => Err("the options are offer, block, write-cache and thin-threshold".to_owned()),
    }
}

pub(crate) fn offering(text: &str) -> Result<Offering, String> {
    let found = Offering::WORDS.iter().find(|(word, _)| *word == text).map(|(_, offering)| *offering);
    found.ok_or_else(|| format!("'{text}' is none of auto, all, iscsi, nbd and none"))
}

pub(crate) fn block(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err(format!("'{text}' is neither 512 nor 4096")),
    }
}

pub(crate) fn write_cache(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

pub(crate) fn threshold(text: &str) -> Result<Threshold, String> {
    let wrong = || format!("'{text}' is none of: auto, none, a size, a share from 1% to 99%");
    match text {
        "auto" => return Ok(Threshold::Auto),
        "none" => return Ok(Threshold::Never),
        _ => {}
    }
    if let Some(share) = text.strip_suffix('%') {
        let share = share.parse().ok().filter(|share| (1..100).contains(share)).ok_or_else(wrong)?;
        return Ok(Threshold::Percent(share));
    }
    pool::props::parse::number(text).map(Threshold::Bytes).map_err(|_| wrong())
}

/// A property's JSON.
///
/// # Errors
/// It is too long for a property: what helps.
pub(crate) fn to_text(what: &impl Serialize) -> Result<String, String> {
    /// Longest value of a user property, in bytes.
    const LONGEST: usize = 8191;
    let text = serde_json::to_string(what).map_err(|error| error.to_string())?;
    match text.len() {
        0..=LONGEST => Ok(text),
        more => Err(format!(
            "the list is too long to be kept ({more} bytes of at most {LONGEST}); a name that ends in '*' stands for all \
             that begin so"
        )),
    }
}

/// All targets' settings among a pool's properties, those that cannot be understood with the reason.
pub(crate) fn targets(users: &BTreeMap<String, String>) -> BTreeMap<String, Result<TargetConfig, String>> {
    let of = |(name, text): (&String, &String)| {
        let iqn = name.strip_prefix(property::TARGET)?.to_owned();
        let config = serde_json::from_str(text).map_err(|error| error.to_string());
        Some((iqn, config))
    };
    users.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_reads_as_it_was_and_what_is_strange_is_refused() {
        let config = TargetConfig {
            access: Rule { initiators: Some(vec!["iqn.a:*".into()]), networks: None },
            groups: Some(vec![1, 2]),
            default: true,
        };
        let text = to_text(&config).unwrap();
        assert_eq!(serde_json::from_str::<TargetConfig>(&text).unwrap(), config);
        assert_eq!(serde_json::from_str::<TargetConfig>("{}").unwrap(), TargetConfig::default());
        assert!(serde_json::from_str::<TargetConfig>(r#"{"fenced":true}"#).is_err());
        assert_eq!("iqn.a:b 7".parse::<Place>().unwrap().to_string(), "iqn.a:b 7");
        for wrong in ["", "iqn.a:b", "iqn.a:b 16384", "iqn.a:b -1", "iqn.a b 1", "tank/v 1"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
        assert!(to_text(&vec!["x".repeat(9000)]).unwrap_err().contains("too long"));
    }

    #[test]
    fn an_emptied_list_admits_nobody() {
        let somewhere = "192.0.2.1".parse().unwrap();
        let admits = |rule: Rule| rule.access(&[]).unwrap().admits("iqn.a:x", somewhere);
        assert!(admits(Rule::default()));
        assert!(!admits(Rule { initiators: Some(Vec::new()), networks: None }));
        assert!(!admits(Rule { initiators: None, networks: Some(Vec::new()) }));
        assert!(admits(Rule { initiators: Some(vec!["*".into()]), networks: None }));
    }

    #[test]
    fn secrets_are_not_printed() {
        let credential = Credential {
            user: "host".into(),
            secret: Secret::new("correct horse battery".into()),
            mutual_user: Some("pond".into()),
            mutual_secret: Some(Secret::new("staple staple staple".into())),
        };
        let shown = format!("{credential:?}");
        assert!(!shown.contains("horse") && !shown.contains("staple"), "{shown}");
        assert!(property::is_secret("org.millpond:chap") && property::is_secret("org.millpond:chap:iqn.a"));
        assert!(!property::is_secret("org.millpond:chapter"));
    }

    #[test]
    fn thresholds_are_sizes_or_shares() {
        assert_eq!(threshold("10%").unwrap().bytes(1000, 1), 100);
        assert_eq!(threshold("1K").unwrap().bytes(7, 1), 1024);
        assert_eq!(threshold("none").unwrap().bytes(7, 1), 0);
        assert_eq!(threshold("auto").unwrap().bytes(7, 1), 1);
        for wrong in ["0%", "100%", "x", "-1"] {
            assert!(threshold(wrong).is_err(), "{wrong}");
        }
    }
}
