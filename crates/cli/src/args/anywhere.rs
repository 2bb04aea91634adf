//! `--state` and `--socket`, which say where the daemon and what it remembers are: understood anywhere in the line.
//!
//! Not as clap's global options: with their variables set it takes them for given in each subcommand, shows them in
//! every usage line, and no longer answers a command without words with its help. They go to the front instead, where
//! the program has them.

use std::ffi::OsString;

/// Where an option has its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Within,
    Next,
}

/// Whether a word is one of these options.
pub(crate) fn tells_where(word: &str) -> Option<Told> {
    ["--state", "--socket"].into_iter().find_map(|option| match word.strip_prefix(option)? {
        "" => Some(Told::Next),
        rest => rest.starts_with('=').then_some(Told::Within),
    })
}

/// The line with these options right behind the program's name.
pub(crate) fn to_the_front(line: Vec<OsString>) -> Vec<OsString> {
    let mut line = line.into_iter();
    let mut front: Vec<OsString> = line.next().into_iter().collect();
    let mut rest = Vec::new();
    while let Some(word) = line.next() {
        match word.to_str().and_then(tells_where) {
            Some(Told::Within) => front.push(word),
            Some(Told::Next) => match line.next() {
                Some(value) => front.extend([word, value]),
                // Left where it stands, it is complained of.
                None => rest.push(word),
            },
            None if word == "--" => {
                rest.push(word);
                rest.extend(line.by_ref());
            }
            None => rest.push(word),
        }
    }
    front.extend(rest);
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_daemon_is_may_be_said_anywhere() {
        let moved = |line: &str| {
            let words = to_the_front(line.split(' ').map(OsString::from).collect());
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(moved("zpool list -H --socket /s tank"), "zpool --socket /s list -H tank");
        assert_eq!(moved("zpool list --state=/x --socket /s"), "zpool --state=/x --socket /s list");
        assert_eq!(moved("zpool -d /i list"), "zpool -d /i list");
        assert_eq!(moved("zpool list --socket"), "zpool list --socket");
        assert_eq!(moved("millpond cat tank/fs -- --socket x"), "millpond cat tank/fs -- --socket x");
        assert_eq!(moved("zfs set a:b=--socket tank --states"), "zfs set a:b=--socket tank --states");
    }
}
