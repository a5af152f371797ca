//! Raw TCP peers that violate the protocol lose their own connection and affect nothing else.

use fabric_async::{CancelOutcome, DownReason, Endpoint, Error};
use fabric_core::tcp::{CmKind, CmMessage, RdmCmData};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{assert_still_works, bind_with_events, next_down_reason, next_rejection};
use crate::leak_check::{private_bytes, run_in_own_process};
use crate::run;

/// Connects without sending anything.
async fn connect_raw(ep: &Endpoint) -> TcpStream {
    TcpStream::connect(ep.name().socket_addr().unwrap())
        .await
        .unwrap()
}

pub(crate) fn encode_request(port: u16, instance: u32) -> Vec<u8> {
    CmMessage::new(CmKind::Request, &RdmCmData::new(port, instance).encode())
        .unwrap()
        .encode()
}

/// Connects, and completes the handshake.
pub(super) async fn connect_accepted(ep: &Endpoint, port: u16) -> TcpStream {
    let mut socket = connect_raw(ep).await;
    socket.write_all(&encode_request(port, 7)).await.unwrap();
    let mut response = [0; 40];
    socket.read_exact(&mut response).await.unwrap();
    let (control, _) = CmMessage::decode(&response).unwrap().unwrap();
    assert_eq!(control.kind, CmKind::Accept);
    socket
}

/// Encodes the header of a message from arbitrary values.
pub(crate) fn encode_header(code: u8, flags: u16, op: u8, len: u8, total: u64) -> Vec<u8> {
    let mut bytes = vec![3, code, 0, 0, op, 0, len, 0];
    bytes[2..4].copy_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&total.to_le_bytes());
    bytes
}

/// Reads until the endpoint closes the connection, and returns the data.
pub(super) async fn read_until_closed(mut socket: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    // The endpoint may reset the connection.
    let _ = socket.read_to_end(&mut received).await;
    received
}

#[test]
fn invalid_connect_requests_are_rejected_with_reason() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let good = encode_request(9, 7);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let no_private = CmMessage::new(CmKind::Request, &[]).unwrap().encode();
        let other = CmMessage::new(
            CmKind::Request,
            &[1, 2, 4, 3, 0x39, 0x30, 2, 0, 0, 64, 0, 0],
        )
        .unwrap()
        .encode();
        let cases = [
            ("version", b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0),
            ("version", vec![0; 500], 0),
            ("version", with(0, 2), 0),
            ("unknown type", with(1, 9), 0),
            ("unsolicited connect response", with(1, 1), 0),
            ("private data", with(2, 2), 0),
            ("byte order", with(24, 2), 0),
            ("not those of an FI_EP_RDM endpoint", no_private, 32),
            ("not those of an FI_EP_RDM endpoint", other, 32),
            (
                "not those of an FI_EP_RDM endpoint",
                encode_request(0, 7),
                40,
            ),
        ];
        for (reason, bytes, response) in cases {
            let mut socket = connect_raw(&ep).await;
            socket.write_all(&bytes).await.unwrap();
            let error = next_rejection(&mut events).await;
            assert!(
                matches!(&error, Error::Protocol { what, .. } if what.contains(reason)),
                "{reason}: {error}"
            );
            assert_eq!(read_until_closed(socket).await.len(), response, "{reason}");
        }
        drop(connect_raw(&ep).await);
        assert_still_works(&ep).await;
    });
}

#[test]
fn connect_request_is_accepted_byte_by_byte() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let mut socket = connect_raw(&ep).await;
        let message = [&encode_header(0, 0, 0, 16, 19)[..], b"abc"].concat();
        for byte in [encode_request(9, 7), message].concat() {
            socket.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(&ep.recv().await.unwrap()[..], b"abc");
    });
}

