//! `zfs load-key` and `unload-key`: no key is ever handled here, so both are done where nothing is encrypted, and cannot be
//! done where something is. Scripts load the keys of each pool they import.

use std::process::ExitCode;

use server::api::{Dataset, Kind};

use super::query;
use crate::{
    args::ZfsKeys,
    ask::Ask,
    context::{Context, print},
};

/// The property that says which dataset has the key.
const ROOT: &str = "encryptionroot";

/// `what` is what becomes of keys: `load` or `unload`.
pub(crate) async fn run(args: ZfsKeys, what: &str, context: &Context) -> anyhow::Result<ExitCode> {
    let several = args.all || args.recursive;
    let names: Vec<String> = args.dataset.into_iter().collect();
    let kinds = [Kind::Filesystem, Kind::Volume];
    let query = query(several, None, &kinds, !names.is_empty(), Some(&[ROOT.to_owned()]));
    let mut answer = Ask::new(context).await?.datasets(&names, &query).await?;
    let roots = roots(&answer.found, several);
    if answer.failures.is_empty() && several {
        print(&format!("0 / {} key(s) successfully {what}ed\n", roots.len()))?;
    } else if answer.failures.is_empty() && roots.is_empty() {
        answer
            .failures
            .extend(names.iter().map(|name| format!("cannot {what} key for '{name}': it is not encrypted")));
    }
    answer.failures.extend(
        roots
            .iter()
            .map(|root| format!("cannot {what} key for '{root}': keys are not handled by this version")),
    );
    Ok(answer.finish())
}

/// Whose keys are meant: of `several`, those of the encryption roots among them; of one dataset, that of its root, which may be
/// above it.
fn roots(found: &[Dataset], several: bool) -> Vec<&str> {
    let meant = |dataset: &Dataset, root: &str| root != "-" && (!several || root == dataset.name);
    found
        .iter()
        .filter_map(|dataset| Some((dataset, dataset.property(ROOT)?.exact.as_str())))
        .filter(|(dataset, root)| meant(dataset, root))
        .map(|(_, root)| root)
        .collect()
}

#[cfg(test)]
mod tests {
    use server::api::{Property, SourceKind};

    use super::*;

    fn dataset(name: &str, root: Option<&str>) -> Dataset {
        let property = |root: &str| Property {
            name: ROOT.to_owned(),
            value: root.to_owned(),
            exact: root.to_owned(),
            source: SourceKind::None,
            inherited_from: None,
            received: None,
        };
        let properties = root.map(property).into_iter().collect();
        Dataset { name: name.to_owned(), kind: Kind::Filesystem, createtxg: 1, properties }
    }

    #[test]
    fn keys_are_those_of_encryption_roots() {
        let plain = [dataset("tank", None), dataset("tank/a", Some("-"))];
        assert!(roots(&plain, true).is_empty() && roots(&plain[1..], false).is_empty());
        let some = [
            dataset("tank", Some("-")),
            dataset("tank/safe", Some("tank/safe")),
            dataset("tank/safe/a", Some("tank/safe")),
            dataset("tank/safe/b", Some("tank/safe/b")),
        ];
        assert_eq!(roots(&some, true), ["tank/safe", "tank/safe/b"]);
        assert_eq!(roots(&some[2..3], false), ["tank/safe"]);
        assert!(roots(&some[2..3], true).is_empty(), "its root is not among them");
    }
}
