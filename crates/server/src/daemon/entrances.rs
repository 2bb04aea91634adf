//! Where clients of both protocols come in: looked up before anything is touched, opened before there is a pool. Who comes
//! meanwhile waits at the door, and is let in when everything that was promised is there.
//!
//! Not here: what one entrance is (`doors` of NBD, `shares::Portals` of iSCSI).

use std::{net::SocketAddr, sync::Arc};

use ::memory::Gate;

use super::{Config, Event, ISCSI_DEFAULT, NBD_DEFAULT, ServeError, Tell};
use crate::{
    certificates::{Expiry, NbdTls},
    descriptors::{self, Connections},
    doors::{self, At, Doors, Inherited},
    shares::{Portals, take_covered},
};

/// What was said of them, looked up: none of it is wrong as far as that can be known.
pub(super) struct Entrances {
    nbd: Vec<At>,
    inherited: Vec<Inherited>,
    iscsi: Vec<SocketAddr>,
    tls: Option<nbd::Tls>,
    needs_tls: bool,
    /// What NBD's TLS consists of, and when that runs out.
    pub(super) expiries: Vec<Expiry>,
}

/// What clients meet, listening.
pub(super) struct Opened {
    pub(super) registry: Arc<nbd::Registry>,
    pub(super) nbd: nbd::Server,
    pub(super) doors: Doors,
    pub(super) targets: Arc<iscsi::Targets>,
    pub(super) portals: Arc<Portals>,
    pub(super) expiries: Vec<Expiry>,
}

impl Entrances {
    /// Those of the configuration, and what was inherited; both defaults, if that is none.
    pub(super) async fn look_up(
        config: &Config,
        inherited: Vec<Inherited>,
        tell: &mut Tell,
    ) -> Result<Self, ServeError> {
        let mut nbd = doors::places(&config.nbd).await?;
        let mut iscsi = Vec::new();
        for address in &config.iscsi {
            iscsi.push(doors::resolve(address, ISCSI_DEFAULT).await?);
        }
        for (one, all) in take_covered(&mut iscsi) {
            tell(Event::Warning(format!(
                "iSCSI: {all} is {one}, too: '--iscsi {one}' is not needed beside it"
            )));
        }
        if nbd.is_empty() && inherited.is_empty() && iscsi.is_empty() {
            nbd = doors::places(&[NBD_DEFAULT.to_owned()]).await?;
            iscsi.push(doors::resolve(ISCSI_DEFAULT, ISCSI_DEFAULT).await?);
        }
        let said = config.nbd_tls.as_ref();
        let needs_tls = said.is_some_and(|tls| tls.is_required);
        let (tls, expiries) = said.map(NbdTls::load).transpose()?.unzip();
        Ok(Self { nbd, inherited, iscsi, tls, needs_tls, expiries: expiries.unwrap_or_default() })
    }

    /// Listens at all of them.
    pub(super) async fn open(self, gate: &Arc<Gate>) -> Result<Opened, ServeError> {
        let (iscsi_limits, nbd_limits) = self.limits(gate);
        let registry = Arc::new(nbd::Registry::new());
        let targets = iscsi::Targets::new(iscsi_limits);
        let doors = Doors::open(&self.nbd, self.inherited, self.needs_tls).await?;
        let mut servers = Vec::new();
        for address in self.iscsi {
            let server = iscsi::Server::bind(Arc::clone(&targets), &[address]).await;
            servers.push(server.map_err(|source| ServeError::Listen {
                address,
                protocol: "iSCSI",
                source,
            })?);
        }
        let portals = Portals::new(Arc::clone(&targets), servers)?;
        let exports = Arc::clone(&registry) as Arc<dyn nbd::Exports>;
        let nbd = nbd::Server::with_tls(exports, nbd_limits, self.tls);
        Ok(Opened { registry, nbd, doors, targets, portals, expiries: self.expiries })
    }

    /// As many connections as there are descriptors for, through one gate.
    fn limits(&self, gate: &Arc<Gate>) -> (iscsi::Config, nbd::ServeLimits) {
        let (iscsi, nbd) = (iscsi::Config::default(), nbd::ServeLimits::default());
        let local = self.nbd.iter().any(|at| matches!(at, At::Unix(_)))
            || self.inherited.iter().any(|socket| matches!(socket, Inherited::Unix(_)));
        let wished = Connections { iscsi: iscsi.connections_max, nbd: nbd.connections, local };
        let admitted = descriptors::make_room(wished);
        (
            iscsi::Config { connections_max: admitted.iscsi, gate: Arc::clone(gate), ..iscsi },
            nbd::ServeLimits { connections: admitted.nbd, gate: Arc::clone(gate), ..nbd },
        )
    }
}
