//! A list of datasets while it is told: the names of all first, then their properties, a portion at a time.
//!
//! ```text
//!   names of all, in order ──▶ a portion: found again in the pools, and told with its properties
//!     a hundred bytes each       nothing of a pool is kept until the next, which is found in the pools as they are by then
//! ```
//!
//! A pool may have a hundred thousand snapshots, and their properties take most of a gigabyte: a daemon that had them together
//! would be killed for a list where memory is scarce. Whoever reads it may take their time, too: a pool can be closed meanwhile,
//! and its space is given out again. So a long list is not of one moment: what is destroyed or renamed before it is told is left
//! out. One of a single portion is: that is found where its names were.

use std::{collections::VecDeque, mem, slice, sync::Arc};

use engine::BoxFuture;
use futures_util::future::join_all;
use pool::{
    Pool,
    dmu::ReadError,
    dsl::{Dataset, Dsl, LookupError},
    props::{self, PropertySet, table},
    text::clean,
};

use crate::{
    answers::{Pools, left_out},
    api::{self, DatasetQuery, Kind, SourceKind, share::SilentPool},
    host::chain,
    ops::{Held, pool_of},
    silence::{self, Asked, Silent},
    view::{self, ViewError},
};

/// Memory that a portion takes, in bytes; the last of its datasets comes on top.
const PORTION: usize = 256 << 10;

/// What stands before the snapshot in a property that is made up as one asks.
const WRITTEN_SINCE: &str = "written@";

/// What is left of a list.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Where it begins; every pool if nowhere.
    begin: Option<String>,
    /// Which properties are asked for; all if that is not said.
    wanted: Option<Vec<String>>,
    /// In order, each with the guid of its pool; with names as they are on disk, and without properties.
    rest: VecDeque<(u64, api::Dataset)>,
    /// Where the names were found, until the first portion is there.
    seen: Vec<(Arc<Held>, Arc<Pool>)>,
    problems: Vec<String>,
    /// Pools that are not open.
    away: Vec<SilentPool>,
}

