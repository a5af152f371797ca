//! tcp frames that only peers of this library exchange.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::vendor_stream(bytes);
});
