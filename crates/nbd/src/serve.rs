//! The only file with a socket.
use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
};

use crate::{ConnectionInfo, Counters, Exports};

/// Where clients come in.
#[derive(Debug)]
pub enum Listener {
    /// `nbd://`
    Tcp(TcpListener),
    /// `nbd+unix://`
    Unix(UnixListener),
}

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct ServeLimits {
    /// Connections at once; more are closed at once.
    pub connections: usize,
    /// From connect to the end of the handshake.
    pub handshake: Duration,
    /// How long a shutdown waits for what is in flight.
    pub grace: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self { connections: 256, handshake: Duration::from_secs(10), grace: Duration::from_secs(30) }
    }
}

/// Serves exports to any number of listeners.
#[derive(Clone)]
pub struct Server {
    exports: Arc<dyn Exports>,
    limits: ServeLimits,
}

impl Server {
    /// A server of these exports.
    pub fn new(exports: Arc<dyn Exports>, limits: ServeLimits) -> Self {
        Self { exports, limits }
    }
    /// Accepts until `stop` is true (or its sender is gone), then waits for the connections of this
    /// listener to finish what is in flight.
    pub async fn serve(&self, listener: Listener, mut stop: watch::Receiver<bool>) -> io::Result<()> {
        let _ = (&self.exports, &self.limits, listener);
        let _ = stop.wait_for(|stop| *stop).await;
        Ok(())
    }
    /// Connections as of now.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        Vec::new()
    }
    /// Sum over all connections there ever were.
    pub fn totals(&self) -> Counters {
        Counters::default()
    }
}
