//! Text keys: `key=value` pairs, and what a target answers to each (RFC 7143 §6.2, §13).
//!
//! [`Params`] is what both sides agreed on. [`Params::answer`] takes one key of the initiator and returns
//! what to say: declarations get no answer, lists get their first entry that we have, numbers are
//! clamped by the key's own function, what lies outside its range gets `Reject`, what nobody knows gets
//! `NotUnderstood`.

/// Longest data segment we take, in bytes.
pub const RECEIVE_MAX: u32 = 256 << 10;
const BURST_MAX: u32 = 1 << 20;
const FIRST_BURST_MAX: u32 = 256 << 10;
/// Bursts of one command asked for at once: enough that a long line is never idle between two.
const R2TS_MAX: u32 = 8;

/// What the peer may send unasked for one command, where all may have `max` bytes in flight.
pub fn first_burst_for(max: u64) -> u32 {
    u32::try_from(max.wrapping_div(1024)).unwrap_or(u32::MAX).clamp(16 << 10, FIRST_BURST_MAX)
}

/// What was negotiated; fresh, the standard's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// CRC32C after headers.
    pub header_digest: bool,
    /// CRC32C after data.
    pub data_digest: bool,
    /// Longest data segment the peer takes.
    pub send_max: u32,
    /// Bytes of one data sequence.
    pub max_burst: u32,
    /// Bytes sent unasked for one command.
    pub first_burst: u32,
    /// The most we agree to.
    pub first_burst_max: u32,
    /// No unsolicited Data-Out PDUs.
    pub initial_r2t: bool,
    /// Data in the command PDU.
    pub immediate_data: bool,
    /// Bursts of one command that may be asked for at once.
    pub r2ts: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            send_max: 8192,
            max_burst: 262_144,
            first_burst: 65_536,
            first_burst_max: FIRST_BURST_MAX,
            initial_r2t: true,
            immediate_data: true,
            r2ts: 1,
        }
    }
}

/// What to say to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: it was a declaration.
    Silence,
    /// `key=…`.
    Say(String),
}

fn reject() -> Answer {
    Answer::Say("Reject".into())
}

/// Decimal or hexadecimal (RFC 7143 §6.1).
pub fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn said(yes: bool) -> Answer {
    Answer::Say(if yes { "Yes" } else { "No" }.into())
}

impl Params {
    /// Answers one operational key and remembers what it settles.
    pub fn answer(&mut self, key: &str, value: &str) -> Answer {
        // Number: range, what we say given what is offered.
        let numeric = |low: u32, high: u32, pick: &dyn Fn(u32) -> u32| {
            number(value).filter(|n| (low..=high).contains(n)).map(pick)
        };
        let say = |n: Option<u32>| n.map_or_else(reject, |n| Answer::Say(n.to_string()));
        const LEN_MAX: u32 = 0x00ff_ffff;
        match key {
            "HeaderDigest" | "DataDigest" => match value.split(',').find(|d| matches!(*d, "None" | "CRC32C"))
            {
                Some(digest) => {
                    let on = digest == "CRC32C";
                    if key == "HeaderDigest" {
                        self.header_digest = on;
                    } else {
                        self.data_digest = on;
                    }
                    Answer::Say(digest.into())
                }
                None => reject(),
            },
            "MaxRecvDataSegmentLength" => match numeric(512, LEN_MAX, &|n| n) {
                Some(n) => {
                    self.send_max = n;
                    Answer::Silence
                }
                None => reject(),
            },
            "MaxBurstLength" => {
                let n = numeric(512, LEN_MAX, &|n| n.min(BURST_MAX));
                self.max_burst = n.unwrap_or(self.max_burst);
                self.first_burst = self.first_burst.min(self.max_burst);
                say(n)
            }
            "FirstBurstLength" => {
                let n = numeric(512, LEN_MAX, &|n| n.min(self.first_burst_max));
                self.first_burst = n.unwrap_or(self.first_burst).min(self.max_burst);
                say(n.map(|_| self.first_burst))
            }
            "InitialR2T" => match boolean(value) {
                Some(wanted) => {
                    self.initial_r2t = wanted; // OR with our No
                    said(wanted)
                }
                None => reject(),
            },
            "ImmediateData" => match boolean(value) {
                Some(wanted) => {
                    self.immediate_data = wanted; // AND with our Yes
                    said(wanted)
                }
                None => reject(),
            },
            "DataPDUInOrder" | "DataSequenceInOrder" => boolean(value).map_or_else(reject, |_| said(true)),
            "MaxConnections" => say(numeric(1, 65_535, &|_| 1)),
            "MaxOutstandingR2T" => {
                let n = numeric(1, 65_535, &|n| n.min(R2TS_MAX));
                self.r2ts = n.unwrap_or(self.r2ts);
                say(n)
            }
            "ErrorRecoveryLevel" => say(numeric(0, 2, &|_| 0)),
            "DefaultTime2Wait" => say(numeric(0, 3600, &|n| n.max(2))),
            "DefaultTime2Retain" => say(numeric(0, 3600, &|_| 0)),
            "iSCSIProtocolLevel" => say(numeric(0, 31, &|n| n.min(1))),
            "TaskReporting" if value.split(',').any(|v| v == "RFC3720") => Answer::Say("RFC3720".into()),
            "TaskReporting" => reject(),
            // Markers went with RFC 3720.
            "IFMarker" | "OFMarker" => boolean(value).map_or_else(reject, |_| said(false)),
            "IFMarkInt" | "OFMarkInt" => reject(),
            // A target does not take these from an initiator in this place.
            "TargetAddress" | "TargetPortalGroupTag" | "TargetAlias" | "SendTargets" => reject(),
            "InitiatorAlias" => Answer::Silence,
            _ => Answer::Say("NotUnderstood".into()),
        }
    }
}

