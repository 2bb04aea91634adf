//! What a connection's bytes come from: plain sockets, which fill many buffers at once and can be looked at, or TLS, which does not.

use std::{
    io,
    pin::pin,
    task::{Context, Poll},
};

use block::{Link, Look, Socket};
use disk::{Ahead, Landings, Place};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::{TcpStream, UnixStream},
};

/// A stream that data is received from where it belongs.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {
    /// Receives what is there, as far as there is room; 0 at the end.
    fn poll_receive(&mut self, place: Place<'_>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match place {
            Place::One(mut buffer) => pin!(self.read_buf(&mut buffer)).poll(cx),
            Place::Row(row, ahead) => self.poll_row(row, ahead, cx),
        }
    }

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

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Wire for tokio_rustls::server::TlsStream<S> {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Wire for tokio_openssl::SslStream<S> {}
