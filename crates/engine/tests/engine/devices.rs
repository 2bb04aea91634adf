//! Devices that go offline, come back, are joined by others, replaced and stood in for: after each change the pool is
//! what OpenZFS's own checker takes for a sound pool, opens again here, and has every byte.

use std::sync::Arc;

use block::{BlockVolume, Durability};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    EngineError,
    create::{DeviceFacts, Plan, Removal, VdevSpec},
    devices::{self, NewLeaf, Onlined},
    dsl::{self, OpError, Properties, Stored},
    events::Event,
    volume::LiveVolume,
};
use ondisk::nvlist::NvList;
use pool::{
    Pool,
    vdev::{State, TxgSet, Vdev},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    commits::{cuts, replay},
    cuts::recorder::Tape,
    files,
    support::{DISK, POOL, Running, World, content, data, quiet, start_on},
};

const VOLUME: u64 = 4 << 20;

/// A pool in use: what its volume must hold.
pub(crate) struct Case {
    pub(crate) world: World,
    pub(crate) running: Option<Running>,
    twin: Vec<u8>,
    random: StdRng,
    what: String,
}

impl Case {
    pub(crate) async fn new(layout: &str, seed: u64) -> Self {
        let (world, running) = World::create(layout, 12, DISK, seed).await;
        let volume = running.volume(&format!("{POOL}/v"), VOLUME, 8192, Properties::new()).await;
        drop(volume);
        let mut this = Self {
            world,
            running: Some(running),
            twin: vec![0; VOLUME as usize],
            random: StdRng::seed_from_u64(seed),
            what: layout.to_owned(),
        };
        this.write(60).await;
        this
    }

    pub(crate) fn engine(&self) -> &engine::engine::Engine {
        &self.running.as_ref().unwrap().engine
    }

    async fn volume(&self) -> Arc<LiveVolume> {
        self.engine().volume(&format!("{POOL}/v")).await.unwrap()
    }

    /// Writes and a commit.
    pub(crate) async fn write(&mut self, count: usize) {
        let volume = self.volume().await;
        for _ in 0..count {
            let at = self.random.random_range(0..VOLUME as usize / 4096) * 4096;
            let end = self.twin.len().min(at + self.random.random_range(1..8) * 4096);
            let bytes: Vec<u8> = (at..end).map(|_| self.random.random()).collect();
            self.twin[at..end].copy_from_slice(&bytes);
            volume.write(at as u64, data(bytes), Durability::Cached).await.unwrap();
        }
        self.engine().sync().await.unwrap();
    }

    async fn check(&self) {
        assert!(content(&*self.volume().await).await == self.twin, "{}: content", self.what);
    }

