//! `zfs create`, `set`, `snapshot`, `destroy` and all the others that change something.

use std::process::ExitCode;

use server::{
    ops::{Answer, CreateVolume, Destroy, Failure, Operation},
    pool::{
        props::{parse, value},
        text::clean,
    },
};

use crate::{
    act::{Act, assignments},
    args::{
        ZfsBookmark, ZfsClone, ZfsCreate, ZfsDestroy, ZfsHold, ZfsHolds, ZfsInherit, ZfsMount, ZfsPromote,
        ZfsRename, ZfsRollback, ZfsSet, ZfsSnapshot,
    },
    context::{Context, USAGE, print},
    table::{Column, render},
};

/// Properties from `-o`, or what is wrong with them as a usage error.
fn options(words: &[String], context: &Context, command: &str) -> anyhow::Result<Vec<(String, String)>> {
    assignments(words).map_err(|failure| context.usage(&["zfs", command], &failure.message).into())
}

/// Does one operation.
async fn one(operation: Operation, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    act.attempt(operation).await;
    Ok(act.finish().await)
}

pub(crate) async fn create(args: ZfsCreate, context: &Context) -> anyhow::Result<ExitCode> {
    let mut properties = options(&args.options, context, "create")?;
    properties.extend(args.block.iter().map(|block| ("volblocksize".to_owned(), block.clone())));
    let ZfsCreate { sparse, parents, dry_run, .. } = args;
    let (name, given) = (args.name.clone(), properties.clone());
    let operation = match &args.size {
        None => Operation::CreateFilesystem { name, properties, parents, dry_run },
        Some(text) => {
            let size = match parse::number(text) {
                Ok(bytes) => bytes,
                Err(error) => anyhow::bail!("bad volume size '{text}': {error}"),
            };
            Operation::CreateVolume(CreateVolume { name, size, properties, sparse, parents, dry_run })
        }
    };
    let mut act = Act::new(context).await?;
    let text = act.attempt(operation).await.map(|answer| created(&args, &given, &answer.properties));
    act.finish_printed(print(&text.unwrap_or_default())).await
}

/// What `-v` and `-P` say of it: what was given, as it was typed, sizes of the volume as they are made, for scripts in bytes; and
/// what is set aside for it.
fn created(args: &ZfsCreate, properties: &[(String, String)], decided: &[(String, String)]) -> String {
    if !args.verbose && !args.parsable {
        return String::new();
    }
    let size = args.size.iter().map(|size| ("volsize", size.as_str()));
    let given: Vec<(&str, &str)> =
        size.chain(properties.iter().map(|(name, value)| (name.as_str(), value.as_str()))).collect();
    let of = |name: &str| decided.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let added = decided.iter().filter(|(name, _)| given.iter().all(|(known, _)| known != name));
    let added = added.map(|(name, value)| (name.as_str(), value.as_str()));
    if args.parsable {
        let lines = given.iter().map(|&(name, value)| (name, of(name).unwrap_or(value))).chain(added);
        let lines = lines.map(|(name, value)| format!("property\t{name}\t{value}\n"));
        return format!("create\t{}\n{}", args.name, lines.collect::<String>());
    }
    let shown = |text: &str| text.parse::<u64>().map_or_else(|_| text.to_owned(), value::bytes);
    let given = given.iter().map(|&(name, typed)| {
        let text = of(name).map_or_else(|| typed.to_owned(), shown);
        format!("\t{name}={text}\n")
    });
    let added = added.map(|(name, text)| format!("\t{name}={}\n", shown(text)));
    let word = if args.dry_run { "would create" } else { "create" };
    format!("{word} {}\n{}", args.name, given.chain(added).collect::<String>())
}

