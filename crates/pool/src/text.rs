//! Texts of a pool as people may see them: names in it are anybody's, and nothing in them reaches a terminal as a command,
//! or makes a line or a column that is none.
//!
//! OpenZFS allows no control characters in names, so no name that it made is changed.

/// Widest field that `format!` pads to; a wider one makes it panic. Labels have room for longer words.
pub const PAD_MAX: usize = 65_535;

/// A text that is part of a line: without control characters.
#[must_use]
pub fn clean(text: &str) -> String {
    replaced(text, "")
}

/// A text that may have lines, and tabs in them.
#[must_use]
pub fn clean_lines(text: &str) -> String {
    replaced(text, "\n\t")
}

fn replaced(text: &str, but: &str) -> String {
    text.chars().map(|c| if c.is_control() && !but.contains(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_and_nothing_else() {
        let (title, lines) = ("\u{1b}]0;x\u{7}", "one\n\ttwo");
        assert_eq!(clean(title), "\u{fffd}]0;x\u{fffd}");
        assert_eq!(clean(lines), "one\u{fffd}\u{fffd}two");
        assert_eq!(clean_lines(&format!("{lines}{title}")), format!("{lines}{}", clean(title)));
        assert_eq!(clean("tank/V\u{f6}gel-1_2.3:4@a b"), "tank/V\u{f6}gel-1_2.3:4@a b");
    }
}
