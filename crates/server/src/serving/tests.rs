//! A pool on a disk in memory that fails as told, and what is offered of it meanwhile.

use std::{net::SocketAddr, time::Duration};

use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    create::{self, CreateOptions, DeviceFacts, Plan as Layout, VdevSpec},
    dsl::{self, Properties, Stored},
    engine::{Ending, Engine, Options},
    mos::zap,
    sync::Work,
};
use iscsi::pdu::{Header, Outbox, op};
use pool::{
    cache::BlockCache,
    import::{self, Sources},
    ondisk::{
        Order,
        dsl::{DatasetPhys, dataset_flags},
    },
    zil,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};

use super::*;
use crate::{
    doors::{At, Doors},
    host::{self, Foreign, Places, Settings},
    ops::{Answer, CreateVolume, Destroy, Failure, Host, Mode, Operation, Request, ShareChange, run},
    shares::property,
    state::{Remembered, State},
};

const SIZE: u64 = 160 << 20;
const TARGET: &str = "iqn.2026-11.com.example:shelf";

/// A daemon's, without NBD and without portals.
fn serving() -> Arc<Serving> {
    serving_over(Vec::new())
}

fn serving_over(places: Vec<Place>) -> Arc<Serving> {
    let (registry, targets) = (Arc::new(nbd::Registry::new()), iscsi::Targets::new(iscsi::Config::default()));
    let exports = Arc::clone(&registry) as Arc<dyn nbd::Exports>;
    let nbd = nbd::Server::new(exports, nbd::ServeLimits::default());
    let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
    Arc::new(Serving::new(registry, nbd, targets, places, portals))
}

/// A daemon with the pool `tank`.
struct World {
    host: Arc<Host>,
    serving: Arc<Serving>,
    engine: Arc<Engine>,
    disk: Arc<FaultDisk>,
    /// What is below it.
    media: Arc<MemDisk>,
    _state: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        Self::of(1).await
    }

    /// Each seed makes another pool of this name.
    async fn of(seed: u64) -> Self {
        Self::over(seed, Vec::new()).await
    }

    /// The same with NBD as if it came in there.
    async fn over(seed: u64, places: Vec<Place>) -> Self {
        let media = Arc::new(MemDisk::new(SIZE).named("/disks/a".to_owned()));
        let disk = Arc::new(FaultDisk::new(Arc::clone(&media) as Arc<dyn Disk>, 1));
        let facts =
            DeviceFacts { bytes: SIZE, block_device: false, logical_sector: 512, physical_sector: 512 };
        let spec = VdevSpec::parse(&["/disks/a".to_owned()]).unwrap();
        let layout = Layout::new(&spec, &[facts], Some(12), true).unwrap();
        let options = CreateOptions {
            name: "tank".to_owned(),
            features: create::features("off").unwrap(),
            pool_properties: Properties::new(),
            root_properties: Properties::new(),
            hostid: 7,
            hostname: "simulation".to_owned(),
            now: 1_700_000_000,
            seed,
            // Nothing is kept: what is asked for is read.
            cache: Arc::new(BlockCache::new(0)),
            workers: 0,
            history: None,
        };
        let syncer = create::create(&layout, &[Arc::clone(&disk) as Arc<dyn Disk>], options).await.unwrap();
        let engine = Engine::start(syncer, Options::default()).await.unwrap();
        let (state, serving) = (tempfile::tempdir().unwrap(), serving_over(places));
        let places = Places::new(Vec::new(), State::at(state.path()));
        let host = Host::new(places, Mode::Daemon, Settings::default()).with_serving(Arc::clone(&serving));
        let host = Arc::new(host);
        host.keep(Held::writing(Arc::clone(&engine)));
        Self { host, serving, engine, disk, media, _state: state }
    }

    /// The same with two volumes: `tank/a` is LUN 0 of a target that was set up, `tank/b` has one of its own.
    async fn with_volumes() -> Self {
        Self::new().await.and_volumes().await
    }

    async fn and_volumes(self) -> Self {
        let world = self;
        for name in ["tank/a", "tank/b"] {
            world.volume(name).await;
        }
        let share = |change| Operation::Share { pool: "tank".to_owned(), change };
        world.run(share(ShareChange::TargetCreate { target: TARGET.to_owned() })).await.unwrap();
        let (target, volume) = (TARGET.to_owned(), "tank/a".to_owned());
        world.run(share(ShareChange::LunAdd { target, volume, lun: Some(0) })).await.unwrap();
        world
    }

    async fn run(&self, operation: Operation) -> Result<Answer, Failure> {
        run(&self.host, Request { operation, command: None, user: 0 }).await
    }

    /// Begins it.
    fn begin(&self, operation: Operation) -> JoinHandle<Result<Answer, Failure>> {
        let host = Arc::clone(&self.host);
        let request = Request { operation, command: None, user: 0 };
        tokio::spawn(async move { run(&host, request).await })
    }

    async fn volume(&self, name: &str) {
        let wish =
            CreateVolume { name: name.to_owned(), size: 1 << 20, parents: true, ..CreateVolume::default() };
        self.run(Operation::CreateVolume(wish)).await.unwrap();
    }

    async fn offer(&self, name: &str, text: &str) {
        let properties = vec![(property::OFFER.to_owned(), text.to_owned())];
        let set = Operation::Set { name: name.to_owned(), properties, force: false };
        self.run(set).await.unwrap();
    }

    /// The pool as another daemon finds it that has just opened it. This one has it no longer.
    async fn reopened(&self) -> Held {
        self.engine.end(Ending::Close).await.unwrap();
        Held::reading(self.engine.view(), "it is to be looked at")
    }

    /// The pool as it comes back after the power was cut now, where the last block of each log was damaged after that was
    /// claimed. All `volumes` have one.
    async fn with_damaged_logs(&self, volumes: &[&str]) -> Arc<Engine> {
        const LABELS: u64 = 4 << 20;
        let stable = block::Durability::Stable(block::Asked::Fua);
        let write_twice = async || {
            for name in volumes.iter().chain(volumes) {
                let volume = self.engine.volume(name).await.unwrap();
                let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
                volume.write(0, data, stable).await.unwrap();
            }
        };
        // The log of a volume begins with a transaction group, so the first are not in it.
        write_twice().await;
        self.engine.sync().await.unwrap();
        write_twice().await;
        let media = Arc::new(self.media.fork());
        let opened = async || {
            let found = import::scan(&Sources::disks([Arc::clone(&media) as Arc<dyn Disk>])).await;
            let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
            import::open(&found.pools[0], &options).await.unwrap()
        };
        let going_on = || engine::open::OpenOptions {
            rename: None,
            hostid: 7,
            hostname: "simulation".to_owned(),
            now: 1_700_000_000,
            seed: 2,
            workers: 0,
        };
        let crashed = opened().await;
        let mut last = Vec::new();
        for head in zil::heads(&crashed).await.unwrap() {
            let mut reader = zil::Reader::new(crashed.io(), head.objset, &head.header);
            let mut blocks = Vec::new();
            while let Some(zil::Found { pointer, block: Ok(_), .. }) = reader.next().await {
                blocks.push(pointer);
            }
            last.extend(blocks.pop());
        }
        let mut cx = engine::open::open(crashed, going_on()).await.unwrap();
        let (txg, now) = (cx.txg, cx.now);
        cx.sync_txg(txg, now, Work::default()).await.unwrap();
        drop(cx);
        for pointer in last {
            let place = pointer.dvas().next().unwrap();
            media.restore(LABELS + place.offset, &vec![0; pointer.psize() as usize]);
        }
        let syncer = engine::open::open(opened().await, going_on()).await.unwrap();
        Engine::start(syncer, Options::default()).await.unwrap()
    }

    /// How many reads it takes to find out which volumes there are, and with `plans` how they are offered, when the pool knows
    /// what it keeps of that.
    async fn reads(&self, held: &Held, plans: bool) -> u64 {
        let view = held.view();
        let mut before = 0;
        for _ in 0..2 {
            before = self.disk.counts().reads;
            PoolShares::read(&view).await.unwrap();
            for volume in view.dsl().await.unwrap().volumes().await.unwrap().0.iter().filter(|_| plans) {
                VolumeShare::read(volume).await.unwrap();
            }
        }
        self.disk.counts().reads - before
    }

    async fn dataset(&self, name: &str) -> Result<Dataset, LookupError> {
        let view = self.engine.view();
        view.dsl().await.unwrap().lookup(name).await
    }

    fn break_reads_after(&self, reads: u64) {
        let broken = Fault::anywhere(On::Read, Effect::Error(std::io::ErrorKind::TimedOut));
        self.disk.inject(broken.after(reads));
    }
}

