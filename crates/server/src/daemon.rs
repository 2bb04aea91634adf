//! `millpond serve`: pools opened, their volumes offered over NBD and iSCSI, until told to stop.
//!
//! ```text
//!   start: addresses resolved ▶ control socket ▶ pools opened ▶ volumes opened ▶ listening ▶ `ready`
//!   stop:  no new connections ▶ what is in flight finishes ▶ volumes and pools let go ▶ socket removed
//! ```
//!
//! What can be known to be wrong is found out before the first device is touched, and nobody is told `ready`
//! before everything that was promised can be connected to.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use block::BlockVolume as _;
use pool::{Pool, volume::OpenVolumeError};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    answers::Pools,
    api::{self, Served, Url},
    client::escape,
    control::{ControlSocket, Shared, SocketError},
    host::{self, HostError, Known, Places, Settings, chain},
};

/// Where NBD clients expect a server.
pub const NBD_DEFAULT: &str = "127.0.0.1:10809";
/// Where iSCSI initiators expect one.
pub const ISCSI_DEFAULT: &str = "127.0.0.1:3260";
/// Block cache of all pools together, in bytes.
pub const CACHE_BYTES: usize = 512 << 20;
/// Least cache of a pool, in bytes.
const CACHE_BYTES_MIN: usize = 32 << 20;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to look for pools.
    pub places: Places,
    /// Pools by name or guid; all that are found if none is named.
    pub pools: Vec<String>,
    /// How to open them.
    pub settings: Settings,
    /// Addresses for NBD, `ADDR:PORT`. With none here and none for iSCSI, both defaults.
    pub nbd: Vec<String>,
    /// Addresses for iSCSI.
    pub iscsi: Vec<String>,
    /// Control socket.
    pub socket: PathBuf,
}

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Not an address.
    #[error("'{address}' is not an address: give ADDR:PORT, for example {NBD_DEFAULT}")]
    Address {
        /// What was given.
        address: String,
        /// The resolver's reason.
        #[source]
        source: io::Error,
    },
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
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A pool that was named cannot be opened.
    #[error(transparent)]
    Pool(#[from] HostError),
    /// No pool was named and none can be opened.
    #[error("no pools available to serve{0}")]
    NoPools(String),
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

/// Serves until SIGTERM or SIGINT. `tell` hears what is served, and when it is ready; if it fails (nobody reads
/// what is printed any more) the daemon goes on.
///
/// # Errors
/// See [`ServeError`]. Not for what happens to single connections.
pub async fn serve(config: Config, mut tell: impl FnMut(Event)) -> Result<(), ServeError> {
    let mut stop_signal = StopSignal::new()?;
    let (mut nbd_addresses, mut iscsi_addresses) =
        (resolve(&config.nbd).await?, resolve(&config.iscsi).await?);
    if nbd_addresses.is_empty() && iscsi_addresses.is_empty() {
        nbd_addresses = resolve(&[NBD_DEFAULT.to_owned()]).await?;
        iscsi_addresses = resolve(&[ISCSI_DEFAULT.to_owned()]).await?;
    }
    let mut socket = ControlSocket::bind(&config.socket).await?;
    let pools = tokio::select! {
        pools = open_pools(&config, &mut tell) => pools?,
        () = stop_signal.wait() => return Ok(()),
    };

    let registry = Arc::new(nbd::Registry::new());
    let portals =
        iscsi_addresses.iter().copied().filter(|a| a.port() != 0 && !a.ip().is_unspecified()).collect();
    let targets = iscsi::Targets::new(iscsi::Config { portals, ..iscsi::Config::default() });
    let mut nbd_listeners = Vec::new();
    for address in &nbd_addresses {
        let listener = TcpListener::bind(address).await;
        nbd_listeners.push(listener.map_err(|source| ServeError::Listen {
            address: *address,
            protocol: "NBD",
            source,
        })?);
    }
    let iscsi_server = match iscsi_addresses.first() {
        None => None,
        Some(&address) => {
            let server = iscsi::Server::bind(Arc::clone(&targets), &iscsi_addresses).await;
            Some(server.map_err(|source| ServeError::Listen { address, protocol: "iSCSI", source })?)
        }
    };
    let nbd_local: Vec<SocketAddr> =
        nbd_listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    let iscsi_local = iscsi_server.as_ref().map_or(Ok(Vec::new()), iscsi::Server::local_addrs)?;

    let mut served = Vec::new();
    for pool in &pools {
        let urls = Urls { nbd: &nbd_local, iscsi: &iscsi_local };
        for entry in offer(pool, &registry, &targets, &urls, &mut tell).await {
            tell(Event::Served(entry.clone()));
            served.push(entry);
        }
    }

    let (stop, stopping) = watch::channel(false);
    let nbd_server =
        nbd::Server::new(Arc::clone(&registry) as Arc<dyn nbd::Exports>, nbd::ServeLimits::default());
    let mut tasks = tokio::task::JoinSet::new();
    for listener in nbd_listeners {
        let (server, stopping) = (nbd_server.clone(), stopping.clone());
        tasks.spawn(async move {
            if let Err(error) = server.serve(nbd::Listener::Tcp(listener), stopping).await {
                tracing::error!(%error, "nbd: no longer listening");
            }
        });
    }
    if let Some(server) = iscsi_server {
        let mut stopping = stopping.clone();
        tasks.spawn(server.run(async move {
            // An error means that the sender is gone, which is a stop, too.
            let _stopped = stopping.wait_for(|stop| *stop).await;
        }));
    }
    let shared = Arc::new(Shared {
        pools: Pools::new(pools),
        served: Box::new({
            let targets = Arc::clone(&targets);
            move || api::ServedList {
                served: served.clone(),
                nbd_connections: nbd_server.connections().len() as u64,
                iscsi_sessions: targets.sessions().len() as u64,
            }
        }),
    });
    let control = async {
        if let Err(error) = socket.serve(shared, stopping).await {
            tracing::error!(%error, "control socket: no longer listening");
            // Without it the daemon still serves; that is what it is for.
            std::future::pending::<()>().await;
        }
    };
    tell(Event::Ready { socket: config.socket.clone() });
    tokio::select! {
        () = stop_signal.wait() => {}
        () = control => {}
    }
    stop.send_replace(true);
    // A second signal means now.
    tokio::select! {
        () = async { while tasks.join_next().await.is_some() {} } => {}
        () = stop_signal.wait() => {}
    }
    drop(tasks);
    drop(socket);
    Ok(())
}

/// SIGTERM and SIGINT.
struct StopSignal {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignal {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn resolve(addresses: &[String]) -> Result<Vec<SocketAddr>, ServeError> {
    let mut all = Vec::new();
    for address in addresses {
        let failed = |source| ServeError::Address { address: address.clone(), source };
        let found = tokio::net::lookup_host(address).await.map_err(failed)?.next();
        all.push(found.ok_or_else(|| failed(io::Error::other("it has no address")))?);
    }
    Ok(all)
}

/// Opens what was named, or everything there is. What was named must open; of everything, something must.
async fn open_pools(config: &Config, tell: &mut impl FnMut(Event)) -> Result<Vec<Arc<Pool>>, ServeError> {
    let mut chosen = Vec::new();
    if config.pools.is_empty() {
        let Known { pools, problems } = config.places.all().await.map_err(HostError::State)?;
        let said: String = problems.iter().map(|problem| format!("\n{problem}")).collect();
        if pools.is_empty() {
            return Err(ServeError::NoPools(said));
        }
        problems.into_iter().for_each(|problem| tell(Event::Warning(problem)));
        chosen = pools;
    }
    for name in &config.pools {
        let found = config.places.find(name).await?;
        if chosen.iter().all(|(known, _)| known.guid != found.0.guid) {
            chosen.push(found);
        }
    }
    let cache_bytes = (config.settings.cache_bytes / chosen.len().max(1)).max(CACHE_BYTES_MIN);
    let settings = Settings { cache_bytes, ..config.settings.clone() };
    let mut pools: Vec<Arc<Pool>> = Vec::new();
    let mut failures = String::new();
    for (candidate, remembered) in &chosen {
        let opened = if pools.iter().any(|pool| pool.name() == candidate.name) {
            let guids =
                chosen.iter().filter(|(c, _)| c.name == candidate.name).map(|(c, _)| c.guid).collect();
            Err(HostError::Ambiguous { name: candidate.name.clone(), guids })
        } else {
            host::open(candidate, remembered.as_ref(), &settings).await
        };
        match opened {
            Ok(opened) => {
                opened.notes.into_iter().for_each(|note| tell(Event::Warning(note)));
                pools.push(opened.pool);
            }
            Err(error) if !config.pools.is_empty() => return Err(error.into()),
            Err(error) => {
                let said = chain(&error);
                failures.push_str(&format!("\n{said}"));
                tell(Event::Warning(said));
            }
        }
    }
    if pools.is_empty() {
        return Err(ServeError::NoPools(failures));
    }
    Ok(pools)
}

struct Urls<'a> {
    nbd: &'a [SocketAddr],
    iscsi: &'a [SocketAddr],
}

/// Opens every volume and volume snapshot of `pool` and registers it with both protocols.
async fn offer(
    pool: &Pool,
    registry: &nbd::Registry,
    targets: &Arc<iscsi::Targets>,
    urls: &Urls<'_>,
    tell: &mut impl FnMut(Event),
) -> Vec<Served> {
    let listed = match pool.dsl().await {
        Ok(dsl) => dsl.volumes().await,
        Err(error) => Err(error),
    };
    let (volumes, problems) = match listed {
        Ok(listed) => listed,
        Err(error) => {
            tell(Event::Warning(format!("cannot list the datasets of '{}': {}", pool.name(), chain(&error))));
            return Vec::new();
        }
    };
    for problem in problems {
        tell(Event::Warning(chain(&problem)));
    }
    let mut all = Vec::new();
    for dataset in volumes {
        let name = dataset.name().to_owned();
        let mut entry = Served {
            dataset: name.clone(),
            guid: dataset.guid().to_string(),
            size: 0,
            block: 0,
            urls: Vec::new(),
            refused: None,
        };
        match dataset.open_volume().await {
            Ok(volume) => {
                let geometry = volume.geometry();
                (entry.size, entry.block) = (geometry.size, geometry.block);
                if !urls.nbd.is_empty() {
                    match registry.insert(
                        &name,
                        &format!("{} bytes, read-only", geometry.size),
                        volume.clone(),
                    ) {
                        Ok(()) => entry.urls.extend(urls.nbd.iter().map(|address| nbd_url(*address, &name))),
                        Err(error) => entry.refused = Some(error.to_string()),
                    }
                }
                if !urls.iscsi.is_empty() {
                    let iqn = iscsi::iqn::for_dataset(&name);
                    match targets.add(&iqn, volume) {
                        Ok(_) => entry.urls.extend(urls.iscsi.iter().map(|address| Url {
                            protocol: "iscsi".to_owned(),
                            url: format!("iscsi://{address}/{iqn}/0"),
                        })),
                        Err(error) => entry.refused = Some(error.to_string()),
                    }
                }
            }
            Err(error @ (OpenVolumeError::NotAVolume(_) | OpenVolumeError::Encrypted(_))) => {
                entry.refused = Some(error.to_string());
            }
            Err(error) => entry.refused = Some(chain(&error)),
        }
        all.push(entry);
    }
    all
}

fn nbd_url(address: SocketAddr, name: &str) -> Url {
    Url { protocol: "nbd".to_owned(), url: format!("nbd://{address}/{}", escape(name, "/@")) }
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
