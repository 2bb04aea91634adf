//! Accepts connections and drives a [`Session`] for each. This file, `pump.rs` and the streams in `wire.rs` are all that
//! knows sockets.
//!
//! A connection is one task: a handshake, and then a [`Pump`] to its end.
//!
//! Shutdown is soft: no new connections, what is in flight is finished and sent, then the stream is closed
//! from our side first and drained, so that the last replies are not lost to a reset. What still arrives
//! is left unanswered when the server stops: hosts send it again to the next server, while an error would
//! fail the guest's write. When the export is gone for good, it is answered with `ESHUTDOWN`. Either way it is
//! over soon: who waits for a restart is not kept waiting by a client that takes no answers. What is cut off is
//! unanswered, too.
//!
//! Who gets in, and who has to leave for others, is [`peers::Crowd`]'s to say.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{BoxFuture, Quiet, shown};
use memory::{Client, Gate};
use peers::{Crowd, Link, Peer, Place, Places, host_of};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    sync::watch,
    task::{JoinSet, yield_now},
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, error, info, warn};

use crate::{
    error::ProtocolError,
    export::Exports,
    pump::{Goodbye, Pump},
    session::{Limits, Phase, Session},
    stats::{ConnectionInfo, Counters, Published},
    tls::{Proof, Tls},
    transmission::Request,
    wire::Wire,
};

/// How long a closed connection is drained, so that a reset does not overtake the last replies.
const LINGER: Duration = Duration::from_secs(1);

/// How often it is looked for an export that a client waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A peer that vanished without a word is noticed after about two minutes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);
/// The same while replies are on their way to it: then nothing asks for a sign of life, and the kernel would go on sending
/// them again for a quarter of an hour. Who is there and takes nothing at all for as long has gone, too (of iSCSI's peers,
/// who are to answer for themselves, nobody waits longer than a minute).
const VANISHED: Duration = {
    let (time, interval, retries) = KEEPALIVE;
    Duration::from_secs(time.as_secs() + interval.as_secs() * retries as u64)
};

/// Where clients come in.
#[derive(Debug)]
pub enum Listener {
    /// `nbd://`
    Tcp(TcpListener),
    /// `nbd+unix://`
    Unix(UnixListener),
}

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct ServeLimits {
    /// Connections over the network at once; more are closed as they come.
    pub connections: usize,
    /// Connections of one address at once, and never more than three of four. As many again come in by Unix sockets.
    pub per_peer: usize,
    /// From connect to the end of the handshake, that of TLS included. It begins anew with each option that was
    /// answered (who asks about every export of a long list takes its time), and while an export is awaited.
    pub handshake: Duration,
    /// From connect to the end of the handshake, however much was asked, and whatever is awaited.
    pub handshake_in_all: Duration,
    /// How long what is in flight may take when the client is gone. If it did not say good-bye, what changes the volume is
    /// given up at once.
    pub grace: Duration,
    /// How long what is in flight may take, and its answers to be taken by the client, when the server stops or the
    /// export is gone.
    pub stop: Duration,
    /// Bounds of each connection.
    pub session: Limits,
    /// What all connections may hold together: requests in flight and replies not yet sent (replies that are shared
    /// with a cache count, too). Other servers may share it.
    pub gate: Arc<Gate>,
}

impl ServeLimits {
    fn places(&self) -> Places {
        Places { all: self.connections, share: self.per_peer, strangers: None }
    }
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            // A hypervisor has a connection for each disk of its machines, or several; and one of many has a
            // quarter of the places. An idle one costs its receive buffer, 128 KiB.
            connections: 1024,
            per_peer: 256,
            handshake: Duration::from_secs(10),
            // A thousand exports, five each second.
            handshake_in_all: Duration::from_secs(300),
            grace: Duration::from_secs(30),
            // With `LINGER` it is the time that iSCSI gives its initiators to log out, so that a restart takes no
            // longer for one than for the other; and guests give a disk 30 s.
            stop: Duration::from_secs(2),
            session: Limits::default(),
            gate: Gate::new(512 << 20),
        }
    }
}

