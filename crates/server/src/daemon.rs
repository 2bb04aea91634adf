//! `millpond serve`: pools opened, their volumes offered over NBD and iSCSI, until told to stop.
//!
//! ```text
//!   start: addresses resolved ▶ state directory claimed ▶ control socket ▶ pools opened ▶ volumes opened ▶ listening
//!          ▶ `ready`
//!   stop:  no new operations ▶ those that run finish ▶ no new connections ▶ what is in flight finishes ▶ pools synced
//!          and closed ▶ socket removed
//! ```
//!
//! What can be known to be wrong is found out before the first device is touched, and nobody is told `ready`
//! before everything that was promised can be connected to, but for pools whose devices do not answer.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ::memory::{limit::LimitError, machine::Machine};
use engine::BoxFuture;
use futures_util::{FutureExt as _, future::join_all};
use pool::import::Candidate;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    alerts::{Alerts, Files, source::Pools},
    api::Served,
    certificates::{self, NbdTls},
    clock,
    control::{ControlSocket, Shared},
    descriptors::{self, Connections},
    disks::Disks,
    doors::{self, At, Doors, Inherited},
    events::{Journal, observe::Observer},
    governor::{self, Governor, MemorySettings},
    host::{self, HostError, Known, Places, Settings},
    hostid, hotplug,
    late::{Late, Missing},
    lookout,
    opening::{self, Outcome},
    ops::{Host, LOCK_PATIENCE, Mode, Watching, has_usable_name},
    paths::real,
    serving::Serving,
    shares::{Portals, take_covered},
    state::{Remembered, StateError},
    unix_socket::SocketError,
    warmth::Warmth,
};

