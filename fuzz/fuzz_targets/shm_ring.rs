//! Records of a shared-memory ring, whose memory a peer may overwrite at any time.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = fabric_reactor::fuzz::ring(bytes);
});
