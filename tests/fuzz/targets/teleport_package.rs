#![no_main]

#[path = "../properties/teleport_package.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
