#![no_main]

#[path = "../properties/quic_control.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