/// RDM endpoints do not send the vendor extension of connected endpoints, and ignore it.
#[test]
fn vendor_extension_is_ignored_by_rdm_endpoints() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let plain = encode_request(9, 7);
        let mut responses = Vec::new();
        for extension in [[0; 16], [0xff; 16], *b"fabric-?\x01\0\0\0\xff\xff\xff\xff"] {
            let mut socket = connect_raw(&ep).await;
            let request = [&plain[..8], &extension, &plain[24..]].concat();
            let message = [
                &encode_header(1, 0, 0, 24, 27)[..],
                &5u64.to_le_bytes(),
                b"abc",
            ]
            .concat();
            socket
                .write_all(&[request, message].concat())
                .await
                .unwrap();
            let mut response = vec![0; 40];
            socket.read_exact(&mut response).await.unwrap();
            assert_eq!(response[4..24], [0; 20]);
            responses.push(response);
            let got = ep.recv().tag(5).await.unwrap();
            assert_eq!(&got[..], b"abc");
            drop(socket);
            next_down_reason(&mut events).await;
        }
        assert!(responses.iter().all(|response| *response == responses[0]));
        // The endpoint sends no extension in a request, and ignores it in a response.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("tcp://{}", listener.local_addr().unwrap());
        let handshake = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 40];
            socket.read_exact(&mut request).await.unwrap();
            assert_eq!(request[4..24], [0; 20]);
            let mut response = responses[0].clone();
            response[8..24].copy_from_slice(b"fabric-!\x01\0\0\0\xff\xff\xff\xff");
            socket.write_all(&response).await.unwrap();
            let mut received = vec![0; 27];
            socket.read_exact(&mut received).await.unwrap();
            received
        };
        let sends = async {
            let peer = ep.add_peer(&name[..]).await.unwrap();
            ep.send(peer, "abc").tag(5).await.unwrap();
        };
        let (received, ()) = tokio::join!(handshake, sends);
        assert_eq!(received[24..], *b"abc");
        assert_still_works(&ep).await;
    });
}

/// Silent connections are evicted when there are many, and time out otherwise.
#[test]
fn silent_connections_are_evicted_or_time_out() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let first = connect_raw(&ep).await;
        let mut others = Vec::new();
        for _ in 0..100 {
            others.push(connect_raw(&ep).await);
        }
        assert_still_works(&ep).await;
        assert_eq!(read_until_closed(first).await, []);
        let error = next_rejection(&mut events).await;
        assert!(
            error.to_string().contains("no connection request"),
            "{error}"
        );
        assert_eq!(read_until_closed(others.pop().unwrap()).await, []);
    });
}

#[test]
fn receive_stays_posted_when_connection_ends_mid_message() {
    for is_reset in [true, false] {
        run(async {
            let (ep, mut events) = bind_with_events().await;
            let receiving = ep.recv().tag(5).start().unwrap();
            let mut socket = connect_accepted(&ep, 9).await;
            let mut half = encode_header(1, 0, 0, 24, 24 + 100_000);
            half.extend_from_slice(&5u64.to_le_bytes());
            half.resize(half.len() + 50_000, 1);
            socket.write_all(&half).await.unwrap();
            if is_reset {
                // Waits for the arrival, because a reset discards data in flight.
                while ep.stats().received.bytes == 0 && readable_bytes(&socket) > 0 {
                    tokio::task::yield_now().await;
                }
                rustix::net::sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO))
                    .unwrap();
            }
            drop(socket);
            next_down_reason(&mut events).await;
            let bystander = Endpoint::bind("tcp://").await.unwrap();
            let to_ep = bystander.add_peer(ep.name()).await.unwrap();
            bystander.send(to_ep, "whole").tag(5).await.unwrap();
            assert_eq!(&receiving.await.unwrap()[..], b"whole");
            assert_still_works(&ep).await;
        });
    }
}

/// Returns the bytes in the receive queue of the socket.
fn readable_bytes(socket: &TcpStream) -> u64 {
    rustix::io::ioctl_fionread(socket).unwrap_or(0)
}