/// Where NBD clients expect a server.
pub const NBD_DEFAULT: &str = "127.0.0.1:10809";
/// Where iSCSI initiators expect one.
pub const ISCSI_DEFAULT: &str = "127.0.0.1:3260";

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to look for pools.
    pub places: Places,
    /// Pools by name or guid; if none is named, those that are imported here, or all that are where it is to look.
    pub pools: Vec<String>,
    /// How to open them.
    pub settings: Settings,
    /// Never write to a device.
    pub read_only: bool,
    /// Where NBD clients come in: `ADDR:PORT`, or `unix:PATH`. With none here and none for iSCSI, both defaults.
    pub nbd: Vec<String>,
    /// TLS of NBD.
    pub nbd_tls: Option<NbdTls>,
    /// Addresses for iSCSI.
    pub iscsi: Vec<String>,
    /// Control socket.
    pub socket: PathBuf,
    /// How much memory it may have.
    pub memory: MemorySettings,
    /// Who is told of alerts; in the state directory if it is not said.
    pub alerts: Option<PathBuf>,
}

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Not an address.
    #[error("'{address}' is not an address: give ADDR:PORT, for example {example}")]
    Address {
        /// What was given.
        address: String,
        /// One of its kind that is.
        example: &'static str,
        /// The resolver's reason.
        #[source]
        source: io::Error,
    },
    /// Not the path of a socket.
    #[error("'{0}' does not name a socket: give unix:PATH, for example unix:/run/millpond-nbd.sock")]
    SocketPath(String),
    /// Memory: too little, or more than there is.
    #[error(transparent)]
    Memory(#[from] LimitError),
    /// Cannot listen.
    #[error("cannot listen on {address} for {protocol}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// For what.
        protocol: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A certificate or key is not there.
    #[error("cannot read '{}', which TLS needs", path.display())]
    Certificate {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Certificates or keys are of no use.
    #[error("TLS cannot be used with what is in '{}'", path.display())]
    Tls {
        /// Where they are.
        path: PathBuf,
        /// What is wrong with them.
        #[source]
        source: nbd::TlsError,
    },
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another daemon uses the state directory, or it cannot be used at all.
    #[error(transparent)]
    State(#[from] StateError),
    /// A pool that was named cannot be opened.
    #[error(transparent)]
    Pool(#[from] HostError),
    /// A pool that was named is there and cannot be opened. The whole sentence.
    #[error("{0}")]
    Open(String),
    /// No pool was named and none can be opened.
    #[error("no pools available to serve{0}")]
    NoPools(String),
    /// Pools could not be closed: what was written last may not be on their devices.
    #[error("{}", .0.join("\n"))]
    Close(Vec<String>),
    /// The system refused something else.
    #[error("cannot serve")]
    Io(#[from] io::Error),
}

/// What the daemon says while it starts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Something the user should know.
    Warning(String),
    /// A volume or volume snapshot, served or refused.
    Served(Served),
    /// Everything listens.
    Ready {
        /// The control socket.
        socket: PathBuf,
    },
}

/// Serves until SIGTERM, SIGINT, or SIGHUP of a terminal, NBD on sockets that were `inherited`, too. Without a terminal
/// SIGHUP lets it read certificates and keys again. `tell` hears what is served, and when it is ready. It must not wait for
/// anybody: no host is served and no signal is heard meanwhile.
///
/// # Errors
/// See [`ServeError`]. Not for what happens to single connections.
pub fn serve(
    config: Config,
    inherited: Vec<Inherited>,
    mut tell: Box<dyn FnMut(Event) + Send>,
) -> BoxFuture<'static, Result<(), ServeError>> {
    Box::pin(async move {
        clock::start();
        let mut stop_signal = StopSignal::new()?;
        let reload_signal = Hangup::Reload.signal()?;
        let governor = Governor::new(&config.memory, Machine::default())?;
        let mut nbd_places = doors::places(&config.nbd).await?;
        let mut iscsi_addresses = Vec::new();
        for address in &config.iscsi {
            iscsi_addresses.push(doors::resolve(address, ISCSI_DEFAULT).await?);
        }
        for (one, all) in take_covered(&mut iscsi_addresses) {
            tell(Event::Warning(format!(
                "iSCSI: {all} is {one}, too: '--iscsi {one}' is not needed beside it"
            )));
        }
        if nbd_places.is_empty() && inherited.is_empty() && iscsi_addresses.is_empty() {
            nbd_places = doors::places(&[NBD_DEFAULT.to_owned()]).await?;
            iscsi_addresses.push(doors::resolve(ISCSI_DEFAULT, ISCSI_DEFAULT).await?);
        }
        let (tls, expiries) = config.nbd_tls.as_ref().map(NbdTls::load).transpose()?.unzip();
        let expiries = expiries.unwrap_or_default();
        let state = match config.places.state().for_a_daemon() {
            Ok(claim) => Some(claim),
            Err(in_use @ StateError::InUse { .. }) => return Err(in_use.into()),
            // What is served needs no file; but what is not kept is missed at the next start.
            Err(error) => {
                tell(Event::Warning(format!(
                    "nothing can be kept in the state directory: {}; what is imported or set up from now on is forgotten \
                     when the daemon ends",
                    host::chain(&error)
                )));
                None
            }
        };
        // After that: one that gives up must not have taken the place of another's socket.
        let mut socket = ControlSocket::bind(&config.socket).await?;
        if let Some(note) = governor.last_to_be_killed() {
            // In a container it is so at every start, and the daemon works as well.
            tracing::info!("{note}");
        }
        let doubtful =
            governor.beyond_limit().into_iter().chain(config.alerts.as_deref().and_then(no_alerts));
        let run_out = certificates::run_out(&expiries, hostid::now());
        doubtful.chain(run_out).for_each(|warning| tell(Event::Warning(warning)));
        let (mut iscsi_limits, mut nbd_limits) = (iscsi::Config::default(), nbd::ServeLimits::default());
        let local = nbd_places.iter().any(|at| matches!(at, At::Unix(_)))
            || inherited.iter().any(|socket| matches!(socket, Inherited::Unix(_)));
        let wished = Connections { iscsi: iscsi_limits.connections_max, nbd: nbd_limits.connections, local };
        let admitted = descriptors::make_room(wished);
        (iscsi_limits.connections_max, nbd_limits.connections) = (admitted.iscsi, admitted.nbd);
        let registry = Arc::new(nbd::Registry::new());
        let targets =
            iscsi::Targets::new(iscsi::Config { gate: Arc::clone(governor.gate()), ..iscsi_limits });
        let needs_tls = config.nbd_tls.as_ref().is_some_and(|tls| tls.is_required);
        let doors = Doors::open(&nbd_places, inherited, needs_tls).await?;
        let mut iscsi_servers = Vec::new();
        for address in iscsi_addresses {
            let server = iscsi::Server::bind(Arc::clone(&targets), &[address]).await;
            iscsi_servers.push(server.map_err(|source| ServeError::Listen {
                address,
                protocol: "iSCSI",
                source,
            })?);
        }
        let portals = Portals::new(Arc::clone(&targets), iscsi_servers)?;
        let limits = nbd::ServeLimits { gate: Arc::clone(governor.gate()), ..nbd_limits };
        let nbd_server = nbd::Server::with_tls(Arc::clone(&registry) as Arc<dyn nbd::Exports>, limits, tls);
        let serving = Arc::new(Serving::new(
            Arc::clone(&registry),
            nbd_server.clone(),
            Arc::clone(&targets),
            doors.places().to_vec(),
            Arc::clone(&portals),
        ));
        let mode = if config.read_only { Mode::ReadOnly } else { Mode::Daemon };
        let settings = Settings {
            cache_bytes: governor.cache_bytes(),
            memory: Some(governor.limit()),
            // What was named must open.
            awaits_late: config.pools.is_empty(),
            ..config.settings.clone()
        };
        let host = Host::new(config.places.clone(), mode, settings);
        let journal = Arc::new(Journal::default());
        let dir = config.places.state().dir().to_owned();
        let disks = Disks::remembered(&dir);
        let watching = Watching {
            observer: Observer::new(Arc::clone(&journal)),
            disks: Arc::clone(&disks),
            changes: Arc::default(),
            warmth: Warmth::new(dir.clone()),
        };
        let host = Arc::new(host.with_serving(Arc::clone(&serving)).with_watching(watching));
        let alerts = Alerts::open(Files::new(dir, config.alerts.clone()));
        // Before there is a pool: as soon as one is open what was warm comes back to the cache, and what cache devices remember
        // is found out. It ends with this.
        let mut governing = JoinSet::new();
        governing.spawn(Arc::clone(&governor).govern(Arc::downgrade(&host), Arc::clone(&journal)));
        let opened = tokio::select! {
            opened = open_pools(&config, &host, &mut tell) => opened,
            () = stop_signal.wait() => return host.close().await.map_err(ServeError::Close),
        };
        let late = match opened {
            Ok(late) => Arc::new(late),
            Err(error) => {
                // What was opened before the one that failed is left as it should be; the first failure is the one to tell.
                let _told_already = host.close().await;
                return Err(error);
            }
        };
        let awaited = Arc::clone(&late);
        targets.set_awaited(move |target| awaited.is_awaited(target));
        let known = Arc::clone(&late);
        registry.set_unnamed(move || known.only_volume());
        let awaited = Arc::clone(&late);
        registry.set_awaited(move |export| awaited.is_export_awaited(export));
        let begun = async {
            serving.begin(host.all(), |warning| tell(Event::Warning(warning))).await;
            serving.list().served.into_iter().for_each(|served| tell(Event::Served(served)));
            governor::settle(&governor, &host, &journal).await;
        };
        tokio::select! {
            () = begun => {}
            () = stop_signal.wait() => return host.close().await.map_err(ServeError::Close),
        }
        alerts.start();
        alerts.set_expiries(expiries);
        alerts.watch(Pools::new(Arc::downgrade(&host), Arc::clone(&late)), Arc::clone(&journal), disks);
        let hotplug = tokio::spawn(hotplug::run(Arc::downgrade(&host)));
        let looking = tokio::spawn(lookout::run(Arc::downgrade(&serving), Arc::clone(&journal)));
        let offering = tokio::spawn(Arc::clone(&serving).try_again(Arc::downgrade(&host)));
        let (stop, stopping) = watch::channel(false);
        let opening = tokio::spawn(Arc::clone(&late).run(host.ending()));
        let reading = tokio::spawn(read_again(
            reload_signal,
            config.nbd_tls.clone(),
            nbd_server.clone(),
            Arc::clone(&alerts),
        ));
        let mut tasks = JoinSet::new();
        let (listeners, socket_files) = doors.into_parts();
        for listener in listeners {
            let (server, stopping) = (nbd_server.clone(), stopping.clone());
            tasks.spawn(async move {
                if let Err(error) = server.serve(listener, stopping).await {
                    tracing::error!(%error, "nbd: no longer listening");
                }
            });
        }
        portals.start().await;
        tasks.spawn({
            let (portals, mut stopping) = (Arc::clone(&portals), stopping.clone());
            async move {
                tokio::select! {
                    () = portals.retry() => {}
                    // An error means that the sender is gone, which is a stop, too.
                    _stopped = stopping.wait_for(|stop| *stop) => {}
                }
                portals.stop().await;
            }
        });
        let shared = Arc::new(Shared {
            host: Arc::clone(&host),
            late,
            serving,
            journal,
            alerts: Arc::clone(&alerts),
            governor,
            long_list: Arc::default(),
        });
        let control = tokio::spawn(async move {
            if let Err(error) = socket.serve(shared, stopping).await {
                // Without it the daemon still serves; that is what it is for.
                tracing::error!(%error, "control socket: no longer listening");
            }
            socket
        });
        tell(Event::Ready { socket: config.socket.clone() });
        stop_signal.wait().await;
        // What was begun is finished first, while hosts are served on, if nobody says again that it is to be now.
        host.begin_to_end();
        let turns = tokio::select! {
            turns = timeout(LAST_OPERATIONS, host.last_turns()) => turns.unwrap_or_default(),
            () = stop_signal.again() => Vec::new(),
        };
        stop.send_replace(true);
        finish(&mut tasks, &mut stop_signal).await;
        drop(tasks);
        hotplug.abort();
        looking.abort();
        offering.abort();
        governing.abort_all();
        reading.abort();
        // Before the pools: that they are closed now is no news to anybody.
        alerts.stop().await;
        opening.abort();
        // Whatever is said meanwhile: a pool whose devices do not answer is suspended after a while, and given up.
        let closed = host.close().await;
        drop(turns);
        control.abort();
        // The socket's file goes with it.
        drop(control.await);
        drop((socket_files, state));
        closed.map_err(ServeError::Close)
    })
}

/// How long operations that cannot be interrupted are waited for when the daemon ends. Service managers kill one that takes
/// much longer, and that would leave all pools as a crash does.
const LAST_OPERATIONS: Duration = Duration::from_secs(30);

/// What is in flight is finished, unless somebody says again that it is to be now.
async fn finish(tasks: &mut JoinSet<()>, stop_signal: &mut StopSignal) {
    tokio::select! {
        () = async { while tasks.join_next().await.is_some() {} } => {}
        () = stop_signal.again() => {}
    }
}

/// How long the end may take, from the first signal on, before another one is heeded: whoever closes a terminal sends several at
/// once.
const GRACE: Duration = Duration::from_secs(10);

/// What SIGHUP tells this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hangup {
    /// Nothing, under `nohup`.
    Nothing,
    /// Its terminal was closed.
    Stop,
    /// It has none: somebody asks it to read its files again.
    Reload,
}

impl Hangup {
    fn of_this_process() -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        match () {
            () if ignores_hangup(&read("status")) => Self::Nothing,
            () if has_terminal(&read("stat")) => Self::Stop,
            () => Self::Reload,
        }
    }

    /// The signal, if this is what it tells.
    fn signal(self) -> io::Result<Option<Signal>> {
        let is_meant = Self::of_this_process() == self;
        is_meant.then(|| signal(SignalKind::hangup())).transpose()
    }
}