    /// Another disk for the machine.
    fn disk(&mut self, size: u64) -> NewLeaf {
        let path = format!("/disks/d{}", self.world.media.len());
        let media = Arc::new(MemDisk::new(size).named(path.clone()));
        let disk = Arc::new(FaultDisk::with_write_cache(Arc::clone(&media) as Arc<dyn Disk>, 1));
        // In memory all would be over before anybody could look.
        let slow = std::time::Duration::from_millis(20);
        disk.inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)));
        self.world.media.push(media);
        self.running.as_mut().unwrap().disks.push(Arc::clone(&disk));
        NewLeaf { path, disk, is_file: true, ashift: None }
    }

    pub(crate) fn guid(&self, word: &str) -> u64 {
        let view = self.engine().view();
        // A pool knows its devices by where they were found, once it was imported.
        devices::find(&view, word).or_else(|_| devices::find(&view, &format!("/disks/{word}"))).unwrap()
    }

    fn leaf<T>(&self, guid: u64, of: impl Fn(&Vdev) -> T) -> T {
        let tree = self.engine().view().tree();
        of(tree.leaves().into_iter().find(|leaf| leaf.guid == guid).expect("a leaf"))
    }

    fn state(&self, guid: u64) -> State {
        self.leaf(guid, |vdev| vdev.state().0)
    }

    fn missed(&self, guid: u64) -> TxgSet {
        missed(&self.engine().view(), guid)
    }

    fn draw(&self) -> String {
        draw(&self.engine().view())
    }

    /// What the pool's configuration says of a device.
    fn config(&self, guid: u64) -> NvList {
        fn find(list: &NvList, guid: u64) -> Option<NvList> {
            if list.u64("guid") == Some(guid) {
                return Some(list.clone());
            }
            let children = list.nvlist_array("children").unwrap_or_default();
            children.iter().find_map(|child| find(child, guid))
        }
        let view = self.engine().view();
        let tops = view.config().nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap();
        tops.iter().find_map(|top| find(top, guid)).expect("a device of the configuration")
    }

    /// Exports at once, lets everybody judge, opens again, compares; the pool as it was found in between.
    pub(crate) async fn judge(&mut self, what: &str) -> Arc<Pool> {
        what.clone_into(&mut self.what);
        self.running.take().unwrap().export().await;
        let pool = self.world.look().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut report = pool::verify::verify(&pool, &Arc::default()).await;
        // Less redundant than it should be is what such a pool is.
        let lacks = pool
            .tree()
            .leaves()
            .iter()
            .any(|leaf| !leaf.is_readable() || !leaf.leaf.as_ref().unwrap().missed.get().is_empty());
        if lacks {
            report.thin = 0;
        }
        assert!(report.is_clean(), "{what}: {report:#?}");
        let dir = tempfile::tempdir().unwrap();
        self.world.save(dir.path());
        drop_strangers(dir.path(), &self.world);
        if !lacks {
            files::judge(dir.path());
        } else if fixtures::tool("zdb").is_some() {
            // The reference checker knows nothing of what leaves lack.
            fixtures::zdb_check(&["--degraded"], dir.path(), POOL)
                .unwrap_or_else(|why| panic!("{what}: zdb: {why}"));
        }
        self.running = Some(self.world.open().await);
        self.check().await;
        pool
    }

    /// Waits until everything is resilvered that can be.
    async fn settled(&self) {
        for _ in 0..1000 {
            let is_running = self.engine().scan_progress().is_some_and(|progress| progress.running);
            if devices::lacking(&self.engine().view().tree()).is_empty() && !is_running {
                // The devices change before the transaction group that says so is durable.
                self.engine().sync().await.unwrap();
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{}: not resilvered: {:?}", self.what, self.engine().scan_progress());
    }

    fn events(&self) -> Vec<Event> {
        self.engine().events().since(0).into_iter().map(|record| record.event.clone()).collect()
    }
}

/// The tree in words.
fn draw(pool: &Pool) -> String {
    pool.tree().tops.iter().map(vdev).collect::<Vec<_>>().join(" ")
}

fn vdev(vdev: &Vdev) -> String {
    let children: Vec<String> = vdev.children.iter().map(self::vdev).collect();
    let name = match &vdev.path {
        Some(path) => path.trim_start_matches("/disks/").to_owned(),
        None => vdev.display_name(),
    };
    if children.is_empty() { name } else { format!("{name}({})", children.join(" ")) }
}

fn missed(pool: &Pool, guid: u64) -> TxgSet {
    let tree = pool.tree();
    let leaf = tree.leaves().into_iter().find(|leaf| leaf.guid == guid).expect("a leaf");
    leaf.leaf.as_ref().unwrap().missed.get()
}

/// Images without a label are no part of the pool.
fn drop_strangers(dir: &std::path::Path, world: &World) {
    for (n, media) in world.media.iter().enumerate() {
        let label = media.snapshot(0..256 << 10);
        if label[16 << 10..].iter().all(|byte| *byte == 0) {
            std::fs::remove_file(dir.join(format!("d{n}.img"))).unwrap();
        }
    }
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, OpError>) -> String {
    result.unwrap_err().to_string()
}

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

#[tokio::test(start_paused = true)]
async fn devices_are_attached_and_detached() {
    let mut case = Case::new("d0", 2).await;
    let first = case.guid("d0");
    let new = case.disk(DISK);
    let second = case.engine().attach(first, new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 d1)");
    assert_eq!(refused(case.engine().detach(first).await), "no valid replicas");
    let found = case.judge("a second side that lacks nearly everything").await;
    assert_eq!(missed(&found, second).span().unwrap().0, 4);
    case.settled().await;
    case.judge("two sides").await;

    let new = case.disk(DISK);
    let third = case.engine().attach(case.guid("mirror-0"), new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 d1 d2)");
    case.write(10).await;
    case.engine().detach(third).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 d1)");
    case.write(10).await;
    case.judge("a third side came and went").await;
    case.engine().detach(first).await.unwrap();
    assert_eq!(case.draw(), "d1");
    assert!(case.config(second).u64("metaslab_array").is_some());
    case.write(10).await;
    case.judge("one side is left").await;
    assert_eq!(case.draw(), "d1");
    assert_eq!(refused(case.engine().detach(second).await), "only applicable to mirror and replacing vdevs");
    let attached = case.world.media[0].snapshot(0..1 << 18);
    assert!(attached.iter().all(|byte| *byte == 0), "its labels are cleared");
}

