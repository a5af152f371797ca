//! How a connection over TCP begins: the codec of greetings.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::control(bytes);
});
