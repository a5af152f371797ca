//! Clients and servers that violate the connection management of connected endpoints over shared
//! memory. Each loses its own connection and affects nothing else.

use std::future::IntoFuture;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{
    ConnectedEndpoint, EpType, Error, EventKind, EventQueue, Fabric, Hints, MAX_PRIVATE_DATA,
    PassiveEndpoint, RefusalReason, discover,
};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};

use crate::health::next_rejection;
use crate::hostile::{READY_CODE, connect_raw_to, sealed_memfd, try_send_with_fds};
use crate::leak_check::{heap_bytes, run_in_own_process};
use crate::rma::{RawShmListener, encode_control};
use crate::run;

const REQUEST: u16 = 1;
pub(crate) const ACCEPT: u16 = 2;
const REJECT: u16 = 3;
const NONCE: u16 = 4;
const REVERSE: u16 = 5;
const REJECT_MALFORMED_CODE: u16 = 3;
pub(crate) const RETRY_LATER: u16 = 6;
/// Pending requests at which a passive endpoint stops accepting connections.
const MAX_PENDING_REQUESTS: usize = 128;
const RING_LINES: u32 = 64;
/// Failed accepts whose memory is measured.
const ATTEMPTS: usize = 4000;
const SEGMENT_LEN: usize = 4096 + 64 * RING_LINES as usize;

/// Opens a passive endpoint at a generated name, with its event queue.
pub(crate) async fn listen() -> (PassiveEndpoint, EventQueue) {
    let hints = Hints::new().provider("shm").ep_type(EpType::Msg);
    let info = discover(&hints).unwrap().swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    let eq = fabric.event_queue(1024).unwrap();
    let listener = fabric.passive_endpoint(&info).unwrap();
    (listener.bind_eq(&eq).unwrap().listen().unwrap(), eq)
}

pub(crate) fn abstract_name(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("fabric-async/shm/{name}").as_bytes()).unwrap()
}

/// Connects to a passive endpoint, from this name if there is one.
fn connect_raw(listener: &PassiveEndpoint, from: Option<&str>) -> OwnedFd {
    connect_raw_at(listener.name().name(), from)
}

/// Connects to a passive endpoint of this name, as [`connect_raw`].
fn connect_raw_at(name: &str, from: Option<&str>) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    if let Some(from) = from {
        rustix::net::bind(&socket, &abstract_name(from)).unwrap();
    }
    rustix::net::connect(&socket, &abstract_name(name)).unwrap();
    socket
}

/// Sends this number of requests to a passive endpoint of another process, without their reverse
/// sockets. Returns the sockets, each of which has received its nonce.
pub(crate) fn send_requests(name: &str, count: usize) -> Vec<OwnedFd> {
    let send = |number| {
        let from = format!("raw-{}-{number}", std::process::id());
        let socket = connect_raw_at(name, Some(&from));
        let ready = recv_blocking(&socket);
        assert_eq!(ready, encode_control(READY_CODE, 0));
        let request = encode_cm(1, REQUEST, 0, b"raw");
        try_send_with_fds(&socket, &request, &[&segment()]).unwrap();
        let nonce = recv_blocking(&socket);
        assert_eq!(nonce[..12], encode_nonce(NONCE, 0)[..12]);
        socket
    };
    (0..count).map(send).collect()
}

/// Returns whether the passive endpoint has evicted the handshake of this socket, whose other
/// messages were received: the last message is `RetryLater`.
pub(crate) fn is_evicted(socket: &OwnedFd) -> bool {
    let mut message = [0; 20];
    match rustix::net::recv(socket, &mut message, RecvFlags::DONTWAIT) {
        Ok(_) => assert_eq!(message[..], encode_control(RETRY_LATER, 0)),
        Err(errno) => {
            assert_eq!(errno, Errno::AGAIN);
            return false;
        }
    }
    loop {
        match rustix::net::recv(socket, &mut message, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            received => {
                assert_eq!(received.map(|(_, len)| len), Ok(0), "the socket is closed");
                return true;
            }
        }
    }
}