/// Logs in; the connection, and the class and detail of the answer.
async fn log_in(address: SocketAddr, iqn: &str) -> (TcpStream, (u8, u8)) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut header = Header::new(op::LOGIN | 0x40);
    (header.0[1], header.0[8], header.0[13]) = (0x87, 0x80, 9);
    let mut out = Outbox::default();
    out.push(header, format!("InitiatorName=iqn.test\0TargetName={iqn}\0").as_bytes());
    stream.write_all(&out.drain()).await.unwrap();
    let mut answer = [0; 48];
    stream.read_exact(&mut answer).await.unwrap();
    let mut keys = vec![0; usize::from(u16::from_be_bytes([answer[6], answer[7]])).next_multiple_of(4)];
    stream.read_exact(&mut keys).await.unwrap();
    (stream, (answer[36], answer[37]))
}

async fn listen(targets: &Arc<iscsi::Targets>) -> SocketAddr {
    let server = iscsi::Server::bind(Arc::clone(targets), &[([127, 0, 0, 1], 0).into()]).await.unwrap();
    let address = server.local_addrs().unwrap()[0];
    tokio::spawn(server.run(std::future::pending()));
    address
}

/// What LUN 0 tells a host that is logged in before it is ready: additional sense codes.
async fn told(stream: &mut TcpStream) -> Vec<(u8, u8)> {
    let mut told = Vec::new();
    loop {
        // TEST UNIT READY
        let mut command = Header::new(op::COMMAND | 0x40);
        command.0[1] = 0x80;
        command.set(16, 1);
        let mut out = Outbox::default();
        out.push(command, &[]);
        stream.write_all(&out.drain()).await.unwrap();
        let mut answer = [0; 48];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[0], op::RESPONSE);
        let mut sense = vec![0; usize::from(answer[7]).next_multiple_of(4)];
        stream.read_exact(&mut sense).await.unwrap();
        if answer[3] == 0 {
            return told;
        }
        // Behind its length.
        told.push((sense[2 + 12], sense[2 + 13]));
    }
}

fn target(serving: &Serving, iqn: &str) -> Option<Arc<Target>> {
    serving.targets.list().into_iter().find(|target| target.iqn() == iqn)
}

/// Hosts found it without the disk that they had there, and took that for removed.
#[tokio::test]
async fn a_target_that_was_set_up_takes_logins_when_its_disks_are_there() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    let address = listen(&serving.targets).await;
    let shares = PoolShares::read(&held.view()).await.unwrap();
    assert_eq!(serving.follow_targets(&held, &shares), Vec::<String>::new());
    assert_eq!(log_in(address, TARGET).await.1, (3, 1), "try again");
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert_eq!(log_in(address, TARGET).await.1, (0, 0));
    // Those that are in do not suffer when there is more to come.
    serving.follow_targets(&held, &shares);
    assert_eq!(log_in(address, TARGET).await.1, (0, 0));
}

/// Until all disks had come, the address was in the first group: hosts were told that there is no such target, and gave it up, or
/// were strangers to the reservations that they had made in the second.
#[tokio::test(start_paused = true)]
async fn portals_of_a_pool_are_in_their_groups_before_its_targets_are_there() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::with_volumes().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let portal = ShareChange::PortalAdd { address: free, group: 2, force: false };
    world.run(Operation::Share { pool: "tank".to_owned(), change: portal }).await.unwrap();
    world.serving.portals.stop().await;
    let held = Arc::new(world.reopened().await);
    let (listing, plans) = (world.reads(&held, false).await, world.reads(&held, true).await);
    // A target that was set up is there then, and one of a volume's own takes logins as soon as that is read.
    for reads in [listing, plans] {
        let serving = serving();
        world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)).after(reads).times(1));
        let following = tokio::spawn({
            let (serving, held) = (Arc::clone(&serving), Arc::clone(&held));
            async move { serving.follow(&held).await }
        });
        tokio::time::sleep(LONG / 2).await;
        assert!(!following.is_finished(), "it hangs, at {reads}");
        assert!(target(&serving, TARGET).is_some_and(|target| !target.is_ready()), "at {reads}");
        assert_eq!(serving.targets.group_of(free), 2, "at {reads}");
        assert_eq!(following.await.unwrap(), Vec::<String>::new(), "at {reads}");
        serving.portals.stop().await;
        world.disk.heal();
    }
}

/// Its hosts were told for half a minute that there is no such disk, or no such target, and gave it up.
#[tokio::test]
async fn a_volume_that_cannot_be_read_at_first_is_not_taken_for_removed() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    let own = |name: &str| iscsi::iqn::for_dataset(name);
    let plans = world.reads(&held, true).await;
    world.break_reads_after(plans);
    serving.follow(&held).await;
    let unit = || target(&serving, TARGET).unwrap().unit(0).expect("a disk");
    let before = unit();
    assert!(before.is_coming() && target(&serving, TARGET).unwrap().is_ready());
    assert!(target(&serving, &own("tank/b")).is_none() && serving.is_awaited(&own("tank/b")));
    assert!(!serving.is_awaited(&own("tank/c")) && !serving.is_awaited("iqn.2026-11.com.example:other"));
    let refused = serving.list().served;
    assert!(refused.len() == 2 && refused.iter().all(|served| served.refused.is_some()), "{refused:?}");
    serving.follow(&held).await;
    assert!(Arc::ptr_eq(&unit(), &before), "its place is kept");
    world.disk.heal();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!unit().is_coming() && unit().naa() == before.naa());
    assert!(target(&serving, &own("tank/b")).is_some() && !serving.is_awaited(&own("tank/b")));
    // Of a disk that is there, nothing changes.
    let now = unit();
    world.break_reads_after(plans);
    serving.follow(&held).await;
    assert!(Arc::ptr_eq(&unit(), &now));
}

/// Its hosts were told that there is no such disk, or no such target, and gave one up for good that comes back when it is
/// rolled back.
#[tokio::test]
async fn a_volume_whose_log_cannot_be_replayed_is_not_taken_for_removed() {
    let world = World::with_volumes().await;
    let engine = world.with_damaged_logs(&["tank/a", "tank/b"]).await;
    assert_eq!(engine.replayed().failed.len(), 2, "{:?}", engine.replayed());
    let held = Held::writing(Arc::clone(&engine));
    let (serving, own) = (serving(), iscsi::iqn::for_dataset("tank/b"));
    serving.follow(&held).await;
    let unit = || target(&serving, TARGET).unwrap().unit(0).expect("a disk");
    let before = unit();
    assert!(before.is_coming() && target(&serving, TARGET).unwrap().is_ready());
    assert!(target(&serving, &own).is_none() && serving.is_awaited(&own));
    let served = serving.list().served;
    let is_told = |served: &Served| served.refused.as_ref().is_some_and(|why| why.contains("be replayed"));
    assert!(served.len() == 2 && served.iter().all(is_told), "{served:?}");
    for name in ["tank/a", "tank/b"] {
        let snapshot = format!("{name}@s");
        let names = vec![snapshot.clone()];
        let taken = engine.run(true, move |cx| {
            Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
        });
        taken.await.unwrap();
        let back = engine.run(false, move |cx| Box::pin(async move { dsl::rollback(cx, &snapshot).await }));
        back.await.unwrap();
    }
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!unit().is_coming() && unit().naa() == before.naa());
    assert!(target(&serving, &own).is_some() && !serving.is_awaited(&own));
    engine.end(Ending::Close).await.unwrap();
}

