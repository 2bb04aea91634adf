//! Scans that somebody left in the middle, in pools that no daemon has open: a command goes on with them, because nobody
//! else would.

use server::{
    engine::mos::{DIRECTORY, zap},
    pool::ondisk::zap::Value,
};

use crate::support::{Lab, tank_opened};

/// A scrub of the pool is in the middle, as if whoever ran it had been interrupted.
fn leave_a_scrub(lab: &Lab) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let host = tank_opened(lab).await;
        let held = host.find("tank").unwrap();
        let written = held.engine().unwrap().run(|cx| {
            Box::pin(async move {
                // A scrub that runs, of all there is; the list of where it still has to go is made anew.
                let mut words = [0u64; 24];
                words[..8].copy_from_slice(&[1, 1, 0, 0, cx.txg, 0, cx.txg, 1_600_000_000]);
                zap::set(&mut cx.mos, DIRECTORY, "scan".into(), Value::from_u64s(&words)).await?;
                Ok(())
            })
        });
        written.await.unwrap();
        host.close().await.unwrap();
    });
}

/// It was refused because a scrub was under way, which nobody ran: neither another scrub nor `zpool wait` went on with it,
/// and each told to use the other.
#[test]
fn a_scrub_that_nobody_runs_any_more_goes_on_with_the_next_command_that_asks_for_it() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank mirror {here}/a {here}/b")).ok();
    for line in ["zpool scrub tank", "zpool scrub -w tank", "zpool wait -t scrub tank", "zpool wait tank"] {
        leave_a_scrub(&lab);
        let before = lab.run("zpool status tank").ok();
        assert!(before.contains("scrub in progress since Sun Sep 13 12:26:40 2020"), "{line}: {before}");
        lab.run(line).ok();
        let after = lab.run("zpool status tank").ok();
        assert!(after.contains("  scan: scrub repaired 0B in "), "{line}: {after}");
    }
    // With an interval each line says what is left, until nothing is.
    leave_a_scrub(&lab);
    let told = lab.run("zpool wait -H -t scrub tank 0.1").ok();
    assert!(told.ends_with("-\n"), "{told}");
    assert!(lab.run("zpool status tank").ok().contains("  scan: scrub repaired 0B in "));
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}
