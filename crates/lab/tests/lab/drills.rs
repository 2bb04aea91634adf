//! Every drill on the simulated home lab: nothing acknowledged is lost, nobody is dropped; a seed repeats itself; and a
//! pool that cannot bear what is done to it is not called well.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use lab::{
    Drill, Grade, Layout, Progress, ReportCard,
    layout::{Hardware, LogDevices},
};

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
        let lost = card.lines.iter().find(|line| line.what == "lost").unwrap();
        assert_eq!(lost.grade, Grade::Good, "{card:#?}");
        // What is counted as rolled back is not said to be there.
        let undone = card.lines.iter().find(|line| line.what == "rolled back by the power cut");
        let says_all = lost.sentence.starts_with("all of ");
        assert_eq!(says_all, undone.is_none_or(|line| line.value == "0 blocks"), "{card:#?}");
    }
}

#[test]
fn a_seed_repeats_itself() {
    let cards: Vec<_> = [5, 5, 6].map(|seed| run("log-loss", "mirror:2x2", seed)).into();
    assert_eq!((&cards[0].lines, &cards[0].story), (&cards[1].lines, &cards[1].story));
    assert_ne!(cards[0].lines, cards[2].lines);
}

#[test]
fn what_redundancy_cannot_bear_is_left_out_or_refused() {
    let card = run("double-pull", "mirror:2", 2);
    assert!(card.passed() && card.lines.iter().any(|line| line.what == "left out"), "{card:#?}");
    let (drill, layout) = (lab::find("double-pull").unwrap(), "stripe:2".parse().unwrap());
    let refused = lab::simulate(drill, &layout, Hardware::san2(), 1, &Arc::new(Progress::default()));
    assert!(refused.unwrap_err().to_string().contains("no redundancy"));
    // Before anybody waited for it.
    let drill = Drill { log: LogDevices::None, ..*lab::find("log-loss").unwrap() };
    let (layout, progress) = ("mirror:2".parse().unwrap(), Arc::new(Progress::default()));
    let refused = lab::simulate(&drill, &layout, Hardware::san2(), 1, &progress);
    assert!(refused.unwrap_err().to_string().contains("needs a pool with a log device"));
    assert_eq!(progress.done.load(Relaxed), 0);
}