/// Where the list of volumes could not be read to its end, hosts found their targets without the disks that were becoming
/// ready there, and without snapshots.
#[tokio::test]
async fn a_list_that_is_not_complete_takes_away_what_was_destroyed_and_nothing_else() {
    let world = World::with_volumes().await;
    let nothing = BTreeSet::new();
    let held = world.host.find("tank").unwrap();
    world.engine.run(false, |cx| dsl::destroy_head(cx, "tank/b")).await.unwrap();
    while world.engine.open_volumes().len() > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.serving.follow_names(&held, &nothing, false);
    let names: Vec<String> = world.serving.entries.lock().keys().cloned().collect();
    assert_eq!(names, ["tank/a"]);
    drop(held);
    // Of a pool that is only read, nothing is open as a volume is that is written to.
    let held = world.reopened().await;
    let serving = serving();
    let unit = || target(&serving, TARGET).unwrap().unit(0);
    for is_coming in [true, false] {
        if is_coming {
            world.break_reads_after(world.reads(&held, true).await);
        }
        serving.follow(&held).await;
        world.disk.heal();
        let before = unit().expect("a disk");
        assert_eq!(before.is_coming(), is_coming);
        serving.follow_names(&held, &nothing, false);
        assert!(unit().is_some_and(|now| Arc::ptr_eq(&now, &before)), "{is_coming}");
    }
    serving.follow_names(&held, &nothing, true);
    assert!(unit().is_none() && serving.entries.lock().is_empty());
}

/// Hosts were told to try again until each of some ten thousand snapshots had been opened, those that nobody gets too, and had
/// given up their disks by then.
#[tokio::test(start_paused = true)]
async fn volumes_do_not_wait_for_snapshots_and_those_that_nobody_gets_are_not_opened() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::with_volumes().await;
    let snapshots = ["tank/a@s", "tank/b@s"];
    let names = snapshots.map(str::to_owned).to_vec();
    world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    let held = Arc::new(world.reopened().await);
    let plans = world.reads(&held, true).await;
    let heads = ["tank/a", "tank/b"];
    let (volumes, _) = held.view().dsl().await.unwrap().volumes().await.unwrap();
    let mut opened = 0;
    // The first time the pool learns what it keeps of that.
    for _ in 0..2 {
        let before = world.disk.counts().reads;
        for volume in volumes.iter().filter(|volume| heads.contains(&volume.name())) {
            volume.open_volume().await.unwrap();
        }
        opened = world.disk.counts().reads - before;
    }
    let serving = serving();
    let (hang, at) = (Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)), plans + opened);
    world.disk.inject(hang.after(at).times(1));
    let following = tokio::spawn({
        let (serving, held) = (Arc::clone(&serving), Arc::clone(&held));
        async move { serving.follow(&held).await }
    });
    tokio::time::sleep(LONG / 2).await;
    assert!(!following.is_finished(), "a snapshot hangs");
    assert!(target(&serving, TARGET).is_some_and(|target| target.is_ready()));
    assert!(target(&serving, &iscsi::iqn::for_dataset("tank/b")).is_some());
    assert_eq!(following.await.unwrap(), Vec::<String>::new());
    // The first is of a volume of whose disks somebody decides.
    let is_open = |name: &str| serving.entries.lock().get(name).map(|entry| entry.opened.is_some());
    assert_eq!(snapshots.map(is_open), [Some(false), Some(true)]);
    assert!(target(&serving, &iscsi::iqn::for_dataset("tank/b@s")).is_some());
}

/// Nobody knew of its targets when its properties could not be read, and their hosts were told so.
#[tokio::test]
async fn a_pool_that_cannot_be_read_at_first_has_targets_that_may_come() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    world.break_reads_after(0);
    assert_eq!(serving.follow(&held).await.len(), 1);
    for (iqn, may_come) in
        [(TARGET, true), ("iqn.2026-11.io.millpond:tank:b", true), ("iqn.2026-11.io.millpond:tanks:b", false)]
    {
        assert_eq!(serving.is_awaited(iqn), may_come, "{iqn}");
    }
    world.disk.heal();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(!serving.is_awaited(TARGET) && target(&serving, TARGET).is_some());
}

/// Because a number led nowhere nothing of the pool was offered after the next start, and no share could be changed.
#[tokio::test]
async fn a_boot_file_system_that_is_not_there_is_in_no_volumes_way() {
    let world = World::with_volumes().await;
    let gone = Properties::from([("bootfs".to_owned(), Stored::Number(1 << 20))]);
    let set = world.engine.run(false, move |cx| Box::pin(async move { dsl::set_pool(cx, &gone).await }));
    set.await.unwrap();
    let held = world.reopened().await;
    let serving = serving();
    assert_eq!(serving.follow(&held).await, Vec::<String>::new());
    assert!(target(&serving, TARGET).unwrap().unit(0).is_some_and(|unit| !unit.is_coming()));
    let properties = held.view().properties().await.unwrap();
    let shown = properties.get("bootfs").map(|property| property.value.clone());
    assert_eq!(shown, Some(pool::props::Value::Text("-".to_owned())));
}

/// A volume whose settings cannot be read may be any disk: once, its hosts wait for it. They do not for ever.
#[tokio::test]
async fn disks_wait_for_one_whose_settings_cannot_be_read_until_it_was_tried_again() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let (serving, kept) = (serving(), tempfile::tempdir().unwrap());
    let host =
        Host::new(Places::new(Vec::new(), State::at(kept.path())), Mode::ReadOnly, Settings::default());
    let host = Arc::new(host.with_serving(Arc::clone(&serving)));
    let held = host.keep(held);
    let listing = world.reads(&held, false).await;
    world.break_reads_after(listing);
    serving.follow(&held).await;
    let shelf = target(&serving, TARGET).unwrap();
    assert!(!shelf.is_ready() && shelf.unit(0).is_none());
    let own = iscsi::iqn::for_dataset("tank/b");
    assert!(serving.is_awaited(&own));
    // What looks at the device because of its errors is done before reads are counted again.
    let mut seen = 0;
    while seen != world.disk.counts().reads {
        seen = world.disk.counts().reads;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.disk.heal();
    let listing = world.reads(&held, false).await;
    world.break_reads_after(listing);
    let task = tokio::spawn(Arc::clone(&serving).try_again(Arc::downgrade(&host)));
    serving.again.hurry(None);
    for _ in 0..200 {
        if shelf.is_ready() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(shelf.is_ready());
    assert!(serving.is_awaited(&own), "whom nobody keeps waiting by it");
    task.abort();
}

/// What hung on a suspended pool went on when that was given up, and offered it again.
#[tokio::test(start_paused = true)]
async fn what_was_about_to_be_offered_when_a_pool_was_given_up_is_not() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::with_volumes().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let portal = ShareChange::PortalAdd { address: free, group: 1, force: false };
    world.run(Operation::Share { pool: "tank".to_owned(), change: portal }).await.unwrap();
    world.serving.portals.stop().await;
    let held = Arc::new(world.reopened().await);
    let plans = world.reads(&held, true).await;
    for reads in [0, plans, plans + 1] {
        let serving = serving();
        world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)).after(reads).times(1));
        let held = Held::reading(held.view(), "it is to be looked at");
        let following = tokio::spawn({
            let (serving, held) = (Arc::clone(&serving), held.clone());
            async move { serving.follow(&held).await }
        });
        tokio::time::sleep(LONG / 2).await;
        assert!(!following.is_finished(), "it hangs, at {reads}");
        serving.withdraw_pool(&held).await;
        following.await.unwrap();
        assert!(serving.entries.lock().is_empty(), "at {reads}");
        assert!(serving.targets.list().is_empty() && serving.portals.list().is_empty(), "at {reads}");
        assert!(!serving.is_awaited(TARGET));
        world.disk.heal();
    }
}

