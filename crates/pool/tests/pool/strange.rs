//! Devices as they are found in the wild: used before, copied, cut short, among thousands of other files, or in
//! use by somebody else right now.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use codec::checksum::{Checksum, embedded};
use disk::{Disk, MemDisk};
use ondisk::{
    label::{Geometry, LABEL_BYTES, PoolState, Region, Ring},
    uberblock::{Mmp, Uberblock},
};
use pool::{
    import::{Candidate, Device, ImportError, OpenOptions, Sources, open, scan},
    status::{PoolStatus, expansion_line, removal_line},
    vdev::State,
};

use crate::support::{anyhow, candidate, walk};

const LABEL: usize = LABEL_BYTES as usize;

fn mem(image: &[u8], name: &str) -> Arc<dyn Disk> {
    Arc::new(MemDisk::from_bytes(image).named(name.to_owned()))
}

/// A directory of this test's own, empty.
fn scratch(name: &str) -> PathBuf {
    let dir = fixtures::scratch().join(format!("{name}-{}", std::process::id()));
    let _left_over = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Writes `uberblock` into the ring of label 0 as a live host would.
async fn write_uberblock(disk: &dyn Disk, uberblock: &Uberblock, ashift: u64) {
    let ring = Ring::for_ashift(ashift);
    let region: Region = ring.slot(ring.slots() - 1).unwrap();
    let mut slot = vec![0; region.bytes() as usize];
    let bytes = uberblock.encode();
    slot[..bytes.len()].copy_from_slice(&bytes);
    let start = Geometry::new(disk.info().size).unwrap().labels()[0] + region.offset();
    embedded::seal(embedded::Kind::Label, &mut slot, Checksum([start, 0, 0, 0]), codec::Order::Little)
        .unwrap();
    disk.write(start, Bytes::from(slot)).await.unwrap();
}

#[tokio::test]
async fn labels_of_a_former_pool_are_no_ghost_and_hide_nothing() {
    let (now, former) = (fixtures::pool("single"), fixtures::pool("manytxg"));
    let mut image = fs::read(&now.images()[0]).unwrap();
    // Its labels are newer by txg, and it had more of everything.
    let old = fs::read(&former.images()[0]).unwrap();
    assert_eq!(image.len(), old.len());
    let end = image.len() - 2 * LABEL;
    image[end..].copy_from_slice(&old[end..]);
    for torn in [None, Some(0), Some(LABEL)] {
        let mut image = image.clone();
        if let Some(start) = torn {
            // Only the configuration: the ring behind it is still good.
            image[start + (16 << 10)..start + (17 << 10)].fill(0xa5);
            image[end..end + LABEL].fill(0);
        }
        let found = scan(&Sources::disks([mem(&image, "reused")])).await;
        assert_eq!(found.pools.len(), 1);
        assert_eq!(found.pools[0].name, now.manifest.pool, "{torn:?}");
        let pool = open(&found.pools[0], &anyhow()).await.unwrap();
        assert_eq!(walk(&pool).await.errors, [""; 0]);
        assert_eq!(pool.newest_uberblock().txg, pool.uberblock().txg);
    }
}

#[tokio::test]
async fn a_crowded_directory_is_searched_all_the_same() {
    let fixture = fixtures::pool("mirror2");
    let dir = scratch("crowd");
    for number in 0..3000 {
        // As large as a device must be, and one in a hundred smaller.
        let bytes = if number % 100 == 0 { 64 << 10 } else { 64 << 20 };
        fs::File::create(dir.join(format!("file{number}"))).unwrap().set_len(bytes).unwrap();
    }
    fs::File::create(dir.join("empty")).unwrap();
    fs::File::create(dir.join("endless")).unwrap().set_len((8 << 40) + 4097).unwrap();
    fs::create_dir(dir.join("folder")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.join("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    for (name, target) in [
        ("loop-a", "loop-b"),
        ("loop-b", "loop-a"),
        ("self", "."),
        ("nowhere", "gone"),
        ("null", "/dev/null"),
    ] {
        std::os::unix::fs::symlink(target, dir.join(name)).unwrap();
    }
    for (image, name) in fixture.images().iter().zip(["zz0", "zz1"]) {
        std::os::unix::fs::symlink(fs::canonicalize(image).unwrap(), dir.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(dir.join("zz0"), dir.join("zz0-again")).unwrap();
    let found = tokio::time::timeout(Duration::from_secs(60), scan(&Sources::paths([&dir]))).await.unwrap();
    assert_eq!((found.pools.len(), found.problems.len(), found.notes.len()), (1, 0, 0), "{found:?}");
    assert_eq!(found.pools[0].devices.len(), 2);

    // Named one by one, each of these is worth a word.
    let named = ["fifo", "socket", "loop-a", "nowhere", "null"].map(|name| dir.join(name));
    let found = scan(&Sources::paths(named)).await;
    assert_eq!((found.pools.len(), found.problems.len()), (0, 5), "{found:?}");
    let found =
        scan(&Sources::paths(["empty", "endless", "file0", "file1"].map(|name| dir.join(name)))).await;
    assert_eq!((found.problems.len(), found.strangers.len()), (0, 4), "{found:?}");
    fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn of_two_copies_of_a_device_the_newer_is_used_and_it_is_said() {
    let fixture = fixtures::pool("single");
    let newer = fs::read(&fixture.images()[0]).unwrap();
    let mut older = newer.clone();
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    // An older copy: it lacks the newest uberblocks.
    let newest = pool.uberblock().txg;
    for start in [0, LABEL, older.len() - 2 * LABEL, older.len() - LABEL] {
        for slot in (start + (128 << 10)..start + (256 << 10)).step_by(1024) {
            if Uberblock::decode(&older[slot..slot + 1024]).is_ok_and(|ub| ub.txg + 3 > newest) {
                older[slot..slot + 1024].fill(0);
            }
        }
    }
    for disks in [[mem(&newer, "new"), mem(&older, "old")], [mem(&older, "old"), mem(&newer, "new")]] {
        let found = scan(&Sources::disks(disks)).await;
        assert_eq!((found.pools.len(), found.pools[0].devices.len()), (1, 1));
        assert_eq!(found.pools[0].uberblocks[0].txg, newest);
        assert!(found.notes[0].ends_with("using new"), "{:?}", found.notes);
    }
}

#[tokio::test]
async fn labels_without_any_uberblock_are_worth_a_note() {
    let fixture = fixtures::pool("single");
    let mut image = fs::read(&fixture.images()[0]).unwrap();
    for start in [0, LABEL, image.len() - 2 * LABEL, image.len() - LABEL] {
        image[start + LABEL / 2..start + LABEL].fill(0);
    }
    let found = scan(&Sources::disks([mem(&image, "blank")])).await;
    assert!(found.pools.is_empty());
    assert!(
        found.notes[0].contains("blank: a label of pool 'psingle', but no uberblock"),
        "{:?}",
        found.notes
    );
}

#[tokio::test]
async fn a_device_may_lack_what_no_metaslab_uses_but_no_more() {
    let fixture = fixtures::pool("single");
    let image = fs::read(&fixture.images()[0]).unwrap();
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    let tree = pool.tree();
    let top = tree.tops[0].top.as_ref().unwrap();
    let slack = (top.asize - (top.asize >> top.metaslab_shift << top.metaslab_shift)) as usize;
    assert!(slack >= LABEL);
    let short = &image[..image.len() - slack / LABEL * LABEL];
    let found = scan(&Sources::disks([mem(short, "short")])).await;
    let pool = open(&found.pools[0], &anyhow()).await.unwrap();
    assert_eq!(walk(&pool).await.errors, [""; 0]);
    assert_eq!(PoolStatus::of(&pool, None, 0).state, State::Healthy);

    let shorter = &image[..short.len() - LABEL];
    let found = scan(&Sources::disks([mem(shorter, "shorter")])).await;
    let error = open(&found.pools[0], &anyhow()).await.unwrap_err();
    assert!(matches!(error, ImportError::MissingDevices { .. }), "{error}");

    // One that grew has its last labels in the middle now; the first two are enough.
    let mut longer = image.clone();
    longer.resize(image.len() + (10 << 20), 0);
    let found = scan(&Sources::disks([mem(&longer, "longer")])).await;
    let pool = open(&found.pools[0], &anyhow()).await.unwrap();
    assert_eq!(walk(&pool).await.errors, [""; 0]);
}

/// A candidate whose uberblock says that some host writes heartbeats, and its only device.
async fn heartbeating() -> (Candidate, Arc<dyn Disk>, Uberblock, u64) {
    let fixture = fixtures::pool("single");
    let image = fs::read(&fixture.images()[0]).unwrap();
    let disk = mem(&image, "shared");
    let device = Device::read(Arc::clone(&disk)).await.unwrap().unwrap();
    let ashift = device.configs[0].1.nvlist("vdev_tree").unwrap().u64("ashift").unwrap();
    let mut uberblock = *device.uberblocks.last_key_value().unwrap().1;
    uberblock.timestamp += 1;
    // Every second, given up after ten: valid bits 1 (interval), 2 (sequence), 4 (fail intervals).
    let config = Mmp::pack(1000, 1, 10);
    uberblock.mmp = Some(Mmp { delay_ns: 1_000_000_000, config });
    write_uberblock(&*disk, &uberblock, ashift).await;
    let mut found = scan(&Sources::disks([Arc::clone(&disk)])).await;
    let mut candidate = found.pools.remove(0);
    assert!(candidate.uberblocks[0].mmp.unwrap().is_active());
    candidate.hostid = 0x1234;
    (candidate, disk, uberblock, ashift)
}

#[tokio::test(start_paused = true)]
async fn a_living_host_is_heard_before_anything_is_opened() {
    // Hosts without an id are heard, too: neither is the pool theirs, nor is it everybody's.
    for (had_it, id) in [(0x1234, 0x99), (0, 0x99), (0x1234, 0), (0, 0)] {
        let (mut candidate, disk, uberblock, ashift) = heartbeating().await;
        candidate.hostid = had_it;
        let options = OpenOptions { hostid: id, ..OpenOptions::default() };
        let beat = async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            let later = Uberblock { timestamp: uberblock.timestamp + 15, ..uberblock };
            write_uberblock(&*disk, &later, ashift).await;
        };
        let (outcome, ()) = tokio::join!(open(&candidate, &options), beat);
        let error = outcome.unwrap_err();
        assert!(matches!(error, ImportError::Active { hostid, .. } if hostid == had_it), "{error}");
        assert!(error.to_string().contains("Export the pool on the other system"), "{error}");
    }
}

/// A clone of a host remembered the id that its original had, and opened the pool under it without having listened.
#[tokio::test(start_paused = true)]
async fn a_living_host_is_heard_although_this_one_had_its_id_once() {
    let (mut candidate, disk, uberblock, ashift) = heartbeating().await;
    candidate.state = PoolState::Active;
    let options = OpenOptions { hostid: 0x99, had: Some(0x1234), ..OpenOptions::default() };
    let beat = async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        let later = Uberblock { timestamp: uberblock.timestamp + 15, ..uberblock };
        write_uberblock(&*disk, &later, ashift).await;
    };
    let (outcome, ()) = tokio::join!(open(&candidate, &options), beat);
    assert!(matches!(outcome, Err(ImportError::Active { .. })), "{outcome:?}");
    // With nobody alive it is this host's, and nothing has to be forced.
    let mut candidate = scan(&Sources::disks([disk])).await.pools.remove(0);
    (candidate.state, candidate.hostid) = (PoolState::Active, 0x1234);
    open(&candidate, &options).await.unwrap();
    let other = OpenOptions { had: Some(0x1235), ..options };
    assert!(matches!(open(&candidate, &other).await, Err(ImportError::InUse { .. })));
}

/// Where no host had an id, a pool in use was everybody's.
#[tokio::test]
async fn a_pool_in_use_without_an_id_is_its_hosts_by_name() {
    let (mut candidate, ..) = heartbeating().await;
    candidate.uberblocks[0].mmp = None;
    (candidate.state, candidate.hostid) = (PoolState::Active, 0);
    let options = |hostid, hostname: &str| OpenOptions {
        hostid,
        hostname: hostname.to_owned(),
        ..OpenOptions::default()
    };
    candidate.hostname = Some("pond".to_owned());
    for hostid in [0, 0x99] {
        open(&candidate, &options(hostid, "pond")).await.unwrap();
        let error = open(&candidate, &options(hostid, "lake")).await.unwrap_err();
        assert!(matches!(error, ImportError::InUse { hostid: 0, .. }), "{error}");
        let forced = OpenOptions { force: true, ..options(hostid, "lake") };
        open(&candidate, &forced).await.unwrap();
    }
    candidate.hostname = None;
    open(&candidate, &options(0x99, "lake")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_is_waited_for_as_long_as_it_may_be_silent() {
    let (candidate, ..) = heartbeating().await;
    let options = OpenOptions { hostid: 0x99, ..OpenOptions::default() };
    let before = tokio::time::Instant::now();
    // The fixture was exported: with no host alive it opens.
    open(&candidate, &options).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 20, "2 × 10 intervals of a second");
    // Our own pool needs no wait.
    let before = tokio::time::Instant::now();
    open(&candidate, &OpenOptions { hostid: 0x1234, ..OpenOptions::default() }).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 0);
}

/// At the start of a daemon its other pools waited for the heartbeat of one that another host had taken, though that was refused
/// whether or not it was heard; and so did whoever imported one later, each time that it was tried again.
#[tokio::test(start_paused = true)]
async fn a_pool_of_another_host_is_refused_at_once_where_nobody_asked_for_it() {
    let (mut candidate, ..) = heartbeating().await;
    let state = std::mem::replace(&mut candidate.state, PoolState::Active);
    let options = OpenOptions { hostid: 0x99, unasked: true, ..OpenOptions::default() };
    let before = tokio::time::Instant::now();
    let error = open(&candidate, &options).await.unwrap_err();
    assert!(matches!(error, ImportError::InUse { hostid: 0x1234, .. }), "{error}");
    assert_eq!(before.elapsed().as_secs(), 0);
    // One that may be opened is not opened under a living host.
    candidate.state = state;
    open(&candidate, &options).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 20);
}

#[tokio::test]
async fn what_moved_data_reads_as_in_zpool_status() {
    for name in ["expansion", "removal"] {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
        let text = fixture.manifest.zpool_status.as_ref().unwrap();
        let line =
            |label: &str, line: Option<String>| line.map_or(String::new(), |line| format!("{label}{line}\n"));
        let removal = line("remove: ", removal_line(&pool, |_| 0));
        let expansion = line("expand: ", expansion_line(&pool.tree(), |_| 0));
        assert!(removal.len() + expansion.len() > 0, "{name}");
        assert!(text.contains(&removal) && text.contains(&expansion), "{removal}{expansion} in {text}");
    }
}
