//! Whether what is set as a property can be understood. It is `millpond share` that writes what offers are made of, but
//! `zpool set` and `zfs set` can as well, and what cannot be understood, or fits nobody, closes doors: who sets it is told at
//! once.
//!
//! What is in a pool already is read whatever it is; a newer version, or other software, may have written it.

use std::{collections::BTreeMap, fmt};

use super::{
    config::{Credential, LogicalUnitName, Place, PortalConfig, Rule, TargetConfig, option, property},
    read::{json, strange},
};

/// Whether a pool's property may be this text. Nothing takes it away; what is not ours may be anything.
///
/// # Errors
/// Why not, and what to use instead.
pub(crate) fn of_pool(name: &str, text: &str) -> Result<(), String> {
    let Some(instead) = in_pools(name).filter(|_| !text.is_empty()) else { return Ok(()) };
    let users = BTreeMap::from([(name.to_owned(), text.to_owned())]);
    in_pool(name, &users).map_err(|why| {
        format!("{why}\nuse 'millpond share {instead}', or 'zpool set {name}= POOL' to give up what is set")
    })
}

/// What of `millpond share` sets a pool's property, if it is one of ours.
fn in_pools(name: &str) -> Option<&'static str> {
    match name {
        property::PORTALS => Some("portal add"),
        property::DISCOVERY => Some("access allow --discovery"),
        property::CHAP => Some("chap set --discovery"),
        name if name.starts_with(property::TARGET) => Some("target create"),
        name if property::is_secret(name) => Some("chap set"),
        _ => None,
    }
}

fn in_pool(name: &str, users: &BTreeMap<String, String>) -> Result<(), String> {
    let strange = |why: &dyn fmt::Display| strange(name, why);
    if let Some(iqn) = name.strip_prefix(property::TARGET) {
        if !iscsi::iqn::is_valid(iqn) {
            return Err(format!("'{iqn}' is not the iSCSI name of a target"));
        }
        let config = json::<TargetConfig>(users, name)?.unwrap_or_default();
        return config.check().map_err(|why| strange(&why));
    }
    match name {
        property::PORTALS => {
            let portals = json::<Vec<PortalConfig>>(users, name)?.unwrap_or_default();
            portals.iter().try_for_each(PortalConfig::check).map_err(|why| strange(&why))
        }
        property::DISCOVERY => {
            let rule = json::<Rule>(users, name)?.unwrap_or_default();
            rule.check().map_err(|why| strange(&why))
        }
        _ => {
            let credentials = json::<Vec<Credential>>(users, name)?.unwrap_or_default();
            Rule::default().access(&credentials).map(drop).map_err(|why| strange(&why))
        }
    }
}

/// Whether a dataset's property may be this text.
///
/// # Errors
/// Why not, and what to use instead.
pub(crate) fn of_dataset(name: &str, text: &str) -> Result<(), String> {
    let (understood, instead) = match name {
        property::LUN => (text.parse::<Place>().map(drop), "millpond share lun add"),
        property::LU => {
            let name = serde_json::from_str::<LogicalUnitName>(text);
            (name.map(drop).map_err(|why| why.to_string()), "stmfadm create-lu")
        }
        property::OFFER | property::BLOCK | property::WRITE_CACHE | property::THIN_THRESHOLD => {
            (option(name, text), "millpond share set")
        }
        name => match in_pools(name) {
            Some(instead) => {
                return Err(format!(
                    "'{name}' is a property of pools, and says nothing on a dataset\nuse 'millpond share {instead}'"
                ));
            }
            None => return Ok(()),
        },
    };
    understood.map_err(|why| {
        let why = strange(name, &why);
        format!("{why}\nuse '{instead}', or 'zfs inherit {name} DATASET' to give up what is set")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was stored, and told at the next start at the latest, by who was not let in any more.
    #[test]
    fn what_cannot_be_understood_is_refused_and_what_share_writes_is_not() {
        let target = "org.millpond:target:iqn.a:t";
        let chap = "org.millpond:chap:iqn.a:t";
        let secret = r#"[{"user":"u","secret":"twelve bytes, or more"}]"#;
        for (name, text) in [
            (target, "{}"),
            (target, r#"{"access":{"networks":["192.0.2.0/24"]},"groups":[1]}"#),
            (target, r#"{"access":{"initiators":["iqn.a:*","*","iqn.a:host_1"]}}"#),
            (chap, secret),
            (property::CHAP, secret),
            (property::PORTALS, r#"[{"address":"192.0.2.1:3260","group":1}]"#),
            (property::DISCOVERY, r#"{"initiators":[]}"#),
            ("org.millpond:note", "anything at all"),
        ] {
            assert_eq!(of_pool(name, text), Ok(()), "{name}={text}");
            assert_eq!(of_pool(name, ""), Ok(()), "{name}: whoever has to can clear it");
        }
        for (name, text, instead) in [
            (target, r#"{"fenced":true}"#, "share target create"),
            (target, r#"{"access":{"networks":["everywhere"]}}"#, "share target create"),
            (target, r#"{"access":{"initiators":["IQN.A:X"]}}"#, "'iqn.a:x'"),
            (target, r#"{"access":{"initiators":["everyone"]}}"#, "share target create"),
            (target, r#"{"access":{"initiators":["iqn.a:x "]}}"#, "share target create"),
            (target, r#"{"access":{"initiators":["iqn.a:*x"]}}"#, "share target create"),
            (target, r#"{"groups":[]}"#, "leave 'groups' out"),
            (target, r#"{"groups":[0]}"#, "numbers from 1"),
            ("org.millpond:target:shelf", "{}", "share target create"),
            (chap, "hunter2", "share chap set"),
            (chap, r#"[{"user":"u","secret":"hunter2"}]"#, "share chap set"),
            (property::CHAP, "hunter2", "share chap set --discovery"),
            (property::PORTALS, "192.0.2.1", "share portal add"),
            (property::PORTALS, r#"[{"address":"192.0.2.1:3260","group":0}]"#, "share portal add"),
            (property::DISCOVERY, "everybody", "share access allow --discovery"),
            (property::DISCOVERY, r#"{"initiators":["IQN.A:X"]}"#, "'iqn.a:x'"),
        ] {
            let said = of_pool(name, text).unwrap_err();
            assert!(said.contains(instead) && said.contains(&format!("{name}= POOL")), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }

        for (name, text) in [
            (property::LUN, "iqn.a:t 7"),
            (property::LU, r#"{"guid":"6","base":""}"#),
            (property::OFFER, "none"),
            (property::BLOCK, "4096"),
            (property::WRITE_CACHE, "off"),
            (property::THIN_THRESHOLD, "10%"),
            ("org.millpond:note", "anything at all"),
        ] {
            assert_eq!(of_dataset(name, text), Ok(()), "{name}={text}");
        }
        for (name, instead) in [
            (property::LUN, "share lun add"),
            (property::LU, "stmfadm create-lu"),
            (property::OFFER, "share set"),
            (property::BLOCK, "share set"),
            (property::WRITE_CACHE, "share set"),
            (property::THIN_THRESHOLD, "share set"),
            (property::CHAP, "share chap set"),
        ] {
            for text in ["nonsense", ""] {
                let said = of_dataset(name, text).unwrap_err();
                assert!(said.contains(instead), "{name}={text}: {said}");
            }
        }
    }
}