/// Whoever had hung in a read of the old pool took away what the new one of its name offered, and nobody put it right.
#[tokio::test(start_paused = true)]
async fn what_hung_on_a_pool_that_was_given_up_leaves_the_next_of_its_name_alone() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let (old, new) = (World::with_volumes().await, World::of(2).await.and_volumes().await);
    let (old_held, new_held) = (old.reopened().await, new.reopened().await);
    assert_ne!(old_held.guid(), new_held.guid());
    let (listing, plans) = (old.reads(&old_held, false).await, old.reads(&old_held, true).await);
    for reads in [0, 1, listing, plans - 1, plans, plans + 1] {
        let serving = serving();
        old.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)).after(reads).times(1));
        let fresh = |held: &Held| Held::reading(held.view(), "it is to be looked at");
        let (old_held, new_held) = (fresh(&old_held), fresh(&new_held));
        let following = tokio::spawn({
            let (serving, held) = (Arc::clone(&serving), old_held.clone());
            async move { serving.follow(&held).await }
        });
        tokio::time::sleep(LONG / 2).await;
        serving.withdraw_pool(&old_held).await;
        assert_eq!(serving.follow(&new_held).await, Vec::<String>::new());
        assert!(!following.is_finished(), "it hangs, at {reads}");
        let offered = || -> Vec<(String, Arc<LogicalUnit>)> {
            let targets = serving.targets.list();
            targets.iter().map(|target| (target.iqn().to_owned(), target.unit(0).expect("a disk"))).collect()
        };
        let before = offered();
        following.await.unwrap();
        let after = offered();
        assert_eq!((before.len(), after.len(), serving.entries.lock().len()), (2, 2, 2), "at {reads}");
        let same = before.iter().zip(&after).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1));
        assert!(same, "at {reads}");
        old.disk.heal();
    }
}

/// Hosts were told that an operator had taken their targets away, until the pool had been followed: they give them up then.
#[tokio::test]
async fn targets_of_a_pool_that_is_imported_again_are_awaited_whatever_became_of_them_before() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    let address = listen(&serving.targets).await;
    let asked = Arc::downgrade(&serving);
    serving
        .targets
        .set_awaited(move |target| asked.upgrade().is_some_and(|serving| serving.is_awaited(target)));
    let own = iscsi::iqn::for_dataset("tank/b");
    let status = async || [log_in(address, TARGET).await.1, log_in(address, &own).await.1];
    serving.follow(&held).await;
    assert_eq!(status().await, [(0, 0); 2]);
    serving.withdraw_pool(&held).await;
    serving.forget(held.guid());
    assert_eq!(status().await, [(2, 4); 2], "removed");
    let next = Held::reading(held.view(), "it is to be looked at");
    serving.expect(&next);
    assert_eq!(status().await, [(3, 1); 2], "try again");
    // Who was about to follow it when it was given up says nothing of what it is now.
    world.break_reads_after(0);
    serving.follow(&next).await;
    world.disk.heal();
    serving.follow(&held).await;
    assert!(serving.again.next().is_some(), "it is tried again");
    assert_eq!(status().await, [(3, 1); 2]);
    serving.follow(&next).await;
    assert_eq!((status().await, serving.again.next()), ([(0, 0); 2], None));
}

/// Its disks were becoming ready until a quarter of an hour after it was well.
#[tokio::test(start_paused = true)]
async fn a_pool_whose_turn_is_taken_counts_as_not_tried_and_one_whose_errors_are_cleared_is_due() {
    let world = World::with_volumes().await;
    let held = world.host.find("tank").unwrap();
    let again = &world.serving.again;
    again.note(&held, false, &[]);
    let turn = world.host.turn("tank").await;
    world.serving.try_pool(&world.host, held.guid(), &[]).await;
    assert!(!again.has_tried(held.guid()));
    drop(turn);
    assert!(again.next().is_some_and(|at| at > tokio::time::Instant::now()));
    world.run(Operation::PoolClear { pool: "tank".to_owned(), device: None }).await.unwrap();
    assert!(again.next().is_some_and(|at| at <= tokio::time::Instant::now()));
    world.serving.try_pool(&world.host, held.guid(), &[]).await;
    assert_eq!(again.next(), None, "all of it is offered");
}

/// Its host found no write cache, and took for stable what was written before and was not.
#[tokio::test(start_paused = true)]
async fn a_disk_without_write_cache_comes_when_what_it_holds_is_stable() {
    let world = World::with_volumes().await;
    let properties = vec![(property::WRITE_CACHE.to_owned(), "off".to_owned())];
    world.run(Operation::Set { name: "tank/a".to_owned(), properties, force: false }).await.unwrap();
    let volume = world.engine.volume("tank/a").await.unwrap();
    world.disk.inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::TimedOut)));
    let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    let (serving, held) = (serving(), world.host.find("tank").unwrap());
    let following = tokio::spawn({
        let serving = Arc::clone(&serving);
        async move { serving.follow(&held).await }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!following.is_finished(), "it waits for the flush");
    world.engine.abandon().await;
    following.await.unwrap();
    let refused = serving.entries.lock()["tank/a"].served.refused.clone();
    assert!(refused.is_some_and(|why| why.contains("what was written before is not stable")));
    assert!(target(&serving, TARGET).unwrap().unit(0).expect("its place").is_coming());
}

/// `-r` cleared what the disk of a guest was offered by, and `-S` took back what a stream had brought: without a question.
#[tokio::test]
async fn to_inherit_below_or_from_a_stream_asks_about_clients_too() {
    const NAME: &str = "tank/a/v";
    let world = World::new().await;
    world.volume(NAME).await;
    world.offer("tank", "none").await;
    world.offer(NAME, "iscsi").await;
    let iqn = iscsi::iqn::for_dataset(NAME);
    let address = listen(&world.serving.targets).await;
    let (_guest, status) = log_in(address, &iqn).await;
    assert_eq!(status, (0, 0));
    let inherit = async |name: &str, recursive: bool, received: bool, force: bool| {
        let (name, property) = (name.to_owned(), property::OFFER.to_owned());
        world.run(Operation::Inherit { name, property, recursive, received, force }).await
    };
    let is_refused = |answer: Result<Answer, Failure>| {
        answer.is_err_and(|why| why.message.contains("1 client uses tank/a/v"))
    };
    assert!(is_refused(inherit("tank/a", true, false, false).await));
    inherit("tank/a", false, false, false).await.expect("it does not reach it");
    // Everything as if nobody had said anything: it is offered then.
    inherit("tank", false, false, false).await.unwrap();
    inherit("tank", true, false, false).await.unwrap();
    let brought =
        Properties::from([("org.millpond:offer$recvd".to_owned(), Stored::Text("none".to_owned()))]);
    world.offer(NAME, "iscsi").await;
    let set = world.engine.run(false, move |cx| Box::pin(async move { dsl::set(cx, NAME, &brought).await }));
    set.await.unwrap();
    inherit("tank/a", false, true, false).await.expect("nothing was brought there");
    for (name, recursive) in [(NAME, false), ("tank/a", true)] {
        assert!(is_refused(inherit(name, recursive, true, false).await), "{name}");
    }
    assert!(target(&world.serving, &iqn).is_some());
    inherit("tank/a", true, true, true).await.unwrap();
    assert!(target(&world.serving, &iqn).is_none());
}

