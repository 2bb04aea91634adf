//! A pool's history as a list of entries. Facts: docs/format/mos.md §9.
//!
//! It may be a gigabyte. So it is read piece by piece, and of what does not fit an answer the oldest is left out; what
//! cannot be understood is left out, too. Both are said: a history that cannot be shown is of no use to anybody.

use std::collections::VecDeque;

use engine::BoxFuture;
use pool::{
    Pool,
    dmu::Object,
    ondisk::{
        history::{HistoryPhys, RECORD_BYTES_MAX},
        nvlist::NvList,
    },
};

use crate::{host::chain, ops::HistoryEntry};

/// Bytes of records, as stored, in an answer at most.
const BYTES_MAX: usize = 64 << 20;
/// Bytes read at a time.
const PIECE: u64 = 1 << 20;

/// Records, and what is not among them and why, a sentence each.
pub type Records = (Vec<HistoryEntry>, Vec<String>);

/// All records of a pool's history that are left, oldest first.
///
/// # Errors
/// It cannot be read, as a sentence.
pub fn read(pool: &Pool) -> BoxFuture<'_, Result<Records, String>> {
    Box::pin(async move {
        let failed = |error: &dyn std::error::Error| {
            format!("cannot show history for pool '{}': {}", pool.name(), chain(error))
        };
        let number = pool.directory().get_u64("history").await.map_err(|error| failed(&error))?;
        let Some(number) = number else { return Ok((Vec::new(), Vec::new())) };
        let object = pool.mos().object(number).await.map_err(|error| failed(&error))?;
        let phys = HistoryPhys::decode(&object.dnode().bonus, object.bonus_order())
            .map_err(|error| failed(&error))?;
        let (mut entries, mut notes) = (Vec::new(), Vec::new());
        // The first record is kept for ever; the ring holds the rest.
        for (from, to) in [(0, phys.create_len), (phys.bof.max(phys.create_len), phys.eof)] {
            let mut newest = Newest::new(BYTES_MAX);
            if let Err(why) = follow(&object, &phys, from..to, &mut newest).await {
                notes.push(format!("the history of pool '{}' cannot be read to its end: {why}", pool.name()));
            }
            notes.extend(newest.notes(pool.name()));
            entries.extend(newest.kept.into_iter().map(|(_, entry)| entry));
        }
        Ok((entries, notes))
    })
}

/// Reads the records of a logical range.
async fn follow(
    object: &Object,
    phys: &HistoryPhys,
    range: std::ops::Range<u64>,
    newest: &mut Newest,
) -> Result<(), String> {
    let mut from = range.start;
    while from < range.end && !newest.is_lost {
        let len = PIECE.min(range.end - from);
        let extents = phys.extents(from, len).ok_or_else(|| format!("it claims bytes at {from}"))?;
        for (start, len) in extents.into_iter().filter(|(_, len)| *len > 0) {
            let len = usize::try_from(len).unwrap_or(0);
            newest.take(&object.read(start, len).await.map_err(|error| chain(&error))?);
        }
        // What is in the cache, and holes, never wait for anything.
        tokio::task::yield_now().await;
        from += len;
    }
    Ok(())
}

/// The newest of the records that were taken.
#[derive(Debug)]
struct Newest {
    most: usize,
    /// The beginning of a record whose end is still to come.
    rest: Vec<u8>,
    /// With the bytes they have as they are stored.
    kept: VecDeque<(usize, HistoryEntry)>,
    bytes: usize,
    left_out: u64,
    unreadable: u64,
    /// Nobody knows where the next one begins.
    is_lost: bool,
}

impl Newest {
    fn new(most: usize) -> Self {
        let (rest, kept) = (Vec::new(), VecDeque::new());
        Self { most, rest, kept, bytes: 0, left_out: 0, unreadable: 0, is_lost: false }
    }

    /// The next bytes of the range.
    fn take(&mut self, bytes: &[u8]) {
        if self.is_lost {
            return;
        }
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(head) = self.rest[at..].first_chunk::<8>() {
            let len = u64::from_le_bytes(*head);
            // No record is empty: that is a hole, or nonsense.
            if len == 0 || len > RECORD_BYTES_MAX {
                self.is_lost = true;
                break;
            }
            let Some(record) = self.rest[at + 8..].get(..len as usize) else { break };
            at += 8 + record.len();
            match NvList::decode(record) {
                Ok(list) => {
                    self.bytes += record.len();
                    self.kept.push_back((record.len(), entry(&list)));
                }
                Err(_) => self.unreadable += 1,
            }
        }
        self.rest.drain(..at);
        while self.bytes > self.most
            && let Some((len, _)) = self.kept.pop_front()
        {
            self.bytes -= len;
            self.left_out += 1;
        }
    }

    /// What is not among them.
    fn notes(&self, pool: &str) -> Vec<String> {
        let mut notes = Vec::new();
        if self.left_out > 0 {
            notes.push(format!(
                "the history of pool '{pool}' is long: its oldest {} records are left out",
                self.left_out
            ));
        }
        if self.unreadable > 0 {
            notes.push(format!(
                "{} records of the history of pool '{pool}' cannot be understood",
                self.unreadable
            ));
        }
        if self.is_lost {
            notes.push(format!(
                "the history of pool '{pool}' cannot be followed to its end: a record has no length"
            ));
        }
        notes
    }
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

#[cfg(test)]
mod tests {
    use pool::ondisk::{Order, history::encode_record};

    use super::*;

    fn record(number: u64) -> Vec<u8> {
        let mut list = NvList::new();
        list.set("history command", format!("zfs snapshot tank/v@{number}").as_str());
        list.set("history time", number);
        encode_record(&list, Order::Little).unwrap()
    }

    fn times(newest: &Newest) -> Vec<u64> {
        newest.kept.iter().map(|(_, entry)| entry.time).collect()
    }

    /// `zpool history` failed for good once it was longer than what was read of it.
    #[test]
    fn of_a_history_that_is_too_long_the_newest_is_shown() {
        let data: Vec<u8> = (0..100).flat_map(record).collect();
        let mut newest = Newest::new(record(0).len() * 10);
        // However the pieces fall.
        data.chunks(37).for_each(|piece| newest.take(piece));
        let kept = times(&newest);
        assert_eq!((kept.last(), newest.rest.len()), (Some(&99), 0));
        assert_eq!(kept.len() as u64 + newest.left_out, 100);
        assert!((10..13).contains(&kept.len()), "{kept:?}");
        assert!(newest.notes("tank")[0].contains(&format!("oldest {} records", newest.left_out)));
    }

    #[test]
    fn one_record_that_cannot_be_understood_hides_none_of_the_others() {
        let mut bad = record(1);
        bad[8..].fill(0xff);
        let mut newest = Newest::new(BYTES_MAX);
        newest.take(&[record(0), bad, record(2)].concat());
        assert_eq!((times(&newest), newest.unreadable), (vec![0, 2], 1));
        newest.take(&[0xff; 8]);
        newest.take(&record(3));
        assert!(newest.is_lost && times(&newest) == [0, 2]);
        assert_eq!(newest.notes("tank").len(), 2);
    }

    /// Each eight bytes of a hole were a record that could not be understood, of which a forged history has any number.
    #[test]
    fn a_history_ends_where_there_is_none() {
        let mut newest = Newest::new(BYTES_MAX);
        newest.take(&[record(0), vec![0; 1 << 20]].concat());
        assert!(newest.is_lost);
        assert_eq!((times(&newest), newest.unreadable), (vec![0], 0));
    }
}
