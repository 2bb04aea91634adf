//! Errors in words, and what helps where only the words are left of one: a suspended pool says why in a sentence of the engine,
//! and who shows it knows by that what to advise.

use std::io;

/// What the system itself said, at the bottom of an error, without its number.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// An error and its sources in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

/// Whether a pool is suspended because the file system that holds its files is full, or the quota there is used up, by the
/// system's words.
pub(crate) fn lacks_room(why: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| why.contains(words))
}

/// Whether a pool is suspended for good because something is wrong with this program, by the engine's words.
pub(crate) fn is_defect(why: &str) -> bool {
    why.contains("a defect of Millpond")
}

/// What helps a suspended pool.
pub(crate) fn remedy(pool: &str, why: &str) -> String {
    let before = match () {
        () if is_defect(why) => {
            return format!("let go of it with 'zpool export -F {pool}', then run 'zpool import {pool}'");
        }
        () if lacks_room(why) => "make room in the file system that holds its files",
        () => "make sure its devices are connected",
    };
    format!("{before}, then run 'zpool clear {pool}'")
}
