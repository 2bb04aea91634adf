//! Property values as users type them, the other direction of [`value::print`](super::value::print): `10G`,
//! `zstd-3`, `none`, and what is said about those that make no sense.
//!
//! A refusal's text is OpenZFS's reason, to stand behind `cannot set property for 'tank/vm1': `. What can only be
//! decided with a pool at hand (enough space? a legal block of this volume?) is not decided here.
//! Facts: docs/format/zvol.md §2.

use super::{
    Access, Definition, Kind, Types, Value, index,
    table::{self, is_user},
    value::bytes,
};

/// Smallest block of a volume or file, in bytes.
pub const BLOCK_MIN: u64 = 512;
/// Largest block of a volume, in bytes: larger ones would need a feature in use for nothing.
pub const VOLUME_BLOCK_MAX: u64 = 128 << 10;
/// Largest record of a file, in bytes.
pub const RECORD_MAX: u64 = 16 << 20;
/// Longest name of a user property, in bytes.
pub const USER_NAME_MAX: usize = 255;
/// Longest value of a user property, in bytes.
pub const USER_VALUE_MAX: usize = 8191;
/// Characters of what is too long that are repeated.
const BEGINNING_MAX: usize = 64;

/// Why a property or its value was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// There is no such property.
    #[error("invalid property '{0}'")]
    Unknown(String),
    /// Nobody may set it, or not any more.
    #[error("'{0}' is readonly")]
    ReadOnly(String),
    /// This kind of dataset has it not.
    #[error("'{0}' does not apply to datasets of this type")]
    WrongType(String),
    /// Not one of its words.
    #[error("'{name}' must be one of '{values}'")]
    NotAWord {
        /// The property.
        name: &'static str,
        /// Its words.
        values: &'static str,
    },
    /// Not a number.
    #[error("bad numeric value '{0}'")]
    NotANumber(String),
    /// A number with a unit nobody knows.
    #[error("invalid numeric suffix '{0}'")]
    BadSuffix(String),
    /// A number that does not fit 64 bits.
    #[error("numeric value is too large")]
    TooLarge,
    /// Zero where "no limit" has a word.
    #[error("use 'none' to disable quota/refquota")]
    UseNone,
    /// A block size that cannot be.
    #[error("'{name}' must be power of 2 from 512B to {}", bytes(*max))]
    NotABlockSize {
        /// The property.
        name: &'static str,
        /// Largest block, in bytes.
        max: u64,
    },
    /// A size of nothing.
    #[error("'{0}' cannot be zero")]
    Zero(&'static str),
    /// `auto` where nothing can be computed.
    #[error("'{0}=auto' only allowed on volumes")]
    AutoOnVolumes(&'static str),
    /// A user property's name, of which this is the beginning.
    #[error("property name '{0}' is too long")]
    NameTooLong(String),
    /// A user property's value, of which this is the beginning.
    #[error("property value '{0}' is too long")]
    ValueTooLong(String),
    /// A number outside what the property may be.
    #[error("property '{name}' number {value} is invalid, only values between {min} and {max} are allowed.")]
    OutOfRange {
        /// The property.
        name: &'static str,
        /// What was given.
        value: u64,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A text the property cannot be.
    #[error("'{name}' {reason}")]
    BadText {
        /// The property.
        name: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A value that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// To be stored under this name.
    Value(String, Value),
    /// `refreservation=auto`: what the volume would need if every block were written.
    Auto,
}

/// A size or count: `512`, `10G`, `1.5T`, `64KiB`. Units are powers of 1024; fractions need a unit.
///
/// # Errors
/// It is no number, has an unknown unit, or does not fit.
pub fn number(text: &str) -> Result<u64, ParseError> {
    let bad = || ParseError::NotANumber(text.to_owned());
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if !digits.contains(|c: char| c.is_ascii_digit()) || digits.matches('.').count() > 1 {
        return Err(bad());
    }
    let shift = shift(unit).ok_or_else(|| ParseError::BadSuffix(unit.to_owned()))?;
    let Some((whole, fraction)) = digits.split_once('.') else {
        let number: u64 = digits.parse().map_err(|_| ParseError::TooLarge)?;
        return number.checked_mul(1 << shift).ok_or(ParseError::TooLarge);
    };
    if shift == 0 && fraction.contains(|c| c != '0') {
        return Err(bad());
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| ParseError::TooLarge)? };
    // Eighteen digits behind the point are finer than a byte of an exabyte.
    let fraction = &fraction[..fraction.len().min(18)];
    let numerator: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| bad())? };
    let part = (numerator << shift) / 10u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let total = (u128::from(whole) << shift) + part;
    u64::try_from(total).map_err(|_| ParseError::TooLarge)
}

