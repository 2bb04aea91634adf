//! `zpool list`: pools with their size, use and health; with `-v` their devices too.

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use server::{
    api::{Device, Pool},
    pool::{
        props::{table, value::bytes},
        text::PAD_MAX,
    },
};

use super::{column, property};
use crate::{
    args::ZpoolList,
    ask::Ask,
    context::{Context, print},
    json, repeat,
    table::render,
};

/// What is shown unless asked otherwise.
const COLUMNS: [&str; 11] = [
    "name",
    "size",
    "allocated",
    "free",
    "checkpoint",
    "expandsize",
    "fragmentation",
    "capacity",
    "dedupratio",
    "health",
    "altroot",
];

pub(crate) async fn run(args: ZpoolList, context: &Context) -> anyhow::Result<ExitCode> {
    let columns = args.columns.iter().filter(|name| *name != "all");
    let columns = columns.map(|name| property(name, context, "list")).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = match &args.columns[..] {
        [] => COLUMNS.iter().map(|name| (*name).to_owned()).collect(),
        asked if asked.iter().any(|name| name == "all") => every(),
        _ => columns,
    };
    let args = ZpoolList { exact: args.exact || args.numbers.integers, ..args };
    let asked = repeat::parse(&args.words).map_err(|wrong| context.usage(&["zpool", "list"], &wrong))?;
    let ask = Ask::new(context).await?;
    let mut report = 0;
    loop {
        // The header once, unless devices stand between.
        let with_header = report == 0 || args.verbose;
        let code = once(&ask, asked.names, &names, &args, with_header).await?;
        report += 1;
        let Some(interval) = asked.interval.filter(|_| asked.count.is_none_or(|count| report < count)) else {
            return Ok(code);
        };
        tokio::time::sleep(interval).await;
    }
}

/// What `-o all` stands for.
fn every() -> Vec<String> {
    let table = table::POOL.iter().map(|row| row.name.to_owned());
    ["name".to_owned()].into_iter().chain(table).collect()
}

async fn once(
    ask: &Ask,
    pools: &[String],
    names: &[String],
    args: &ZpoolList,
    with_header: bool,
) -> anyhow::Result<ExitCode> {
    let answer = ask.health(pools).await?;
    if !pools.is_empty() && answer.found.is_empty() {
        return Ok(answer.finish());
    }
    if args.json {
        let called = || answer.found.iter().map(|pool| &pool.name);
        let entry = |pool: &Pool| (json::key(&pool.name, &pool.guid, called()), object(pool, names, args));
        let entries = answer.found.iter().map(entry).collect();
        print(&json::envelope("zpool list", "pools", json::numbers(entries, args.numbers)))?;
        return Ok(answer.finish());
    }
    print(&repeat::stamp(args.timestamp))?;
    if pools.is_empty() && answer.found.is_empty() {
        if !args.scripted {
            say!("no pools available");
        }
        return Ok(answer.finish());
    }
    let columns: Vec<_> = names.iter().map(|name| column(name)).collect();
    let mut rows = Vec::new();
    // Sections have their dashes on the right, whatever the column; known only when all widths are.
    let mut sections = Vec::new();
    for pool in &answer.found {
        rows.push(names.iter().map(|name| cell(pool, name, args.exact)).collect::<Vec<_>>());
        if args.verbose {
            devices(pool, names, args, &mut rows, &mut sections);
        }
    }
    if args.scripted {
        let mut out = String::new();
        for (i, row) in rows.iter().enumerate() {
            if sections.contains(&i) {
                out.push_str(&section(&columns, &rows, &row[0]));
            } else {
                out.push_str(&row.join("\t"));
            }
            out.push('\n');
        }
        print(&out)?;
        return Ok(answer.finish());
    }
    let text = render(&columns, &rows, false);
    let mut out = String::new();
    for (i, line) in text.lines().enumerate().skip(usize::from(!with_header)) {
        match i.checked_sub(1).filter(|row| sections.contains(row)) {
            Some(row) => out.push_str(&section(&columns, &rows, &rows[row][0])),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    print(&out)?;
    Ok(answer.finish())
}

/// A line that begins the devices of a class.
fn section(columns: &[crate::table::Column], rows: &[Vec<String>], title: &str) -> String {
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.max().unwrap_or(0).max(columns[i].width_min).max(columns[i].header.len()).min(PAD_MAX)
    };
    let mut out = format!("{title:0$}", width(0));
    for i in 1..columns.len() {
        out.push_str(&format!("  {:>1$}", "-", width(i)));
    }
    out
}

fn cell(pool: &Pool, name: &str, exact: bool) -> String {
    match name {
        "name" => pool.name.clone(),
        _ => pool.property(name).map_or("-", |property| property.shown(exact)).to_owned(),
    }
}

/// Rows of the devices below a pool.
fn devices(
    pool: &Pool,
    names: &[String],
    args: &ZpoolList,
    rows: &mut Vec<Vec<String>>,
    sections: &mut Vec<usize>,
) {
    let of_class = |class: &'static str| {
        pool.root.children.iter().filter(move |top| top.class == class && top.kind != "hole")
    };
    of_class("normal").for_each(|top| tree(top, 2, names, args, rows));
    for (class, title) in [("dedup", "dedup"), ("special", "special"), ("log", "logs")] {
        if of_class(class).next().is_some() {
            sections.push(rows.len());
            rows.push(vec![title.to_owned()]);
        }
        of_class(class).for_each(|top| tree(top, 2, names, args, rows));
    }
    for (title, devices) in [("cache", &pool.cache), ("spare", &pool.spares)] {
        if !devices.is_empty() {
            sections.push(rows.len());
            rows.push(vec![title.to_owned()]);
        }
        devices.iter().for_each(|device| tree(device, 2, names, args, rows));
    }
}