impl Listing {
    /// What `query` asks for, of one pool or of all at once; none if that is more than `most`.
    ///
    /// # Errors
    /// The place to begin does not exist, or cannot be read; its pool does not answer; the query makes no sense.
    pub(crate) fn find<'a>(
        pools: &'a Pools,
        query: &'a DatasetQuery,
        most: usize,
    ) -> BoxFuture<'a, Result<Option<Self>, ViewError>> {
        Box::pin(async move {
            let types: Vec<Kind> = match &query.types {
                None => Kind::ALL.to_vec(),
                Some(types) => types
                    .split(',')
                    .map(|word| Kind::from_word(word).ok_or_else(|| ViewError::BadType(word.to_owned())))
                    .collect::<Result<_, _>>()?,
            };
            let wanted = query.properties.as_ref().map(|properties| {
                // The name is in the answer as it is.
                let names = properties.split(',').filter(|name| !["", "name"].contains(name));
                names.map(|name| table::dataset(name).map_or(name, |row| row.name).to_owned()).collect()
            });
            let mut listing = Self { begin: query.name.clone(), wanted, ..Self::default() };
            let asked = match &query.name {
                None => pools.all(),
                Some(name) => match pools.of(name) {
                    Some(held) => slice::from_ref(held),
                    None => return Err(ViewError::NoDataset(name.clone())),
                },
            };
            let (types, begin) = (&types[..], query.name.as_deref());
            let views: Vec<Arc<Pool>> = asked.iter().map(|held| held.view()).collect();
            let found = asked
                .iter()
                .zip(&views)
                .map(|(held, view)| async move { heard(held, begin, names(view, query, types, most)).await });
            let mut all = Vec::new();
            for (held, found) in asked.iter().zip(join_all(found).await) {
                match found {
                    Ok(Some(found)) => {
                        all.extend(found.datasets.into_iter().map(|dataset| (held.guid(), dataset)));
                        listing.problems.extend(found.problems);
                    }
                    Ok(None) => return Ok(None),
                    Err(error) => listing.go_without(held, error)?,
                }
            }
            if all.len() > most {
                return Ok(None);
            }
            all.sort_by(|(_, a), (_, b)| view::order(a, b));
            listing.rest = all.into();
            listing.seen = asked.iter().cloned().zip(views).collect();
            Ok(Some(listing))
        })
    }

    /// Whether all has been told but the problems.
    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next portion, with properties. Nothing may be left of it.
    ///
    /// # Errors
    /// The one pool that was asked for cannot be read, or does not answer.
    pub(crate) fn next_portion<'a>(
        &'a mut self,
        pools: &'a Pools,
    ) -> BoxFuture<'a, Result<Vec<api::Dataset>, ViewError>> {
        Box::pin(async move {
            let mut portion = Portion::default();
            let seen = mem::take(&mut self.seen);
            while !portion.is_full()
                && let Some((guid, next)) = self.rest.front()
            {
                let guid = *guid;
                let before = seen.iter().find(|(held, _)| held.guid() == guid);
                let before = before.map(|(held, view)| (held, Arc::clone(view)));
                let now = || pools.all().iter().find(|held| held.guid() == guid);
                let Some((held, view)) = before.or_else(|| now().map(|held| (held, held.view()))) else {
                    let pool = pool_of(&next.name);
                    self.problems.push(format!("cannot list '{pool}': it was closed meanwhile"));
                    self.forget(guid);
                    continue;
                };
                let wanted = self.wanted.as_deref();
                let told = tell(&view, wanted, &mut self.rest, &mut portion, &mut self.problems);
                let outcome = heard(held, self.begin.as_deref(), told).await;
                if let Err(error) = outcome {
                    self.go_without(held, error)?;
                    self.forget(guid);
                }
            }
            Ok(portion.datasets)
        })
    }

    /// The list goes without these pools, which are not open. Whoever only looks for problems finds them there.
    pub(crate) fn add_away(&mut self, pools: impl IntoIterator<Item = SilentPool>) {
        for pool in pools {
            self.problems.push(pool.problem.clone());
            self.away.push(pool);
        }
    }

    /// The rest is not told, and why.
    pub(crate) fn break_off(&mut self, why: String) {
        self.rest.clear();
        self.problems.push(why);
    }

    /// The end of the answer: what could not be found out.
    pub(crate) fn into_end(self) -> api::Datasets {
        api::Datasets { datasets: Vec::new(), problems: self.problems, away: self.away }
    }

    /// The list goes without a pool that cannot be read, if it is of others as well.
    fn go_without(&mut self, held: &Held, error: ViewError) -> Result<(), ViewError> {
        let problem = match error {
            ViewError::Silent { why, .. } if self.begin.is_none() => left_out(held, &why),
            error @ ViewError::Read { .. } if self.begin.is_none() => error.to_string(),
            error => return Err(error),
        };
        self.problems.push(problem);
        Ok(())
    }

    /// Nothing is left of a pool.
    fn forget(&mut self, guid: u64) {
        self.rest.retain(|(pool, _)| *pool != guid);
    }
}

/// Datasets that are told at a time.
#[derive(Debug, Default)]
struct Portion {
    datasets: Vec<api::Dataset>,
    bytes: usize,
}

impl Portion {
    fn push(&mut self, dataset: api::Dataset) {
        self.bytes += bytes(&dataset);
        self.datasets.push(dataset);
    }

    fn is_full(&self) -> bool {
        self.bytes >= PORTION
    }
}

/// Memory that it takes.
fn bytes(dataset: &api::Dataset) -> usize {
    let of = |property: &api::Property| {
        let texts = [&property.name, &property.value, &property.exact].into_iter();
        let texts = texts.chain(&property.inherited_from).chain(&property.received);
        size_of::<api::Property>() + texts.map(String::len).sum::<usize>()
    };
    size_of::<api::Dataset>() + dataset.name.len() + dataset.properties.iter().map(of).sum::<usize>()
}