fn recv_blocking(socket: &OwnedFd) -> Vec<u8> {
    let mut message = [0; 64];
    let (_, len) = rustix::net::recv(socket, &mut message, RecvFlags::empty()).unwrap();
    message[..len].to_vec()
}

/// Encodes a request, an accept or a rejection.
pub(crate) fn encode_cm(version: u16, code: u16, caps: u32, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = b"fab-scm\0".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(code.to_le_bytes());
    if code != REJECT {
        bytes.extend(RING_LINES.to_le_bytes());
        bytes.extend(7u64.to_le_bytes());
        bytes.extend(caps.to_le_bytes());
    }
    bytes.extend(private_data);
    bytes
}

/// Encodes a message that carries a nonce.
fn encode_nonce(code: u16, nonce: u64) -> Vec<u8> {
    let mut bytes = b"fab-scm\0\x01\0".to_vec();
    bytes.extend(code.to_le_bytes());
    bytes.extend(nonce.to_le_bytes());
    bytes
}

/// Returns a valid segment.
pub(crate) fn segment() -> OwnedFd {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    sealed_memfd(SEGMENT_LEN, seals)
}

/// Receives a message of 20 bytes, such as `Ready` or a nonce, from a passive endpoint.
async fn recv_20_bytes(socket: &OwnedFd) -> [u8; 20] {
    let mut bytes = [0; 20];
    while rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT).is_err() {
        tokio::task::yield_now().await;
    }
    bytes
}

/// Waits until the passive endpoint is ready for the request, and sends the request.
async fn send_request(socket: &OwnedFd, bytes: &[u8], fds: &[&OwnedFd]) {
    let ready = recv_20_bytes(socket).await;
    assert_eq!(ready[..], encode_control(READY_CODE, 0));
    try_send_with_fds(socket, bytes, fds).unwrap();
}

/// Sends a valid request and returns its nonce.
async fn request_nonce(socket: &OwnedFd) -> u64 {
    let request = encode_cm(1, REQUEST, 0, b"raw");
    send_request(socket, &request, &[&segment()]).await;
    let message = recv_20_bytes(socket).await;
    let nonce = u64::from_le_bytes(message[12..].try_into().unwrap());
    assert_eq!(message[..], encode_nonce(NONCE, nonce));
    nonce
}

/// Connects a reverse socket that sends this nonce.
fn connect_reverse(listener: &PassiveEndpoint, nonce: u64) -> OwnedFd {
    let reverse = connect_raw(listener, None);
    try_send_with_fds(&reverse, &encode_nonce(REVERSE, nonce), &[]).unwrap();
    reverse
}

/// Accepts both sockets of a client by hand: that of the request, and the reverse socket.
pub(crate) fn accept_raw_client(listener: &RawShmListener) -> (OwnedFd, OwnedFd) {
    let connection = accept_raw_request(listener);
    let reverse = accept_raw_reverse(listener);
    (connection, reverse)
}

/// Accepts the socket of a request by hand, and sends the nonce 9.
fn accept_raw_request(listener: &RawShmListener) -> OwnedFd {
    let connection = listener.accept_ready();
    rustix::net::recv(&connection, &mut [0; 400], RecvFlags::empty()).unwrap();
    try_send_with_fds(&connection, &encode_nonce(NONCE, 9), &[]).unwrap();
    connection
}

/// Accepts a reverse socket by hand, which must send the nonce 9.
fn accept_raw_reverse(listener: &RawShmListener) -> OwnedFd {
    let reverse = listener.accept_ready();
    let mut message = [0; 20];
    rustix::net::recv(&reverse, &mut message, RecvFlags::empty()).unwrap();
    assert_eq!(message[..], encode_nonce(REVERSE, 9));
    reverse
}

