//! Accepts connections and drives a [`Session`] for each. This file and the streams in `wire.rs` are all that knows sockets.
//!
//! A connection is one task. It reads whatever the socket holds, answers every request of the batch whose
//! data is in memory, and sends the batch with one vectored write; the others run as futures in that same
//! task ([`FuturesUnordered`]) and are answered as they finish. So a hit costs no hop and no wake-up, a
//! miss one wake-up, and nothing is polled while nothing happens (where that is cheaper, [`Link`] looks for
//! the next request for a moment).
//!
//! Shutdown is soft: no new connections, what is in flight is finished and sent, then the stream is closed
//! from our side first and drained, so that the last replies are not lost to a reset. What still arrives
//! is left unanswered when the server stops: hosts send it again to the next server, while an error would
//! fail the guest's write. When the export is gone for good, it is answered with `ESHUTDOWN`. Either way it is
//! over soon: who waits for a restart is not kept waiting by a client that takes no answers. What is cut off is
//! unanswered, too.
//!
//! Who gets in, and who has to leave for others, is [`block::Crowd`]'s to say.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use block::{
    BlockVolume, BoxFuture, Crowd, Extent, Link, Look, Peer, Place, Places, Quiet, Segments, VolumeError,
    VolumeFuture, host_of,
};
use futures_util::stream::{FuturesUnordered, Stream};
use memory::{Client, Gate};
use smallvec::SmallVec;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tracing::{debug, error, info, warn};

use crate::{
    error::{NbdError, ProtocolError},
    export::Exports,
    session::{Limits, Phase, Session},
    stats::{ConnectionInfo, Counters, Published},
    tls::{Proof, Tls},
    transmission::{CACHE_STEP, Op, Outcome, Request, Tag},
    wire::Wire,
};

/// Reads up to this many bytes are looked up together: of longer ones each has blocks enough to wait for.
const SMALL_READ: usize = 16 << 10;
/// So many at most: their answers are a part of a batch.
const READS_AT_ONCE: usize = 16;

/// Slices of one vectored write: 128 hits with their headers.
const SLICES: usize = 256;

/// How long a closed connection is drained, so that a reset does not overtake the last replies.
const LINGER: Duration = Duration::from_secs(1);

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
    /// answered: who asks about every export of a long list takes its time.
    pub handshake: Duration,
    /// From connect to the end of the handshake, however much was asked.
    pub handshake_in_all: Duration,
    /// How long what is in flight may take when the client is gone.
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
    tls: Option<Tls>,
    crowd: Crowd,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Counters of connections that ended.
    past: Mutex<Counters>,
    next_id: AtomicU64,
    quiet: Quiet,
    /// Of its own: who floods the door with connections, or with garbage, does not drown what is said of those who are in.
    refusals: Quiet,
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
                tls,
                connections: Mutex::default(),
                past: Mutex::default(),
                next_id: AtomicU64::new(1),
                quiet: Quiet::default(),
                refusals: Quiet::default(),
            }),
        }
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
enum End {
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
    S: Wire + block::Socket,
{
    let shared = &guard.shared;
    let exports = Arc::clone(&shared.exports);
    let mut session = Session::new(exports, shared.limits.session, Arc::clone(&shared.limits.gate));
    let peer = guard.connection.peer.as_str();
    let host = peer.parse().ok().map(|peer: SocketAddr| host_of(peer.ip()));
    let client = Client::new(host, format!("nbd client {peer}"));
    session.known_as(&client);
    if let Some(tls) = &shared.tls {
        session.offer_tls(tls.is_required);
    }
    let mut patience = Patience::new(&shared.limits, stop);
    let greeted = patience.haggle(&guard.place, &mut stream, &mut session).await;
    let tls = shared.tls.clone().filter(|_| greeted.is_ok() && session.phase() == Phase::Securing);
    match tls.map(|tls| tls.proof) {
        None => converse(guard, Link::from(stream), session, greeted, patience.stop).await,
        Some(Proof::Certificates(acceptor)) => {
            let securing = async { acceptor.accept(stream).await.map_err(End::Lost) };
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

fn after(time: Duration) -> Instant {
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
            shared.quiet.say(|left_out| info!(peer, export = export.name, left_out, "nbd: connected"));
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
            let running = FuturesUnordered::new();
            running.push(Running::Stop(stop));
            let mut pump = Pump {
                stream: &mut stream,
                session: &mut session,
                volume: &*export.volume,
                running,
                counters: &connection.counters,
                limits: &shared.limits,
                first,
                end: None,
                deadline: None,
                unpolled: false,
                unflushed: false,
            };
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
                    End::TooSlow => "no handshake in time".to_owned(),
                    _ => "requests were not finished, or their answers not taken, in time".to_owned(),
                };
                warn!(peer, export, why, left_out, "nbd: connection dropped");
            });
        }
    }
}