/// A file that went away is kept open, as nothing else can be known to be the same when it is back. Not for ever: it was
/// locked until the pool was closed.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_detached_while_it_is_away_is_let_go() {
    for is_back in [false, true] {
        let mut case = Case::new("mirror d0 d1", 17).await;
        let second = case.guid("d1");
        let disk = case.running.as_mut().unwrap().disks.remove(1);
        disk.vanish();
        case.engine().look().await;
        assert_eq!(case.state(second), State::Removed);
        case.engine().detach(second).await.unwrap();
        assert!(Arc::strong_count(&disk) > 1, "it might have come back");
        if is_back {
            disk.come_back();
        }
        case.engine().look().await;
        assert_eq!(Arc::strong_count(&disk), 1, "back: {is_back}");
        disk.come_back();
        let label = disk.read(0, disk::IoBuf::with_len(256 << 10)).await.unwrap();
        assert_eq!(
            label.iter().all(|byte| *byte == 0),
            is_back,
            "its labels are cleared if that can be done"
        );
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

#[tokio::test(start_paused = true)]
async fn a_raidz_leaf_is_replaced() {
    let mut case = Case::new("raidz2 d0 d1 d2 d3 d4", 3).await;
    let old = case.guid("d1");
    let new = case.disk(DISK);
    let new = case.engine().replace(old, new).await.unwrap();
    let replacing = "raidz2-0(d0 replacing-1(d1 d5) d2 d3 d4)";
    assert_eq!(case.draw(), replacing);
    // The new one, another one and the old one go away, one after the other.
    let other = case.guid("d3");
    for leaf in [new, other, old] {
        case.engine().offline(leaf, false).await.unwrap();
        case.write(10).await;
    }
    assert_eq!(refused(case.engine().offline(case.guid("d0"), false).await), "no valid replicas");
    let found = case.judge("a replacement of an absent leaf, and another away").await;
    assert_eq!((draw(&found).as_str(), missed(&found, new).span().unwrap().0), (replacing, 4));
    assert!(case.engine().online(old, None, false).await.unwrap() == Onlined::Healthy);
    case.judge("the old one is back").await;
    case.settled().await;
    case.engine().detach(new).await.unwrap();
    assert_eq!(case.draw(), "raidz2-0(d0 d1 d2 d3 d4)");
    case.engine().online(other, None, false).await.unwrap();
    case.settled().await;
    case.judge("a replacement was given up").await;

    let new = case.disk(DISK);
    let new = case.engine().replace(old, new).await.unwrap();
    let found = case.judge("another has begun").await;
    assert_eq!(draw(&found), "raidz2-0(d0 replacing-1(d1 d6) d2 d3 d4)");
    assert!(!missed(&found, new).is_empty());
    case.settled().await;
    assert_eq!(case.draw(), "raidz2-0(d0 d6 d2 d3 d4)");
    case.judge("replaced").await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_whole_takes_the_place() {
    let mut case = Case::new("mirror d0 d1 mirror d2 d3 log d4", 4).await;
    let old = case.guid("d1");
    let new = case.disk(DISK + (8 << 20));
    let new = case.engine().replace(old, new).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d0 replacing-1(d1 d5)) mirror-1(d2 d3) d4");
    case.write(20).await;
    case.settled().await;
    assert_eq!(case.draw(), "mirror-0(d0 d5) mirror-1(d2 d3) d4");
    assert!(case.missed(new).is_empty());
    let is_gone = |event: &Event| matches!(event, Event::DeviceDetached { device } if device.guid == old);
    assert!(case.events().iter().any(is_gone));
    case.write(20).await;
    case.judge("replaced").await;
    assert_eq!(case.draw(), "mirror-0(d0 d5) mirror-1(d2 d3) d4");

    // Two after the other in the same place, the first of which is not waited for.
    let (one, two) = (case.disk(DISK), case.disk(DISK));
    let old = case.guid("d0");
    let one = case.engine().replace(old, one).await.unwrap();
    case.engine().offline(one, false).await.unwrap();
    let two = case.engine().replace(one, two).await.unwrap();
    case.engine().offline(two, true).await.unwrap();
    let found = case.judge("replaced twice").await;
    assert_eq!(draw(&found), "mirror-0(replacing-0(d0 d6 d7) d5) mirror-1(d2 d3) d4");
    case.settled().await;
    assert_eq!(case.draw(), "mirror-0(d7 d5) mirror-1(d2 d3) d4");
    // The log gets a side.
    let side = case.disk(DISK);
    let log = case.guid("d4");
    case.engine().attach(log, side).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d7 d5) mirror-1(d2 d3) mirror-2(d4 d8)");
    case.write(10).await;
    case.settled().await;
    case.judge("a mirrored log").await;
}

