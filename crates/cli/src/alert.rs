//! `millpond alert`: who is told, whether that works, what is wrong now. A daemon is asked if one answers; without one
//! the same files are read and changed.

use std::{
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Map, Value, json};
use server::{
    alerts::{
        Files, Offline,
        config::{Auth, Config, ConfigError, Security, SinkConfig, Smtp, Syslog, Target, Webhook},
    },
    api::{
        Device,
        alerts::{self as api, AlertStatus, Severity, SinkStatus, Tested},
    },
    client::Client,
    disks::Disks,
    state::State,
    view,
};

use crate::{
    args::{
        AddAny, AddSmtp, AddSyslog, AddWebhook, Alert, AlertAdd, AlertCommand, AlertShow, LeastSeverity,
        MailAuth, MailSecurity,
    },
    context::{Context, FAILED, print},
    json,
    table::{Column, render},
};

/// Longest secret, in bytes.
const SECRET_MAX: u64 = 64 << 10;

/// Who answers.
enum Keeper {
    Daemon(Client),
    Files(Offline),
}

pub(crate) async fn run(args: Alert, context: &Context) -> anyhow::Result<ExitCode> {
    let keeper = match Client::find(&context.socket()).await? {
        Some(daemon) if args.alerts.is_none() => Keeper::Daemon(daemon),
        _ => Keeper::Files(Offline::new(Files::new(context.state().dir(), args.alerts))),
    };
    match args.command {
        AlertCommand::Add(add) => {
            let sink = understand(add)?;
            let unknown = keeper.unknown(&sink.pools, &context.state()).await;
            keeper.add(sink).await?;
            for pool in unknown {
                say!("warning: no pool '{pool}' is open or was imported: nothing is told until there is one");
            }
        }
        AlertCommand::Remove { name } => keeper.remove(&name).await?,
        AlertCommand::Label { disk, place } => {
            keeper.label(&disk, place.as_deref()).await?;
            if place.is_some() && keeper.lacks(&disk, &context.state()).await {
                say!(
                    "warning: no pool has a disk '{disk}' now: say its serial number, or its whole path (in /dev/disk/by-id)"
                );
            }
        }
        AlertCommand::List(show) => print(&list(&keeper.config().await?, &show))?,
        AlertCommand::Status(show) => print(&status(&keeper.status().await?, &show))?,
        AlertCommand::History { show, last } => {
            print(&history(&latest(keeper.history().await?, last), &show))?;
        }
        AlertCommand::Test { name, json } => return tested(&keeper.test(name.as_deref()).await?, json),
    }
    Ok(ExitCode::SUCCESS)
}

impl Keeper {
    async fn config(&self) -> anyhow::Result<Config> {
        Ok(match self {
            Self::Daemon(daemon) => daemon.alert_config().await?,
            Self::Files(files) => files.config()?,
        })
    }

    /// Those names that no pool has that is open or was imported. Who cannot be asked knows them all.
    async fn unknown(&self, names: &[String], state: &State) -> Vec<String> {
        if names.is_empty() {
            return Vec::new();
        }
        let Ok(remembered) = state.pools() else { return Vec::new() };
        let mut known: BTreeSet<String> = remembered.into_iter().map(|pool| pool.name).collect();
        if let Self::Daemon(daemon) = self {
            let Ok(open) = daemon.pools().await else { return Vec::new() };
            known.extend(open.into_iter().map(|pool| pool.name));
        }
        names.iter().filter(|name| !known.contains(*name)).cloned().collect()
    }

    /// Whether no pool has a disk of this name. Nothing is missed while nothing is known of disks.
    async fn lacks(&self, disk: &str, state: &State) -> bool {
        let known = Disks::remembered(state.dir());
        if known.is_empty() || known.knows(disk) {
            return false;
        }
        let Self::Daemon(daemon) = self else { return true };
        let Ok(pools) = daemon.pools().await else { return false };
        let mut devices =
            pools.iter().flat_map(|pool| std::iter::once(&pool.root).chain(&pool.spares).chain(&pool.cache));
        !devices.any(|device| is_called(device, disk))
    }

    async fn add(&self, sink: SinkConfig) -> anyhow::Result<()> {
        match self {
            Self::Daemon(daemon) => drop(daemon.add_sink(&sink).await?),
            Self::Files(files) => files.change(|config| config.add(sink))?,
        }
        Ok(())
    }

