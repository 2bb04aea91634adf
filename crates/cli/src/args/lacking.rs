//! Subcommands of OpenZFS's programs that there are not here. Whoever calls one is told that, and not of another that has a
//! similar name: README.md's "Limits" names all of them.

use std::ffi::OsStr;

const OF_ZFS: [&str; 20] = [
    "allow",
    "change-key",
    "diff",
    "groupspace",
    "jail",
    "program",
    "project",
    "projectspace",
    "receive",
    "recv",
    "redact",
    "rewrite",
    "send",
    "unallow",
    "unjail",
    "unzone",
    "upgrade",
    "userspace",
    "wait",
    "zone",
];
const OF_ZPOOL: [&str; 5] = ["condense", "ddtprune", "prefetch", "reguid", "split"];

/// What is said of `word`, which the program called `called` with this line does not know, if OpenZFS's program does.
/// `millpond` is whichever of them stands before the word.
pub(crate) fn not_supported(called: &str, line: &[impl AsRef<OsStr>], word: &str) -> Option<String> {
    let program = match called {
        "millpond" => line.windows(2).find(|pair| pair[1].as_ref() == word)?[0].as_ref().to_str()?,
        called => called,
    };
    let lacking: &[&str] = match program {
        "zfs" => &OF_ZFS,
        "zpool" => &OF_ZPOOL,
        _ => return None,
    };
    lacking.contains(&word).then(|| format!("'{program} {word}' is not supported by this version"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::{ZfsProgram, ZpoolProgram};

    #[test]
    fn what_is_lacking_is_not_there_and_a_limit() {
        let limits = std::fs::read_to_string(fixtures::repository().join("README.md")).unwrap();
        let limits = limits.split_once("\n## Limits\n").unwrap().1;
        for (program, lacking) in
            [(ZfsProgram::command(), &OF_ZFS[..]), (ZpoolProgram::command(), &OF_ZPOOL[..])]
        {
            for word in lacking {
                assert!(program.find_subcommand(word).is_none(), "{word} is there");
                assert!(limits.contains(&format!("`{word}`")), "{word} is not among the limits");
            }
        }
    }

    #[test]
    fn it_is_said_of_the_program_that_has_it_elsewhere() {
        let said = |called: &str, line: &str, word: &str| {
            not_supported(called, &line.split(' ').collect::<Vec<_>>(), word)
        };
        let send = Some("'zfs send' is not supported by this version".to_owned());
        assert_eq!(said("zfs", "/usr/sbin/zfs -d . send tank@a", "send"), send);
        assert_eq!(said("millpond", "millpond -d . zfs send tank@a", "send"), send);
        assert_eq!(said("millpond", "millpond send", "send"), None);
        assert_eq!(said("zpool", "zpool send", "send"), None);
        assert_eq!(said("zfs", "zfs sned", "sned"), None);
        assert!(said("zpool", "zpool split a b", "split").is_some());
    }
}
