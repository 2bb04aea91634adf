//! One connection from its first byte until nothing of it is left.
//!
//! It logs in, takes its session's place in the registry, is driven ([`Driver`]), and gives the place up. Nobody who is not in
//! keeps a stop waiting. What changes something has ended before the place is given up, for then the next session of the same
//! name begins. What only reads, and the memory it may write to, may outlast that ([`Remains`]).

use std::{future::poll_fn, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use memory::Member;
use peers::{Link, Place};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    Keep, canonical,
    driver::{Driver, write},
    must_go,
};
use crate::{
    inbox::Inbox,
    login::{Login, Status, Step},
    pdu::{Fatal, Frame, Framing, Outbox},
    session::Session,
    targets::{Claim, Counters, Portal, SessionInfo, Targets},
};

/// Room for a request of the login phase.
const RECEIVE_BUFFER: usize = 16 << 10;
/// Longest data segment before the operational stage (RFC 7143 §13.12).
const LOGIN_SEGMENT: usize = 8192;
/// How long who is not logged in when its server stops has to say what it wants, and hear that there is no service any more.
const STOPPED_LOGIN: Duration = Duration::from_secs(1);

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
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

/// Serves a connection to its end.
pub(super) async fn connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    targets: Arc<Targets>,
    mut stopped: watch::Receiver<Keep>,
    place: &Place,
) -> Result<(), Ended> {
    stream.set_nodelay(true)?;
    let local = canonical(stream.local_addr()?);
    let mut buffer = BytesMut::with_capacity(RECEIVE_BUFFER);
    // The claim is declared first, so that it outlives the driver however this ends: when it goes, nothing of this session
    // changes anything any more.
    let mut claim;
    let is_stranger;
    let mut driver = {
        let entered = enter(&mut stream, &mut buffer, &targets, &stopped, (local, peer), place).await?;
        let Entered { login, mut outbox, claim: claimed, counters } = entered;
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
        // Who only discovers has nothing to write.
        let in_flight = if is_stranger { 0 } else { targets.config().gate.max() };
        Driver::new(session, Link::new(stream, in_flight), inbox, targets.config().ping_after)
    };
    let ousted = async {
        match is_stranger {
            true => place.ousted().await,
            false => std::future::pending().await,
        }
    };
    let result = driver.serve(&targets, &mut claim, (local, &mut stopped), ousted).await;
    let mut remains = driver.end().await;
    drop(claim);
    // Reads whose device does not answer keep nobody, but the memory it may write to still; and this connection its place in the
    // crowd, or a host that comes back again and again would have it all. A stop waits for no device: what that may write to
    // stays where it is for as long as it may.
    tokio::select! {
        () = remains.gone() => {}
        // An error means that the sender is gone.
        _stopped = stopped.wait_for(|keep| must_go(keep, local)) => {}
    }
    result
}

/// A login that was accepted, and the place of its session.
struct Entered {
    login: Login,
    outbox: Outbox,
    claim: Claim,
    counters: Arc<Counters>,
}

/// Logs in and takes the session's place, within the time allowed.
async fn enter(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    targets: &Arc<Targets>,
    stopped: &watch::Receiver<Keep>,
    (local, peer): (SocketAddr, SocketAddr),
    place: &Place,
) -> Result<Entered, Ended> {
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
            done = log_in(stream, buffer, targets, stopped, (local, peer)) => done,
        };
        let (login, outbox) = login?;
        // It has proven what it had to: what it waits for from here on is the end of its old session.
        if login.target().is_some() && !place.settle() {
            return Err(Ended::Ousted);
        }
        // Its host may give it up before that, and begin another.
        let (claim, counters) = tokio::select! {
            biased;
            gone = hung_up(stream) => Err(gone),
            claimed = claim(&login, targets, (local, peer)) => claimed,
        }?;
        Ok(Entered { login, outbox, claim, counters })
    };
    let entered = timeout(targets.config().login_timeout, async {
        tokio::select! {
            biased;
            entered = enter => entered,
            () = cut_off => Err(Ended::Stopped),
        }
    });
    entered.await.map_err(|_| Ended::LoginTimeout)?
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
