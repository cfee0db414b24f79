#![no_main]

#[path = "../properties/files_line.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
