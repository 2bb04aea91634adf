//! How wide a window a connection announces: an option of sockets for which std, rustix and socket2 have no safe call.
//!
//! It stands here because system calls without a safe wrapper do.
#![expect(unsafe_code, reason = "TCP_WINDOW_CLAMP has no safe wrapper")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use libc::{IPPROTO_TCP, TCP_WINDOW_CLAMP, c_int, socklen_t};

const LEN: socklen_t = size_of::<c_int>() as socklen_t;

/// Lets a TCP connection announce a receive window of so many bytes at most (`TCP_WINDOW_CLAMP`, tcp(7)).
///
/// # Errors
/// The system's: it is no TCP connection.
pub fn set_window_clamp(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: it reads an integer, of this length, which lives until it returns.
    let answer =
        unsafe { libc::setsockopt(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP, (&raw const bytes).cast(), LEN) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The widest window that a TCP connection announces now, bytes.
///
/// # Errors
/// The system's: it is no TCP connection.
pub fn window_clamp(socket: &impl AsFd) -> io::Result<u32> {
    let (mut bytes, mut len): (c_int, _) = (0, LEN);
    let (socket, value) = (socket.as_fd().as_raw_fd(), (&raw mut bytes).cast());
    // SAFETY: it writes an integer, of this length at most, which lives until it returns.
    let answer = unsafe { libc::getsockopt(socket, IPPROTO_TCP, TCP_WINDOW_CLAMP, value, &raw mut len) };
    if answer == 0 { Ok(bytes.unsigned_abs()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_connection_has_the_window_it_was_given_and_nothing_else_has_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_window_clamp(&client, 300_000).unwrap();
        assert_eq!(window_clamp(&client).unwrap(), 300_000);
        let other = UnixStream::pair().unwrap().0;
        assert!(set_window_clamp(&other, 300_000).is_err());
        assert!(window_clamp(&other).is_err());
    }
}
