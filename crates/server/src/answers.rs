//! The pools that are open here, and answers about them: what both the control socket and a command without a
//! daemon ask.
//!
//! What is asked of all pools is asked of all at once, and one that does not answer is left out: see [`silence`].

use std::sync::Arc;

use engine::BoxFuture;
use futures_util::future::join_all;

use crate::{
    api::{
        self, DatasetQuery,
        share::{ShareList, SilentPool},
    },
    listing::Listing,
    ops::{self, Held},
    shares,
    silence::{self, Asked},
    view::ViewError,
};

/// Open pools, by name.
#[derive(Clone, Debug, Default)]
pub struct Pools(Vec<Arc<Held>>);

impl Pools {
    /// These pools.
    #[must_use]
    pub fn new(mut pools: Vec<Arc<Held>>) -> Self {
        pools.sort_by(|a, b| (a.name(), a.guid()).cmp(&(b.name(), b.guid())));
        Self(pools)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Arc<Held>] {
        &self.0
    }

    /// The one that a dataset of this name is in, if it is open.
    pub(crate) fn of(&self, name: &str) -> Option<&Arc<Held>> {
        self.0.iter().find(|held| held.name() == ops::pool_of(name))
    }

    /// What `query` asks for, of one pool or of all. Of all, what some of them cannot answer is among the problems. All
    /// properties of all datasets take much memory: a daemon tells them a portion at a time.
    ///
    /// # Errors
    /// The place to begin does not exist, is of another kind than asked for, cannot be read, or its pool does not answer;
    /// the query makes no sense.
    pub fn datasets<'a>(
        &'a self,
        query: &'a DatasetQuery,
    ) -> BoxFuture<'a, Result<api::Datasets, ViewError>> {
        Box::pin(async move {
            let mut listing = Listing::find(self, query, usize::MAX).await?.unwrap_or_default();
            let mut datasets = Vec::new();
            while !listing.is_over() {
                datasets.append(&mut listing.next_portion(self).await?);
            }
            Ok(api::Datasets { datasets, ..listing.into_end() })
        })
    }

    /// What all of them keep about offering, without what only a daemon knows.
    pub fn shares(&self) -> BoxFuture<'_, ShareList> {
        Box::pin(async move {
            let answers = self.0.iter().map(|held| async {
                let view = held.view();
                silence::hear(held, Asked::AmongOthers, shares::report(&view)).await
            });
            let mut list = ShareList::default();
            for (held, answer) in self.0.iter().zip(join_all(answers).await) {
                match answer {
                    Ok(pool) => list.pools.push(pool),
                    Err(silent) => list.silent.push(SilentPool {
                        pool: held.name().to_owned(),
                        problem: left_out(held, &silent.to_string()),
                    }),
                }
            }
            list
        })
    }
}

/// That a list goes without a pool.
pub(crate) fn left_out(held: &Held, why: &str) -> String {
    format!("cannot list '{}': {why}", held.name())
}
