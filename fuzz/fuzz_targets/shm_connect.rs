//! The messages of connection management over shared memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = fabric_reactor::fuzz::connect(bytes);
});
