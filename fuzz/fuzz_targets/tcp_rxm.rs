//! RXM packets over tcp.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::rxm(bytes);
});