/// `zfs mount` and its kin: nothing is mounted or shared here, so all of it is done already.
pub(crate) fn mount(args: ZfsMount, what: &str, context: &Context) -> anyhow::Result<ExitCode> {
    match args.filesystem {
        // `zfs mount` lists what is mounted.
        None if args.all || what == "mount" => Ok(ExitCode::SUCCESS),
        None => Err(context.usage(&["zfs", what], "missing filesystem argument").into()),
        Some(name) => {
            let why = match what {
                // What scripts take for done.
                "unmount" => "not currently mounted",
                "unshare" => "not currently shared",
                _ => "file systems are neither mounted nor shared by this version",
            };
            anyhow::bail!("cannot {what} '{name}': {why}")
        }
    }
}

pub(crate) async fn set(args: ZfsSet, context: &Context) -> anyhow::Result<ExitCode> {
    let usage = |message: &str| context.usage(&["zfs", "set"], message);
    let (properties, datasets): (Vec<String>, Vec<String>) =
        args.words.into_iter().partition(|word| word.contains('='));
    if properties.is_empty() {
        return Err(usage("missing property=value argument(s)").into());
    }
    if datasets.is_empty() {
        return Err(usage("missing dataset name(s)").into());
    }
    let properties = options(&properties, context, "set")?;
    let mut act = Act::new(context).await?;
    for name in datasets {
        act.attempt(Operation::Set { name, properties: properties.clone(), force: args.force }).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn inherit(args: ZfsInherit, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    for name in args.datasets {
        let operation = Operation::Inherit {
            name,
            property: args.property.clone(),
            recursive: args.recursive,
            received: args.received,
            force: args.force,
        };
        match act.run(operation).await {
            Ok(answer) => answer.warnings.iter().for_each(|warning| say!("warning: {warning}")),
            // The property is wrong whatever the dataset.
            Err(failure) if failure.code == USAGE => {
                act.finish().await;
                return Err(context.usage(&["zfs", "inherit"], &failure.message).into());
            }
            Err(failure) => act.refuse(failure),
        }
    }
    Ok(act.finish().await)
}

pub(crate) async fn snapshot(args: ZfsSnapshot, context: &Context) -> anyhow::Result<ExitCode> {
    let properties = options(&args.options, context, "snapshot")?;
    let mut act = Act::new(context).await?;
    let operation = Operation::Snapshot { names: args.names, recursive: args.recursive, properties };
    match act.run(operation).await {
        Ok(answer) => answer.warnings.iter().for_each(|warning| say!("warning: {warning}")),
        // As `zfs` does: without the dataset the call makes no sense.
        Err(Failure { message, not_found: true, .. }) => {
            act.finish().await;
            return Err(context.usage(&["zfs", "snapshot"], &message).into());
        }
        Err(failure) => act.refuse(failure),
    }
    Ok(act.finish().await)
}

pub(crate) async fn destroy(args: ZfsDestroy, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let snapshots = args.name.contains('@');
    if args.defer && !snapshots {
        return Err(context.usage(&["zfs", "destroy"], "-d can only be used with snapshots").into());
    }
    let operation = Operation::Destroy(Destroy {
        name: args.name,
        recursive: args.recursive,
        clones: args.clones,
        defer: args.defer,
        dry_run: args.dry_run,
        measure: args.verbose || args.parsable,
    });
    let answer = act.attempt(operation).await.unwrap_or_default();
    let text = destroyed(&answer, args.dry_run, args.verbose, args.parsable, snapshots);
    act.finish_printed(print(&text)).await
}

/// What `zfs destroy` says it does: with `-v` for people, with `-p` for scripts.
fn destroyed(answer: &Answer, dry_run: bool, verbose: bool, parsable: bool, snapshots: bool) -> String {
    let mut text = String::new();
    if !verbose && !parsable {
        return text;
    }
    let verb = if dry_run { "would" } else { "will" };
    for name in answer.destroyed.iter().map(|name| clean(name)) {
        match parsable {
            true => text.push_str(&format!("destroy\t{name}\n")),
            false => text.push_str(&format!("{verb} destroy {name}\n")),
        }
    }
    if let Some(bytes) = answer.reclaimed.filter(|_| snapshots) {
        match parsable {
            true => text.push_str(&format!("reclaim\t{bytes}\n")),
            false => text.push_str(&format!("{verb} reclaim {}\n", value::bytes(bytes))),
        }
    }
    text
}

pub(crate) async fn rollback(args: ZfsRollback, context: &Context) -> anyhow::Result<ExitCode> {
    let ZfsRollback { recursive, clones, snapshot, .. } = args;
    one(Operation::Rollback { snapshot, recursive, clones }, context).await
}

pub(crate) async fn clone(args: ZfsClone, context: &Context) -> anyhow::Result<ExitCode> {
    let properties = options(&args.options, context, "clone")?;
    let ZfsClone { snapshot, name, parents, .. } = args;
    one(Operation::Clone { snapshot, name, properties, parents }, context).await
}

pub(crate) async fn promote(args: ZfsPromote, context: &Context) -> anyhow::Result<ExitCode> {
    one(Operation::Promote { name: args.name }, context).await
}

pub(crate) async fn rename(args: ZfsRename, context: &Context) -> anyhow::Result<ExitCode> {
    let ZfsRename { parents, recursive, from, to, .. } = args;
    one(Operation::Rename { from, to, parents, recursive }, context).await
}

pub(crate) async fn bookmark(args: ZfsBookmark, context: &Context) -> anyhow::Result<ExitCode> {
    let ZfsBookmark { source, name } = args;
    one(Operation::Bookmark { source, name }, context).await
}

/// Snapshots by pool, in the order they were named: an operation is about one pool.
fn by_pool(names: Vec<String>) -> Vec<Vec<String>> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    for name in names {
        let pool = server::ops::pool_of(&name);
        match groups.iter_mut().find(|group| server::ops::pool_of(&group[0]) == pool) {
            Some(group) => group.push(name),
            None => groups.push(vec![name]),
        }
    }
    groups
}

pub(crate) async fn hold(args: ZfsHold, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    for names in by_pool(args.snapshots) {
        act.attempt(Operation::Hold { tag: args.tag.clone(), names, recursive: args.recursive }).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn release(args: ZfsHold, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    for names in by_pool(args.snapshots) {
        act.attempt(Operation::Release { tag: args.tag.clone(), names, recursive: args.recursive }).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn holds(args: ZfsHolds, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let mut rows = Vec::new();
    for names in by_pool(args.snapshots) {
        let answer = act.attempt(Operation::Holds { names, recursive: args.recursive }).await;
        for hold in answer.unwrap_or_default().holds {
            let time = if args.exact { hold.time.to_string() } else { server::view::date(hold.time) };
            rows.push(vec![clean(&hold.snapshot), clean(&hold.tag), time]);
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        let columns = [Column::left("NAME"), Column::left("TAG"), Column::left("TIMESTAMP")];
        text = render(&columns, &rows, args.scripted);
    }
    act.finish_printed(print(&text)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_destroyed_is_said_for_people_and_for_scripts() {
        let answer = Answer {
            destroyed: vec!["tank/v@a".into(), "tank/v@b".into()],
            reclaimed: Some(12_595),
            ..Answer::default()
        };
        assert_eq!(destroyed(&answer, true, false, false, true), "");
        assert_eq!(
            destroyed(&answer, true, true, false, true),
            "would destroy tank/v@a\nwould destroy tank/v@b\nwould reclaim 12.3K\n"
        );
        assert_eq!(
            destroyed(&answer, false, true, true, true),
            "destroy\ttank/v@a\ndestroy\ttank/v@b\nreclaim\t12595\n"
        );
        assert_eq!(
            destroyed(&answer, false, true, false, false),
            "will destroy tank/v@a\nwill destroy tank/v@b\n"
        );
    }

    /// A line break in the name of a snapshot, which a stranger's pool can have, was a line more for scripts.
    #[test]
    fn the_name_of_what_is_destroyed_is_one_word_for_scripts() {
        let names = vec!["tank/v@a\ndestroy\ttank".into()];
        let answer = Answer { destroyed: names, ..Answer::default() };
        let said = destroyed(&answer, false, true, true, false);
        assert_eq!(said, "destroy\ttank/v@a\u{fffd}destroy\u{fffd}tank\n");
    }
}