/// Reads certificates and keys again whenever somebody says so. Those that cannot be used change nothing: when those that
/// hold run out is told as before.
async fn read_again(signal: Option<Signal>, tls: Option<NbdTls>, server: nbd::Server, alerts: Arc<Alerts>) {
    let (Some(mut signal), Some(tls)) = (signal, tls) else { return };
    while signal.recv().await.is_some() {
        match tls.load() {
            Ok((tls, expiries)) => {
                server.set_tls(tls);
                tracing::info!("nbd: the files of TLS were read again");
                for warning in certificates::run_out(&expiries, hostid::now()) {
                    tracing::warn!("nbd: {warning}");
                }
                alerts.set_expiries(expiries);
            }
            Err(error) => tracing::error!("nbd: TLS stays as it was: {}", host::chain(&error)),
        }
    }
}

/// SIGTERM, SIGINT, and SIGHUP of a terminal that is closed: none is a reason to leave pools as a crash would.
struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
    /// Where there is a terminal.
    hangup: Option<Signal>,
    /// When the first of them came.
    first: Option<Instant>,
}

impl StopSignal {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: Hangup::Stop.signal()?,
            first: None,
        })
    }

    async fn wait(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = hangup => {}
        }
        self.first.get_or_insert_with(Instant::now);
    }

    /// Another one that is sent when the [grace](GRACE) is over.
    async fn again(&mut self) {
        sleep_until(self.first.map_or_else(Instant::now, |first| first + GRACE)).await;
        while self.wait().now_or_never().is_some() {}
        self.wait().await;
    }
}