    async fn remove(&self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Daemon(daemon) => drop(daemon.remove_sink(name).await?),
            Self::Files(files) => files.change(|config| config.remove(name))?,
        }
        Ok(())
    }

    async fn label(&self, disk: &str, place: Option<&str>) -> anyhow::Result<()> {
        match self {
            Self::Daemon(daemon) => drop(daemon.label_disk(disk, place).await?),
            Self::Files(files) => files.change(|config| config.label(disk, place))?,
        }
        Ok(())
    }

    async fn test(&self, name: Option<&str>) -> anyhow::Result<Vec<Tested>> {
        Ok(match self {
            Self::Daemon(daemon) => daemon.test_alerts(name).await?,
            Self::Files(files) => files.test(name).await?,
        })
    }

    async fn status(&self) -> anyhow::Result<AlertStatus> {
        Ok(match self {
            Self::Daemon(daemon) => daemon.alerts().await?,
            Self::Files(files) => {
                say!("no daemon runs: this is what the last one left behind");
                files.status()?
            }
        })
    }

    async fn history(&self) -> anyhow::Result<Vec<api::Alert>> {
        Ok(match self {
            Self::Daemon(daemon) => daemon.alert_history().await?,
            Self::Files(files) => files.history()?,
        }
        .alerts)
    }
}

/// Whether it, or one below it, has this name or path.
fn is_called(device: &Device, name: &str) -> bool {
    device.name == name
        || device.path.as_deref() == Some(name)
        || device.children.iter().any(|child| is_called(child, name))
}

/// The first line of a file or of standard input.
fn secret(path: &Path) -> anyhow::Result<String> {
    let text = whole(path)?;
    let line = text.lines().next().unwrap_or_default().to_owned();
    anyhow::ensure!(!line.is_empty(), "'{}' is empty", path.display());
    Ok(line)
}

fn whole(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().take(SECRET_MAX).read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|file| file.take(SECRET_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| anyhow::anyhow!("cannot read '{}': {error}", path.display()))?;
    Ok(text)
}

/// A daemon has another working directory.
fn absolute(path: Option<PathBuf>) -> Option<PathBuf> {
    path.map(|path| std::path::absolute(&path).unwrap_or(path))
}

fn understand(add: AlertAdd) -> anyhow::Result<SinkConfig> {
    let (any, target) = match add {
        AlertAdd::Smtp(smtp) => mail(smtp)?,
        AlertAdd::Webhook(webhook) => hook(webhook)?,
        AlertAdd::Syslog(AddSyslog { any, target, facility }) => {
            (any, Target::Syslog(Syslog { target, facility }))
        }
    };
    let AddAny { name, min_severity, pools, digest, per_hour } = any;
    let min_severity = match min_severity {
        LeastSeverity::Info => Severity::Info,
        LeastSeverity::Warning => Severity::Warning,
        LeastSeverity::Critical => Severity::Critical,
    };
    Ok(SinkConfig { min_severity, pools, digest_seconds: digest, per_hour, ..SinkConfig::new(name, target) })
}

fn mail(add: AddSmtp) -> anyhow::Result<(AddAny, Target)> {
    let (server, port) = match add.server.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            let port = port.parse::<u16>().ok().filter(|port| *port > 0);
            let port =
                port.ok_or_else(|| ConfigError::Invalid(format!("'{}' is not HOST[:PORT]", add.server)))?;
            (host.trim_matches(['[', ']']).to_owned(), Some(port))
        }
        _ => (add.server.trim_matches(['[', ']']).to_owned(), None),
    };
    let password = add.password_file.as_deref().map(secret).transpose()?;
    let smtp = Smtp {
        server,
        port,
        security: match add.security {
            MailSecurity::Starttls => Security::Starttls,
            MailSecurity::Tls => Security::Tls,
            MailSecurity::None => Security::None,
        },
        user: add.user,
        password,
        auth: add.auth.map(|auth| match auth {
            MailAuth::Plain => Auth::Plain,
            MailAuth::Login => Auth::Login,
        }),
        from: add.from,
        to: add.to,
        ca: absolute(add.ca),
        timeout_seconds: add.timeout,
    };
    Ok((add.any, Target::Smtp(smtp)))
}

fn hook(add: AddWebhook) -> anyhow::Result<(AddAny, Target)> {
    let url = if add.url == "-" { secret(Path::new("-"))? } else { add.url };
    let mut lines = add.headers;
    if let Some(path) = &add.header_file {
        lines.extend(whole(path)?.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    }
    let headers = lines.iter().map(|line| match line.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        // Not shown: it may be a secret.
        None => Err(ConfigError::Invalid("a header is 'NAME: VALUE'".to_owned())),
    });
    let headers = headers.collect::<Result<Vec<_>, _>>()?;
    let secret = add.secret_file.as_deref().map(secret).transpose()?;
    let webhook = Webhook { url, headers, secret, ca: absolute(add.ca), timeout_seconds: add.timeout };
    Ok((add.any, Target::Webhook(webhook)))
}

