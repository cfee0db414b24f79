#![no_main]

#[path = "../properties/sealed_frame.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
