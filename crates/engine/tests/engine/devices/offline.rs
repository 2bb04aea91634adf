//! Devices that go offline and come back: they get what they lack, and nothing else takes their place meanwhile.

use engine::devices::Onlined;

use super::*;
use crate::support::quiet;

#[tokio::test(start_paused = true)]
async fn a_side_goes_offline_and_comes_back() {
    for (layout, one, other) in [("mirror d0 d1", "d0", "d1"), ("raidz d0 d1 d2", "d2", "d0")] {
        let mut case = Case::new(layout, 1).await;
        let (one, other) = (case.guid(one), case.guid(other));
        case.engine().offline(one, false).await.unwrap();
        assert_eq!(case.state(one), State::Offline);
        assert_eq!(refused(case.engine().offline(other, false).await), "no valid replicas");
        case.write(20).await;
        assert_eq!(case.config(one).u64("offline"), Some(1), "{layout}");
        let lacks = case.missed(one);
        assert!(!lacks.is_empty());
        case.judge(&format!("{layout}, one offline")).await;
        assert_eq!(case.state(one), State::Offline, "{layout}: also after an import");
        assert!(lacks.without(&case.missed(one)).is_empty());
        case.write(20).await;
        let lacks = case.missed(one);

        assert_eq!(case.engine().online(one, None, false).await.unwrap(), Onlined::Healthy);
        assert_eq!(case.state(one), State::Healthy);
        assert!(!case.config(one).contains("offline"));
        // With it OpenZFS would take the leaf for one that has joined and needs all of a scan.
        assert!(!case.config(one).contains("resilver_txg"));
        let lacking = devices::lacking(&case.engine().view().tree());
        assert_eq!(lacking.iter().map(|(guid, _)| *guid).collect::<Vec<_>>(), [one]);
        assert_eq!(
            refused(case.engine().offline(other, false).await),
            "no valid replicas",
            "{layout}: until it has what it lacks"
        );
        let found = case.judge(&format!("{layout}, just back")).await;
        assert!(lacks.without(&missed(&found, one)).is_empty(), "{layout}");
        case.settled().await;
        assert!(case.missed(one).is_empty());
        assert!(!case.config(one).contains("DTL") && !case.config(one).contains("resilver_txg"));
        case.judge(&format!("{layout}, whole")).await;

        case.engine().offline(other, true).await.unwrap();
        case.write(5).await;
        assert!(!case.config(other).contains("offline"));
        let found = case.judge(&format!("{layout}, the other side, for a while")).await;
        let tree = found.tree();
        assert!(tree.leaves().iter().all(|leaf| leaf.is_readable()), "{layout}: forgotten");
        assert!(!missed(&found, other).is_empty(), "{layout}: but not what it missed");
    }
}

/// Lists may name more than a leaf missed. Where that makes too many of them to trust, blocks are read all the same, and
/// the leaves that do lack something once counted as whole without having been given any of it.
#[tokio::test(start_paused = true)]
async fn leaves_that_lack_something_get_it_also_where_others_seem_to_lack_it_too() {
    let layouts: [(&str, &[&str]); 3] =
        [("raidz2 d0 d1 d2 d3 d4 d5", &["d1", "d2"]), ("raidz d0 d1 d2", &["d1"]), ("mirror d0 d1", &["d1"])];
    for (seed, (layout, away)) in (60..).zip(layouts) {
        let mut case = Case::new(layout, seed).await;
        for word in away {
            case.engine().offline(case.guid(word), false).await.unwrap();
        }
        case.write(60).await;
        let seeming = case.missed(case.guid(away[0]));
        assert!(!seeming.is_empty());
        case.leaf(case.guid("d0"), |vdev| vdev.leaf.as_ref().unwrap().missed.add_all(&seeming));
        for word in away {
            case.engine().online(case.guid(word), None, false).await.unwrap();
        }
        case.settled().await;
        case.judge(layout).await;
    }
}

/// A log device goes offline although it is the only one: what lies on it goes elsewhere first.
#[tokio::test(start_paused = true)]
async fn a_log_device_goes_offline() {
    let mut case = Case::new("mirror d0 d1 log d2", 11).await;
    let log = case.guid("d2");
    let stable = Durability::Stable(block::Asked::Fua);
    let volume = case.volume().await;
    let write = async |case: &mut Case, fill: u8| {
        let volume = case.volume().await;
        for at in (0..40 * 8192).step_by(8192) {
            case.twin[at..at + 4096].fill(fill);
            volume.write(at as u64, data(vec![fill; 4096]), stable).await.unwrap();
        }
    };
    write(&mut case, 1).await;
    assert_eq!(volume.log_report().devices.iter().map(|(vdev, _)| *vdev).collect::<Vec<_>>(), [1]);
    drop(volume);
    case.engine().offline(log, false).await.unwrap();
    assert_eq!(case.state(log), State::Offline);
    write(&mut case, 2).await;
    case.check().await;
    // Not exported: the power goes.
    let running = case.running.take().unwrap();
    case.world.cut(running).await;
    case.running = Some(case.world.open().await);
    assert_eq!(case.state(log), State::Offline);
    case.check().await;
    case.engine().online(log, None, false).await.unwrap();
    case.settled().await;
    write(&mut case, 3).await;
    let report = case.volume().await.log_report();
    assert_eq!(report.devices.iter().map(|(vdev, _)| *vdev).collect::<Vec<_>>(), [1], "in use again");
    case.judge("the log is back").await;
}

