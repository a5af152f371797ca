//! Peers of connected endpoints that are nothing but a socket, and write what they like.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use fabric_async::{Endpoint, PassiveEndpoint};

use crate::meeting::Room;
use crate::setup::Setup;

/// What control messages say in their header between the length of the private data and the order
/// of bytes.
pub(crate) type Between = [u8; 20];
/// What libfabric says there.
pub(crate) const NOTHING: Between = [0; 20];

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
    let begin = if control[1] == 0 {
        b"fabric-?"
    } else {
        b"fabric-!"
    };
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

/// Connects such a peer with an endpoint of this room, either of which calls, and `says` in its
/// control message what it likes. The program may know that it takes tags. Also what the endpoint
/// says there itself.
pub(crate) async fn stranger(
    (room, setup): (&Room, &Setup),
    calls: bool,
    says: Between,
    takes_tags: bool,
) -> (Endpoint, TcpStream, Between) {
    let (ep, mut socket) = if calls {
        let mut door = room.door(setup);
        let mut socket = call(&door);
        socket.write_all(&saying(request(b""), says)).unwrap();
        let request = door.next().await.unwrap();
        let request = if takes_tags {
            request.peer_takes_tags()
        } else {
            request
        };
        (room.accept(request, b"").await, socket)
    } else {
        let (listener, name) = listener();
        let answering = tokio::task::spawn_blocking(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_nodelay(true).unwrap();
            socket.write_all(&saying(answer(b""), says)).unwrap();
            socket
        });
        let calling = room.endpoint().connect(&name);
        let ep = if takes_tags {
            calling.peer_takes_tags().await
        } else {
            calling.await
        };
        (ep.unwrap(), answering.await.unwrap())
    };
    let heard = hears(&mut socket, 32).await;
    assert_eq!(
        heard[..4],
        if calls { answer(b"") } else { request(b"") }[..4]
    );
    (ep, socket, heard[4..24].try_into().unwrap())
}

fn saying(mut control: Vec<u8>, says: Between) -> Vec<u8> {
    control[4..24].copy_from_slice(&says);
    control
}

/// What an endpoint of this library says of itself when it asks, or answers.
pub(crate) fn mark(asks: bool, takes: u32) -> Between {
    let control = if asks { request(b"") } else { answer(b"") };
    marked(control, takes)[4..24].try_into().unwrap()
}

/// The next so many bytes that come over the socket, while the other side goes on.
pub(crate) async fn hears(socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut socket = socket.try_clone().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let mut heard = vec![0; len];
        socket.read_exact(&mut heard).unwrap();
        heard
    });
    reading.await.unwrap()
}
