//! What peers say over TCP in the dialect of `tcp;ofi_rxm`.
#![no_main]

#[path = "../../fabric-core/tests/tcp_wire/fuzzed.rs"]
#[allow(dead_code)] // the other target's part
mod fuzzed;
#[path = "../../fabric-core/tests/tcp_wire/host.rs"]
#[allow(dead_code)] // what only tests ask
mod host;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = fuzzed::rxm(bytes);
});
