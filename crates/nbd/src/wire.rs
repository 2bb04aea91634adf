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

/// A stream that data is received from where it belongs.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {
    /// Receives what is there, as far as there is room; 0 at the end.
    fn poll_receive(&mut self, place: Place<'_>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let received = match place {
            Place::One(mut buffer) => pin!(self.read_buf(&mut buffer)).poll(cx),
            Place::Row(row, ahead) => self.poll_row(row, ahead, cx),
        };
        match received {
            // NBD has a good-bye of its own. Who is gone without that of TLS is gone, as without TLS.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(0)),
            received => received,
        }
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

impl<S: Wire> Wire for tokio_rustls::server::TlsStream<S> {
    fn is_closed(&mut self) -> bool {
        self.get_mut().0.is_closed()
    }
}

impl<S: Wire> Wire for tokio_openssl::SslStream<S> {
    fn is_closed(&mut self) -> bool {
        self.get_mut().is_closed()
    }
}
