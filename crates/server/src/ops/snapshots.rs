//! `zfs snapshot`, `hold`, `release` and `bookmark`.

use engine::dsl::{self, OpError};
use pool::{
    Pool,
    dsl::DatasetKind,
    props::{Types, parse::Moment, table},
};

use super::{
    Answer, Assignment, Failure, HoldEntry,
    cx::Cx,
    failure::refused,
    names, pool_of,
    properties::{lookup, understand},
};
use crate::host::chain;

/// Heads at and below `name`, each followed by those below it.
pub(crate) async fn heads_below(view: &Pool, name: &str) -> Result<Vec<String>, Failure> {
    let what = format!("cannot open '{name}'");
    let from = lookup(view, name).await?;
    let dsl = view.dsl().await.map_err(|error| Failure::because(&what, chain(&error)))?;
    let (all, problems) = dsl.tree(from).await;
    if let Some(problem) = problems.first() {
        return Err(Failure::because(&what, chain(problem)));
    }
    let heads = all.iter().filter(|dataset| dataset.kind() == DatasetKind::Head);
    Ok(heads.map(|dataset| dataset.name().to_owned()).collect())
}

/// `zfs snapshot`: all at the same moment, or none.
pub(crate) async fn snapshot(
    cx: &Cx<'_>,
    asked: &[String],
    recursive: bool,
    assignments: &[Assignment],
) -> Result<Answer, Failure> {
    /// What `zfs` says after it has said why.
    const NONE: &str = "\nno snapshots were created";
    let Some(first) = asked.first() else {
        return Err(Failure { code: 2, ..Failure::new("missing snapshot argument") });
    };
    let (of, _) = first.split_once('@').unwrap_or((first, ""));
    let held = cx.host.writable(pool_of(first)).await;
    let held = held.map_err(|error| error.of_dataset(&format!("cannot create snapshot '{first}'"), of))?;
    let view = held.view();
    let mut all: Vec<String> = Vec::new();
    for name in asked {
        let what = format!("cannot create snapshot '{name}'");
        let (head, short) =
            names::snapshot(name).map_err(|why| Failure::new(format!("{what}: {why}{NONE}")))?;
        if pool_of(name) != pool_of(first) {
            return Err(Failure::new(format!("{what}: snapshots must be in the same pool{NONE}")));
        }
        let heads = if recursive {
            heads_below(&view, head).await?
        } else {
            lookup(&view, head).await?;
            vec![head.to_owned()]
        };
        // Of what is left out everything below as well.
        let mut left_out: Option<String> = None;
        for below in heads {
            if left_out.as_ref().is_some_and(|left_out| below.starts_with(left_out)) {
                continue;
            }
            let dataset = lookup(&view, &below).await?;
            if dataset.phys().is_some_and(|phys| phys.is_inconsistent()) {
                if below != head {
                    left_out = Some(format!("{below}/"));
                    continue;
                }
                return Err(Failure::new(format!(
                    "{what}: only a part of '{head}' has been received\nfinish that where it was begun, or destroy \
                     '{head}'{NONE}"
                )));
            }
            let full = format!("{below}@{short}");
            if all.contains(&full) {
                return Err(Failure::new(format!("{what}: multiple snapshots of same fs not allowed{NONE}")));
            }
            if full.len() > pool::dsl::name::BYTES_MAX {
                return Err(Failure::new(format!("cannot create snapshot '{full}': name is too long{NONE}")));
            }
            let taken = dataset.snapshot(short).await;
            if taken.map_err(|error| Failure::because(&what, chain(&error)))?.is_some() {
                return Err(Failure::new(format!(
                    "cannot create snapshot '{full}': {}{NONE}",
                    OpError::Exists
                )));
            }
            all.push(full);
        }
    }
    let what = format!("cannot create snapshot '{first}'");
    if let Some((name, _)) = assignments.iter().find(|(name, _)| !table::is_user(name)) {
        return Err(Failure::new(format!("{what}: invalid property '{name}'{NONE}")));
    }
    let given = understand(&view, assignments, Types::SNAPSHOT, Moment::Creating)
        .map_err(|why| Failure::new(format!("{what}: {why}{NONE}")))?;
    let properties = given.stored();
    let taken =
        cx.try_snapshot(&held, move |cx| Box::pin(async move { dsl::snapshot(cx, &all, &properties).await }));
    taken.await.map_err(|error| {
        let failure = refused(&what, &error);
        Failure { message: format!("{}{NONE}", failure.message), ..failure }
    })?;
    let warnings = cx.served(&held).await;
    Ok(Answer { warnings, ..Answer::default() })
}

