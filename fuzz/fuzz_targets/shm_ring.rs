//! The records of a ring in shared memory, which a peer may write over at any time.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = fabric_reactor::fuzz::ring(bytes);
});
