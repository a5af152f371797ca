//! Peers of connected endpoints that are plain TCP sockets and send arbitrary bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use fabric_async::{ConnectedEndpoint, PassiveEndpoint};

use crate::connected_pair::MsgDomainFixture;
use crate::setup::Setup;

/// The bytes of a control message's header between the length of the private data and the byte
/// order, which hold the vendor extension.
pub(crate) type ExtensionBytes = [u8; 20];
/// The extension bytes that libfabric sends.
pub(crate) const NO_EXTENSION: ExtensionBytes = [0; 20];

/// Returns a control message; its kinds are 0 (request), 1 (response) and 6 (NACK, a
/// rejection).
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

/// Connects a socket to a passive endpoint.
pub(crate) fn connect_raw(pep: &PassiveEndpoint) -> TcpStream {
    let socket = TcpStream::connect(pep.name().socket_addr().unwrap()).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Returns a listening socket, and its address for `connect`.
pub(crate) fn raw_listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, name)
}

/// Reads the rest of a connection on a blocking thread, while the endpoint makes progress.
pub(crate) async fn read_to_end(mut socket: TcpStream) -> Vec<u8> {
    let reading = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        // The endpoint may reset the connection if it closes with unread bytes.
        let _ = socket.read_to_end(&mut rest);
        rest
    });
    reading.await.unwrap()
}

/// Returns a control message with the vendor extension that announces these capabilities.
pub(crate) fn with_vendor_extension(mut control: Vec<u8>, caps: u32) -> Vec<u8> {
    let begin = if control[1] == 0 {
        b"fabric-?"
    } else {
        b"fabric-!"
    };
    control[8..16].copy_from_slice(begin);
    control[16] = 1;
    control[20..24].copy_from_slice(&caps.to_be_bytes());
    control
}

/// Returns a frame header: operation code, flags, header length and total length.
pub(crate) fn frame_header(code: u8, op: u8, flags: u16, header: u8, total: u64) -> Vec<u8> {
    let mut bytes = vec![3, code];
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([op, 0, header, 0]);
    bytes.extend(total.to_ne_bytes());
    bytes.resize(usize::from(header.max(16)), 0);
    bytes
}

/// Returns a frame of a tagged message.
pub(crate) fn tagged_frame(tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut all = frame_header(1, 0, 0, 24, 24 + bytes.len() as u64);
    all[16..].copy_from_slice(&tag.to_ne_bytes());
    all.extend(bytes);
    all
}

/// Connects a raw peer, which is the initiator or the target, with an endpoint of the domain. The
/// peer sends `extension` in its control message, and `supports_tags` is the application's option.
/// Also returns the extension bytes that the endpoint sent.
pub(crate) async fn connect_raw_peer(
    (fixture, setup): (&MsgDomainFixture, &Setup),
    is_initiator: bool,
    extension: ExtensionBytes,
    supports_tags: bool,
) -> (ConnectedEndpoint, TcpStream, ExtensionBytes) {
    let (ep, mut socket) = if is_initiator {
        let mut pep = fixture.listen(setup);
        let mut socket = connect_raw(&pep);
        socket
            .write_all(&with_extension_bytes(connect_request(b""), extension))
            .unwrap();
        let request = pep.accept().await.unwrap();
        let request = if supports_tags {
            request.peer_supports_tags()
        } else {
            request
        };
        (fixture.accept(request, b""), socket)
    } else {
        let (listener, name) = raw_listener();
        let answering = tokio::task::spawn_blocking(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_nodelay(true).unwrap();
            socket
                .write_all(&with_extension_bytes(connect_response(b""), extension))
                .unwrap();
            socket
        });
        let initiating = fixture.endpoint().connect(&name);
        let ep = if supports_tags {
            initiating.peer_supports_tags().await
        } else {
            initiating.await
        };
        (ep.unwrap(), answering.await.unwrap())
    };
    let received = read_exact(&mut socket, 32).await;
    assert_eq!(
        received[..4],
        if is_initiator {
            connect_response(b"")
        } else {
            connect_request(b"")
        }[..4]
    );
    (ep, socket, received[4..24].try_into().unwrap())
}

fn with_extension_bytes(mut control: Vec<u8>, extension: ExtensionBytes) -> Vec<u8> {
    control[4..24].copy_from_slice(&extension);
    control
}

/// Returns the extension bytes that an endpoint of this implementation sends in a request or
/// response.
pub(crate) fn vendor_extension(is_request: bool, caps: u32) -> ExtensionBytes {
    let control = if is_request {
        connect_request(b"")
    } else {
        connect_response(b"")
    };
    with_vendor_extension(control, caps)[4..24]
        .try_into()
        .unwrap()
}

/// Reads exactly `len` bytes on a blocking thread, while the endpoint makes progress.
pub(crate) async fn read_exact(socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut socket = socket.try_clone().unwrap();
    let reading = tokio::task::spawn_blocking(move || {
        let mut received = vec![0; len];
        socket.read_exact(&mut received).unwrap();
        received
    });
    reading.await.unwrap()
}
