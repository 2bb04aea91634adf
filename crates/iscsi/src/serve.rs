//! Sockets: the only file that has any. Listens, logs in, and drives one [`Session`] per task.
//!
//! ```text
//!   accept ─▶ login (with a deadline) ─▶ claim the session's place ─▶ drive: read ▸ answer ▸ write, until the end
//! ```
//!
//! The drive loop is one future that never hands anything to another task: what was received is parsed
//! as a batch, cached reads are answered while parsing, and one vectored write takes all replies. Jobs
//! that wait run beside it in the same task. Going to sleep costs no system call, because a short read
//! already told the runtime that the socket is empty.
//!
//! Answers to long writes leave two by two, or more at once, as far as that keeps nobody waiting: [`Driver::holds`].
//!
//! Who gets in, and who has to leave for others, is [`peers::Crowd`]'s to say. A host has settled when it has logged in
//! to a target. Who discovers stays a stranger: it has no disk to lose, hosts are done with it in an instant, and with
//! targets that ask for a secret anybody may often discover: whoever held such sessions would be ahead of hosts.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use block::BoxFuture;
use bytes::BytesMut;
use disk::Place;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use memory::Member;
use peers::{Crowd, Link, Look};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};

use crate::{
    inbox::Inbox,
    login::{Login, Status, Step},
    pdu::{Fatal, Frame, Framing, Outbox},
    session::{Came, Session, Ticket},
    silence::{Sign, Silence},
    targets::{Claim, Counters, Doors, Order, Portal, SessionInfo, Targets},
};

/// Room for a request of the login phase.
const RECEIVE_BUFFER: usize = 16 << 10;
/// Slices per write; the kernel takes 1,024 at most.
const SLICES: usize = 256;
/// Connections that wait to be accepted: as many as at any other address.
const BACKLOG: u32 = 128;
/// What is to be sent is held so often at most.
const HELD_MAX: usize = 8;
/// Data segments from here on take long enough that it pays, in bytes.
const LONG: usize = 32 << 10;
/// Longest data segment before the operational stage (RFC 7143 §13.12).
const LOGIN_SEGMENT: usize = 8192;
/// How long who is not logged in when its server stops has to say what it wants, and hear that there is no service any more.
const STOPPED_LOGIN: Duration = Duration::from_secs(1);
/// How long a stop waits for jobs that run, beyond the time for logging out.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A server that listens.
pub struct Server {
    targets: Arc<Targets>,
    listeners: Vec<TcpListener>,
    /// Goes when the listeners have gone.
    open: watch::Sender<()>,
}

/// What a server that no longer listens keeps: of its connections those that came in at these addresses. `None`: it listens.
/// An address that is not specified is every one of its port.
pub type Keep = Option<Vec<SocketAddr>>;

/// Whether a connection that came in at `local` is asked to leave.
fn must_go(keep: &Keep, local: SocketAddr) -> bool {
    let is_at = |address: &SocketAddr| {
        let all = address.ip().is_unspecified() && (address.is_ipv6() || local.is_ipv4());
        address.port() == local.port() && (all || address.ip().to_canonical() == local.ip())
    };
    keep.as_ref().is_some_and(|addresses| !addresses.iter().any(is_at))
}