/// `hold` or `release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    Hold,
    Release,
}

impl Holding {
    fn what(self, name: &str) -> String {
        match self {
            Self::Hold => format!("cannot hold snapshot '{name}'"),
            Self::Release => format!("cannot release hold from snapshot '{name}'"),
        }
    }
}

/// Longest tag of a hold, in bytes.
const TAG_MAX: usize = 255;

/// `zfs hold` and `zfs release`: all or none.
pub(crate) async fn hold(
    cx: &Cx<'_>,
    tag: &str,
    asked: &[String],
    recursive: bool,
    way: Holding,
) -> Result<Answer, Failure> {
    let Some(first) = asked.first() else {
        return Err(Failure { code: 2, ..Failure::new("missing snapshot argument") });
    };
    if tag.is_empty() || tag.len() > TAG_MAX {
        return Err(Failure::because(&way.what(first), "tag too long"));
    }
    // Tags of the programs themselves begin so. What they left can be released.
    if way == Holding::Hold && tag.starts_with('.') {
        return Err(Failure { code: 2, ..Failure::new("tag may not start with '.'") });
    }
    let held =
        cx.host.writable(pool_of(first)).await.map_err(|error| error.of_dataset(&way.what(first), first))?;
    let view = held.view();
    let mut all: Vec<String> = Vec::new();
    // Those that wait for this to be destroyed.
    let mut going: Vec<String> = Vec::new();
    for name in asked {
        let what = way.what(name);
        let Some((head, short)) = name.split_once('@') else {
            return Err(Failure { code: 2, ..Failure::new(format!("'{name}' is not a snapshot")) });
        };
        if pool_of(name) != pool_of(first) {
            return Err(Failure::because(&what, "snapshots must be in the same pool"));
        }
        let heads = if recursive { heads_below(&view, head).await? } else { vec![head.to_owned()] };
        let before = all.len();
        for head in heads {
            let dataset = lookup(&view, &head).await?;
            let found =
                dataset.snapshot(short).await.map_err(|error| Failure::because(&what, chain(&error)))?;
            let Some(snapshot) = found else { continue };
            let holds = snapshot.holds().await.map_err(|error| Failure::because(&what, chain(&error)))?;
            let has = holds.iter().any(|hold| hold.tag == tag);
            match way {
                Holding::Hold if has => {
                    return Err(Failure::because(
                        &way.what(snapshot.name()),
                        "tag already exists on this dataset",
                    ));
                }
                Holding::Release if !has && !recursive => {
                    return Err(Failure::because(&way.what(snapshot.name()), "no such tag on this dataset"));
                }
                Holding::Release if !has => {}
                Holding::Release if holds.len() == 1 && snapshot.goes_after(0) => {
                    going.push(snapshot.name().to_owned());
                    all.push(snapshot.name().to_owned());
                }
                _ => all.push(snapshot.name().to_owned()),
            }
        }
        if all.len() == before {
            let why = match way {
                Holding::Release if recursive => "no such tag on this dataset",
                _ => "dataset does not exist",
            };
            return Err(Failure::because(&what, why));
        }
    }
    for name in cx.used(going.iter().map(String::as_str)) {
        cx.spare_clients_of(&name, &way.what(&name))?;
    }
    let asides = cx.set_aside(&held, &going).await;
    let asides = asides.map_err(|name| Failure::because(&way.what(&name), OpError::Busy))?;
    let (tag, what) = (tag.to_owned(), way.what(first));
    let done = cx.try_change_aside(&held, &asides, move |cx| {
        Box::pin(async move {
            match way {
                Holding::Hold => dsl::hold(cx, &tag, &all).await,
                Holding::Release => dsl::release(cx, &tag, &all).await,
            }
        })
    });
    if let Err(error) = done.await {
        cx.served(&held).await;
        return Err(refused(&what, &error));
    }
    if let Some(serving) = &cx.host.serving {
        going.iter().for_each(|name| serving.withdraw(&held, name));
    }
    asides.iter().for_each(|aside| aside.spare());
    let warnings = cx.served(&held).await;
    Ok(Answer { warnings, ..Answer::default() })
}