#[test]
fn malformed_frames_end_only_that_connection() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let tag = 7u64.to_le_bytes();
        let cases: [(&str, Vec<u8>); 8] = [
            ("longer than 1 TiB", encode_header(0, 0, 0, 16, 1 << 60)),
            ("longer than 1 TiB", encode_header(0, 0, 0, 16, u64::MAX)),
            ("shorter than its header", encode_header(0, 0, 0, 16, 15)),
            (
                "unsolicited acknowledgement",
                encode_header(0, 0, 2, 16, 16),
            ),
            ("unsolicited read response", encode_header(3, 0, 0, 16, 20)),
            ("rendezvous", encode_header(6, 0, 1, 16, 16)),
            ("unknown operation", encode_header(200, 0, 0, 16, 16)),
            (
                "shorter than its fields",
                [&encode_header(1, 0, 0, 23, 40)[..], &tag].concat(),
            ),
        ];
        // A posted receive is not affected.
        let posted = ep.recv().tag(1).start().unwrap();
        for (number, (reason, bytes)) in cases.into_iter().enumerate() {
            let mut socket = connect_accepted(&ep, 9).await;
            // The message before the malformed frame is received.
            let good = [&encode_header(0, 0, 0, 16, 17)[..], &[number as u8]].concat();
            socket.write_all(&[good, bytes].concat()).await.unwrap();
            assert_eq!(ep.recv().await.unwrap()[..], [number as u8]);
            let end = next_down_reason(&mut events).await;
            assert!(
                matches!(end, DownReason::Protocol(what) if what.contains(reason)),
                "{reason}: {end:?}"
            );
            assert_eq!(read_until_closed(socket).await, [], "{reason}");
        }
        assert_still_works(&ep).await;
        assert!(matches!(posted.cancel().await, CancelOutcome::Canceled(_)));
    });
}

/// A message whose header announces a large length, and whose data does not arrive, uses address
/// space but no memory.
#[test]
fn announced_length_alone_uses_no_memory() {
    run_in_own_process(
        "tcp::hostile::announced_length_alone_uses_no_memory",
        || {
            run(async {
                let (ep, mut events) = bind_with_events().await;
                let mut socket = connect_accepted(&ep, 9).await;
                assert_still_works(&ep).await;
                let receiving = ep.recv().start().unwrap();
                let before = private_bytes();
                socket
                    .write_all(
                        &[&encode_header(0, 0, 0, 16, 16 + (1 << 30))[..], b"a little"].concat(),
                    )
                    .await
                    .unwrap();
                assert_still_works(&ep).await;
                assert!(private_bytes() < before + (64 << 20));
                drop(socket);
                next_down_reason(&mut events).await;
                let bystander = Endpoint::bind("tcp://").await.unwrap();
                let to_ep = bystander.add_peer(ep.name()).await.unwrap();
                bystander.send(to_ep, "whole").await.unwrap();
                assert_eq!(&receiving.await.unwrap()[..], b"whole");
            });
        },
    );
}

/// Sends to a peer that does not read stay queued; other peers are not affected.
#[test]
fn peer_that_does_not_read_does_not_block_others() {
    run(async {
        let (ep, _events) = bind_with_events().await;
        let mut socket = connect_accepted(&ep, 9).await;
        socket
            .write_all(&[&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
            .await
            .unwrap();
        let silent_peer = ep.recv().await.unwrap().source().unwrap();
        let mut sends: Vec<_> = (0..20)
            .map(|_| ep.send(silent_peer, vec![1; 5 << 20]).start().unwrap())
            .collect();
        for _ in 0..20 {
            assert_still_works(&ep).await;
        }
        let last = sends.pop().unwrap();
        let canceled = last.cancel().await;
        assert!(matches!(canceled, CancelOutcome::Canceled(buf) if buf.len() == 5 << 20));
        drop(socket);
        let failed = sends.pop().unwrap().await.unwrap_err();
        assert!(failed.error.is_peer_unavailable(), "{}", failed.error);
        assert_still_works(&ep).await;
    });
}

/// A message that is partially sent cannot be canceled: removing its address ends the connection,
/// and the next message goes over a new one.
#[test]
fn av_remove_mid_message_ends_the_connection() {
    const LONG: usize = 64 << 20;
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("tcp://{}", listener.local_addr().unwrap());
        let mut socket = connect_accepted(&ep, listener.local_addr().unwrap().port()).await;
        socket
            .write_all(&[&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
            .await
            .unwrap();
        let silent_peer = ep.recv().await.unwrap().source().unwrap();
        ep.send(silent_peer, "before").await.unwrap();
        let long = ep.send(silent_peer, vec![1; LONG]).start().unwrap();
        let queued = ep.send(silent_peer, "behind").start().unwrap();
        let mut partial = [0; 16 + 6 + 16];
        socket.read_exact(&mut partial).await.unwrap();
        ep.address_vector().remove(silent_peer).unwrap();
        assert_eq!(
            long.await.unwrap_err().error,
            Error::StaleAddress(silent_peer)
        );
        assert_eq!(
            queued.await.unwrap_err().error,
            Error::StaleAddress(silent_peer)
        );

        let peer = ep.address_vector().insert(&name[..]).unwrap();
        let responding = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 40];
            socket.read_exact(&mut request).await.unwrap();
            let response = CmMessage::new(CmKind::Accept, &RdmCmData::new(9, 7).encode()).unwrap();
            socket.write_all(&response.encode()).await.unwrap();
            let mut message = [0; 16 + 5];
            socket.read_exact(&mut message).await.unwrap();
            assert_eq!(&message[16..], b"again");
            socket
        };
        let (sent, again) = tokio::join!(ep.send(peer, "again"), responding);
        sent.unwrap();
        let rest = read_until_closed(socket).await;
        assert!(
            rest.len() < LONG && rest.iter().all(|byte| *byte == 1),
            "{} bytes",
            rest.len()
        );
        next_down_reason(&mut events).await;
        drop(again);
        assert_still_works(&ep).await;
    });
}

