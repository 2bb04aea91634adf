#![no_main]
#[path = "run.rs"]
mod run;

libfuzzer_sys::fuzz_target!(|input: &[u8]| run::target("zap_fat_leaf", input));
