//! Sockets that systemd (or whoever speaks as it does: `LISTEN_FDS`) opened before it started us, sd_listen_fds(3).

use std::{io, os::fd::AsFd};

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use server::doors::Inherited;

/// All of them. The environment no longer names them afterwards, so that no child takes them for its own.
///
/// # Errors
/// One is not a stream socket of TCP or Unix that listens.
pub(crate) fn sockets() -> io::Result<Vec<Inherited>> {
    let mut given = ListenFd::from_env();
    let mut sockets = Vec::new();
    for number in 0..given.len() {
        let refuse = |error: io::Error| {
            let what = format!(
                "cannot serve NBD on a socket that was given (LISTEN_FDS, number {}): {error}",
                number + 1
            );
            io::Error::new(error.kind(), what)
        };
        let socket = match given.take_unix_listener(number) {
            Ok(Some(listener)) => {
                listens(&listener).map_err(refuse)?;
                Inherited::Unix(listener)
            }
            _ => match given.take_tcp_listener(number) {
                Ok(Some(listener)) => {
                    listens(&listener).map_err(refuse)?;
                    Inherited::Tcp(listener)
                }
                Ok(None) => continue,
                Err(error) => {
                    let what = format!("{error}; it takes stream sockets of TCP and Unix (ListenStream=)");
                    return Err(refuse(io::Error::new(error.kind(), what)));
                }
            },
        };
        sockets.push(socket);
    }
    Ok(sockets)
}

fn listens(socket: &impl AsFd) -> io::Result<()> {
    if socket_acceptconn(socket)? {
        return Ok(());
    }
    let what = "it does not listen; one daemon serves all clients, not one each: Accept=no";
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