/// Serves exports to any number of listeners. Clones share everything.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    exports: Arc<dyn Exports>,
    limits: ServeLimits,
    tls: Mutex<Option<Tls>>,
    crowd: Crowd,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Counters of connections that ended.
    past: Mutex<Counters>,
    next_id: AtomicU64,
    quiet: Quiet,
    /// Of its own: who floods the door with connections, or with garbage, does not drown what is said of those who are in.
    refusals: Quiet,
    /// For those who come in: many that come and go must not keep a warning from being written.
    welcome: Quiet,
}

/// What others may see of a connection.
#[derive(Debug)]
struct Connection {
    id: u64,
    peer: String,
    export: OnceLock<String>,
    counters: Published,
}

impl Server {
    /// A server of these exports.
    pub fn new(exports: Arc<dyn Exports>, limits: ServeLimits) -> Self {
        Self::with_tls(exports, limits, None)
    }

    /// The same; with TLS, if there is any.
    pub fn with_tls(exports: Arc<dyn Exports>, limits: ServeLimits, tls: Option<Tls>) -> Self {
        Self {
            shared: Arc::new(Shared {
                exports,
                crowd: Crowd::new(limits.places()),
                limits,
                tls: Mutex::new(tls),
                connections: Mutex::default(),
                past: Mutex::default(),
                next_id: AtomicU64::new(1),
                quiet: Quiet::default(),
                refusals: Quiet::default(),
                welcome: Quiet::default(),
            }),
        }
    }

    /// From now on whoever comes is secured by these; who is in stays as he is.
    pub fn set_tls(&self, tls: Tls) {
        *lock(&self.shared.tls) = Some(tls);
    }

    /// Accepts until `stop` is true (or its sender is gone), then waits for the connections of this
    /// listener to finish what is in flight. Dropping the future ends them at once.
    pub fn serve(
        &self,
        listener: Listener,
        mut stop: watch::Receiver<bool>,
    ) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let mut tasks = JoinSet::new();
            let stopping = stop.clone();
            let mut stopped = pin!(stopped(&mut stop));
            loop {
                tokio::select! {
                    () = &mut stopped => break,
                    Some(ended) = tasks.join_next() => self.ended(ended),
                    accepted = accept(&listener, &self.shared.crowd) => match accepted {
                        Ok((socket, from)) => self.admit(&mut tasks, socket, from, &stopping),
                        Err(error) => {
                            // Out of descriptors, or the peer was faster: neither ends the service.
                            self.shared.quiet.say(|left_out| {
                                warn!(%error, left_out, "nbd: cannot accept a connection");
                            });
                            sleep(Duration::from_millis(50)).await;
                        }
                    },
                }
            }
            drop(listener);
            while let Some(ended) = tasks.join_next().await {
                self.ended(ended);
            }
            Ok(())
        })
    }

    /// Connections as of now.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let info = |connection: &Arc<Connection>| ConnectionInfo {
            id: connection.id,
            peer: connection.peer.clone(),
            export: connection.export.get().cloned(),
            counters: connection.counters.get(),
        };
        lock(&self.shared.connections).values().map(info).collect()
    }

    /// Sum over all connections there ever were.
    pub fn totals(&self) -> Counters {
        // Connections move from one to the other under both locks, so none is counted twice.
        let connections = lock(&self.shared.connections);
        let mut totals = *lock(&self.shared.past);
        for connection in connections.values() {
            totals.add(&connection.counters.get());
        }
        totals
    }

    fn ended(&self, ended: Result<(), tokio::task::JoinError>) {
        if let Err(error) = ended {
            self.shared.quiet.say(|left_out| error!(%error, left_out, "nbd: a connection's task failed"));
        }
    }

    fn admit(
        &self,
        tasks: &mut JoinSet<()>,
        socket: Socket,
        from: Option<SocketAddr>,
        stop: &watch::Receiver<bool>,
    ) {
        let peer = from.map_or_else(|| "unix".to_owned(), |address| address.to_string());
        let place = match self.shared.crowd.enter(from.map_or(Peer::Local, |address| address.ip().into())) {
            Ok(place) => place,
            Err(full) => {
                self.shared.refusals.say(|left_out| {
                    warn!(peer, why = %full, left_out, "nbd: connection refused");
                });
                return;
            }
        };
        let id = self.shared.next_id.fetch_add(1, Relaxed);
        let connection =
            Arc::new(Connection { id, peer, export: OnceLock::new(), counters: Published::default() });
        lock(&self.shared.connections).insert(id, Arc::clone(&connection));
        let guard = Registered { shared: Arc::clone(&self.shared), connection, place };
        let stop = stop.clone();
        match socket {
            Socket::Tcp(stream) => tasks.spawn(Box::pin(connection_task(guard, stream, stop))),
            Socket::Unix(stream) => tasks.spawn(Box::pin(connection_task(guard, stream, stop))),
        };
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    drop(stop.wait_for(|stop| *stop).await);
}

