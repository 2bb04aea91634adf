//! `zfs get`: properties of datasets.

use std::process::ExitCode;

use serde_json::{Map, Value};
use server::api::{Dataset, Kind, Property, SourceKind};

use super::{finish, kinds, property, query, value_width};
use crate::{
    args::ZfsGet,
    ask::Ask,
    context::{Context, Usage, print},
    json,
    properties::none_named,
    table::{Column, render},
    zpool::get::Field,
};

pub(crate) async fn run(args: ZfsGet, context: &Context) -> anyhow::Result<ExitCode> {
    let args = ZfsGet { exact: args.exact || args.numbers.integers, ..args };
    let Some(properties) = &args.properties else { return Err(none_named("zfs", context).into()) };
    let fields = Field::parse(&args.fields, context, "zfs")?;
    let sources = sources(&args.sources, context)?;
    let words: Vec<&str> = properties.split(',').collect();
    let all = words.contains(&"all");
    let words = words.iter().filter(|name| **name != "all").map(|name| property(name, context, "get"));
    let words = words.collect::<Result<Vec<String>, _>>()?;
    let asked = if all { Vec::new() } else { words };
    let mut of_kinds = kinds(&args.types, context, "get")?;
    if of_kinds.is_empty() {
        of_kinds.extend(Kind::ALL);
    }
    let named = !args.datasets.is_empty();
    let query = query(args.recursive, args.depth, &of_kinds, named, (!all).then_some(&asked[..]));
    let answer = Ask::new(context).await?.datasets(&args.datasets, &query).await?;
    if answer.found.is_empty() && !answer.failures.is_empty() {
        return Ok(finish(&answer.failures));
    }
    if args.json {
        let entries = answer.found.iter().map(|dataset| {
            let mut object = json::dataset(dataset);
            let properties: Map<String, Value> = chosen(dataset, &asked, &sources)
                .into_iter()
                .map(|(name, property)| {
                    (
                        name,
                        property
                            .as_ref()
                            .map_or_else(json::absent, |property| json::property(property, args.exact)),
                    )
                })
                .collect();
            object.insert("properties".to_owned(), Value::Object(properties));
            (dataset.name.clone(), Value::Object(object))
        });
        let entries = json::numbers(entries.collect(), args.numbers);
        print(&json::partial("zfs get", "datasets", entries, &answer.failures))?;
        return Ok(finish(&answer.failures));
    }
    let mut rows = Vec::new();
    let mut width_value = 0;
    for dataset in &answer.found {
        for (name, property) in chosen(dataset, &asked, &sources) {
            width_value = width_value.max(value_width(&name));
            let cells =
                fields.iter().map(|field| field.cell(&dataset.name, &name, property.as_ref(), args.exact));
            rows.push(cells.collect::<Vec<_>>());
        }
    }
    if !rows.is_empty() {
        let columns: Vec<Column> = fields.iter().map(|field| field.column(width_value)).collect();
        print(&render(&columns, &rows, args.scripted))?;
    } else if !named && answer.failures.is_empty() && answer.found.is_empty() && !args.scripted {
        say!("no datasets available");
    }
    Ok(finish(&answer.failures))
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
fn chosen(dataset: &Dataset, asked: &[String], sources: &[SourceKind]) -> Vec<(String, Option<Property>)> {
    let all: Vec<(String, Option<Property>)> = match asked {
        [] => dataset
            .properties
            .iter()
            .map(|property| (property.name.clone(), Some(property.clone())))
            .collect(),
        asked => asked.iter().map(|name| (name.clone(), find(dataset, name))).collect(),
    };
    let source =
        |property: &Option<Property>| property.as_ref().map_or(SourceKind::None, |property| property.source);
    all.into_iter()
        .filter(|(_, property)| sources.is_empty() || sources.contains(&source(property)))
        .collect()
}

fn find(dataset: &Dataset, name: &str) -> Option<Property> {
    if name != "name" {
        return dataset.property(name).cloned();
    }
    Some(Property {
        name: "name".to_owned(),
        value: dataset.name.clone(),
        exact: dataset.name.clone(),
        source: SourceKind::None,
        inherited_from: None,
        received: None,
    })
}
