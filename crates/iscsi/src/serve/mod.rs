//! Sockets: this file and those below it are the only ones that have any. Listens, and has a task for each connection.
//!
//! ```text
//!   accept ─▶ connection: login (with a deadline) ─▶ claim the session's place ─▶ driver: read ▸ answer ▸ write, until the end
//! ```
//!
//! Who gets in, and who has to leave for others, is [`peers::Crowd`]'s to say. A host has settled when it has logged in
//! to a target. Who discovers stays a stranger: it has no disk to lose, hosts are done with it in an instant, and with
//! targets that ask for a secret anybody may often discover: whoever held such sessions would be ahead of hosts.

mod connection;
mod driver;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use block::BoxFuture;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use peers::Crowd;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use self::connection::{Ended, connection};
use crate::targets::{Doors, Targets};

/// Connections that wait to be accepted: as many as at any other address.
const BACKLOG: u32 = 128;
/// How long a stop waits for jobs that run, beyond the time for logging out.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A server that listens.
pub struct Server {
    targets: Arc<Targets>,
    listeners: Vec<TcpListener>,
    /// Goes when the listeners have gone.
    open: watch::Sender<()>,
}

/// What a server that no longer listens keeps: of its connections those that came in at these addresses. `None`: it listens.
/// An address that is not specified is every one of its port.
pub type Keep = Option<Vec<SocketAddr>>;

/// Whether a connection that came in at `local` is asked to leave.
fn must_go(keep: &Keep, local: SocketAddr) -> bool {
    let is_at = |address: &SocketAddr| {
        let all = address.ip().is_unspecified() && (address.is_ipv6() || local.is_ipv4());
        address.port() == local.port() && (all || address.ip().to_canonical() == local.ip())
    };
    keep.as_ref().is_some_and(|addresses| !addresses.iter().any(is_at))
}

impl Server {
    /// Listens on every address; port 0 takes a free one.
    pub fn bind(targets: Arc<Targets>, addresses: &[SocketAddr]) -> BoxFuture<'_, io::Result<Self>> {
        Box::pin(async move {
            let mut listeners = Vec::new();
            for address in addresses {
                listeners.push(match is_everywhere(*address) {
                    true => listen_everywhere(TcpSocket::new_v6()?, *address)?,
                    false => TcpListener::bind(address).await?,
                });
            }
            Ok(Self { targets, listeners, open: watch::Sender::new(()) })
        })
    }

    /// Where it listens, in the order of the addresses given to [`Server::bind`].
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Ready when it no longer listens, or is gone: then others may listen at its addresses.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut open = self.open.subscribe();
        async move { while open.changed().await.is_ok() {} }
    }

    /// Serves until `shutdown` ends; then finishes what is in flight, asks initiators to log out, and
    /// returns when the last connection has closed.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let (stop, stopped) = watch::channel(None);
        let stopping = async {
            shutdown.await;
            stop.send_replace(Some(Vec::new()));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.run_while(stopped) => {}
            () = stopping => {}
        }
    }

    /// The same, until it is to keep nothing: before that it may have stopped to listen, and go on with those connections
    /// that it is to keep. A sender that is gone means nothing, too.
    pub fn run_while(self, mut stopped: watch::Receiver<Keep>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Self { targets, listeners, open } = self;
            // All servers of these targets share them.
            let Doors { crowd, quiet, refusals, .. } = &targets.doors;
            let mut connections = JoinSet::new();
            {
                let mut others = stopped.clone();
                let mut shutdown = pin!(async { drop(others.wait_for(Option::is_some).await) });
                let mut accepts: FuturesUnordered<_> =
                    listeners.iter().map(|listener| accept(listener, crowd)).collect();
                loop {
                    tokio::select! {
                        () = &mut shutdown => break,
                        Some((listener, accepted)) = accepts.next() => {
                            accepts.push(accept(listener, crowd));
                            let (stream, peer) = match accepted {
                                Ok(accepted) => accepted,
                                Err(error) => {
                                    // Out of descriptors, most likely: others will close theirs.
                                    quiet.say(|left_out| tracing::warn!(%error, left_out, "iscsi: cannot accept"));
                                    sleep(Duration::from_millis(100)).await;
                                    continue;
                                }
                            };
                            let place = match crowd.enter(peer.ip().into()) {
                                Ok(place) => place,
                                Err(full) => {
                                    refusals.say(|left_out| {
                                        tracing::warn!(%peer, why = %full, left_out, "iscsi: connection refused");
                                    });
                                    continue;
                                }
                            };
                            let (targets, stopped) = (Arc::clone(&targets), stopped.clone());
                            connections.spawn(async move {
                                let ended = connection(stream, peer, Arc::clone(&targets), stopped, &place).await;
                                report(&targets.doors, peer, place.has_settled(), ended);
                            });
                        }
                        Some(_) = connections.join_next() => {}
                    }
                }
            }
            drop((listeners, open));
            let limit = targets.config().logout_wait.saturating_add(STOP_GRACE);
            let mut all = pin!(async { while connections.join_next().await.is_some() {} });
            tokio::select! {
                () = &mut all => return,
                // An error means that the sender is gone.
                _nothing = stopped.wait_for(|keep| keep.as_ref().is_some_and(Vec::is_empty)) => {}
            }
            if timeout(limit, all).await.is_err() {
                tracing::warn!("iscsi: connections still busy at the end of a stop");
            }
        })
    }
}

/// Whether that stands for all addresses of its port, those of IPv4 too.
fn is_everywhere(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// Listens at `[::]`. That IPv4 addresses are among it the system may have set otherwise (`net.ipv6.bindv6only`): whoever takes
/// a portal for one of them, and names it to initiators, must not find out that nobody listens there.
fn listen_everywhere(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept<'a>(
    listener: &'a TcpListener,
    crowd: &Crowd,
) -> (&'a TcpListener, io::Result<(TcpStream, SocketAddr)>) {
    crowd.calm().await;
    let accepted = listener.accept().await;
    (listener, accepted.map(|(stream, peer)| (stream, canonical(peer))))
}

/// A listener on `[::]` has IPv4 addresses in their IPv6 form; portals and access know them by their own.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// Says how a connection ended. What strangers do is said apart from what becomes of hosts, which have settled.
fn report(doors: &Doors, peer: SocketAddr, has_settled: bool, ended: Result<(), Ended>) {
    let quiet = if has_settled { &doors.quiet } else { &doors.strangers };
    match ended {
        Ok(()) | Err(Ended::Closed | Ended::Superseded | Ended::Stopped | Ended::Expelled) => {}
        Err(error @ Ended::Ousted) => doors.refusals.say(|left_out| {
            tracing::warn!(%peer, %error, left_out, "iscsi: connection ended");
        }),
        // iscsiadm ends discoveries like this; a host that died does, too.
        Err(Ended::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
            quiet.say(|left_out| tracing::info!(%peer, left_out, "iscsi: reset by the initiator"));
        }
        Err(error) => quiet.say(|left_out| {
            tracing::warn!(%peer, %error, left_out, "iscsi: connection ended");
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4 hosts were refused at portals that were shown as listening, and named in discovery.
    #[tokio::test]
    async fn all_addresses_of_a_port_are_those_of_ipv4_too_whatever_the_system_has_set() {
        let Ok(socket) = TcpSocket::new_v6() else {
            return; // no IPv6 here
        };
        rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
        let all = SocketAddr::from(([0; 16], 0));
        assert!(is_everywhere(all) && !is_everywhere(([0; 4], 0).into()));
        let listener = listen_everywhere(socket, all).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    }
}