fn list(config: &Config, show: &AlertShow) -> String {
    if show.json {
        let sinks: Map<String, Value> =
            config.sinks.iter().map(|sink| (sink.name.clone(), json!(sink))).collect();
        return json::envelope("millpond alert list", "sinks", sinks);
    }
    if config.sinks.is_empty() && !show.scripted {
        return "nobody is told of alerts; they are in the daemon's log only\nadd somebody with 'millpond alert add'\n"
            .to_owned();
    }
    let columns = ["NAME", "TYPE", "AT LEAST", "POOLS", "DIGEST", "PER HOUR", "TO"].map(Column::left);
    let rows = config.sinks.iter().map(|sink| {
        let pools = if sink.pools.is_empty() { "all".to_owned() } else { sink.pools.join(",") };
        vec![
            sink.name.clone(),
            sink.kind().to_owned(),
            sink.min_severity.word().to_owned(),
            pools,
            format!("{}s", sink.digest_seconds),
            sink.per_hour.to_string(),
            sink.destination(),
        ]
    });
    let mut text = render(&columns, &rows.collect::<Vec<_>>(), show.scripted);
    if !config.labels.is_empty() && !show.scripted {
        text.push_str("\nlabels of disks:\n");
        for (disk, place) in &config.labels {
            text.push_str(&format!("  {disk}: {place}\n"));
        }
    }
    text
}

fn subject(alert: &api::Alert) -> String {
    let finding = &alert.finding;
    let device = finding.device.as_ref().map(|device| &device.name);
    device.or(finding.sink.as_ref()).or(finding.file.as_ref()).map_or("-", String::as_str).to_owned()
}

fn cells(alert: &api::Alert) -> Vec<String> {
    let pool = match alert.finding.pool.as_str() {
        "" => "-".to_owned(),
        pool => pool.to_owned(),
    };
    vec![
        alert.id.to_string(),
        view::timestamp(alert.opened),
        alert.finding.severity.word().to_owned(),
        pool,
        subject(alert),
        alert.finding.kind.word().to_owned(),
    ]
}

fn status(status: &AlertStatus, show: &AlertShow) -> String {
    if show.json {
        let mut object = Map::new();
        object.insert("open".to_owned(), json!(status.open));
        object.insert("sinks".to_owned(), json!(status.sinks));
        object.insert("problem".to_owned(), json!(status.problem));
        return json::envelope("millpond alert status", "alerts", object);
    }
    let mut text = String::new();
    if show.scripted {
        for alert in &status.open {
            let gone = alert.gone.map_or_else(|| "-".to_owned(), |gone| view::timestamp(gone.since));
            let row = cells(alert).into_iter().chain([alert.finding.title.clone(), gone]).collect::<Vec<_>>();
            text.push_str(&format!("{}\n", row.join("\t")));
        }
        return text;
    }
    if let Some(problem) = &status.problem {
        text.push_str(&format!("the settings cannot be used: {problem}\n\n"));
    }
    if status.open.is_empty() {
        text.push_str("no open alerts\n");
    }
    for alert in &status.open {
        text.push_str(&one(alert));
    }
    if !status.sinks.is_empty() {
        text.push('\n');
        let columns = ["SINK", "TYPE", "QUEUED", "SENT", "DROPPED", "LAST SENT", "STATE"].map(Column::left);
        let rows: Vec<Vec<String>> = status.sinks.iter().map(sink).collect();
        text.push_str(&render(&columns, &rows, false));
    }
    text
}

fn sink(sink: &SinkStatus) -> Vec<String> {
    let state = match (&sink.last_error, sink.next_try) {
        // It was never tried: what is wrong with it is known before.
        (Some(error), _) if sink.failures == 0 => error.clone(),
        (Some(error), Some(next)) => {
            format!("failed {} times, next try {}: {error}", sink.failures, view::timestamp(next))
        }
        (Some(error), None) => format!("failed {} times: {error}", sink.failures),
        (None, _) => "ok".to_owned(),
    };
    vec![
        sink.name.clone(),
        sink.kind.clone(),
        sink.queued.to_string(),
        sink.sent.to_string(),
        sink.dropped.to_string(),
        sink.last_success.map_or_else(|| "never".to_owned(), view::timestamp),
        state,
    ]
}

