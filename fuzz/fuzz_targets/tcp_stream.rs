//! tcp frames: headers, payloads, and the state machine of a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::stream(bytes);
});
