//! What peers of this library say to each other over TCP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::vendor_stream(bytes);
});