/// The queue of acknowledgements is bounded: a peer that does not read them is not read.
#[test]
fn peer_that_does_not_read_acks_is_not_read() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut socket = socket
            .connect(ep.name().socket_addr().unwrap())
            .await
            .unwrap();
        socket.write_all(&encode_request(9, 7)).await.unwrap();
        let messages = std::iter::repeat_n(encode_header(0, 4, 0, 16, 16), 1 << 12)
            .collect::<Vec<_>>()
            .concat();
        // The socket buffers hold some tens of megabytes; without a bound the loop would not end.
        let mut sent_bytes = 0usize;
        loop {
            let received = async {
                socket.write_all(&messages).await.unwrap();
                for _ in 0..1 << 12 {
                    ep.recv().await.unwrap();
                }
            };
            if tokio::time::timeout(std::time::Duration::from_secs(2), received)
                .await
                .is_err()
            {
                break;
            }
            sent_bytes += messages.len();
            assert!(
                sent_bytes < 1 << 30,
                "the endpoint still reads from the peer"
            );
        }
        // The queued acknowledgements do not keep the driver busy.
        let polls = || ep.domain().stats().passes + ep.domain().stats().parks;
        let before = polls();
        let _ = tokio::time::timeout(std::time::Duration::from_millis(500), ep.recv()).await;
        assert!(
            polls() - before < 2000,
            "{} polls while idle",
            polls() - before
        );
        drop(socket);
        next_down_reason(&mut events).await;
        assert_still_works(&ep).await;
    });
}

/// Waits until the driver is idle; hangs if something keeps it busy.
async fn wait_until_idle(ep: &Endpoint) {
    let polls = || (ep.domain().stats().passes, ep.domain().stats().parks);
    let mut before = polls();
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let now = polls();
        if std::mem::replace(&mut before, now) == now {
            return;
        }
    }
}

/// The endpoint still reads a connection that it has closed for writing in the middle of a message,
/// so that it detects the end. Read requests on that connection get no response.
#[test]
fn read_requests_after_write_close_get_no_response() {
    for requests in [1, 2000] {
        run(async {
            let (ep, mut events) = bind_with_events().await;
            let mut socket = connect_accepted(&ep, 9).await;
            socket
                .write_all(&[&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
                .await
                .unwrap();
            let silent_peer = ep.recv().await.unwrap().source().unwrap();
            let long = ep.send(silent_peer, vec![1; 64 << 20]).start().unwrap();
            socket.read_exact(&mut [0; 16]).await.unwrap();
            ep.address_vector().remove(silent_peer).unwrap();
            assert_eq!(
                long.await.unwrap_err().error,
                Error::StaleAddress(silent_peer)
            );
            socket.read_to_end(&mut Vec::new()).await.unwrap();

            socket
                .write_all(&encode_header(2, 0, 0, 16, 16).repeat(requests))
                .await
                .unwrap();
            assert_still_works(&ep).await;
            let receiving = tokio::spawn(ep.recv().tag(77).start().unwrap());
            wait_until_idle(&ep).await;
            drop(socket);
            next_down_reason(&mut events).await;
            receiving.abort();
            assert_still_works(&ep).await;
        });
    }
}