/// Checks that a client can connect and exchange messages.
async fn assert_still_accepts(listener: &mut PassiveEndpoint) {
    let connecting = ConnectedEndpoint::connect(listener.name()).private_data("honest");
    let accepting = async {
        let hints = Hints::new().provider("shm").ep_type(EpType::Msg);
        let info = discover(&hints).unwrap().swap_remove(0);
        let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
        loop {
            let request = listener.accept().await.unwrap();
            if request.private_data() == b"honest" {
                return domain.endpoint(&info).unwrap().accept(request, b"");
            }
        }
    };
    let (client, server) = tokio::join!(connecting.into_future(), accepting);
    let (client, server) = (client.unwrap(), server.unwrap());
    client.send(b"still working").inject().unwrap();
    assert_eq!(&server.recv().await.unwrap()[..], b"still working");
}

#[test]
fn malformed_connection_request_is_rejected_with_reason() {
    run(async {
        let (mut listener, mut events) = listen().await;
        let (good, unsealed) = (segment(), sealed_memfd(SEGMENT_LEN, SealFlags::empty()));
        let small = sealed_memfd(4096, SealFlags::SHRINK | SealFlags::SEAL);
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let request = || encode_cm(1, REQUEST, 3, b"please");
        let mut many_lines = request();
        many_lines[12..16].fill(0xff);
        let mut hello = b"fab-shm\0\x01\0".to_vec();
        hello.extend([64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'x']);
        let too_much = vec![7; MAX_PRIVATE_DATA + 1];
        let cases: [(&str, Vec<u8>, Vec<&OwnedFd>); 14] = [
            ("wrong magic", b"rubbish".to_vec(), vec![]),
            ("wrong magic", vec![0; 100], vec![&good]),
            ("too long", vec![7; 4000], vec![]),
            ("too short", request()[..20].to_vec(), vec![&good]),
            ("too short", request()[..9].to_vec(), vec![]),
            ("version", encode_cm(999, REQUEST, 0, b""), vec![&good]),
            (
                "exceeds 256",
                encode_cm(1, REQUEST, 0, &too_much),
                vec![&good],
            ),
            ("unknown cap", encode_cm(1, REQUEST, 4, b""), vec![&good]),
            (
                "expected a request",
                encode_cm(1, ACCEPT, 0, b""),
                vec![&good],
            ),
            ("exactly one", request(), vec![]),
            ("exactly one", request(), vec![&good, &good]),
            ("not sealed memory", request(), vec![&good, &file]),
            ("not sealed", request(), vec![&unsealed]),
            ("announced size", request(), vec![&small]),
        ];
        for (number, (reason, bytes, fds)) in cases.into_iter().enumerate() {
            let name = format!("hostile-{}-{number}", std::process::id());
            let socket = connect_raw(&listener, Some(&name));
            send_request(&socket, &bytes, &fds).await;
            let error = next_rejection(&mut events).await;
            assert!(error.to_string().contains(reason), "{reason}: {error}");
        }
        for (reason, bytes, from) in [
            ("out of bounds", many_lines, Some("hostile-lines")),
            ("other type", hello, Some("hostile-hello")),
            ("has no endpoint name", request(), None),
        ] {
            let socket = connect_raw(&listener, from);
            send_request(&socket, &bytes, &[&good]).await;
            let error = next_rejection(&mut events).await;
            assert!(error.to_string().contains(reason), "{reason}: {error}");
        }
        assert_still_accepts(&mut listener).await;
    });
}

/// A nonce is valid once, and only the nonce of a pending request is accepted.
#[test]
fn wrong_or_reused_nonce_is_rejected() {
    run(async {
        let (mut listener, mut events) = listen().await;
        let name = format!("nonce-{}", std::process::id());
        let socket = connect_raw(&listener, Some(&name));
        let nonce = request_nonce(&socket).await;
        let _wrong = connect_reverse(&listener, !nonce);
        let error = next_rejection(&mut events).await;
        assert!(error.to_string().contains("nonce of no pending"), "{error}");
        assert!(listener.try_accept().is_none());

        let _reverse = connect_reverse(&listener, nonce);
        let request = listener.accept().await.unwrap();
        assert_eq!(request.peer().name(), name);
        let _reused = connect_reverse(&listener, nonce);
        let error = next_rejection(&mut events).await;
        assert!(error.to_string().contains("nonce of no pending"), "{error}");

        // The socket of a request carries no second message.
        let socket = connect_raw(&listener, Some("second-message"));
        let nonce = request_nonce(&socket).await;
        try_send_with_fds(&socket, &encode_nonce(REVERSE, nonce), &[]).unwrap();
        let error = next_rejection(&mut events).await;
        assert!(
            error.to_string().contains("second connection message"),
            "{error}"
        );
        drop(request);
        assert_still_accepts(&mut listener).await;
    });
}

