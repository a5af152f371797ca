//! What follows over TCP: headers, messages, and the state machine that puts them together.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::stream(bytes);
});