/// What `look` finds in a pool; `begin` is the place that was asked for, if only that was.
async fn heard<T>(
    held: &Held,
    begin: Option<&str>,
    look: impl Future<Output = Result<T, ViewError>>,
) -> Result<T, ViewError> {
    let asked = if begin.is_some() { Asked::Alone } else { Asked::AmongOthers };
    let silent = |silent: Silent| ViewError::Silent {
        name: begin.unwrap_or(held.name()).to_owned(),
        why: silent.to_string(),
    };
    match silence::hear(held, asked, look).await {
        Ok(Err(error @ ViewError::Read { .. })) => Err(Silent::suspended(held).map_or(error, silent)),
        Ok(found) => found,
        Err(found) => Err(silent(found)),
    }
}

fn kind(dataset: &Dataset) -> Option<Kind> {
    dataset.type_word().and_then(Kind::from_word)
}

/// What of a pool is asked for, without properties and in no order; none if that is more than `most`.
async fn names(
    pool: &Pool,
    query: &DatasetQuery,
    types: &[Kind],
    most: usize,
) -> Result<Option<api::Datasets>, ViewError> {
    let begin = query.name.as_deref().unwrap_or(pool.name());
    let depth = query.depth.unwrap_or(u64::MAX);
    let dsl = pool.dsl().await.map_err(|error| ViewError::read(begin, &error))?;
    let start = dsl.lookup(begin).await.map_err(|error| lookup_error(begin, &error))?;
    let top = start.dir().depth();
    let (heads, failed) = dsl.heads_within(start, depth).await;
    let mut found = api::Datasets::default();
    found.problems.extend(failed.iter().map(|error| chain(error)));
    for head in heads {
        let Some(own) = kind(&head) else {
            // What it is, and what its snapshots are of, is not known: that is said once.
            found.problems.extend(head.unread().map(|error| chain(&error)));
            continue;
        };
        if types.contains(&own) {
            found.datasets.push(bare(head.name().to_owned(), own, head.create_txg()));
        }
        let is_within = (head.dir().depth().saturating_sub(top) as u64) < depth;
        if is_within && types.contains(&Kind::Snapshot) {
            match head.snapshot_names(most.saturating_sub(found.datasets.len())).await {
                Ok(None) => return Ok(None),
                Ok(Some((snapshots, failed))) => {
                    found.problems.extend(failed.iter().map(|error| chain(error)));
                    let full = |name: &str| format!("{}@{name}", head.name());
                    let named = snapshots.into_iter();
                    found.datasets.extend(named.map(|(name, txg)| bare(full(&name), Kind::Snapshot, txg)));
                }
                Err(error) => found.problems.push(ViewError::read(head.name(), &error).to_string()),
            }
        }
        if is_within && types.contains(&Kind::Bookmark) {
            match head.bookmarks().await {
                Ok(bookmarks) => {
                    let bare =
                        |mark: &Dataset| bare(mark.name().to_owned(), Kind::Bookmark, mark.create_txg());
                    found.datasets.extend(bookmarks.iter().map(bare));
                }
                Err(error) => found.problems.push(ViewError::read(head.name(), &error).to_string()),
            }
        }
        if found.datasets.len() > most {
            return Ok(None);
        }
    }
    Ok(Some(found))
}

fn bare(name: String, kind: Kind, createtxg: u64) -> api::Dataset {
    api::Dataset { name, kind, createtxg, properties: Vec::new() }
}

