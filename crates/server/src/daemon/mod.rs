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
//!
//! Here is the order of it. What it consists of is below: where clients come in (`entrances`), which pools are opened
//! (`pools`), what signals say (`signals`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ::memory::machine::Machine;
use engine::BoxFuture;
use tokio::{
    signal::unix::Signal,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

mod entrances;
mod error;
mod pools;
mod signals;

pub use self::error::ServeError;
use self::{
    entrances::{Entrances, Opened},
    signals::{Hangup, StopSignal, read_again},
};
use crate::{
    alerts::{Alerts, Files, source::Pools},
    api::Served,
    certificates::{self, Expiry, NbdTls},
    clock,
    control::{ControlSocket, Shared},
    disks::Disks,
    doors::{Doors, Inherited},
    events::{Journal, observe::Observer},
    governor::{self, Governor, MemorySettings},
    host::{self, Places, Settings},
    hostid, hotplug,
    late::Late,
    lookout,
    ops::{Host, Mode, Watching},
    serving::Serving,
    state::{Claim, StateError},
    unix_socket::SocketFile,
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

/// Who hears of it.
type Tell = dyn FnMut(Event) + Send;

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
        let entrances = Entrances::look_up(&config, inherited, &mut *tell).await?;
        let claim = claim(&config, &mut *tell)?;
        // After that: one that gives up must not have taken the place of another's socket.
        let socket = ControlSocket::bind(&config.socket).await?;
        warn(&config, &governor, &entrances.expiries, &mut *tell);
        let mut daemon = Daemon::assemble(&config, entrances, governor).await?;
        let opened = tokio::select! {
            opened = pools::open(&config, &daemon.host, &mut *tell) => opened,
            () = stop_signal.wait() => return daemon.host.close().await.map_err(ServeError::Close),
        };
        let late = match opened {
            Ok(late) => Arc::new(late),
            Err(error) => {
                // What was opened before the one that failed is left as it should be; the first failure is the one to tell.
                let _told_already = daemon.host.close().await;
                return Err(error);
            }
        };
        tokio::select! {
            () = daemon.offer(&late, &mut *tell) => {}
            () = stop_signal.wait() => return daemon.host.close().await.map_err(ServeError::Close),
        }
        daemon.heed_reload(reload_signal, config.nbd_tls);
        let running = daemon.begin(late, socket, claim).await;
        tell(Event::Ready { socket: config.socket });
        stop_signal.wait().await;
        running.stop(&mut stop_signal).await
    })
}

/// The state directory is this daemon's until that is dropped; none if nothing can be kept there.
fn claim(config: &Config, tell: &mut Tell) -> Result<Option<Claim>, ServeError> {
    match config.places.state().for_a_daemon() {
        Ok(claim) => Ok(Some(claim)),
        Err(in_use @ StateError::InUse { .. }) => Err(in_use.into()),
        // What is served needs no file; but what is not kept is missed at the next start.
        Err(error) => {
            tell(Event::Warning(format!(
                "nothing can be kept in the state directory: {}; what is imported or set up from now on is forgotten \
                 when the daemon ends",
                host::chain(&error)
            )));
            Ok(None)
        }
    }
}

