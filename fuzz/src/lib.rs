//! What is read of what peers say over TCP: the functions with which the tests of fabric-core
//! replay the corpora.

#[path = "../../fabric-core/tests/tcp_wire/fuzzed.rs"]
mod fuzzed;
#[path = "../../fabric-core/tests/tcp_wire/host.rs"]
#[allow(dead_code)] // what only tests ask
mod host;

/// How a connection begins.
pub fn control(bytes: &[u8]) {
    let _ = fuzzed::control(bytes);
}

/// What follows.
pub fn stream(bytes: &[u8]) {
    let _ = fuzzed::stream(bytes);
}

/// What peers of this library say to each other.
pub fn kin(bytes: &[u8]) {
    let _ = fuzzed::kin(bytes);
}

/// What follows in the other dialect.
pub fn rxm(bytes: &[u8]) {
    let _ = fuzzed::rxm(bytes);
}
