//! A connection in its transmission phase.
//!
//! It reads whatever the socket holds, answers every request of the batch whose data is in memory, and sends the batch
//! with one vectored write; the others run as futures in that same task ([`FuturesUnordered`]) and are answered as they
//! finish. So a hit costs no hop and no wake-up, a miss one wake-up, and nothing is polled while nothing happens (where
//! that is cheaper, [`peers::Link`] looks for the next request for a moment).
//!
//! A client that is gone without `DISC` has its changes given up at once, not when their time is over: it may have sent them
//! again on another connection already, and written something newer after them. Nobody was promised them, and
//! a volume's futures may be dropped at any time. Behind a `DISC` all is done that was asked before it. So who is gone is heard
//! out before anything more is begun for it; and while nothing is read of a client, because too much is under way, it is looked
//! now and then whether it is gone, and each time before it is gone on with. (Who closed with more on its way than the socket
//! takes is not seen to have, until an answer is sent: then the connection is reset.)

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use block::{BlockVolume, Extent, Segments, VolumeError, VolumeFuture};
use futures_util::stream::{FuturesUnordered, Stream};
use peers::Look;
use smallvec::SmallVec;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::{
    error::NbdError,
    serve::{End, ServeLimits, after},
    session::{Phase, Session},
    stats::Published,
    transmission::{CACHE_STEP, Op, Outcome, Request, Tag},
    wire::Wire,
};

/// Reads up to this many bytes are looked up together: of longer ones each has blocks enough to wait for.
const SMALL_READ: usize = 16 << 10;
/// So many at most: their answers are a part of a batch.
const READS_AT_ONCE: usize = 16;

/// How often it is looked whether a client is there of whom nothing is read.
const LOOK: Duration = Duration::from_millis(100);

/// Slices of one vectored write: 128 hits with their headers.
const SLICES: usize = 256;

/// Something a connection waits for besides its socket.
enum Running<'v> {
    /// A request of the client; none once it is done or given up.
    Operation(Option<(Tag, Operation<'v>)>),
    /// The server stops or the export is gone.
    Stop(Pin<Box<dyn Future<Output = Goodbye> + Send>>),
    /// The time is over.
    Deadline(Pin<Box<tokio::time::Sleep>>),
}

/// Why a connection is ended from our side.
pub(crate) enum Goodbye {
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
            Running::Operation(begun) => {
                // Given up, or polled after it was ready: nothing is left to report.
                let Some((_, operation)) = begun else { return Poll::Pending };
                let outcome = ready!(operation.poll(cx));
                begun.take().map_or(Poll::Pending, |(tag, _)| Poll::Ready(Event::Done(tag, outcome)))
            }
        }
    }
}

