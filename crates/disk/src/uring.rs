//! io_uring under tokio: one submission and one wake-up for each operation, no thread of its own.
//!
//! ```text
//!   task polls ─▶ this thread's ring: push, io_uring_enter ─▶ device
//!                  └─ already over? the same poll returns it        │ interrupt
//!   task is woken ◀─ Ring::listen, called by tokio's driver ◀─ epoll sees the ring readable
//! ```
//!
//! * Every thread that polls has its own ring (per runtime), so submission is never contended.
//! * The ring's file descriptor is registered with the runtime's epoll, edge triggered. The waker registered
//!   there is no task: it is the ring, which takes the completions and wakes the tasks that wait for them,
//!   on the driver's own thread. Idle costs nothing.
//! * The kernel holds one strong reference to each [`Op`] in flight (its address is the `user_data`), so the
//!   buffer outlives dropped futures, tasks and runtimes. What a dying ring cannot wait for is leaked.
//! * A [`Plug`] holds submissions back to send many with one system call.
//! * At most [`COMPLETIONS`] operations are in flight per ring, so its completion queue never overflows;
//!   the caller takes what is beyond to the blocking pool.
//! * A thread that exits takes its operations along (`ECANCELED`), a sandbox may forbid io_uring midway: such
//!   operations end with an error that [`must_retry`] recognises.
//!
//! Locks: `pending` (submission) and `reaping` (completion) are never held together with each other or with
//! an op's state, and never while a waker runs.
#![expect(unsafe_code, reason = "shared queues with the kernel: submission and completion entries")]

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    io,
    marker::PhantomData,
    os::fd::AsRawFd,
    pin::{Pin, pin},
    ptr,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime,
};

use crate::request::{Finished, Payload, Request, Verb};

/// Submissions a plug can hold back before they are sent anyway.
const SUBMISSIONS: u32 = 256;
/// Operations in flight per ring.
const COMPLETIONS: u32 = 4096;
/// How long the end of a ring waits for operations in flight before it leaks their buffers.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often a submission the kernel has no memory for is tried again.
const SUBMIT_RETRIES: u32 = 1000;

/// Whether this process may use io_uring; asked once. The error is the kernel's (`EPERM` under most container
/// runtimes, `ENOSYS` on old kernels).
pub(crate) fn available() -> io::Result<()> {
    static ANSWER: OnceLock<Result<(), (io::ErrorKind, String)>> = OnceLock::new();
    ANSWER
        .get_or_init(|| try_out().map_err(|error| (error.kind(), error.to_string())))
        .clone()
        .map_err(|(kind, reason)| io::Error::new(kind, reason))
}

/// Makes a ring and passes a no-op through it: filters may allow one call and refuse the next.
fn try_out() -> io::Result<()> {
    let mut ring = build(8, 16)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if !needed.iter().all(|&code| probe.is_supported(code))
        || !ring.params().is_feature_ext_arg()
        || !ring.params().is_feature_nodrop()
    {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old"));
    }
    // SAFETY: a no-op touches no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    if ring.completion().next().is_some_and(|done| done.result() == 0) {
        Ok(())
    } else {
        Err(io::Error::other("io_uring does not carry out a no-op"))
    }
}

fn build(submissions: u32, completions: u32) -> io::Result<IoUring> {
    // Completions need no inter-processor interrupt: a busy worker enters the kernel soon anyway, and
    // an idle one is woken. Kernels before 5.19 do not know the flag.
    let cooperative = IoUring::builder()
        .dontfork()
        .setup_cqsize(completions)
        .setup_submit_all()
        .setup_coop_taskrun()
        .build(submissions);
    cooperative.or_else(|_| IoUring::builder().dontfork().setup_cqsize(completions).build(submissions))
}

/// Hands `request` to the kernel, through this thread's ring in this runtime; gives it back if there is none
/// or it is full.
pub(crate) fn submit(request: Request) -> Result<InFlight, Request> {
    match Ring::current() {
        Some(ring) => ring.submit(request),
        None => Err(request),
    }
}

/// Did the operation end for reasons that are the ring's, not the file's?
pub(crate) fn must_retry(result: &io::Result<usize>) -> bool {
    matches!(
        result.as_ref().map_err(io::Error::raw_os_error),
        Err(Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN))
    )
}