/// Found by reading: a leaf that came back by itself while somebody opened what is at its old path got that in the place of
/// its disk, and nobody looked at its label: a stranger's disk was written over.
#[tokio::test(start_paused = true)]
async fn a_device_that_is_there_keeps_its_disk_whatever_it_is_taken_online_with() {
    let mut case = Case::new("mirror d0 d1", 20).await;
    let leaf = case.guid("d1");
    let stranger = Arc::new(MemDisk::new(DISK).named("/disks/stranger"));
    let disk = Arc::clone(&stranger) as Arc<dyn Disk>;
    assert_eq!(case.engine().online(leaf, Some(disk), false).await.unwrap(), Onlined::Healthy);
    case.write(20).await;
    assert!(stranger.snapshot(0..16 << 20).iter().all(|byte| *byte == 0), "it is not ours to write to");
    let path = case.leaf(leaf, |vdev| vdev.leaf.as_ref().unwrap().disk().unwrap().info().path);
    assert_eq!(path, "/disks/d1");
    case.check().await;
    case.judge("a stranger was brought").await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Pools that OpenZFS left with leaves offline or missing are continued here, and given back.
#[tokio::test]
async fn degraded_pools_of_openzfs_go_on() {
    for name in ["degraded-raidz2x6", "missing-raidz2x6", "missing-mirror2"] {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let copy = fixture.copy();
        let dir = copy.path();
        let syncer = files::reopen(dir, 3).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let pool_name = syncer.name.clone();
        let engine = engine::engine::Engine::start(syncer, quiet()).await.unwrap();
        let all: Vec<(u64, State, bool)> = engine
            .view()
            .tree()
            .leaves()
            .iter()
            .map(|leaf| (leaf.guid, leaf.state().0, leaf.leaf.as_ref().unwrap().missed.get().is_empty()))
            .collect();
        let away: Vec<u64> =
            all.iter().filter(|(_, state, _)| !state.is_readable()).map(|(guid, ..)| *guid).collect();
        assert!(!away.is_empty(), "{name}: {all:?}");
        if name.starts_with("degraded") {
            assert!(
                all.iter().any(|(_, state, whole)| *state == State::Offline && !whole),
                "{name}: {all:?}"
            );
            assert_eq!(engine.online(away[0], None, false).await.unwrap(), Onlined::Healthy);
            assert_eq!(devices::lacking(&engine.view().tree()).len(), 1);
        } else {
            let path = dir.join("new.img");
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(192 << 20).unwrap();
            let disk = disk::FileDisk::open(&path, disk::OpenOptions::default()).unwrap();
            let path = path.display().to_string();
            let new = NewLeaf { path, disk: Arc::new(disk), is_file: true, ashift: None };
            engine.replace(away[0], new).await.unwrap();
            assert_eq!(engine.online(away[0], None, false).await.unwrap(), Onlined::StillFaulted);
        }
        for zvol in &fixture.manifest.zvols {
            if zvol.name.contains('@') {
                continue;
            }
            let volume = engine.volume(&zvol.name).await.unwrap();
            let sum = <sha2::Sha256 as sha2::Digest>::digest(content(&*volume).await);
            assert_eq!(hex(&sum), zvol.sha256, "{name}: {}", zvol.name);
        }
        while !devices::lacking(&engine.view().tree()).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        engine.end(engine::engine::Ending::Export).await.unwrap();
        drop(engine);
        if fixtures::tool("zdb").is_some() {
            // What was stale is as good as new; what is missing is missing.
            let options: &[&str] = if away.len() > 1 { &["--degraded"] } else { &[] };
            fixtures::zdb_check(options, dir, &pool_name).unwrap_or_else(|why| panic!("{name}: zdb: {why}"));
        }
        let syncer = files::reopen(dir, 4).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let back = syncer.io.tree().leaves().iter().filter(|leaf| leaf.is_readable()).count();
        assert_eq!(back, all.len() - away.len() + 1, "{name}");
    }
}