/// The first of two successors was whole and the second given up: nobody looked, and the old device stayed until some scan
/// was over.
#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_whole_takes_the_place_when_a_later_one_is_given_up() {
    let mut case = Case::new("mirror d0 d1", 32).await;
    let (one, two) = (case.disk(DISK), case.disk(DISK));
    let one = case.engine().replace(case.guid("d0"), one).await.unwrap();
    let two = case.engine().replace(one, two).await.unwrap();
    case.engine().offline(two, false).await.unwrap();
    case.settled().await;
    assert_eq!(case.draw(), "mirror-0(replacing-0(d0 d2 d3) d1)");
    assert!(case.missed(one).is_empty());
    case.engine().detach(two).await.unwrap();
    assert_eq!(case.draw(), "mirror-0(d2 d1)");
    case.write(10).await;
    case.judge("what came later was given up").await;
}

/// Its path is how it is found again. The first of them was given it back, others were not.
#[tokio::test(start_paused = true)]
async fn a_device_has_its_path_back_when_what_took_it_is_detached() {
    let mut case = Case::new("mirror d0 d1", 31).await;
    let one = case.disk(DISK);
    let path = one.path.clone();
    let one = case.engine().replace(case.guid("d0"), one).await.unwrap();
    case.engine().offline(one, false).await.unwrap();
    let two = NewLeaf { path: path.clone(), ..case.disk(DISK) };
    let two = case.engine().replace(one, two).await.unwrap();
    let path_of = |case: &Case, guid| case.leaf(guid, |vdev| vdev.path.clone().unwrap());
    assert_eq!((path_of(&case, one), path_of(&case, two)), (format!("{path}/old"), path.clone()));
    case.engine().detach(two).await.unwrap();
    assert_eq!(path_of(&case, one), path);
}

/// Nobody takes a device online that was away when another program had the pool, and is there when we open it.
#[tokio::test(start_paused = true)]
async fn a_spare_goes_back_when_its_device_is_there_again_at_an_import() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3", 15).await;
    let (original, spare) = (case.guid("d1"), case.guid("d3"));
    let (spared, whole) = ("raidz1-0(d0 spare-1(d1 d3) d2)", "raidz1-0(d0 d1 d2)");
    // Until the pool is exported.
    case.engine().offline(original, true).await.unwrap();
    case.engine().activate_spare(original, spare).await.unwrap();
    case.settled().await;
    case.write(20).await;
    assert_eq!(case.draw(), spared);
    let found = case.judge("its device is there again").await;
    assert_eq!(draw(&found), spared);
    case.settled().await;
    case.check().await;
    assert_eq!(case.draw(), whole);
    // One that was put beside a healthy device stays there.
    case.engine().activate_spare(original, spare).await.unwrap();
    case.settled().await;
    case.judge("beside a healthy one").await;
    case.settled().await;
    assert_eq!(case.draw(), spared);
}