/// An operation the kernel may still be working on. Dropping it forgets the result, not the buffer.
pub(crate) struct InFlight {
    op: Arc<Op>,
    /// While someone waits, someone listens.
    _ring: Arc<Ring>,
}

impl Future for InFlight {
    type Output = Finished;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let mut state = self.op.state.lock();
        let Some(result) = state.result else {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        let request = state.request.take().expect("polled after it was ready");
        let result = match usize::try_from(result) {
            Ok(transferred) => Ok(transferred),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        Poll::Ready(Finished { result, request })
    }
}

/// One operation, shared by its future and (as a raw pointer) by the kernel.
struct Op {
    state: Mutex<OpState>,
}

struct OpState {
    /// Owns the memory the kernel works on: taken only after `result` is there.
    request: Option<Request>,
    result: Option<i32>,
    waker: Option<Waker>,
}

impl Op {
    /// The kernel's reference, as `user_data`.
    fn into_user_data(self: Arc<Self>) -> u64 {
        Arc::into_raw(self).expose_provenance() as u64
    }

    /// Takes the kernel's reference back.
    ///
    /// # Safety
    /// `user_data` came from [`Op::into_user_data`] and is used once.
    unsafe fn from_user_data(user_data: u64) -> Arc<Self> {
        // SAFETY: the caller's promise; on Linux a pointer fits 64 bits.
        unsafe { Arc::from_raw(ptr::with_exposed_provenance(user_data as usize)) }
    }

    fn finish(&self, result: i32) {
        let waker = {
            let mut state = self.state.lock();
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// One thread's ring in one runtime.
struct Ring {
    fd: AsyncFd<IoUring>,
    /// The kernel's references to ops pushed but not yet taken by the kernel, oldest first. Its lock is the
    /// submission queue's.
    pending: Mutex<Vec<u64>>,
    /// The completion queue's lock.
    reaping: Mutex<()>,
    in_flight: AtomicUsize,
    /// The runtime is gone or the kernel refuses: take no new operations.
    closed: AtomicBool,
    doorbell: Waker,
}

/// What the runtime's driver wakes. Weak, because the driver keeps it.
struct Doorbell(Weak<Ring>);

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        if let Some(ring) = self.0.upgrade() {
            ring.listen();
        }
    }
}

type RingOfRuntime = (runtime::Id, Option<Arc<Ring>>);

thread_local! {
    /// This thread's rings; `None` where the kernel refused one. Normally one entry.
    static RINGS: RefCell<Vec<RingOfRuntime>> = const { RefCell::new(Vec::new()) };
    /// Plugs alive on this thread.
    static PLUGS: Cell<usize> = const { Cell::new(0) };
    /// Rings with submissions held back by them.
    static HELD: RefCell<Vec<Arc<Ring>>> = const { RefCell::new(Vec::new()) };
}

impl Ring {
    /// This thread's ring in the current runtime, made at first use. `None` outside a runtime, or if there
    /// are too many rings or files already.
    fn current() -> Option<Arc<Self>> {
        let id = runtime::Handle::try_current().ok()?.id();
        // Dropped after the borrow ends: the end of a ring may take time and wake tasks.
        let mut ended = Vec::new();
        RINGS
            .try_with(|rings| {
                let mut rings = rings.borrow_mut();
                let known = rings.iter().find(|(of, _)| *of == id);
                if let Some((_, ring)) = known
                    && ring.as_ref().is_none_or(|ring| !ring.closed.load(Acquire))
                {
                    return ring.clone();
                }
                let over =
                    |ring: &Option<Arc<Self>>| ring.as_ref().is_none_or(|ring| ring.closed.load(Acquire));
                ended = rings.extract_if(.., |(_, ring)| over(ring)).collect();
                let ring = Self::new()
                    .inspect_err(
                        |error| tracing::warn!(%error, "no io_uring for this thread: blocking calls"),
                    )
                    .ok();
                rings.push((id, ring.clone()));
                ring
            })
            .ok()
            .flatten()
    }

