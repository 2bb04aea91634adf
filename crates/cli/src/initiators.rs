//! `millpond initiators`: who is connected to the daemon, and what each does with each disk, by path.

use std::{collections::BTreeMap, process::ExitCode};

use serde_json::Value;
use server::{
    api::initiators::{Absent, InitiatorList, LunUse, Session},
    pool::props::value::{bytes, count},
    view,
};

use crate::{
    args::Initiators,
    context::{Context, FAILED, print},
    json, repeat,
    table::{Column, render},
};

pub(crate) async fn run(args: Initiators, context: &Context) -> anyhow::Result<ExitCode> {
    let asked = repeat::parse(&args.words).map_err(|wrong| context.usage(&["initiators"], &wrong))?;
    if let Some(name) = asked.names.first() {
        return Err(context
            .usage(&["initiators"], &format!("'{name}' is not an interval: give seconds"))
            .into());
    }
    let Some(daemon) = context
        .serving_daemon("show initiators", "they are connected to the process that serves the volumes")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let mut before = daemon.initiators().await?;
    let Some(interval) = asked.interval else {
        print(&shown(&before, None, &args)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut report = 0;
    while asked.count.is_none_or(|count| report < count) {
        tokio::time::sleep(interval).await;
        let now = daemon.initiators().await?;
        print(&shown(&now, Some(&before), &args)?)?;
        before = now;
        report += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(now: &InitiatorList, before: Option<&InitiatorList>, args: &Initiators) -> anyhow::Result<String> {
    if args.json {
        return match serde_json::to_value(now)? {
            Value::Object(entries) => Ok(json::envelope("millpond initiators", "initiators", entries)),
            _ => anyhow::bail!("a list is no object"),
        };
    }
    Ok(text(now, before, args))
}

/// Numbers of one span of time, or since the beginning.
struct Span {
    /// None: totals.
    seconds: Option<f64>,
    exact: bool,
}

impl Span {
    fn rate(&self, number: u64) -> u64 {
        self.seconds.map_or(number, |seconds| (number as f64 / seconds).round() as u64)
    }

    fn count(&self, number: u64) -> String {
        let number = self.rate(number);
        if self.exact { number.to_string() } else { count(number) }
    }

    fn bytes(&self, number: u64) -> String {
        let number = self.rate(number);
        if self.exact { number.to_string() } else { bytes(number) }
    }

    fn percent(&self, percent: Option<u64>) -> String {
        match percent {
            None => "-".to_owned(),
            Some(percent) if self.exact => percent.to_string(),
            Some(percent) => format!("{percent}%"),
        }
    }

    fn time(&self, micros: Option<u64>) -> String {
        match micros {
            None => "-".to_owned(),
            Some(micros) if self.exact => micros.to_string(),
            Some(micros @ 0..1000) => format!("{micros}us"),
            Some(micros @ 1000..10_000) => format!("{:.1}ms", micros as f64 / 1e3),
            Some(micros @ 10_000..1_000_000) => format!("{}ms", micros / 1000),
            Some(micros) => format!("{:.1}s", micros as f64 / 1e6),
        }
    }

    fn queue(&self, queue_ns: u64, now: u64) -> String {
        match self.seconds {
            Some(seconds) => format!("{:.1}", queue_ns as f64 / 1e9 / seconds),
            None => now.to_string(),
        }
    }
}

/// The same session in an earlier answer.
fn earlier<'a>(before: Option<&'a InitiatorList>, session: &Session) -> Option<&'a Session> {
    before?.sessions.iter().find(|old| {
        (&old.initiator, &old.isid, &old.target, &old.address)
            == (&session.initiator, &session.isid, &session.target, &session.address)
    })
}

fn text(now: &InitiatorList, before: Option<&InitiatorList>, args: &Initiators) -> String {
    let moment = |list: &InitiatorList| repeat::Moment(list.started_ns, list.at_ns);
    let since = before.map(|before| (before, repeat::between(moment(before), moment(now))));
    let span = Span { seconds: since.map(|(_, (seconds, _))| seconds), exact: args.exact };
    // Another daemon's connections may have the same numbers, and are none of these.
    let before = since.filter(|(_, (_, is_same))| *is_same).map(|(before, _)| before);
    if now.sessions.is_empty() && now.nbd.is_empty() && !args.scripted {
        return format!("nobody is connected\n{}", absent(now));
    }
    let mut columns = vec![
        Column::left("INITIATOR"),
        Column::left("FROM"),
        Column::left("PORTAL"),
        Column::right("LUN", 3),
        Column::left("VOLUME"),
    ];
    columns.extend(
        ["READS", "WRITES", "READ", "WRITTEN", "MEM", "AVG", "P99", "QUEUE"]
            .map(|name| Column::right(name, 5)),
    );
    columns.push(Column::left("RES"));
    let mut rows = Vec::new();
    // By portal: group, sessions, commands, bytes in and out.
    let mut paths: BTreeMap<&str, (u16, u64, u64, u64, u64)> = BTreeMap::new();
    for session in &now.sessions {
        let old = earlier(before, session);
        let path = paths.entry(&session.portal).or_insert((session.group, 0, 0, 0, 0));
        path.1 += 1;
        path.2 += session.commands - old.map_or(0, |old| old.commands.min(session.commands));
        path.3 += session.bytes_in - old.map_or(0, |old| old.bytes_in.min(session.bytes_in));
        path.4 += session.bytes_out - old.map_or(0, |old| old.bytes_out.min(session.bytes_out));
        let who = [session.initiator.clone(), session.address.clone(), session.portal.clone()];
        for lun in &session.luns {
            let old = old
                .and_then(|old| old.luns.iter().find(|old| old.lun == lun.lun && old.volume == lun.volume));
            let happened = old.map_or_else(|| lun.clone(), |old| lun.since(old));
            rows.push(who.iter().cloned().chain(cells(&happened, &now.latency_bounds, &span)).collect());
        }
        if session.luns.is_empty() {
            let what = if session.target.is_empty() { "(discovery)" } else { "-" };
            let mut row = who.to_vec();
            row.extend(["-".to_owned(), what.to_owned()]);
            row.resize(columns.len(), "-".to_owned());
            rows.push(row);
        }
    }
    for client in &now.nbd {
        let old = before.and_then(|before| before.nbd.iter().find(|old| old.id == client.id));
        let less = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0));
        let volume = client.volume.clone().unwrap_or_else(|| "-".to_owned());
        let mut row = vec!["nbd".to_owned(), client.address.clone(), "-".to_owned(), "-".to_owned(), volume];
        row.push(span.count(less(client.reads, old.map(|old| old.reads))));
        row.push(span.count(less(client.writes, old.map(|old| old.writes))));
        row.push(span.bytes(less(client.read_bytes, old.map(|old| old.read_bytes))));
        row.push(span.bytes(less(client.write_bytes, old.map(|old| old.write_bytes))));
        row.resize(columns.len(), "-".to_owned());
        rows.push(row);
    }
    let mut out = render(&columns, &rows, args.scripted);
    if args.scripted {
        return out;
    }
    if args.verbose {
        out.push('\n');
        out.push_str(&sessions(now));
    }
    if !paths.is_empty() {
        let mut columns = vec![Column::left("PORTAL"), Column::right("GROUP", 5)];
        columns.extend(["SESSIONS", "COMMANDS", "IN", "OUT"].map(|name| Column::right(name, 5)));
        let row = |(portal, (group, sessions, commands, bytes_in, bytes_out)): (
            &&str,
            &(u16, u64, u64, u64, u64),
        )| {
            vec![
                (*portal).to_owned(),
                group.to_string(),
                sessions.to_string(),
                span.count(*commands),
                span.bytes(*bytes_in),
                span.bytes(*bytes_out),
            ]
        };
        out.push('\n');
        out.push_str(&render(&columns, &paths.iter().map(row).collect::<Vec<_>>(), false));
    }
    out.push_str(&absent(now));
    if span.seconds.is_some() {
        out.push('\n');
    }
    out
}