/// The limit of pending requests counts clients, each of which has two sockets.
#[test]
fn both_sockets_of_a_client_count_as_one_request() {
    run(async {
        let (mut listener, _events) = listen().await;
        let mut sockets = Vec::new();
        for number in 0..MAX_PENDING_REQUESTS {
            let name = format!("pending-{}-{number}", std::process::id());
            let socket = connect_raw(&listener, Some(&name));
            let nonce = request_nonce(&socket).await;
            let reverse = connect_reverse(&listener, nonce);
            sockets.push((socket, reverse));
        }
        for number in 0..MAX_PENDING_REQUESTS {
            let request = listener.accept().await.unwrap();
            let name = format!("pending-{}-{number}", std::process::id());
            assert_eq!(request.peer().name(), name);
        }
        assert_still_accepts(&mut listener).await;
    });
}

/// Clients that connect and send nothing have 10 seconds; those of this process are not evicted.
/// Clients that send a request and leave cost the program a failed accept.
#[test]
fn silent_and_flooding_clients_do_not_block_others() {
    run(async {
        let (mut listener, mut events) = listen().await;
        let silent: Vec<_> = (0..300).map(|_| connect_raw(&listener, None)).collect();
        assert_still_accepts(&mut listener).await;
        recv_20_bytes(&silent[0]).await;
        assert!(!is_evicted(&silent[0]));
        for number in 0..200 {
            let name = format!("flood-{}-{number}", std::process::id());
            let socket = connect_raw(&listener, Some(&name));
            // The passive endpoint queues some of the requests, and then accepts no connections.
            let mut requesting = std::pin::pin!(request_nonce(&socket));
            for _ in 0..100 {
                let requested = tokio::select! {
                    biased;
                    nonce = &mut requesting => Some(nonce),
                    () = tokio::task::yield_now() => None,
                };
                if let Some(nonce) = requested {
                    connect_reverse(&listener, nonce);
                    break;
                }
            }
        }
        assert_still_accepts(&mut listener).await;
        drop(silent);
        // A client that sends nothing for ten seconds is rejected.
        let silent = connect_raw(&listener, None);
        let rejected = async {
            loop {
                let error = next_rejection(&mut events).await;
                if error.to_string().contains("no connection request") {
                    return;
                }
            }
        };
        tokio::select! {
            () = rejected => {}
            request = listener.accept() => panic!("{request:?}"),
        }
        drop(silent);
        assert_still_accepts(&mut listener).await;
    });
}

#[test]
fn request_of_departed_client_fails_with_peer_gone() {
    run(async {
        let mut listener = PassiveEndpoint::bind("shm://").await.unwrap();
        let name = format!("departed-{}", std::process::id());
        let socket = connect_raw(&listener, Some(&name));
        let nonce = request_nonce(&socket).await;
        let reverse = connect_reverse(&listener, nonce);
        let request = listener.accept().await.unwrap();
        assert_eq!(request.peer().name(), name);
        drop((socket, reverse));
        let refused = request.accept("").map(drop).unwrap_err();
        assert_eq!(
            refused,
            Error::PeerGone(format!("shm://{name}").parse().unwrap())
        );
    });
}

/// A step of a server that answers by hand.
enum ServerStep {
    /// Sends a message with descriptors over the socket of the request.
    Send(Vec<u8>, Vec<OwnedFd>),
    /// Accepts the reverse socket, and sends `Ready` over it if this is true.
    AcceptReverse { sends_ready: bool },
}