/// What is not as it should be, and keeps nobody from serving.
fn warn(config: &Config, governor: &Governor, expiries: &[Expiry], tell: &mut Tell) {
    if let Some(note) = governor.last_to_be_killed() {
        // In a container it is so at every start, and the daemon works as well.
        tracing::info!("{note}");
    }
    let doubtful = governor.beyond_limit().into_iter().chain(config.alerts.as_deref().and_then(no_alerts));
    let run_out = certificates::run_out(expiries, hostid::now());
    doubtful.chain(run_out).for_each(|warning| tell(Event::Warning(warning)));
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

/// Everything that serves, put together. It listens, and nobody is let in.
struct Daemon {
    /// Tasks beside those of clients. They end with this.
    beside: JoinSet<()>,
    host: Arc<Host>,
    registry: Arc<nbd::Registry>,
    serving: Arc<Serving>,
    doors: Doors,
    journal: Arc<Journal>,
    disks: Arc<Disks>,
    alerts: Arc<Alerts>,
    governor: Arc<Governor>,
}

impl Daemon {
    async fn assemble(
        config: &Config,
        entrances: Entrances,
        governor: Arc<Governor>,
    ) -> Result<Self, ServeError> {
        let Opened { registry, nbd, doors, targets, portals, expiries } =
            entrances.open(governor.gate()).await?;
        let places = doors.places().to_vec();
        let serving = Arc::new(Serving::new(Arc::clone(&registry), nbd, targets, places, portals));
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
        alerts.set_expiries(expiries);
        // Before there is a pool: as soon as one is open what was warm comes back to the cache, and what cache devices remember
        // is found out.
        let mut beside = JoinSet::new();
        beside.spawn(Arc::clone(&governor).govern(Arc::downgrade(&host), Arc::clone(&journal)));
        Ok(Self { beside, host, registry, serving, doors, journal, disks, alerts, governor })
    }

    /// Offers what is open. Who asks for what is not, and may come, is told so.
    async fn offer(&self, late: &Arc<Late>, tell: &mut Tell) {
        let awaited = Arc::clone(late);
        self.serving.targets().set_awaited(move |target| awaited.is_awaited(target));
        let known = Arc::clone(late);
        self.registry.set_unnamed(move || known.only_volume());
        let awaited = Arc::clone(late);
        self.registry.set_awaited(move |export| awaited.is_export_awaited(export));
        self.serving.begin(self.host.all(), |warning| tell(Event::Warning(warning))).await;
        self.serving.list().served.into_iter().for_each(|served| tell(Event::Served(served)));
        governor::settle(&self.governor, &self.host, &self.journal).await;
    }

    /// From now on certificates and keys are read again when somebody says so.
    fn heed_reload(&mut self, signal: Option<Signal>, tls: Option<NbdTls>) {
        let nbd = self.serving.nbd_server().clone();
        self.beside.spawn(read_again(signal, tls, nbd, Arc::clone(&self.alerts)));
    }

    /// Lets clients in, and begins everything that goes on until the end.
    async fn begin(self, late: Arc<Late>, mut socket: ControlSocket, claim: Option<Claim>) -> Running {
        let Self { mut beside, host, serving, doors, journal, disks, alerts, governor, .. } = self;
        alerts.start();
        alerts.watch(Pools::new(Arc::downgrade(&host), Arc::clone(&late)), Arc::clone(&journal), disks);
        beside.spawn(hotplug::run(Arc::downgrade(&host)));
        beside.spawn(lookout::run(Arc::downgrade(&serving), Arc::clone(&journal)));
        beside.spawn(Arc::clone(&serving).try_again(Arc::downgrade(&host)));
        let opening = tokio::spawn(Arc::clone(&late).run(host.ending()));
        let (stop, stopping) = watch::channel(false);
        let mut clients = JoinSet::new();
        let (listeners, socket_files) = doors.into_parts();
        for listener in listeners {
            let (nbd, stopping) = (serving.nbd_server().clone(), stopping.clone());
            clients.spawn(async move {
                if let Err(error) = nbd.serve(listener, stopping).await {
                    tracing::error!(%error, "nbd: no longer listening");
                }
            });
        }
        serving.portals().start().await;
        clients.spawn({
            let (portals, mut stopping) = (Arc::clone(serving.portals()), stopping.clone());
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
        Running { host, stop, clients, beside, alerts, opening, control, files: (socket_files, claim) }
    }
}

/// A daemon that serves.
struct Running {
    host: Arc<Host>,
    /// Tells `clients` and `control` to end.
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
    beside: JoinSet<()>,
    alerts: Arc<Alerts>,
    /// Of pools that are late.
    opening: JoinHandle<()>,
    control: JoinHandle<ControlSocket>,
    /// Sockets of NBD, and the state directory.
    files: (Vec<SocketFile>, Option<Claim>),
}

/// How long operations that cannot be interrupted are waited for when the daemon ends. Service managers kill one that takes
/// much longer, and that would leave all pools as a crash does.
const LAST_OPERATIONS: Duration = Duration::from_secs(30);

impl Running {
    async fn stop(self, stop_signal: &mut StopSignal) -> Result<(), ServeError> {
        let Self { host, stop, mut clients, mut beside, alerts, opening, control, files } = self;
        // What was begun is finished first, while hosts are served on, if nobody says again that it is to be now.
        host.begin_to_end();
        let turns = stop_signal.unless_again(timeout(LAST_OPERATIONS, host.last_turns())).await;
        let turns = turns.and_then(Result::ok).unwrap_or_default();
        stop.send_replace(true);
        stop_signal.finish(&mut clients).await;
        drop(clients);
        beside.abort_all();
        // Before the pools: that they are closed now is no news to anybody.
        alerts.stop().await;
        opening.abort();
        // Whatever is said meanwhile: a pool whose devices do not answer is suspended after a while, and given up.
        let closed = host.close().await;
        drop(turns);
        control.abort();
        // The socket's file goes with it.
        drop(control.await);
        drop(files);
        closed.map_err(ServeError::Close)
    }
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
