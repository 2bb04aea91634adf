//! A client's socket between requests: asleep until the system wakes it, or looked at until the next request comes.
//!
//! Who looks ([`Habit`] says when that pays) does so without the runtime: its socket is taken out of what the runtime waits
//! for, or each request would wake another thread as well. That thread waits for everything else meanwhile: timers, other
//! connections, commands. One connection looks at a time, and nobody where there is one thread. Who looks for a client of
//! this machine shares a processor with it, if that is allowed ([`beside`]).

use std::{
    fmt,
    io::{self, IoSlice, Read as _, Write as _},
    net, os,
    os::fd::AsFd,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::Instant,
};

use crate::{
    beside::{self, Way},
    habit::{Habit, Reading, Verdict},
    window::Window,
};

/// How long a look lasts at most: what a client needs to be woken and to send its next request, on slow machines.
const LOOK: Duration = Duration::from_micros(200);
/// Looks in a row until other futures of the task have their turn.
const LOOKS: u32 = 256;
/// Looks from one time that it is seen where the client runs to the next. Somebody else may part them.
const PARTED: u32 = 8;
/// Bytes that a look takes: a request, and the data of a small write.
const TAKEN: usize = 8 << 10;

/// The connection that looks, or tries whether it should; 0 if none does.
static LOOKER: AtomicU64 = AtomicU64::new(0);
/// When it was last heard of, in microseconds. It may rest in the middle of a trial, for ever.
static HEARD: AtomicU64 = AtomicU64::new(0);
/// So long after that another one may look, in microseconds.
const SILENCE: u64 = 1_000_000;
/// Numbers of connections that have looked.
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// Rounds of connections that do not look, while one does.
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// What was found out last by any of them: how dear wake-ups are says more of the machine than of the client. Microseconds
/// until it is to be tried again, doubled, and one more to look.
static FOUND: AtomicU64 = AtomicU64::new(0);
/// The same of clients of this machine.
static FOUND_NEAR: AtomicU64 = AtomicU64::new(0);