    /// Must be called in a runtime.
    fn new() -> io::Result<Arc<Self>> {
        let uring = build(SUBMISSIONS, COMPLETIONS)?;
        // SAFETY: `AsyncFd` owns the ring from here on and nothing replaces or closes its descriptor before
        // it has been deregistered.
        let fd = unsafe { AsyncFd::register_with_interest(uring, Interest::READABLE) }?;
        let ring = Arc::new_cyclic(|weak| Self {
            fd,
            pending: Mutex::default(),
            reaping: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            doorbell: Waker::from(Arc::new(Doorbell(Weak::clone(weak)))),
        });
        ring.listen();
        Ok(ring)
    }

    fn submit(self: Arc<Self>, request: Request) -> Result<InFlight, Request> {
        if self.in_flight.load(Acquire) >= COMPLETIONS as usize {
            self.reap();
            if self.in_flight.load(Acquire) >= COMPLETIONS as usize {
                return Err(request);
            }
        }
        let Some(entry) = entry(&request) else { return Err(request) };
        let op =
            Arc::new(Op { state: Mutex::new(OpState { request: Some(request), result: None, waker: None }) });
        self.push(entry, &op);
        if PLUGS.get() == 0 {
            self.enter();
            self.reap();
        } else {
            HELD.with_borrow_mut(|held| {
                if !held.iter().any(|ring| Arc::ptr_eq(ring, &self)) {
                    held.push(Arc::clone(&self));
                }
            });
        }
        Ok(InFlight { op, _ring: self })
    }

    /// Puts one entry on the submission queue; makes room first if a plug filled it.
    fn push(&self, entry: squeue::Entry, op: &Arc<Op>) {
        if self.pending.lock().len() >= SUBMISSIONS as usize {
            self.enter();
        }
        let user_data = Arc::clone(op).into_user_data();
        self.in_flight.fetch_add(1, AcqRel);
        let mut pending = self.pending.lock();
        // SAFETY: the lock makes this the only `SubmissionQueue`. The entry's memory and file belong to `op`,
        // of which the kernel now has a reference that it gives back with the completion.
        let pushed = unsafe { self.fd.get_ref().submission_shared().push(&entry.user_data(user_data)) };
        if pushed.is_ok() {
            pending.push(user_data);
            return;
        }
        drop(pending);
        // Another thread cannot have filled it (rings are per thread), so the kernel refused what was there.
        self.cancel([user_data]);
    }

    /// Sends what is pending to the kernel. When this returns, every op pushed before has been taken by the
    /// kernel or has failed with `ECANCELED`.
    fn enter(&self) {
        let mut pending = self.pending.lock();
        let mut retries = 0;
        while !pending.is_empty() && !self.closed.load(Acquire) {
            match self.fd.get_ref().submit() {
                Ok(taken) => {
                    let taken = taken.min(pending.len());
                    pending.drain(..taken);
                    retries = if taken == 0 { retries + 1 } else { 0 };
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => retries += 1,
                    _ => retries = SUBMIT_RETRIES,
                },
            }
            if retries >= SUBMIT_RETRIES {
                tracing::warn!("the kernel takes no more io_uring submissions: blocking calls instead");
                self.closed.store(true, Release);
            } else if retries > 0 {
                std::thread::yield_now();
            }
        }
        // Closed: nobody calls the kernel with these entries again, so their references are ours.
        let refused = std::mem::take(&mut *pending);
        if !refused.is_empty() {
            drop(pending);
            self.cancel(refused);
        } else {
            // Keep the capacity.
            *pending = refused;
        }
    }

    /// Ends ops that the kernel never saw.
    fn cancel(&self, ops: impl IntoIterator<Item = u64>) {
        for user_data in ops {
            self.in_flight.fetch_sub(1, AcqRel);
            // SAFETY: pushed with `into_user_data`, and neither the kernel nor `pending` has it any more.
            unsafe { Op::from_user_data(user_data) }.finish(-libc::ECANCELED);
        }
    }

