//! Dates as people read them, in UTC and without a time zone database.

/// Days of the week from the first day of 1970.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sat Nov 21 02:35:21 2026`, the form of `ctime`, for seconds since 1970.
#[must_use]
pub fn utc(timestamp: u64) -> String {
    let (days, seconds) = (timestamp / 86_400, timestamp % 86_400);
    let weekday = WEEKDAYS[(days % 7) as usize];
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{weekday} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month])
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

/// Year, month (from 0) and day of the month of a day since 1970.
fn civil(days: u64) -> (u64, usize, u64) {
    // Counted from 1 March of year 0, so that the leap day is the last of its year: 719468 days before 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let january_or_later = month >= 10;
    let month = if january_or_later { month - 10 } else { month + 2 };
    (era * 400 + year + u64::from(january_or_later), month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_durations() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(utc(1_795_228_521), "Sat Nov 21 02:35:21 2026");
        assert_eq!(duration(3), "00:00:03");
        assert_eq!(duration(2 * 86_400 + 3661), "2 days 01:01:01");
    }
}
