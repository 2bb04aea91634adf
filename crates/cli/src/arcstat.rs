//! `millpond arcstat`: what the ARC does, in the columns of OpenZFS's `arcstat`.
//!
//! The daemon counts ([`server::arc`]); this subtracts what it said before, and prints. The first line is what was
//! counted since the daemon began, later ones are per second. Columns and their meaning: docs/format/arc.md §5.1.

use std::{fs::File, io::Write as _, process::ExitCode};

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use server::{api, pool::cache::ArcStats, pool::props::value};

use crate::{
    args::Arcstat,
    context::{Context, FAILED, print},
    json,
    output::{self, May},
    repeat,
    table::{Column as TableColumn, render, render_between},
};

/// Reports between two headers.
const HEADER_EVERY: u64 = 20;

/// Columns that are shown if none are named, with `-x`, and with `-z`.
const DEFAULT: &str = "time,read,ddread,ddh%,dmread,dmh%,pread,ph%,size,c,avail";
const EXTENDED: &str = "time,mfu,mru,mfug,mrug,unc,eskip,mtxmis,dread,pread,read";
const STREAMS: &str = "time,ztotal,zhits,zahead,zpast,zmisses,zmax,zfuture,zstride,zissued,zactive";

/// What the columns are: the help text, and all that `-v` prints.
macro_rules! columns_text {
    () => {
        "\
Columns of accesses are a prefix and a word. Prefixes: none all, d demand, dd demand data, dm demand metadata, \
p prefetch, pd prefetch data, pm prefetch metadata, m metadata. Words: hit (hits without a prefix), ioh (iohs), \
mis (miss), read = all of them, h% (hit%), i% (ioh%), m% (miss%).

  mfu mru mfug mrug  hits of the frequent and the recent list, of their ghosts
  unc                hits of uncached blocks
  size arcsz c       what the ARC holds, and what it may hold
  eskip el2skip      victims passed over
  mtxmis             busy locks
  el2cach            evicted bytes that the second tier had
  el2el el2mfu el2mru el2inel
                     those that it may have, of each list, and may not have
  l2hits l2miss l2read l2hit% l2miss% l2size l2asize l2bytes l2wbytes
  l2pref l2mfu l2mru l2data l2meta (and each with %)
                     the second tier
  ztotal zhits zahead zpast zmisses zmax zfuture zstride
                     requests by what they are to streams that are read ahead of
  zissued zactive    blocks to be read ahead, and those being read
  cmpsz ovhsz bonsz dnosz dbusz hdrsz l2hsz abdsz (and each with %)
                     what takes the ARC's memory, and its part of size and l2hsz together
  datasz metasz datatg metatg (and each with %)
                     data and metadata, and how much of each there is to be
  anosz mrusz mfusz uncsz (with da, me in place of sz: data, metadata; ed, em: evictable; and each with %)
                     what lists hold; mrutg mrudt mrumt mfutg mfudt mfumt: how much they are to
  mrugsz mrugd mrugm mfugsz mfugd mfugm
                     ghosts, of data, of metadata
  grow need free avail waste
                     whether it may grow, and the machine's memory"
    };
}

pub(crate) const HELP: &str = concat!(
    "\
Without INTERVAL: what was counted since the daemon began, in one line.
With INTERVAL: that line, then what happens per second, every INTERVAL seconds, COUNT lines or until interrupted.

",
    columns_text!()
);

/// Two looks at the counters.
struct View<'a> {
    now: &'a ArcStats,
    happened: &'a ArcStats,
    seconds: f64,
}

/// How a column's number is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// Events a second: K is 1000.
    Count,
    /// Bytes: K is 1024.
    Bytes,
    Percent,
}