enum Socket {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// The next client, and its address if it came over the network.
async fn accept(listener: &Listener, crowd: &Crowd) -> io::Result<(Socket, Option<SocketAddr>)> {
    match listener {
        Listener::Tcp(listener) => {
            crowd.calm().await;
            let (stream, peer) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (time, interval, retries) = KEEPALIVE;
            let keepalive =
                socket2::TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
            let socket = socket2::SockRef::from(&stream);
            socket.set_tcp_keepalive(&keepalive)?;
            socket.set_tcp_user_timeout(Some(VANISHED))?;
            Ok((Socket::Tcp(stream), Some(peer)))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            Ok((Socket::Unix(stream), None))
        }
    }
}

/// A connection's entry in the server's list, as long as its task lives (or until it is aborted).
struct Registered {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    /// Given up after the entry.
    place: Place,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut connections = lock(&self.shared.connections);
        lock(&self.shared.past).add(&self.connection.counters.get());
        connections.remove(&self.connection.id);
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client said good-bye, or closed its side.
    Left,
    /// The server stops, or the export is gone.
    Stopped,
    /// No handshake in time.
    TooSlow,
    /// No handshake yet when others needed the place.
    Ousted,
    /// In flight for longer than is allowed.
    Overdue,
    /// In the way of others; those who watch the gate have said why.
    Expelled,
    Lost(io::Error),
    Protocol(ProtocolError),
}

async fn connection_task<S>(guard: Registered, mut stream: S, stop: watch::Receiver<bool>)
where
    S: Wire + peers::Socket,
{
    let shared = &guard.shared;
    let exports = Arc::clone(&shared.exports);
    let mut session = Session::new(exports, shared.limits.session, Arc::clone(&shared.limits.gate));
    let peer = guard.connection.peer.as_str();
    let host = peer.parse().ok().map(|peer: SocketAddr| host_of(peer.ip()));
    let client = Client::new(host, format!("nbd client {peer}"));
    session.known_as(&client);
    // What is said to one client is of one piece.
    let tls = lock(&shared.tls).clone();
    if let Some(tls) = &tls {
        session.offer_tls(tls.is_required);
    }
    let mut patience = Patience::new(&shared.limits, stop);
    let greeted = patience.haggle(&guard.place, &mut stream, &mut session).await;
    let tls = tls.filter(|_| greeted.is_ok() && session.phase() == Phase::Securing);
    match tls.map(|tls| tls.proof) {
        None => {
            let in_flight = session.export().map_or(0, |_| shared.limits.gate.max());
            converse(guard, Link::new(stream, in_flight), session, greeted, patience.stop).await;
        }
        Some(Proof::Certificates(certificates)) => {
            let securing = async { certificates.accept(stream).await.map_err(End::Lost) };
            let secured = patience.bear(&guard.place, securing).await;
            converse_secured(guard, secured, session, patience).await;
        }
        Some(Proof::Keys(keys)) => {
            let securing = async { keys.accept(stream).await.map_err(End::Lost) };
            let secured = patience.bear(&guard.place, securing).await;
            converse_secured(guard, secured, session, patience).await;
        }
    }
}

/// Goes on under TLS, if it came to that.
async fn converse_secured<S>(
    guard: Registered,
    secured: Result<S, End>,
    mut session: Session,
    mut patience: Patience,
) where
    S: Wire,
{
    match secured {
        Ok(mut stream) => {
            session.secured();
            let greeted = patience.haggle(&guard.place, &mut stream, &mut session).await;
            converse(guard, stream, session, greeted, patience.stop).await;
        }
        Err(end) => report(&guard, &session, &end),
    }
}

/// How long a client may take to say what it wants: all parts of its handshake together, and longer while it asks and is
/// answered.
struct Patience {
    each: Duration,
    until: Instant,
    last: Instant,
    stop: watch::Receiver<bool>,
}

impl Patience {
    fn new(limits: &ServeLimits, stop: watch::Receiver<bool>) -> Self {
        let (until, last) = (after(limits.handshake), after(limits.handshake_in_all));
        Self { each: limits.handshake, until: until.min(last), last, stop }
    }

