//! A pool on a disk in memory that fails as told, and what is offered of it meanwhile. Here are the pool and its clients; the
//! tests lie beside.

use std::{net::SocketAddr, ops::Range, time::Duration};

use block::Identity;
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    create::{self, CreateOptions, DeviceFacts, Plan as Layout, VdevSpec},
    dsl::Properties,
    engine::{Ending, Engine, Options},
    sync::Work,
};
use iscsi::{
    Offer,
    pdu::{Header, Outbox, op},
};
use pool::{
    Pool,
    cache::BlockCache,
    dmu::{Object, Run},
    dsl::LookupError,
    import::{self, Candidate, Sources},
    ondisk::blkptr::BlkPtr,
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
    events::observe::Observer,
    host::{Places, Settings},
    ops::{Answer, CreateVolume, Failure, Host, Mode, Operation, PoolAdd, Request, ShareChange, run},
    shares::property,
    state::State,
};

mod access;
mod again;
mod aside;
mod changes;
mod coming;
mod leaving;
mod lists;
mod looking;
mod neighbours;
mod plans;
mod portals;
mod unnamed;

const SIZE: u64 = 160 << 20;
/// What stands on a disk before what a pool gives away.
const LABELS: u64 = 4 << 20;
const TARGET: &str = "iqn.2026-11.com.example:shelf";
/// What does not become shorter: a list with two such names is too long to be in the pointer to it.
const LETTERS: &str = "0123456789abcdefghijklmnopqrstuvwxyz-_ABCDEFGHIJ";
/// Not so long that a disk is given up that does not answer.
const LONG: Duration = Duration::from_secs(4);

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

/// A place for NBD.
async fn door() -> Vec<Place> {
    let doors = Doors::open(&[At::Tcp(([127, 0, 0, 1], 0).into())], Vec::new(), false).await.unwrap();
    doors.places().to_vec()
}