/// A sentence if the file that says who is told of alerts is not there, which is no error: it is made when somebody is
/// added.
fn no_alerts(file: &Path) -> Option<String> {
    let made = match file.parent() {
        _ if file.exists() => return None,
        Some(dir) if !dir.as_os_str().is_empty() && !dir.exists() => "and its directory does not either",
        _ => "'millpond alert add' creates it",
    };
    Some(format!("nobody is told of alerts: '{}' does not exist, {made}", file.display()))
}

/// Whether whoever started this process wants it to outlive its terminal, by what `/proc/self/status` says.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The first signal is the lowest bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Whether this process has a terminal, by what `/proc/self/stat` says.
fn has_terminal(stat: &str) -> bool {
    // Behind the program's name, in which anything may stand: state, parent, group, session, terminal.
    let terminal = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(4));
    terminal.is_none_or(|terminal| terminal != "0")
}

/// Opens what was named, or everything that is this daemon's. What was named must open; of what is where `-d` says, something
/// must, or is waited for because it is imported here; where nobody said that there is any, pools may be created later.
/// Those of everything that are not open in the end are answered, and whatever is there and does not answer.
async fn open_pools(
    config: &Config,
    host: &Arc<Host>,
    tell: &mut impl FnMut(Event),
) -> Result<Late, ServeError> {
    let mut chosen = Vec::new();
    // How a pool was imported, and how new it was, holds although nobody can tell at the moment: none is opened without it.
    let mut imported = config.places.state().pools().map_err(HostError::State)?;
    if config.pools.is_empty() {
        chosen = everything(config, &mut imported, tell).await?;
    }
    // At once: each waits a while for devices that do not answer.
    let mut looks = Vec::with_capacity(config.pools.len());
    for name in &config.pools {
        looks.push(config.places.find(name));
    }
    for found in join_all(looks).await {
        let found = found?;
        if chosen.iter().all(|(known, _)| known.guid != found.0.guid) {
            chosen.push(found);
        }
    }
    let (mut failures, mut missing, mut begun) = (String::new(), Vec::new(), Vec::new());
    let is_asked_for = !config.pools.is_empty() || !config.places.named().is_empty();
    for (candidate, remembered) in &mut chosen {
        // With -d it was found by searching; how it was imported holds all the same.
        let known = || imported.iter().find(|known| known.guid == candidate.guid).cloned();
        *remembered = remembered.take().or_else(known);
    }
    // Without those that were named it does not start; the others are tried again.
    let patience = if config.pools.is_empty() { LOCK_PATIENCE } else { opening::IN_USE_PATIENCE };
    let outcomes = opening::all(host, &chosen, is_asked_for, patience).await;
    for ((candidate, _), outcome) in chosen.iter().zip(outcomes) {
        let (sentence, opening) = match outcome {
            Outcome::Open(notes) => {
                notes.into_iter().for_each(|note| tell(Event::Warning(note)));
                continue;
            }
            Outcome::Failed(sentence) if !config.pools.is_empty() => return Err(ServeError::Open(sentence)),
            Outcome::Failed(sentence) => (sentence, None),
            Outcome::Late(opening) => (host::mute(&candidate.name), Some(opening)),
        };
        failures.push_str(&format!("\n{sentence}"));
        let pool = Missing {
            name: candidate.name.clone(),
            guid: candidate.guid,
            is_imported: imported.iter().any(|known| known.guid == candidate.guid),
            why: sentence.clone(),
        };
        begun.extend(opening.map(|opening| (pool.clone(), opening)));
        missing.push(pool);
        tell(Event::Warning(sentence));
    }
    if config.pools.is_empty() {
        // On none of the devices they were on.
        for pool in awaited(config, &imported).await {
            if chosen.iter().any(|(found, _)| found.guid == pool.guid) {
                continue;
            }
            let why = host::absent(pool);
            tell(Event::Warning(why.clone()));
            missing.push(Missing { name: pool.name.clone(), guid: pool.guid, is_imported: true, why });
        }
    }
    let is_waiting =
        !begun.is_empty() || (config.pools.is_empty() && missing.iter().any(Missing::is_expected));
    if host.all().is_empty() && !is_waiting && is_asked_for {
        return Err(ServeError::NoPools(failures));
    }
    Ok(Late::new(Arc::downgrade(host), missing).with_begun(begun))
}

