//! A server whose volume is always in memory: what the protocol costs, with no engine behind it.
//!
//!     cargo run --release -p millpond-nbd --example hot -- [ADDR:PORT] [MIB] [WORKERS]
//!
//! Serves one export named `hot` until interrupted. WORKERS 0 is a runtime of one thread.

use std::{io::Write, process::ExitCode, sync::Arc};

use block::{BlockVolume, Extent, Geometry, Identity, Segment, Segments, VolumeError, VolumeFuture};
use bytes::Bytes;
use nbd::{Listener, Registry, ServeLimits, Server};
use tokio::{net::TcpListener, runtime::Builder, sync::watch};

/// One big buffer; every read is a hit.
struct Hot(Bytes);

impl BlockVolume for Hot {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.0.len() as u64, block: 8192, read_only: true }
    }

    fn identity(&self) -> Identity {
        Identity { name: "hot".into(), guid: 1, pool_guid: 1 }
    }

    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len).filter(|end| *end <= self.0.len())?;
        let mut segments = Segments::new();
        segments.push(Segment::Data(self.0.slice(start..end)));
        Some(segments)
    }

    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        let size = self.0.len() as u64;
        let found = self.read_cached(offset, len);
        Box::pin(async move { found.ok_or(VolumeError::OutOfRange { offset, len: len as u64, size }) })
    }

    fn extents(&self, _offset: u64, len: u64, _max_extents: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: false }]) })
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:10809".into());
    let mib = args.next().and_then(|text| text.parse().ok()).unwrap_or(1024_usize);
    let workers = args.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let mut builder = if workers == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if workers > 0 {
        builder.worker_threads(workers);
    }
    let served = builder.enable_all().build().and_then(|runtime| runtime.block_on(serve(&address, mib)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done if stderr is closed as well.
            drop(writeln!(std::io::stderr(), "hot: {address}: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn serve(address: &str, mib: usize) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    writeln!(std::io::stdout(), "nbd://{}/hot", listener.local_addr()?)?;
    let mut data = vec![0_u8; mib << 20];
    for (index, byte) in data.iter_mut().enumerate() {
        *byte = (index >> 9) as u8;
    }
    let registry = Registry::new();
    registry.insert("hot", "always in memory", Arc::new(Hot(data.into()))).map_err(std::io::Error::other)?;
    let server = Server::new(Arc::new(registry), ServeLimits::default());
    let (stop, stopping) = watch::channel(false);
    let serving = tokio::spawn({
        let server = server.clone();
        async move { server.serve(Listener::Tcp(listener), stopping).await }
    });
    tokio::signal::ctrl_c().await?;
    stop.send_replace(true);
    serving.await.map_err(std::io::Error::other)??;
    writeln!(std::io::stdout(), "{:?}", server.totals())
}
