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
    ops::{self, Held},
    shares,
    silence::{self, Asked, Silent},
    view::{self, ViewError},
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

    /// What `query` asks for, of one pool or of all. Of all, what some of them cannot answer is among the problems.
    ///
    /// # Errors
    /// The place to begin does not exist, is of another kind than asked for, cannot be read, or its pool does not answer;
    /// the query makes no sense.
    pub fn datasets<'a>(
        &'a self,
        query: &'a DatasetQuery,
    ) -> BoxFuture<'a, Result<api::Datasets, ViewError>> {
        Box::pin(async move {
            let Some(name) = &query.name else {
                let mut all = api::Datasets::default();
                let answers = self.0.iter().map(|held| datasets(held, query, Asked::AmongOthers));
                for (held, answer) in self.0.iter().zip(join_all(answers).await) {
                    match answer {
                        Ok(mut answer) => {
                            all.datasets.append(&mut answer.datasets);
                            all.problems.append(&mut answer.problems);
                        }
                        Err(ViewError::Silent { why, .. }) => all.problems.push(left_out(held, &why)),
                        Err(error @ ViewError::Read { .. }) => all.problems.push(error.to_string()),
                        Err(error) => return Err(error),
                    }
                }
                view::sort(&mut all.datasets);
                return Ok(all);
            };
            match self.0.iter().find(|known| known.name() == ops::pool_of(name)) {
                Some(held) => datasets(held, query, Asked::Alone).await,
                None => Err(ViewError::NoDataset(name.clone())),
            }
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

/// What `query` asks for, of one pool.
async fn datasets(held: &Held, query: &DatasetQuery, asked: Asked) -> Result<api::Datasets, ViewError> {
    let view = held.view();
    let answer = silence::hear(held, asked, view::datasets(&view, query)).await;
    let silent = |silent: Silent| ViewError::Silent {
        name: query.name.clone().unwrap_or_else(|| held.name().to_owned()),
        why: silent.to_string(),
    };
    match answer {
        Ok(Err(error @ ViewError::Read { .. })) => Err(Silent::suspended(held).map_or(error, silent)),
        Ok(answer) => answer,
        Err(found) => Err(silent(found)),
    }
}

/// That a list goes without a pool.
fn left_out(held: &Held, why: &str) -> String {
    format!("cannot list '{}': {why}", held.name())
}
