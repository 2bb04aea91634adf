//! A pool's history as a list of entries. Facts: docs/format/mos.md §9.

use pool::{
    Pool,
    ondisk::{
        history::{self, HistoryPhys},
        nvlist::NvList,
    },
};

use crate::{host::chain, ops::HistoryEntry};

/// Largest history read, in bytes: OpenZFS keeps at most 1 GiB, and a few MiB in practice.
const BYTES_MAX: u64 = 64 << 20;

/// All records of a pool's history that are left, oldest first.
///
/// # Errors
/// It cannot be read, as a sentence.
pub async fn read(pool: &Pool) -> Result<Vec<HistoryEntry>, String> {
    let failed = |error: &dyn std::error::Error| {
        format!("cannot show history for pool '{}': {}", pool.name(), chain(error))
    };
    let number = pool.directory().get_u64("history").await.map_err(|error| failed(&error))?;
    let Some(number) = number else { return Ok(Vec::new()) };
    let object = pool.mos().object(number).await.map_err(|error| failed(&error))?;
    let phys =
        HistoryPhys::decode(&object.dnode().bonus, object.bonus_order()).map_err(|error| failed(&error))?;
    let mut data = Vec::new();
    // The first record is kept for ever; the ring holds the rest.
    for (from, to) in [(0, phys.create_len), (phys.bof.max(phys.create_len), phys.eof)] {
        let len = to.saturating_sub(from);
        let extents = phys.extents(from, len).filter(|_| len <= BYTES_MAX);
        let Some(extents) = extents else {
            return Err(format!("cannot show history for pool '{}': it claims {len} bytes", pool.name()));
        };
        for (start, len) in extents.into_iter().filter(|(_, len)| *len > 0) {
            let len = usize::try_from(len).unwrap_or(0);
            data.extend(object.read(start, len).await.map_err(|error| failed(&error))?);
        }
    }
    let mut entries = Vec::new();
    for record in history::records(&data) {
        entries.push(entry(&record.map_err(|error| failed(&error))?));
    }
    Ok(entries)
}

fn entry(record: &NvList) -> HistoryEntry {
    let text = |name: &str| record.str(name).map(str::to_owned);
    let mut entry = HistoryEntry {
        time: record.u64("history time").unwrap_or(0),
        host: text("history hostname"),
        zone: text("history zone"),
        ..HistoryEntry::default()
    };
    if let Some(command) = text("history command") {
        entry.user = record.u64("history who");
        entry.text = command;
        return entry;
    }
    entry.txg = record.u64("history txg");
    let name = text("internal_name").or_else(|| text("ioctl")).unwrap_or_default();
    let of = match (text("dsname"), record.u64("dsid")) {
        (Some(name), Some(id)) => format!(" {name} ({id})"),
        (Some(name), None) => format!(" {name}"),
        _ => String::new(),
    };
    let what = text("history internal str").unwrap_or_default();
    entry.text = format!("{name}{of} {}", what.trim()).trim().to_owned();
    entry
}