/// The power of two a unit stands for: nothing or `B`; `K`, `KB` or `KiB`; and so on up to `E`.
fn shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(0);
    }
    let (letter, rest) = unit.split_at_checked(1)?;
    let power = ["K", "M", "G", "T", "P", "E"].iter().position(|known| *known == letter)?;
    matches!(rest, "" | "B" | "IB").then(|| 10 * (u32::try_from(power).unwrap_or(0) + 1))
}

/// Whether a property is being set on something that exists or together with its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// `create -o`, `clone -o`.
    Creating,
    /// `set`.
    Later,
}

/// A dataset property as given to `zfs set` or `zfs create -o`, for a dataset of the kind `types`.
///
/// # Errors
/// There is no such property, it cannot be set, or not to this.
pub fn dataset(name: &str, text: &str, types: Types, moment: Moment) -> Result<Parsed, ParseError> {
    let Some(row) = table::dataset(name) else {
        return user(name, text);
    };
    let settable = match row.access {
        Access::ReadOnly => false,
        Access::Settable | Access::Inherit => true,
        Access::OneTime | Access::OneTimeDefault => moment == Moment::Creating,
    };
    if !settable {
        return Err(ParseError::ReadOnly(row.name.to_owned()));
    }
    if !row.types.meets(types) {
        // What is inherited may be set on a file system for the volumes below it.
        let for_below = row.access == Access::Inherit && types.meets(Types::FILESYSTEM);
        if !for_below {
            return Err(ParseError::WrongType(row.name.to_owned()));
        }
    }
    if row.name == "refreservation" && text == "auto" {
        return match types.meets(Types::VOLUME) {
            true => Ok(Parsed::Auto),
            false => Err(ParseError::AutoOnVolumes(row.name)),
        };
    }
    let value = value(row, text)?;
    if row.name == "mountpoint" && !text.starts_with('/') && !matches!(text, "none" | "legacy") {
        return Err(ParseError::BadText {
            name: row.name,
            reason: "must be an absolute path, 'none', or 'legacy'",
        });
    }
    match (row.name, value.as_number()) {
        ("volblocksize", Some(size)) => block_size(row.name, size, VOLUME_BLOCK_MAX)?,
        ("recordsize", Some(size)) => block_size(row.name, size, RECORD_MAX)?,
        ("volsize", Some(0)) => return Err(ParseError::Zero("volsize")),
        ("quota" | "refquota", Some(0)) if text != "none" => return Err(ParseError::UseNone),
        ("special_small_blocks", Some(size)) if size != 0 => block_size(row.name, size, RECORD_MAX)?,
        _ => {}
    }
    Ok(Parsed::Value(row.name.to_owned(), value))
}

fn block_size(name: &'static str, size: u64, max: u64) -> Result<(), ParseError> {
    if size.is_power_of_two() && (BLOCK_MIN..=max).contains(&size) {
        return Ok(());
    }
    Err(ParseError::NotABlockSize { name, max })
}

fn user(name: &str, text: &str) -> Result<Parsed, ParseError> {
    if !is_user(name) {
        return Err(ParseError::Unknown(name.to_owned()));
    }
    if name.len() > USER_NAME_MAX {
        return Err(ParseError::NameTooLong(beginning(name)));
    }
    if text.len() > USER_VALUE_MAX {
        return Err(ParseError::ValueTooLong(beginning(text)));
    }
    Ok(Parsed::Value(name.to_owned(), Value::Text(text.to_owned())))
}

/// The beginning of what is too long to be repeated.
fn beginning(text: &str) -> String {
    text.chars().take(BEGINNING_MAX).chain(['…']).collect()
}