/// `zfs holds`
pub(crate) async fn holds(cx: &Cx<'_>, asked: &[String], recursive: bool) -> Result<Answer, Failure> {
    let mut all = Vec::new();
    for name in asked {
        let what = format!("cannot open '{name}'");
        let Some((head, short)) = name.split_once('@') else {
            return Err(Failure { code: 2, ..Failure::new(format!("'{name}' is not a snapshot")) });
        };
        let held = cx.host.readable(pool_of(name)).await.map_err(|error| error.of_dataset(&what, name))?;
        let view = held.view();
        let heads = if recursive { heads_below(&view, head).await? } else { vec![head.to_owned()] };
        let before = all.len();
        let mut found = false;
        for head in heads {
            let dataset = lookup(&view, &head).await?;
            let snapshot =
                dataset.snapshot(short).await.map_err(|error| Failure::because(&what, chain(&error)))?;
            let Some(snapshot) = snapshot else { continue };
            found = true;
            let holds = snapshot.holds().await.map_err(|error| Failure::because(&what, chain(&error)))?;
            let entry = |hold: pool::dsl::Hold| HoldEntry {
                snapshot: snapshot.name().to_owned(),
                tag: hold.tag,
                time: hold.time,
            };
            all.extend(holds.into_iter().map(entry));
        }
        if !found && all.len() == before {
            return Err(Failure::no_dataset(name));
        }
    }
    Ok(Answer { holds: all, ..Answer::default() })
}

/// `zfs bookmark`
pub(crate) async fn bookmark(cx: &Cx<'_>, source: &str, name: &str) -> Result<Answer, Failure> {
    let what = |full: &str| format!("cannot create bookmark '{full}'");
    if !source.contains(['@', '#']) {
        let message = format!("invalid source name '{source}': must contain a '@' or '#'");
        return Err(Failure { code: 2, ..Failure::new(message) });
    }
    let (head, _) = source.split_once(['@', '#']).unwrap_or((source, ""));
    let full = if name.starts_with('#') { format!("{head}{name}") } else { name.to_owned() };
    if !full.contains('#') {
        return Err(Failure {
            code: 2,
            ..Failure::new(format!("invalid bookmark name '{name}': must contain a '#'"))
        });
    }
    let (of, short) = names::bookmark(&full).map_err(|why| Failure::because(&what(&full), why))?;
    let held =
        cx.host.writable(pool_of(source)).await.map_err(|error| error.of_dataset(&what(&full), source))?;
    let view = held.view();
    lookup(&view, source).await?;
    if pool_of(of) != pool_of(source) {
        return Err(Failure::because(&what(&full), "bookmark is in a different pool"));
    }
    let dataset = lookup(&view, of).await?;
    let taken =
        dataset.bookmark(short).await.map_err(|error| Failure::because(&what(&full), chain(&error)))?;
    if taken.is_some() {
        return Err(Failure::because(&what(&full), "bookmark exists"));
    }
    let (from, to, what) = (source.to_owned(), full.clone(), what(&full));
    cx.change(&held, &what, move |cx| Box::pin(async move { dsl::bookmark(cx, &from, &to).await })).await?;
    Ok(Answer::default())
}
