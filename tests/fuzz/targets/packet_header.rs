#![no_main]

#[path = "../properties/packet_header.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