/// Those of the imported pools that a daemon waits for which was not told which: all, or those that were where `-d` says.
async fn awaited<'a>(config: &Config, imported: &'a [Remembered]) -> Vec<&'a Remembered> {
    if config.places.named().is_empty() {
        return imported.iter().collect();
    }
    let named = real(config.places.named()).await;
    // A disk has many names below /dev.
    let is_dev = |path: &Path| path.starts_with("/dev");
    let was_there = |device: &PathBuf| {
        named.iter().any(|named| device.starts_with(named) || (is_dev(device) && is_dev(named)))
    };
    let mut meant = Vec::new();
    for pool in imported {
        if real(&pool.devices).await.iter().any(was_there) {
            meant.push(pool);
        }
    }
    meant
}

/// The pools of a daemon that was not told which. One that was never imported here may be another's, who has it: a host that
/// shares its disks, or OpenZFS on this one, which exports none when the machine stops. One that is exported may be in a shelf
/// that is about to go elsewhere. Neither is taken because it is there, nor one because it was imported here before another
/// host had it, nor is one whose import lasts until a daemon starts: they are none of those that are `imported` any more,
/// whether that can be written down or not.
async fn everything(
    config: &Config,
    imported: &mut Vec<Remembered>,
    tell: &mut impl FnMut(Event),
) -> Result<Vec<(Candidate, Option<Remembered>)>, ServeError> {
    let is_told_where = !config.places.named().is_empty();
    let lapsed = match is_told_where {
        true => Vec::new(),
        false => config.places.state().passing().map_err(HostError::State)?,
    };
    let is_over = |guid: u64| lapsed.iter().any(|pool| pool.guid == guid);
    imported.retain(|known| !is_over(known.guid));
    let unwritten = match lapsed.is_empty() {
        true => None,
        false => config.places.state().lapse().err(),
    };
    let Known { mut pools, problems, .. } = config.places.all().await.map_err(HostError::State)?;
    // The cache file may list them still.
    pools.retain(|(candidate, _)| !is_over(candidate.guid));
    let mut said = problems;
    said.extend(leave_unusable_names(&mut pools, imported));
    for Remembered { name, .. } in &lapsed {
        said.push(host::lapsed(name));
        said.extend(unwritten.iter().map(|error| still_remembered(name, error)));
    }
    if !is_told_where {
        let is_anothers = |(candidate, remembered): &mut (Candidate, Option<Remembered>)| {
            remembered.is_none() || host::is_given_away(candidate, remembered.as_ref())
        };
        for (candidate, remembered) in pools.extract_if(.., is_anothers) {
            said.push(match host::is_given_away(&candidate, remembered.as_ref()) {
                true => host::given_away(&candidate),
                false => host::never_imported(&candidate.name),
            });
            imported.retain(|known| known.guid != candidate.guid);
            if remembered.is_some()
                && let Err(error) = config.places.state().forget(&candidate.guid.to_string())
            {
                said.push(still_remembered(&candidate.name, &error));
            }
        }
    }
    if pools.is_empty() && awaited(config, imported).await.is_empty() {
        if is_told_where {
            return Err(ServeError::NoPools(said.iter().map(|sentence| format!("\n{sentence}")).collect()));
        }
        said.push(
            "no pool to serve yet: 'millpond zpool create' makes one, 'millpond zpool import' opens one"
                .to_owned(),
        );
    }
    said.into_iter().for_each(|sentence| tell(Event::Warning(sentence)));
    Ok(pools)
}