#[test]
fn malformed_response_fails_the_connect() {
    run(async {
        use ServerStep::{AcceptReverse, Send};
        let ready = || Send(encode_control(READY_CODE, 0), vec![]);
        let nonce = || Send(encode_nonce(NONCE, 9), vec![]);
        let reverse = || AcceptReverse { sends_ready: true };
        let accept = |fds| Send(encode_cm(1, ACCEPT, 3, b"welcome"), fds);
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let unsealed = || sealed_memfd(SEGMENT_LEN, SealFlags::empty());
        let too_much = vec![7; MAX_PRIVATE_DATA + 1];
        let unready = AcceptReverse { sends_ready: false };
        let cases: Vec<(&str, Vec<ServerStep>)> = vec![
            ("not a shm control", vec![Send(b"rubbish".to_vec(), vec![])]),
            ("too long", vec![Send(vec![7; 4000], vec![])]),
            (
                "version 999",
                vec![Send(encode_cm(999, ACCEPT, 0, b""), vec![])],
            ),
            ("out of order: nonce", vec![nonce()]),
            ("out of order: nonce", vec![ready(), nonce(), nonce()]),
            (
                "nonce of a connection message",
                vec![ready(), Send(encode_cm(1, NONCE, 0, b""), vec![])],
            ),
            (
                "nonce or rejection",
                vec![ready(), Send(encode_nonce(NONCE, 9), vec![segment()])],
            ),
            ("accept before the reverse", vec![accept(vec![segment()])]),
            (
                "accept before the reverse",
                vec![ready(), accept(vec![segment()])],
            ),
            ("second ready", vec![ready(), ready()]),
            (
                "exactly one",
                vec![ready(), nonce(), reverse(), accept(vec![])],
            ),
            (
                "exactly one",
                vec![
                    ready(),
                    nonce(),
                    reverse(),
                    accept(vec![segment(), segment()]),
                ],
            ),
            (
                "not sealed memory",
                vec![ready(), nonce(), reverse(), accept(vec![segment(), null()])],
            ),
            (
                "not sealed",
                vec![ready(), nonce(), reverse(), accept(vec![unsealed()])],
            ),
            (
                "no ready message",
                vec![ready(), nonce(), unready, accept(vec![segment()])],
            ),
            (
                "exceeds 256",
                vec![ready(), Send(encode_cm(1, REJECT, 0, &too_much), vec![])],
            ),
            (
                "on a nonce or rejection",
                vec![ready(), Send(encode_cm(1, REJECT, 0, b""), vec![segment()])],
            ),
            (
                "expected an answer",
                vec![ready(), Send(encode_cm(1, REQUEST, 0, b""), vec![])],
            ),
            (
                "passive endpoint",
                vec![ready(), Send(encode_control(101, 0), vec![])],
            ),
        ];
        for (number, (reason, steps)) in cases.into_iter().enumerate() {
            let name = format!("bad-server-{}-{number}", std::process::id());
            let listener = RawShmListener::listen(&name);
            let serving = std::thread::spawn(move || {
                let connection = rustix::net::accept(&listener.0).unwrap();
                let mut reverse = None;
                for step in steps {
                    match step {
                        // The kernel refuses descriptors until the client has checked the
                        // credentials.
                        Send(bytes, fds) => {
                            let fds: Vec<_> = fds.iter().collect();
                            while try_send_with_fds(&connection, &bytes, &fds) == Err(Errno::PERM) {
                            }
                        }
                        AcceptReverse { sends_ready: true } => {
                            reverse = Some(listener.accept_ready());
                        }
                        AcceptReverse { sends_ready: false } => {
                            reverse = Some(rustix::net::accept(&listener.0).unwrap());
                        }
                    }
                }
                (listener, connection, reverse)
            });
            let failed = ConnectedEndpoint::connect(format!("shm://{name}")).await;
            let failed = failed.map(drop).unwrap_err();
            assert!(failed.to_string().contains(reason), "{reason}: {failed}");
            drop(serving.join().unwrap());
        }
    });
}

