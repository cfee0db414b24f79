#![no_main]

#[path = "../properties/relay_nodes.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
