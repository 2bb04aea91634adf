//! How much of what `fio` gets from the same file `FileDisk` delivers, and what an operation costs in CPU.
//!
//! `cargo bench -p millpond-disk [-- PATH]`: PATH is a file or block device to read (at least 256 MiB); without it
//! a file is made under /var/tmp. Direct reads: 4 and 8 KiB random at depth 1 and 32, 1 MiB in sequence at
//! depth 4. Rounds of both are interleaved, the middle one of three counts. Ratios above 1 mean more than fio.
//! Then the same random reads through the page cache, warm, where fio has nothing to say.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures wall-clock time and tells it"
)]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use disk::{Direct, Disk, Engine, FileDisk, IoBuf, OpenOptions};

const FILE: u64 = 512 << 20;
const ROUND: Duration = Duration::from_millis(1500);

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    block: usize,
    depth: usize,
    random: bool,
}

const LOADS: [Load; 5] = [
    Load { name: "random 4 KiB QD1", block: 4096, depth: 1, random: true },
    Load { name: "random 8 KiB QD1", block: 8192, depth: 1, random: true },
    Load { name: "random 4 KiB QD32", block: 4096, depth: 32, random: true },
    Load { name: "random 8 KiB QD32", block: 8192, depth: 32, random: true },
    Load { name: "sequential 1 MiB QD4", block: 1 << 20, depth: 4, random: false },
];

/// What a round measured.
#[derive(Clone, Copy)]
struct Rate {
    ops_per_s: f64,
    /// User and system time of the process, µs per operation.
    cpu_us: f64,
}

fn main() {
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let dir = tempfile::Builder::new().prefix("millpond-bench-").tempdir_in("/var/tmp").expect("a directory");
    let path = given.unwrap_or_else(|| fill(&dir.path().join("file")));

    let fio = Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
    if !fio {
        println!("no fio on this machine: absolute numbers only");
    }
    for direct in [Direct::Always, Direct::Never] {
        for engine in [Engine::Uring, Engine::Blocking] {
            let options = OpenOptions { read_only: true, direct, engine, lock: false };
            match FileDisk::open(&path, options) {
                Ok(disk) => compare(&path, &Arc::new(disk), direct, fio && engine == Engine::Uring),
                Err(error) => println!("skipped {direct:?} {engine:?}: {error}"),
            }
        }
    }
}

fn fill(path: &Path) -> PathBuf {
    let mut file = std::fs::File::create(path).expect("a file");
    let mut chunk = vec![0_u8; 1 << 20];
    for number in 0..FILE >> 20 {
        chunk.fill(number as u8);
        file.write_all(&chunk).expect("room for the file");
    }
    file.sync_all().expect("room for the file");
    path.to_owned()
}

fn compare(path: &Path, disk: &Arc<FileDisk>, direct: Direct, fio: bool) {
    println!("\n{:?}", disk.backend());
    println!("{:<22} {:>10} {:>9} {:>10} {:>9} {:>7}", "", "ops/s", "µs CPU", "fio ops/s", "µs CPU", "ratio");
    for load in LOADS {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..3 {
            ours.push(run(disk, load));
            if fio {
                theirs.extend(run_fio(path, load, direct));
            }
        }
        let our = middle(ours).expect("three rounds");
        print!("{:<22} {:>10.0} {:>9.2}", load.name, our.ops_per_s, our.cpu_us);
        match middle(theirs) {
            Some(their) => println!(
                " {:>10.0} {:>9.2} {:>7.2}",
                their.ops_per_s,
                their.cpu_us,
                our.ops_per_s / their.ops_per_s
            ),
            None => println!(),
        }
    }
}

fn middle(mut rates: Vec<Rate>) -> Option<Rate> {
    rates.sort_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
    rates.get(rates.len() / 2).copied()
}

/// `depth` tasks that read one block after the other.
fn run(disk: &Arc<FileDisk>, load: Load) -> Rate {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let blocks = disk.info().size / load.block as u64;
    let next = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let cpu = cpu_time();
    let tasks: Vec<_> = (0..load.depth as u64)
        .map(|task| {
            let (disk, next) = (Arc::clone(disk), Arc::clone(&next));
            runtime.spawn(async move {
                let (mut chance, mut done) = (task + 1, 0_u64);
                while begin.elapsed() < ROUND {
                    let block = if load.random {
                        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (chance >> 33) % blocks
                    } else {
                        next.fetch_add(1, Relaxed) % blocks
                    };
                    let buf = IoBuf::with_len(load.block);
                    disk.read(block * load.block as u64, buf).await.expect("a read");
                    done += 1;
                }
                done
            })
        })
        .collect();
    let done: u64 = runtime.block_on(join(tasks));
    let (elapsed, cpu) = (begin.elapsed(), cpu_time() - cpu);
    Rate { ops_per_s: done as f64 / elapsed.as_secs_f64(), cpu_us: cpu.as_secs_f64() * 1e6 / done as f64 }
}

async fn join(tasks: Vec<tokio::task::JoinHandle<u64>>) -> u64 {
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("a task");
    }
    done
}

/// User and system time of this process so far, from /proc/self/stat in ticks of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let after_name = stat.rsplit(')').next().expect("fields");
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_millis(ticks * 10)
}

/// The same load by fio with io_uring: from its terse output, fields 8 (IOPS of reads) and 88, 89 (CPU %).
fn run_fio(path: &Path, load: Load, direct: Direct) -> Option<Rate> {
    let output = Command::new("fio")
        .args(["--name=peer", "--readonly", "--ioengine=io_uring", "--time_based", "--minimal"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--rw={}", if load.random { "randread" } else { "read" }))
        .arg(format!("--bs={}", load.block))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--direct={}", u8::from(direct == Direct::Always)))
        // Without this fio drops the page cache first, and a warm read is not warm.
        .arg("--invalidate=0")
        .arg(format!("--runtime={}ms", ROUND.as_millis()))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let number = |field: usize| fields.get(field)?.trim_end_matches('%').parse::<f64>().ok();
    let (iops, user, system) = (number(7)?, number(87)?, number(88)?);
    Some(Rate { ops_per_s: iops, cpu_us: (user + system) / 100.0 * 1e6 / iops })
}