/// Pools with names that none may have are not waited for either: such a name would reach into another's. A sentence each.
fn leave_unusable_names(
    pools: &mut Vec<(Candidate, Option<Remembered>)>,
    imported: &mut Vec<Remembered>,
) -> Vec<String> {
    let mut said = Vec::new();
    pools.retain(|(candidate, _)| match has_usable_name(candidate) {
        Ok(()) => true,
        Err(why) => {
            imported.retain(|known| known.guid != candidate.guid);
            said.push(why);
            false
        }
    });
    said
}

/// What is said of a pool that is not opened, if that cannot be written down.
fn still_remembered(name: &str, error: &StateError) -> String {
    format!("pool '{name}' stays remembered: {}", host::chain(error))
}

/// The control socket if none is named: root's in `/run`, a user's in the run-time directory, or beside the cache
/// file where there is none.
#[must_use]
pub fn default_socket(state_dir: &Path) -> PathBuf {
    if crate::state::is_root() {
        return PathBuf::from("/run/millpond.sock");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join("millpond.sock"),
        None => state_dir.join("millpond.sock"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpid, kill_process};

    use super::*;

    /// A stranger's was tried again for ever, and whoever asked for what 'tank' does not have was told that it may come.
    #[tokio::test]
    async fn a_pool_with_a_name_that_none_may_have_is_not_waited_for() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![PathBuf::from(dir.path())], crate::state::State::at(kept.path()));
        let (well, _) = places.find("psingle").await.unwrap();
        let mut forged = well.clone();
        "tank/vms".clone_into(&mut forged.name);
        let mut pools = vec![(forged, None), (well, None)];
        let said = leave_unusable_names(&mut pools, &mut Vec::new());
        assert!(said.len() == 1 && said[0].contains("cannot open 'tank/vms'"), "{said:?}");
        assert!(pools.len() == 1 && pools[0].0.name == "psingle");
    }

    /// It went to the terminal and into the log as it was: escape sequences, line feeds, however long.
    #[tokio::test]
    async fn a_name_that_none_may_have_is_shown_in_a_line_of_its_length() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![PathBuf::from(dir.path())], crate::state::State::at(kept.path()));
        let (mut forged, _) = places.find("psingle").await.unwrap();
        forged.name = "a\n\u{1b}[2J".to_owned();
        let said = has_usable_name(&forged).unwrap_err();
        assert!(said.starts_with("cannot open 'a\u{fffd}\u{fffd}[2J': invalid character"), "{said:?}");
        forged.name = "x".repeat(70_000);
        let said = has_usable_name(&forged).unwrap_err();
        assert!(said.len() < 400 && said.contains("x': name is too long"), "{said:.400}");
    }

    #[test]
    fn a_process_has_a_terminal_whatever_it_is_called() {
        assert!(has_terminal("7 (mill) 0 pond) S 1 7 7 34816 7 4194560"));
        assert!(!has_terminal("7 (mill) 1 pond) S 1 7 7 0 -1 4194560"));
        assert!(has_terminal(""), "who cannot know stops");
    }

    /// A burst that came within the grace was heeded at its end, and what was being finished was given up; at once where it was
    /// no operation, but what clients had in flight.
    #[tokio::test(start_paused = true)]
    async fn signals_that_come_together_are_one_and_a_later_one_is_another() {
        let mut signals = StopSignal::new().unwrap();
        let send = async || {
            // Not SIGHUP, which is none under nohup.
            kill_process(getpid(), rustix::process::Signal::TERM).unwrap();
            // It may be another thread that gets it, which no virtual clock waits for.
            let (_never, delivered) = std::sync::mpsc::channel::<()>();
            let _over = delivered.recv_timeout(Duration::from_millis(20));
            tokio::task::yield_now().await;
        };
        send().await;
        signals.wait().await;
        let begun = Instant::now();
        let mut burst = std::pin::pin!(signals.again());
        assert!(timeout(GRACE / 2, &mut burst).await.is_err());
        send().await;
        send().await;
        assert!(timeout(GRACE, &mut burst).await.is_err(), "they came within the grace");
        send().await;
        burst.await;
        assert!(begun.elapsed() < 2 * GRACE);
        let mut signals = StopSignal::new().unwrap();
        send().await;
        signals.wait().await;
        send().await;
        let mut tasks = JoinSet::new();
        tasks.spawn(tokio::time::sleep(GRACE / 2));
        finish(&mut tasks, &mut signals).await;
        assert!(tasks.is_empty(), "it was cut off");
        tasks.spawn(tokio::time::sleep(10 * GRACE));
        let mut finishing = std::pin::pin!(finish(&mut tasks, &mut signals));
        assert!(timeout(GRACE, &mut finishing).await.is_err());
        send().await;
        assert!(timeout(GRACE, finishing).await.is_ok(), "a later one means now");
    }
}
