//! Drives one session over its socket: reads, answers, writes, until the end.
//!
//! The drive loop is one future that never hands anything to another task: what was received is parsed
//! as a batch, cached reads are answered while parsing, and one vectored write takes all replies. Jobs
//! that wait run beside it in the same task. Going to sleep costs no system call, because a short read
//! already told the runtime that the socket is empty.
//!
//! Answers to long writes leave two by two, or more at once, as far as that keeps nobody waiting: [`Driver::holds`].

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use disk::Place;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use memory::Member;
use peers::{Link, Look};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::{Instant, Sleep, sleep_until, timeout},
};

use super::{Keep, connection::Ended, must_go};
use crate::{
    inbox::Inbox,
    pdu::Outbox,
    session::{Came, Session, Ticket},
    silence::{Sign, Silence},
    targets::{Claim, Order, Targets},
};

/// Slices per write; the kernel takes 1,024 at most.
const SLICES: usize = 256;
/// What is to be sent is held so often at most.
const HELD_MAX: usize = 8;
/// Data segments from here on take long enough that it pays, in bytes.
const LONG: usize = 32 << 10;

type JobFuture = Pin<Box<dyn Future<Output = (Ticket, Came)> + Send>>;

pub(super) struct Driver {
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
    pub(super) fn new(session: Session, stream: Link<TcpStream>, inbox: Inbox, ping_after: Duration) -> Self {
        Self {
            session,
            stream,
            inbox,
            jobs: FuturesUnordered::new(),
            silence: Silence::new(ping_after),
            taken: 0,
            patience: None,
            held: 0,
        }
    }

    pub(super) async fn serve(
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

    /// Closes. What changes something must have ended before another session of this name may start, and its login does not
    /// wait for long.
    pub(super) async fn end(self) -> Remains {
        let Self { mut session, stream, inbox, mut jobs, .. } = self;
        drop((stream, inbox));
        settle_up(&mut session, &mut jobs).await;
        Remains { _held: session.leave(), jobs }
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

/// What is left of a session that has ended: what only looks, and the memory that devices may write to meanwhile.
pub(super) struct Remains {
    _held: Member,
    jobs: FuturesUnordered<JobFuture>,
}

impl Remains {
    pub(super) async fn gone(&mut self) {
        while self.jobs.next().await.is_some() {}
    }
}

/// Writes until the outbox is empty.
pub(super) fn write<S: AsyncWrite + Unpin>(
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