/// What a session does with one disk, from the column LUN on.
fn cells(lun: &LunUse, bounds: &[u64], span: &Span) -> Vec<String> {
    let reservation = match (&lun.holds, lun.registered) {
        (Some(_), _) => "HOLDS",
        (None, true) => "reg",
        (None, false) => "-",
    };
    vec![
        lun.lun.to_string(),
        if lun.volume.is_empty() { "-".to_owned() } else { lun.volume.clone() },
        span.count(lun.reads),
        span.count(lun.writes),
        span.bytes(lun.read_bytes),
        span.bytes(lun.write_bytes),
        span.percent(lun.from_memory_percent()),
        span.time(lun.average_ns().map(|nanos| nanos / 1000)),
        span.time(lun.quantile_us(bounds, 99)),
        span.queue(lun.queue_ns, lun.under_way),
        reservation.to_owned(),
    ]
}

fn sessions(now: &InitiatorList) -> String {
    let columns = ["INITIATOR", "TARGET", "GROUP", "ISID", "CHAP", "SINCE", "RESERVATION"].map(Column::left);
    let row = |session: &Session| {
        let held =
            session.luns.iter().filter_map(|lun| Some(format!("LUN {}: {}", lun.lun, lun.holds.as_ref()?)));
        let held = held.collect::<Vec<_>>().join("; ");
        let target = if session.target.is_empty() { "(discovery)" } else { &session.target };
        vec![
            session.initiator.clone(),
            target.to_owned(),
            session.group.to_string(),
            session.isid.clone(),
            session.user.clone().unwrap_or_else(|| "-".to_owned()),
            view::timestamp(session.since),
            if held.is_empty() { "-".to_owned() } else { held },
        ]
    };
    render(&columns, &now.sessions.iter().map(row).collect::<Vec<_>>(), false)
}