impl Server {
    /// Listens on every address; port 0 takes a free one.
    pub fn bind(targets: Arc<Targets>, addresses: &[SocketAddr]) -> BoxFuture<'_, io::Result<Self>> {
        Box::pin(async move {
            let mut listeners = Vec::new();
            for address in addresses {
                listeners.push(match is_everywhere(*address) {
                    true => listen_everywhere(TcpSocket::new_v6()?, *address)?,
                    false => TcpListener::bind(address).await?,
                });
            }
            Ok(Self { targets, listeners, open: watch::Sender::new(()) })
        })
    }

    /// Where it listens, in the order of the addresses given to [`Server::bind`].
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Ready when it no longer listens, or is gone: then others may listen at its addresses.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut open = self.open.subscribe();
        async move { while open.changed().await.is_ok() {} }
    }

    /// Serves until `shutdown` ends; then finishes what is in flight, asks initiators to log out, and
    /// returns when the last connection has closed.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let (stop, stopped) = watch::channel(None);
        let stopping = async {
            shutdown.await;
            stop.send_replace(Some(Vec::new()));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.run_while(stopped) => {}
            () = stopping => {}
        }
    }

    /// The same, until it is to keep nothing: before that it may have stopped to listen, and go on with those connections
    /// that it is to keep. A sender that is gone means nothing, too.
    pub fn run_while(self, mut stopped: watch::Receiver<Keep>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Self { targets, listeners, open } = self;
            // All servers of these targets share them.
            let Doors { crowd, quiet, refusals, .. } = &targets.doors;
            let mut connections = JoinSet::new();
            {
                let mut others = stopped.clone();
                let mut shutdown = pin!(async { drop(others.wait_for(Option::is_some).await) });
                let mut accepts: FuturesUnordered<_> =
                    listeners.iter().map(|listener| accept(listener, crowd)).collect();
                loop {
                    tokio::select! {
                        () = &mut shutdown => break,
                        Some((listener, accepted)) = accepts.next() => {
                            accepts.push(accept(listener, crowd));
                            let (stream, peer) = match accepted {
                                Ok(accepted) => accepted,
                                Err(error) => {
                                    // Out of descriptors, most likely: others will close theirs.
                                    quiet.say(|left_out| tracing::warn!(%error, left_out, "iscsi: cannot accept"));
                                    sleep(Duration::from_millis(100)).await;
                                    continue;
                                }
                            };
                            let place = match crowd.enter(peer.ip().into()) {
                                Ok(place) => place,
                                Err(full) => {
                                    refusals.say(|left_out| {
                                        tracing::warn!(%peer, why = %full, left_out, "iscsi: connection refused");
                                    });
                                    continue;
                                }
                            };
                            let (targets, stopped) = (Arc::clone(&targets), stopped.clone());
                            connections.spawn(async move {
                                let ended = connection(stream, peer, Arc::clone(&targets), stopped, &place).await;
                                report(&targets.doors, peer, place.has_settled(), ended);
                            });
                        }
                        Some(_) = connections.join_next() => {}
                    }
                }
            }
            drop((listeners, open));
            let limit = targets.config().logout_wait.saturating_add(STOP_GRACE);
            let mut all = pin!(async { while connections.join_next().await.is_some() {} });
            tokio::select! {
                () = &mut all => return,
                // An error means that the sender is gone.
                _nothing = stopped.wait_for(|keep| keep.as_ref().is_some_and(Vec::is_empty)) => {}
            }
            if timeout(limit, all).await.is_err() {
                tracing::warn!("iscsi: connections still busy at the end of a stop");
            }
        })
    }
}