/// They have not the LUN of the volume that they come from, and were offered to everybody: all that it held when the snapshot
/// was made.
#[tokio::test]
async fn what_is_cloned_or_promoted_is_no_more_open_than_the_volume_it_comes_from() {
    let world = World::with_volumes().await;
    let share = |change| Operation::Share { pool: "tank".to_owned(), change };
    let allow = ShareChange::Access {
        target: Some(TARGET.to_owned()),
        allow: true,
        initiators: vec!["iqn.2026-11.test:client".to_owned()],
        networks: Vec::new(),
    };
    world.run(share(allow)).await.unwrap();
    let names = vec!["tank/a@s".to_owned(), "tank/b@s".to_owned()];
    world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    let clone = async |snapshot: &str, name: &str, offer: Option<&str>| {
        let properties = offer.map(|offer| (property::OFFER.to_owned(), offer.to_owned()));
        let properties = properties.into_iter().collect();
        let (snapshot, name) = (snapshot.to_owned(), name.to_owned());
        let said = world.run(Operation::Clone { snapshot, name, properties, parents: false }).await.unwrap();
        said.warnings.concat()
    };
    let is_open = |name: &str| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some();
    let said = clone("tank/a@s", "tank/closed", None).await;
    assert!(said.contains("closed is offered to nobody") && said.contains("offer= tank/closed"), "{said}");
    assert!(!is_open("tank/closed") && !is_open("tank/a@s"));
    assert_eq!(clone("tank/b@s", "tank/plain", None).await, "");
    assert!(is_open("tank/plain") && is_open("tank/b@s"));
    // Somebody says so, for it or for where it is; what is said of all of the pool is said of no clone.
    assert_eq!(clone("tank/a@s", "tank/open", Some("all")).await, "");
    world.volume("tank/lab/x").await;
    world.offer("tank/lab", "iscsi").await;
    assert_eq!(clone("tank/a@s", "tank/lab/open", None).await, "");
    world.offer("tank", "iscsi").await;
    assert_ne!(clone("tank/a@s", "tank/closed2", None).await, "");
    assert_eq!(
        ["tank/open", "tank/lab/open", "tank/closed", "tank/closed2"].map(is_open),
        [true, true, false, false]
    );
    // A LUN of its own it can have.
    let (target_name, volume) = (TARGET.to_owned(), "tank/closed".to_owned());
    world.run(share(ShareChange::LunAdd { target: target_name, volume, lun: Some(1) })).await.unwrap();
    assert!(target(&world.serving, TARGET).unwrap().unit(1).is_some());

    let promote = async |name: &str| {
        let answer = world.run(Operation::Promote { name: name.to_owned() }).await.unwrap();
        answer.warnings.concat()
    };
    let said = promote("tank/open").await;
    assert!(said.contains("tank/open@s is offered to nobody"), "{said}");
    assert!(is_open("tank/open") && !is_open("tank/open@s"));
    assert!(target(&world.serving, TARGET).unwrap().unit(0).is_some(), "what it came from is a LUN still");
    assert_eq!(promote("tank/plain").await, "");
    assert!(is_open("tank/plain@s"));
}

/// A volume that nobody was to have because of an `offer` above it was open to everybody as soon as it was renamed.
#[tokio::test]
async fn what_is_renamed_is_no_more_open_than_it_was() {
    let world = World::new().await;
    for name in ["tank/lab/x", "tank/lab/sub/y", "tank/lab/z", "tank/lab/all", "tank/dark/v", "tank/open/o"] {
        world.volume(name).await;
    }
    world.offer("tank/lab", "none").await;
    world.offer("tank/lab/all", "all").await;
    world.offer("tank/open", "iscsi").await;
    let properties = vec![("volmode".to_owned(), "none".to_owned())];
    world.run(Operation::Set { name: "tank/dark".to_owned(), properties, force: false }).await.unwrap();
    let rename = async |from: &str, to: &str| {
        let (from, to) = (from.to_owned(), to.to_owned());
        let rename = Operation::Rename { from, to, parents: true, recursive: false };
        world.run(rename).await.unwrap().warnings.concat()
    };
    let is_open = |name: &str| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some();
    // What is set on what is renamed, or below it, goes with it.
    assert_eq!(rename("tank/lab/all", "tank/all").await, "");
    assert_eq!(rename("tank/lab", "tank/more/lab").await, "");
    assert_eq!(["tank/all", "tank/more/lab/x"].map(is_open), [true, false]);
    let said = rename("tank/more/lab/x", "tank/x").await;
    assert!(said.contains("tank/x is offered to nobody") && said.contains("offer= tank/x"), "{said}");
    let said = rename("tank/more/lab/sub", "tank/new/sub").await;
    assert!(said.contains("tank/new/sub/y is offered to nobody"), "{said}");
    assert_ne!(rename("tank/dark/v", "tank/v").await, "");
    assert_eq!(["tank/x", "tank/new/sub/y", "tank/v"].map(is_open), [false; 3]);
    // Somebody said so for where it is now.
    assert_eq!(rename("tank/more/lab/z", "tank/open/z").await, "");
    let said = rename("tank/open/o", "tank/o").await;
    assert!(said.contains("tank/o is offered over iSCSI only") && said.contains("was tank/open/o"), "{said}");
    assert!(is_open("tank/open/z") && is_open("tank/o"));
}

