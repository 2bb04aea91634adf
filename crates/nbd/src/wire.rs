//! What a connection's bytes come from: plain sockets, which fill many buffers at once and can be looked at, or TLS, which does not.

use std::{
    io,
    pin::pin,
    task::{Context, Poll},
};

use disk::{Ahead, Landings, Place};
use futures_util::FutureExt as _;
use peers::{Link, Look, Socket};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest},
    net::{TcpStream, UnixStream},
};

use crate::tls::{Buffered, Keyed};

/// A stream that data is received from where it belongs.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {
    /// Receives what is there, as far as there is room; 0 at the end.
    fn poll_receive(&mut self, mut place: Place<'_>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut received = 0_usize;
        loop {
            let more = match &mut place {
                Place::One(buffer) => pin!(self.read_buf(buffer)).poll(cx),
                Place::Row(row, ahead) => self.poll_row(row, ahead, cx),
            };
            match more {
                // There is no room left, or only a part of what comes next; what is wrong with it is told the next time.
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Err(_)) | Poll::Pending if received > 0 => break,
                // NBD has a good-bye of its own. Who is gone without that of TLS is gone, as without TLS.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Poll::Ready(Ok(more)) => received = received.saturating_add(more),
                Poll::Ready(Err(_)) | Poll::Pending => return more,
            }
            if !self.has_more() {
                break;
            }
        }
        Poll::Ready(Ok(received))
    }

    /// Whether more has come that is at hand, so that it need not be asked for.
    fn has_more(&self) -> bool {
        false
    }

    /// Memory that is held below now, in bytes.
    fn memory(&self) -> usize {
        0
    }

    /// Whether the peer has closed its side, or the connection is lost. What it sent before may still be there to be received.
    fn is_closed(&mut self) -> bool;

    /// See [`Link::look`]. What is no socket is never looked at.
    fn look(&mut self, _is_idle: bool, _served: u64, _room: usize) -> io::Result<Look<'_>> {
        Ok(Look::Asleep)
    }

    /// The same, for a row of buffers, and what comes behind if that comes along. One buffer after the other, unless a socket
    /// fills all of them: what is decrypted comes in pieces of 16 KiB at most, and so little is lost.
    fn poll_row(
        &mut self,
        row: &mut Landings,
        _ahead: &mut Ahead,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        pin!(self.read_buf(row.next_mut())).poll(cx)
    }
}

/// Sockets of the system.
macro_rules! socket {
    ($($socket:ty),*) => { $(
        impl Wire for $socket {
            fn is_closed(&mut self) -> bool {
                let ready = self.ready(Interest::READABLE).now_or_never();
                ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
            }

            fn poll_row(
                &mut self,
                row: &mut Landings,
                ahead: &mut Ahead,
                cx: &mut Context<'_>,
            ) -> Poll<io::Result<usize>> {
                row.poll_fill(
                    ahead,
                    cx,
                    |cx| self.poll_read_ready(cx),
                    |slices| self.try_read_vectored(slices),
                )
            }
        }
    )* };
}
socket!(TcpStream, UnixStream);

impl<S: Socket + Wire> Wire for Link<S> {
    fn is_closed(&mut self) -> bool {
        self.registered().is_ok_and(|socket| socket.is_closed())
    }

    fn poll_row(
        &mut self,
        row: &mut Landings,
        ahead: &mut Ahead,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.registered()?.poll_row(row, ahead, cx)
    }

    fn look(&mut self, is_idle: bool, served: u64, room: usize) -> io::Result<Look<'_>> {
        // Its own method, not this one.
        Self::look(self, is_idle, served, room)
    }
}

impl<S: Wire> Wire for tokio_rustls::server::TlsStream<Buffered<S>> {
    fn is_closed(&mut self) -> bool {
        self.get_mut().0.socket().is_closed()
    }

    fn has_more(&self) -> bool {
        self.get_ref().0.has_more()
    }

    fn memory(&self) -> usize {
        self.get_ref().0.memory()
    }
}

impl<S: Wire> Wire for Keyed<S> {
    fn is_closed(&mut self) -> bool {
        self.below_mut().socket().is_closed()
    }

    fn has_more(&self) -> bool {
        self.below().has_more()
    }

    fn memory(&self) -> usize {
        // Its own method, not this one.
        Self::memory(self)
    }
}
