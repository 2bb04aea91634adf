//! A change of the devices is made or not: whether it is refused, fails, or the power goes.

use engine::{
    EngineError,
    create::{Plan, VdevSpec},
};

use super::*;
use crate::{
    commits::{cuts, replay},
    cuts::recorder::Tape,
    support::{file_of, quiet, start_on},
};

#[tokio::test(start_paused = true)]
async fn what_is_refused_changes_nothing() {
    let mut case = Case::new("raidz d0 d1 d2 mirror d3 d4 spare d5 d6 log d7", 7).await;
    let before = (case.draw(), case.engine().view().config().clone());
    let (raidz, leaf, side) = (case.guid("raidz1-0"), case.guid("d0"), case.guid("d3"));
    let good = case.disk(DISK);
    let small = case.disk(64 << 20);
    let engine = case.engine();
    let too_small = "device is too small";
    assert_eq!(refused(engine.attach(side, small.clone()).await), too_small);
    assert_eq!(refused(engine.replace(side, small.clone()).await), too_small);
    let only = "can only attach to mirrors and top-level disks";
    assert_eq!(refused(engine.attach(leaf, good.clone()).await), only);
    assert_eq!(refused(engine.attach(raidz, good.clone()).await), only);
    let coarse = NewLeaf { ashift: Some(13), ..good.clone() };
    assert!(
        refused(engine.replace(leaf, coarse).await)
            .starts_with("new device has a different optimal sector size")
    );
    assert_eq!(refused(engine.detach(leaf).await), "only applicable to mirror and replacing vdevs");
    assert_eq!(refused(engine.detach(77).await), "no such device in pool");
    assert_eq!(refused(engine.online(77, None, false).await), "no such device in pool");
    let member =
        NewLeaf { disk: case.leaf(side, |vdev| vdev.leaf.as_ref().unwrap().disk().unwrap()), ..good.clone() };
    assert!(refused(engine.replace(leaf, member).await).contains("is busy"));
    assert_eq!(
        refused(engine.activate_spare(case.guid("d7"), case.guid("d5"), None).await),
        "cannot replace a log with a spare"
    );
    assert_eq!(refused(engine.activate_spare(leaf, side, None).await), "no such device in pool");
    assert!(devices::find(&engine.view(), "nobody").is_err());
    assert_eq!((case.draw(), case.engine().view().config().clone()), before);
    // A new device that fails is not the pool's misfortune.
    case.running.as_ref().unwrap().disks.last().unwrap().vanish();
    let gone = case.disk(DISK);
    case.running.as_ref().unwrap().disks.last().unwrap().vanish();
    case.engine().attach(side, gone).await.unwrap_err();
    assert_eq!(case.draw(), before.0);
    case.write(5).await;
    case.judge("after all that was refused").await;
}

/// Of what a command meets before it has changed anything only the command hears, whatever clients wrote in the same
/// transaction group.
#[tokio::test(start_paused = true)]
async fn a_command_that_fails_before_it_changed_anything_costs_the_pool_nothing() {
    let mut case = Case::new("mirror d0 d1", 9).await;
    let volume = case.volume().await;
    case.twin[..8192].fill(7);
    volume.write(0, data(vec![7; 8192]), Durability::Cached).await.unwrap();
    let fails = case.engine().run(|_| {
        Box::pin(async { Err::<(), OpError>(EngineError::Device("out of order".to_owned()).into()) })
    });
    let error = fails.await.unwrap_err().to_string();
    assert!(error.contains("out of order"), "{error}");
    assert!(case.engine().suspended().is_none(), "{:?}", case.engine().suspended());

    // A disk that fails as it is added.
    case.twin[..8192].fill(8);
    volume.write(0, data(vec![8; 8192]), Durability::Cached).await.unwrap();
    let gone = case.disk(DISK);
    case.running.as_ref().unwrap().disks.last().unwrap().vanish();
    let facts = file_of(DISK);
    let plan = Plan::new(&VdevSpec::parse(&["d2"]).unwrap(), &[facts], Some(12), true).unwrap();
    let disks = [gone.disk];
    let adding = case.engine().run(move |cx| {
        let (plan, disks) = (plan.clone(), disks.clone());
        Box::pin(async move { engine::create::add(cx, &plan, &disks).await })
    });
    assert!(refused(adding.await).starts_with("a new device cannot be labelled"));
    drop(volume);
    case.write(5).await;
    case.judge("after commands that failed").await;
}

