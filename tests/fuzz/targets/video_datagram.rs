#![no_main]

#[path = "../properties/video_datagram.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