/// A socket that the runtime waits for, and the same without the runtime.
pub trait Socket: AsyncRead + AsyncWrite + AsFd + fmt::Debug + Unpin + Send + Sized {
    /// Without the runtime. It never blocks.
    type Loose: fmt::Debug + AsFd + Unpin + Send;
    /// Whether its other end is on this machine, and the system tells on which processor.
    fn is_near(&self) -> bool;
    /// Takes it out of what the runtime waits for.
    fn loose(self) -> io::Result<Self::Loose>;
    /// Gives it to the runtime.
    fn registered(loose: Self::Loose) -> io::Result<Self>;
    /// Receives what is there.
    fn receive(loose: &Self::Loose, buffer: &mut [u8]) -> io::Result<usize>;
    /// Sends as much as there is room for.
    fn send(loose: &Self::Loose, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

macro_rules! socket {
    ($($socket:ty, $loose:ty, $is_near:expr);*) => { $(
        impl Socket for $socket {
            type Loose = $loose;
            fn is_near(&self) -> bool {
                $is_near(self)
            }
            fn loose(self) -> io::Result<$loose> {
                self.into_std()
            }
            fn registered(loose: $loose) -> io::Result<Self> {
                Self::from_std(loose)
            }
            fn receive(mut loose: &$loose, buffer: &mut [u8]) -> io::Result<usize> {
                loose.read(buffer)
            }
            fn send(mut loose: &$loose, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                loose.write_vectored(slices)
            }
        }
    )* };
}
socket!(TcpStream, net::TcpStream, is_local; UnixStream, os::unix::net::UnixStream, |_: &UnixStream| false);

fn is_local(socket: &TcpStream) -> bool {
    let (Ok(ours), Ok(theirs)) = (socket.local_addr(), socket.peer_addr()) else { return false };
    let (ours, theirs) = (ours.ip().to_canonical(), theirs.ip().to_canonical());
    ours == theirs || (ours.is_loopback() && theirs.is_loopback())
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub enum Look<'a> {
    /// These bytes; none at the end of the stream.
    Came(&'a [u8]),
    /// It was not the time to look, or nothing came: the socket is to be polled as usual.
    Asleep,
    /// Others are to have their turn: to be asked again after that.
    Yield,
}

/// The socket of a client that chose what it works with.
#[derive(Debug)]
pub struct Link<S: Socket> {
    state: State<S>,
    window: Window,
    habit: Habit,
    /// Its client is on this machine.
    is_near: bool,
    /// Looks in a row.
    row: u32,
    /// Of it among those that look; 0 before it wants to.
    number: u64,
    /// Where looks put what comes; of no length before the first.
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum State<S: Socket> {
    Registered(S),
    Loose(S::Loose),
    /// The runtime, or the system, did not take it.
    Lost,
}

impl<S: Socket> Link<S> {
    /// The socket of a client. Requests of all clients together may hold `in_flight` bytes: how much this one may have sent
    /// before that is read goes by it; with 0 the kernel finds that.
    pub fn new(socket: S, in_flight: u64) -> Self {
        let window = Window::open(&socket, in_flight);
        let is_near = socket.is_near();
        let state = State::Registered(socket);
        Self { state, window, habit: Habit::default(), is_near, row: 0, number: 0, buffer: Vec::new() }
    }

    /// More is wanted. If `is_idle`, all that came is answered and sent and nothing under way: then it waits for a moment for
    /// what comes next, if that is cheaper than to sleep. `served` is how many requests there were in all; at most `room`
    /// bytes are taken.
    ///
    /// # Errors
    /// The socket's.
    pub fn look(&mut self, is_idle: bool, served: u64, room: usize) -> io::Result<Look<'_>> {
        if !is_idle || room == 0 {
            self.is_company();
            return Ok(Look::Asleep);
        }
        let mut is_news = false;
        let found = if self.is_near { &FOUND_NEAR } else { &FOUND };
        let looks = self.habit.looks(|| {
            is_news = true;
            reading(served, found)
        });
        if is_news && let Some(verdict) = self.habit.verdict() {
            publish(verdict, found);
        }
        if !self.takes_up(is_news) {
            self.is_company();
            return Ok(Look::Asleep);
        }
        if !looks {
            return Ok(Look::Asleep);
        }
        if self.row >= LOOKS {
            self.row = 0;
            wake_another();
            return Ok(Look::Yield);
        }
        let room = room.min(TAKEN);
        match self.wait(room) {
            Ok(count) => {
                self.row += 1;
                Ok(Look::Came(self.buffer.get(..count).unwrap_or_default()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.habit.missed();
                self.give_up();
                self.registered()?;
                Ok(Look::Asleep)
            }
            Err(error) => Err(error),
        }
    }

    /// Another one that looks is not alone.
    fn is_company(&self) {
        let looker = LOOKER.load(Relaxed);
        if looker != 0 && looker != self.number {
            OTHERS.fetch_add(1, Relaxed);
        }
    }

    /// Looks for a while.
    fn wait(&mut self, room: usize) -> io::Result<usize> {
        if let State::Registered(_) = self.state {
            let State::Registered(socket) = std::mem::replace(&mut self.state, State::Lost) else {
                return Err(lost());
            };
            self.state = State::Loose(socket.loose()?);
            self.buffer.resize(TAKEN, 0);
            self.row = 0;
            wake_another();
        }
        let State::Loose(socket) = &self.state else { return Err(lost()) };
        let buffer = self.buffer.get_mut(..room).unwrap_or_default();
        let is_beside = self.is_near && beside::is_on();
        if is_beside && self.row.is_multiple_of(PARTED) {
            let _from_another = beside::follow(socket.as_fd());
        }
        let since = Instant::now();
        loop {
            match S::receive(socket, buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && since.elapsed() < LOOK => {
                    if is_beside {
                        // Its client may be waiting for this processor.
                        rustix::thread::sched_yield();
                    } else {
                        std::hint::spin_loop();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Whether this is the connection that looks, or tries whether it should; it is heard of when there is `news` of it.
    fn takes_up(&mut self, news: bool) -> bool {
        if !self.habit.is_awake() {
            self.give_up();
            return false;
        }
        let looker = LOOKER.load(Relaxed);
        if looker != 0 && looker == self.number {
            if news {
                HEARD.store(micros(), Relaxed);
            }
            return true;
        }
        let is_free = looker == 0 || micros().saturating_sub(HEARD.load(Relaxed)) > SILENCE;
        if self.number == 0 {
            self.number = NUMBERS.fetch_add(1, Relaxed).saturating_add(1);
        }
        let takes = is_free && threads() > 1;
        if takes && LOOKER.compare_exchange(looker, self.number, Relaxed, Relaxed).is_ok() {
            HEARD.store(micros(), Relaxed);
            return true;
        }
        self.habit.rest();
        false
    }

    fn give_up(&mut self) {
        if self.number != 0 {
            // Another one may look by now.
            let _other = LOOKER.compare_exchange(self.number, 0, Relaxed, Relaxed);
        }
    }

    /// The socket, for the runtime to wait for.
    ///
    /// # Errors
    /// The system's, if it does not take it.
    pub fn registered(&mut self) -> io::Result<&mut S> {
        if let State::Loose(_) = self.state {
            let State::Loose(socket) = std::mem::replace(&mut self.state, State::Lost) else {
                return Err(lost());
            };
            self.state = State::Registered(S::registered(socket)?);
        }
        match &mut self.state {
            State::Registered(socket) => {
                self.window.keep(socket);
                Ok(socket)
            }
            State::Loose(_) | State::Lost => Err(lost()),
        }
    }
}

impl<S: Socket> Drop for Link<S> {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn lost() -> io::Error {
    io::Error::other("the socket was lost between the system and the runtime")
}

/// The thread that runs a connection waits for all events of the runtime afterwards, as a rule. While it looks another one
/// is to do that.
fn wake_another() {
    tokio::spawn(async {});
}

/// Threads that run connections; one if there is no runtime.
fn threads() -> usize {
    tokio::runtime::Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers())
}

fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

pub(crate) fn micros() -> u64 {
    u64::try_from(clock(ClockId::Monotonic).as_micros()).unwrap_or(u64::MAX)
}

fn reading(served: u64, found: &AtomicU64) -> Reading {
    Reading {
        wall: clock(ClockId::Monotonic),
        cpu: clock(ClockId::ProcessCPUTime),
        served,
        others: OTHERS.load(Relaxed),
        known: known(found),
    }
}

fn publish(verdict: Verdict, found: &AtomicU64) {
    let until = u64::try_from(verdict.until.as_micros()).unwrap_or(u64::MAX) << 1;
    // Whoever goes by what another one found has it from here, and may have it for long.
    found.fetch_max(until | u64::from(verdict.looks), Relaxed);
}

fn known(found: &AtomicU64) -> Option<Verdict> {
    let found = found.load(Relaxed);
    (found != 0).then(|| Verdict { looks: found % 2 == 1, until: Duration::from_micros(found >> 1) })
}

impl<S: Socket> AsyncRead for Link<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(self.registered()?).poll_read(cx, buffer)
    }
}

impl<S: Socket> AsyncWrite for Link<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let State::Loose(socket) = &self.state {
            let way = self.is_near.then(Way::give).flatten();
            let done = S::send(socket, slices);
            drop(way);
            match done {
                // The system says when there is room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
        Pin::new(self.registered()?).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Registered(socket) => Pin::new(socket).poll_flush(cx),
            // Sockets hold nothing back.
            State::Loose(_) | State::Lost => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.registered()?).poll_shutdown(cx)
    }
}

/// One of the tests looks at a time, as connections do.
#[cfg(test)]
pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        runtime::{Handle, Runtime},
        time::sleep,
    };

    use super::*;

    fn runtime(threads: usize) -> Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
    }

    fn looking<S: Socket>(socket: S) -> Link<S> {
        let mut link = Link::new(socket, 0);
        link.habit = Habit::looking();
        link
    }

    /// Receives as a connection does that has nothing under way and was asked once more; whether it came by looking.
    async fn next<S: Socket>(link: &mut Link<S>, into: &mut Vec<u8>) -> io::Result<bool> {
        static SERVED: AtomicU64 = AtomicU64::new(0);
        let served = SERVED.fetch_add(1, Relaxed);
        poll_fn(|cx| {
            match link.look(true, served, 4096)? {
                Look::Came(bytes) => {
                    into.extend_from_slice(bytes);
                    return Poll::Ready(Ok(true));
                }
                Look::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Look::Asleep => {}
            }
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut *link).poll_read(cx, &mut buffer))?;
            into.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(false))
        })
        .await
    }

    /// Echoes until the other side has closed; how often something came by looking.
    async fn echo<S: Socket>(mut link: Link<S>) -> io::Result<u32> {
        let mut looked = 0;
        loop {
            let mut bytes = Vec::new();
            looked += u32::from(next(&mut link, &mut bytes).await?);
            if bytes.is_empty() {
                return Ok(looked);
            }
            link.write_all(&bytes).await?;
        }
    }

    #[test]
    fn who_looks_and_sleeps_by_turns_misses_nothing() {
        let runtime = runtime(2);
        let looked = runtime.block_on(async {
            let _alone = ALONE.lock().await;
            let (ours, theirs) = os::unix::net::UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let echo = tokio::spawn(echo(looking(UnixStream::from_std(ours).unwrap())));
            let client = tokio::task::spawn_blocking(move || {
                let mut answer = [0; 8];
                for number in 0..2000_u64 {
                    // Now and then for longer than anybody looks.
                    if number % 100 == 99 {
                        Handle::current().block_on(sleep(Duration::from_millis(2)));
                    }
                    (&theirs).write_all(&number.to_le_bytes()).unwrap();
                    (&theirs).read_exact(&mut answer).unwrap();
                    assert_eq!(u64::from_le_bytes(answer), number);
                }
            });
            client.await.unwrap();
            echo.await.unwrap().unwrap()
        });
        assert!(looked > 0, "some of them came while it looked");
    }

    #[test]
    fn others_are_served_while_one_looks() {
        runtime(2).block_on(async {
            let _alone = ALONE.lock().await;
            let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
            let theirs = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (ours, _) = listener.accept().unwrap();
            ours.set_nonblocking(true).unwrap();
            // It never gets round to anything else: what it looks for is always there.
            let flood = tokio::task::spawn_blocking(move || while (&theirs).write_all(&[7; 4096]).is_ok() {});
            let mut link = looking(TcpStream::from_std(ours).unwrap());
            let busy = tokio::spawn(async move {
                let (mut bytes, mut looked) = (Vec::new(), 0_u32);
                for _ in 0..5000 {
                    bytes.clear();
                    looked += u32::from(next(&mut link, &mut bytes).await.unwrap());
                }
                looked
            });
            let timer = tokio::spawn(async {
                let mut late = Duration::ZERO;
                for _ in 0..10 {
                    let since = Instant::now();
                    sleep(Duration::from_millis(1)).await;
                    late = late.max(since.elapsed());
                }
                late
            });
            assert!(timer.await.unwrap() < Duration::from_secs(2));
            assert!(busy.await.unwrap() > 0, "it did look");
            flood.await.unwrap();
        });
    }

    #[test]
    fn where_one_thread_does_everything_nobody_looks() {
        let runtime = runtime(1);
        runtime.block_on(async {
            let _alone = ALONE.lock().await;
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(b"a request").await.unwrap();
            let mut link = looking(ours);
            assert_eq!(link.look(true, 1, 4096).unwrap(), Look::Asleep);
            let mut bytes = Vec::new();
            assert!(!next(&mut link, &mut bytes).await.unwrap());
            assert_eq!(bytes, b"a request");
        });
    }

    #[test]
    fn an_answer_that_the_socket_does_not_take_at_once_leaves_whole() {
        runtime(2).block_on(async {
            let _alone = ALONE.lock().await;
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut link = looking(ours);
            theirs.write_all(b"a request").await.unwrap();
            let mut bytes = Vec::new();
            assert!(next(&mut link, &mut bytes).await.unwrap(), "it is there already");
            let long: Vec<u8> = (0..8 << 20).map(|at: usize| (at / 3) as u8).collect();
            let answer = long.clone();
            let sent = tokio::spawn(async move {
                link.write_all(&answer).await.unwrap();
                link
            });
            let mut came = vec![0; long.len()];
            theirs.read_exact(&mut came).await.unwrap();
            assert!(came == long);
            drop(theirs);
            let (mut link, mut rest) = (sent.await.unwrap(), Vec::new());
            next(&mut link, &mut rest).await.unwrap();
            assert!(rest.is_empty(), "the end of the stream");
        });
    }

    #[test]
    fn one_connection_looks_at_a_time_until_it_is_gone() {
        runtime(2).block_on(async {
            let _alone = ALONE.lock().await;
            let mut ends = Vec::new();
            let mut links = Vec::new();
            for _ in 0..3 {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                theirs.write_all(b"a request").await.unwrap();
                links.push(looking(ours));
                ends.push(theirs);
            }
            assert_eq!(links[0].look(true, 1, 4096).unwrap(), Look::Came(b"a request"));
            assert_eq!(links[1].look(true, 1, 4096).unwrap(), Look::Asleep);
            assert_eq!(LOOKER.load(Relaxed), links[0].number);
            drop(links.remove(0));
            assert_eq!(links[1].look(true, 1, 4096).unwrap(), Look::Came(b"a request"));
        });
    }

    #[test]
    fn a_connection_that_rests_in_the_middle_of_a_trial_keeps_nobody_from_looking() {
        runtime(2).block_on(async {
            let _alone = ALONE.lock().await;
            let ((first, mut one), (second, mut two)) =
                (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            let (mut first, mut second) = (looking(first), looking(second));
            one.write_all(b"a request").await.unwrap();
            two.write_all(b"a request").await.unwrap();
            assert_eq!(first.look(true, 1, 4096).unwrap(), Look::Came(b"a request"));
            HEARD.store(micros() - SILENCE - 1, Relaxed);
            assert_eq!(second.look(true, 1, 4096).unwrap(), Look::Came(b"a request"));
            one.write_all(b"another").await.unwrap();
            assert_eq!(first.look(true, 2, 4096).unwrap(), Look::Asleep, "it has lost its turn");
            drop(first);
            assert_eq!(LOOKER.load(Relaxed), second.number, "and takes nobody's with it when it goes");
        });
    }
}
