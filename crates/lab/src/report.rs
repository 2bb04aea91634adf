//! What came of a drill, a line and a grade each, in words that need no expert.

use std::time::Duration;

use serde::Serialize;

/// How good that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Good,
    /// A user would notice, and get over it.
    Fair,
    /// A user would be hurt.
    Bad,
    /// A fact, neither good nor bad; or what cannot be judged, which the sentence then says.
    Note,
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What was measured.
    pub what: String,
    /// What it came to.
    pub value: String,
    /// How good that is.
    pub grade: Grade,
    /// What it means.
    pub sentence: String,
}

impl Line {
    pub(crate) fn new(
        what: &str,
        value: impl Into<String>,
        grade: Grade,
        sentence: impl Into<String>,
    ) -> Self {
        Self { what: what.to_owned(), value: value.into(), grade, sentence: sentence.into() }
    }
}

/// The report of one drill.
#[derive(Clone, Debug, Serialize)]
pub struct ReportCard {
    /// Which drill.
    pub drill: String,
    /// What was done to whom.
    pub about: String,
    /// On which machine.
    pub machine: String,
    /// What happened, as it happened: seconds since the beginning, and what.
    pub story: Vec<(f64, String)>,
    /// The lines.
    pub lines: Vec<Line>,
    /// Acknowledged blocks that are wrong or missing.
    pub lost: u64,
    /// Requests of clients that were refused or not answered in time.
    pub dropped: u64,
    /// Why the script was not played to its end, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<String>,
    /// Seconds that passed on the simulated clock, or in reality.
    pub seconds: f64,
    /// Seed of all chance.
    pub seed: u64,
}

impl ReportCard {
    /// It was played to its end, nothing acknowledged was lost and no client was dropped.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.lost == 0 && self.dropped == 0 && self.unfinished.is_none()
    }

    /// The worst grade of its lines.
    #[must_use]
    pub fn grade(&self) -> Grade {
        self.lines
            .iter()
            .map(|line| line.grade)
            .filter(|grade| *grade != Grade::Note)
            .max()
            .unwrap_or(Grade::Good)
    }
}

impl Grade {
    /// As a person reads it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Bad => "BAD",
            Self::Note => "-",
        }
    }
}

/// `12 ms`, `3.4 s`, `2 min 05 s`.
#[must_use]
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match duration.as_millis() {
        0 => "0 s".to_owned(),
        millis @ 1..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", duration.as_secs_f64()),
        60_000..7_200_000 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_people_tell_them() {
        for (millis, text) in
            [(0, "0 s"), (12, "12 ms"), (3_400, "3.4 s"), (125_000, "2 min 05 s"), (7_300_000, "2 h 01 min")]
        {
            assert_eq!(time(Duration::from_millis(millis)), text);
        }
    }
}
