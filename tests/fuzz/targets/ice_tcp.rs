#![no_main]

// By path: what is fuzzed is private to its crate, and stands on its own.
#[path = "../../../crates/transport/src/whep/demux.rs"]
#[allow(dead_code)]
mod demux;
#[path = "../properties/ice_tcp.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
