//! `zpool get`: properties of pools.

use std::process::ExitCode;

use serde_json::{Map, Value};
use server::api::{Pool, Property, SourceKind};

use super::{finish, property, value_width};
use crate::{
    args::ZpoolGet,
    ask::Ask,
    context::{Context, Usage, print},
    json,
    properties::none_named,
    table::{Column, render},
};

/// A column of `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    Property,
    Value,
    Received,
    Source,
}

impl Field {
    /// What `-o` says; `all` is everything.
    pub(crate) fn parse(
        asked: &[String],
        context: &Context,
        program: &'static str,
    ) -> Result<Vec<Self>, Usage> {
        if asked.is_empty() {
            return Ok(vec![Self::Name, Self::Property, Self::Value, Self::Source]);
        }
        let mut fields = Vec::new();
        for word in asked {
            match word.as_str() {
                "name" => fields.push(Self::Name),
                "property" => fields.push(Self::Property),
                "value" => fields.push(Self::Value),
                "received" => fields.push(Self::Received),
                "source" => fields.push(Self::Source),
                "all" => {
                    fields.extend([Self::Name, Self::Property, Self::Value, Self::Received, Self::Source])
                }
                other => {
                    return Err(context.usage(&[program, "get"], &format!("invalid column name '{other}'")));
                }
            }
        }
        Ok(fields)
    }

    /// Its column. `width_value` is the least width for values.
    pub(crate) fn column(self, width_value: usize) -> Column {
        match self {
            Self::Name => Column::left("NAME"),
            Self::Property => Column::left("PROPERTY"),
            Self::Value => Column { width_min: width_value, ..Column::left("VALUE") },
            Self::Received => Column { width_min: width_value, ..Column::left("RECEIVED") },
            Self::Source => Column::left("SOURCE"),
        }
    }

    /// Its cell for a property, or for one that is not there.
    pub(crate) fn cell(self, of: &str, name: &str, property: Option<&Property>, exact: bool) -> String {
        match self {
            Self::Name => of.to_owned(),
            Self::Property => name.to_owned(),
            Self::Value => property.map_or("-", |property| property.shown(exact)).to_owned(),
            Self::Received => property.and_then(|p| p.received.as_deref()).unwrap_or("-").to_owned(),
            Self::Source => property.map_or("-".to_owned(), Property::source_text),
        }
    }
}

pub(crate) async fn run(args: ZpoolGet, context: &Context) -> anyhow::Result<ExitCode> {
    let args = ZpoolGet { exact: args.exact || args.numbers.integers, ..args };
    let Some(properties) = &args.properties else { return Err(none_named("zpool", context).into()) };
    let fields = Field::parse(&args.fields, context, "zpool")?;
    let words: Vec<&str> = properties.split(',').collect();
    let all = words.contains(&"all");
    let named = words.iter().filter(|name| **name != "all").map(|name| property(name, context, "get"));
    let named = named.collect::<Result<Vec<String>, _>>()?;
    let asked = if all { Vec::new() } else { named };
    let answer = Ask::new(context).await?.pools(&args.pools).await?;
    let mut failures = answer.failures;
    for pool in &answer.found {
        failures.extend(pool.problems.iter().cloned());
    }
    if !args.pools.is_empty() && answer.found.is_empty() {
        return Ok(finish(&failures));
    }
    if args.json {
        let entries = answer.found.iter().map(|pool| {
            let mut object = json::pool(pool, true);
            let properties: Map<String, Value> = chosen(pool, &asked)
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
            let called = answer.found.iter().map(|other| &other.name);
            (json::key(&pool.name, &pool.guid, called), Value::Object(object))
        });
        print(&json::envelope("zpool get", "pools", json::numbers(entries.collect(), args.numbers)))?;
        return Ok(finish(&failures));
    }
    let mut rows = Vec::new();
    let mut width_value = 0;
    for pool in &answer.found {
        for (name, property) in chosen(pool, &asked) {
            width_value = width_value.max(value_width(&name));
            let cells =
                fields.iter().map(|field| field.cell(&pool.name, &name, property.as_ref(), args.exact));
            rows.push(cells.collect::<Vec<_>>());
        }
    }
    let columns: Vec<Column> = fields.iter().map(|field| field.column(width_value)).collect();
    if !rows.is_empty() {
        print(&render(&columns, &rows, args.scripted))?;
    } else if args.pools.is_empty() && failures.is_empty() && !args.scripted {
        say!("no pools available");
    }
    Ok(finish(&failures))
}

/// Properties that keep what is offered to clients: pages of JSON, which `millpond share` shows as what it means.
const OF_SHARES: &str = "org.millpond:";

/// The properties that were asked for; or all of them, but those that are nothing to look at.
fn chosen(pool: &Pool, asked: &[String]) -> Vec<(String, Option<Property>)> {
    if asked.is_empty() {
        return pool
            .properties
            .iter()
            .filter(|property| !property.name.starts_with(OF_SHARES))
            .map(|property| (property.name.clone(), Some(property.clone())))
            .collect();
    }
    let find = |name: &String| {
        let own_name = || Property {
            name: "name".to_owned(),
            value: pool.name.clone(),
            exact: pool.name.clone(),
            source: SourceKind::None,
            inherited_from: None,
            received: None,
        };
        let property = if name == "name" { Some(own_name()) } else { pool.property(name).cloned() };
        (name.clone(), property)
    };
    asked.iter().map(find).collect()
}
