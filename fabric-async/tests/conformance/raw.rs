//! Peers of connected endpoints that are nothing but a socket, and write what they like.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use fabric_async::PassiveEndpoint;

/// A control message: the kinds are 0, 1 and 6.
pub(crate) fn control(version: u8, kind: u8, len: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![version, kind];
    bytes.extend(len.to_be_bytes());
    bytes.resize(24, 0);
    bytes.extend(1u64.to_ne_bytes());
    bytes.extend(data);
    bytes
}

pub(crate) fn request(data: &[u8]) -> Vec<u8> {
    control(3, 0, data.len() as u16, data)
}

pub(crate) fn answer(data: &[u8]) -> Vec<u8> {
    control(3, 1, data.len() as u16, data)
}

/// Calls a passive endpoint by the socket.
pub(crate) fn call(door: &PassiveEndpoint) -> TcpStream {
    let socket = TcpStream::connect(door.name().socket().unwrap()).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Somebody who listens and is nothing but a socket, and how it is called here.
pub(crate) fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, name)
}

/// What else comes over the socket until its end, while the other side goes on.
pub(crate) async fn rest_of(mut socket: TcpStream) -> Vec<u8> {
    let reading = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        // Whoever is thrown out with something unread may be told so.
        let _ = socket.read_to_end(&mut rest);
        rest
    });
    reading.await.unwrap()
}

/// The same control message as an endpoint of this library sends it that says this of itself.
pub(crate) fn marked(mut control: Vec<u8>, takes: u32) -> Vec<u8> {
    let begin = if control[1] == 0 { b"fabric-?" } else { b"fabric-!" };
    control[8..16].copy_from_slice(begin);
    control[16] = 1;
    control[20..24].copy_from_slice(&takes.to_be_bytes());
    control
}

/// A header of a frame: its operation, its flags, its length, and that of the whole.
pub(crate) fn frame(code: u8, op: u8, flags: u16, header: u8, total: u64) -> Vec<u8> {
    let mut bytes = vec![3, code];
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([op, 0, header, 0]);
    bytes.extend(total.to_ne_bytes());
    bytes.resize(usize::from(header.max(16)), 0);
    bytes
}

/// A message with a tag.
pub(crate) fn tagged(tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut all = frame(1, 0, 0, 24, 24 + bytes.len() as u64);
    all[16..].copy_from_slice(&tag.to_ne_bytes());
    all.extend(bytes);
    all
}
