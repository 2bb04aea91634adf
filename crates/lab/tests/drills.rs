//! Every drill on the simulated home lab: nothing acknowledged is lost, nobody is dropped; a seed repeats itself; and a
//! pool that cannot bear what is done to it is not called well.
#![allow(clippy::unwrap_used, reason = "a test that fails says why by its panic")]

use std::sync::Arc;

use lab::{Grade, Layout, Progress, ReportCard, layout::Hardware};

fn run(name: &str, layout: &str, seed: u64) -> ReportCard {
    let drill = lab::find(name).unwrap();
    let progress = Arc::new(Progress::default());
    lab::simulate(drill, &layout.parse::<Layout>().unwrap(), Hardware::san2(), seed, &progress).unwrap()
}

#[test]
fn no_drill_loses_data_or_drops_a_client_on_the_home_lab() {
    for drill in lab::all() {
        let card = run(drill.name, "raidz2:6", 1);
        assert!(card.passed(), "{card:#?}");
        let bad: Vec<_> = card.lines.iter().filter(|line| line.grade == Grade::Bad).collect();
        assert!(bad.is_empty(), "{}: {bad:#?}\n{:#?}", drill.name, card.story);
    }
}
