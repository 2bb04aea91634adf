//! `zfs list`: datasets with their space.

use std::{cmp::Ordering, collections::BTreeSet, process::ExitCode};

use serde_json::{Map, Value};
use server::{
    api::{Dataset, Kind, Pool},
    ops::pool_of,
    pool::props::{Kind as ValueKind, table},
};

use super::{column, kinds, property, query};
use crate::{
    args::ZfsList,
    ask::Ask,
    context::{Context, Usage, print},
    json,
    table::render,
};

/// What is shown unless asked otherwise.
const COLUMNS: [&str; 5] = ["name", "used", "available", "referenced", "mountpoint"];
/// What `-o space` stands for.
const SPACE: [&str; 7] = [
    "name",
    "available",
    "used",
    "usedbysnapshots",
    "usedbydataset",
    "usedbyrefreservation",
    "usedbychildren",
];

pub(crate) async fn run(args: ZfsList, context: &Context) -> anyhow::Result<ExitCode> {
    let args = ZfsList { exact: args.exact || args.numbers.integers, ..args };
    let mut names = Vec::new();
    for asked in &args.columns {
        match asked.as_str() {
            "all" => {
                names.push("name".to_owned());
                names.extend(table::DATASET.iter().map(|row| row.name.to_owned()));
            }
            "space" => names.extend(SPACE.map(str::to_owned)),
            asked => names.push(property(asked, context, "list")?),
        }
    }
    if names.is_empty() {
        names.extend(COLUMNS.map(str::to_owned));
    }
    let keys = args.order.0.iter();
    let order: Vec<(String, bool)> = keys
        .map(|key| Ok((property(&key.property, context, "list")?, key.descending)))
        .collect::<Result<_, Usage>>()?;
    let listed = kinds(&args.types, context, "list")?;
    let mut wanted = names.clone();
    wanted.extend(order.iter().map(|(name, _)| name.clone()));
    let ask = Ask::new(context).await?;
    let named = !args.datasets.is_empty();
    // Without -t each pool says whether what is below a dataset includes snapshots.
    let with_snapshots = match listed.is_empty() && (!named || args.recursive || args.depth.is_some()) {
        true => snapshots_listed(&ask, &args.datasets).await?,
        false => BTreeSet::new(),
    };
    let of_kinds = match &listed[..] {
        listed @ [_, ..] => listed.to_vec(),
        [] if with_snapshots.is_empty() => vec![Kind::Filesystem, Kind::Volume],
        [] => vec![Kind::Filesystem, Kind::Volume, Kind::Snapshot],
    };
    let listing = query(args.recursive, args.depth, &of_kinds, named, Some(&wanted));
    let mut answer = ask.datasets(&args.datasets, &listing).await?;
    if listed.is_empty() {
        let is_listed =
            |dataset: &Dataset| dataset.kind != Kind::Snapshot || with_snapshots.contains(dataset.pool());
        answer.found.retain(is_listed);
        // A snapshot that is named is shown though snapshots are not listed.
        let parts: Vec<String> =
            args.datasets.iter().filter(|name| name.contains(['@', '#'])).cloned().collect();
        if !parts.is_empty() {
            let every = query(false, Some(0), &Kind::ALL, true, Some(&wanted));
            // What failed, failed above already.
            answer.found.extend(ask.datasets(&parts, &every).await?.found);
            server::view::sort(&mut answer.found);
            answer.found.dedup_by(|a, b| a.name == b.name);
        }
    } else {
        wrong_kinds(&ask, &args, &of_kinds, &mut answer.failures).await?;
    }
    sort(&mut answer.found, &order);
    if answer.found.is_empty() && !answer.failures.is_empty() {
        return Ok(answer.finish());
    }
    if args.json {
        let entries = answer.found.iter().map(|dataset| {
            let mut object = json::dataset(dataset);
            let properties: Map<String, Value> = names
                .iter()
                .filter(|name| *name != "name")
                .map(|name| {
                    let property = dataset.property(name);
                    (name.clone(), property.map_or_else(json::absent, |p| json::property(p, args.exact)))
                })
                .collect();
            object.insert("properties".to_owned(), Value::Object(properties));
            (dataset.name.clone(), Value::Object(object))
        });
        let entries = json::numbers(entries.collect(), args.numbers);
        print(&json::partial("zfs list", "datasets", entries, &answer.problems()))?;
        return Ok(answer.finish());
    }
    let rows: Vec<Vec<String>> = answer
        .found
        .iter()
        .map(|dataset| names.iter().map(|name| cell(dataset, name, args.exact)).collect())
        .collect();
    if rows.is_empty() {
        if answer.is_whole() && !args.scripted {
            say!("no datasets available");
        }
        return Ok(answer.finish());
    }
    let columns: Vec<_> = names.iter().map(|name| column(name)).collect();
    print(&render(&columns, &rows, args.scripted))?;
    Ok(answer.finish())
}

