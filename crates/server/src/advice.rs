//! What more memory or a cache device would be worth, with the names of pools and datasets: what the ARC's samples say
//! ([`pool::cache::Advice`]), as the control socket shows it.

use std::sync::Arc;

use engine::BoxFuture;
use futures_util::future::join_all;
use pool::cache::{self, BlockCache};

use crate::{
    api::advice::{AdviceList, Named, Outlook, Point},
    ops::Held,
    silence::{self, Asked},
    view,
};

/// What is known now.
pub fn report<'a>(arc: &'a BlockCache, held: &'a [Arc<Held>]) -> BoxFuture<'a, AdviceList> {
    Box::pin(async move {
        let second = held.iter().map(|held| second_of(held)).sum();
        let Some(found) = arc.advice() else {
            let refused =
                "the ARC is not sampled: that takes 64 MiB, and memory that nothing else lacks".to_owned();
            return AdviceList { refused: Some(refused), second, ..AdviceList::default() };
        };
        let (took, of) = found.took_ns;
        let mut list = AdviceList {
            refused: None,
            memory: found.whole.memory.iter().map(|point| point.size).nth(1).unwrap_or(0),
            second,
            one_in: found.one_in,
            cost_bytes: found.memory,
            cost_cpu: if of == 0 { 0.0 } else { took as f64 / of as f64 },
            whole: (found.whole.accesses > 0.0).then(|| outlook(&found.whole)),
            ghosts: found.ghosts,
            pools: Vec::new(),
            datasets: Vec::new(),
            problems: Vec::new(),
        };
        for (guid, expected) in &found.pools {
            if let Some(held) = held.iter().find(|held| held.view().guid() == *guid) {
                let name = held.view().name().to_owned();
                list.pools.push(Named { name, second: second_of(held), outlook: outlook(expected) });
            }
        }
        let names = found.datasets.iter().map(async |(guid, objset, expected)| {
            let held = held.iter().find(|held| held.guid() == *guid)?;
            let view = held.view();
            let name = view::dataset_name(&view, *objset);
            match silence::hear(held, Asked::AmongOthers, name).await {
                // One that was destroyed meanwhile has no name.
                Ok(name) => {
                    Some(Ok(Named { name: name?, second: second_of(held), outlook: outlook(expected) }))
                }
                Err(silent) => Some(Err(format!("cannot name the datasets of '{}': {silent}", held.name()))),
            }
        });
        // At once: a pool that does not answer keeps the names of the others from nobody.
        for named in join_all(names).await.into_iter().flatten() {
            match named {
                Ok(named) => list.datasets.push(named),
                Err(problem) if list.problems.contains(&problem) => {}
                Err(problem) => list.problems.push(problem),
            }
        }
        list.pools.sort_by(|a, b| a.name.cmp(&b.name));
        list.datasets.sort_by(|a, b| a.name.cmp(&b.name));
        list
    })
}

/// Bytes of a pool's cache devices.
fn second_of(held: &Held) -> u64 {
    let devices = held.engine().map(|engine| engine.second().devices()).unwrap_or_default();
    devices.iter().map(|device| device.size).sum()
}

fn outlook(found: &cache::Outlook) -> Outlook {
    let points = |points: &[cache::Point]| {
        points
            .iter()
            .map(|point| Point { size: point.size, hit_ratio: point.hit_ratio, error: point.error })
            .collect()
    };
    Outlook {
        accesses: found.accesses,
        hit_ratio: found.hit_ratio,
        error: found.error,
        memory: points(&found.memory),
        second: points(&found.second),
        lru: points(&found.lru),
    }
}
