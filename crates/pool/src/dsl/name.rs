//! Names of datasets: which are legal, and what is said about those that are not or that nobody has.

use std::fmt;

use crate::dmu::ReadError;

/// Longest name in bytes, pool, snapshot and separators included.
pub const BYTES_MAX: usize = 255;

/// A name taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// `pool/a/b`.
    pub dataset: &'a str,
    /// What of it.
    pub part: Part<'a>,
}

/// What of a dataset a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The live dataset.
    Head,
    /// `@name`.
    Snapshot(&'a str),
    /// `#name`.
    Bookmark(&'a str),
}

/// Why a name is not legal, in the words of OpenZFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// Longer than [`BYTES_MAX`].
    TooLong,
    /// Begins with a slash.
    LeadingSlash,
    /// Ends in one.
    TrailingSlash,
    /// Two separators in a row, or one at an end.
    EmptyComponent,
    /// A character no name may have.
    BadCharacter(char),
    /// More than one `@` or `#`.
    Delimiters,
    /// `.` or `..` as a component.
    SelfReference,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("name is too long"),
            Self::LeadingSlash => f.write_str("leading slash in name"),
            Self::TrailingSlash => f.write_str("trailing slash in name"),
            Self::EmptyComponent => f.write_str("empty component or misplaced '@' or '#' delimiter in name"),
            Self::BadCharacter(c) => write!(f, "invalid character '{c}' in name"),
            Self::Delimiters => f.write_str("multiple '@' and/or '#' delimiters in name"),
            Self::SelfReference => f.write_str("self reference, '.' is found in name"),
        }
    }
}

/// Why a dataset was not found. Prints as `zfs` does.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// Nothing has this name.
    #[error("cannot open '{name}': dataset does not exist")]
    NotFound {
        /// The name.
        name: String,
    },
    /// Nothing can have it.
    #[error("cannot open '{name}': {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        reason: NameError,
    },
    /// A structure on the way cannot be read.
    #[error("cannot open '{name}': I/O error")]
    Read {
        /// The name.
        name: String,
        /// What failed.
        #[source]
        source: ReadError,
    },
}

/// Takes a name apart.
///
/// # Errors
/// It is not a legal name.
pub fn parse(name: &str) -> Result<Parsed<'_>, NameError> {
    if name.len() > BYTES_MAX {
        return Err(NameError::TooLong);
    }
    if name.starts_with('/') {
        return Err(NameError::LeadingSlash);
    }
    if name.ends_with('/') {
        return Err(NameError::TrailingSlash);
    }
    let (dataset, part) = match name.find(['@', '#']) {
        None => (name, Part::Head),
        Some(at) => {
            let (dataset, rest) = name.split_at(at);
            let (delimiter, last) = rest.split_at(1);
            if last.contains(['@', '#']) {
                return Err(NameError::Delimiters);
            }
            if last.is_empty() {
                return Err(NameError::EmptyComponent);
            }
            if let Some(c) = last.chars().find(|c| !is_legal(*c)) {
                return Err(NameError::BadCharacter(c));
            }
            (dataset, if delimiter == "@" { Part::Snapshot(last) } else { Part::Bookmark(last) })
        }
    };
    for component in dataset.split('/') {
        match component {
            "" => return Err(NameError::EmptyComponent),
            "." | ".." => return Err(NameError::SelfReference),
            _ => {}
        }
        // A leading % marks a receive that was interrupted: it can be looked up, not created.
        let body = component.strip_prefix('%').unwrap_or(component);
        if let Some(c) = body.chars().find(|c| !is_legal(*c)) {
            return Err(NameError::BadCharacter(c));
        }
    }
    Ok(Parsed { dataset, part })
}

fn is_legal(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart() {
        assert_eq!(parse("tank"), Ok(Parsed { dataset: "tank", part: Part::Head }));
        assert_eq!(
            parse("tank/a b/c@m-1"),
            Ok(Parsed { dataset: "tank/a b/c", part: Part::Snapshot("m-1") })
        );
        assert_eq!(parse("tank#mark"), Ok(Parsed { dataset: "tank", part: Part::Bookmark("mark") }));
        assert_eq!(parse("tank/a/%recv").map(|p| p.dataset), Ok("tank/a/%recv"));
    }

    #[test]
    fn illegal_names_say_why() {
        for (name, reason) in [
            ("", NameError::EmptyComponent),
            ("/tank", NameError::LeadingSlash),
            ("tank/", NameError::TrailingSlash),
            ("tank//a", NameError::EmptyComponent),
            ("tank@", NameError::EmptyComponent),
            ("@snap", NameError::EmptyComponent),
            ("tank@a@b", NameError::Delimiters),
            ("tank@a#b", NameError::Delimiters),
            ("tank/../b", NameError::SelfReference),
            ("tank/$MOS", NameError::BadCharacter('$')),
            ("tank/ä", NameError::BadCharacter('ä')),
            ("tank@a/b", NameError::BadCharacter('/')),
        ] {
            assert_eq!(parse(name), Err(reason), "{name}");
        }
        assert_eq!(parse(&"x".repeat(256)), Err(NameError::TooLong));
        let error = LookupError::NotFound { name: "tank/x".into() };
        assert_eq!(error.to_string(), "cannot open 'tank/x': dataset does not exist");
    }
}
