//! The pool's error log: blocks that could not be read, as the pool remembers them.
//!
//! Two forms. The old one is a ZAP of `objset:object:level:block`; with feature `head_errlog` it is a ZAP
//! of ZAPs, one per dataset, whose keys also carry the block's birth. What file that is, others say.
//! Facts: docs/format/mos.md §10.

use std::collections::BTreeSet;

use ondisk::scan::{BlockBookmark, HeadBookmark};

use crate::{Bookmark, BoxFuture, Pool, dmu::ReadError, zap::Zap};

/// Entries read at most: a log of millions is a list nobody reads. Of one with so many there may be more.
pub const ERROR_LOG_MAX: usize = 100_000;

/// One block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedError {
    /// Which block; `objset` is the dataset (its head, with `head_errlog`).
    pub at: Bookmark,
    /// Birth txg of the block, where the log says.
    pub birth: Option<u64>,
}

/// The entries of the log of the last scan and of the one since, sorted, each once: all of them, or at least
/// [`ERROR_LOG_MAX`].
///
/// # Errors
/// The log cannot be read.
pub fn error_log(pool: &Pool) -> BoxFuture<'_, Result<Vec<LoggedError>, ReadError>> {
    Box::pin(async move {
        let by_head = pool.is_active("com.delphix:head_errlog");
        let mut found = BTreeSet::new();
        for entry in ["errlog_last", "errlog_scrub"] {
            let Some(object) = pool.directory().get_u64(entry).await?.filter(|&object| object != 0) else {
                continue;
            };
            let log = Zap::open_in(pool.mos(), object).await?;
            if by_head {
                for (head, object) in log.numbers().await? {
                    let Ok(objset) = u64::from_str_radix(&head, 16) else { continue };
                    collect(&Zap::open_in(pool.mos(), object).await?, &mut found, |key| {
                        let HeadBookmark { object, level, block_id, birth } = key.parse().ok()?;
                        let at = Bookmark { objset, object, level, blkid: block_id };
                        Some(LoggedError { at, birth: Some(birth) })
                    })
                    .await?;
                }
            } else {
                collect(&log, &mut found, |key| {
                    let BlockBookmark { objset, object, level, block_id } = key.parse().ok()?;
                    Some(LoggedError { at: Bookmark { objset, object, level, blkid: block_id }, birth: None })
                })
                .await?;
            }
        }
        Ok(found.into_iter().collect())
    })
}

async fn collect(
    zap: &Zap,
    found: &mut BTreeSet<LoggedError>,
    parse: impl Fn(&str) -> Option<LoggedError>,
) -> Result<(), ReadError> {
    let mut entries = zap.entries();
    while let Some((key, _)) = entries.next().await? {
        let name = key.name().and_then(|name| std::str::from_utf8(name).ok());
        found.extend(name.map(|name| name.trim_end_matches('\0')).and_then(&parse));
        if found.len() >= ERROR_LOG_MAX {
            break;
        }
    }
    Ok(())
}