/// A daemon with the pool `tank`.
pub(crate) struct World {
    pub(crate) host: Arc<Host>,
    serving: Arc<Serving>,
    engine: Arc<Engine>,
    disk: Arc<FaultDisk>,
    /// What is below it.
    media: Arc<MemDisk>,
    _state: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::of(1).await
    }

    /// Each seed makes another pool of this name.
    pub(crate) async fn of(seed: u64) -> Self {
        Self::over(seed, Vec::new()).await
    }

    /// The same with NBD as if it came in there.
    async fn over(seed: u64, places: Vec<Place>) -> Self {
        let media = Arc::new(MemDisk::new(SIZE).named("/disks/a".to_owned()));
        let disk = Arc::new(FaultDisk::new(Arc::clone(&media) as Arc<dyn Disk>, 1));
        let engine = created("tank", seed, Arc::clone(&disk) as Arc<dyn Disk>).await;
        Self::around(engine, media, disk, places)
    }

    fn around(engine: Arc<Engine>, media: Arc<MemDisk>, disk: Arc<FaultDisk>, places: Vec<Place>) -> Self {
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

    /// Keeps another pool beside it, `lake`, on a disk of its own.
    async fn lake(&self) {
        let media = Arc::new(MemDisk::new(SIZE).named("/disks/b".to_owned()));
        let engine = created("lake", 2, media as Arc<dyn Disk>).await;
        self.host.keep(Held::writing(engine));
    }

    pub(crate) async fn run(&self, operation: Operation) -> Result<Answer, Failure> {
        run(&self.host, Request { operation, command: None, user: 0 }).await
    }

    /// What its engine tells arrives, and what has to be followed again is.
    fn observed(&self) -> Observer {
        let (observer, held) = (Observer::new(Arc::default()), self.host.find("tank").unwrap());
        let (serving, guid) = (Arc::clone(&self.serving), held.guid());
        observer.opened(&held, None, move |news| serving.hear(guid, news));
        tokio::spawn(Arc::clone(&self.serving).try_again(Arc::downgrade(&self.host)));
        observer
    }

    /// Begins it.
    fn begin(&self, operation: Operation) -> JoinHandle<Result<Answer, Failure>> {
        let host = Arc::clone(&self.host);
        let request = Request { operation, command: None, user: 0 };
        tokio::spawn(async move { run(&host, request).await })
    }

    pub(crate) async fn volume(&self, name: &str) {
        let wish =
            CreateVolume { name: name.to_owned(), size: 1 << 20, parents: true, ..CreateVolume::default() };
        self.run(Operation::CreateVolume(wish)).await.unwrap();
    }

    pub(crate) async fn snapshot(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let operation = Operation::Snapshot { names, recursive: false, properties: Vec::new() };
        self.run(operation).await.unwrap();
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

    /// The same with a daemon that has just opened the pool, and has followed nothing of it yet.
    async fn restarted(self) -> Self {
        self.engine.end(Ending::Close).await.unwrap();
        let media = Arc::new(self.media.fork());
        let disk = Arc::new(FaultDisk::new(Arc::clone(&media) as Arc<dyn Disk>, 1));
        let engine = gone_on(imported(Arc::clone(&disk) as Arc<dyn Disk>).await).await;
        Self::around(engine, media, disk, Vec::new())
    }

    /// What the disk has when the power is cut now. All `volumes` begin with ones, and their logs have twos.
    async fn cut_off(&self, volumes: &[&str]) -> Arc<MemDisk> {
        let stable = block::Durability::Stable(block::Asked::Fua);
        let write_twice = async |byte: u8| {
            for name in volumes.iter().chain(volumes) {
                let volume = self.engine.volume(name).await.unwrap();
                let data = [block::Segment::Data(vec![byte; 8192].into())].into_iter().collect();
                volume.write(0, data, stable).await.unwrap();
            }
        };
        // The log of a volume begins with a transaction group, so the first are not in it.
        write_twice(1).await;
        self.engine.sync().await.unwrap();
        write_twice(2).await;
        Arc::new(self.media.fork())
    }

    /// The pool as it comes back after the power was cut now, where the last block of each log was damaged after that was
    /// claimed. All `volumes` have one.
    async fn with_damaged_logs(&self, volumes: &[&str]) -> Arc<Engine> {
        let media = self.cut_off(volumes).await;
        let crashed = imported(Arc::clone(&media) as Arc<dyn Disk>).await;
        let ends = ends_of_logs(&crashed).await;
        let mut cx = engine::open::open(crashed, going_on()).await.unwrap();
        let (txg, now) = (cx.txg, cx.now);
        cx.sync_txg(txg, now, Work::default()).await.unwrap();
        drop(cx);
        for place in ends {
            media.restore(place.start, &vec![0; (place.end - place.start) as usize]);
        }
        gone_on(imported(media as Arc<dyn Disk>).await).await
    }

    async fn dataset(&self, name: &str) -> Result<Dataset, LookupError> {
        let view = self.engine.view();
        view.dsl().await.unwrap().lookup(name).await
    }

    /// The block that says what a dataset is: of a volume whoever lists volumes reads it, of a snapshot whoever opens that.
    async fn root_block(&self, name: &str) -> BlkPtr {
        self.dataset(name).await.unwrap().phys().unwrap().bp
    }

    /// The block that leads to a volume's objects: whoever opens it reads it.
    async fn objects_block(&self, name: &str) -> BlkPtr {
        first_block(self.dataset(name).await.unwrap().objset().await.unwrap().meta()).await
    }

    /// Sets something of a volume that nobody looks at, and that is too long to be in a pointer.
    async fn set_much(&self, name: &str) {
        let text = LETTERS.chars().chain(LETTERS.chars().rev()).collect();
        let properties = vec![("org.example:note".to_owned(), text)];
        self.run(Operation::Set { name: name.to_owned(), properties, force: false }).await.unwrap();
    }

    /// The block with what is set of a volume, if that is [much](Self::set_much). Once it was read the pool knows it.
    async fn settings_block(&self, name: &str) -> BlkPtr {
        let volume = self.dataset(name).await.unwrap();
        first_block(&volume.dsl().mos().object(volume.dir().phys().props).await.unwrap()).await
    }

    /// The block with the names of a volume's snapshots, if those are long.
    async fn snapshots_block(&self, name: &str) -> BlkPtr {
        let volume = self.dataset(name).await.unwrap();
        first_block(&volume.dsl().mos().object(volume.phys().unwrap().snap_names).await.unwrap()).await
    }

    /// Nobody can read this block from now on.
    fn break_block(&self, pointer: &BlkPtr) {
        self.strike_block(pointer, &Effect::Error(std::io::ErrorKind::TimedOut));
    }

    /// Whoever reads this block from now on waits for it.
    fn hang_block(&self, pointer: &BlkPtr) {
        self.strike_block(pointer, &Effect::Delay(LONG..=LONG));
    }

    /// The same; without a block it is the next read of any.
    fn hang(&self, block: Option<&BlkPtr>) {
        match block {
            Some(pointer) => self.hang_block(pointer),
            None => self.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)).times(1)),
        }
    }

    fn strike_block(&self, pointer: &BlkPtr, effect: &Effect) {
        assert!(pointer.dvas().next().is_some(), "it is in a place of its own");
        for place in pointer.dvas() {
            let at = LABELS + place.offset;
            self.disk.inject(Fault::new(On::Read, at..at + place.asize, effect.clone()));
        }
    }

    fn break_reads(&self) {
        let broken = Effect::Error(std::io::ErrorKind::TimedOut);
        self.disk.inject(Fault::anywhere(On::Read, broken));
    }
}

