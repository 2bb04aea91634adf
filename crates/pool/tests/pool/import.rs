//! Finding and opening pools: what is missing, torn, old, elsewhere, or no pool at all.

use std::{path::PathBuf, sync::Arc};

use disk::{Disk, IoBuf, MemDisk};
use ondisk::{label::PoolState, nvlist::Value};
use pool::{
    import::{ImportError, OpenOptions, Rewind, Sources, examine, open, scan},
    status::{PoolStatus, Problem},
    vdev::State,
};

use crate::support::{
    anyhow, candidate, open_disks,
    patch::{Patch, relabel},
    walk,
};

const LABEL: usize = 256 << 10;

fn image(path: &std::path::Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn mem(image: &[u8]) -> Arc<dyn Disk> {
    Arc::new(MemDisk::from_bytes(image))
}

#[tokio::test]
async fn a_degraded_pool_is_listed_in_the_words_of_openzfs() {
    let Some(fixture) = fixtures::try_pool("missing-raidz2x6") else { return };
    let candidate = candidate(&fixture.dir).await;
    let report = examine(&candidate, 0, "").await;
    let dir = fixture.dir.display();
    let guid = candidate.guid;
    let width = format!("    {dir}/missing-raidz2x6-0.img").len();
    let row = |depth: usize, name: &str, state: &str| {
        format!("\t{:depth$}{name:w$}  {state}\n", "", w = width - depth)
    };
    let mut expected = format!(
        "   pool: praidz2x6\n     id: {guid}\n  state: DEGRADED\nstatus: One or more devices are missing from the system.\n \
         action: The pool can be imported despite missing or damaged devices.  The\n\tfault tolerance of the pool may be \
         compromised if imported.\n   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\n config:\n\n"
    );
    expected += &row(0, "praidz2x6", "DEGRADED");
    expected += &row(2, "raidz2-0", "DEGRADED");
    for (i, there) in [true, false, true, true, false, true].into_iter().enumerate() {
        let (name, state) = match there {
            true => (format!("{dir}/missing-raidz2x6-{i}.img"), "ONLINE"),
            false => (format!("img/raidz2x6-{i}.img"), "UNAVAIL  cannot open"),
        };
        expected += &row(4, &name, state);
    }
    assert_eq!(report.text(), expected);

    let pool = open(&candidate, &anyhow()).await.unwrap();
    let status = PoolStatus::of(&pool, None, 0);
    assert_eq!((status.word(), &status.problem), ("DEGRADED", &Some(Problem::MissingDevice)));
    let gone = &status.root.children[0].children[1];
    assert_eq!(gone.name, gone.guid.to_string());
    assert_eq!(gone.note.as_deref(), Some("was /dev/img/raidz2x6-1.img"));
}

#[tokio::test]
async fn too_few_devices_are_named_and_nothing_is_opened() {
    let Some(fixture) = fixtures::try_pool("mirrors2x2") else { return };
    let images = fixture.images();
    // Only one of two mirrors: the other top-level device is not even known by its label.
    let found = scan(&Sources::paths(&images[..2])).await;
    let candidate = &found.pools[0];
    let error = open(candidate, &anyhow()).await.unwrap_err();
    // Of that mirror nothing is known but that it is missing.
    assert!(matches!(&error, ImportError::MissingDevices { missing } if !missing.is_empty()), "{error}");
    let report = examine(candidate, 0, "").await;
    assert_eq!(report.status.problem, Some(Problem::BadGuidSum));
    let text = report.text();
    assert!(
        text.contains("state: UNAVAIL\nstatus: One or more devices are missing from the system."),
        "{text}"
    );
    assert!(
        text.contains("The pool cannot be imported. Attach the missing\n\tdevices and try again."),
        "{text}"
    );
    assert!(text.ends_with("their exact configuration cannot be determined.\n"), "{text}");

    let fixture = fixtures::pool("raidz1x3");
    let found = scan(&Sources::paths(&fixture.images()[..1])).await;
    let error = open(&found.pools[0], &anyhow()).await.unwrap_err();
    assert!(error.to_string().contains("raidz1-0 UNAVAIL insufficient replicas"), "{error}");
    assert_eq!(
        examine(&found.pools[0], 0, "").await.status.problem,
        Some(Problem::MissingDeviceUnreplicated)
    );
}

#[tokio::test]
async fn an_offline_device_is_not_asked_and_its_log_is_known() {
    let Some(fixture) = fixtures::try_pool("degraded-raidz2x6") else { return };
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    let status = PoolStatus::of(&pool, None, 0);
    assert_eq!(status.problem, Some(Problem::OfflineDevice));
    let tree = pool.tree();
    let leaves = tree.leaves();
    let (_, offline) =
        leaves.iter().enumerate().find(|(i, leaf)| *i == 3 && leaf.state().0 == State::Offline).unwrap();
    let missed = offline.leaf.as_ref().unwrap().missed.get();
    assert!(missed.contains(pool.uberblock().txg) && !missed.contains(4), "{missed:?}");
    assert!(walk(&pool).await.errors.is_empty());
    assert!(leaves.iter().all(|leaf| leaf.counters.get().checksum == 0), "nothing old was read");
    for line in fixture
        .manifest
        .zpool_status
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| line.starts_with("status:"))
    {
        assert!(line.contains(status.problem.as_ref().unwrap().in_status().status.lines().next().unwrap()));
    }
}