/// The snapshots in its way were gone by the time it was refused.
#[tokio::test]
async fn a_rollback_that_the_quota_does_not_allow_destroys_nothing() {
    const BYTES: u64 = 512 << 10;
    let world = World::new().await;
    let wish = CreateVolume {
        name: "tank/a".to_owned(),
        size: 1 << 20,
        sparse: true,
        properties: vec![("compression".to_owned(), "off".to_owned())],
        ..CreateVolume::default()
    };
    world.run(Operation::CreateVolume(wish)).await.unwrap();
    let snapshot = async |name: &str| {
        world.engine.sync().await.unwrap();
        let names = vec![name.to_owned()];
        world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    };
    let volume = world.engine.volume("tank/a").await.unwrap();
    let data = [block::Segment::Data(vec![1; BYTES as usize].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    snapshot("tank/a@s").await;
    volume.unmap(0, BYTES, block::Durability::Cached).await.unwrap();
    snapshot("tank/a@t").await;
    let small = Properties::from([("refquota".to_owned(), Stored::Number(BYTES / 2))]);
    let set =
        world.engine.run(false, move |cx| Box::pin(async move { dsl::set(cx, "tank/a", &small).await }));
    set.await.unwrap();
    let rollback = Operation::Rollback { snapshot: "tank/a@s".to_owned(), recursive: true, clones: false };
    let said = world.run(rollback).await.unwrap_err().message;
    assert_eq!(said, "cannot rollback 'tank/a': dataset is over quota");
    assert!(world.dataset("tank/a@t").await.is_ok());
}

/// Its snapshots were gone by the time it was refused.
#[tokio::test]
async fn what_is_encrypted_keeps_its_snapshots_when_it_cannot_be_destroyed() {
    // Of a dataset, the byte with the bit that its object set's pointer has then.
    const CRYPT: (usize, u8) = (16 * 8 + 6 * 8 + 7, 1 << 5);
    let world = World::new().await;
    world.volume("tank/a").await;
    let names = vec!["tank/a@s".to_owned()];
    world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    let object = world.dataset("tank/a").await.unwrap().object();
    let encrypt = world.engine.run(false, move |cx| {
        Box::pin(async move {
            let mut bonus = cx.mos.bonus(object).await?;
            bonus[CRYPT.0] |= CRYPT.1;
            Ok(cx.mos.set_bonus(object, &bonus).await?)
        })
    });
    encrypt.await.unwrap();
    assert!(world.dataset("tank/a").await.unwrap().is_encrypted());
    let destroy = Destroy { name: "tank/a".to_owned(), recursive: true, ..Destroy::default() };
    let said = world.run(Operation::Destroy(destroy)).await.unwrap_err().message;
    assert_eq!(said, "cannot destroy 'tank/a': encrypted datasets can only be read");
    assert!(world.dataset("tank/a@s").await.is_ok());
}

/// Its snapshots were gone by the time it was refused for a child that no list shows; and without any it was refused as well.
#[tokio::test]
async fn what_an_interrupted_receive_left_goes_with_its_dataset() {
    for recursive in [true, false] {
        let world = World::new().await;
        let make = world.engine.run(false, |cx| {
            Box::pin(async move { dsl::create_filesystem(cx, "tank/a/b", &Properties::new(), true).await })
        });
        make.await.unwrap();
        let children = world.dataset("tank/a").await.unwrap().dir().phys().child_map;
        let hide = world.engine.run(false, move |cx| {
            Box::pin(async move {
                let child = zap::get_u64(&mut cx.mos, children, "b").await?.unwrap();
                zap::remove(&mut cx.mos, children, "b".into()).await?;
                Ok(zap::set_u64(&mut cx.mos, children, "%recv", child).await?)
            })
        });
        hide.await.unwrap();
        let mut gone = vec!["tank/a/%recv", "tank/a"];
        if recursive {
            gone.insert(1, "tank/a@s");
            let names = vec!["tank/a@s".to_owned()];
            let taken = Operation::Snapshot { names, recursive: false, properties: Vec::new() };
            world.run(taken).await.unwrap();
        }
        let destroy = Destroy { name: "tank/a".to_owned(), recursive, ..Destroy::default() };
        assert_eq!(world.run(Operation::Destroy(destroy)).await.unwrap().destroyed, gone);
        assert!(matches!(world.dataset("tank/a").await, Err(LookupError::NotFound { .. })));
    }
}

/// An id that a host got while its pools were open, as is advised, made all of them another's: none came at the next start, for
/// their labels gave the id from before.
#[tokio::test]
async fn a_pool_is_ours_by_the_id_that_this_host_had_when_it_was_written() {
    let world = World::new().await;
    let held = world.host.find("tank").unwrap();
    world.host.remember(&held, &Settings::default(), None).unwrap();
    let remembered = world.host.places().state().pools().unwrap().remove(0);
    assert_eq!(remembered.hostid, Some(7), "what is in its labels");
    world.engine.end(Ending::Close).await.unwrap();
    let found = import::scan(&Sources::disks([Arc::clone(&world.media) as Arc<dyn Disk>])).await;
    let candidate = &found.pools[0];
    let settings = Settings { foreign: Foreign::Refuse, ..Settings::default() };
    assert!(host::open(candidate, Some(&remembered), &settings).await.is_ok());
    for hostid in [Some(8), None] {
        let other = Remembered { hostid, ..remembered.clone() };
        assert!(host::open(candidate, Some(&other), &settings).await.is_err(), "{hostid:?}");
    }
    assert!(host::open(candidate, None, &settings).await.is_err(), "it was not imported here");
}

/// OpenZFS destroys it at its next import, with all that clients wrote to it, and until then it was neither what it comes from
/// nor what was sent.
#[tokio::test]
async fn what_was_received_in_part_only_is_offered_to_nobody() {
    let world = World::with_volumes().await;
    let names = vec!["tank/b@s".to_owned()];
    world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    // What a stream of a clone begins with.
    let clone = world.engine.run(false, |cx| {
        Box::pin(async move { dsl::clone(cx, "tank/b@s", "tank/part", &Properties::new(), false).await })
    });
    clone.await.unwrap();
    let part = world.dataset("tank/part").await.unwrap().object();
    let mark = world.engine.run(false, move |cx| {
        Box::pin(async move {
            let mut phys = DatasetPhys::decode(&cx.mos.bonus(part).await?, Order::Little).unwrap();
            phys.flags |= dataset_flags::INCONSISTENT;
            cx.mos.set_bonus(part, &phys.encode(Order::Little)).await?;
            Ok(())
        })
    });
    mark.await.unwrap();
    let held = world.host.find("tank").unwrap();
    assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
    let listed = world.serving.list().served;
    let refused = listed.iter().find(|served| served.dataset == "tank/part");
    let why = refused.and_then(|served| served.refused.as_deref());
    assert!(why.is_some_and(|why| why.contains("in part only")), "{listed:?}");
    let is_open = |name: &str| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_some();
    assert!(is_open("tank/b") && is_open("tank/b@s") && !is_open("tank/part"));
    // To be read it is no better.
    let opened = world.dataset("tank/part").await.unwrap().open_volume().await;
    assert!(matches!(opened, Err(OpenVolumeError::Partial(_))));
    let promote = Operation::Promote { name: "tank/part".to_owned() };
    assert!(world.run(promote).await.is_err());
    let destroy = Destroy { name: "tank/part".to_owned(), ..Destroy::default() };
    world.run(Operation::Destroy(destroy)).await.unwrap();
}

/// A place for NBD.
async fn door() -> Vec<Place> {
    let doors = Doors::open(&[At::Tcp(([127, 0, 0, 1], 0).into())], Vec::new(), false).await.unwrap();
    doors.places().to_vec()
}

fn exported(serving: &Serving, name: &str) -> Option<Identity> {
    Some(nbd::Exports::lookup(&*serving.registry, name)?.volume.identity())
}

/// Waits until nobody uses it any more.
async fn left(serving: &Serving, name: &str) {
    while serving.clients(name) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A host that logged in while the snapshot's content came below what it had read wrote parts of the old content on top.
#[tokio::test]
async fn nobody_comes_in_while_a_volume_is_rolled_back_and_its_disk_stays_the_disk_it_is() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = iscsi::iqn::for_dataset("tank/b");
    let status = async || [log_in(address, TARGET).await.1, log_in(address, &own).await.1];
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    for (name, iqn, is_shut) in [("tank/a", TARGET, [true, false]), ("tank/b", &*own, [false, true])] {
        let snapshot = format!("{name}@s");
        let names = vec![snapshot.clone()];
        world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
        let (before, export) = (unit(iqn), exported(&world.serving, name));
        assert_eq!(export.is_some(), name == "tank/b");
        let volume = world.engine.volume(name).await.unwrap();
        let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
        volume.write(0, data, block::Durability::Cached).await.unwrap();
        world.engine.sync().await.unwrap();
        left(&world.serving, name).await;
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
        let rolling = world.begin(Operation::Rollback { snapshot, recursive: false, clones: false });
        tokio::time::sleep(LONG / 4).await;
        let expected = is_shut.map(|is_shut| if is_shut { (3, 1) } else { (0, 0) });
        assert_eq!(status().await, expected, "{name}: try again");
        assert_eq!(exported(&world.serving, name), None);
        // Whoever follows the pool meanwhile lets nobody in.
        world.serving.follow(&world.host.find("tank").unwrap()).await;
        assert_eq!((status().await, exported(&world.serving, name)), (expected, None));
        assert!(!rolling.is_finished());
        rolling.await.unwrap().unwrap();
        assert_eq!(status().await, [(0, 0); 2]);
        assert!(exported(&world.serving, name) == export && Arc::ptr_eq(&unit(iqn), &before));
        assert!(world.serving.list().served.iter().all(|served| served.refused.is_none()));
        let read = volume.read(0, 8192).await.unwrap();
        assert!(read.iter().all(|segment| !matches!(segment, block::Segment::Data(_))), "{read:?}");
    }
}

/// The snapshots in its way were gone for good when a rollback was refused because a host had logged in meanwhile.
#[tokio::test]
async fn nobody_comes_in_while_what_is_in_the_way_of_a_rollback_goes() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = iscsi::iqn::for_dataset("tank/b");
    for name in ["tank/b@s", "tank/b@t"] {
        let names = vec![name.to_owned()];
        world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    }
    world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
    let snapshot = "tank/b@s".to_owned();
    let rolling = world.begin(Operation::Rollback { snapshot, recursive: true, clones: false });
    tokio::time::sleep(LONG / 4).await;
    assert_eq!(log_in(address, &own).await.1, (3, 1), "try again");
    assert_eq!(exported(&world.serving, "tank/b"), None);
    assert!(!rolling.is_finished());
    rolling.await.unwrap().unwrap();
    assert!(world.dataset("tank/b@s").await.is_ok());
    assert!(matches!(world.dataset("tank/b@t").await, Err(LookupError::NotFound { .. })));
    assert_eq!(log_in(address, &own).await.1, (0, 0));
    assert!(exported(&world.serving, "tank/b").is_some());
}

/// A host that logged in to one of several volumes while those before it were being destroyed lost it under its feet.
#[tokio::test]
async fn nobody_comes_in_to_what_will_be_destroyed_once_the_first_goes() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    const NAMES: [&str; 2] = ["tank/x/1", "tank/x/2"];
    let world = World::over(1, door().await).await;
    for name in NAMES {
        world.volume(name).await;
    }
    let address = listen(&world.serving.targets).await;
    let held = world.host.find("tank").unwrap();
    let status = async |name: &str| log_in(address, &iscsi::iqn::for_dataset(name)).await.1;
    // Where somebody is in one, the others stay as they are.
    let (guest, _) = log_in(address, &iscsi::iqn::for_dataset(NAMES[1])).await;
    let used = world.serving.set_aside_all(&held, &NAMES.map(str::to_owned)).err();
    assert_eq!(used.as_deref(), Some(NAMES[1]));
    world.serving.follow(&held).await;
    assert!(exported(&world.serving, NAMES[0]).is_some());
    assert_eq!(status(NAMES[0]).await, (0, 0));
    drop(guest);
    for name in NAMES {
        left(&world.serving, name).await;
    }
    world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
    let destroy = Destroy { name: "tank/x".to_owned(), recursive: true, ..Destroy::default() };
    let destroying = world.begin(Operation::Destroy(destroy));
    tokio::time::sleep(LONG / 4).await;
    for name in NAMES {
        assert_eq!((status(name).await, exported(&world.serving, name)), ((3, 1), None), "{name}: try again");
    }
    assert!(!destroying.is_finished());
    destroying.await.unwrap().unwrap();
    assert!(matches!(world.dataset("tank/x").await, Err(LookupError::NotFound { .. })));
    assert!(NAMES.iter().all(|name| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_none()));
}

