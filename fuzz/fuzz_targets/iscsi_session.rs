#![no_main]
#[path = "run_protocol.rs"]
mod run;

libfuzzer_sys::fuzz_target!(|input: &[u8]| run::target("iscsi_session", input));