#[tokio::test]
async fn any_one_label_is_enough_and_a_torn_one_is_no_label() {
    let fixture = fixtures::pool("single");
    let whole = image(&fixture.images()[0]);
    let starts = [0, LABEL, whole.len() - 2 * LABEL, whole.len() - LABEL];
    for keep in 0..4 {
        let mut image = whole.clone();
        for (number, start) in starts.into_iter().enumerate() {
            if number != keep {
                // Half of it never reached the disk.
                image[start + LABEL / 16..start + LABEL].fill(0xa5);
            }
        }
        let pool = open_disks([mem(&image)]).await.unwrap();
        assert_eq!(pool.uberblock().txg, 61, "label {keep}");
    }
    let mut image = whole;
    starts.into_iter().for_each(|start| image[start..start + LABEL].fill(0));
    assert!(matches!(open_disks([mem(&image)]).await, Err(ImportError::NoSuchPool)));
}

#[tokio::test]
async fn going_back_reaches_older_states() {
    let fixture = fixtures::pool("manytxg");
    let mut sides = [0, 1].map(|number| image(&fixture.images()[number]));
    let newest = open_disks(sides.each_ref().map(|side| mem(side))).await.unwrap();
    for dva in newest.uberblock().rootbp.dvas() {
        let start = (4 << 20) + dva.offset as usize;
        sides.iter_mut().for_each(|side| side[start..start + 512].fill(0x77));
    }
    let found = scan(&Sources::disks(sides.each_ref().map(|side| mem(side)))).await;
    let candidate = found.find(newest.name()).unwrap();
    let error = open(candidate, &anyhow()).await.unwrap_err();
    assert!(matches!(error, ImportError::Metadata { txg, .. } if txg == newest.uberblock().txg), "{error}");

    let recovered = open(candidate, &OpenOptions { rewind: Rewind::Recover, ..anyhow() }).await.unwrap();
    assert!(recovered.uberblock().txg < newest.uberblock().txg);
    assert_eq!(recovered.newest_uberblock().txg, newest.uberblock().txg);

    let limit = recovered.uberblock().txg;
    let back = open(candidate, &OpenOptions { rewind: Rewind::To(limit), ..anyhow() }).await.unwrap();
    assert_eq!(back.uberblock().txg, limit);
    let error = open(candidate, &OpenOptions { rewind: Rewind::To(1), ..anyhow() }).await.unwrap_err();
    assert!(matches!(error, ImportError::NoUberblock(1, _)), "{error}");
}

