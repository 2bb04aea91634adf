//! Names that are to be given, and those of pools that come in: which are legal, and what OpenZFS says about those that are not.
//!
//! What can be looked up is `pool::dsl::name`'s; a name that is to be created must satisfy more.

use pool::dsl::name::{NameError, Part, parse};

/// Words that begin a group of devices, so no pool's name may begin with them.
const RESERVED_PREFIXES: [&str; 4] = ["mirror", "raidz", "draid", "spare"];
/// Longest name of a pool, in bytes: room for `/$ORIGIN@$ORIGIN` and the like behind it.
const POOL_BYTES_MAX: usize = 255 - 2 - 2 * "$ORIGIN".len();
/// Datasets below datasets at most.
const DEPTH_MAX: usize = 50;

/// Whether a pool may be called so.
///
/// # Errors
/// The reason, to stand behind `cannot create 'name': `.
pub(crate) fn pool(name: &str) -> Result<(), String> {
    existing_pool(name)?;
    if name == "log" || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return Err("name is reserved".to_owned());
    }
    Ok(())
}

/// Whether a pool that is called so already can come in. By its name it is told whose a dataset is: one with a slash in it would
/// pass for what another pool has, one of digits for another's guid. What is only reserved may have been given before it was.
///
/// # Errors
/// The reason, to stand behind `cannot open 'name': `.
pub(crate) fn existing_pool(name: &str) -> Result<(), String> {
    if name.len() >= POOL_BYTES_MAX {
        return Err("name is too long".to_owned());
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    if let Some(c) = name.chars().find(|c| !legal(*c)) {
        return Err(format!("invalid character '{}' in pool name", c.escape_debug()));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err("name must begin with a letter".to_owned());
    }
    Ok(())
}

/// Whether a file system or volume may be called so.
///
/// # Errors
/// The reason, to stand behind `cannot create 'name': `.
pub(crate) fn dataset(name: &str) -> Result<(), String> {
    if name.contains('@') {
        return Err("snapshot delimiter '@' is not expected here".to_owned());
    }
    if name.contains('#') {
        return Err("bookmark delimiter '#' is not expected here".to_owned());
    }
    legal(name)?;
    if !name.contains('/') {
        return Err("missing dataset name".to_owned());
    }
    if name.split('/').count() > DEPTH_MAX {
        return Err("name is too long".to_owned());
    }
    Ok(())
}

/// A snapshot's name, taken apart: dataset, and what is behind the `@`.
///
/// # Errors
/// The reason, to stand behind `cannot create snapshot 'name': `.
pub(crate) fn snapshot(name: &str) -> Result<(&str, &str), String> {
    if name.contains('#') {
        return Err("bookmark delimiter '#' is not expected here".to_owned());
    }
    if !name.contains('@') {
        return Err("missing '@' delimiter in snapshot name".to_owned());
    }
    legal(name)?;
    name.split_once('@').ok_or_else(|| "missing '@' delimiter in snapshot name".to_owned())
}

/// A bookmark's name, taken apart: dataset, and what is behind the `#`.
///
/// # Errors
/// The reason, to stand behind `cannot create bookmark 'name': `.
pub(crate) fn bookmark(name: &str) -> Result<(&str, &str), String> {
    if !name.contains('#') {
        return Err("missing '#' delimiter in bookmark name".to_owned());
    }
    legal(name)?;
    name.split_once('#').ok_or_else(|| "missing '#' delimiter in bookmark name".to_owned())
}

fn legal(name: &str) -> Result<(), String> {
    let parsed = parse(name).map_err(|error| error.to_string())?;
    // Such names are made by receives alone.
    if name.contains('%') {
        return Err(NameError::BadCharacter('%').to_string());
    }
    if !parsed.dataset.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err("pool doesn't begin with a letter".to_owned());
    }
    let component = parsed.dataset.rsplit('/').next().unwrap_or_default();
    if matches!(parsed.part, Part::Head) && component.is_empty() {
        return Err(NameError::EmptyComponent.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_have_stricter_names_than_datasets() {
        assert_eq!(pool("tank"), Ok(()));
        assert_eq!(pool("tank 2.a:b_c-d"), Ok(()));
        for (name, why) in [
            ("", "name must begin with a letter"),
            ("9lives", "name must begin with a letter"),
            ("tank@a", "invalid character '@' in pool name"),
            ("mirror1", "name is reserved"),
            ("raidz", "name is reserved"),
            ("log", "name is reserved"),
        ] {
            assert_eq!(pool(name), Err(why.to_owned()), "{name}");
        }
        assert_eq!(pool("logs"), Ok(()));
        assert_eq!(pool(&"x".repeat(250)), Err("name is too long".to_owned()));
        assert_eq!(existing_pool("mirrored"), Ok(()));
        for name in ["", "123", "tank/vms", "tank@a", "tank#a", "a\u{1b}[2J", &"x".repeat(70_000)] {
            assert!(existing_pool(name).is_err(), "{name:.20}");
        }
    }

    #[test]
    fn names_of_datasets_snapshots_and_bookmarks_to_be() {
        assert_eq!(dataset("tank/vm 1"), Ok(()));
        for (name, why) in [
            ("tank", "missing dataset name"),
            ("tank/a@b", "snapshot delimiter '@' is not expected here"),
            ("tank/a#b", "bookmark delimiter '#' is not expected here"),
            ("/tank/a", "leading slash in name"),
            ("tank/a/", "trailing slash in name"),
            ("tank//a", "empty component or misplaced '@' or '#' delimiter in name"),
            ("tank/a*b", "invalid character '*' in name"),
            ("tank/%recv", "invalid character '%' in name"),
            ("tank/..", "self reference, '.' is found in name"),
            ("1tank/a", "pool doesn't begin with a letter"),
        ] {
            assert_eq!(dataset(name), Err(why.to_owned()), "{name}");
        }
        assert_eq!(dataset(&format!("tank/{}", "x".repeat(251))), Err("name is too long".to_owned()));
        assert_eq!(dataset(&format!("tank{}", "/x".repeat(50))), Err("name is too long".to_owned()));
        assert_eq!(snapshot("tank/a@b"), Ok(("tank/a", "b")));
        assert_eq!(snapshot("tank/a"), Err("missing '@' delimiter in snapshot name".to_owned()));
        assert!(snapshot("tank/a@").is_err());
        assert_eq!(bookmark("tank/a#b"), Ok(("tank/a", "b")));
        assert!(bookmark("tank/a@b").is_err());
    }
}
