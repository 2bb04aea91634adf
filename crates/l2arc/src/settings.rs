//! How the second tier works, by the names that OpenZFS gives its tunables, from words that a person wrote.
//!
//! Where OpenZFS has something that is decided differently here (how much is scanned at each round: everything that
//! leaves memory comes by anyway) the name is known and refused with the reason, not taken and forgotten.

use crate::Config;

/// Why a setting is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No `NAME=VALUE`.
    #[error("'{0}' is no setting: give NAME=VALUE")]
    Form(String),
    /// There is none of that name.
    #[error("there is no setting '{name}'; there are: {}", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// It is OpenZFS's, and means nothing here.
    #[error("'{name}' has no effect here: {why}")]
    Idle {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// Not a value for it.
    #[error("'{value}' is no value of '{name}': {wanted}")]
    Value {
        /// The name.
        name: String,
        /// What was given.
        value: String,
        /// What it takes.
        wanted: &'static str,
    },
}

/// All that can be set.
const NAMES: [&str; 10] = [
    "l2arc_dwpd_limit",
    "l2arc_write_boost",
    "l2arc_write_max",
    "l2arc_mfuonly",
    "l2arc_noprefetch",
    "l2arc_trim_ahead",
    "l2arc_rebuild_enabled",
    "l2arc_rebuild_blocks_min_l2size",
    "mp_second_eviction",
    "mp_reinsert",
];

impl Config {
    /// Changes what `NAME=VALUE` says.
    ///
    /// # Errors
    /// There is no such setting, or it does not take that.
    pub fn set(&mut self, setting: &str) -> Result<(), SettingError> {
        let (name, value) = setting.split_once('=').ok_or_else(|| SettingError::Form(setting.to_owned()))?;
        let wrong = |wanted| SettingError::Value { name: name.to_owned(), value: value.to_owned(), wanted };
        let bytes = || bytes(value).ok_or_else(|| wrong("a number of bytes, such as 64M"));
        let switch = || match value {
            "0" | "off" => Ok(false),
            "1" | "on" => Ok(true),
            _ => Err(wrong("0 or 1")),
        };
        let idle = |why| Err(SettingError::Idle { name: name.to_owned(), why });
        match name {
            "l2arc_dwpd_limit" => {
                let percent = value.parse::<f64>().ok().filter(|limit| (0.0..=1_000_000.0).contains(limit));
                let percent = percent.ok_or_else(|| {
                    wrong("a percentage of the device to be written a day, such as 100; 0: no limit")
                })?;
                self.dwpd_limit = percent / 100.0;
            }
            "l2arc_write_boost" => self.fill_rate = bytes()?,
            "l2arc_write_max" => self.write_max = bytes()?,
            "l2arc_mfuonly" => {
                self.mfuonly =
                    value.parse().ok().filter(|mode| *mode <= 2).ok_or_else(|| wrong("0, 1 or 2"))?;
            }
            "l2arc_noprefetch" => self.noprefetch = switch()?,
            "l2arc_trim_ahead" => {
                let percent = value.parse().ok().filter(|percent| *percent <= 1000);
                self.trim_ahead = percent.ok_or_else(|| wrong("a percentage"))?;
            }
            "l2arc_rebuild_enabled" => self.rebuild = switch()?,
            "l2arc_rebuild_blocks_min_l2size" => self.persist_min = bytes()?,
            "mp_second_eviction" => self.second_eviction = switch()?,
            "mp_reinsert" => self.reinsert = switch()?,
            "l2arc_headroom" | "l2arc_headroom_boost" | "l2arc_ext_headroom_pct" => {
                return idle("nothing is scanned for: every block that leaves memory is offered");
            }
            "l2arc_feed_secs" | "l2arc_feed_min_ms" | "l2arc_feed_again" => {
                return idle("a device is written to when there is enough to write");
            }
            "l2arc_norw" => return idle("devices are read from and written to at the same time"),
            "l2arc_meta_percent" => return idle("the index may take a third of the cache's memory"),
            _ => return Err(SettingError::Unknown { name: name.to_owned() }),
        }
        Ok(())
    }
}

/// Bytes: a number, and perhaps K, M, G or T.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_words_and_wrong_ones_are_named() {
        let mut config = Config::default();
        for setting in [
            "l2arc_dwpd_limit=250",
            "l2arc_write_boost=64M",
            "l2arc_write_max=32M",
            "l2arc_mfuonly=2",
            "l2arc_noprefetch=0",
            "l2arc_trim_ahead=100",
            "l2arc_rebuild_enabled=off",
            "l2arc_rebuild_blocks_min_l2size=0",
            "mp_second_eviction=0",
            "mp_reinsert=0",
        ] {
            config.set(setting).unwrap();
        }
        let expected = Config {
            dwpd_limit: 2.5,
            fill_rate: 64 << 20,
            write_max: 32 << 20,
            mfuonly: 2,
            noprefetch: false,
            trim_ahead: 100,
            rebuild: false,
            persist_min: 0,
            second_eviction: false,
            reinsert: false,
            ..Config::default()
        };
        assert_eq!(config, expected);
        config.set("l2arc_dwpd_limit=100").unwrap();
        assert_eq!(config.dwpd_limit, Config::default().dwpd_limit, "OpenZFS's default: once a day");
        assert!(NAMES.iter().all(|name| config.set(&format!("{name}=1")).is_ok()));
        for wrong in [
            "x",
            "l2arc_x=1",
            "l2arc_mfuonly=3",
            "l2arc_write_max=1X",
            "l2arc_dwpd_limit=-1",
            "l2arc_headroom=8",
        ] {
            let before = config;
            let error = config.set(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
            assert_eq!(config, before);
        }
    }
}