/// The new side of a mirror, alone and still empty, had people told that the metadata is damaged, and to create the pool anew
/// from a backup, where a drive was not plugged in.
#[tokio::test]
async fn a_side_whose_metadata_cannot_be_read_alone_says_which_device_is_missing() {
    let fixture = fixtures::pool("mirror2");
    let [mut empty, mut other] = [0, 1].map(|number| image(&fixture.images()[number]));
    let end = empty.len() - 2 * LABEL;
    empty[4 << 20..end].fill(0);
    open_disks([mem(&empty), mem(&other)]).await.unwrap();
    let found = scan(&Sources::disks([mem(&empty)])).await;
    let error = open(&found.pools[0], &anyhow()).await.unwrap_err();
    let ImportError::MissingDevices { missing } = &error else { panic!("{error}") };
    assert!(missing[0].contains("UNAVAIL cannot open was "), "{error}");
    assert!(error.to_string().contains("try -F"), "it may be lost for good: {error}");
    let report = examine(&found.pools[0], 0, "").await;
    assert_eq!(report.status.word(), "UNAVAIL");
    assert_eq!(report.status.problem, Some(Problem::MissingDeviceUnreplicated));
    assert!(report.text().contains("Attach the missing\n\tdevices and try again."), "{}", report.text());
    // With all of them there it is damage.
    other[4 << 20..end].fill(0);
    let error = open_disks([mem(&empty), mem(&other)]).await.unwrap_err();
    assert!(matches!(error, ImportError::Metadata { .. }), "{error}");
}

/// What is missing may be lost for good: whoever asks for an earlier state gets it still.
#[tokio::test]
async fn going_back_goes_on_over_what_only_a_missing_device_has() {
    let fixture = fixtures::pool("mirror2");
    let [mut alone, other] = [0, 1].map(|number| image(&fixture.images()[number]));
    let newest = open_disks([mem(&alone), mem(&other)]).await.unwrap();
    for dva in newest.uberblock().rootbp.dvas() {
        let start = (4 << 20) + dva.offset as usize;
        alone[start..start + 512].fill(0x77);
    }
    let found = scan(&Sources::disks([mem(&alone)])).await;
    let error = open(&found.pools[0], &anyhow()).await.unwrap_err();
    assert!(matches!(error, ImportError::MissingDevices { .. }), "{error}");
    let back = OpenOptions { rewind: Rewind::Recover, ..anyhow() };
    let back = open(&found.pools[0], &back).await.unwrap();
    assert!(back.uberblock().txg < newest.uberblock().txg);
}

#[tokio::test]
async fn a_pool_of_another_host_is_refused_unless_forced() {
    let fixture = fixtures::pool("crash-main");
    let candidate = candidate(&fixture.dir).await;
    assert_eq!(candidate.state, PoolState::Active);
    assert_ne!(candidate.hostid, 0);
    let error = open(&candidate, &OpenOptions::default()).await.unwrap_err();
    assert!(
        error.to_string().starts_with("pool was previously in use from another system.\nLast accessed by ")
    );
    assert!(error.to_string().contains("use 'zpool import -f'"), "{error}");
    let same_host = OpenOptions { hostid: candidate.hostid, ..OpenOptions::default() };
    open(&candidate, &same_host).await.unwrap();
    open(&candidate, &anyhow()).await.unwrap();
    assert_eq!(examine(&candidate, 1, "").await.status.problem, Some(Problem::HostMismatch));
}

#[tokio::test]
async fn what_is_no_pool_is_said_to_be_none() {
    let dir = fixtures::scratch().join("no-pool");
    std::fs::create_dir_all(&dir).unwrap();
    let (empty, short) = (dir.join("empty.img"), dir.join("short.img"));
    std::fs::File::create(&empty).unwrap().set_len(80 << 20).unwrap();
    std::fs::write(&short, b"too short").unwrap();
    let absent = dir.join("absent.img");
    let found = scan(&Sources::paths([&empty, &short, &absent])).await;
    assert!(found.pools.is_empty());
    assert_eq!(found.strangers, [empty, short]);
    let problems: Vec<&PathBuf> = found.problems.iter().map(|(path, _)| path).collect();
    assert_eq!(problems, [&absent]);
    assert!(matches!(found.find("tank"), Err(ImportError::NoSuchPool)));
}