/// Whether that stands for all addresses of its port, those of IPv4 too.
fn is_everywhere(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// Listens at `[::]`. That IPv4 addresses are among it the system may have set otherwise (`net.ipv6.bindv6only`): whoever takes
/// a portal for one of them, and names it to initiators, must not find out that nobody listens there.
fn listen_everywhere(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept<'a>(
    listener: &'a TcpListener,
    crowd: &Crowd,
) -> (&'a TcpListener, io::Result<(TcpStream, SocketAddr)>) {
    crowd.calm().await;
    let accepted = listener.accept().await;
    (listener, accepted.map(|(stream, peer)| (stream, canonical(peer))))
}

/// A listener on `[::]` has IPv4 addresses in their IPv6 form; portals and access know them by their own.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// Says how a connection ended. What strangers do is said apart from what becomes of hosts, which have settled.
fn report(doors: &Doors, peer: SocketAddr, has_settled: bool, ended: Result<(), Ended>) {
    let quiet = if has_settled { &doors.quiet } else { &doors.strangers };
    match ended {
        Ok(()) | Err(Ended::Closed | Ended::Superseded | Ended::Stopped | Ended::Expelled) => {}
        Err(error @ Ended::Ousted) => doors.refusals.say(|left_out| {
            tracing::warn!(%peer, %error, left_out, "iscsi: connection ended");
        }),
        // iscsiadm ends discoveries like this; a host that died does, too.
        Err(Ended::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
            quiet.say(|left_out| tracing::info!(%peer, left_out, "iscsi: reset by the initiator"));
        }
        Err(error) => quiet.say(|left_out| {
            tracing::warn!(%peer, %error, left_out, "iscsi: connection ended");
        }),
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("protocol: {0}")]
    Fatal(#[from] Fatal),
    #[error("closed by the initiator")]
    Closed,
    #[error("login refused: {0:?}{1}")]
    Refused(Status, String),
    #[error("not logged in within the time allowed")]
    LoginTimeout,
    #[error("not logged in to a target, and others need its place")]
    Ousted,
    /// It waited for its old session to end, and its host logs in by another connection by now.
    #[error("a newer login of its initiator has come")]
    Superseded,
    #[error("no sign of life")]
    Silent,
    #[error("not logged in when the server stopped")]
    Stopped,
    /// Told to end, by those who watch the gate: they have said why.
    #[error("in the way of others")]
    Expelled,
}

async fn connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    targets: Arc<Targets>,
    mut stopped: watch::Receiver<Keep>,
    place: &peers::Place,
) -> Result<(), Ended> {
    stream.set_nodelay(true)?;
    let local = canonical(stream.local_addr()?);
    let limit = targets.config().login_timeout;
    let mut buffer = BytesMut::with_capacity(RECEIVE_BUFFER);
    let mut stop = stopped.clone();
    // Nobody who is not in keeps a stop waiting: neither who says nothing nor who waits for its old session.
    let cut_off = async {
        // An error means that the sender is gone.
        drop(stop.wait_for(|keep| must_go(keep, local)).await);
        sleep(STOPPED_LOGIN).await;
    };
    let enter = async {
        let login = tokio::select! {
            () = place.ousted() => Err(Ended::Ousted),
            done = log_in(&mut stream, &mut buffer, &targets, &stopped, (local, peer)) => done,
        };
        let (login, outbox) = login?;
        // It has proven what it had to: what it waits for from here on is the end of its old session.
        if login.target().is_some() && !place.settle() {
            return Err(Ended::Ousted);
        }
        // Its host may give it up before that, and begin another.
        let claimed = tokio::select! {
            biased;
            gone = hung_up(&stream) => Err(gone),
            claimed = claim(&login, &targets, (local, peer)) => claimed,
        };
        Ok((login, outbox, claimed?))
    };
    let login = timeout(limit, async {
        tokio::select! {
            biased;
            entered = enter => entered,
            () = cut_off => Err(Ended::Stopped),
        }
    });
    // The claim is declared first, so that it is given up last: when it goes, nothing of this session is left.
    let mut claim;
    let is_stranger;
    let mut driver = {
        let (login, mut outbox, (claimed, counters)) = login.await.map_err(|_| Ended::LoginTimeout)??;
        claim = claimed;
        is_stranger = login.target().is_none();
        let accepted =
            login.finish(claim.tsih, &mut outbox).ok_or(Fatal::Protocol("login without a name"))?;
        let initiator = accepted.key.initiator.clone();
        let mut session = Session::new(accepted, Arc::clone(&targets), local, outbox);
        session.count_in(counters);
        let welcome = &targets.doors.welcome;
        welcome.say(|left_out| tracing::info!(%peer, initiator, left_out, "iscsi: logged in"));
        let mut inbox = Inbox::from(buffer);
        inbox.wait_in(Member::of(Arc::clone(targets.config().gate.hall()), session.client()));
        let silence = Silence::new(targets.config().ping_after);
        let jobs = FuturesUnordered::new();
        let stream = Link::from(stream);
        Driver { session, stream, inbox, jobs, silence, taken: 0, patience: None, held: 0 }
    };
    let ousted = async {
        match is_stranger {
            true => place.ousted().await,
            false => std::future::pending().await,
        }
    };
    let result = driver.serve(&targets, &mut claim, (local, &mut stopped), ousted).await;
    let Driver { mut session, stream, inbox, mut jobs, .. } = driver;
    drop((stream, inbox));
    // What changes something must have ended before another session of this name may start, and its login does not wait for
    // long.
    settle_up(&mut session, &mut jobs).await;
    let held = session.leave();
    drop(claim);
    // Reads whose device does not answer keep nobody, but the memory it may write to still; and this connection its place in the
    // crowd, or a host that comes back again and again would have it all. A stop waits for no device: what that may write to
    // stays where it is for as long as it may.
    tokio::select! {
        () = async { while jobs.next().await.is_some() {} } => {}
        // An error means that the sender is gone.
        _stopped = stopped.wait_for(|keep| must_go(keep, local)) => {}
    }
    drop(held);
    result
}

async fn log_in(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    targets: &Arc<Targets>,
    stopped: &watch::Receiver<Keep>,
    (local, peer): (SocketAddr, SocketAddr),
) -> Result<(Login, Outbox), Ended> {
    let framing = Framing { data_max: LOGIN_SEGMENT, ..Framing::default() };
    let mut login = Login::new(local, peer);
    let mut outbox = Outbox::default();
    loop {
        let frame = framing.next(buffer)?;
        let Frame::Whole { header, data_at, data_len, total } = frame else {
            buffer.reserve(RECEIVE_BUFFER);
            if stream.read_buf(buffer).await? == 0 {
                return Err(Ended::Closed);
            }
            continue;
        };
        let pdu = buffer.split_to(total);
        let data = pdu.get(data_at..data_at.saturating_add(data_len)).unwrap_or(&[]);
        let step = if must_go(&stopped.borrow(), local) {
            login.refuse(&header, Status::ServiceUnavailable, &mut outbox);
            Step::Refused(Status::ServiceUnavailable)
        } else {
            login.handle(&header, data, targets, &mut outbox)?
        };
        if let Step::Accepted = step {
            return Ok((login, outbox));
        }
        poll_fn(|cx| write(stream, &mut outbox, cx)).await?;
        if let Step::Refused(status) = step {
            let why = match login.fault() {
                "" => String::new(),
                why => format!(" ({why})"),
            };
            return Err(Ended::Refused(status, why));
        }
    }
}

/// Takes the session's place in the registry, as soon as it is free.
async fn claim(
    login: &Login,
    targets: &Arc<Targets>,
    (local, peer): (SocketAddr, SocketAddr),
) -> Result<(Claim, Arc<Counters>), Ended> {
    let mut key = login.key().ok_or(Fatal::Protocol("login without a name"))?;
    if login.target().is_none() {
        // Hosts run discoveries side by side under one ISID: these never replace each other.
        key.target = peer.to_string();
    }
    let counters = Arc::<Counters>::default();
    let info = SessionInfo {
        initiator: key.initiator.clone(),
        peer,
        target: login.target().map(|target| target.iqn().to_owned()).unwrap_or_default(),
        portal: Portal { address: local, group: key.group },
        isid: key.isid,
        since: Instant::now(),
        user: login.proven().map(|auth| auth.user().to_owned()),
        proven: login.proven().cloned(),
        counters: Arc::clone(&counters),
    };
    let claim = targets.claim(key, info, login.target()).await.ok_or(Ended::Superseded)?;
    Ok((claim, counters))
}

/// Ready when an initiator closes that has an answer to wait for, and so nothing to say. If it said something, it is not seen.
async fn hung_up(stream: &TcpStream) -> Ended {
    match stream.peek(&mut [0_u8; 1]).await {
        Ok(0) => Ended::Closed,
        Ok(_) => std::future::pending().await,
        Err(error) => error.into(),
    }
}

/// Writes until the outbox is empty.
fn write<S: AsyncWrite + Unpin>(
    stream: &mut S,
    outbox: &mut Outbox,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !outbox.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = outbox.slices(&mut slices);
        let slices = slices.get(..count).unwrap_or(&[]);
        let sent = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, slices))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        outbox.sent(sent);
    }
    Poll::Ready(Ok(()))
}