/// Puts the first of `rest` into `portion`, as long as they are of this pool and it is not full.
async fn tell(
    pool: &Pool,
    wanted: Option<&[String]>,
    rest: &mut VecDeque<(u64, api::Dataset)>,
    portion: &mut Portion,
    problems: &mut Vec<String>,
) -> Result<(), ViewError> {
    let dsl = pool.dsl().await.map_err(|error| ViewError::read(pool.name(), &error))?;
    let wanted: Option<Vec<&str>> = wanted.map(|wanted| wanted.iter().map(String::as_str).collect());
    let wanted = wanted.as_deref();
    // The live dataset that was found last: its snapshots come next.
    let mut live: Option<Dataset> = None;
    while !portion.is_full() && rest.front().is_some_and(|(guid, _)| *guid == pool.guid()) {
        let Some((_, next)) = rest.pop_front() else { break };
        if wanted.is_some_and(<[&str]>::is_empty) {
            portion.push(api::Dataset { name: clean(&next.name), ..next });
            continue;
        }
        let (name, part) = apart(&next.name);
        if live.as_ref().is_none_or(|live| live.name() != name) {
            live = find(dsl, name).await.unwrap_or_else(|error| {
                problems.push(chain(&error));
                None
            });
        }
        let Some(head) = &live else {
            // It is gone or cannot be read, with all that is part of it: that is said once.
            let is_part =
                |(guid, other): &(u64, api::Dataset)| *guid == pool.guid() && apart(&other.name).0 == name;
            while rest.front().is_some_and(is_part) {
                rest.pop_front();
            }
            continue;
        };
        let found = match part.split_at_checked(1) {
            None => Ok(Some(head.clone())),
            Some(("@", snapshot)) => head.snapshot(snapshot).await,
            Some((_, bookmark)) => head.bookmark(bookmark).await,
        };
        match found {
            Ok(Some(found)) if kind(&found) == Some(next.kind) => {
                match properties(dsl, &found, wanted, problems).await {
                    Ok(properties) => {
                        let (name, createtxg) = (clean(&next.name), found.create_txg());
                        portion.push(api::Dataset { name, kind: next.kind, createtxg, properties });
                    }
                    Err(error) => problems.push(ViewError::read(&next.name, &error).to_string()),
                }
            }
            // It is gone.
            Ok(_) => {}
            Err(error) => problems.push(ViewError::read(&next.name, &error).to_string()),
        }
    }
    Ok(())
}

/// The name of the live dataset, and what of it, with the separator, if it is a part that is named.
fn apart(name: &str) -> (&str, &str) {
    name.split_at(name.find(['@', '#']).unwrap_or(name.len()))
}

/// The live dataset of this name, if there still is one.
async fn find(dsl: &Dsl, name: &str) -> Result<Option<Dataset>, LookupError> {
    let found = dsl.head(name).await;
    let found = found.map_err(|source| LookupError::Read { name: name.to_owned(), source })?;
    match found.as_ref().and_then(Dataset::unread) {
        Some(error) => Err(error),
        None => Ok(found),
    }
}

/// Those that are asked for.
async fn properties(
    dsl: &Dsl,
    dataset: &Dataset,
    wanted: Option<&[&str]>,
    problems: &mut Vec<String>,
) -> Result<Vec<api::Property>, ReadError> {
    let set = PropertySet::read_some(dataset, wanted).await?;
    let mut properties: Vec<_> = set.list().iter().map(view::property).collect();
    for name in wanted.into_iter().flatten().filter(|name| name.starts_with(WRITTEN_SINCE)) {
        match written_since(dsl, dataset, name).await {
            Ok(written) => properties.extend(written),
            Err(error) => problems.push(error.to_string()),
        }
    }
    Ok(properties)
}

/// `written@SNAPSHOT`: what the dataset has now and had not then. The snapshot is its own, unless a dataset stands before
/// it: of a clone it may be one of its origin. None for those that do not come from it.
async fn written_since(dsl: &Dsl, dataset: &Dataset, name: &str) -> Result<Option<api::Property>, ViewError> {
    let asked = name.strip_prefix(WRITTEN_SINCE).unwrap_or_default();
    let head = dataset.name().split('@').next().unwrap_or_default();
    let snapshot = if asked.contains('@') { asked.to_owned() } else { format!("{head}@{asked}") };
    let since = match dsl.lookup(&snapshot).await {
        Ok(since) => since,
        Err(LookupError::NotFound { .. } | LookupError::BadName { .. }) => return Ok(None),
        Err(error) => return Err(lookup_error(&snapshot, &error)),
    };
    let written = dataset.written_since(&since).await;
    let written = written.map_err(|error| ViewError::read(dataset.name(), &error))?;
    Ok(written.map(|bytes| api::Property {
        name: name.to_owned(),
        value: props::value::bytes(bytes),
        exact: bytes.to_string(),
        source: SourceKind::None,
        inherited_from: None,
        received: None,
    }))
}