#[tokio::test]
async fn two_pools_of_one_name_are_two_pools() {
    let (one, other) = (fixtures::pool("single"), fixtures::pool("mirror2"));
    let other = rename(image(&other.images()[0]), b"pmirror2", b"psingle\0").await;
    let found = scan(&Sources::disks([mem(&image(&one.images()[0])), other])).await;
    assert_eq!(found.pools.len(), 2);
    let error = found.find("psingle").unwrap_err();
    assert!(matches!(&error, ImportError::Ambiguous { guids } if guids.len() == 2));
    for pool in &found.pools {
        assert_eq!(found.find(&pool.guid.to_string()).unwrap().guid, pool.guid);
    }
}

/// Writes another name into all labels, as a rename would.
async fn rename(mut image: Vec<u8>, from: &[u8], to: &[u8]) -> Arc<dyn Disk> {
    use codec::checksum::{Checksum, Order, embedded};
    for start in [0, LABEL, image.len() - 2 * LABEL, image.len() - LABEL] {
        let offset = start + (16 << 10);
        let region = &mut image[offset..offset + (112 << 10)];
        let at = region.windows(from.len()).position(|window| window == from).unwrap();
        // The string's length, four bytes before it; the encoding pads both names to eight bytes.
        let length = to.iter().filter(|&&byte| byte != 0).count() as u32;
        region[at - 4..at].copy_from_slice(&length.to_be_bytes());
        region[at..at + to.len()].copy_from_slice(to);
        embedded::seal(embedded::Kind::Label, region, Checksum([offset as u64, 0, 0, 0]), Order::Little)
            .unwrap();
    }
    mem(&image)
}

#[tokio::test]
async fn spares_caches_and_logs_are_known() {
    let fixture = fixtures::pool("l2arc");
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    assert_eq!(pool.l2cache().len(), 1);
    assert_eq!(pool.l2cache()[0].state().0, State::Healthy);
    let Some(fixture) = fixtures::try_pool("slog") else { return };
    let images = fixture.images();
    let found = scan(&Sources::paths(&images[..2])).await;
    let error =
        open(&found.pools[0], &OpenOptions { force: true, ..OpenOptions::default() }).await.unwrap_err();
    assert!(matches!(error, ImportError::MissingLog { .. }), "{error}");
    let pool = open(&found.pools[0], &OpenOptions { missing_log: true, ..anyhow() }).await.unwrap();
    assert!(walk(&pool).await.errors.is_empty());
}