#[tokio::test(start_paused = true)]
async fn a_spare_stands_in_and_goes_back() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3 d4", 5).await;
    let (original, spare, other) = (case.guid("d0"), case.guid("d3"), case.guid("d4"));
    assert_eq!(refused(case.engine().offline(spare, false).await), "device is reserved as a hot spare");
    case.engine().offline(original, false).await.unwrap();
    case.write(20).await;
    case.engine().activate_spare(original, spare).await.unwrap();
    let spared = "raidz1-0(spare-0(d0 d3) d1 d2)";
    assert_eq!(case.draw(), spared);
    assert!(refused(case.engine().activate_spare(case.guid("d1"), spare).await).contains("is busy"));
    assert!(refused(case.engine().activate_spare(original, other).await).contains("spare config"));
    let found = case.judge("a spare stands in").await;
    assert_eq!((draw(&found).as_str(), found.spares().len()), (spared, 2));
    assert!(case.leaf(spare, |vdev| vdev.leaf.as_ref().unwrap().is_spare));
    case.settled().await;
    case.write(20).await;
    case.judge("a spare is whole").await;
    assert_eq!(case.draw(), spared, "its device is away");

    // The original is back, and gets what it lacks.
    case.engine().online(original, None, false).await.unwrap();
    assert_eq!((case.draw().as_str(), case.config(original).u64("unspare")), (spared, Some(1)));
    case.settled().await;
    assert_eq!(case.draw(), "raidz1-0(d0 d1 d2)");
    assert!(!case.config(original).contains("unspare"));
    let is_back = |event: &Event| matches!(event, Event::SpareReturned { spare: of } if of.guid == spare);
    assert!(case.events().iter().any(is_back));
    case.judge("the spare went back").await;
    assert_eq!(case.engine().view().spares().len(), 2);

    // Another time it stays for good.
    case.engine().activate_spare(original, spare).await.unwrap();
    case.settled().await;
    assert_eq!(case.draw(), spared, "nobody asked it to go back");
    case.engine().detach(original).await.unwrap();
    assert_eq!(case.draw(), "raidz1-0(d3 d1 d2)");
    assert_eq!(case.engine().view().spares().len(), 1);
    case.write(20).await;
    case.judge("the spare is a member").await;
    assert_eq!(case.engine().view().spares()[0].guid, other);
}

/// Since it was looked at whether it can be removed, a spare has stepped in: its labels were cleared under the pool, and what
/// was to be removed with it was gone.
#[tokio::test(start_paused = true)]
async fn a_spare_that_has_just_stepped_in_is_not_removed() {
    let mut case = Case::new("raidz d0 d1 d2 log d3 spare d4", 19).await;
    let (original, spare) = (case.guid("d0"), case.guid("d4"));
    let view = case.engine().view();
    let removals = ["d3", "d4"].map(|word| Removal::find(&view, word).unwrap());
    drop(view);
    for removal in &removals {
        removal.vacate(case.engine()).await.unwrap();
    }
    case.engine().activate_spare(original, spare).await.unwrap();
    let all = removals.clone();
    let finish =
        case.engine().run(false, move |cx| Box::pin(async move { Removal::finish_all(&all, cx).await }));
    assert_eq!(refused(finish.await), "spare d4 is in use");
    assert_eq!(case.draw(), "raidz1-0(spare-0(d0 d4) d1 d2) d3");
    assert!(removals[1].disks(&case.engine().view().tree()).is_empty(), "its labels stay");
    drop(removals);
    case.write(20).await;
    case.settled().await;
    case.judge("a spare has stepped in").await;
    assert_eq!(case.engine().view().spares().len(), 1);
}

/// In one transaction group nobody sees in the last committed state what the other has done.
#[tokio::test(start_paused = true)]
async fn a_spare_is_removed_or_stands_in_but_not_both() {
    for is_removed_first in [true, false] {
        let mut case = Case::new("raidz d0 d1 d2 spare d3", 20).await;
        let (original, spare) = (case.guid("d0"), case.guid("d3"));
        let removal = Removal::find(&case.engine().view(), "d3").unwrap();
        let leaving = removal.clone();
        let remove = case.engine().run(false, move |cx| Box::pin(async move { leaving.finish(cx).await }));
        let activate = case.engine().activate_spare(original, spare);
        let tree = if is_removed_first {
            let (removed, activated) = tokio::join!(remove, activate);
            removed.unwrap();
            assert_eq!(refused(activated), "no such device in pool");
            "raidz1-0(d0 d1 d2)"
        } else {
            let (activated, removed) = tokio::join!(activate, remove);
            activated.unwrap();
            assert_eq!(refused(removed), "spare d3 is in use");
            "raidz1-0(spare-0(d0 d3) d1 d2)"
        };
        for disk in removal.disks(&case.engine().view().tree()) {
            engine::write::labels::clear(&disk).await.unwrap();
        }
        case.write(20).await;
        case.settled().await;
        case.judge(tree).await;
        assert_eq!(case.draw(), tree);
        assert_eq!(case.engine().view().spares().is_empty(), is_removed_first);
    }
}