/// Waits for that.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    for _ in 0..1000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// Begins to follow a pool.
fn begun(serving: &Arc<Serving>, held: &Arc<Held>) -> JoinHandle<Vec<String>> {
    let (serving, held) = (Arc::clone(serving), Arc::clone(held));
    tokio::spawn(async move { serving.follow(&held).await })
}

/// The first block of an object that can be lost: what is short is in the pointer to it.
async fn first_block(object: &Object) -> BlkPtr {
    let mut runs = object.runs(0, 0..object.max_block_id() + 1);
    while let Some(run) = runs.next().await.unwrap() {
        if let Run::Block { pointer, .. } = run
            && pointer.dvas().next().is_some()
        {
            return pointer;
        }
    }
    panic!("all of it is in pointers");
}

/// The pool on this disk as whoever looks for pools finds it.
async fn found(disk: Arc<dyn Disk>) -> Candidate {
    import::scan(&Sources::disks([disk])).await.pools.remove(0)
}

/// The same, opened to be looked at. Nothing is kept: what is asked for is read.
async fn looked_at(candidate: &Candidate) -> Arc<Pool> {
    let cache = Arc::new(BlockCache::new(0));
    let options = import::OpenOptions { force: true, cache, ..import::OpenOptions::default() };
    import::open(candidate, &options).await.unwrap()
}

/// Where the last block of each intent log is on the pool's disk.
async fn ends_of_logs(pool: &Pool) -> Vec<Range<u64>> {
    let mut ends = Vec::new();
    for head in zil::heads(pool).await.unwrap() {
        let mut reader = zil::Reader::new(pool.io(), head.objset, &head.header);
        let mut last = None;
        while let Some(zil::Found { pointer, block: Ok(_), .. }) = reader.next().await {
            last = Some(pointer);
        }
        ends.extend(last.map(|pointer| {
            let start = LABELS + pointer.dvas().next().unwrap().offset;
            start..start + pointer.psize()
        }));
    }
    ends
}

/// A pool of this name, whatever it is; each seed makes another.
async fn created(name: &str, seed: u64, disk: Arc<dyn Disk>) -> Arc<Engine> {
    let facts = DeviceFacts { bytes: SIZE, block_device: false, logical_sector: 512, physical_sector: 512 };
    let spec = VdevSpec::parse(&["/disks/a".to_owned()]).unwrap();
    let layout = Layout::new(&spec, &[facts], Some(12), true).unwrap();
    let options = CreateOptions {
        name: name.to_owned(),
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
    let syncer = create::create(&layout, &[disk], options).await.unwrap();
    Engine::start(syncer, Options::default()).await.unwrap()
}

/// The pool on this disk.
async fn imported(disk: Arc<dyn Disk>) -> Arc<Pool> {
    looked_at(&found(disk).await).await
}

/// What whoever goes on with a pool says of himself.
fn going_on() -> engine::open::OpenOptions {
    engine::open::OpenOptions {
        rename: None,
        hostid: 7,
        hostname: "simulation".to_owned(),
        now: 1_700_000_000,
        seed: 2,
        workers: 0,
    }
}

async fn gone_on(pool: Arc<Pool>) -> Arc<Engine> {
    let syncer = engine::open::open(pool, going_on()).await.unwrap();
    Engine::start(syncer, Options::default()).await.unwrap()
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

fn exported(serving: &Serving, name: &str) -> Option<Identity> {
    Some(nbd::Exports::lookup(&*serving.registry, name)?.volume.identity())
}

/// Waits until nobody uses it any more.
async fn left(serving: &Serving, name: &str) {
    while !serving.clients(name).is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
