//! `[NAME…] [INTERVAL [COUNT]]`: how commands that report again and again are told how often, and what lies between reports.

use std::time::Duration;

use server::{hostid, view};

use crate::args::Timestamp;

/// Longest interval, seconds: a day.
const INTERVAL_MAX: f64 = 86_400.0;
/// Digits from which on a number is a guid, and so a name.
const GUID_DIGITS: usize = 10;

/// What was typed.
#[derive(Debug, PartialEq)]
pub(crate) struct Asked<'a> {
    pub(crate) names: &'a [String],
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u64>,
}

/// Names first, then seconds, then how often: a name never begins with a digit, unless it is a guid.
pub(crate) fn parse(words: &[String]) -> Result<Asked<'_>, String> {
    let is_number = |word: &String| {
        word.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '-')
            && !(word.len() >= GUID_DIGITS && word.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let at = words.iter().position(is_number).unwrap_or(words.len());
    let (names, numbers) = words.split_at(at);
    let seconds = |word: &String| match word.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= INTERVAL_MAX => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("invalid interval '{word}': give seconds, more than 0 and at most a day")),
    };
    let times = |word: &String| match word.parse::<u64>() {
        Ok(times) if times > 0 => Ok(times),
        _ => Err(format!("invalid count '{word}': give how often to report, at least 1")),
    };
    match numbers {
        [] => Ok(Asked { names, interval: None, count: None }),
        [interval] => Ok(Asked { names, interval: Some(seconds(interval)?), count: None }),
        [interval, count] => {
            Ok(Asked { names, interval: Some(seconds(interval)?), count: Some(times(count)?) })
        }
        [_, _, more, ..] => Err(format!("'{more}' is too much: the interval and the count come last")),
    }
}

/// When an answer was given: when that daemon was started, and by its clock how many nanoseconds later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub(crate) u64, pub(crate) u64);

/// How many seconds there are between two answers by the daemon's clock, and whether one daemon gave both. One that was
/// started in between began at nothing: all that it counted happened since.
pub(crate) fn between(before: Moment, now: Moment) -> (f64, bool) {
    // Older daemons do not say when they were started.
    let (nanos, is_same) = match now.1.checked_sub(before.1) {
        Some(nanos) if now.0 == before.0 => (nanos, true),
        _ => (now.1, false),
    };
    (Duration::from_nanos(nanos).as_secs_f64().max(1e-9), is_same)
}

/// The line before a report that says when it was made; nothing if nobody asked.
pub(crate) fn stamp(timestamp: Option<Timestamp>) -> String {
    match timestamp {
        Some(Timestamp::U) => format!("{}\n", hostid::now()),
        Some(Timestamp::D) => format!("{}\n", view::moment(hostid::now())),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that was older than the one before had been when it was asked last was taken for that one.
    #[test]
    fn who_was_restarted_is_asked_for_all_it_has_done() {
        let at = |daemon: u64, seconds: u64| Moment(daemon, seconds * 1_000_000_000);
        assert_eq!(between(at(7, 100), at(7, 105)), (5.0, true));
        assert_eq!(between(at(7, 100), at(8, 3)), (3.0, false));
        assert_eq!(between(at(7, 2), at(8, 30)), (30.0, false));
        // Of older versions.
        assert_eq!(between(at(0, 100), at(0, 105)), (5.0, true));
        assert_eq!(between(at(0, 100), at(0, 3)), (3.0, false));
        assert!(between(Moment(7, 7), Moment(7, 7)).0 > 0.0, "it is divided by");
    }

    #[test]
    fn names_come_first_then_seconds_then_how_often() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let all = words("tank lake/v 0.5 3");
        let asked = parse(&all).unwrap();
        assert_eq!(asked.names, words("tank lake/v"));
        assert_eq!((asked.interval, asked.count), (Some(Duration::from_millis(500)), Some(3)));
        assert_eq!(parse(&words("2")).unwrap().interval, Some(Duration::from_secs(2)));
        assert_eq!(parse(&[]).unwrap(), Asked { names: &[], interval: None, count: None });
        for wrong in ["0", "-1", "tank 1 0", "tank 1 2 3", "1 tank", "99999999", "1x", "1 1.5"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
        let guid = words("4492862168055827273 2");
        assert_eq!(parse(&guid).unwrap().names, &guid[..1]);
    }
}
