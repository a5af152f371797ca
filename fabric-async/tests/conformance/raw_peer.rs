//! Peers of connected endpoints that are nothing but a socket, and write what they like.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use fabric_async::{Endpoint, PassiveEndpoint};

use crate::connected_pair::MsgDomainFixture;
use crate::setup::Setup;

/// What control messages say in their header between the length of the private data and the order
/// of bytes.
pub(crate) type ExtensionBytes = [u8; 20];
/// What libfabric says there.
pub(crate) const NO_EXTENSION: ExtensionBytes = [0; 20];

/// A control message: the kinds are 0, 1 and 6.
pub(crate) fn control_message(version: u8, kind: u8, len: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![version, kind];
    bytes.extend(len.to_be_bytes());
    bytes.resize(24, 0);
    bytes.extend(1u64.to_ne_bytes());
    bytes.extend(data);
    bytes
}

pub(crate) fn connect_request(data: &[u8]) -> Vec<u8> {
    control_message(3, 0, data.len() as u16, data)
}

pub(crate) fn connect_response(data: &[u8]) -> Vec<u8> {
    control_message(3, 1, data.len() as u16, data)
}

/// Calls a passive endpoint by the socket.
pub(crate) fn connect_raw(door: &PassiveEndpoint) -> TcpStream {
    let socket = TcpStream::connect(door.name().socket_addr().unwrap()).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Somebody who listens and is nothing but a socket, and how it is called here.
pub(crate) fn raw_listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, name)
}

/// What else comes over the socket until its end, while the other side goes on.
pub(crate) async fn read_to_end(mut socket: TcpStream) -> Vec<u8> {
    let reading = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        // Whoever is thrown out with something unread may be told so.
        let _ = socket.read_to_end(&mut rest);
        rest
    });
    reading.await.unwrap()
}

/// The same control message as an endpoint of this library sends it that says this of itself.
pub(crate) fn with_vendor_extension(mut control: Vec<u8>, takes: u32) -> Vec<u8> {
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
pub(crate) fn frame_header(code: u8, op: u8, flags: u16, header: u8, total: u64) -> Vec<u8> {
    let mut bytes = vec![3, code];
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([op, 0, header, 0]);
    bytes.extend(total.to_ne_bytes());
    bytes.resize(usize::from(header.max(16)), 0);
    bytes
}

/// A message with a tag.
pub(crate) fn tagged_frame(tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut all = frame_header(1, 0, 0, 24, 24 + bytes.len() as u64);
    all[16..].copy_from_slice(&tag.to_ne_bytes());
    all.extend(bytes);
    all
}

/// Connects such a peer with an endpoint of this room, either of which calls, and `says` in its
/// control message what it likes. The program may know that it takes tags. Also what the endpoint
/// says there itself.
pub(crate) async fn connect_raw_peer(
    (room, setup): (&MsgDomainFixture, &Setup),
    calls: bool,
    says: ExtensionBytes,
    takes_tags: bool,
) -> (Endpoint, TcpStream, ExtensionBytes) {
    let (ep, mut socket) = if calls {
        let mut door = room.listen(setup);
        let mut socket = connect_raw(&door);
        socket
            .write_all(&with_extension_bytes(connect_request(b""), says))
            .unwrap();
        let request = door.next().await.unwrap();
        let request = if takes_tags {
            request.peer_supports_tags()
        } else {
            request
        };
        (room.accept(request, b"").await, socket)
    } else {
        let (listener, name) = raw_listener();
        let answering = tokio::task::spawn_blocking(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_nodelay(true).unwrap();
            socket
                .write_all(&with_extension_bytes(connect_response(b""), says))
                .unwrap();
            socket
        });
        let calling = room.endpoint().connect(&name);
        let ep = if takes_tags {
            calling.peer_supports_tags().await
        } else {
            calling.await
        };
        (ep.unwrap(), answering.await.unwrap())
    };
    let heard = read_exact(&mut socket, 32).await;
    assert_eq!(
        heard[..4],
        if calls {
            connect_response(b"")
        } else {
            connect_request(b"")
        }[..4]
    );
    (ep, socket, heard[4..24].try_into().unwrap())
}

fn with_extension_bytes(mut control: Vec<u8>, says: ExtensionBytes) -> Vec<u8> {
    control[4..24].copy_from_slice(&says);
    control
}

/// What an endpoint of this library says of itself when it asks, or answers.
pub(crate) fn vendor_extension(asks: bool, takes: u32) -> ExtensionBytes {
    let control = if asks {
        connect_request(b"")
    } else {
        connect_response(b"")
    };
    with_vendor_extension(control, takes)[4..24]
        .try_into()
        .unwrap()
}

/// The next so many bytes that come over the socket, while the other side goes on.
pub(crate) async fn read_exact(socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut socket = socket.try_clone().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let mut heard = vec![0; len];
        socket.read_exact(&mut heard).unwrap();
        heard
    });
    reading.await.unwrap()
}
