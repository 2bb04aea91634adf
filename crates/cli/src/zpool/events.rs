//! `zpool events`: what happened to pools, with OpenZFS's columns and classes. The daemon keeps them for its life.

use std::process::ExitCode;

use serde_json::{Map, Value};
use server::{api::events::Zevent, view};

use crate::{
    args::ZpoolEvents,
    context::{Context, FAILED, print},
    json,
};

pub(crate) async fn run(args: ZpoolEvents, context: &Context) -> anyhow::Result<ExitCode> {
    let Some(daemon) = context
        .serving_daemon("show events", "events are kept by the process that has the pools open")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    if args.clear {
        print(&format!("cleared {} events\n", daemon.clear_events().await?))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(pool) = &args.pool {
        // A name that nothing has is an error; one of a pool that was exported is in the past.
        let events = daemon.events(0, Some(pool)).await?;
        if events.events.is_empty() && daemon.pool(pool).await.is_err_and(|error| error.is_not_found()) {
            say!("cannot open '{pool}': no such pool");
            return Ok(ExitCode::from(FAILED));
        }
    }
    if !args.scripted && !args.json {
        print(&format!("{:<30} CLASS\n", "TIME"))?;
    }
    let pool = args.pool.as_deref();
    if !args.follow {
        let text: String =
            daemon.events(0, pool).await?.events.iter().map(|event| show(event, &args)).collect();
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut closed = None;
    daemon
        .follow_events(0, pool, |event| {
            closed = print(&show(&event, &args)).err();
            closed.is_none()
        })
        .await?;
    match closed {
        Some(error) => Err(error.into()),
        // The daemon ended; whoever follows wants to know that no more will come.
        None => {
            say!("the daemon on '{}' ended", context.socket().display());
            Ok(ExitCode::from(FAILED))
        }
    }
}

fn show(event: &Zevent, args: &ZpoolEvents) -> String {
    if args.json {
        let entries: Map<String, Value> =
            [(event.eid.to_string(), Value::Object(event.pairs.clone()))].into_iter().collect();
        return json::envelope("zpool events", "events", entries);
    }
    let separator = if args.scripted { '\t' } else { ' ' };
    let mut text = format!("{}{separator}{}\n", view::event_time(event.time), event.class);
    if args.verbose {
        for (name, value) in &event.pairs {
            text.push_str(&format!("        {name} = {}\n", written(name, value)));
        }
        text.push('\n');
    }
    text
}

/// A value as `zpool events -v` writes it: texts in quotes, numbers in hexadecimal.
fn written(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) => {
            number.as_u64().map_or_else(|| number.to_string(), |number| format!("{number:#x}"))
        }
        Value::String(text) => match text.parse::<u64>() {
            Ok(guid) if name.ends_with("guid") => format!("{guid:#x}"),
            _ => format!("\"{text}\""),
        },
        // With a space behind each, as it has always been.
        Value::Array(values) => values.iter().map(|value| format!("{} ", written(name, value))).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn args(words: &str) -> ZpoolEvents {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            events: ZpoolEvents,
        }
        Program::parse_from(["events"].into_iter().chain(words.split_whitespace())).events
    }

    #[test]
    fn events_look_as_openzfs_prints_them() {
        let pairs = json!({
            "class": "resource.fs.zfs.statechange", "pool": "tank", "pool_guid": "18446744073709551615",
            "vdev_path": "/dev/sdc1", "vdev_state": 5, "time": [1_795_329_909_u64, 42], "eid": 12,
        });
        let event = Zevent {
            eid: 12,
            class: "resource.fs.zfs.statechange".into(),
            time: (1_795_329_909, 42),
            pool: "tank".into(),
            pairs: pairs.as_object().unwrap().clone(),
        };
        let line = show(&event, &args(""));
        assert_eq!(line.len(), 31 + event.class.len() + 1, "{line}");
        assert!(line.contains(".000000042 resource.fs.zfs.statechange\n"), "{line}");
        assert!(show(&event, &args("-H")).contains(".000000042\tresource"));
        let verbose = show(&event, &args("-v"));
        let expected = "        class = \"resource.fs.zfs.statechange\"\n        pool = \"tank\"\n        pool_guid = \
                        0xffffffffffffffff\n        vdev_path = \"/dev/sdc1\"\n        vdev_state = 0x5\n        time = \
                        0x6b028f75 0x2a \n        eid = 0xc\n\n";
        assert_eq!(verbose.split_once('\n').unwrap().1, expected);
        let object: Value = serde_json::from_str(&show(&event, &args("-j"))).unwrap();
        assert_eq!(object["events"]["12"]["vdev_state"], 5);
        assert_eq!(object["output_version"]["command"], "zpool events");
    }
}
