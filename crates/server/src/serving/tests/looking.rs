//! Who only looks at a pool waits for nobody, and nobody for him.

use tokio::time::timeout;

use super::*;
use crate::ops::Destroy;

/// What is asked of `tank`, with a snapshot of `tank/a`, and changes nothing.
fn questions() -> [Operation; 5] {
    let name = || "tank/c".to_owned();
    let volume = CreateVolume { name: name(), size: 1 << 20, dry_run: true, ..CreateVolume::default() };
    [
        destroy(true),
        Operation::Holds { names: vec!["tank/a@s".to_owned()], recursive: false },
        Operation::History { pool: "tank".to_owned() },
        Operation::CreateVolume(volume),
        Operation::CreateFilesystem { name: name(), properties: Vec::new(), parents: false, dry_run: true },
    ]
}

fn destroy(dry_run: bool) -> Operation {
    Operation::Destroy(Destroy { name: "tank/a@%".to_owned(), dry_run, ..Destroy::default() })
}

async fn until(is_so: impl Fn() -> bool) {
    let soon = timeout(Duration::from_secs(10), async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    soon.await.expect("it does not take that long");
}

/// A world with a snapshot, whose devices take their time for every read, and its pool.
async fn slow() -> (World, Arc<Held>) {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/a@s"]).await;
    world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)));
    let held = world.host.find("tank").unwrap();
    (world, held)
}

/// A dry run that adds up the deadlists of thousands of snapshots kept who makes a disk or a snapshot waiting for minutes, and
/// `zfs holds` waited for every long operation.
#[tokio::test]
async fn who_only_looks_waits_for_no_turn() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/a@s"]).await;
    let _turn = world.host.turn("tank").await;
    for operation in questions() {
        assert!(operation.only_looks(), "{operation:?}");
        let answer = timeout(Duration::from_secs(10), world.run(operation)).await;
        answer.expect("it waits for nobody").unwrap();
    }
    assert!(!destroy(false).only_looks());
}

/// Once nobody held it up any more: with time-outs before they were answered, those who ask would be more and more.
#[tokio::test]
async fn a_question_ends_with_who_asks() {
    let (world, held) = slow().await;
    let before = Arc::strong_count(&held);
    let asked = world.begin(destroy(true));
    until(|| Arc::strong_count(&held) >= before + 2).await;
    asked.abort();
    until(|| Arc::strong_count(&held) <= before).await;
}

/// The devices of a pool that was exported would have stayed locked for as long as somebody looked at it.
#[tokio::test]
async fn a_question_ends_with_its_pool() {
    let (world, held) = slow().await;
    let before = Arc::strong_count(&held);
    let asked = world.begin(destroy(true));
    until(|| Arc::strong_count(&held) >= before + 2).await;
    world.host.release(held.guid());
    let failure = timeout(Duration::from_secs(10), asked).await.expect("it ends").unwrap().unwrap_err();
    assert!(failure.not_found, "{failure}");
}

/// A restart took half a minute for what the next daemon can be asked as well.
#[tokio::test]
async fn a_question_ends_with_the_daemon() {
    let (world, held) = slow().await;
    let before = Arc::strong_count(&held);
    let asked = world.begin(destroy(true));
    until(|| Arc::strong_count(&held) >= before + 2).await;
    world.host.begin_to_end();
    let failure = timeout(Duration::from_secs(10), asked).await.expect("it ends").unwrap().unwrap_err();
    assert!(failure.is_ending(), "{failure}");
    let late = world.run(destroy(true)).await.unwrap_err();
    assert!(late.is_ending(), "{late}");
}
