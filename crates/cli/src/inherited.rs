//! Sockets that systemd (or whoever speaks as it does: `LISTEN_FDS`) opened before it started us, sd_listen_fds(3).

use std::io;

use listenfd::ListenFd;
use server::doors::Inherited;

/// All of them. The environment no longer names them afterwards, so that no child takes them for its own.
///
/// # Errors
/// One is not a stream socket of TCP or Unix.
pub(crate) fn sockets() -> io::Result<Vec<Inherited>> {
    let mut given = ListenFd::from_env();
    let mut sockets = Vec::new();
    for number in 0..given.len() {
        let socket = match given.take_unix_listener(number) {
            Ok(Some(listener)) => Inherited::Unix(listener),
            _ => match given.take_tcp_listener(number) {
                Ok(Some(listener)) => Inherited::Tcp(listener),
                Ok(None) => continue,
                Err(error) => {
                    let what = format!(
                        "cannot serve NBD on a socket that was given (LISTEN_FDS, number {}): {error}; \
                         it takes stream sockets of TCP and Unix (ListenStream=)",
                        number + 1
                    );
                    return Err(io::Error::new(error.kind(), what));
                }
            },
        };
        sockets.push(socket);
    }
    Ok(sockets)
}