fn cell(dataset: &Dataset, name: &str, exact: bool) -> String {
    match name {
        "name" => dataset.name.clone(),
        _ => dataset.property(name).map_or("-", |property| property.shown(exact)).to_owned(),
    }
}

/// Of the pools of these datasets, or of all if there are none, those whose administrator wants snapshots in lists. Why one
/// cannot be asked is said to who asks for its datasets.
async fn snapshots_listed(ask: &Ask, datasets: &[String]) -> anyhow::Result<BTreeSet<String>> {
    let names: BTreeSet<&str> = datasets.iter().map(|name| pool_of(name)).collect();
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let pools = ask.pools(&names).await?.found;
    let is_listing = |pool: &Pool| pool.property("listsnapshots").is_some_and(|set| set.exact == "on");
    Ok(pools.into_iter().filter(is_listing).map(|pool| pool.name).collect())
}

/// Complains about what was named and is of a kind that was not asked for.
async fn wrong_kinds(
    ask: &Ask,
    args: &ZfsList,
    kinds: &[Kind],
    failures: &mut Vec<String>,
) -> anyhow::Result<()> {
    let deep = args.recursive || args.depth.is_some() || matches!(kinds, [Kind::Snapshot] | [Kind::Bookmark]);
    if deep || args.datasets.is_empty() {
        return Ok(());
    }
    let itself = query(false, Some(0), &Kind::ALL, true, Some(&[]));
    for dataset in ask.datasets(&args.datasets, &itself).await?.found {
        if !kinds.contains(&dataset.kind) {
            failures.push(format!(
                "cannot open '{}': operation not applicable to datasets of this type",
                dataset.name
            ));
        }
    }
    Ok(())
}

/// By each key in turn, true: descending; a dataset without the property comes last, whichever way.
fn sort(datasets: &mut [Dataset], keys: &[(String, bool)]) {
    datasets.sort_by(|a, b| {
        let by_key = |(name, descending): &(String, bool)| {
            if name == "name" {
                let order = a.name.cmp(&b.name);
                return if *descending { order.reverse() } else { order };
            }
            let value = |dataset: &Dataset| dataset.property(name).map(|property| property.exact.clone());
            match (value(a), value(b)) {
                (None, None) => Ordering::Equal,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some(a), Some(b)) => {
                    let order = compare(name, &a, &b);
                    if *descending { order.reverse() } else { order }
                }
            }
        };
        keys.iter().map(by_key).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
}

/// Numbers as numbers, texts as texts.
fn compare(name: &str, a: &str, b: &str) -> Ordering {
    let is_text =
        table::dataset(name).is_none_or(|row| matches!(row.kind, ValueKind::Text | ValueKind::Index(_)));
    if is_text {
        return a.cmp(b);
    }
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        // Ratios: two decimals, always.
        _ => match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => a.total_cmp(&b),
            _ => a.cmp(b),
        },
    }
}

#[cfg(test)]
mod tests {
    use server::api::{Property, SourceKind};

    use super::*;

    fn dataset(name: &str, used: Option<&str>) -> Dataset {
        let property = |value: &str| Property {
            name: "used".into(),
            value: value.into(),
            exact: value.into(),
            source: SourceKind::None,
            inherited_from: None,
            received: None,
        };
        let properties = used.map(property).into_iter().collect();
        Dataset { name: name.into(), kind: Kind::Filesystem, createtxg: 1, properties }
    }

    #[test]
    fn numbers_sort_as_numbers_and_what_has_none_comes_last() {
        let mut all = [dataset("a", None), dataset("b", Some("10")), dataset("c", Some("9"))];
        let names = |all: &[Dataset]| all.iter().map(|d| d.name.clone()).collect::<String>();
        sort(&mut all, &[("used".to_owned(), false)]);
        assert_eq!(names(&all), "cba");
        sort(&mut all, &[("used".to_owned(), true)]);
        assert_eq!(names(&all), "bca");
        sort(&mut all, &[("name".to_owned(), true)]);
        assert_eq!(names(&all), "cba");
    }
}
