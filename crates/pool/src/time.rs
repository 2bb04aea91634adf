//! Dates and durations as people read them. The calendar is Gregorian; how far local time is from UTC the caller says.

/// Days of the week from the first day of 1970.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds that local time is ahead of UTC at so many seconds since 1970.
pub type UtcOffset = fn(i64) -> i64;

/// A moment in words and numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) weekday: &'static str,
    pub(crate) month: &'static str,
    pub(crate) day: i64,
    pub(crate) year: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
}

impl Moment {
    /// Seconds since 1970, in local time; none of them if they are more than a clock has.
    pub(crate) fn local(seconds: u64, offset: UtcOffset) -> Option<Self> {
        let utc = i64::try_from(seconds).ok()?;
        let local = utc.saturating_add(offset(utc));
        let (days, of_day) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        Some(Self {
            weekday: WEEKDAYS[days.rem_euclid(7) as usize],
            month: MONTHS[month],
            day,
            year,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        })
    }
}

/// `Sat Nov 21 02:35:21 2026`, the form of `ctime`, for seconds since 1970.
#[must_use]
pub fn ctime(seconds: u64, offset: UtcOffset) -> String {
    let Some(Moment { weekday, month, day, year, hour, minute, second }) = Moment::local(seconds, offset)
    else {
        return seconds.to_string();
    };
    format!("{weekday} {month} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
}

/// The same in UTC.
#[must_use]
pub fn utc(seconds: u64) -> String {
    ctime(seconds, |_| 0)
}

/// `HH:MM:SS`, or `N days HH:MM:SS` from one day on.
#[must_use]
pub fn duration(seconds: u64) -> String {
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86_400 {
        0 => clock,
        days => format!("{days} days {clock}"),
    }
}

/// Year, month (from 0) and day of the month of a day counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year, and in eras of 400 years, which are all
/// 146 097 days long.
fn civil(days: i64) -> (i64, usize, i64) {
    let from_march_0000 = days.saturating_add(719_468);
    let (era, day_of_era) = (from_march_0000.div_euclid(146_097), from_march_0000.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let is_next_year = march_month >= 10;
    let month = if is_next_year { march_month - 10 } else { march_month + 2 };
    (year_of_era + era * 400 + i64::from(is_next_year), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_durations() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(utc(1_795_228_521), "Sat Nov 21 02:35:21 2026");
        assert_eq!(ctime(1_795_228_521, |_| 3600), "Sat Nov 21 03:35:21 2026");
        assert_eq!(utc(u64::MAX), u64::MAX.to_string());
        assert_eq!(duration(3), "00:00:03");
        assert_eq!(duration(2 * 86_400 + 3661), "2 days 01:01:01");
    }
}