/// Waits until nothing runs any more that changes something. What only looks keeps nobody.
async fn settle_up(session: &mut Session, jobs: &mut FuturesUnordered<JobFuture>) {
    // Looked at whenever something moves: the write of a copy may end, and its next read not.
    poll_fn(|cx| {
        loop {
            session.end_long();
            if !session.is_owed() {
                return Poll::Ready(());
            }
            match jobs.poll_next_unpin(cx) {
                Poll::Ready(Some((ticket, came))) => session.complete(ticket, came),
                Poll::Pending if session.is_owed() => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => return Poll::Ready(()),
            }
        }
    })
    .await;
}

type JobFuture = Pin<Box<dyn Future<Output = (Ticket, Came)> + Send>>;

struct Driver {
    session: Session,
    stream: Link<TcpStream>,
    inbox: Inbox,
    jobs: FuturesUnordered<JobFuture>,
    silence: Silence,
    /// Bytes that the initiator had taken at the last look for signs of life.
    taken: u64,
    /// Until a command has waited too long for room; `None` while none waits.
    patience: Option<Pin<Box<Sleep>>>,
    /// How often what is to be sent was held.
    held: usize,
}

impl Driver {
    async fn serve(
        &mut self,
        targets: &Targets,
        claim: &mut Claim,
        (local, stopped): (SocketAddr, &mut watch::Receiver<Keep>),
        ousted: impl Future<Output = ()> + Send,
    ) -> Result<(), Ended> {
        let config = targets.config();
        let mut ousted = pin!(ousted);
        let mut due = pin!(sleep_until(self.silence.due()));
        // A registry or server that is gone means the same as its order.
        let mut end = pin!(async { drop(claim.orders.wait_for(|order| *order == Order::End).await) });
        let mut stop = pin!(async { drop(stopped.wait_for(|keep| must_go(keep, local)).await) });
        let client = Arc::clone(self.session.client());
        let mut expelled = pin!(client.expelled());
        // Only while the target is there and initiators want to know.
        let target = self.session.target().filter(|_| config.announce_luns);
        let mut luns = target.map(|target| target.changes());
        loop {
            tokio::select! {
                // Orders first: who sends without end would use up all that a task may do at a time, and they never be seen.
                biased;
                () = &mut end => {
                    self.session.announce_drop();
                    return self.flush().await;
                }
                () = &mut expelled => return Err(Ended::Expelled),
                () = &mut ousted => return Err(Ended::Ousted),
                () = &mut stop => break,
                done = poll_fn(|cx| self.poll(cx)) => return done,
                () = changed(&mut luns) => self.session.announce_luns(),
                () = &mut due => {
                    let taken = self.session.outbox().gone();
                    let is_taking = std::mem::replace(&mut self.taken, taken) != taken;
                    if self.inbox.is_held_up() || is_taking && self.session.is_full() {
                        self.silence.heard(); // nobody listens
                    }
                    match self.silence.look() {
                        Sign::Wait => {}
                        Sign::Ask => {
                            self.inbox.rest();
                            self.session.ping();
                        }
                        Sign::Gone => return Err(Ended::Silent),
                    }
                    due.as_mut().reset(self.silence.due());
                }
            }
        }
        // Stopping: go on serving while the initiator logs out, then close.
        let seconds = u16::try_from(config.logout_wait.as_secs()).unwrap_or(u16::MAX);
        self.session.request_logout(seconds);
        match timeout(config.logout_wait, poll_fn(|cx| self.poll(cx))).await {
            Ok(done) => done,
            Err(_) => {
                settle_up(&mut self.session, &mut self.jobs).await;
                self.session.announce_drop();
                self.flush().await
            }
        }
    }