/// It was taken for damage, with the advice to go back with `-F`, or to restore the pool from a backup.
#[tokio::test]
async fn mappings_of_removed_devices_that_take_too_much_memory_are_no_damage() {
    let Some(fixture) = fixtures::try_pool("removal") else { return };
    let candidate = candidate(&fixture.dir).await;
    let pool = open(&candidate, &anyhow()).await.unwrap();
    let tree = pool.tree();
    let mappings = tree.tops.iter().filter_map(|top| top.top.as_ref()?.mapping.get());
    let needs = mappings.map(|mapping| 24 * mapping.len() as u64).sum::<u64>();
    assert!(needs > 0);
    open(&candidate, &OpenOptions { mappings_max: needs, ..anyhow() }).await.unwrap();
    for rewind in [Rewind::Latest, Rewind::Recover] {
        let options = OpenOptions { mappings_max: needs - 1, rewind, ..anyhow() };
        let error = open(&candidate, &options).await.unwrap_err();
        assert!(matches!(error, ImportError::Unsupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("\tcom.delphix:device_removal (with that of indirect-"), "{text}");
        assert!(!text.contains("damaged") && !text.contains("-F"), "{text}");
    }
}

#[tokio::test]
async fn sizes_are_those_of_zpool_list() {
    for name in ["single", "raidz2x6", "mirrors2x2", "slog", "l2arc", "expansion", "removal", "nofeatures"] {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
        let space = pool.space().await.unwrap();
        let size: u64 = fixture.manifest.zpool_get["size"].value.parse().unwrap();
        assert_eq!(space.total.size, size, "{name}");
        assert!(space.total.allocated > 1 << 20 && space.total.allocated < size, "{name}: {space:?}");
    }
}

/// Another table of segment sizes, other weights, or metaslabs left out that nothing was written to: each is another
/// figure here than the one other software shows for the same pool.
#[tokio::test]
async fn fragmentation_is_the_figure_of_zdb() {
    /// Name of a fixture, and what `zdb -M` (2.3.2) says of each top-level device of the normal class, and of the pool.
    type Figures = (&'static str, &'static [(usize, u64)], u64);
    const FIGURES: [Figures; 12] = [
        ("ashift9-raidz1x4", &[(0, 5)], 5),
        ("crash-slog", &[(0, 5)], 5),
        ("files", &[(0, 31)], 31),
        ("gang", &[(0, 18)], 18),
        ("manytxg", &[(0, 34)], 34),
        ("mirrors2x2", &[(0, 9), (1, 10)], 9),
        ("raidz2x6", &[(0, 5)], 5),
        ("raidz3x8", &[(0, 7)], 7),
        ("removal", &[(1, 4), (2, 2)], 3),
        ("slog", &[(0, 11)], 11),
        ("volblocks", &[(0, 5)], 5),
        ("ztest-raidz1", &[(0, 45)], 45),
    ];
    for (name, tops, whole) in FIGURES {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
        let space = pool.space().await.unwrap();
        for &(id, percent) in tops {
            assert_eq!(space.tops[id].fragmentation, Some(percent), "{name} device {id}");
        }
        assert_eq!(space.total.fragmentation, Some(whole), "{name}");
    }
    // Without the feature no map has a histogram, and a metaslab without a map is no 0 either.
    let Some(fixture) = fixtures::try_pool("nofeatures") else { return };
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    assert_eq!(pool.space().await.unwrap().total.fragmentation, None);
}

#[tokio::test]
async fn allocated_bytes_are_those_zdb_counts() {
    // From `zdb -b`: "bp allocated", with nothing leaked; the log space maps are part of the sum.
    let Some(fixture) = fixtures::try_pool("ztest-raidz1") else { return };
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    assert_eq!(pool.space().await.unwrap().total.allocated, 16_121_856);
}

#[tokio::test]
async fn reads_beyond_a_device_are_refused_by_name() {
    let fixture = fixtures::pool("single");
    let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
    let mut words = *pool.uberblock().rootbp.words();
    (words[1], words[3], words[5]) = (1 << 50, 1 << 50, 1 << 50);
    let bp = ondisk::blkptr::BlkPtr::from_words(words).unwrap();
    let error = pool.io().read_block(&bp, pool::Bookmark::default()).await.unwrap_err();
    assert!(matches!(error.kind(), pool::BlockErrorKind::Malformed(_)), "{error}");
    let disk = &pool.tree().leaves()[0].leaf.as_ref().unwrap().disk().unwrap();
    assert!(disk.write(0, bytes::Bytes::from_static(b"x")).await.is_err(), "opened read-only");
    assert!(disk.read(0, IoBuf::with_len(512)).await.is_ok());
}

/// Headers of gangs were taken to be small until the pool itself had been read, so that a pool could not be opened if that lay
/// behind a large one.
#[tokio::test]
async fn a_pool_whose_root_lies_behind_a_large_gang_header_is_opened() {
    let fixture = fixtures::pool("single");
    let mut image = Patch::of(&fixture).await.root_in_gang().await;
    assert!(open_disks([mem(&image)]).await.is_err(), "nothing says that it is large");
    relabel(&mut image, |config| {
        let mut features = config.nvlist("features_for_read").unwrap().clone();
        features.set("com.klarasystems:dynamic_gang_header", Value::Boolean);
        config.set("features_for_read", features);
    });
    let pool = open_disks([mem(&image)]).await.unwrap();
    assert!(pool.uberblock().rootbp.is_gang());
}