/// Reservations that are seen with no session.
fn absent(now: &InitiatorList) -> String {
    if now.absent.is_empty() {
        return String::new();
    }
    let columns = [
        Column::left("REGISTERED, NOT HERE"),
        Column::right("GROUP", 5),
        Column::left("TARGET"),
        Column::right("LUN", 3),
        Column::left("VOLUME"),
        Column::left("HOLDS"),
    ];
    let row = |one: &Absent| {
        vec![
            one.port.clone(),
            one.group.to_string(),
            one.target.clone(),
            one.lun.to_string(),
            one.volume.clone(),
            one.holds.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    format!("\n{}", render(&columns, &now.absent.iter().map(row).collect::<Vec<_>>(), false))
}

#[cfg(test)]
mod tests {
    use server::api::initiators::NbdClient;

    use super::*;

    fn session(portal: &str, reads: u64) -> Session {
        Session {
            initiator: "iqn.a:host".into(),
            address: format!("192.0.2.9:{}", portal.len()),
            portal: portal.into(),
            group: 1,
            target: "iqn.b:t".into(),
            isid: "00023d000001".into(),
            commands: reads,
            bytes_out: reads * 4096,
            luns: vec![LunUse {
                volume: "tank/v".into(),
                reads,
                read_bytes: reads * 4096,
                queue_ns: reads * 2_000_000,
                busy_ns: reads * 2_000_000,
                latency: vec![0, reads],
                holds: Some("write exclusive".into()),
                ..LunUse::default()
            }],
            ..Session::default()
        }
    }

    fn list(at_ns: u64, reads: u64) -> InitiatorList {
        InitiatorList {
            at_ns,
            started_ns: 7,
            latency_bounds: vec![1, 4096],
            sessions: vec![session("192.0.2.1:3260", reads), session("198.51.100.1:3260", reads)],
            nbd: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// What the new one had counted was taken for a nanosecond's, less what the one before had.
    #[test]
    fn a_daemon_that_was_restarted_is_counted_from_its_beginning() {
        let args = Initiators { verbose: false, scripted: true, exact: true, json: false, words: Vec::new() };
        let client = |reads| NbdClient { id: 1, reads, ..NbdClient::default() };
        let before = InitiatorList { nbd: vec![client(50)], ..list(100_000_000_000, 100) };
        let now = InitiatorList { nbd: vec![client(80)], ..list(2_000_000_000, 300) };
        let shown = text(&now, Some(&before), &args);
        let reads: Vec<&str> = shown.lines().map(|line| line.split('\t').nth(5).unwrap()).collect();
        assert_eq!(reads, ["150", "150", "40"], "{shown}");
        let args = Initiators { scripted: false, ..args };
        assert!(text(&now, Some(&before), &args).ends_with("\n\n"), "a line between reports");
    }

    #[test]
    fn what_happened_between_two_answers_is_shown_per_second_and_by_path() {
        let args = Initiators { verbose: false, scripted: true, exact: true, json: false, words: Vec::new() };
        let shown = text(&list(2_000_000_000, 300), Some(&list(0, 100)), &args);
        let first = shown.lines().next().unwrap();
        let expected = "iqn.a:host\t192.0.2.9:14\t192.0.2.1:3260\t0\ttank/v\t100\t0\t409600\t0\t0\t2000\t4096\t0.2\tHOLDS";
        assert_eq!(first, expected);
        let args = Initiators { scripted: false, ..args };
        let shown = text(&list(2_000_000_000, 300), Some(&list(0, 100)), &args);
        assert!(shown.contains("198.51.100.1:3260      1         1       100"), "{shown}");
        assert_eq!(text(&InitiatorList::default(), None, &args), "nobody is connected\n");
    }

    /// A disk that answered nothing any more looked like one that nobody uses.
    #[test]
    fn what_hangs_is_in_the_queue_though_nothing_is_done() {
        let args = Initiators { verbose: false, scripted: true, exact: true, json: false, words: Vec::new() };
        let hanging = |at: u64| {
            let mut list = list(at * 1_000_000_000, 100);
            for lun in list.sessions.iter_mut().flat_map(|session| &mut session.luns) {
                (lun.under_way, lun.queue_ns) = (32, lun.queue_ns + 32 * at * 1_000_000_000);
            }
            list
        };
        let shown = text(&hanging(62), Some(&hanging(60)), &args);
        let cells: Vec<&str> = shown.lines().next().unwrap().split('\t').collect();
        assert_eq!((cells[5], cells[12]), ("0", "32.0"), "{shown}");
    }

    /// A disk refused everybody, and nothing showed for whom.
    #[test]
    fn who_holds_a_disk_is_shown_though_nobody_is_connected() {
        let args =
            Initiators { verbose: false, scripted: false, exact: true, json: false, words: Vec::new() };
        let holder = Absent {
            port: "iqn.a:dead,i,0x00023d000001".into(),
            group: 2,
            target: "iqn.b:t".into(),
            volume: "tank/v".into(),
            holds: Some("write exclusive".into()),
            ..Absent::default()
        };
        let now = InitiatorList { absent: vec![holder], ..InitiatorList::default() };
        let shown = text(&now, None, &args);
        let words: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
        let expected = ["iqn.a:dead,i,0x00023d000001", "2", "iqn.b:t", "0", "tank/v", "write", "exclusive"];
        assert!(shown.starts_with("nobody is connected\n\n") && words == expected, "{shown}");
    }
}
