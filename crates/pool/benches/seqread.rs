//! Sequential reads of a volume through the whole read path (block tree, device, checksum, cache), as a ratio to
//! `fio` reading the same image file raw at the same block size and queue depth, rounds interleaved.
//!
//! `cargo bench -p millpond-pool --bench seqread -- DIR VOLUME`: DIR holds a pool of one uncompressed file vdev,
//! for example one made by `docs/format/mkpool.py`. Both sides bypass the page cache; each round reads the whole
//! volume once with a fresh, empty block cache, so that every block comes from the device.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures wall-clock time and tells it"
)]

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use block::BlockVolume;
use pool::{
    cache::BlockCache,
    import::{OpenOptions, Sources, open, scan},
};

const ROUNDS: usize = 5;
/// Where fio begins: behind labels and boot region, in the middle of the data.
const FIO_OFFSET: u64 = 8 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let [dir, volume] = arguments.as_slice() else {
        println!("usage: cargo bench -p millpond-pool --bench seqread -- DIR VOLUME");
        return;
    };
    let image = image_in(Path::new(dir));
    println!("{:>8} {:>5} {:>12} {:>12} {:>7}", "block", "depth", "MiB/s", "fio MiB/s", "ratio");
    for (block, depth) in [(128 << 10, 1), (128 << 10, 4), (128 << 10, 16), (1 << 20, 1), (1 << 20, 4)] {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        let mut size = 0;
        for _ in 0..ROUNDS {
            let (rate, bytes) = read_volume(Path::new(dir), volume, block, depth);
            ours.push(rate);
            size = bytes;
            theirs.extend(run_fio(&image, block, depth, size));
        }
        let our = middle(&mut ours);
        let their = middle(&mut theirs);
        let ratio = our / their;
        println!(
            "{:>7}K {depth:>5} {our:>12.0} {their:>12.0} {ratio:>7.2}   ({} MiB)",
            block >> 10,
            size >> 20
        );
    }
}

fn image_in(dir: &Path) -> PathBuf {
    let mut images: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a directory")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "img"))
        .collect();
    images.sort();
    images.pop().expect("an image file *.img")
}

fn middle(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

/// MiB/s of one pass over the volume, and its size.
fn read_volume(dir: &Path, volume: &str, block: usize, depth: usize) -> (f64, u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let found = scan(&Sources::paths([dir])).await;
        let candidate = found.pools.first().expect("a pool in the directory");
        let cache = Arc::new(BlockCache::new(64 << 20));
        let options = OpenOptions { force: true, cache, ..OpenOptions::default() };
        let pool = open(candidate, &options).await.expect("the pool opens");
        let volume = pool.open_volume(volume).await.expect("the volume opens");
        let size = volume.geometry().size;
        let next = Arc::new(AtomicU64::new(0));
        let begin = Instant::now();
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let (volume, next) = (Arc::clone(&volume), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let offset = next.fetch_add(block as u64, Relaxed);
                        if offset >= size {
                            return;
                        }
                        let len = block.min((size - offset) as usize);
                        volume.read(offset, len).await.expect("a read");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
        (size as f64 / f64::from(1 << 20) / begin.elapsed().as_secs_f64(), size)
    })
}

fn run_fio(image: &Path, block: usize, depth: usize, size: u64) -> Option<f64> {
    let output = Command::new("fio")
        .args(["--name=peer", "--readonly", "--ioengine=io_uring", "--direct=1", "--rw=read", "--minimal"])
        .arg(format!("--filename={}", image.display()))
        .arg(format!("--bs={block}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--offset={FIO_OFFSET}"))
        .arg(format!("--size={size}"))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    // Field 7: bandwidth of reads in KiB/s.
    Some(fields.get(6)?.parse::<f64>().ok()? / 1024.0)
}