/// A server that does not accept the reverse socket, and so does not answer.
#[test]
fn reverse_socket_that_is_not_accepted_fails_the_connect_by_timeout() {
    run(async {
        let name = format!("no-reverse-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let serving = std::thread::spawn(move || {
            let connection = listener.accept_ready();
            rustix::net::recv(&connection, &mut [0; 400], RecvFlags::empty()).unwrap();
            // The send fails if this thread was slow and the connect has timed out already.
            let _ = try_send_with_fds(&connection, &encode_nonce(NONCE, 9), &[]);
            (listener, connection)
        });
        let address = format!("shm://{name}");
        let connecting = ConnectedEndpoint::connect(&address[..]);
        let timed_out = connecting.timeout(Duration::from_millis(50)).await;
        let timed_out = timed_out.map(drop).unwrap_err();
        assert_eq!(timed_out, Error::TimedOut(address.parse().unwrap()));
        drop(serving.join().unwrap());
    });
}

/// Serves a client by hand: `serve` returns the sockets of a request, which is accepted then.
/// Checks that the client connects.
async fn check_accepted_by_hand(
    name: &str,
    serve: impl FnOnce(&RawShmListener) -> (OwnedFd, OwnedFd) + Send + 'static,
) {
    let name = format!("{name}-{}", std::process::id());
    let listener = RawShmListener::listen(&name);
    let serving = std::thread::spawn(move || {
        let sockets = serve(&listener);
        let accept = encode_cm(1, ACCEPT, 3, b"welcome");
        try_send_with_fds(&sockets.0, &accept, &[&segment()]).unwrap();
        sockets
    });
    let ep = ConnectedEndpoint::connect(format!("shm://{name}"))
        .await
        .unwrap();
    assert_eq!(ep.private_data(), b"welcome");
    drop(serving.join().unwrap());
}

/// Tells a client to connect again.
fn send_retry_later(socket: &OwnedFd) {
    try_send_with_fds(socket, &encode_control(RETRY_LATER, 0), &[]).unwrap();
}

/// A passive endpoint may evict the reverse socket after `Ready`. The client connects it again, and
/// the nonce is still valid.
#[test]
fn reverse_socket_evicted_after_ready_is_connected_again() {
    run(check_accepted_by_hand("evicted-reverse", |listener| {
        let connection = accept_raw_request(listener);
        for _ in 0..3 {
            send_retry_later(&accept_raw_reverse(listener));
        }
        (connection, accept_raw_reverse(listener))
    }));
}

/// A passive endpoint may evict a request until the nonce has arrived, and rejects the nonce of an
/// evicted request. The client sends its request again.
#[test]
fn evicted_request_is_sent_again() {
    run(check_accepted_by_hand("evicted-request", |listener| {
        // The client has sent the nonce, which is rejected or not read.
        for rejects_nonce in [true, false] {
            let (evicted, reverse) = accept_raw_client(listener);
            send_retry_later(&evicted);
            if rejects_nonce {
                let rejection = encode_control(REJECT_MALFORMED_CODE, 0);
                try_send_with_fds(&reverse, &rejection, &[]).unwrap();
            }
        }
        // The reverse socket is in the backlog.
        let evicted = accept_raw_request(listener);
        send_retry_later(&evicted);
        drop((evicted, rustix::net::accept(&listener.0).unwrap()));
        accept_raw_client(listener)
    }));
}

/// A passive endpoint that evicts each request fails the connect after its timeout.
#[test]
fn connect_whose_requests_are_evicted_ends_with_the_timeout() {
    run(async {
        let name = format!("evicting-{}", std::process::id());
        let address = format!("shm://{name}");
        let listener = RawShmListener::listen(&name);
        let serving = std::thread::spawn(move || {
            let head = encode_cm(1, REQUEST, 0, b"")[..12].to_vec();
            let mut evicted = 0;
            loop {
                let socket = rustix::net::accept(&listener.0).unwrap();
                // The client may have closed its reverse socket.
                let _ = try_send_with_fds(&socket, &encode_control(READY_CODE, 0), &[]);
                let mut message = [0; 400];
                let received = rustix::net::recv(&socket, &mut message, RecvFlags::empty());
                match received.map(|(_, len)| &message[..len]) {
                    Ok(b"end") => return evicted,
                    Ok(request) if request.starts_with(&head) => {
                        try_send_with_fds(&socket, &encode_nonce(NONCE, 9), &[]).unwrap();
                        send_retry_later(&socket);
                        evicted += 1;
                    }
                    _ => {}
                }
            }
        });
        let connecting = ConnectedEndpoint::connect(&address[..]);
        let refused = connecting.timeout(Duration::from_millis(300)).await;
        let error = refused.map(drop).unwrap_err();
        assert!(
            matches!(
                error,
                Error::TimedOut(_)
                    | Error::ConnectionRefused {
                        reason: RefusalReason::Resources,
                        ..
                    }
            ),
            "{error}"
        );
        let end = connect_raw_to(&name);
        try_send_with_fds(&end, b"end", &[]).unwrap();
        assert!(serving.join().unwrap() > 1);
    });
}

