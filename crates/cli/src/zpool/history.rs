//! `zpool history`: what was done to pools.

use std::process::ExitCode;

use server::{
    ops::{HistoryEntry, Operation},
    pool::text::clean,
};

use crate::{
    act::Act,
    args::ZpoolHistory,
    ask::Ask,
    context::{Context, print},
};

pub(crate) async fn run(args: ZpoolHistory, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pools = match args.pools.is_empty() {
        true => Ask::new(context).await?.pools(&[]).await?.found.into_iter().map(|pool| pool.name).collect(),
        false => args.pools.clone(),
    };
    let mut printed = Ok(());
    for pool in pools {
        let heading = format!("History for '{pool}':\n");
        if let Some(answer) = act.attempt(Operation::History { pool }).await {
            let lines: String = answer.history.iter().filter_map(|entry| line(entry, &args)).collect();
            printed = print(&format!("{heading}{lines}\n"));
            if printed.is_err() {
                break;
            }
        }
    }
    act.finish_printed(printed).await
}

/// One entry; none for internal events that were not asked for.
fn line(entry: &HistoryEntry, args: &ZpoolHistory) -> Option<String> {
    let is_command = entry.user.is_some();
    if !is_command && !args.internal {
        return None;
    }
    let mut line = format!("{} ", server::view::timestamp(entry.time));
    if !is_command {
        line.push_str(&format!("[txg:{}] ", entry.txg.unwrap_or(0)));
    }
    line.push_str(&clean(&entry.text));
    if args.long {
        let mut about = Vec::new();
        about.extend(entry.user.map(|user| match name_of(user) {
            Some(name) => format!("user {user} ({name})"),
            None => format!("user {user}"),
        }));
        if let Some(host) = &entry.host {
            let zone = entry.zone.as_ref().map(|zone| format!(":{zone}")).unwrap_or_default();
            about.push(clean(&format!("on {host}{zone}")));
        }
        if !about.is_empty() {
            line.push_str(&format!(" [{}]", about.join(" ")));
        }
    }
    line.push('\n');
    Some(line)
}

/// A user's name on this host.
fn name_of(user: u64) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id == user.to_string()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_and_events_only_if_asked_for() {
        let mut args = ZpoolHistory { internal: false, long: false, pools: Vec::new() };
        let command = HistoryEntry {
            time: 0,
            text: "zfs create tank/a".into(),
            user: Some(u64::MAX),
            host: Some("mill".into()),
            zone: Some("linux".into()),
            txg: None,
        };
        let event =
            HistoryEntry { text: "create tank/a (54)".into(), txg: Some(7), ..HistoryEntry::default() };
        assert!(line(&command, &args).unwrap().ends_with(" zfs create tank/a\n"));
        assert_eq!(line(&event, &args), None);
        (args.internal, args.long) = (true, true);
        let long = line(&command, &args).unwrap();
        assert!(long.ends_with(&format!(" zfs create tank/a [user {} on mill:linux]\n", u64::MAX)), "{long}");
        assert!(line(&event, &args).unwrap().ends_with(" [txg:7] create tank/a (54)\n"));
    }

    /// What another system had written there went to the terminal as it was, and could be a line more.
    #[test]
    fn an_entry_is_one_line_whatever_is_in_it() {
        let args = ZpoolHistory { internal: false, long: true, pools: Vec::new() };
        let (text, host) = ("zfs create\n\u{1b}[2J".into(), Some("mill\n".into()));
        let entry = HistoryEntry { text, host, user: Some(u64::MAX), ..HistoryEntry::default() };
        let shown = line(&entry, &args).unwrap();
        let said = format!(" zfs create\u{fffd}\u{fffd}[2J [user {} on mill\u{fffd}]\n", u64::MAX);
        assert!(shown.ends_with(&said), "{shown:?}");
    }
}
