//! Lists of what a pool has: what is read for them, and what they say of what cannot be read.

use super::*;
use crate::{api::DatasetQuery, view};

/// What is at and below `name`, with these properties.
fn query(name: &str, properties: &str) -> DatasetQuery {
    let (name, properties) = (Some(name.to_owned()), Some(properties.to_owned()));
    DatasetQuery { name, properties, ..DatasetQuery::default() }
}

/// No list had it, and nothing was said of it: whoever asked for it got an empty list, as if all were well.
#[tokio::test]
async fn what_nobody_can_tell_the_kind_of_is_a_problem_of_the_list() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/b@s"]).await;
    let held = world.reopened().await;
    world.break_block(&world.dataset("tank/b").await.unwrap().phys().unwrap().bp);
    for (name, has) in [("tank", &["tank", "tank/a"][..]), ("tank/b", &[]), ("tank/b@s", &[])] {
        let list = view::datasets(&held.view(), &query(name, "")).await.unwrap();
        let names: Vec<&str> = list.datasets.iter().map(|dataset| dataset.name.as_str()).collect();
        assert_eq!(names, has);
        let [problem] = &list.problems[..] else { panic!("{name}: {:?}", list.problems) };
        assert!(problem.starts_with("cannot open 'tank/b': I/O error: "), "{name}: {problem}");
    }
}
