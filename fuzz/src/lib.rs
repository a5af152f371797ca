//! What is read of what peers say over TCP: the functions with which the tests of fabric-core
//! replay the corpora.

#[path = "../../fabric-core/tests/tcp_wire/fuzz_input.rs"]
mod fuzz_input;
#[path = "../../fabric-core/tests/tcp_wire/receiver.rs"]
#[allow(dead_code)] // what only tests ask
mod receiver;

/// How a connection begins.
pub fn control(bytes: &[u8]) {
    let _ = fuzz_input::control(bytes);
}

/// What follows.
pub fn stream(bytes: &[u8]) {
    let _ = fuzz_input::stream(bytes);
}

/// What peers of this library say to each other.
pub fn vendor_stream(bytes: &[u8]) {
    let _ = fuzz_input::vendor_stream(bytes);
}

/// What follows in the other dialect.
pub fn rxm(bytes: &[u8]) {
    let _ = fuzz_input::rxm(bytes);
}