/// The value `text` of the property of this row.
///
/// # Errors
/// It is not one the property can have.
pub fn value(row: &Definition, text: &str) -> Result<Value, ParseError> {
    Ok(match row.kind {
        Kind::Limit if text == "none" => Value::Number(0),
        Kind::Count if text == "none" => Value::Number(u64::MAX),
        Kind::Bytes | Kind::Limit | Kind::Number | Kind::Count => Value::Number(number(text)?),
        Kind::Plain | Kind::Percent | Kind::Ratio | Kind::Date | Kind::DateSeconds => {
            Value::Number(text.parse().map_err(|_| ParseError::NotANumber(text.to_owned()))?)
        }
        Kind::Index(words) => {
            let number = index::number(words, text);
            // `noparity` is read on old pools; nobody may ask for it.
            let number = number.filter(|_| text != "noparity");
            Value::Number(number.ok_or(ParseError::NotAWord { name: row.name, values: row.values })?)
        }
        Kind::Text => Value::Text(text.to_owned()),
    })
}

/// Smallest and largest ashift a device may be given.
pub const ASHIFT: std::ops::RangeInclusive<u64> = 9..=16;
/// Longest comment of a pool, in bytes.
const COMMENT_MAX: usize = 32;

/// A pool property as given to `zpool set` or `zpool create -o`. Features are not among them.
///
/// # Errors
/// There is no such property, it cannot be set, or not to this.
pub fn pool(name: &str, text: &str, moment: Moment) -> Result<(String, Value), ParseError> {
    let Some(row) = table::pool(name) else {
        return match user(name, text)? {
            Parsed::Value(name, value) => Ok((name, value)),
            Parsed::Auto => Err(ParseError::Unknown(name.to_owned())),
        };
    };
    // Chosen at import; it is not kept anywhere.
    let at_import = row.name == "altroot" && moment == Moment::Later;
    if row.access == Access::ReadOnly || at_import {
        return Err(ParseError::ReadOnly(row.name.to_owned()));
    }
    let value = value(row, text)?;
    match (row.name, &value) {
        ("ashift", Value::Number(shift)) if *shift != 0 && !ASHIFT.contains(shift) => {
            return Err(ParseError::OutOfRange {
                name: row.name,
                value: *shift,
                min: *ASHIFT.start(),
                max: *ASHIFT.end(),
            });
        }
        ("comment", Value::Text(text)) if text.len() > COMMENT_MAX => {
            return Err(ParseError::BadText { name: "comment", reason: "must not exceed 32 characters" });
        }
        ("comment", Value::Text(text)) if text.bytes().any(|b| !(b' '..=b'~').contains(&b)) => {
            return Err(ParseError::BadText {
                name: "comment",
                reason: "may only have printable characters",
            });
        }
        ("version", Value::Text(text)) if text != "5000" => {
            return Err(ParseError::BadText {
                name: "version",
                reason: "can only be 5000: pools have feature flags instead of versions",
            });
        }
        _ => {}
    }
    Ok((row.name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::props::Style;

    #[test]
    fn sizes_are_what_people_type() {
        for (text, size) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("10GB", 10 << 30),
            ("10GiB", 10 << 30),
            ("1.5T", 3 << 39),
            (".5K", 512),
            ("1.K", 1024),
            ("16E", 0),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            match size {
                0 if text != "0" => assert_eq!(number(text), Err(ParseError::TooLarge), "{text}"),
                size => assert_eq!(number(text), Ok(size), "{text}"),
            }
        }
        for text in ["", "G", "-1", "ten", "1.2.3", "1.5", ".", "0x10"] {
            assert!(number(text).is_err(), "{text}");
        }
        assert_eq!(number("10Q"), Err(ParseError::BadSuffix("Q".into())));
        assert_eq!(number("10KK"), Err(ParseError::BadSuffix("KK".into())));
        assert_eq!(number("18446744073709551616"), Err(ParseError::TooLarge));
    }

    fn set(name: &str, text: &str) -> Result<String, String> {
        match dataset(name, text, Types::VOLUME, Moment::Later) {
            Ok(Parsed::Value(name, value)) => {
                let kind = table::dataset(&name).map_or(Kind::Text, |row| row.kind);
                Ok(super::super::value::print(kind, &value, Style::UTC).into_owned())
            }
            Ok(Parsed::Auto) => Ok("auto".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn what_can_be_set_prints_as_it_was_given() {
        for (name, text) in [
            ("compression", "zstd-fast-10"),
            ("compress", "gzip-9"),
            ("checksum", "blake3"),
            ("copies", "3"),
            ("sync", "always"),
            ("logbias", "throughput"),
            ("primarycache", "metadata"),
            ("snapdev", "visible"),
            ("readonly", "on"),
            ("volsize", "10G"),
            ("refreservation", "auto"),
            ("refreservation", "none"),
            ("reservation", "1.50G"),
            ("org.millpond:note", "anything at all"),
        ] {
            assert_eq!(set(name, text).as_deref(), Ok(text), "{name}");
        }
    }

    /// The refusal of a value of megabytes had megabytes.
    #[test]
    fn what_is_too_long_is_not_repeated_as_a_whole() {
        let (long, shown) = ("é".repeat(9000), format!("{}…", "é".repeat(64)));
        assert_eq!(set("org.a:b", &long), Err(format!("property value '{shown}' is too long")));
        let name = format!("a:{}", "b".repeat(9000));
        assert_eq!(set(&name, ""), Err(format!("property name '{}…' is too long", &name[..64])));
    }

    #[test]
    fn what_cannot_be_set_is_refused_in_the_words_of_openzfs() {
        for (name, text, why) in [
            ("nonsense", "1", "invalid property 'nonsense'"),
            ("used", "1", "'used' is readonly"),
            ("volblocksize", "8K", "'volblocksize' is readonly"),
            ("quota", "1G", "'quota' does not apply to datasets of this type"),
            ("recordsize", "1M", "'recordsize' does not apply to datasets of this type"),
            ("sync", "sometimes", "'sync' must be one of 'standard | always | disabled'"),
            ("copies", "4", "'copies' must be one of '1 | 2 | 3'"),
            ("volsize", "ten", "bad numeric value 'ten'"),
            ("volsize", "0", "'volsize' cannot be zero"),
            ("volsize", "10Q", "invalid numeric suffix 'Q'"),
        ] {
            assert_eq!(set(name, text).as_ref().map_err(String::as_str), Err(why), "{name}={text}");
        }
        let fs =
            |name, text| dataset(name, text, Types::FILESYSTEM, Moment::Creating).map_err(|e| e.to_string());
        assert_eq!(fs("quota", "0"), Err("use 'none' to disable quota/refquota".into()));
        assert_eq!(fs("refreservation", "auto"), Err("'refreservation=auto' only allowed on volumes".into()));
        assert_eq!(fs("recordsize", "3K"), Err("'recordsize' must be power of 2 from 512B to 16M".into()));
        assert_eq!(fs("volsize", "1G"), Err("'volsize' does not apply to datasets of this type".into()));
        assert!(fs("volthreading", "off").is_ok(), "for the volumes below");
        for relative in ["foo", "./foo", "", "None"] {
            let why = "'mountpoint' must be an absolute path, 'none', or 'legacy'";
            assert_eq!(fs("mountpoint", relative), Err(why.into()), "{relative}");
        }
        for absolute in ["/", "/srv/foo", "none", "legacy"] {
            assert!(fs("mountpoint", absolute).is_ok(), "{absolute}");
        }
        let new = dataset("volblocksize", "12K", Types::VOLUME, Moment::Creating).unwrap_err();
        assert_eq!(new.to_string(), "'volblocksize' must be power of 2 from 512B to 128K");
    }

    #[test]
    fn pool_properties_have_their_own_rules() {
        fn set(name: &str, text: &str) -> Result<(String, Value), String> {
            pool(name, text, Moment::Later).map_err(|e| e.to_string())
        }
        assert_eq!(set("failmode", "continue"), Ok(("failmode".into(), Value::Number(1))));
        assert_eq!(set("comment", "rack 7"), Ok(("comment".into(), Value::Text("rack 7".into()))));
        assert_eq!(set("size", "1"), Err("'size' is readonly".into()));
        assert_eq!(
            set("ashift", "17"),
            Err("property 'ashift' number 17 is invalid, only values between 9 and 16 are allowed.".into())
        );
        assert!(set("comment", &"x".repeat(33)).is_err());
        assert!(set("nonsense", "1").is_err());
    }
}
