//! Serves volumes that live in memory: what protocol measurements and conformance runs connect to.
//!
//! ```text
//! cargo run --release -p millpond-iscsi --example memory -- [thin|cached] [MIB] [ADDR:PORT]...
//! ```
//!
//! `thin` is a `MemVolume` (writes, holes, trims); `cached` answers every read from memory as the pool's
//! cache does, and takes no writes. Prints a URL per portal, then `ready`.
#![expect(clippy::print_stdout, reason = "the URLs are for whoever runs it")]

use std::{net::SocketAddr, sync::Arc};

use block::{
    BlockVolume, Extent, Geometry, Identity, MemVolume, Segment, Segments, VolumeError, VolumeFuture,
};
use bytes::Bytes;

const BLOCK: usize = 16 << 10;

/// A volume whose blocks are all in the cache.
struct Cached(Vec<Bytes>);

impl Cached {
    fn pieces(&self, offset: u64, len: usize) -> Option<Segments> {
        let end = offset.checked_add(len as u64)?;
        if end > self.geometry().size {
            return None;
        }
        let mut out = Segments::new();
        let (mut at, mut left) = (offset as usize, len);
        while left > 0 {
            let within = at % BLOCK;
            let take = left.min(BLOCK - within);
            out.push(Segment::Data(self.0[at / BLOCK].slice(within..within + take)));
            at += take;
            left -= take;
        }
        Some(out)
    }
}

impl BlockVolume for Cached {
    fn geometry(&self) -> Geometry {
        Geometry { size: (self.0.len() * BLOCK) as u64, block: BLOCK as u32, read_only: true }
    }
    fn identity(&self) -> Identity {
        Identity { name: "lake/cached".into(), guid: 2, pool_guid: 1 }
    }
    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        self.pieces(offset, len)
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        let size = self.geometry().size;
        let result = self.pieces(offset, len);
        Box::pin(async move { result.ok_or(VolumeError::OutOfRange { offset, len: len as u64, size }) })
    }
    fn extents(&self, _offset: u64, len: u64, _max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: false }]) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let kind = args.first().map_or("thin", String::as_str);
    let mib: usize = args.get(1).map_or(Ok(1024), |mib| mib.parse())?;
    let mut addresses: Vec<SocketAddr> = args.iter().skip(2).map(|a| a.parse()).collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        addresses.push(([127, 0, 0, 1], 0).into());
    }
    let volume: Arc<dyn BlockVolume> = match kind {
        "cached" => Arc::new(Cached(
            (0..mib << 20 >> 14).map(|i| Bytes::from(vec![(i % 251) as u8; BLOCK])).collect(),
        )),
        _ => Arc::new(MemVolume::new("lake/thin", (mib as u64) << 20, 8192)),
    };
    let iqn = iscsi::iqn::for_dataset(&volume.identity().name);
    let targets = iscsi::Targets::new(iscsi::Config::default());
    targets.add(&iqn, volume)?;
    let server = iscsi::Server::bind(Arc::clone(&targets), &addresses).await?;
    for address in server.local_addrs()? {
        println!("iscsi://{address}/{iqn}/0");
    }
    println!("ready");
    server.run(async { drop(tokio::signal::ctrl_c().await) }).await;
    Ok(())
}
