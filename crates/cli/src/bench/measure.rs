//! Clocks and counters: time, processor time of the whole process, bytes that reached and left the devices,
//! latencies.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use server::disk::{Disk, DiskFuture, DiskInfo, IoBuf};
use tokio::time::Instant;

/// What all devices of a pool moved, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters(Arc<[AtomicU64; 2]>);

impl Counters {
    fn now(&self) -> [u64; 2] {
        let [read, written] = &*self.0;
        [read.load(Relaxed), written.load(Relaxed)]
    }

    /// The device, counted.
    pub(super) fn count(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(Counted { disk, counters: self.clone() })
    }
}

#[derive(Debug)]
struct Counted {
    disk: Arc<dyn Disk>,
    counters: Counters,
}

impl Disk for Counted {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.counters.0[0].fetch_add(buf.len() as u64, Relaxed);
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.counters.0[1].fetch_add(data.len() as u64, Relaxed);
        self.disk.write(offset, data)
    }

    fn write_parts(&self, offset: u64, parts: Arc<[Bytes]>) -> DiskFuture<'_, ()> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.counters.0[1].fetch_add(len, Relaxed);
        self.disk.write_parts(offset, parts)
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.counters.0[1].fetch_add(data.len() as u64, Relaxed);
        self.disk.write_through(offset, data)
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        self.disk.flush()
    }

    fn probe(&self) -> DiskFuture<'_, ()> {
        self.disk.probe()
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.disk.trim(offset, len)
    }
}

/// What a test used.
pub(super) struct Used {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) read: u64,
    pub(super) written: u64,
}

pub(super) struct Meter {
    start: Instant,
    cpu: f64,
    moved: [u64; 2],
}

impl Meter {
    pub(super) fn start(counters: &Counters) -> Self {
        Self { start: Instant::now(), cpu: cpu_seconds(), moved: counters.now() }
    }

    pub(super) fn stop(&self, counters: &Counters) -> Used {
        let [read, written] = counters.now();
        Used {
            seconds: self.start.elapsed().as_secs_f64().max(1e-9),
            cpu_seconds: cpu_seconds() - self.cpu,
            read: read - self.moved[0],
            written: written - self.moved[1],
        }
    }
}

/// Processor time of the process so far, in user space and in the kernel, of all threads.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Resident memory of the process, in bytes; 0 where the system does not say.
pub(super) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Steps per doubling: 3 % wide.
const STEPS: usize = 32;

/// Durations in classes of 3 %.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    classes: Vec<u64>,
    count: u64,
}

impl Latencies {
    pub(super) fn new() -> Self {
        Self { classes: vec![0; 60 * STEPS], count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn record(&mut self, nanos: u64) {
        self.classes[class(nanos)] += 1;
        self.count += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.classes.iter_mut().zip(&other.classes).for_each(|(mine, others)| *mine += others);
        self.count += other.count;
    }

    /// In microseconds.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut below = 0;
        let found = self.classes.iter().position(|count| {
            below += count;
            below >= rank
        });
        found.map_or(0.0, |class| middle(class) / 1e3)
    }
}

/// Below 64 ns each nanosecond is a class; then 32 for each doubling.
fn class(nanos: u64) -> usize {
    if nanos < 2 * STEPS as u64 {
        return nanos as usize;
    }
    let doublings = nanos.ilog2() as usize - 5;
    doublings * STEPS + (nanos >> doublings) as usize
}

fn middle(class: usize) -> f64 {
    if class < 2 * STEPS {
        return class as f64;
    }
    let doublings = class / STEPS - 1;
    let low = (class - doublings * STEPS) as f64;
    (low + 0.5) * (1_u64 << doublings) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_three_percent() {
        let mut latencies = Latencies::new();
        (1..=100_000_u64).for_each(|nanos| latencies.record(nanos * 100));
        assert_eq!(latencies.count(), 100_000);
        for (percent, micros) in [(1.0, 100.0), (50.0, 5000.0), (99.0, 9900.0), (100.0, 10_000.0)] {
            let found = latencies.percentile(percent);
            assert!((found / micros - 1.0_f64).abs() < 0.03, "{percent}: {found}");
        }
        latencies.record(u64::MAX);
        assert!(latencies.percentile(100.0) > 1e16);
    }

    #[test]
    fn classes_follow_each_other() {
        let classes: Vec<usize> = (0..100_000).map(class).collect();
        assert!(classes.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1));
    }
}