    /// The handshake, up to TLS or to the end.
    async fn haggle<S: Wire>(
        &mut self,
        place: &Place,
        stream: &mut S,
        session: &mut Session,
    ) -> Result<Option<Request>, End> {
        loop {
            let request = self.bear(place, handshake(stream, session)).await?;
            if request.is_some() || session.phase() != Phase::Handshake {
                return Ok(request);
            }
            self.until = after(self.each).min(self.last);
        }
    }

    /// Something of the handshake, unless it takes too long, others need the place, or the server stops.
    async fn bear<T>(&mut self, place: &Place, what: impl Future<Output = Result<T, End>>) -> Result<T, End> {
        tokio::select! {
            () = stopped(&mut self.stop) => Err(End::Stopped),
            () = place.ousted() => Err(End::Ousted),
            done = timeout_at(self.until, what) => done.unwrap_or(Err(End::TooSlow)),
        }
    }
}

pub(crate) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}

/// Serves a client that chose an export, to the end of the connection.
async fn converse<S>(
    guard: Registered,
    mut stream: S,
    mut session: Session,
    greeted: Result<Option<Request>, End>,
    mut stop: watch::Receiver<bool>,
) where
    S: Wire,
{
    let (shared, connection) = (&guard.shared, &guard.connection);
    let peer = connection.peer.as_str();
    let end = match (greeted, session.export().cloned()) {
        (Err(end), _) => end,
        (Ok(_), None) => End::Left,
        (Ok(_), Some(_)) if !guard.place.settle() => End::Ousted,
        (Ok(first), Some(export)) => {
            let welcome = &shared.welcome;
            welcome.say(|left_out| info!(peer, export = export.name, left_out, "nbd: connected"));
            // Set once per connection, here.
            drop(connection.export.set(export.name.clone()));
            let removed = export.removed();
            let client = Arc::clone(session.client());
            let stop = Box::pin(async move {
                tokio::select! {
                    () = stopped(&mut stop) => Goodbye::Server,
                    () = removed => Goodbye::Export,
                    () = client.expelled() => Goodbye::Expelled,
                }
            });
            let (counters, limits) = (&connection.counters, &shared.limits);
            let mut pump =
                Pump::new(&mut stream, &mut session, &*export.volume, (counters, limits), first, stop);
            poll_fn(|cx| pump.poll(cx)).await
        }
    };
    report(&guard, &session, &end);
    // Lets go of the volume first: a pool may be waiting for that.
    drop(session);
    match end {
        End::Stopped => linger(&mut stream).await,
        // TLS has a good-bye of its own (NBD: NBD_CMD_DISC, NBD_OPT_ABORT). Whether it is heard is the client's business.
        End::Left => drop(timeout(LINGER, stream.shutdown()).await),
        _ => {}
    }
}

