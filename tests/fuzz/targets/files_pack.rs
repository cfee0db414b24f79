#![no_main]

#[path = "../properties/files_pack.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
