//! `zpool get`: properties of pools.

use std::process::ExitCode;

use server::api::Pool;

use super::{property, value_width};
use crate::{
    args::ZpoolGet,
    ask::Ask,
    context::{Context, print},
    get::{Chosen, Field, Lines, asked, choose, choose_all, with_properties},
    json,
    properties::none_named,
};

pub(crate) async fn run(args: ZpoolGet, context: &Context) -> anyhow::Result<ExitCode> {
    let args = ZpoolGet { exact: args.exact || args.numbers.integers, ..args };
    let Some(properties) = &args.properties else { return Err(none_named("zpool", context).into()) };
    let fields = Field::parse(&args.fields, context, "zpool")?;
    let asked = asked(properties, |name| property(name, context, "get"))?;
    let answer = Ask::new(context).await?.health(&args.pools).await?;
    if !args.pools.is_empty() && answer.found.is_empty() {
        return Ok(answer.finish());
    }
    if args.json {
        let entries = answer.found.iter().map(|pool| {
            let called = answer.found.iter().map(|other| &other.name);
            let key = json::key(&pool.name, &pool.guid, called);
            (key, with_properties(json::pool(pool, true), chosen(pool, &asked), args.exact))
        });
        print(&json::envelope("zpool get", "pools", json::numbers(entries.collect(), args.numbers)))?;
        return Ok(answer.finish());
    }
    let mut lines = Lines::new(&fields, args.exact);
    for pool in &answer.found {
        lines.add(&pool.name, &chosen(pool, &asked), value_width);
    }
    if !lines.is_empty() {
        print(&lines.text(args.scripted))?;
    } else if args.pools.is_empty() && answer.is_whole() && !args.scripted {
        say!("no pools available");
    }
    Ok(answer.finish())
}

/// Properties that keep what is offered to clients: pages of JSON, which `millpond share` shows as what it means.
const OF_SHARES: &str = "org.millpond:";

/// The properties that were asked for; or all of them, but those that are nothing to look at.
fn chosen(pool: &Pool, asked: &[String]) -> Chosen {
    match asked {
        [] => choose_all(pool.properties.iter().filter(|property| !property.name.starts_with(OF_SHARES))),
        asked => choose(asked, &pool.name, |name| pool.property(name)),
    }
}
