#![no_main]
#[path = "run_nbd.rs"]
mod run;

libfuzzer_sys::fuzz_target!(|input: &[u8]| run::target("nbd_session", input));
