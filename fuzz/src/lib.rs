//! Entry points of the tcp fuzz targets: the functions with which the tests of fabric-core replay
//! the corpora.

#[path = "../../fabric-core/tests/tcp_wire/fuzz_input.rs"]
mod fuzz_input;
#[path = "../../fabric-core/tests/tcp_wire/receiver.rs"]
#[allow(dead_code)] // parts that only the tests of fabric-core use
mod receiver;
#[path = "../../fabric-core/tests/common/test_engine.rs"]
mod test_engine;

/// Parses a control message.
pub fn control(bytes: &[u8]) {
    let _ = fuzz_input::control(bytes);
}

/// Reads a stream of native frames.
pub fn stream(bytes: &[u8]) {
    let _ = fuzz_input::stream(bytes);
}

/// Reads a stream of frames from a same-implementation peer.
pub fn vendor_stream(bytes: &[u8]) {
    let _ = fuzz_input::vendor_stream(bytes);
}

/// Reads a stream of RXM packets.
pub fn rxm(bytes: &[u8]) {
    let _ = fuzz_input::rxm(bytes);
}
