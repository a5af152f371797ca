//! tcp control messages: connection requests and their replies.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::control(bytes);
});
