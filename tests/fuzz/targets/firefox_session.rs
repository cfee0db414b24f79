#![no_main]

#[path = "../properties/firefox_session.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