    /// Takes all completions there are and wakes who waits for them.
    fn reap(&self) {
        const BATCH: usize = 32;
        loop {
            let mut batch = [(0_u64, 0_i32); BATCH];
            let mut count = 0;
            {
                let _reaping = self.reaping.lock();
                // SAFETY: the lock makes this the only `CompletionQueue`.
                let mut queue = unsafe { self.fd.get_ref().completion_shared() };
                for (slot, done) in batch.iter_mut().zip(&mut queue) {
                    *slot = (done.user_data(), done.result());
                    count += 1;
                }
            }
            self.in_flight.fetch_sub(count, AcqRel);
            for &(user_data, result) in &batch[..count] {
                // SAFETY: the kernel returns what was pushed, once per entry.
                unsafe { Op::from_user_data(user_data) }.finish(result);
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// Reaps, and registers to be called again when the ring becomes readable. The edge that comes between the
    /// two is seen by the second turn of the loop.
    fn listen(&self) {
        let mut cx = Context::from_waker(&self.doorbell);
        loop {
            // Unconstrained: the ring is no task, and must not be put off by the budget of the task that
            // happens to run.
            let ready = poll_fn(|cx| self.fd.poll_read_ready(cx).map_ok(|mut guard| guard.clear_ready()));
            match pin!(tokio::task::unconstrained(ready)).poll(&mut cx) {
                Poll::Ready(Ok(())) => self.reap(),
                Poll::Ready(Err(_)) => {
                    // The runtime shuts down, and with it the way to hear of completions.
                    self.closed.store(true, Release);
                    self.farewell();
                    return;
                }
                Poll::Pending => return,
            }
        }
    }

    /// Waits a bounded time for what is in flight.
    fn farewell(&self) {
        let timeout = types::Timespec::from(FAREWELL);
        let args = types::SubmitArgs::new().timespec(&timeout);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        loop {
            self.reap();
            if self.in_flight.load(Acquire) == 0 {
                return;
            }
            // SAFETY: submits nothing; `args` lives across the call and is what EXT_ARG announces.
            let waited = unsafe { self.fd.get_ref().submitter().enter(0, 1, flags.bits(), Some(&args)) };
            match waited {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // ETIME and everything else: enough.
                Err(_) => return self.reap(),
                Ok(_) => {}
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.farewell();
        let leaked = *self.in_flight.get_mut();
        if leaked > 0 {
            let fd = self.fd.as_raw_fd();
            tracing::warn!(fd, leaked, "operations outlive their io_uring: their buffers are leaked");
        }
    }
}

/// The submission entry of `request`, or `None` if the ring cannot do that.
fn entry(request: &Request) -> Option<squeue::Entry> {
    let fd = types::Fd(request.file.as_raw_fd());
    if let (Verb::Write, Payload::Parts(parts)) = (request.verb, &request.payload) {
        let vectors = parts.vectors();
        let count = u32::try_from(vectors.len()).ok()?;
        // They stay in the request, which the op keeps until the kernel is done with it.
        return Some(opcode::Writev::new(fd, vectors.as_ptr(), count).offset(request.offset).build());
    }
    let (memory, len) = request.memory();
    let len = u32::try_from(len).ok()?;
    Some(match request.verb {
        Verb::Read => opcode::Read::new(fd, memory.cast_mut(), len).offset(request.offset).build(),
        Verb::Write => opcode::Write::new(fd, memory, len).offset(request.offset).build(),
        Verb::WriteThrough => {
            opcode::Write::new(fd, memory, len).offset(request.offset).rw_flags(libc::RWF_DSYNC).build()
        }
        Verb::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Verb::Punch => opcode::Fallocate::new(fd, request.len)
            .offset(request.offset)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build(),
        Verb::Discard => return None,
    })
}

/// Holds back the submissions of this thread while it lives, to send them with one system call when the last
/// plug goes (or 256 are waiting). For the synchronous part of one poll; see [`plugged`] for a future.
#[derive(Debug)]
pub struct Plug {
    /// Not `Send`: it belongs to its thread.
    _thread: PhantomData<*const ()>,
}

/// Starts to hold submissions back: like the block layer's plug, and for the same reason.
pub fn plug() -> Plug {
    PLUGS.set(PLUGS.get() + 1);
    Plug { _thread: PhantomData }
}

impl Drop for Plug {
    fn drop(&mut self) {
        PLUGS.set(PLUGS.get() - 1);
        if PLUGS.get() > 0 {
            return;
        }
        let held = HELD.with_borrow_mut(std::mem::take);
        for ring in held {
            ring.enter();
            ring.reap();
        }
    }
}

/// Runs `future` with a plug in each of its polls: everything it submits in one poll goes to the kernel
/// together. Wrap a `join_all` of reads in it.
pub async fn plugged<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _plug = plug();
        future.as_mut().poll(cx)
    })
    .await
}
