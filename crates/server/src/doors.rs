//! Where NBD clients come in: TCP addresses, Unix sockets, and sockets that somebody else opened for us (systemd's socket
//! activation).

use std::{
    io,
    net::SocketAddr,
    os::unix::net::UnixListener as StdUnixListener,
    path::{Path, PathBuf},
};

use nbd::Listener;
use tokio::net::{TcpListener, UnixListener};

use crate::{
    api::Url,
    client::escape,
    daemon::{NBD_DEFAULT, ServeError},
    unix_socket::{self, SocketFile},
};

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// A socket that listens already, given to the process when it began.
#[derive(Debug)]
pub enum Inherited {
    /// `nbd://`
    Tcp(std::net::TcpListener),
    /// `nbd+unix://`; its file is whose who made it.
    Unix(StdUnixListener),
}

/// Where a door is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Where clients find a door, and how they get through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    at: At,
    /// Nobody gets through without TLS.
    needs_tls: bool,
}

impl Place {
    /// What clients are to be given for `export`, in the form of NBD's URIs. It works as it is: where TLS is required, it
    /// is one for TLS.
    pub(crate) fn url(&self, export: &str) -> Url {
        let export = escape(export, "/@");
        let scheme = if self.needs_tls { "nbds" } else { "nbd" };
        let url = match &self.at {
            At::Tcp(address) => format!("{scheme}://{address}/{export}"),
            At::Unix(path) => {
                format!("{scheme}+unix:///{export}?socket={}", escape(&path.to_string_lossy(), "/"))
            }
        };
        Url { protocol: "nbd".to_owned(), url }
    }
}

/// What options say of doors, looked up.
///
/// # Errors
/// One is neither an address nor a path.
pub(crate) async fn places(given: &[String]) -> Result<Vec<At>, ServeError> {
    let mut places = Vec::new();
    for text in given {
        places.push(match text.strip_prefix(UNIX) {
            Some(path) if Path::new(path).file_name().is_some() => {
                // Clients are told where it is, wherever they run.
                At::Unix(std::path::absolute(path)?)
            }
            Some(_) => return Err(ServeError::SocketPath(text.clone())),
            None => At::Tcp(resolve(text, NBD_DEFAULT).await?),
        });
    }
    Ok(places)
}

/// An address, `ADDR:PORT`; who gives none is shown the example.
pub(crate) async fn resolve(address: &str, example: &'static str) -> Result<SocketAddr, ServeError> {
    let failed = |source| ServeError::Address { address: address.to_owned(), example, source };
    let found = tokio::net::lookup_host(address).await.map_err(failed)?.next();
    found.ok_or_else(|| failed(io::Error::other("it has no address")))
}

/// The doors of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    listeners: Vec<Listener>,
    places: Vec<Place>,
    /// Files that go when the doors close.
    files: Vec<SocketFile>,
}

impl Doors {
    /// Listens at all of these places, for clients that need TLS or do not.
    ///
    /// # Errors
    /// One of them is taken, or cannot be had.
    pub(crate) async fn open(
        places: &[At],
        inherited: Vec<Inherited>,
        needs_tls: bool,
    ) -> Result<Self, ServeError> {
        let mut doors = Self::default();
        let mut told = Vec::new();
        for place in places {
            match place {
                At::Tcp(address) => {
                    let failed = |source| ServeError::Listen { address: *address, protocol: "NBD", source };
                    let listener = TcpListener::bind(address).await.map_err(failed)?;
                    told.push(At::Tcp(listener.local_addr()?));
                    doors.listeners.push(Listener::Tcp(listener));
                }
                At::Unix(path) => {
                    let (listener, file) = unix_socket::listen(path, "--nbd", None).await?;
                    told.push(place.clone());
                    doors.listeners.push(Listener::Unix(listener));
                    doors.files.push(file);
                }
            }
        }
        for socket in inherited {
            told.push(doors.take(socket)?);
        }
        doors.places = told.into_iter().map(|at| Place { at, needs_tls }).collect();
        Ok(doors)
    }

    fn take(&mut self, socket: Inherited) -> io::Result<At> {
        Ok(match socket {
            Inherited::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                let at = At::Tcp(listener.local_addr()?);
                self.listeners.push(Listener::Tcp(TcpListener::from_std(listener)?));
                at
            }
            Inherited::Unix(listener) => {
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                let path = address.as_pathname().map(Path::to_owned).unwrap_or_default();
                self.listeners.push(Listener::Unix(UnixListener::from_std(listener)?));
                At::Unix(path)
            }
        })
    }

    /// Where they are.
    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// The listeners, and the files that are to stay as long as they listen.
    pub(crate) fn into_parts(self) -> (Vec<Listener>, Vec<SocketFile>) {
        (self.listeners, self.files)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic: that is how it fails")]

    use super::*;

    fn url(at: At, needs_tls: bool) -> String {
        Place { at, needs_tls }.url("tank/v@s 1").url
    }

    #[tokio::test]
    async fn addresses_and_paths_are_told_apart_and_named_as_clients_want_them() {
        let given = ["127.0.0.1:10809", "unix:/run/a b/nbd.sock", "[::1]:99"].map(str::to_owned);
        let places = places(&given).await.unwrap();
        let urls: Vec<String> = places.into_iter().map(|at| url(at, false)).collect();
        assert_eq!(
            urls,
            [
                "nbd://127.0.0.1:10809/tank/v@s%201",
                "nbd+unix:///tank/v@s%201?socket=/run/a%20b/nbd.sock",
                "nbd://[::1]:99/tank/v@s%201",
            ]
        );
        for wrong in ["unix:", "unix:/", "nowhere", ""] {
            let error = super::places(&[wrong.to_owned()]).await.unwrap_err().to_string();
            assert!(error.contains(&format!("'{wrong}'")), "{error}");
        }
    }
    /// A URL that the server itself refuses would be worse than none.
    #[tokio::test]
    async fn where_tls_is_required_all_doors_are_told_of_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd.sock");
        let given = ["127.0.0.1:0".to_owned(), format!("unix:{}", path.display())];
        let inherited = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inherited_at = inherited.local_addr().unwrap();
        let places = places(&given).await.unwrap();
        let doors = Doors::open(&places, vec![Inherited::Tcp(inherited)], true).await.unwrap();
        let urls: Vec<String> = doors.places().iter().map(|place| place.url("v").url).collect();
        assert!(urls[0].starts_with("nbds://127.0.0.1:") && !urls[0].contains(":0/"), "{}", urls[0]);
        assert_eq!(urls[1], format!("nbds+unix:///v?socket={}", path.display()));
        assert_eq!(urls[2], format!("nbds://{inherited_at}/v"));
        assert_eq!(urls.len(), 3);
    }
}
