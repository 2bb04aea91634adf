//! How much a client may have sent before it is read: the receive window of its connection.
//!
//! What waits in a socket to be read takes from the window that is announced for it, and the kernel tells the sender at once
//! that something arrived only if the window has not become smaller by it: else it does so when it is read, or after 40 ms.
//! By itself a window takes all of its buffer. So with every write that finds us busy the sender waits, sends again what has
//! long arrived, and goes on in small segments. Here a window takes half of its buffer, and what waits takes from the other one.
//!
//! The buffer is the largest that the kernel would find by itself, from the beginning. It is the kernel's memory, beside what
//! the daemon holds, and taken as far as what came is not read yet; but who is kept waiting can fill it. So all of them
//! together have a bound that goes by what requests may hold, and who comes when it is reached keeps what the kernel finds.
//!
//! Facts: tcp(7), socket(7); what the kernel does (Linux 6.18) was seen from outside. Measured: docs/decisions/0022-receive-windows.md.

use std::{
    fs, io,
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use disk::{set_window_clamp, window_clamp};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, socket_recv_buffer_size};

/// The part of what all requests may hold that one client's buffer may be.
const PART: u64 = 128;
/// The part of it that all buffers together may be.
const ALL: u64 = 2;
/// Smaller buffers were no better than what the kernel finds, bytes.
const LEAST: u64 = 1536 << 10;
/// So often it is looked whether the window is as it was opened, in turns; and at first more often. The kernel opens it as far
/// as the buffer goes when it sees how much memory segments take.
const AGAIN: u32 = 1024;

/// Bytes of all buffers.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// The window of a client that chose what it works with.
#[derive(Debug)]
pub(crate) struct Window {
    /// How wide; 0 if the kernel finds that.
    bytes: u32,
    turns: u32,
    /// Keeps the buffer in the account of all.
    _buffer: Buffer,
}

/// So many bytes of [`OPEN`].
#[derive(Debug, Default)]
struct Buffer(u64);

impl Drop for Buffer {
    fn drop(&mut self) {
        OPEN.fetch_sub(self.0, Relaxed);
    }
}

impl Window {
    /// A wide one, where requests of all clients together may hold `in_flight` bytes now. Without the permission
    /// (`CAP_NET_ADMIN`, which containers may lack) it stays as the kernel has it.
    pub(crate) fn open(socket: &impl AsFd, in_flight: u64) -> Self {
        let wanted = (in_flight / PART).min(largest());
        if wanted >= LEAST
            && let Some(buffer) = Buffer::taken(wanted, in_flight / ALL)
            // A socket of another kind has no window.
            && let Ok(bytes) = half(socket, wanted)
        {
            return Self { bytes, turns: 0, _buffer: buffer };
        }
        Self { bytes: 0, turns: 0, _buffer: Buffer::default() }
    }

    /// Keeps it as it is, at each turn in which something may come.
    pub(crate) fn keep(&mut self, socket: &impl AsFd) {
        if self.bytes == 0 {
            return;
        }
        self.turns = self.turns.wrapping_add(1);
        let is_due = self.turns.is_power_of_two() || self.turns.is_multiple_of(AGAIN);
        // An error means that the connection is lost, which is seen elsewhere.
        if is_due
            && let Ok(bytes) = window_clamp(socket)
            && bytes != self.bytes
        {
            self.bytes = bytes / 2;
            let _connection = set_window_clamp(socket, self.bytes);
        }
    }
}

impl Buffer {
    /// One of so many bytes, if all together do not have more than `most` then.
    fn taken(bytes: u64, most: u64) -> Option<Self> {
        let has_room = |open: u64| open.checked_add(bytes).filter(|open| *open <= most);
        OPEN.fetch_update(Relaxed, Relaxed, has_room).is_ok().then(|| Self(bytes))
    }
}

/// Gives a connection that buffer, and half of what the kernel would announce for it as its window: bytes.
fn half(socket: &impl AsFd, buffer: u64) -> io::Result<u32> {
    // Of a buffer the kernel announces what its segments are going to carry: half of it until some have come.
    let (window, had) = (u64::from(window_clamp(socket)?), socket_recv_buffer_size(socket)? as u64);
    // It makes that twice as much.
    set_socket_recv_buffer_size_force(socket, usize::try_from(buffer / 2).unwrap_or(usize::MAX))?;
    let has = socket_recv_buffer_size(socket)? as u64;
    let whole = has.saturating_mul(window.min(had)) / had.max(1);
    let bytes = u32::try_from(whole / 2).unwrap_or(u32::MAX);
    set_window_clamp(socket, bytes)?;
    Ok(bytes)
}

/// The largest buffer that the kernel finds for a connection, bytes.
fn largest() -> u64 {
    let sizes = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
    let largest = sizes.split_whitespace().nth(2).and_then(|largest| largest.parse().ok());
    // As it is where nobody says otherwise.
    largest.unwrap_or(6 << 20)
}

#[cfg(test)]
mod tests {
    use fixtures::window::may_widen;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::link::{ALONE, Link};

    /// A client, and its connection here.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), server.unwrap().0)
    }

    #[tokio::test]
    async fn a_client_has_a_window_of_half_of_its_buffer_where_there_is_memory_for_it() {
        let _alone = ALONE.lock().await;
        if !may_widen() {
            return;
        }
        let (_client, plain) = pair().await;
        let before = socket_recv_buffer_size(&plain).unwrap();
        assert_eq!(Window::open(&plain, LEAST * PART - 1).bytes, 0);
        assert_eq!(socket_recv_buffer_size(&plain).unwrap(), before);
        for in_flight in [LEAST * PART, (2 << 20) * PART, u64::MAX] {
            let (_client, server) = pair().await;
            let window = Window::open(&server, in_flight);
            let buffer = socket_recv_buffer_size(&server).unwrap() as u64;
            assert_eq!(buffer, (in_flight / PART).min(largest()));
            assert_eq!(window_clamp(&server).unwrap(), window.bytes);
            assert!((1..=buffer / 2).contains(&u64::from(window.bytes)), "{window:?}");
        }
    }

    #[tokio::test]
    async fn all_buffers_together_have_a_bound_and_who_goes_gives_back() {
        let _alone = ALONE.lock().await;
        if !may_widen() {
            return;
        }
        let in_flight = LEAST * PART;
        let mut windows = Vec::new();
        for number in 0..=PART / ALL {
            let (client, server) = pair().await;
            let window = Window::open(&server, in_flight);
            assert_eq!(window.bytes == 0, number == PART / ALL, "{number}");
            windows.push((client, server, window));
        }
        windows.remove(0);
        let (_client, server) = pair().await;
        assert_ne!(Window::open(&server, in_flight).bytes, 0);
        drop(windows);
        assert_eq!(OPEN.load(Relaxed), 0);
    }

    /// The kernel opened it again with the first large segments, and nothing had been won.
    #[tokio::test]
    async fn a_window_stays_half_of_its_buffer_when_large_segments_come() {
        let _alone = ALONE.lock().await;
        if !may_widen() {
            return;
        }
        let (mut client, server) = pair().await;
        let mut link = Link::new(server, LEAST * PART);
        let (some, mut into) = (vec![0; 256 << 10], vec![0; 256 << 10]);
        for _ in 0..8 {
            client.write_all(&some).await.unwrap();
            link.read_exact(&mut into).await.unwrap();
        }
        let server = &*link.registered().unwrap();
        let buffer = socket_recv_buffer_size(server).unwrap() as u32;
        assert!((1..=buffer / 2).contains(&window_clamp(server).unwrap()));
    }
}