/// An open alert, with all that helps. What to do helps nobody any more where the condition is gone.
fn one(alert: &api::Alert) -> String {
    let finding = &alert.finding;
    let pool = if finding.pool.is_empty() { String::new() } else { format!("{}: ", finding.pool) };
    let mut text = format!("{} {pool}{}\n", finding.severity.word(), finding.title);
    text.push_str(&format!("    since {}", view::timestamp(alert.opened)));
    if alert.returned > 0 {
        text.push_str(&format!(", came and went {} times", alert.returned));
    }
    text.push('\n');
    if let Some(gone) = alert.gone {
        let (since, over) = (view::timestamp(gone.since), view::timestamp(gone.over));
        text.push_str(&format!("    gone since {since}; over at {over} if it stays so\n"));
    }
    if let Some(device) = &finding.device {
        let about = [
            device.path.clone(),
            device.by_id.clone(),
            device.model.clone(),
            device.serial.as_ref().map(|serial| format!("serial {serial}")),
            device.bay.clone(),
            device.part_of.as_ref().map(|parent| format!("part of {parent}")),
        ];
        let about: Vec<String> = about.into_iter().flatten().collect();
        if !about.is_empty() {
            text.push_str(&format!("    {}\n", about.join(", ")));
        }
    }
    if alert.gone.is_some() {
        return text;
    }
    text.push_str(&format!("    {}\n", finding.meaning));
    for line in &finding.action {
        text.push_str(&format!("    {line}\n"));
    }
    text
}

/// Those that were over last, in the order in which they were opened.
fn latest(mut alerts: Vec<api::Alert>, last: Option<usize>) -> Vec<api::Alert> {
    let from = last.map_or(0, |last| alerts.len().saturating_sub(last));
    let mut latest = alerts.split_off(from);
    latest.sort_by_key(|alert| (alert.opened, alert.id));
    latest
}

fn history(alerts: &[api::Alert], show: &AlertShow) -> String {
    if show.json {
        let entries: Map<String, Value> =
            alerts.iter().map(|alert| (alert.id.to_string(), json!(alert))).collect();
        return json::envelope("millpond alert history", "alerts", entries);
    }
    if alerts.is_empty() && !show.scripted {
        return "no alerts so far\n".to_owned();
    }
    let columns = ["ID", "OPENED", "SEVERITY", "POOL", "WHAT", "KIND", "RESOLVED", "TITLE"].map(Column::left);
    let rows = alerts.iter().map(|alert| {
        let mut row = cells(alert);
        row.push(alert.resolved.map_or_else(|| "-".to_owned(), view::timestamp));
        row.push(alert.finding.title.clone());
        row
    });
    render(&columns, &rows.collect::<Vec<_>>(), show.scripted)
}

fn tested(tested: &[Tested], as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        let entries: Map<String, Value> = tested.iter().map(|one| (one.sink.clone(), json!(one))).collect();
        print(&json::envelope("millpond alert test", "sinks", entries))?;
    } else if tested.is_empty() {
        say!("nobody is told of alerts: add somebody with 'millpond alert add'");
        return Ok(ExitCode::from(FAILED));
    } else {
        for one in tested.iter().filter(|one| one.delivered) {
            print(&format!("{}: delivered: {}\n", one.sink, one.answer))?;
        }
        for one in tested.iter().filter(|one| !one.delivered) {
            say!("{}: not delivered: {}", one.sink, one.answer);
        }
    }
    let all = tested.iter().all(|one| one.delivered);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(id: u64, opened: u64) -> api::Alert {
        serde_json::from_value(json!({
            "id": id, "opened": opened, "changed": opened, "kind": "device", "severity": "critical", "level": 1,
            "pool": "tank", "pool_guid": "7", "title": "disk a is REMOVED", "meaning": "It went away.",
            "action": ["Plug it in again."],
        }))
        .unwrap()
    }

    /// They stood in the order in which they had ended, beside a column of when they had begun.
    #[test]
    fn alerts_that_are_over_are_in_the_order_of_the_column() {
        let by_end = || vec![alert(2, 200), alert(1, 100), alert(4, 300), alert(3, 300)];
        let ids = |last| latest(by_end(), last).iter().map(|alert| alert.id).collect::<Vec<_>>();
        assert_eq!(ids(None), [1, 2, 3, 4]);
        assert_eq!(ids(Some(3)), [1, 3, 4], "those that ended last");
        assert_eq!(ids(Some(9)).len(), 4);
    }

    /// It read as if it were so now, and told to replace a disk that was well again.
    #[test]
    fn what_is_gone_is_marked_and_asks_for_nothing() {
        let mut alert = alert(1, 100);
        let text = one(&alert);
        assert!(text.ends_with("    It went away.\n    Plug it in again.\n"), "{text}");
        alert.gone = Some(api::Gone { since: 110, over: 140 });
        let text = one(&alert);
        let (since, over) = (view::timestamp(110), view::timestamp(140));
        let end = format!("    gone since {since}; over at {over} if it stays so\n");
        assert!(text.ends_with(&end), "{text}");
    }
}