/// Found by reading: labels of new cache devices and spares could take for ever, and as long nothing was committed.
#[tokio::test(start_paused = true)]
async fn a_new_device_that_swallows_writes_does_not_hold_the_pool_up() {
    for what in ["cache", "spare"] {
        let mut case = Case::new("mirror d0 d1", 22).await;
        let new = case.disk(DISK);
        let hour = std::time::Duration::from_secs(3600);
        let swallows = Fault::anywhere(On::Write, Effect::Delay(hour..=hour));
        case.running.as_ref().unwrap().disks.last().unwrap().inject(swallows);
        // Who asks before hears of it while nobody waits.
        assert_eq!(refused(case.engine().try_out(&new.disk).await), "/disks/d2 does not answer");
        let facts = file_of(DISK);
        let plan = Plan::new(&VdevSpec::parse(&[what, "d2"]).unwrap(), &[facts], Some(12), true).unwrap();
        let disks = [new.disk];
        let adding = case
            .engine()
            .run(move |cx| Box::pin(async move { engine::create::add(cx, &plan, &disks).await }));
        let added = tokio::time::timeout(std::time::Duration::from_secs(120), adding).await;
        let why = refused(added.expect("it ends"));
        assert!(why.starts_with("a new device cannot be labelled"), "{what}: {why}");
        case.write(5).await;
        case.judge(&format!("after a new {what} that swallows writes")).await;
    }
}

/// The power goes at any moment while devices come and go: the pool is that before or that after, whole.
#[tokio::test(start_paused = true)]
async fn a_power_cut_leaves_one_tree_or_the_other() {
    for (layout, what) in [("d0", "attach"), ("mirror d0 d1", "detach"), ("raidz d0 d1 d2", "replace")] {
        let mut case = Case::new(layout, 9).await;
        let new = case.disk(DISK);
        drop(new);
        case.running.take().unwrap().export().await;
        let before: Vec<_> = case.world.media.clone();
        let after: Vec<_> = before.iter().map(|disk| Arc::new(disk.fork())).collect();
        let tape = Tape::new(before.len(), None);
        let disks = tape.disks(&after);
        tape.start();
        let engine = start_on(disks[..before.len() - 1].to_vec(), 3, quiet()).await.unwrap();
        let path = format!("/disks/d{}", before.len() - 1);
        let new = NewLeaf { path, disk: Arc::clone(&disks[before.len() - 1]), is_file: true, ashift: None };
        let of = |n: usize| engine.view().tree().leaves()[n].guid;
        match what {
            "attach" => drop(engine.attach(of(0), new).await.unwrap()),
            "replace" => drop(engine.replace(of(1), new).await.unwrap()),
            _ => engine.detach(of(0)).await.unwrap(),
        }
        let answered = tape.mark();
        engine.sync().await.unwrap();
        let recording = tape.stop();
        let leaves_after = engine.view().tree().leaves().len();
        drop(engine);
        let (mut random, mut seen) = (StdRng::seed_from_u64(5), [0; 2]);
        let leaves_before = before.len() - 1;
        for cut in cuts(&recording) {
            for chance in [100, 0, 50] {
                let media = replay(&before, &recording, cut, || random.random_range(0..100) < chance).await;
                let world = World::on(media);
                let what = format!("{layout}: {what}: cut after {cut}, {chance} % kept");
                let pool = world.look().await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let leaves = pool.tree().leaves().len();
                let is_new = leaves == leaves_after;
                assert!(is_new || leaves == leaves_before, "{what}: {leaves} leaves");
                assert!(is_new || cut < answered, "{what}: the change was answered");
                assert!(pool.tree().leaves().iter().all(|leaf| leaf.is_readable()), "{what}");
                seen[usize::from(is_new)] += 1;
                if chance == 50 && random.random_range(0..4) == 0 {
                    let report = pool::verify::verify(&pool, &Arc::default()).await;
                    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
                    let running = world.open().await;
                    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
                    assert!(content(&*volume).await == case.twin, "{what}");
                    running.export().await;
                }
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{layout}: {seen:?}");
    }
}