fn tree(device: &Device, depth: usize, names: &[String], args: &ZpoolList, rows: &mut Vec<Vec<String>>) {
    // In scripts depth is one tab, whatever it is.
    let indent = if args.scripted { "\t".to_owned() } else { " ".repeat(depth) };
    let row = names.iter().map(|name| match name.as_str() {
        "name" => format!("{indent}{}", args.names.of(device)),
        name => device_cell(device, name, args.exact),
    });
    rows.push(row.collect());
    device.children.iter().for_each(|child| tree(child, depth + 2, names, args, rows));
}

/// A device has some of a pool's properties; for the others there is a dash.
fn device_cell(device: &Device, name: &str, exact: bool) -> String {
    let size = |number: u64| if exact { number.to_string() } else { bytes(number) };
    let percent = |number: u64| if exact { number.to_string() } else { format!("{number}%") };
    let space = device.space.filter(|space| space.size > 0);
    let value = match name {
        "health" => Some(device.state.clone()),
        // A device that is offline may be there; nobody has opened it.
        "size" if device.state == "OFFLINE" => None,
        "size" => device.device_bytes.or(space.map(|space| space.size)).map(size),
        "allocated" => space.map(|space| size(space.allocated)),
        "free" => space.map(|space| size(space.free)),
        "expandsize" => space.map(|space| space.expandable).filter(|more| *more > 0).map(size),
        "fragmentation" => space.map(|space| space.fragmentation.map_or("-".to_owned(), percent)),
        "capacity" => space.map(|space| percent(space.capacity)),
        _ => None,
    };
    value.unwrap_or_else(|| "-".to_owned())
}

/// What `zpool list -j` says about one pool.
fn object(pool: &Pool, names: &[String], args: &ZpoolList) -> Value {
    let mut object = json::pool(pool, true);
    let mut properties = Map::new();
    for name in names.iter().filter(|name| *name != "name") {
        let value =
            pool.property(name).map_or_else(json::absent, |property| json::property(property, args.exact));
        properties.insert(name.clone(), value);
    }
    object.insert("properties".to_owned(), Value::Object(properties));
    if args.verbose {
        let name = |device: &Device| args.names.of(device);
        let one = |device: &Device| vdev(device, names, args);
        let of_class = |class: &'static str| {
            pool.root
                .children
                .iter()
                .filter(move |top| top.class == class && top.kind != "hole")
                .collect::<Vec<_>>()
        };
        // As in the text, and under OpenZFS's names: what is not for data has a section of its own.
        let sections: [(&str, Vec<&Device>); 6] = [
            ("vdevs", of_class("normal")),
            ("dedup", of_class("dedup")),
            ("special", of_class("special")),
            ("logs", of_class("log")),
            ("l2cache", pool.cache.iter().collect()),
            ("spares", pool.spares.iter().collect()),
        ];
        for (key, devices) in
            sections.into_iter().filter(|(key, devices)| *key == "vdevs" || !devices.is_empty())
        {
            object.insert(key.to_owned(), json::devices(devices.into_iter(), &one, &name));
        }
    }
    Value::Object(object)
}

fn vdev(device: &Device, names: &[String], args: &ZpoolList) -> Value {
    let mut object = json::head(device, &args.names.of(device));
    let mut properties = Map::new();
    for name in names.iter().filter(|name| !matches!(name.as_str(), "name" | "altroot" | "dedupratio")) {
        let value = json!({ "value": device_cell(device, name, args.exact), "source": { "type": "NONE", "data": "-" } });
        properties.insert(name.clone(), value);
    }
    object.insert("properties".to_owned(), Value::Object(properties));
    if !device.children.is_empty() {
        let name = |device: &Device| args.names.of(device);
        let children = json::devices(device.children.iter(), &|child| vdev(child, names, args), &name);
        object.insert("vdevs".to_owned(), children);
    }
    Value::Object(object)
}