struct Column {
    name: String,
    scale: Scale,
    value: Box<dyn Fn(&View<'_>) -> f64>,
}

/// Hits, I/O hits and misses of a category.
type Accesses = fn(&ArcStats) -> [u64; 3];

fn sum<const N: usize>(parts: [[u64; 3]; N]) -> [u64; 3] {
    parts.into_iter().fold([0; 3], |sum, part| [sum[0] + part[0], sum[1] + part[1], sum[2] + part[2]])
}

fn demand_data(s: &ArcStats) -> [u64; 3] {
    [s.demand_data_hits, s.demand_data_iohits, s.demand_data_misses]
}

fn demand_metadata(s: &ArcStats) -> [u64; 3] {
    [s.demand_metadata_hits, s.demand_metadata_iohits, s.demand_metadata_misses]
}

fn prefetch_data(s: &ArcStats) -> [u64; 3] {
    [s.prefetch_data_hits, s.prefetch_data_iohits, s.prefetch_data_misses]
}

fn prefetch_metadata(s: &ArcStats) -> [u64; 3] {
    [s.prefetch_metadata_hits, s.prefetch_metadata_iohits, s.prefetch_metadata_misses]
}

const CATEGORIES: [(&str, Accesses); 8] = [
    ("", |s| sum([demand_data(s), demand_metadata(s), prefetch_data(s), prefetch_metadata(s)])),
    ("d", |s| sum([demand_data(s), demand_metadata(s)])),
    ("dd", demand_data),
    ("dm", demand_metadata),
    ("p", |s| sum([prefetch_data(s), prefetch_metadata(s)])),
    ("pd", prefetch_data),
    ("pm", prefetch_metadata),
    ("m", |s| sum([demand_metadata(s), prefetch_metadata(s)])),
];

/// A column that is one counter.
type Counter = (&'static str, Scale, fn(&ArcStats) -> u64);

/// Counters that are shown per second.
const RATES: [Counter; 26] = [
    ("mfu", Scale::Count, |s| s.mfu_hits),
    ("mru", Scale::Count, |s| s.mru_hits),
    ("mfug", Scale::Count, |s| s.mfu_ghost_hits),
    ("mrug", Scale::Count, |s| s.mru_ghost_hits),
    ("unc", Scale::Count, |s| s.uncached_hits),
    ("eskip", Scale::Count, |s| s.evict_skip),
    ("el2skip", Scale::Count, |s| s.evict_l2_skip),
    ("el2cach", Scale::Bytes, |s| s.evict_l2_cached),
    ("el2el", Scale::Bytes, |s| s.evict_l2_eligible),
    ("el2mfu", Scale::Bytes, |s| s.evict_l2_eligible_mfu),
    ("el2mru", Scale::Bytes, |s| s.evict_l2_eligible_mru),
    ("el2inel", Scale::Bytes, |s| s.evict_l2_ineligible),
    ("mtxmis", Scale::Count, |s| s.mutex_miss),
    ("l2hits", Scale::Count, |s| s.l2_hits),
    ("l2miss", Scale::Count, |s| s.l2_misses),
    ("l2bytes", Scale::Bytes, |s| s.l2_read_bytes),
    ("l2wbytes", Scale::Bytes, |s| s.l2_write_bytes),
    ("ztotal", Scale::Count, |s| {
        s.zfetch_hits + s.zfetch_future + s.zfetch_stride + s.zfetch_past + s.zfetch_misses
    }),
    ("zhits", Scale::Count, |s| s.zfetch_hits),
    ("zahead", Scale::Count, |s| s.zfetch_future + s.zfetch_stride),
    ("zpast", Scale::Count, |s| s.zfetch_past),
    ("zmisses", Scale::Count, |s| s.zfetch_misses),
    ("zmax", Scale::Count, |s| s.zfetch_max_streams),
    ("zfuture", Scale::Count, |s| s.zfetch_future),
    ("zstride", Scale::Count, |s| s.zfetch_stride),
    ("zissued", Scale::Count, |s| s.zfetch_io_issued),
];

/// What is as it is now.
const GAUGES: [Counter; 22] = [
    ("size", Scale::Bytes, |s| s.size),
    ("arcsz", Scale::Bytes, |s| s.size),
    ("c", Scale::Bytes, |s| s.c),
    ("l2size", Scale::Bytes, |s| s.l2_size),
    ("l2asize", Scale::Bytes, |s| s.l2_asize),
    ("l2pref", Scale::Bytes, |s| s.l2_prefetch_asize),
    ("l2mfu", Scale::Bytes, |s| s.l2_mfu_asize),
    ("l2mru", Scale::Bytes, |s| s.l2_mru_asize),
    ("l2data", Scale::Bytes, |s| s.l2_bufc_data_asize),
    ("l2meta", Scale::Bytes, |s| s.l2_bufc_metadata_asize),
    ("grow", Scale::Count, |s| u64::from(s.arc_no_grow == 0)),
    ("need", Scale::Bytes, |s| s.arc_need_free),
    ("free", Scale::Bytes, |s| s.memory_free_bytes),
    ("avail", Scale::Bytes, |s| s.memory_available_bytes),
    // What buffers take beyond their content is in hdr_size here.
    ("waste", Scale::Bytes, |_| 0),
    ("zactive", Scale::Count, |s| s.zfetch_io_active),
    ("mrugsz", Scale::Bytes, |s| s.mru_ghost_size),
    ("mrugd", Scale::Bytes, |s| s.mru_ghost_data),
    ("mrugm", Scale::Bytes, |s| s.mru_ghost_metadata),
    ("mfugsz", Scale::Bytes, |s| s.mfu_ghost_size),
    ("mfugd", Scale::Bytes, |s| s.mfu_ghost_data),
    ("mfugm", Scale::Bytes, |s| s.mfu_ghost_metadata),
];

/// A size that is a part of another, shown as it is and with `%`.
type Part = (&'static str, Size);
type Size = fn(&ArcStats) -> u64;

/// Parts of what the ARC and finding blocks on cache devices take.
const PARTS: [Part; 8] = [
    ("cmpsz", |s| s.compressed_size),
    ("ovhsz", |s| s.overhead_size),
    ("bonsz", |s| s.bonus_size),
    ("dnosz", |s| s.dnode_size),
    ("dbusz", |s| s.dbuf_size),
    ("hdrsz", |s| s.hdr_size),
    ("l2hsz", |s| s.l2_hdr_size),
    ("abdsz", |s| s.abd_chunk_waste_size),
];

/// Parts of what its lists hold.
const LISTED: [Part; 22] = [
    ("datasz", |s| s.data_size),
    ("metasz", |s| s.metadata_size),
    ("anosz", |s| s.anon_size),
    ("anoda", |s| s.anon_data),
    ("anome", |s| s.anon_metadata),
    ("anoed", |s| s.anon_evictable_data),
    ("anoem", |s| s.anon_evictable_metadata),
    ("mfusz", |s| s.mfu_size),
    ("mfuda", |s| s.mfu_data),
    ("mfume", |s| s.mfu_metadata),
    ("mfued", |s| s.mfu_evictable_data),
    ("mfuem", |s| s.mfu_evictable_metadata),
    ("mrusz", |s| s.mru_size),
    ("mruda", |s| s.mru_data),
    ("mrume", |s| s.mru_metadata),
    ("mrued", |s| s.mru_evictable_data),
    ("mruem", |s| s.mru_evictable_metadata),
    ("uncsz", |s| s.uncached_size),
    ("uncda", |s| s.uncached_data),
    ("uncme", |s| s.uncached_metadata),
    ("unced", |s| s.uncached_evictable_data),
    ("uncem", |s| s.uncached_evictable_metadata),
];

/// How much of that there is to be of each: a share, shown as a size and with `%`. The arguments are the shares of metadata,
/// and of the recent among data and among metadata.
type Target = (&'static str, fn(f64, f64, f64) -> f64);

const TARGETS: [Target; 8] = [
    ("datatg", |meta, _, _| 1.0 - meta),
    ("metatg", |meta, _, _| meta),
    ("mfutg", |meta, pd, pm| (1.0 - pd) * (1.0 - meta) + (1.0 - pm) * meta),
    ("mfudt", |meta, pd, _| (1.0 - pd) * (1.0 - meta)),
    ("mfumt", |meta, _, pm| (1.0 - pm) * meta),
    ("mrutg", |meta, pd, pm| pd * (1.0 - meta) + pm * meta),
    ("mrudt", |meta, pd, _| pd * (1.0 - meta)),
    ("mrumt", |meta, _, pm| pm * meta),
];

/// All that the lists hold: what `arc-summary` has the same parts of.
fn listed(s: &ArcStats) -> u64 {
    s.data_size + s.metadata_size
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Every column but `time`.
fn columns() -> Vec<Column> {
    let mut all: Vec<Column> = Vec::new();
    let mut add = |name: &str, scale: Scale, value: Box<dyn Fn(&View<'_>) -> f64>| {
        all.push(Column { name: name.to_owned(), scale, value });
    };
    for (prefix, of) in CATEGORIES {
        let names = match prefix {
            "" => ["hits", "iohs", "miss", "read", "hit%", "ioh%", "miss%"].map(str::to_owned),
            _ => ["hit", "ioh", "mis", "read", "h%", "i%", "m%"].map(|word| format!("{prefix}{word}")),
        };
        for (which, name) in names.iter().enumerate() {
            let read = move |view: &View<'_>| of(view.happened).iter().sum::<u64>();
            match which {
                0..3 => add(
                    name,
                    Scale::Count,
                    Box::new(move |view| of(view.happened)[which] as f64 / view.seconds),
                ),
                3 => add(name, Scale::Count, Box::new(move |view| read(view) as f64 / view.seconds)),
                // Misses are what is not the others, so that the three make 100.
                6 => add(
                    name,
                    Scale::Percent,
                    Box::new(move |view| {
                        let [hits, iohits, _] = of(view.happened);
                        let read = read(view);
                        let others = percent(hits, read).floor() + percent(iohits, read).floor();
                        if read == 0 { 0.0 } else { 100.0 - others }
                    }),
                ),
                _ => add(
                    name,
                    Scale::Percent,
                    Box::new(move |view| percent(of(view.happened)[which - 4], read(view)).floor()),
                ),
            }
        }
    }
    for (name, scale, of) in RATES {
        add(name, scale, Box::new(move |view| of(view.happened) as f64 / view.seconds));
    }
    add(
        "l2read",
        Scale::Count,
        Box::new(|view| (view.happened.l2_hits + view.happened.l2_misses) as f64 / view.seconds),
    );
    for (name, is_hits) in [("l2hit%", true), ("l2miss%", false)] {
        add(
            name,
            Scale::Percent,
            Box::new(move |view| {
                let (hits, misses) = (view.happened.l2_hits, view.happened.l2_misses);
                match (hits + misses, is_hits) {
                    (0, _) => 0.0,
                    (all, true) => percent(hits, all).floor(),
                    (all, false) => 100.0 - percent(hits, all).floor(),
                }
            }),
        );
    }
    for (name, scale, of) in GAUGES {
        add(name, scale, Box::new(move |view| of(view.now) as f64));
        if ["l2pref", "l2mfu", "l2mru", "l2data", "l2meta"].contains(&name) {
            let share = Box::new(move |view: &View<'_>| percent(of(view.now), view.now.l2_asize).floor());
            add(&format!("{name}%"), Scale::Percent, share);
        }
    }
    let sizes: [(&[Part], Size); 2] = [(&PARTS, |s| s.size + s.l2_hdr_size), (&LISTED, listed)];
    for (parts, whole) in sizes {
        for &(name, of) in parts {
            add(name, Scale::Bytes, Box::new(move |view| of(view.now) as f64));
            let share = Box::new(move |view: &View<'_>| percent(of(view.now), whole(view.now)).floor());
            add(&format!("{name}%"), Scale::Percent, share);
        }
    }
    for (name, of) in TARGETS {
        let share = move |s: &ArcStats| {
            let [meta, pd, pm] = [s.meta, s.pd, s.pm].map(|part| part as f64 / 4_294_967_296.0);
            of(meta, pd, pm)
        };
        let bytes = Box::new(move |view: &View<'_>| (share(view.now) * listed(view.now) as f64).floor());
        add(name, Scale::Bytes, bytes);
        let part = Box::new(move |view: &View<'_>| (share(view.now) * 100.0).floor());
        add(&format!("{name}%"), Scale::Percent, part);
    }
    all
}

/// The columns that are wanted; `None` is the time.
fn choose(args: &Arcstat) -> Result<Vec<Option<Column>>, String> {
    let mut all: Vec<Option<Column>> = columns().into_iter().map(Some).collect();
    let has_set = args.extended || args.streams;
    if args.all || (args.json && args.fields.is_empty() && !has_set) {
        all.insert(0, None);
        return Ok(all);
    }
    let named: Vec<&str> = match &args.fields[..] {
        [] if args.extended => EXTENDED.split(',').collect(),
        [] if args.streams => STREAMS.split(',').collect(),
        [] => DEFAULT.split(',').collect(),
        fields => fields.iter().map(String::as_str).collect(),
    };
    let mut chosen = Vec::new();
    for name in named {
        if name == "time" {
            chosen.push(None);
            continue;
        }
        let is_it = |column: &Option<Column>| column.as_ref().is_some_and(|column| column.name == name);
        match all.iter_mut().find(|column| is_it(column)) {
            Some(found) => chosen.push(found.take()),
            None if named_twice(&chosen, name) => return Err(format!("column '{name}' is named twice")),
            None => {
                let names: Vec<&str> = all.iter().flatten().map(|column| column.name.as_str()).collect();
                return Err(format!(
                    "there is no column '{name}'; there are time, {} ('millpond arcstat --help' says what they are)",
                    names.join(", ")
                ));
            }
        }
    }
    Ok(chosen)
}

fn named_twice(chosen: &[Option<Column>], name: &str) -> bool {
    chosen.iter().flatten().any(|column| column.name == name)
}

pub(crate) async fn run(args: Arcstat, context: &Context) -> anyhow::Result<ExitCode> {
    let usage = |wrong: &str| context.usage(&["arcstat"], wrong);
    if args.list {
        print(concat!(columns_text!(), "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = choose(&args).map_err(|wrong| usage(&wrong))?;
    let asked = repeat::parse(&args.words).map_err(|wrong| usage(&wrong))?;
    if let Some(name) = asked.names.first() {
        return Err(usage(&format!("'{name}' is no interval: the ARC is one for all pools")).into());
    }
    let Some(daemon) = context
        .serving_daemon("show the ARC", "it is in the memory of the process that serves the volumes")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let mut file = match &args.output {
        Some(path) => {
            output::check(path, May::default()).await?;
            Some(File::create(path).with_context(|| format!("cannot write '{}'", path.display()))?)
        }
        None => None,
    };
    let mut before = daemon.arc().await?;
    // What was counted since the beginning is not divided by anything.
    let mut happened = before.stats;
    let mut seconds = 1.0;
    let mut report = 0;
    loop {
        let view = View { now: &before.stats, happened: &happened, seconds };
        let said = match args.json {
            true => line(&columns, &view, report > 0),
            false => text(&columns, &view, report, &args),
        };
        match &mut file {
            Some(file) => file.write_all(said.as_bytes())?,
            None => print(&said)?,
        }
        report += 1;
        let last = asked.count.map_or(asked.interval.is_none(), |count| report >= count);
        let Some(interval) = asked.interval.filter(|_| !last) else { return Ok(ExitCode::SUCCESS) };
        tokio::time::sleep(interval).await;
        let now = daemon.arc().await?;
        (happened, seconds) = between(&before, &now);
        before = now;
    }
}

/// What was counted between two looks, and in how many seconds.
fn between(before: &api::arc::Arc, now: &api::arc::Arc) -> (ArcStats, f64) {
    let moment = |arc: &api::arc::Arc| repeat::Moment(arc.started_ns, arc.at_ns);
    let (seconds, is_same) = repeat::between(moment(before), moment(now));
    (if is_same { now.stats.since(&before.stats) } else { now.stats }, seconds)
}

fn text(columns: &[Option<Column>], view: &View<'_>, report: u64, args: &Arcstat) -> String {
    let heads: Vec<TableColumn> = columns
        .iter()
        .map(|column| match column {
            None => TableColumn::right("time", 8),
            Some(column) => TableColumn::right(&column.name, 4),
        })
        .collect();
    let cells = columns.iter().map(|column| match column {
        None => time(),
        Some(column) => cell((column.value)(view), column.scale, args.exact),
    });
    let table = match &args.separator {
        Some(separator) => render_between(&heads, &[cells.collect()], separator),
        None => render(&heads, &[cells.collect()], args.scripted),
    };
    match table.split_once('\n') {
        Some((_, row)) if !args.scripted && !report.is_multiple_of(HEADER_EVERY) => row.to_owned(),
        _ => table,
    }
}

/// The time of day, in local time.
fn time() -> String {
    let now = server::view::timestamp(server::hostid::now());
    now.rsplit('.').next().unwrap_or_default().to_owned()
}

/// A number in at most five characters.
fn cell(number: f64, scale: Scale, exact: bool) -> String {
    let whole = number.round();
    if exact || scale == Scale::Percent {
        return format!("{whole}");
    }
    if scale == Scale::Bytes {
        return value::bytes(whole as u64).trim_end_matches('B').to_owned();
    }
    let (mut scaled, mut unit) = (number, "");
    for next in ["K", "M", "G", "T"] {
        if scaled.round() < 1000.0 {
            break;
        }
        (scaled, unit) = (scaled / 1000.0, next);
    }
    if unit.is_empty() || scaled >= 9.95 {
        format!("{scaled:.0}{unit}")
    } else {
        format!("{scaled:.1}{unit}")
    }
}

/// One object: the columns by name, exact.
fn line(columns: &[Option<Column>], view: &View<'_>, is_rate: bool) -> String {
    let mut entries: Map<String, Value> = columns
        .iter()
        .map(|column| match column {
            None => ("time".to_owned(), json!(time())),
            Some(column) => {
                let number = ((column.value)(view) * 1000.0).round() / 1000.0;
                let whole = number.fract() == 0.0;
                (column.name.clone(), if whole { json!(number as u64) } else { json!(number) })
            }
        })
        .collect();
    if is_rate {
        entries.insert("seconds".to_owned(), json!((view.seconds * 1e6).round() / 1e6));
    }
    json::envelope("millpond arcstat", "arcstat", entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(fields: &[&str]) -> Arcstat {
        Arcstat {
            list: false,
            separator: None,
            output: None,
            all: false,
            extended: false,
            streams: false,
            fields: fields.iter().map(|field| (*field).to_owned()).collect(),
            scripted: true,
            exact: true,
            json: false,
            words: Vec::new(),
        }
    }

    fn stats() -> ArcStats {
        ArcStats {
            demand_data_hits: 700,
            demand_data_misses: 100,
            demand_metadata_hits: 150,
            prefetch_data_misses: 50,
            mfu_hits: 800,
            mru_ghost_hits: 12,
            size: 3 << 30,
            c: 4 << 30,
            l2_hits: 1,
            l2_misses: 2,
            l2_asize: 400,
            l2_mfu_asize: 100,
            mru_size: 1000,
            mru_data: 600,
            data_size: 1600,
            metadata_size: 400,
            meta: 1 << 31,
            pd: 1 << 30,
            hdr_size: 3 << 28,
            zfetch_hits: 60,
            zfetch_stride: 30,
            zfetch_past: 6,
            zfetch_misses: 4,
            zfetch_io_issued: 500,
            zfetch_io_active: 7,
            ..ArcStats::default()
        }
    }

    fn shown(fields: &[&str], seconds: f64) -> String {
        let (args, stats) = (args(fields), stats());
        let view = View { now: &stats, happened: &stats, seconds };
        text(&choose(&args).unwrap(), &view, 0, &args)
    }

    #[test]
    fn who_names_a_column_that_is_not_there_is_told_which_there_are() {
        let wrong = |fields: &[&str]| choose(&args(fields)).err().unwrap();
        let said = wrong(&["read", "foo"]);
        assert!(said.starts_with("there is no column 'foo'; there are time, hits, "), "{said}");
        assert!(said.contains("l2hits") && said.contains("arcstat --help"), "{said}");
        assert_eq!(wrong(&["read", "read"]), "column 'read' is named twice");
    }

    #[test]
    fn columns_are_what_their_names_say() {
        assert_eq!(shown(&["hits", "miss", "read", "hit%", "miss%"], 1.0), "850\t150\t1000\t85\t15\n");
        assert_eq!(shown(&["ddread", "ddh%", "ddm%", "dmread", "dmh%"], 1.0), "800\t87\t13\t150\t100\n");
        assert_eq!(shown(&["pmis", "ph%", "pread", "mread", "pmh%", "pmm%"], 1.0), "50\t0\t50\t150\t0\t0\n");
        assert_eq!(
            shown(&["read", "mfu", "mrug", "size", "c", "grow"], 10.0),
            "100\t80\t1\t3221225472\t4294967296\t1\n"
        );
        assert_eq!(shown(&["l2read", "l2hit%", "l2miss%", "l2mfu", "l2mfu%"], 1.0), "3\t33\t67\t100\t25\n");
        assert_eq!(
            shown(&["ztotal", "zhits", "zahead", "zpast", "zmisses", "zissued", "zactive"], 2.0),
            "50\t30\t15\t3\t2\t250\t7\n"
        );
        assert_eq!(shown(&["hdrsz", "hdrsz%", "mrusz", "mrusz%"], 1.0), "805306368\t25\t1000\t50\n");
        assert_eq!(shown(&["mruda%", "metatg", "metatg%"], 1.0), "30\t1000\t50\n");
        assert_eq!(shown(&["mfudt", "mfudt%", "mrudt%"], 1.0), "750\t37\t12\n");
    }

    /// The index of cache devices, which is beside the size, was shown as a part of it.
    #[test]
    fn the_parts_of_what_takes_memory_are_no_more_than_all() {
        let stats = ArcStats {
            size: 4 << 30,
            compressed_size: 3 << 30,
            hdr_size: 1 << 30,
            l2_hdr_size: 2 << 30,
            ..ArcStats::default()
        };
        let args = args(&["cmpsz%", "ovhsz%", "hdrsz%", "l2hsz%"]);
        let view = View { now: &stats, happened: &stats, seconds: 1.0 };
        assert_eq!(text(&choose(&args).unwrap(), &view, 0, &args), "50\t0\t16\t33\n");
    }

    /// What the new one had counted was less than before, so that it was nothing, and the rest was divided by a nanosecond.
    #[test]
    fn a_daemon_that_was_restarted_is_counted_from_its_beginning() {
        let at = |seconds: u64, demand_data_hits: u64| api::arc::Arc {
            at_ns: seconds * 1_000_000_000,
            started_ns: 7,
            rules_data: String::new(),
            rules_metadata: String::new(),
            stats: ArcStats { demand_data_hits, ..ArcStats::default() },
        };
        let hits = |before: &api::arc::Arc, now: &api::arc::Arc| {
            let (happened, seconds) = between(before, now);
            (happened.demand_data_hits, seconds)
        };
        assert_eq!(hits(&at(100, 700), &at(105, 900)), (200, 5.0));
        assert_eq!(hits(&at(100, 700), &at(3, 900)), (900, 3.0));
        assert_eq!(hits(&at(100, 700), &at(3, 30)), (30, 3.0));
    }

    #[test]
    fn what_stands_between_columns_is_what_was_asked_for() {
        let stats = stats();
        let view = View { now: &stats, happened: &stats, seconds: 1.0 };
        let args = Arcstat { scripted: false, separator: Some(";".to_owned()), ..args(&["hits", "miss"]) };
        assert_eq!(text(&choose(&args).unwrap(), &view, 0, &args), "hits;miss\n 850; 150\n");
    }

    #[test]
    fn all_named_columns_exist_and_no_name_is_twice() {
        let all = columns();
        let mut names: Vec<&str> = all.iter().map(|column| column.name.as_str()).collect();
        names.sort_unstable();
        let many = names.len();
        names.dedup();
        assert_eq!(names.len(), many);
        for name in
            HELP.lines().skip(6).flat_map(|line| line.split("  ").filter(|part| !part.is_empty()).take(1))
        {
            for word in
                name.split_whitespace().filter(|word| word.starts_with("l2") || word.starts_with("el2"))
            {
                assert!(names.contains(&word), "{word}");
            }
        }
        // Those that OpenZFS has, after docs/format/arc.md §5.1 and its manual page.
        let mut has: Vec<String> = "size arcsz c mfu mru mfug mrug unc eskip el2skip \
             el2cach el2el el2mfu el2mru el2inel mtxmis l2hits l2miss l2read l2hit% l2miss% \
             l2size l2asize l2bytes l2wbytes grow need free avail waste \
             ztotal zhits zahead zpast zmisses zmax zfuture zstride zissued zactive \
             hits iohs miss read hit% ioh% miss% mrugsz mrugd mrugm mfugsz mfugd mfugm"
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        for prefix in ["d", "dd", "dm", "p", "pd", "pm", "m"] {
            has.extend(["hit", "ioh", "mis", "read", "h%", "i%", "m%"].map(|word| format!("{prefix}{word}")));
        }
        let with_share = "l2pref l2mfu l2mru l2data l2meta cmpsz ovhsz bonsz dnosz dbusz hdrsz l2hsz abdsz \
             datatg datasz metatg metasz anosz anoda anome anoed anoem \
             mfutg mfudt mfumt mfusz mfuda mfume mfued mfuem mrutg mrudt mrumt mrusz mruda mrume \
             mrued mruem uncsz uncda uncme unced uncem";
        has.extend(with_share.split_whitespace().flat_map(|name| [name.to_owned(), format!("{name}%")]));
        for name in &has {
            assert!(names.contains(&name.as_str()), "{name}");
        }
        assert_eq!(has.len(), names.len(), "there are others than these");
        for list in [DEFAULT, EXTENDED, STREAMS] {
            let fields: Vec<&str> = list.split(',').collect();
            assert_eq!(choose(&args(&fields)).unwrap().len(), fields.len());
        }
        assert!(choose(&args(&["nothing"])).is_err());
        assert!(choose(&args(&["hits", "hits"])).is_err());
    }

    #[test]
    fn numbers_are_short() {
        let counts = [0.0, 0.4, 999.0, 1000.0, 9_940.0, 9_960.0, 12_345.0, 2_500_000.0];
        assert_eq!(
            counts.map(|number| cell(number, Scale::Count, false)),
            ["0", "0", "999", "1.0K", "9.9K", "10K", "12K", "2.5M"]
        );
        assert_eq!(cell(1536.0, Scale::Bytes, false), "1.50K");
        assert_eq!(cell(512.0, Scale::Bytes, false), "512");
        assert_eq!(cell(1536.4, Scale::Bytes, true), "1536");
    }
}