/// A device that was spared is replaced for good: its successor takes its place, and the spare goes back.
#[tokio::test(start_paused = true)]
async fn a_spared_device_is_replaced() {
    let mut case = Case::new("raidz d0 d1 d2 spare d3", 6).await;
    let (old, spare) = (case.guid("d0"), case.guid("d3"));
    case.engine().offline(old, false).await.unwrap();
    case.engine().activate_spare(old, spare).await.unwrap();
    let new = case.disk(DISK);
    let second = case.disk(DISK);
    let new = case.engine().replace(old, new).await.unwrap();
    let both = "raidz1-0(spare-0(replacing-0(d0 d4) d3) d1 d2)";
    assert_eq!(case.draw(), both);
    assert!(refused(case.engine().replace(spare, second).await).contains("spare config"));
    let found = case.judge("a spared device is being replaced").await;
    assert_eq!((draw(&found).as_str(), missed(&found, new).span().unwrap().0), (both, 4));
    case.settled().await;
    assert_eq!(case.draw(), "raidz1-0(d4 d1 d2)");
    case.judge("replaced, and the spare was sent back").await;
    assert_eq!(case.engine().view().spares().len(), 1);
}

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
        refused(engine.activate_spare(case.guid("d7"), case.guid("d5")).await),
        "cannot replace a log with a spare"
    );
    assert_eq!(refused(engine.activate_spare(leaf, side).await), "no such device in pool");
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
    let fails = case.engine().run(false, |_| {
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
    let facts = DeviceFacts { bytes: DISK, block_device: false, logical_sector: 512, physical_sector: 512 };
    let plan = Plan::new(&VdevSpec::parse(&["d2"]).unwrap(), &[facts], Some(12), true).unwrap();
    let disks = [gone.disk];
    let adding = case.engine().run(false, move |cx| {
        let (plan, disks) = (plan.clone(), disks.clone());
        Box::pin(async move { engine::create::add(cx, &plan, &disks).await })
    });
    assert!(refused(adding.await).starts_with("a new device cannot be labelled"));
    drop(volume);
    case.write(5).await;
    case.judge("after commands that failed").await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_of_larger_devices_grows() {
    let mut case = Case::new("mirror d0 d1", 8).await;
    let size = |case: &Case| case.engine().view().tree().tops[0].top.as_ref().unwrap().asize;
    let small = size(&case);
    for word in ["d0", "d1"] {
        let new = case.disk(2 * DISK + (3 << 20));
        case.engine().replace(case.guid(word), new).await.unwrap();
        case.settled().await;
    }
    assert_eq!((case.draw(), size(&case)), ("mirror-0(d2 d3)".to_owned(), small));
    let leaf = case.guid("d3");
    assert_eq!(case.engine().online(leaf, None, true).await.unwrap(), Onlined::Healthy);
    assert!(size(&case) > 2 * small, "{} {small}", size(&case));
    let mut pieces = Vec::new();
    let volume = case.running.as_ref().unwrap();
    let big = volume.volume(&format!("{POOL}/big"), 100 << 20, 128 << 10, Properties::new()).await;
    for at in (0..96_u64 << 20).step_by(1 << 20) {
        let bytes: Vec<u8> = (0..1 << 20).map(|_| case.random.random()).collect();
        pieces.push((at, bytes.clone()));
        big.write(at, data(bytes), Durability::Cached).await.unwrap();
    }
    case.engine().sync().await.unwrap();
    case.judge("grown and filled").await;
    let big = case.engine().volume(&format!("{POOL}/big")).await.unwrap();
    for (at, bytes) in pieces {
        let found = big.read(at, bytes.len()).await.unwrap();
        let found: Vec<u8> = found
            .iter()
            .flat_map(|segment| match segment {
                block::Segment::Data(bytes) => bytes.to_vec(),
                block::Segment::Zero(len) => vec![0; *len],
            })
            .collect();
        assert!(found == bytes, "at {at}");
    }
    let before = size(&case);
    case.engine().online(case.guid("d2"), None, true).await.unwrap();
    assert_eq!(size(&case), before, "nothing more to be had");
}

/// The size of its metaslabs is that which a device was created with, and there are only so many. Where more would have fitted
/// the pool was suspended for good, and at each import anew with `autoexpand`.
#[tokio::test(start_paused = true)]
async fn a_device_grows_as_far_as_its_metaslabs_go() {
    let most = (1 << 17) * (16 << 20);
    for by_itself in [false, true] {
        let mut case = Case::new("d0", 18).await;
        let size = |case: &Case| case.engine().view().tree().tops[0].top.as_ref().unwrap().asize;
        let small = size(&case);
        if by_itself {
            let properties = Properties::from([("autoexpand".to_owned(), Stored::Number(1))]);
            let set = case
                .engine()
                .run(false, move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }));
            set.await.unwrap();
        }
        let new = case.disk(3 << 40);
        case.engine().replace(case.guid("d0"), new).await.unwrap();
        case.settled().await;
        assert_eq!(case.draw(), "d1");
        if !by_itself {
            assert_eq!(size(&case), small);
            let leaf = case.guid("d1");
            assert_eq!(case.engine().online(leaf, None, true).await.unwrap(), Onlined::Healthy);
        }
        for _ in 0..2 {
            assert_eq!(size(&case), most, "by itself: {by_itself}");
            case.write(20).await;
            case.running.take().unwrap().export().await;
            case.running = Some(case.world.open().await);
            case.check().await;
            let leaf = case.guid("d1");
            assert_eq!(case.engine().online(leaf, None, true).await.unwrap(), Onlined::Healthy);
        }
        assert_eq!(size(&case), most, "nothing more to be had");
        case.write(5).await;
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A logical volume that was reduced by mistake: labels at its new end would lie over blocks, which are whole once it has
/// its size again.
#[tokio::test(start_paused = true)]
async fn a_device_that_shrinks_gets_no_labels_over_its_blocks() {
    let mut case = Case::new("mirror d0 d1", 13).await;
    let media = Arc::clone(&case.world.media[1]);
    let size = DISK;
    let less = size / 2;
    let (tail, end) = (media.snapshot(less..size), media.snapshot(less - (1 << 20)..less));
    media.resize(less);
    case.write(10).await;
    case.engine()
        .run(false, |cx| {
            Box::pin(async move {
                cx.config_dirty = true;
                Ok(())
            })
        })
        .await
        .unwrap();
    assert!(media.snapshot(less - (1 << 20)..less) == end, "nothing is written at its new end");
    assert_eq!(case.state(case.guid("d1")), State::CantOpen);
    case.check().await;
    media.resize(size);
    media.restore(less, &tail);
    let leaf = case.guid("d1");
    let disk = Arc::clone(&case.running.as_ref().unwrap().disks[1]);
    case.engine().online(leaf, Some(disk as Arc<dyn Disk>), false).await.unwrap();
    case.settled().await;
    assert_eq!(case.state(leaf), State::Healthy);
    case.write(5).await;
    case.judge("with its size again").await;
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

/// Spares at rest are taken when a pool is imported for writing, as its members are: locked, and fit to stand in.
#[tokio::test]
async fn spares_of_an_imported_pool_can_stand_in() {
    let (world, running) = World::create("mirror d0 d1 spare d2", 12, DISK, 12).await;
    running.export().await;
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    let syncer = files::reopen(dir.path(), 1).await.unwrap();
    let engine = engine::engine::Engine::start(syncer, quiet()).await.unwrap();
    let spare = engine.view().spares()[0].guid;
    let original = engine.view().tree().leaves()[1].guid;
    let lock = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    let taken = disk::FileDisk::open(dir.path().join("d2.img"), lock);
    assert!(taken.is_err(), "nobody else can take it");
    engine.activate_spare(original, spare).await.unwrap();
    engine.end(engine::engine::Ending::Export).await.unwrap();
    drop(engine);
    let syncer = files::reopen(dir.path(), 2).await.unwrap();
    assert_eq!(syncer.io.tree().leaves().len(), 3);
}