/// Says how a connection ended.
fn report(guard: &Registered, session: &Session, end: &End) {
    let (shared, connection) = (&guard.shared, &guard.connection);
    let peer = connection.peer.as_str();
    connection.counters.publish(session.counters());
    let export = session.export().map(|export| export.name.as_str());
    match end {
        End::Ousted => shared.refusals.say(|left_out| {
            let why = "it has not said what it wants, and others need its place";
            warn!(peer, why, left_out, "nbd: connection dropped");
        }),
        End::Left => debug!(peer, export, counters = ?session.counters(), "nbd: client left"),
        End::Stopped | End::Expelled => debug!(peer, export, counters = ?session.counters(), "nbd: closed"),
        end => {
            // What strangers do is said apart from what becomes of those who are served.
            let quiet = if export.is_some() { &shared.quiet } else { &shared.refusals };
            quiet.say(|left_out| {
                let why = match end {
                    End::Lost(error) => error.to_string(),
                    End::Protocol(error) => error.to_string(),
                    End::TooSlow => match session.awaited() {
                        Some(name) => format!("export {:?} is awaited, and has not come", shown(name)),
                        None => "no handshake in time".to_owned(),
                    },
                    _ => "requests were not finished, or their answers not taken, in time".to_owned(),
                };
                warn!(peer, export, why, left_out, "nbd: connection dropped");
            });
        }
    }
}

/// Haggles until the client chose an export; the first request may have come in the same bytes. Or until some of its
/// options were answered, and it may ask more; or for a moment, if the export that it asks for is awaited.
async fn handshake<S>(stream: &mut S, session: &mut Session) -> Result<Option<Request>, End>
where
    S: Wire,
{
    let answered = session.answered();
    loop {
        let request = session.poll_request().map_err(End::Protocol)?;
        if request.is_some() || session.phase() == Phase::Transmission {
            return Ok(request);
        }
        while let Some(bytes) = session.poll_transmit() {
            stream.write_all(&bytes).await.map_err(End::Lost)?;
        }
        stream.flush().await.map_err(End::Lost)?;
        match session.phase() {
            Phase::Leaving => return Err(End::Left),
            Phase::Securing => return Ok(None),
            Phase::Handshake | Phase::Transmission => {}
        }
        // Bytes that are always there, and room for all replies, would keep it from being asked whether it is time to end, and
        // this thread from everybody else.
        yield_now().await;
        if session.answered() != answered {
            return Ok(None);
        }
        if session.wants_bytes() {
            match poll_fn(|cx| stream.poll_receive(session.receive(), cx)).await.map_err(End::Lost)? {
                0 => return Err(End::Left),
                n => session.received(n),
            }
        } else if session.awaited().is_some() {
            // What came behind it stays where it is meanwhile, and is counted: there may be many who wait.
            session.settle_above(stream.memory());
            sleep(LOOK_AGAIN).await;
            // Nothing is read of it.
            if stream.is_closed() {
                return Err(End::Left);
            }
            // It has as long as who asks and is answered: many clients take a connection that ends for the end of the disk, as
            // they do "no such export".
            return Ok(None);
        }
    }
}

/// Closes our side and waits for the client to close its own.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let drained = async {
        stream.shutdown().await?;
        let mut scrap = Vec::with_capacity(16 << 10);
        while stream.read_buf(&mut scrap).await? > 0 {
            scrap.clear();
        }
        io::Result::Ok(())
    };
    // Whatever happens here, the connection is over.
    drop(timeout(LINGER, drained).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With replies on their way it kept its place, and all that it held, for a quarter of an hour.
    #[tokio::test]
    async fn a_peer_that_vanished_is_noticed_whether_replies_are_on_their_way_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let crowd = Crowd::new(ServeLimits::default().places());
        let (Socket::Tcp(stream), from) = accept(&Listener::Tcp(listener), &crowd).await.unwrap() else {
            panic!("it came in over the network");
        };
        assert_eq!(from, Some(client.local_addr().unwrap()));
        let socket = socket2::SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(120)));
        let asked = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(socket.tcp_keepalive_time().unwrap() + asked, Duration::from_secs(120));
    }
}
