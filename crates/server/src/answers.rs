//! The pools that are open here, and answers about them: what both the control socket and a command without a
//! daemon ask.

use std::sync::Arc;

use engine::BoxFuture;
use pool::Pool;

use crate::{
    api::{self, DatasetQuery},
    view::{self, ViewError},
};

/// Open pools, by name.
#[derive(Clone, Debug, Default)]
pub struct Pools(Vec<Arc<Pool>>);

impl Pools {
    /// These pools.
    #[must_use]
    pub fn new(mut pools: Vec<Arc<Pool>>) -> Self {
        pools.sort_by(|a, b| (a.name(), a.guid()).cmp(&(b.name(), b.guid())));
        Self(pools)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Arc<Pool>] {
        &self.0
    }

    /// The pool of this name, or of this guid in decimal.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<Pool>> {
        let guid = name.parse::<u64>().ok();
        self.0
            .iter()
            .find(|pool| pool.name() == name)
            .or_else(|| self.0.iter().find(|p| Some(p.guid()) == guid))
    }

    /// What `query` asks for, of one pool or of all.
    ///
    /// # Errors
    /// The place to begin does not exist, is of another kind than asked for, or cannot be read.
    pub fn datasets<'a>(
        &'a self,
        query: &'a DatasetQuery,
    ) -> BoxFuture<'a, Result<api::Datasets, ViewError>> {
        Box::pin(async move {
            let Some(name) = &query.name else {
                let mut all = api::Datasets::default();
                for pool in &self.0 {
                    let mut answer = view::datasets(pool, query).await?;
                    all.datasets.append(&mut answer.datasets);
                    all.problems.append(&mut answer.problems);
                }
                view::sort(&mut all.datasets);
                return Ok(all);
            };
            let pool = name.split(['/', '@', '#']).next().unwrap_or_default();
            match self.0.iter().find(|known| known.name() == pool) {
                Some(pool) => view::datasets(pool, query).await,
                None => Err(ViewError::NoDataset(name.clone())),
            }
        })
    }
}