/// Each was compared with each, twice, and all that was offered later with each again: a worker did nothing else for half a
/// minute, and hosts on it were not answered.
#[tokio::test]
async fn many_snapshots_are_set_aside_at_once() {
    const LIMIT: Duration = Duration::from_secs(10);
    let world = World::new().await;
    world.volume("tank/a").await;
    let (held, dataset) = (world.host.find("tank").unwrap(), world.dataset("tank/a").await.unwrap());
    let names: Vec<String> = (0..20_000).map(|number| format!("tank/a@{number}")).collect();
    let entries = names.iter().map(|name| (name.clone(), Entry::new(&dataset)));
    world.serving.entries.lock().extend(entries);
    let began = tokio::time::Instant::now();
    let asides = world.serving.set_aside_all(&held, &names).expect("nobody is there");
    assert_eq!(asides.len(), names.len());
    assert!(names.iter().all(|name| world.serving.is_aside(held.guid(), name)));
    let again = world.serving.set_aside_all(&held, &names[..1]).expect("nobody is there");
    drop(asides);
    let is_aside = |name: &String| world.serving.is_aside(held.guid(), name);
    assert!(is_aside(&names[0]) && !is_aside(&names[1]), "somebody else means to");
    drop(again);
    assert!(world.serving.asides.lock().is_empty());
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// Of a rename or a destroy over which the pool was suspended hosts were told as of a rollback, that all that they had read
/// was another's.
#[tokio::test]
async fn hosts_are_told_of_other_content_only_where_it_may_be_other() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/b"));
    let visit = async || {
        let (mut guest, status) = log_in(address, &own).await;
        assert_eq!(status, (0, 0));
        let told = told(&mut guest).await;
        drop(guest);
        left(&world.serving, "tank/b").await;
        told.contains(&(0x28, 0))
    };
    assert!(!visit().await);
    // Whoever asked for it was answered before, and nobody says how it ended.
    drop(world.serving.set_aside_all(&held, &["tank/b".to_owned()]).expect("nobody is there"));
    world.serving.follow(&held).await;
    assert!(!visit().await, "it is about to get another name");
    drop(world.serving.set_aside(&held, "tank/b").expect("nobody is there"));
    world.serving.follow(&held).await;
    assert!(visit().await, "it is rolled back");
}

/// A host that logged in to a snapshot while the clone that takes it over was being promoted was cut off when that was done.
#[tokio::test]
async fn nobody_comes_in_while_a_snapshot_goes_to_a_clone_that_is_promoted() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let status = async |name: &str| log_in(address, &iscsi::iqn::for_dataset(name)).await.1;
    let names = vec!["tank/b@s".to_owned()];
    world.run(Operation::Snapshot { names, recursive: false, properties: Vec::new() }).await.unwrap();
    let (snapshot, name) = ("tank/b@s".to_owned(), "tank/x".to_owned());
    let clone = Operation::Clone { snapshot, name: name.clone(), properties: Vec::new(), parents: false };
    world.run(clone).await.unwrap();
    world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
    let promoting = world.begin(Operation::Promote { name });
    tokio::time::sleep(LONG / 4).await;
    assert_eq!(status("tank/b@s").await, (3, 1), "try again");
    assert_eq!(exported(&world.serving, "tank/b@s"), None);
    assert!(!promoting.is_finished());
    promoting.await.unwrap().unwrap();
    assert_eq!(status("tank/x@s").await, (0, 0));
    assert!(exported(&world.serving, "tank/x@s").is_some());
}

/// A host that logged in while a volume was being renamed was cut off when it had its new name.
#[tokio::test]
async fn nobody_comes_in_while_a_volume_is_renamed() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = |name: &str| iscsi::iqn::for_dataset(name);
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    let shelf = unit(TARGET);
    for (from, iqn, to, new) in [
        ("tank/a", TARGET.to_owned(), "tank/c", TARGET.to_owned()),
        ("tank/b", own("tank/b"), "tank/d", own("tank/d")),
    ] {
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
        let (from_name, to_name) = (from.to_owned(), to.to_owned());
        let renaming =
            world.begin(Operation::Rename { from: from_name, to: to_name, parents: false, recursive: false });
        tokio::time::sleep(LONG / 4).await;
        assert_eq!(log_in(address, &iqn).await.1, (3, 1), "{from}: try again");
        assert_eq!(exported(&world.serving, from), None);
        assert!(!renaming.is_finished());
        renaming.await.unwrap().unwrap();
        assert_eq!(log_in(address, &new).await.1, (0, 0), "{to}");
    }
    assert!(exported(&world.serving, "tank/d").is_some());
    assert!(Arc::ptr_eq(&unit(TARGET), &shelf));
}

/// Whoever is connected is not cut off by a rollback that is refused for it.
#[tokio::test]
async fn a_volume_that_is_not_rolled_back_after_all_is_offered_as_before() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/b"));
    let (guest, _) = log_in(address, &own).await;
    assert!(world.serving.set_aside(&held, "tank/b").is_none(), "somebody is there");
    assert!(exported(&world.serving, "tank/b").is_some());
    drop(guest);
    left(&world.serving, "tank/b").await;
    let aside = world.serving.set_aside(&held, "tank/b").expect("nobody is there");
    assert_eq!((log_in(address, &own).await.1, exported(&world.serving, "tank/b")), ((3, 1), None));
    drop(aside);
    world.serving.follow(&held).await;
    assert_eq!(log_in(address, &own).await.1, (0, 0));
    assert!(exported(&world.serving, "tank/b").is_some());
}

