//! What peers say over TCP in the dialect of `tcp;ofi_rxm`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fabric_fuzz::rxm(bytes);
});
