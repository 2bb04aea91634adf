//! Parameter lists of PERSISTENT RESERVE OUT, and TransportIDs (SPC-4 §6.14.3–6.14.4, §7.6.4.6).
//!
//! ```text
//!   REGISTER …         key 8 │ service key 8 │ obsolete 4 │ SPEC_I_PT ALL_TG_PT APTPL │ 3 │ [length 4, TransportIDs]
//!   REGISTER AND MOVE  key 8 │ service key 8 │ 1 │ UNREG APTPL │ target port 2 │ length 4 │ TransportID
//! ```

use std::sync::Arc;

use crate::sense::Sense;

/// An initiator port that a list names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// One port: name and ISID, in the spelling sessions have.
    Port(Arc<str>),
    /// Every port of an initiator: its name.
    Device(String),
}

/// The basic parameter list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegisterList {
    pub(crate) key: u64,
    pub(crate) service_key: u64,
    pub(crate) aptpl: bool,
    pub(crate) all_ports: bool,
    /// Additional nexuses (SPEC_I_PT).
    pub(crate) others: Vec<Transport>,
}

/// The parameter list of REGISTER AND MOVE.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MoveList {
    pub(crate) key: u64,
    pub(crate) service_key: u64,
    pub(crate) aptpl: bool,
    pub(crate) unregister: bool,
    pub(crate) port: u16,
    pub(crate) to: Transport,
}

/// Key, service action key, the eight bytes after them, and what follows.
type Head<'a> = (u64, u64, &'a [u8; 8], &'a [u8]);

/// Splits off the 24 bytes that both lists begin with.
fn head(list: &[u8]) -> Result<Head<'_>, Sense> {
    let short = || Sense::PARAMETER_LIST_LENGTH;
    let (key, rest) = list.split_first_chunk::<8>().ok_or_else(short)?;
    let (service_key, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let (flags, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    Ok((u64::from_be_bytes(*key), u64::from_be_bytes(*service_key), flags, rest))
}

impl RegisterList {
    /// `others_allowed`: SPEC_I_PT belongs to REGISTER only.
    pub(crate) fn parse(list: &[u8], others_allowed: bool) -> Result<Self, Sense> {
        let (key, service_key, bytes, rest) = head(list)?;
        let [_, _, _, _, flags, ..] = *bytes;
        let others = if flags & 0x08 == 0 {
            if !rest.is_empty() {
                return Err(Sense::PARAMETER_LIST_LENGTH);
            }
            Vec::new()
        } else {
            if !others_allowed {
                return Err(Sense::parameter(20));
            }
            let (len, mut ids) = rest.split_first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
            if u32::from_be_bytes(*len) as usize != ids.len() || ids.is_empty() {
                return Err(Sense::PARAMETER_LIST_LENGTH);
            }
            let mut others = Vec::new();
            while !ids.is_empty() {
                let (id, rest) = transport(ids).ok_or(Sense::parameter(28))?;
                others.push(id);
                ids = rest;
            }
            others
        };
        Ok(Self { key, service_key, aptpl: flags & 0x01 != 0, all_ports: flags & 0x04 != 0, others })
    }
}

impl MoveList {
    pub(crate) fn parse(list: &[u8]) -> Result<Self, Sense> {
        let (key, service_key, bytes, rest) = head(list)?;
        let [_, flags, high, low, len @ ..] = *bytes;
        if u32::from_be_bytes(len) as usize != rest.len() {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        match transport(rest) {
            Some((to, [])) => Ok(Self {
                key,
                service_key,
                aptpl: flags & 0x01 != 0,
                unregister: flags & 0x02 != 0,
                port: u16::from_be_bytes([high, low]),
                to,
            }),
            _ => Err(Sense::parameter(24)),
        }
    }
}

/// The TransportID at the head of `bytes`, and what follows it.
fn transport(bytes: &[u8]) -> Option<(Transport, &[u8])> {
    let (&[kind, _, high, low], rest) = bytes.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
    // A multiple of four, at least twenty, ended by a zero.
    if text.len() < 20 || !text.len().is_multiple_of(4) {
        return None;
    }
    let end = text.iter().position(|byte| *byte == 0)?;
    if text.get(end..)?.iter().any(|byte| *byte != 0) {
        return None;
    }
    let text = str::from_utf8(text.get(..end)?).ok()?.to_ascii_lowercase();
    let id = match kind {
        0x05 if !text.is_empty() && !text.contains(',') => Transport::Device(text),
        0x45 => {
            let (name, isid) = text.split_once(",i,0x")?;
            let isid =
                u64::from_str_radix(isid, 16).ok().filter(|_| isid.len() <= 12 && !isid.starts_with('+'))?;
            if name.is_empty() {
                return None;
            }
            Transport::Port(format!("{name},i,0x{isid:012x}").into())
        }
        _ => return None,
    };
    Some((id, rest))
}

/// The TransportID of an initiator port.
pub(crate) fn transport_id(port: &str) -> Vec<u8> {
    let mut name = port.as_bytes().to_vec();
    name.push(0);
    while name.len() < 20 || !name.len().is_multiple_of(4) {
        name.push(0);
    }
    let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let mut out = vec![if port.contains(",i,") { 0x45 } else { 0x05 }, 0];
    out.extend(len.to_be_bytes());
    out.extend(name);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_id_comes_back_in_the_spelling_of_sessions() {
        let port = "iqn.2026-11.x:host,i,0x00023d000001";
        let bytes = transport_id(port);
        assert!(bytes.len().is_multiple_of(4));
        assert_eq!(transport(&bytes), Some((Transport::Port(port.into()), &[][..])));
        // Other spellings of the same number and name are the same port.
        let other = transport_id("iqn.2026-11.X:host,i,0x23D000001");
        assert_eq!(transport(&other), Some((Transport::Port(port.into()), &[][..])));
        let device = transport_id("iqn.2026-11.x:host");
        assert_eq!(transport(&device), Some((Transport::Device("iqn.2026-11.x:host".into()), &[][..])));
    }

    #[test]
    fn what_is_no_transport_id_is_refused() {
        let good = transport_id("iqn.2026-11.x:host,i,0x00023d000001");
        for cut in 0..good.len() {
            assert_eq!(transport(&good[..cut]), None, "{cut}");
        }
        let mut bad = good.clone();
        bad[0] = 0x06; // SAS
        assert_eq!(transport(&bad), None);
        let mut bad = good;
        *bad.last_mut().unwrap() = 1; // no end
        assert_eq!(transport(&bad), None);
    }
}