/// A server that accepts and then closes ends the established connection.
#[test]
fn server_close_after_accept_is_reported() {
    run(async {
        let name = format!("leaving-server-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let serving = std::thread::spawn(move || {
            let (connection, _reverse) = accept_raw_client(&listener);
            let accept = encode_cm(1, ACCEPT, 3, b"welcome");
            try_send_with_fds(&connection, &accept, &[&segment()]).unwrap();
        });
        let ep = ConnectedEndpoint::connect(format!("shm://{name}"))
            .await
            .unwrap();
        assert_eq!(ep.private_data(), b"welcome");
        assert!(ep.recv().await.unwrap_err().error.is_peer_unavailable());
        let mut events = ep.take_events().unwrap();
        while !matches!(events.read().await.kind, EventKind::Shutdown { .. }) {}
        serving.join().unwrap();
    });
}

/// A client that receives nothing after its nonce fails the accept. Failed accepts leave nothing in
/// the shared receive context of the endpoints that were to accept.
#[test]
fn failed_accepts_leave_nothing_in_a_shared_context() {
    run_in_own_process(
        "connected_shm_hostile::failed_accepts_leave_nothing_in_a_shared_context",
        || {
            run(async {
                let (mut listener, _events) = listen().await;
                let hints = Hints::new().provider("shm").ep_type(EpType::Msg);
                let own_info = discover(&hints).unwrap().swap_remove(0);
                let hints = Hints::new().provider("shm").ep_type(EpType::Msg);
                let hints = hints.ep_rx_ctx_cnt(SHARED_CONTEXT);
                let shared_info = discover(&hints).unwrap().swap_remove(0);
                let domain = Fabric::open(&own_info).unwrap().domain(&own_info).unwrap();
                let shared = domain.shared_rx_context(&shared_info).unwrap();
                let shared = shared.open().unwrap();
                let name = format!("unreceptive-{}-{:060}", std::process::id(), 0);
                // Bytes by which the memory grows in this many attempts.
                let mut grown = [0; 4];
                for (round, grown) in grown.iter_mut().enumerate() {
                    let before = heap_bytes();
                    for _ in 0..ATTEMPTS {
                        let socket = connect_raw(&listener, Some(&name));
                        let nonce = request_nonce(&socket).await;
                        let _reverse = connect_reverse(&listener, nonce);
                        let request = listener.accept().await.unwrap();
                        // The client sends, but receives no more.
                        rustix::net::shutdown(&socket, rustix::net::Shutdown::Read).unwrap();
                        let accepting = if round < 2 {
                            domain.endpoint(&own_info).unwrap()
                        } else {
                            let accepting = domain.endpoint(&shared_info).unwrap();
                            accepting.bind_shared_rx(&shared).unwrap()
                        };
                        let refused = accepting.accept(request, "").map(drop).unwrap_err();
                        assert!(matches!(refused, Error::PeerGone(_)), "{refused}");
                    }
                    *grown = heap_bytes().saturating_sub(before);
                }
                let [_, without_context, _, with_context] = grown;
                // A shared context remembers the endpoint of each key that it has assigned, in 4
                // bytes.
                assert!(
                    with_context < without_context + 8 * ATTEMPTS,
                    "{ATTEMPTS} failed accepts: {with_context} bytes more with a shared context, \
                     {without_context} bytes more without"
                );
            });
        },
    );
}