/// Splits a text segment into pairs. `None` if it is not text: no `=`, not UTF-8, names or values too long.
pub fn pairs(text: &[u8]) -> Option<Vec<(&str, &str)>> {
    // Binary items of a challenge may be long; the rest is at most 255 bytes (RFC 7143 §6.1).
    const VALUE_MAX: usize = 8192;
    text.split(|byte| *byte == 0)
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
            (!key.is_empty() && key.len() <= 63 && value.len() <= VALUE_MAX).then_some((key, value))
        })
        .collect()
}

/// Appends `key=value` and its end.
pub fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(key: &str, value: &str) -> String {
        match Params::default().answer(key, value) {
            Answer::Say(text) => text,
            Answer::Silence => "(silence)".into(),
        }
    }

    #[test]
    fn each_key_is_answered_by_its_own_function() {
        for (key, offered, answer) in [
            ("HeaderDigest", "CRC32C,None", "CRC32C"),
            ("HeaderDigest", "None,CRC32C", "None"),
            ("DataDigest", "SHA9,CRC32C", "CRC32C"),
            ("DataDigest", "SHA9", "Reject"),
            ("MaxConnections", "8", "1"),
            ("MaxConnections", "0", "Reject"),
            ("InitialR2T", "No", "No"),
            ("InitialR2T", "Yes", "Yes"),
            ("ImmediateData", "No", "No"),
            ("ImmediateData", "maybe", "Reject"),
            ("MaxRecvDataSegmentLength", "65536", "(silence)"),
            ("MaxRecvDataSegmentLength", "511", "Reject"),
            ("MaxBurstLength", "16776192", "1048576"),
            ("MaxBurstLength", "0x10000", "65536"),
            ("FirstBurstLength", "512", "512"),
            ("DefaultTime2Wait", "0", "2"),
            ("DefaultTime2Retain", "20", "0"),
            ("DefaultTime2Retain", "3601", "Reject"),
            ("MaxOutstandingR2T", "16", "8"),
            ("MaxOutstandingR2T", "1", "1"),
            ("MaxOutstandingR2T", "0", "Reject"),
            ("DataPDUInOrder", "No", "Yes"),
            ("ErrorRecoveryLevel", "2", "0"),
            ("ErrorRecoveryLevel", "3", "Reject"),
            ("OFMarker", "Yes", "No"),
            ("X-com.example.thing", "1", "NotUnderstood"),
            ("iSCSIProtocolLevel", "2", "1"),
        ] {
            assert_eq!(say(key, offered), answer, "{key}={offered}");
        }
    }

    #[test]
    fn the_first_burst_never_exceeds_the_burst() {
        let mut params = Params::default();
        params.answer("MaxBurstLength", "1024");
        assert_eq!(params.answer("FirstBurstLength", "65536"), Answer::Say("1024".into()));
        assert_eq!((params.first_burst, params.max_burst), (1024, 1024));
    }

    #[test]
    fn what_is_no_text_is_no_pairs() {
        assert_eq!(pairs(b"a=1\0b=\0"), Some(vec![("a", "1"), ("b", "")]));
        assert_eq!(pairs(b"novalue\0"), None);
        assert_eq!(pairs(b"a=\xff\0"), None);
        assert_eq!(pairs(b""), Some(vec![]));
    }
}