    /// Writes what is left, for a short time. What runs goes on meanwhile, because others may wait for it: a log block may
    /// have their writes in it, and a transaction group be held.
    async fn flush(&mut self) -> Result<(), Ended> {
        let (stream, session, jobs) = (&mut self.stream, &mut self.session, &mut self.jobs);
        let written = poll_fn(|cx| {
            while let Poll::Ready(Some((ticket, came))) = jobs.poll_next_unpin(cx) {
                session.complete(ticket, came);
            }
            write(stream, session.outbox(), cx)
        });
        match timeout(Duration::from_secs(1), written).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Ended::Silent),
        }
    }

    /// Moves everything that can move; ready when the session has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            // Jobs first: what has ended makes room for what is queued.
            loop {
                while let Some(work) = self.session.poll_work() {
                    self.jobs.push(Box::pin(work.run()));
                }
                match self.jobs.poll_next_unpin(cx) {
                    Poll::Ready(Some((ticket, came))) => self.session.complete(ticket, came),
                    Poll::Ready(None) | Poll::Pending if self.session.let_go_of_aborted() => {}
                    Poll::Ready(None) | Poll::Pending => break,
                }
            }
            let was_full = !self.session.wants_input();
            let holds = !was_full && !self.session.ended() && self.holds();
            let written = match holds {
                true => Poll::Pending,
                false => {
                    self.held = 0;
                    write(&mut self.stream, self.session.outbox(), cx)?
                }
            };
            self.session.settle(self.inbox.capacity());
            if self.session.poll_turn(cx).is_ready() {
                continue;
            }
            if let Poll::Ready(late) = self.poll_patience(cx) {
                self.session.give_up(late);
                continue;
            }
            if self.session.ended() {
                ready!(written);
                return Poll::Ready(Ok(()));
            }
            if !self.session.wants_input() {
                if holds {
                    self.held = HELD_MAX;
                    continue;
                }
                return Poll::Pending; // the write wakes us
            }
            if was_full {
                continue; // jobs were held back, too
            }
            // What was left because the outbox was full comes before anything new.
            let is_behind = self.session.is_behind();
            if self.inbox.is_held_up() && !is_behind {
                ready!(self.inbox.poll_turn(cx));
            } else if self.inbox.is_starved() && !is_behind {
                match self.receive(holds, cx)? {
                    Poll::Ready(0) => return Poll::Ready(Err(Ended::Closed)),
                    Poll::Ready(_) => self.inbox.received(),
                    Poll::Pending if holds => {
                        self.held = HELD_MAX;
                        continue;
                    }
                    Poll::Pending => return Poll::Pending,
                }
                self.silence.heard();
            }
            self.session.handle_bytes(&mut self.inbox)?;
        }
    }

    /// Receives what is there. 0 at the end.
    fn receive(&mut self, holds: bool, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut place = self.inbox.place();
        let is_idle = self.jobs.is_empty() && !holds && self.session.outbox().is_empty();
        match self.stream.look(is_idle, self.session.commands(), place.room())? {
            Look::Came(bytes) => return Poll::Ready(Ok(place.put(bytes))),
            Look::Yield => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Look::Asleep => {}
        }
        read(self.stream.registered()?, place, cx)
    }

    /// Whether what is to be sent waits until the next data segment has been received, which has arrived already.
    ///
    /// To send an answer costs as much as to receive 128 KiB: it wakes the initiator. So several leave together, but never
    /// more than commands are left here to be served meanwhile: otherwise an initiator that keeps a few under way would
    /// have nothing to do while they are, and then this side.
    fn holds(&mut self) -> bool {
        let Some((missing, whole)) = self.inbox.coming() else { return false };
        if self.held >= HELD_MAX || whole < LONG || self.session.outbox().is_empty() {
            return false;
        }
        let socket = self.stream.registered().ok();
        let here = socket.and_then(|socket| rustix::io::ioctl_fionread(socket).ok()).unwrap_or(0);
        let here = usize::try_from(here).unwrap_or(usize::MAX);
        let behind = here.saturating_sub(missing).checked_div(whole).unwrap_or(0);
        let holds = behind > self.held;
        self.held = self.held.saturating_add(usize::from(holds));
        holds
    }

    /// Ready when a command has waited too long for room: at that moment.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let Some(due) = self.session.room_due() else {
            self.patience = None;
            return Poll::Pending;
        };
        let sleep = self.patience.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        sleep.as_mut().poll(cx).map(|()| due)
    }
}

/// Receives what is there, as far as there is room; 0 at the end.
fn read(stream: &mut TcpStream, place: Place<'_>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    match place {
        Place::One(mut buffer) => pin!(stream.read_buf(&mut buffer)).poll(cx),
        Place::Row(row, ahead) => row.poll_fill(
            ahead,
            cx,
            |cx| stream.poll_read_ready(cx),
            |slices| stream.try_read_vectored(slices),
        ),
    }
}

/// The next change; never, once there are no more.
async fn changed(luns: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = luns {
        if receiver.changed().await.is_ok() {
            return;
        }
        *luns = None;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4 hosts were refused at portals that were shown as listening, and named in discovery.
    #[tokio::test]
    async fn all_addresses_of_a_port_are_those_of_ipv4_too_whatever_the_system_has_set() {
        let Ok(socket) = TcpSocket::new_v6() else {
            return; // no IPv6 here
        };
        rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
        let all = SocketAddr::from(([0; 16], 0));
        assert!(is_everywhere(all) && !is_everywhere(([0; 4], 0).into()));
        let listener = listen_everywhere(socket, all).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    }
}