fn lookup_error(name: &str, error: &LookupError) -> ViewError {
    match error {
        LookupError::NotFound { .. } => ViewError::NoDataset(name.to_owned()),
        LookupError::BadName { reason, .. } => {
            ViewError::BadName { name: name.to_owned(), reason: reason.to_string() }
        }
        other => ViewError::Read { name: name.to_owned(), reason: chain(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ops::{Destroy, Operation},
        serving::tests::World,
    };

    fn names(told: &[api::Dataset]) -> Vec<&str> {
        told.iter().map(|dataset| dataset.name.as_str()).collect()
    }

    #[tokio::test]
    async fn a_long_list_is_told_as_things_are_by_then() {
        let world = World::new().await;
        world.volume("tank/v").await;
        let set = async |properties: Vec<(String, String)>| {
            let set = Operation::Set { name: "tank".to_owned(), properties, force: false };
            world.run(set).await.unwrap();
        };
        set(["a", "b", "c"].map(|name| (format!("org.example:{name}"), "x".repeat(8000))).to_vec()).await;
        let mut expected = vec!["tank".to_owned(), "tank/v".to_owned()];
        for number in 0..12 {
            expected.push(format!("tank/v@{number}"));
            world.snapshot(&[expected.last().unwrap().as_str()]).await;
        }
        let (pools, query) = (world.host.pools(), DatasetQuery::default());
        let mut listing = Listing::find(&pools, &query, usize::MAX).await.unwrap().unwrap();
        let mut told = listing.next_portion(&pools).await.unwrap();
        assert!(told.len() < expected.len() - 1, "{}", told.len());
        let gone = Destroy { name: expected.pop().unwrap(), ..Destroy::default() };
        world.run(Operation::Destroy(gone)).await.unwrap();
        set(vec![("org.example:note".to_owned(), "new".to_owned())]).await;
        while !listing.is_over() {
            told.append(&mut listing.next_portion(&pools).await.unwrap());
        }
        assert_eq!(names(&told), expected);
        assert_eq!(told.last().unwrap().property("org.example:note").unwrap().value, "new");
        assert_eq!(listing.into_end().problems, [""; 0]);
    }

    /// What was renamed while the list was made was in it under neither name, and of a pool that was closed there was nothing.
    #[tokio::test]
    async fn what_fits_into_one_portion_is_of_one_moment() {
        let world = World::new().await;
        world.volume("tank/v").await;
        world.snapshot(&["tank/v@a"]).await;
        world.snapshot(&["tank/v@b"]).await;
        let (pools, query) = (world.host.pools(), DatasetQuery::default());
        let mut before = Listing::find(&pools, &query, usize::MAX).await.unwrap().unwrap();
        let (from, to) = ("tank/v".to_owned(), "tank/w".to_owned());
        world.run(Operation::Rename { from, to, parents: false, recursive: false }).await.unwrap();
        let mut after = Listing::find(&pools, &query, 4).await.unwrap().unwrap();
        for (listing, expected, pools) in [
            (&mut before, ["tank", "tank/v", "tank/v@a", "tank/v@b"], pools.clone()),
            (&mut after, ["tank", "tank/w", "tank/w@a", "tank/w@b"], Pools::default()),
        ] {
            assert_eq!(names(&listing.next_portion(&pools).await.unwrap()), expected);
            assert!(listing.is_over() && listing.seen.is_empty());
        }
        assert_eq!(
            [before, after].map(|listing| listing.into_end().problems),
            [const { Vec::<String>::new() }; 2]
        );
        assert!(Listing::find(&pools, &query, 3).await.unwrap().is_none());
    }

    /// Whoever looks at devices without importing them may find such.
    #[tokio::test]
    async fn pools_of_one_name_are_not_taken_for_each_other() {
        let (one, other) = (World::of(1).await, World::of(2).await);
        one.volume("tank/a").await;
        other.volume("tank/b").await;
        let pools = Pools::new([one.host.all(), other.host.all()].concat());
        let all = pools.datasets(&DatasetQuery::default()).await.unwrap();
        assert_eq!(names(&all.datasets), ["tank", "tank", "tank/a", "tank/b"]);
        let guids = |at: usize| &all.datasets[at].property("guid").unwrap().exact;
        assert_ne!(guids(0), guids(1));
    }
}