/// Who logged in while the block size was being set learned the old one, and wrote elsewhere by it once the disk had the other.
#[tokio::test]
async fn a_disk_gets_another_block_size_when_nobody_is_logged_in() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/b"));
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    for (name, iqn) in [("tank/a", TARGET), ("tank/b", &*own)] {
        let before = unit(iqn);
        let (guest, status) = log_in(address, iqn).await;
        assert_eq!(status, (0, 0));
        let block = Properties::from([(property::BLOCK.to_owned(), Stored::Text("4096".to_owned()))]);
        let set =
            world.engine.run(false, move |cx| Box::pin(async move { dsl::set(cx, name, &block).await }));
        set.await.unwrap();
        let said = world.serving.follow(&held).await.concat();
        assert!(said.contains("keeps its block size of 512 bytes"), "{said}");
        assert!(Arc::ptr_eq(&unit(iqn), &before) && world.serving.again.next().is_some(), "{name}");
        // That it waits was taken for what every other setting would cut the host off by.
        let properties = vec![(property::WRITE_CACHE.to_owned(), "off".to_owned())];
        world.run(Operation::Set { name: name.to_owned(), properties, force: false }).await.unwrap();
        assert!(Arc::ptr_eq(&unit(iqn), &before), "{name}");
        drop(guest);
        left(&world.serving, name).await;
        assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
        assert!(!Arc::ptr_eq(&unit(iqn), &before) && world.serving.again.next().is_none(), "{name}");
    }
}

/// It was missing meanwhile: hosts that came back just then were told that it was removed, or found its target without it.
#[tokio::test]
async fn a_host_that_comes_while_a_disk_gets_another_block_size_is_told_to_try_again() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let awaited = Arc::clone(&world.serving);
    world.serving.targets.set_awaited(move |target| awaited.is_awaited(target));
    let own = iscsi::iqn::for_dataset("tank/b");
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    for (name, iqn) in [("tank/a", TARGET), ("tank/b", &*own)] {
        let before = unit(iqn);
        let options = Properties::from([
            (property::BLOCK.to_owned(), Stored::Text("4096".to_owned())),
            (property::WRITE_CACHE.to_owned(), Stored::Text("off".to_owned())),
        ]);
        let set =
            world.engine.run(false, move |cx| Box::pin(async move { dsl::set(cx, name, &options).await }));
        set.await.unwrap();
        // What was written before has to be stable before the disk is offered.
        let volume = world.engine.volume(name).await.unwrap();
        let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
        volume.write(0, data, block::Durability::Cached).await.unwrap();
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)));
        let following = tokio::spawn({
            let (serving, host) = (Arc::clone(&world.serving), Arc::clone(&world.host));
            async move { serving.follow(&host.find("tank").unwrap()).await }
        });
        tokio::time::sleep(LONG / 4).await;
        assert_eq!(log_in(address, iqn).await.1, (3, 1), "{name}: try again");
        assert!(!following.is_finished());
        world.disk.heal();
        assert_eq!(following.await.unwrap(), Vec::<String>::new());
        let (guest, status) = log_in(address, iqn).await;
        assert_eq!(status, (0, 0), "{name}");
        assert!(!Arc::ptr_eq(&unit(iqn), &before), "{name}");
        drop(guest);
        left(&world.serving, name).await;
    }
}

/// A host that came to another of its disks just then was told to try again, and its virtual machine did not start; copies that
/// named one ended half done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_takes_logins_while_one_of_its_disks_is_taken_away() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    // To tell so many takes a while.
    let unit = target(&world.serving, TARGET).unwrap().unit(0).expect("a disk");
    let hosts: Vec<_> = (0..10_000).map(|host| unit.attach(&format!("iqn.{host},i,0x1"))).collect();
    let (over, is_over) = tokio::sync::watch::channel(false);
    let logins = tokio::spawn(async move {
        let mut answers = BTreeSet::new();
        while !*is_over.borrow() {
            answers.insert(log_in(address, TARGET).await.1);
        }
        answers
    });
    let share = |change| Operation::Share { pool: "tank".to_owned(), change };
    for _ in 0..20 {
        let (target, volume) = (TARGET.to_owned(), "tank/b".to_owned());
        world.run(share(ShareChange::LunAdd { target, volume, lun: Some(1) })).await.unwrap();
        let (target, disk) = (TARGET.to_owned(), "tank/b".to_owned());
        world.run(share(ShareChange::LunRemove { target, disk })).await.unwrap();
    }
    over.send(true).unwrap();
    assert_eq!(logins.await.unwrap(), BTreeSet::from([(0, 0)]));
    drop(hosts);
}

/// Its export led to the volume that had its name before, and its disk was not offered.
#[tokio::test]
async fn a_volume_that_gets_the_name_of_another_is_what_clients_find_by_it() {
    let world = World::over(1, door().await).await;
    for name in ["tank/a", "tank/b"] {
        world.volume(name).await;
    }
    let who = async |name: &str| world.engine.volume(name).await.unwrap().identity().guid;
    let (first, second) = (who("tank/a").await, who("tank/b").await);
    // Whoever was to follow this was given up.
    let rename = world.engine.run(false, |cx| dsl::rename(cx, "tank/a", "tank/c", false, false));
    rename.await.unwrap();
    let (from, to) = ("tank/b".to_owned(), "tank/a".to_owned());
    world.run(Operation::Rename { from, to, parents: false, recursive: false }).await.unwrap();
    let found = |name: &str| exported(&world.serving, name).map(|identity| identity.guid);
    assert_eq!([found("tank/a"), found("tank/b"), found("tank/c")], [Some(second), None, Some(first)]);
    for (name, guid) in [("tank/a", second), ("tank/c", first)] {
        let target = target(&world.serving, &iscsi::iqn::for_dataset(name)).expect(name);
        assert_eq!(target.unit(0).unwrap().volume().identity().guid, guid, "{name}");
    }
}

/// An export of this name kept the disk from being offered.
#[tokio::test]
async fn a_protocol_that_cannot_have_a_volume_is_in_no_others_way() {
    let world = World::over(1, door().await).await;
    world.volume("tank/a").await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/a"));
    {
        let mut entries = world.serving.entries.lock();
        let entry = entries.get_mut("tank/a").unwrap();
        entry.is_in_nbd = false;
        world.serving.take(&entry.disk.take().unwrap());
    }
    assert!(target(&world.serving, &own).is_none());
    world.serving.follow(&held).await;
    assert!(target(&world.serving, &own).is_some());
    assert!(world.serving.list().served[0].refused.is_some());
    world.serving.registry.remove("tank/a");
    world.serving.follow(&held).await;
    assert!(exported(&world.serving, "tank/a").is_some());
    assert_eq!(world.serving.list().served[0].refused, None);
}

/// A daemon that started was never ready, and could not even be told to end, while one pool's devices did not answer.
#[tokio::test(start_paused = true)]
async fn a_pool_that_does_not_answer_is_waited_for_a_while_at_the_start_and_offered_later() {
    // Not so long that the disk is given up.
    const LONG: Duration = Duration::from_secs(4);
    let world = World::with_volumes().await;
    let held = Arc::new(world.reopened().await);
    let serving = serving();
    world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)));
    let (began, mut told) = (tokio::time::Instant::now(), Vec::new());
    serving.begin(vec![held], |sentence| told.push(sentence)).await;
    assert_eq!((began.elapsed(), told.len()), (PATIENCE, 1));
    assert!(told[0].contains("takes long to read"), "{told:?}");
    world.disk.heal();
    tokio::time::sleep(10 * LONG).await;
    assert_eq!(serving.targets.list().len(), 2);
}
