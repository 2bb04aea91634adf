//! `zfs get`: properties of datasets.

use std::process::ExitCode;

use server::api::{Dataset, Kind, Property, SourceKind};

use super::{kinds, property, query, value_width};
use crate::{
    args::ZfsGet,
    ask::Ask,
    context::{Context, Usage, print},
    get::{Chosen, Field, Lines, asked, choose, choose_all, with_properties},
    json,
    properties::none_named,
};

pub(crate) async fn run(args: ZfsGet, context: &Context) -> anyhow::Result<ExitCode> {
    let args = ZfsGet { exact: args.exact || args.numbers.integers, ..args };
    let Some(properties) = &args.properties else { return Err(none_named("zfs", context).into()) };
    let fields = Field::parse(&args.fields, context, "zfs")?;
    let sources = sources(&args.sources, context)?;
    let asked = asked(properties, |name| property(name, context, "get"))?;
    let mut of_kinds = kinds(&args.types, context, "get")?;
    if of_kinds.is_empty() {
        of_kinds.extend(Kind::ALL);
    }
    let named = !args.datasets.is_empty();
    let some = (!asked.is_empty()).then_some(&asked[..]);
    let query = query(args.recursive, args.depth, &of_kinds, named, some);
    let answer = Ask::new(context).await?.datasets(&args.datasets, &query).await?;
    if answer.found.is_empty() && !answer.failures.is_empty() {
        return Ok(answer.finish());
    }
    if args.json {
        let entries = answer.found.iter().map(|dataset| {
            let chosen = chosen(dataset, &asked, &sources);
            (dataset.name.clone(), with_properties(json::dataset(dataset), chosen, args.exact))
        });
        let entries = json::numbers(entries.collect(), args.numbers);
        print(&json::partial("zfs get", "datasets", entries, &answer.problems()))?;
        return Ok(answer.finish());
    }
    let mut lines = Lines::new(&fields, args.exact);
    for dataset in &answer.found {
        lines.add(&dataset.name, &chosen(dataset, &asked, &sources), value_width);
    }
    if !lines.is_empty() {
        print(&lines.text(args.scripted))?;
    } else if !named && answer.is_whole() && answer.found.is_empty() && !args.scripted {
        say!("no datasets available");
    }
    Ok(answer.finish())
}

/// The sources that `-s` names; all if there is no `-s`.
fn sources(words: &[String], context: &Context) -> Result<Vec<SourceKind>, Usage> {
    const ALL: [SourceKind; 6] = [
        SourceKind::Local,
        SourceKind::Default,
        SourceKind::Inherited,
        SourceKind::Received,
        SourceKind::Temporary,
        SourceKind::None,
    ];
    let find = |word: &String| {
        let known = ALL.into_iter().find(|kind| kind.word() == word);
        known.ok_or_else(|| context.usage(&["zfs", "get"], &format!("invalid source '{word}'")))
    };
    words.iter().map(find).collect()
}

/// The properties that were asked for, or all of them, from the sources that were asked for.
fn chosen(dataset: &Dataset, asked: &[String], sources: &[SourceKind]) -> Chosen {
    let mut chosen = match asked {
        [] => choose_all(dataset.properties.iter()),
        asked => choose(asked, &dataset.name, |name| dataset.property(name)),
    };
    let source = |property: Option<&Property>| property.map_or(SourceKind::None, |property| property.source);
    chosen.retain(|(_, property)| sources.is_empty() || sources.contains(&source(property.as_ref())));
    chosen
}
