//! A socket below TLS.
//!
//! The libraries ask for a record's five bytes and then for the rest of it, and send each record by itself. Here one call to the
//! kernel receives as many as have come, and one sends as many as there is room for. Memory is taken while there is something
//! to hold, so that a connection at rest has none.

use std::{
    future::Future as _,
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What is held of each direction, in bytes: nearly four records.
pub(crate) const ROOM: usize = 64 << 10;

/// A socket with what came ahead of its time, and what is held back to leave together.
#[derive(Debug)]
pub(crate) struct Buffered<S> {
    socket: S,
    came: BytesMut,
    leaving: BytesMut,
    /// What either of them takes, or took when the first byte was put there: they forget the part of it that was taken out.
    takes: [usize; 2],
    holds_back: bool,
}

impl<S> Buffered<S> {
    /// Holds nothing back.
    pub(crate) fn new(socket: S) -> Self {
        Self { socket, came: BytesMut::new(), leaving: BytesMut::new(), takes: [0; 2], holds_back: false }
    }

    /// From now on what is written leaves when there is no room for more, when it is driven out, or when nothing has come to be
    /// read: the peer may wait for it. To be flushed only tries, because OpenSSL gives up where that would have to wait.
    pub(crate) fn hold_back(&mut self) {
        self.holds_back = true;
    }

    pub(crate) fn socket(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Whether something has come that nobody took.
    pub(crate) fn has_more(&self) -> bool {
        !self.came.is_empty()
    }

    /// Memory that it takes now, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let [came, leaving] = self.takes;
        came.saturating_add(leaving)
    }
}

impl<S: AsyncWrite + Unpin> Buffered<S> {
    /// Ready when all that was held back has left.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.leaving.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, &self.leaving))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.leaving.advance(sent),
            }
        }
        (self.leaving, self.takes[1]) = (BytesMut::new(), 0);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Buffered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.came.is_empty() {
            this.came.reserve(ROOM);
            this.takes[0] = this.came.capacity();
            let received = pin!(this.socket.read_buf(&mut this.came)).poll(cx);
            if this.came.is_empty() {
                (this.came, this.takes[0]) = (BytesMut::new(), 0);
            }
            if received.is_pending()
                && let Poll::Ready(Err(error)) = this.poll_drain(cx)
            {
                return Poll::Ready(Err(error));
            }
            ready!(received)?;
        }
        let len = this.came.len().min(buffer.remaining());
        buffer.put_slice(this.came.get(..len).unwrap_or_default());
        this.came.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Buffered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if !this.holds_back {
            return Pin::new(&mut this.socket).poll_write(cx, bytes);
        }
        // Behind what is there: nothing is moved.
        let mut room = this.leaving.capacity().saturating_sub(this.leaving.len());
        if room == 0 {
            ready!(this.poll_drain(cx))?;
            this.leaving.reserve(ROOM);
            this.takes[1] = this.leaving.capacity();
            room = ROOM;
        }
        let taken = bytes.get(..room).unwrap_or(bytes);
        this.leaving.extend_from_slice(taken);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.holds_back {
            let first = slices.iter().find(|slice| !slice.is_empty());
            return self.poll_write(cx, first.map_or(&[][..], |slice| &**slice));
        }
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        !self.holds_back && self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_drain(cx) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.socket).poll_flush(cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
