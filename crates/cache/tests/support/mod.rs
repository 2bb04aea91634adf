//! Traces for tests: the ones of the generator, made anew from its definition, and those found on this machine.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "shared by several test programs; a test may panic, and says what it did not run"
)]

pub(crate) mod synth;

use std::{fmt::Write as _, path::PathBuf};

use cache::{
    Policy,
    trace::{HEADER, Request, Simulation},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Traces that belong to others and are not in this repository.
pub(crate) const OUTSIDE: [&str; 3] = ["arc-oltp", "arc-p3", "cp-vm"];

/// A trace and what the published policies score on it.
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
    pub(crate) reference: Value,
}

impl Trace {
    /// Capacities of the reference results, smallest first.
    pub(crate) fn capacities(&self) -> Vec<u64> {
        numbers(&self.reference["capacity_blocks"])
    }

    /// Misses of the reference at each capacity.
    pub(crate) fn misses(&self, policy: &str) -> Vec<u64> {
        numbers(&self.reference["policies"][policy]["block_misses"])
    }

    pub(crate) fn accesses(&self) -> u64 {
        self.reference["accesses"].as_u64().unwrap()
    }

    /// Plays all of it.
    pub(crate) fn play<P: Policy>(&self, policy: P) -> Simulation<P> {
        let mut simulation = Simulation::new(policy);
        self.requests.iter().for_each(|request| simulation.request(*request));
        simulation
    }

    /// One that the generator makes; its text is the generator's to the byte.
    pub(crate) fn synthetic(kind: &str) -> Self {
        let mut text = format!("{HEADER}\n");
        synth::generate(kind, 1, &mut |time, op, block, blocks| {
            writeln!(text, "{time},{op},{},{}", block * 4096, blocks * 4096).unwrap();
        });
        let name = format!("syn-{kind}");
        Self::of_text(&name, &text, kept(&format!("{name}.ref.json")))
    }

    /// One that is kept beside the tests, compressed.
    pub(crate) fn kept(name: &str) -> Self {
        let packed = std::fs::read(data().join(format!("{name}.csv.zst"))).unwrap();
        let text = String::from_utf8(zstd::decode_all(&packed[..]).unwrap()).unwrap();
        Self::of_text(name, &text, kept(&format!("{name}.ref.json")))
    }

    /// One in the directory `MILLPOND_TRACES` names. `None`, and a line that says so, without it.
    pub(crate) fn outside(name: &str) -> Option<Self> {
        let Some(dir) = std::env::var_os("MILLPOND_TRACES").map(PathBuf::from) else {
            eprintln!("NOT RUN: {name}: MILLPOND_TRACES names no directory with {name}.csv.zst");
            return None;
        };
        let packed = std::fs::read(dir.join(format!("{name}.csv.zst")))
            .unwrap_or_else(|error| panic!("{name}.csv.zst in MILLPOND_TRACES: {error}"));
        let text = String::from_utf8(zstd::decode_all(&packed[..]).unwrap()).unwrap();
        let reference = std::fs::read_to_string(dir.join(format!("{name}.ref.json"))).unwrap();
        Some(Self::of_text(name, &text, serde_json::from_str(&reference).unwrap()))
    }

    fn of_text(name: &str, text: &str, reference: Value) -> Self {
        let sum: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            sum,
            reference["csv_sha256"].as_str().unwrap(),
            "{name} is not the trace of the reference"
        );
        let requests = text.lines().skip(1).map(|line| Request::parse(line).unwrap()).collect();
        Self { name: name.to_owned(), requests, reference }
    }
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

fn kept(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(data().join(name)).unwrap()).unwrap()
}
