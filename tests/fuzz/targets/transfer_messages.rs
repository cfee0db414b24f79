#![no_main]

#[path = "../properties/transfer_messages.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