/// Haggles until the client chose an export; the first request may have come in the same bytes. Or until some of its
/// options were answered, and it may ask more.
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
            Phase::Handshake if session.answered() != answered => return Ok(None),
            Phase::Handshake | Phase::Transmission => {}
        }
        if session.wants_bytes() {
            match poll_fn(|cx| stream.poll_receive(session.receive(), cx)).await.map_err(End::Lost)? {
                0 => return Err(End::Left),
                n => session.received(n),
            }
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

/// Something a connection waits for besides its socket.
enum Running<'v> {
    /// A request of the client.
    Operation(Option<Tag>, Operation<'v>),
    /// The server stops or the export is gone.
    Stop(Pin<Box<dyn Future<Output = Goodbye> + Send>>),
    /// The time is over.
    Deadline(Pin<Box<tokio::time::Sleep>>),
}

/// Why a connection is ended from our side.
enum Goodbye {
    Server,
    Export,
    Expelled,
}

enum Event {
    Done(Tag, Result<Outcome, NbdError>),
    Stop(Goodbye),
    Deadline,
}

impl Future for Running<'_> {
    type Output = Event;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Event> {
        match &mut *self {
            Running::Stop(stop) => stop.as_mut().poll(cx).map(Event::Stop),
            Running::Deadline(sleep) => sleep.as_mut().poll(cx).map(|()| Event::Deadline),
            Running::Operation(tag, operation) => match operation.poll(cx) {
                Poll::Ready(outcome) => match tag.take() {
                    Some(tag) => Poll::Ready(Event::Done(tag, outcome)),
                    // Polled after it was ready: nothing is left to report.
                    None => Poll::Pending,
                },
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// A volume's operation under way.
enum Operation<'v> {
    Read(VolumeFuture<'v, Segments>),
    Extents(VolumeFuture<'v, Vec<Extent>>),
    Write(VolumeFuture<'v, ()>),
    Unit(VolumeFuture<'v, ()>),
}

impl Operation<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, NbdError>> {
        match self {
            Operation::Read(f) => f.as_mut().poll(cx).map_ok(Outcome::Data),
            Operation::Extents(f) => f.as_mut().poll(cx).map_ok(Outcome::Extents),
            Operation::Write(f) => {
                return f.as_mut().poll(cx).map_ok(|()| Outcome::Done).map_err(NbdError::of_write);
            }
            Operation::Unit(f) => f.as_mut().poll(cx).map_ok(|()| Outcome::Done),
        }
        .map_err(NbdError::from)
    }
}

fn begin(volume: &dyn BlockVolume, op: Op) -> Operation<'_> {
    match op {
        Op::Read { offset, len } => Operation::Read(volume.read(offset, len)),
        Op::BlockStatus { offset, len, max_extents } => {
            Operation::Extents(volume.extents(offset, len, max_extents))
        }
        Op::Write { offset, data, durability } => Operation::Write(volume.write(offset, data, durability)),
        Op::WriteZeroes { offset, len, allocate, durability } => {
            Operation::Write(volume.write_zeroes(offset, len, allocate, durability))
        }
        Op::Trim { offset, len, durability } => Operation::Unit(volume.unmap(offset, len, durability)),
        Op::Flush => Operation::Unit(volume.flush()),
        Op::Cache { offset, len } => Operation::Unit(Box::pin(warm(volume, offset, len))),
    }
}

/// Reads a range for the sake of the cache.
async fn warm(volume: &dyn BlockVolume, offset: u64, len: u64) -> Result<(), VolumeError> {
    let mut at = offset;
    let mut left = len;
    while left > 0 {
        // What is in memory is there at once: others have their turn in between.
        tokio::task::coop::consume_budget().await;
        let step = left.min(CACHE_STEP as u64);
        volume.read(at, usize::try_from(step).unwrap_or(CACHE_STEP)).await?;
        at = at.saturating_add(step);
        left = left.saturating_sub(step);
    }
    Ok(())
}

/// A connection in its transmission phase.
struct Pump<'a, 'v, S> {
    stream: &'a mut S,
    session: &'a mut Session,
    volume: &'v dyn BlockVolume,
    running: FuturesUnordered<Running<'v>>,
    counters: &'a Published,
    limits: &'a ServeLimits,
    /// A request that came with the last bytes of the handshake.
    first: Option<Request>,
    /// Why the connection will end once nothing is in flight.
    end: Option<End>,
    /// When it will end whatever is in flight then.
    deadline: Option<Instant>,
    /// Something in `running` was never polled, so nothing would wake us for it.
    unpolled: bool,
    /// The stream was given something that it may hold back (TLS does).
    unflushed: bool,
}

/// Reads that came together, of at most [`SMALL_READ`] bytes each.
#[derive(Default)]
struct SmallReads {
    /// Offset and length.
    places: SmallVec<[(u64, usize); READS_AT_ONCE]>,
    tags: SmallVec<[Option<Tag>; READS_AT_ONCE]>,
}

impl<S: Wire> Pump<'_, '_, S> {
    /// Goes on until the end. Before it waits for anything it says what it still holds.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let polled = self.go_on(cx);
        if polled.is_pending() {
            self.session.settle();
        }
        polled
    }

    /// Does all that can be done now. `Pending` only when the socket, an operation or a stop will wake us.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            // Something is always in `running`: the stop, or after it the deadline.
            self.unpolled = false;
            while let Poll::Ready(Some(event)) = Pin::new(&mut self.running).poll_next(cx) {
                match event {
                    Event::Done(tag, outcome) => self.session.complete(tag, outcome),
                    Event::Stop(goodbye) => {
                        match goodbye {
                            Goodbye::Server => self.session.leave(),
                            Goodbye::Export => self.session.shut_down(),
                            Goodbye::Expelled => {
                                self.session.discard_output();
                                self.unflushed = false;
                                self.session.leave();
                                self.finish(End::Expelled);
                            }
                        }
                        self.finish(End::Stopped);
                    }
                    Event::Deadline => {
                        // Of who is expelled all was said when it was.
                        let expelled = self.end.take().filter(|end| matches!(end, End::Expelled));
                        return Poll::Ready(expelled.unwrap_or(End::Overdue));
                    }
                }
            }
            let more = self.serve_batch(cx);
            let blocked = match self.send(cx) {
                Ok(blocked) => blocked,
                Err(error) => {
                    // Nobody will read the answers, but what was begun is finished.
                    self.session.discard_output();
                    self.unflushed = false;
                    self.session.leave();
                    self.finish(End::Lost(error));
                    true
                }
            };
            if (more && !blocked) || self.unpolled {
                continue;
            }
            self.counters.publish(self.session.counters());
            if self.session.is_idle() && !self.unflushed {
                if let Some(end) = self.end.take() {
                    return Poll::Ready(end);
                }
                if self.session.phase() == Phase::Leaving {
                    return Poll::Ready(End::Left);
                }
            }
            // With too much to be sent it would be asked for nothing: then the socket wakes us.
            if !self.session.is_full() && self.session.poll_turn(cx).is_ready() {
                continue;
            }
            if !self.session.wants_bytes() {
                return Poll::Pending;
            }
            match self.receive(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => {
                    self.session.leave();
                    self.finish(End::Left);
                }
                Poll::Ready(Ok(n)) => self.session.received(n),
                Poll::Ready(Err(error)) => {
                    self.session.discard_output();
                    self.unflushed = false;
                    self.session.leave();
                    self.finish(End::Lost(error));
                }
            }
        }
    }

    /// Receives what is there. 0 at the end.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (is_idle, served) = (self.session.is_idle(), self.session.counters().requests());
        let mut place = self.session.receive();
        match self.stream.look(is_idle, served, place.room())? {
            Look::Came(bytes) => return Poll::Ready(Ok(place.put(bytes))),
            Look::Yield => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Look::Asleep => {}
        }
        self.stream.poll_receive(place, cx)
    }

    /// Answers the requests of a batch that can be answered at once and begins the others. Whether it
    /// stopped because of what waits to be sent, and should go on once that has left.
    fn serve_batch(&mut self, cx: &mut Context<'_>) -> bool {
        let mut reads = SmallReads::default();
        loop {
            let request = match self.first.take() {
                Some(request) => Ok(Some(request)),
                None if self.session.is_full() => {
                    self.look_up(cx, &mut reads);
                    return true;
                }
                None => self.session.poll_request(),
            };
            match request {
                Ok(Some(Request { op: Op::Read { offset, len }, tag })) if len <= SMALL_READ => {
                    reads.places.push((offset, len));
                    reads.tags.push(Some(tag));
                    if reads.tags.len() == READS_AT_ONCE {
                        self.look_up(cx, &mut reads);
                    }
                }
                Ok(Some(request)) => {
                    self.look_up(cx, &mut reads);
                    self.start(cx, request);
                }
                // Answers that leave may make room for more.
                Ok(None) if !reads.tags.is_empty() => self.look_up(cx, &mut reads),
                Ok(None) => {
                    if self.session.phase() == Phase::Leaving && self.end.is_none() {
                        self.finish(End::Left);
                    }
                    // Bytes at hand and none wanted: the next request was not admitted.
                    let parked = !self.session.wants_bytes() && self.session.phase() != Phase::Leaving;
                    return parked && self.session.output_len() > 0;
                }
                Err(error) => {
                    self.look_up(cx, &mut reads);
                    self.session.leave();
                    self.finish(End::Protocol(error));
                    return false;
                }
            }
        }
    }

    /// Answers reads that are in memory, looked up together, and begins the others.
    fn look_up(&mut self, cx: &mut Context<'_>, reads: &mut SmallReads) {
        if reads.tags.is_empty() {
            return;
        }
        let (session, tags) = (&mut *self.session, &mut reads.tags);
        self.volume.read_cached_each(&reads.places, &mut |number, segments| {
            if let Some(segments) = segments
                && let Some(tag) = tags.get_mut(number).and_then(Option::take)
            {
                session.complete_hit(tag, segments);
            }
        });
        let places = std::mem::take(&mut reads.places);
        for ((offset, len), tag) in places.into_iter().zip(reads.tags.drain(..)) {
            if let Some(tag) = tag {
                self.begin(cx, Op::Read { offset, len }, tag);
            }
        }
    }

    fn start(&mut self, cx: &mut Context<'_>, request: Request) {
        let Request { op, tag } = request;
        if let Op::Read { offset, len } = op
            && let Some(segments) = self.volume.read_cached(offset, len)
        {
            self.session.complete_hit(tag, segments);
            return;
        }
        self.begin(cx, op, tag);
    }

    fn begin(&mut self, cx: &mut Context<'_>, op: Op, tag: Tag) {
        // Many operations end at once (a write into memory): those cost no entry in the set.
        let mut operation = begin(self.volume, op);
        match operation.poll(cx) {
            Poll::Ready(outcome) => self.session.complete(tag, outcome),
            Poll::Pending => self.running.push(Running::Operation(Some(tag), operation)),
        }
    }

    /// Sends until nothing is left or the socket takes no more; whether it takes no more.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        while self.session.output_len() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = self.session.transmit(&mut slices);
            let slices = slices.get(..filled).unwrap_or_default();
            match Pin::new(&mut *self.stream).poll_write_vectored(cx, slices) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.session.transmitted(n);
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(true),
            }
        }
        if self.unflushed {
            match Pin::new(&mut *self.stream).poll_flush(cx)? {
                Poll::Ready(()) => self.unflushed = false,
                Poll::Pending => return Ok(true),
            }
        }
        Ok(false)
    }

    /// The connection ends for this reason (the first one counts) once nothing is in flight, or its time is over. A
    /// client that is gone keeps nobody waiting: what was begun for it may take longer, until the server stops.
    fn finish(&mut self, end: End) {
        let limit = if matches!(end, End::Stopped) { self.limits.stop } else { self.limits.grace };
        let until = after(limit);
        self.end.get_or_insert(end);
        if self.deadline.is_none_or(|before| until < before) {
            self.deadline = Some(until);
            self.unpolled = true;
            self.running.push(Running::Deadline(Box::pin(sleep_until(until))));
        }
    }
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
