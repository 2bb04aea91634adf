//! What a daemon that starts again still has: its cache devices remember what they hold, also after SIGKILL, and what was
//! in memory is read again.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::wire::{Nbd, Wire};
use crate::support::{Daemon, Lab, ask, wait_until};

const BLOCK: usize = 16384;
const BLOCKS: usize = 2048;
/// Half of the volume fits into memory, all of it onto the cache device.
const SERVE: &str = "serve --nbd 127.0.0.1:0 --arc-max 16M --l2arc l2arc_rebuild_blocks_min_l2size=0 tank";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// What block `number` holds: nothing that compresses to less than memory has.
fn content(number: usize) -> Vec<u8> {
    let mut random = Random(number as u64 + 1);
    (0..BLOCK / 8)
        .flat_map(|_| (random.below(1 << 30) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

fn connect(daemon: &Daemon) -> Nbd {
    let url =
        daemon.urls("nbd").into_iter().find(|url| url.ends_with("tank/v")).expect("it is served").to_owned();
    let port = url.trim_start_matches("nbd://").split('/').next().unwrap().rsplit(':').next().unwrap();
    Nbd::open(port.parse().unwrap(), "tank/v").unwrap()
}

/// Reads at random and compares; the share of what was not in memory that the cache device had.
fn read(lab: &Lab, wire: &mut Nbd, random: &mut Random, reads: usize) -> f64 {
    let count = |name: &str| ask(lab, "/v1/arc")["stats"][name].as_u64().unwrap();
    let before = (count("l2_hits"), count("l2_misses"));
    for n in 0..reads {
        let number = random.below(BLOCKS);
        assert!(
            wire.read((number * BLOCK) as u64, BLOCK as u32).unwrap() == content(number),
            "block {number}"
        );
        if n % 64 == 63 {
            // So that the device can take what leaves memory.
            thread::sleep(Duration::from_millis(5));
        }
    }
    let (hits, misses) = (count("l2_hits") - before.0, count("l2_misses") - before.1);
    hits as f64 / (hits + misses).max(1) as f64
}

#[test]
fn after_kill_9_the_cache_device_serves_as_before_and_after_a_stop_memory_is_warm_again() {
    let _turn = crate::alone();
    let lab = Lab::scratch();
    if !lab.run("serve --help").stdout.contains("--arc-max") {
        eprintln!("not run: this daemon's cache cannot be made small");
        return;
    }
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 192M tank {here}/d0 cache {here}/c0")).ok();
    lab.run(&format!("zfs create -s -V {} -b 16K -o compression=off tank/v", BLOCKS * BLOCK)).ok();
    let mut daemon = lab.serve(SERVE);
    let mut wire = connect(&daemon);
    for number in 0..BLOCKS {
        wire.write((number * BLOCK) as u64, &content(number), false).unwrap();
    }
    wire.flush().unwrap();
    let mut random = Random(7);
    let begin = Instant::now();
    let before = loop {
        let share = read(&lab, &mut wire, &mut random, BLOCKS);
        if share >= 0.97 {
            break share;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "the cache device never has it all: {share:.3}");
    };
    daemon.signal("KILL");
    daemon.wait();

    let daemon = lab.serve(SERVE);
    let mut wire = connect(&daemon);
    let begin = Instant::now();
    let after = read(&lab, &mut wire, &mut random, BLOCKS);
    let took = begin.elapsed();
    let stats = ask(&lab, "/v1/arc")["stats"].clone();
    eprintln!(
        "hits of the cache device: {before:.3} before SIGKILL, {after:.3} in the first {took:?} after it"
    );
    assert!(
        took < Duration::from_secs(60) && after >= 0.95 * before,
        "{before:.3} before, {after:.3} after: {stats:#}"
    );
    assert_eq!(stats["l2_rebuild_success"], 1);
    assert_eq!(stats["l2_cksum_bad"], 0);

    // Stopped in good order it remembers what was in memory.
    drop(wire);
    let held = stats["data_size"].as_u64().unwrap();
    assert!(daemon.stop().success());
    let daemon = lab.serve(SERVE);
    let said = lab.run("prewarm -w -j tank").ok();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(["complete", "full"].contains(&said["state"].as_str().unwrap()), "{said}");
    assert!(said["memory_total"].as_u64().unwrap() > 300, "{said}");
    let warmed = ask(&lab, "/v1/arc")["stats"]["data_size"].as_u64().unwrap();
    eprintln!("{held} bytes of data in memory before, {warmed} after pre-warm: {said}");
    assert!(warmed * 100 >= held * 85, "{warmed} bytes of {held}");
    let mut wire = connect(&daemon);
    read(&lab, &mut wire, &mut random, 256);
    drop(wire);
    assert!(lab.run("prewarm --stop").ok().starts_with("tank: "));
    assert!(daemon.stop().success());

    // A file that was torn is not believed, and said to be.
    let heat = std::fs::read_dir(lab.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let heat = heat
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("heat-"))
        .unwrap();
    let bytes = std::fs::read(&heat).unwrap();
    std::fs::write(&heat, &bytes[..bytes.len() / 2]).unwrap();
    let daemon = lab.serve(SERVE);
    let mut wire = connect(&daemon);
    read(&lab, &mut wire, &mut random, 64);
    drop(wire);
    let refused = lab.run("prewarm tank").fails(1);
    assert!(refused.contains("torn or damaged"), "{refused}");
    assert!(lab.run("prewarm nosuch").fails(1).contains("no such pool"));
    wait_until(|| ask(&lab, "/v1/prewarm")["pools"][0]["state"] == "none");
    assert!(daemon.stop().success());
    assert!(lab.run("prewarm").fails(1).contains("no daemon answers"));
}