/// A volume's operation under way.
enum Operation<'v> {
    Read(VolumeFuture<'v, Segments>),
    Extents(VolumeFuture<'v, Vec<Extent>>),
    Write(VolumeFuture<'v, ()>),
    Trim(VolumeFuture<'v, ()>),
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
            Operation::Trim(f) | Operation::Unit(f) => f.as_mut().poll(cx).map_ok(|()| Outcome::Done),
        }
        .map_err(NbdError::from)
    }

    /// Whether the volume is another one afterwards.
    fn is_change(&self) -> bool {
        matches!(self, Operation::Write(_) | Operation::Trim(_))
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
        Op::Trim { offset, len, durability } => Operation::Trim(volume.unmap(offset, len, durability)),
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
pub(crate) struct Pump<'a, 'v, S> {
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
    /// When it is looked whether the client is there, if nothing is read of it.
    looks: Interval,
    /// Nothing was read of the client when this last waited.
    was_parked: bool,
}

/// Reads that came together, of at most [`SMALL_READ`] bytes each.
#[derive(Default)]
struct SmallReads {
    /// Offset and length.
    places: SmallVec<[(u64, usize); READS_AT_ONCE]>,
    tags: SmallVec<[Option<Tag>; READS_AT_ONCE]>,
}

impl<'a, 'v, S: Wire> Pump<'a, 'v, S> {
    /// For a client that chose an export, whose `first` request may be here already, until `stop` says why it is to end.
    pub(crate) fn new(
        stream: &'a mut S,
        session: &'a mut Session,
        volume: &'v dyn BlockVolume,
        (counters, limits): (&'a Published, &'a ServeLimits),
        first: Option<Request>,
        stop: Pin<Box<dyn Future<Output = Goodbye> + Send>>,
    ) -> Self {
        let running = FuturesUnordered::new();
        running.push(Running::Stop(stop));
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            stream,
            session,
            volume,
            running,
            counters,
            limits,
            first,
            end: None,
            deadline: None,
            unpolled: false,
            unflushed: false,
            looks,
            was_parked: false,
        }
    }

    /// Goes on until the end. Before it waits for anything it says what it still holds.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let polled = self.go_on(cx);
        if polled.is_pending() {
            self.session.settle_above(self.stream.memory());
        }
        polled
    }

    /// Does all that can be done now. `Pending` only when the socket, an operation or a stop will wake us.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        // What waits may be begun now: not if the client has left since, and has sent it again elsewhere.
        if std::mem::take(&mut self.was_parked) && self.may_be_gone() && self.stream.is_closed() {
            self.session.hear_out();
        }
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
                                self.fall_silent();
                                self.let_go(End::Expelled);
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
                    self.lose(error);
                    true
                }
            };
            if (more && !blocked) || self.unpolled {
                continue;
            }
            self.counters.publish(self.session.counters());
            if self.session.is_idle() && !self.session.is_hearing_out() && !self.unflushed {
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
                if self.poll_closed(cx).is_pending() {
                    self.was_parked = true;
                    return Poll::Pending;
                }
                self.session.hear_out();
            }
            match self.receive(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => self.hang_up(End::Left),
                Poll::Ready(Ok(n)) => self.session.received(n),
                Poll::Ready(Err(error)) => {
                    self.fall_silent();
                    self.hang_up(End::Lost(error));
                }
            }
        }
    }

    /// Ready when a client of whom nothing is read has closed its side. What it sent before makes its socket readable all the
    /// time, so nobody is woken for that.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.may_be_gone() {
            return Poll::Pending;
        }
        loop {
            ready!(self.looks.poll_tick(cx));
            if self.stream.is_closed() {
                return Poll::Ready(());
            }
        }
    }

    /// Whether it matters if the client has closed its side: it did not say good-bye.
    fn may_be_gone(&self) -> bool {
        self.session.phase() != Phase::Leaving && !self.session.has_disconnected()
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
            Poll::Pending => self.running.push(Running::Operation(Some((tag, operation)))),
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

    /// An answer could not be sent. What the client said before may still be there to be read.
    fn lose(&mut self, error: io::Error) {
        self.fall_silent();
        self.finish(End::Lost(error));
        match self.session.phase() {
            Phase::Leaving => self.drop_changes(),
            _ => self.session.hear_out(),
        }
    }

    /// Nobody will read answers any more.
    fn fall_silent(&mut self) {
        self.session.discard_output();
        self.unflushed = false;
    }

    /// Nothing more comes of the client.
    fn hang_up(&mut self, end: End) {
        if self.session.heard_out() {
            // It ends when that is done, as where it was read at once.
            drop(self.end.take_if(|end| matches!(end, End::Lost(_))));
        } else {
            self.let_go(end);
        }
    }

    /// Nothing more is done for the client, and of what is under way no change.
    fn let_go(&mut self, end: End) {
        self.drop_changes();
        self.session.leave();
        self.finish(end);
    }

    /// Drops what changes the volume and is under way, unless the client said good-bye: then it counts on that. They have no
    /// answer, and no more of them is done.
    fn drop_changes(&mut self) {
        if self.session.has_disconnected() {
            return;
        }
        for running in &mut self.running {
            if let Running::Operation(begun) = running
                && let Some((tag, _)) = begun.take_if(|(_, operation)| operation.is_change())
            {
                self.session.forget(&tag);
            }
        }
    }

    /// The connection ends for this reason (the first one counts) once nothing is in flight, or its time is over. A
    /// client that is gone keeps nobody waiting: what was begun for it and is not given up may take longer, until the server
    /// stops.
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
