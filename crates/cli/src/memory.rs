//! `millpond memory`: the daemon's memory: its limit, who holds how much of it, what is shed and why.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::Value;
use server::{api::memory::Memory, pool::props::value};

use crate::{
    args::MemoryArgs,
    context::{Context, FAILED, print},
    json,
    table::{Column, render},
};

pub(crate) async fn run(args: MemoryArgs, context: &Context) -> anyhow::Result<ExitCode> {
    let Some(daemon) = context
        .serving_daemon("show memory", "it is the memory of the process that serves the volumes")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let memory = daemon.memory().await?;
    print(&match args.json {
        true => line(&memory)?,
        false => text(&memory, &args),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn line(memory: &Memory) -> anyhow::Result<String> {
    match serde_json::to_value(memory)? {
        Value::Object(entries) => Ok(json::envelope("millpond memory", "memory", entries)),
        _ => anyhow::bail!("memory is no object"),
    }
}

/// In three lines, as `millpond status` says it of the daemon.
pub(crate) fn brief(memory: &Memory) -> String {
    let size = value::bytes;
    let held = memory.parts.iter().filter(|part| part.bytes > 0);
    let held: Vec<String> = held.map(|part| format!("{} {}", part.name, size(part.bytes))).collect();
    format!(
        "memory: {} of {} ({})\n  held: {}\n  {}\n",
        size(memory.resident),
        size(memory.limit),
        memory.limit_from,
        held.join(", "),
        shed(memory)
    )
}

/// What gives way to others.
fn shed(memory: &Memory) -> String {
    match (&memory.shed_why, memory.shed_times) {
        (Some(why), _) => format!("shed: {} ({why})", memory.shed.join(", ")),
        (None, 0) => "shed: nothing, so far".to_owned(),
        (None, times) => format!("shed: nothing now, {times} times so far"),
    }
}

fn text(memory: &Memory, args: &MemoryArgs) -> String {
    let size = |bytes: u64| if args.exact { bytes.to_string() } else { value::bytes(bytes) };
    let columns = [Column::left("PART"), Column::right("BYTES", 8), Column::right("AT MOST", 8)];
    let mut rows: Vec<Vec<String>> = memory
        .parts
        .iter()
        .map(|part| vec![part.name.clone(), size(part.bytes), part.most.map_or("-".to_owned(), size)])
        .collect();
    rows.push(vec!["resident".to_owned(), size(memory.resident), size(memory.limit)]);
    let mut out = render(&columns, &rows, args.scripted);
    if args.scripted {
        return out;
    }
    let mut say = |text: String| {
        writeln!(out, "{text}").expect("a String takes any text");
    };
    say(String::new());
    say(format!(
        "limit {} ({}), the most that was resident {}",
        size(memory.limit),
        memory.limit_from,
        size(memory.resident_max)
    ));
    say(format!(
        "arc {} of {}, bound by {}; {} kept in reserve, {} reckoned for what is not counted",
        size(memory.arc_size),
        size(memory.arc_target),
        memory.arc_bound_by,
        size(memory.reserve),
        size(memory.overhead)
    ));
    if memory.waits > 0 {
        say(format!(
            "{} requests had to wait until there was room for their data, {} connections wait now",
            memory.waits, memory.waiting
        ));
    }
    if let Some(cgroup) = &memory.cgroup {
        say(format!(
            "cgroup {}: {} of {} used ({}), limit hit {} times, {} processes killed",
            cgroup.name,
            size(cgroup.used),
            size(cgroup.limit),
            cgroup.file,
            cgroup.limit_hits,
            cgroup.kills
        ));
    }
    say(format!(
        "machine {} available of {}; somebody waited for memory {:.1}% of the last ten seconds",
        size(memory.machine_available),
        size(memory.machine_total),
        memory.stall_percent
    ));
    if let Some(score) = memory.oom_score_adj {
        say(format!("oom_score_adj {score}"));
    }
    say(shed(memory));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::api::memory::Part;

    #[test]
    fn a_person_and_a_script_see_the_same_numbers() {
        let memory = Memory {
            limit: 240 << 20,
            limit_from: "memory.max of cgroup /pond is 256M".to_owned(),
            resident: 100 << 20,
            parts: vec![Part { name: "requests in flight".to_owned(), bytes: 3 << 20, most: Some(30 << 20) }],
            shed: vec!["statistics".to_owned(), "scans".to_owned()],
            shed_why: Some("the machine has 20M available".to_owned()),
            ..Memory::default()
        };
        let shown = text(&memory, &MemoryArgs { scripted: false, exact: false, json: false });
        assert!(shown.contains("requests in flight        3M       30M"), "{shown}");
        assert!(shown.contains("limit 240M (memory.max of cgroup /pond is 256M)"), "{shown}");
        assert!(shown.contains("shed: statistics, scans (the machine has 20M available)"), "{shown}");
        let shown = text(&memory, &MemoryArgs { scripted: true, exact: true, json: false });
        assert_eq!(shown, "requests in flight\t3145728\t31457280\nresident\t104857600\t251658240\n");
        assert_eq!(
            brief(&memory),
            "memory: 100M of 240M (memory.max of cgroup /pond is 256M)\n  held: requests in flight 3M\n  shed: statistics, scans \
             (the machine has 20M available)\n"
        );
        assert!(line(&memory).unwrap().contains("\"limit\":251658240"));
    }
}
