//! A property's value as read, and the two ways it is printed: exactly (`-p`) and for people.

use std::{borrow::Cow, fmt};

use super::table::Kind;
use crate::time::{Moment, UtcOffset};

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number; what it counts is the property's [`Kind`].
    Number(u64),
    /// A text.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub fn as_number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// Set on this dataset.
    Local,
    /// Set on the ancestor of this name.
    Inherited(String),
    /// Came with a stream received into this dataset.
    Received,
    /// For this mount only.
    Temporary,
    /// The property is computed: it has no source.
    None,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Local => "local",
            Self::Inherited(from) => return write!(f, "inherited from {from}"),
            Self::Received => "received",
            Self::Temporary => "temporary",
            Self::None => "-",
        })
    }
}

/// How numbers and dates are printed.
#[derive(Clone, Copy, Debug)]
pub enum Style {
    /// Exact and stable, for programs (`-p`).
    Exact,
    /// For people: `1.21T`, `3.01x`, dates in local time.
    Human {
        /// Seconds that local time is ahead of UTC at the given time (seconds since 1970).
        utc_offset: UtcOffset,
    },
}

impl Style {
    /// For people, dates in UTC.
    pub const UTC: Self = Self::Human { utc_offset: |_| 0 };
}

/// `value` of a property of kind `kind`, printed.
#[must_use]
pub fn print(kind: Kind, value: &Value, style: Style) -> Cow<'_, str> {
    let number = match value {
        Value::Text(text) => return Cow::Borrowed(text),
        Value::Number(number) => *number,
    };
    match (kind, style) {
        (Kind::Index(words), _) => {
            super::index::word(words, number).unwrap_or_else(|| Cow::Owned(number.to_string()))
        }
        (Kind::Count, _) if number == u64::MAX => Cow::Borrowed("none"),
        (Kind::Ratio, style) => {
            let unit = if matches!(style, Style::Exact) { "" } else { "x" };
            Cow::Owned(format!("{}.{:02}{unit}", number / 100, number % 100))
        }
        (Kind::Percent, Style::Human { .. }) => Cow::Owned(format!("{number}%")),
        (Kind::Limit, Style::Human { .. }) if number == 0 => Cow::Borrowed("none"),
        (Kind::Bytes | Kind::Limit, Style::Human { .. }) => Cow::Owned(bytes(number)),
        (Kind::Number | Kind::Count, Style::Human { .. }) => Cow::Owned(count(number)),
        (Kind::Date, Style::Human { utc_offset }) => Cow::Owned(date(number, utc_offset, false)),
        (Kind::DateSeconds, Style::Human { utc_offset }) => Cow::Owned(date(number, utc_offset, true)),
        (Kind::Plain | Kind::Text | Kind::Percent, _) | (_, Style::Exact) => Cow::Owned(number.to_string()),
    }
}

/// A size for people: `0B`, `512B`, `1.21T`.
#[must_use]
pub fn bytes(number: u64) -> String {
    abbreviate(number, "B")
}

/// A count for people: `0`, `512`, `1.21K`.
#[must_use]
pub fn count(number: u64) -> String {
    abbreviate(number, "")
}

/// At most five characters: whole multiples of a unit without decimals, everything else with as many as
/// fit. Units are powers of 1024.
fn abbreviate(number: u64, unit: &str) -> String {
    let index = (number.max(1).ilog2() / 10) as usize;
    let Some(letter) = index.checked_sub(1).and_then(|i| ["K", "M", "G", "T", "P", "E"].get(i)) else {
        return format!("{number}{unit}");
    };
    let shift = 10 * index;
    if number & ((1 << shift) - 1) == 0 {
        return format!("{}{letter}", number >> shift);
    }
    // As in the original, in binary floating point: exactness ends where the digits shown end.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let scaled = number as f64 / (1u64 << shift) as f64;
    (0..=2)
        .rev()
        .map(|decimals| format!("{scaled:.decimals$}{letter}"))
        .find(|text| text.len() <= 5)
        .unwrap_or_else(|| format!("{scaled:.0}{letter}"))
}

/// `Sat Nov 21  2:11 2026`, with seconds if asked for: as dates among properties are.
#[must_use]
pub fn date(seconds: u64, utc_offset: UtcOffset, with_seconds: bool) -> String {
    let Some(Moment { weekday, month, day, year, hour, minute, second }) = Moment::local(seconds, utc_offset)
    else {
        return seconds.to_string();
    };
    let second = if with_seconds { format!(":{second:02}") } else { String::new() };
    format!("{weekday} {month} {day:>2} {hour:>2}:{minute:02}{second} {year}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::props::index;

    #[test]
    fn sizes_have_at_most_five_characters() {
        for (number, text) in [
            (0, "0B"),
            (512, "512B"),
            (1023, "1023B"),
            (1024, "1K"),
            (98_304, "96K"),
            (581_632, "568K"),
            (847_872, "828K"),
            (13_860_864, "13.2M"),
            (1_650_688, "1.57M"),
            (117_440_512, "112M"),
            (10 * 1024 * 1024 - 1, "10.0M"),
            (1024 * 1024 - 1, "1024K"),
            (1_330_409_069_609, "1.21T"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(bytes(number), text, "{number}");
        }
        assert_eq!(count(512), "512");
        assert_eq!(count(350_000), "342K");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0, |_| 0, true), "Thu Jan  1  0:00:00 1970");
        assert_eq!(date(951_782_400, |_| 0, false), "Tue Feb 29  0:00 2000");
        assert_eq!(date(1_795_227_060, |_| 0, false), "Sat Nov 21  2:11 2026");
        assert_eq!(date(1_795_227_060, |_| 3600, false), "Sat Nov 21  3:11 2026");
        assert_eq!(date(4_107_542_399, |_| 0, true), "Sun Feb 28 23:59:59 2100");
        assert_eq!(date(4_107_542_400, |_| 0, false), "Mon Mar  1  0:00 2100");
        assert_eq!(date(u64::MAX, |_| 0, false), u64::MAX.to_string());
        assert!(!date(i64::MAX as u64, |_| i64::MAX, true).is_empty());
    }

    #[test]
    fn each_kind_prints_in_its_way() {
        let both = |kind, number| {
            let value = Value::Number(number);
            (print(kind, &value, Style::Exact).into_owned(), print(kind, &value, Style::UTC).into_owned())
        };
        let pair = |exact: &str, human: &str| (exact.to_owned(), human.to_owned());
        assert_eq!(both(Kind::Ratio, 301), pair("3.01", "3.01x"));
        assert_eq!(both(Kind::Limit, 0), pair("0", "none"));
        assert_eq!(both(Kind::Count, u64::MAX), pair("none", "none"));
        assert_eq!(both(Kind::Bytes, 8192), pair("8192", "8K"));
        assert_eq!(both(Kind::Plain, 4_000_000), pair("4000000", "4000000"));
        assert_eq!(both(Kind::Index(index::SYNC), 1), pair("always", "always"));
        assert_eq!(both(Kind::Index(index::SYNC), 77), pair("77", "77"));
    }
}
