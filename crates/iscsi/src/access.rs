//! Who may log in: initiator names, networks, and CHAP credentials, of a target or of discovery.
//!
//! The three are independent and all must hold. An empty list forbids nothing. Names come from the initiator itself
//! and prove nothing; only CHAP does.

use std::{fmt, net::IpAddr, str::FromStr};

/// Shortest secret, in bytes: 96 bits (RFC 7143 §9.2.1).
pub const SECRET_MIN: usize = 12;
/// Longest secret, in bytes.
pub const SECRET_MAX: usize = 255;

/// A CHAP secret. Its bytes never appear in logs or listings.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The bytes, for hashing.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why credentials or networks were not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Guessable off line by anyone who saw a login.
    #[error("a CHAP secret has {SECRET_MIN} to {SECRET_MAX} bytes, this one has {0}")]
    SecretLength(usize),
    /// The initiator's secret must not be the target's: each could then answer its own challenge.
    #[error("the secrets of initiator and target must differ")]
    SameSecret,
    /// No name.
    #[error("a CHAP name has 1 to 255 bytes")]
    Name,
    /// Not an address and a prefix length.
    #[error("{0} is not a network, as 192.0.2.0/24 or 2001:db8::/64")]
    Network(String),
}

/// What an initiator proves itself by, and what the target answers if it is asked the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    pub(crate) user: String,
    pub(crate) secret: Secret,
    pub(crate) mutual: Option<(String, Secret)>,
}

fn credential(user: &str, secret: &[u8]) -> Result<(String, Secret), AccessError> {
    if user.is_empty() || user.len() > 255 {
        return Err(AccessError::Name);
    }
    if !(SECRET_MIN..=SECRET_MAX).contains(&secret.len()) {
        return Err(AccessError::SecretLength(secret.len()));
    }
    Ok((user.to_owned(), Secret(secret.to_owned())))
}

impl Auth {
    /// One-way: the initiator proves itself.
    pub fn new(user: &str, secret: &[u8]) -> Result<Self, AccessError> {
        let (user, secret) = credential(user, secret)?;
        Ok(Self { user, secret, mutual: None })
    }

    /// Mutual: the target proves itself, too, to those who ask.
    pub fn mutual(self, user: &str, secret: &[u8]) -> Result<Self, AccessError> {
        let theirs = credential(user, secret)?;
        if theirs.1 == self.secret {
            return Err(AccessError::SameSecret);
        }
        Ok(Self { mutual: Some(theirs), ..self })
    }

    /// The name that initiators use.
    pub fn user(&self) -> &str {
        &self.user
    }
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl FromStr for Network {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        let wrong = || AccessError::Network(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= longest).ok_or_else(wrong)?,
            None => longest,
        };
        // Addresses are compared by their own form, so a network of IPv4 addresses in their IPv6 form is one of those.
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), address @ IpAddr::V4(_)) => {
                Ok(Self { address, prefix: prefix.checked_sub(96).ok_or_else(wrong)? })
            }
            _ => Ok(Self { address, prefix }),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Network {
    /// Whether `address` lies in it; an IPv4 address may come in its IPv6 form.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (network, address, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (u128::from(network.to_bits()), u128::from(address.to_bits()), 32_u32)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
            _ => return false,
        };
        let differing = width.saturating_sub(u32::from(self.prefix));
        // All bits are free: a shift by the whole width is none.
        (network ^ address).checked_shr(differing).unwrap_or(0) == 0
    }
}

/// Who may log in to a target, or discover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Initiator names in lower case; one that ends in `*` means all that begin so. Empty: any.
    pub initiators: Vec<String>,
    /// Where they may come from. Empty: anywhere.
    pub networks: Vec<Network>,
    /// Credentials, one of which an initiator must prove. Empty: none is asked for.
    pub auth: Vec<Auth>,
    /// Further rules about names and networks: whoever satisfies one of them is admitted, too. Their credentials do not count.
    pub or: Vec<Self>,
}

impl Access {
    /// Whether an initiator of that name may come from there; nothing is proven yet.
    pub fn admits(&self, initiator: &str, peer: IpAddr) -> bool {
        let named = self.initiators.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => initiator.starts_with(start),
            None => initiator == pattern,
        });
        let from = self.networks.iter().any(|network| network.contains(peer));
        let is_admitted = (named || self.initiators.is_empty()) && (from || self.networks.is_empty());
        is_admitted || self.or.iter().any(|rule| rule.admits(initiator, peer))
    }

    /// Whether what an initiator has proven elsewhere is enough here.
    pub(crate) fn trusts(&self, proven: Option<&Auth>) -> bool {
        self.auth.is_empty()
            || proven.is_some_and(|proven| {
                self.auth.iter().any(|auth| auth.user == proven.user && auth.secret == proven.secret)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_they_should() {
        for (network, address, inside) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "198.51.100.1", true),
            ("192.0.2.0/24", "::ffff:192.0.2.9", true),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::/0", "192.0.2.1", false),
            ("::ffff:192.0.2.0/120", "192.0.2.9", true),
            ("::ffff:192.0.2.0/120", "192.0.3.9", false),
            ("::ffff:192.0.2.7", "::ffff:192.0.2.7", true),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), inside, "{network} {address}");
        }
        for wrong in
            ["", "192.0.2.0/33", "192.0.2/24", "x/8", "2001:db8::/129", "192.0.2.0/-1", "::ffff:192.0.2.0/24"]
        {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_and_networks_must_both_fit() {
        let access = Access {
            initiators: vec!["iqn.a:one".into(), "iqn.b:*".into()],
            networks: vec!["192.0.2.0/24".parse().unwrap()],
            ..Access::default()
        };
        let (inside, outside) = ("192.0.2.1".parse().unwrap(), "192.0.3.1".parse().unwrap());
        assert!(access.admits("iqn.a:one", inside) && access.admits("iqn.b:any", inside));
        assert!(!access.admits("iqn.a:one2", inside) && !access.admits("iqn.b:any", outside));
        assert!(Access::default().admits("iqn.any", outside));
    }

    #[test]
    fn weak_and_shared_secrets_are_refused_and_none_is_printed() {
        assert_eq!(Auth::new("u", b"eleven byte"), Err(AccessError::SecretLength(11)));
        let auth = Auth::new("u", b"twelve bytes").unwrap();
        assert_eq!(auth.clone().mutual("t", b"twelve bytes"), Err(AccessError::SameSecret));
        assert!(!format!("{auth:?}").contains("116"), "{auth:?}");
    }
}
