//! Clients and servers that violate the connection management of connected endpoints over shared
//! memory lose their own connection and affect nothing else.

use std::future::IntoFuture;
use std::os::fd::OwnedFd;

use fabric_async::{
    ConnectedEndpoint, EpType, Error, EventKind, EventQueue, Fabric, Hints, MAX_PRIVATE_DATA,
    PassiveEndpoint, discover,
};
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::health::next_rejection;
use crate::hostile::{sealed_memfd, try_send_with_fds};
use crate::rma::{RawShmListener, encode_control};
use crate::run;

const REQUEST: u16 = 1;
pub(crate) const ACCEPT: u16 = 2;
const REJECT: u16 = 3;
const RING_LINES: u32 = 64;
const SEGMENT_LEN: usize = 4096 + 64 * RING_LINES as usize;

/// Returns a passive endpoint with its event queue.
async fn listen() -> (PassiveEndpoint, EventQueue) {
    let hints = Hints::new().provider("shm").ep_type(EpType::Msg);
    let info = discover(&hints).unwrap().swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    let eq = fabric.event_queue(1024).unwrap();
    let listener = fabric.passive_endpoint(&info).unwrap();
    (listener.bind_eq(&eq).unwrap().listen().unwrap(), eq)
}

fn abstract_name(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("fabric-async/shm/{name}").as_bytes()).unwrap()
}

/// Connects to a passive endpoint from this name.
fn connect_raw(listener: &PassiveEndpoint, from: Option<&str>) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    if let Some(from) = from {
        rustix::net::bind(&socket, &abstract_name(from)).unwrap();
    }
    rustix::net::connect(&socket, &abstract_name(listener.name().name())).unwrap();
    socket
}

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

pub(crate) fn segment() -> OwnedFd {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    sealed_memfd(SEGMENT_LEN, seals)
}

/// Waits for the passive endpoint's ready message, and sends the request.
async fn send_request(
    listener: &mut PassiveEndpoint,
    socket: &OwnedFd,
    bytes: &[u8],
    fds: &[&OwnedFd],
) {
    let mut ready = [0; 20];
    while rustix::net::recv(socket, &mut ready, RecvFlags::DONTWAIT).is_err() {
        assert!(listener.try_accept().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(ready[..], encode_control(crate::hostile::READY_CODE, 0));
    try_send_with_fds(socket, bytes, fds).unwrap();
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
        let (good, loose) = (segment(), sealed_memfd(SEGMENT_LEN, SealFlags::empty()));
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
            ("not sealed", request(), vec![&loose]),
            ("announced size", request(), vec![&small]),
        ];
        for (number, (reason, bytes, fds)) in cases.into_iter().enumerate() {
            let name = format!("hostile-{}-{number}", std::process::id());
            let socket = connect_raw(&listener, Some(&name));
            send_request(&mut listener, &socket, &bytes, &fds).await;
            let error = next_rejection(&mut events).await;
            assert!(error.to_string().contains(reason), "{reason}: {error}");
        }
        for (reason, bytes, from) in [
            ("out of bounds", many_lines, Some("hostile-lines")),
            ("other type", hello, Some("hostile-hello")),
            ("has no endpoint name", request(), None),
        ] {
            let socket = connect_raw(&listener, from);
            send_request(&mut listener, &socket, &bytes, &[&good]).await;
            let error = next_rejection(&mut events).await;
            assert!(error.to_string().contains(reason), "{reason}: {error}");
        }
        assert_still_accepts(&mut listener).await;
    });
}

/// Clients that send no request time out, and the oldest of too many is evicted. Requests of
/// clients that have closed do not stop later clients.
#[test]
fn silent_and_flooding_clients_do_not_stop_others() {
    run(async {
        let (mut listener, mut events) = listen().await;
        let silent: Vec<_> = (0..300).map(|_| connect_raw(&listener, None)).collect();
        assert_still_accepts(&mut listener).await;
        let mut last = [0; 20];
        // The oldest client gets the ready message, and then the end of the connection.
        assert_eq!(
            rustix::net::recv(&silent[0], &mut last, RecvFlags::empty()),
            Ok((20, 20))
        );
        assert_eq!(
            rustix::net::recv(&silent[0], &mut last, RecvFlags::empty())
                .unwrap()
                .1,
            0
        );
        for number in 0..200 {
            let name = format!("flood-{}-{number}", std::process::id());
            let socket = connect_raw(&listener, Some(&name));
            let fd = segment();
            let mut ready = [0; 20];
            // The passive endpoint queues some of the requests, and then accepts no connections.
            for _ in 0..100 {
                if rustix::net::recv(&socket, &mut ready, RecvFlags::DONTWAIT).is_ok() {
                    let request = encode_cm(1, REQUEST, 0, b"flood");
                    let _ = try_send_with_fds(&socket, &request, &[&fd]);
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        assert_still_accepts(&mut listener).await;
        drop(silent);
        // A client that sends no request for ten seconds is rejected.
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

/// Accepting a request whose client has closed fails.
#[test]
fn request_of_departed_client_fails_with_peer_gone() {
    run(async {
        let mut listener = PassiveEndpoint::bind("shm://").await.unwrap();
        let name = format!("departed-{}", std::process::id());
        let socket = connect_raw(&listener, Some(&name));
        let request = encode_cm(1, REQUEST, 0, b"bye");
        send_request(&mut listener, &socket, &request, &[&segment()]).await;
        let request = listener.accept().await.unwrap();
        assert_eq!(request.peer().name(), name);
        drop(socket);
        let refused = request.accept("").map(drop).unwrap_err();
        assert_eq!(
            refused,
            Error::PeerGone(format!("shm://{name}").parse().unwrap())
        );
    });
}

/// Malformed responses of a server: messages with their descriptors.
type Responses = Vec<(Vec<u8>, Vec<OwnedFd>)>;

#[test]
fn malformed_response_fails_the_connect() {
    run(async {
        let ready = || (encode_control(crate::hostile::READY_CODE, 0), vec![]);
        let accept = || encode_cm(1, ACCEPT, 3, b"welcome");
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let tcp = || OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let loose = || sealed_memfd(SEGMENT_LEN, SealFlags::empty());
        let too_much = vec![7; MAX_PRIVATE_DATA + 1];
        let cases: Vec<(&str, Responses)> = vec![
            ("not a shm control", vec![(b"rubbish".to_vec(), vec![])]),
            ("too long", vec![(vec![7; 4000], vec![])]),
            (
                "version 999",
                vec![(encode_cm(999, ACCEPT, 0, b""), vec![])],
            ),
            (
                "accept before the request",
                vec![(accept(), vec![segment(), null()])],
            ),
            ("second ready", vec![ready(), ready()]),
            ("segment and a socket", vec![ready(), (accept(), vec![])]),
            (
                "segment and a socket",
                vec![ready(), (accept(), vec![segment()])],
            ),
            (
                "segment and a socket",
                vec![ready(), (accept(), vec![segment(), segment()])],
            ),
            (
                "segment and a socket",
                vec![ready(), (accept(), vec![null(), tcp()])],
            ),
            (
                "not a Unix socket",
                vec![ready(), (accept(), vec![segment(), null()])],
            ),
            (
                "not a Unix socket",
                vec![ready(), (accept(), vec![segment(), tcp()])],
            ),
            (
                "exceeds 256",
                vec![ready(), (encode_cm(1, REJECT, 0, &too_much), vec![])],
            ),
            (
                "on a rejection",
                vec![ready(), (encode_cm(1, REJECT, 0, b""), vec![null()])],
            ),
            (
                "expected an answer",
                vec![ready(), (encode_cm(1, REQUEST, 0, b""), vec![])],
            ),
            (
                "passive endpoint",
                vec![ready(), (encode_control(101, 0), vec![])],
            ),
            (
                "not sealed",
                vec![ready(), (accept(), vec![loose(), unix_socket()])],
            ),
        ];
        for (number, (reason, responses)) in cases.into_iter().enumerate() {
            let name = format!("bad-server-{}-{number}", std::process::id());
            let listener = RawShmListener::listen(&name);
            let serving = std::thread::spawn(move || {
                let connection = rustix::net::accept(&listener.0).unwrap();
                for (bytes, fds) in &responses {
                    let fds: Vec<_> = fds.iter().collect();
                    // Descriptors are refused until the client has checked the credentials.
                    while try_send_with_fds(&connection, bytes, &fds)
                        == Err(rustix::io::Errno::PERM)
                    {}
                }
                (listener, connection)
            });
            let failed = ConnectedEndpoint::connect(format!("shm://{name}")).await;
            let failed = failed.map(drop).unwrap_err();
            assert!(failed.to_string().contains(reason), "{reason}: {failed}");
            drop(serving.join().unwrap());
        }
    });
}

/// Returns one end of a pair whose other end is closed.
fn unix_socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socketpair(family, kind, SocketFlags::empty(), None)
        .unwrap()
        .0
}

/// A server that accepts and then closes ends the established connection.
#[test]
fn server_close_after_accept_is_reported() {
    run(async {
        let name = format!("leaving-server-{}", std::process::id());
        let listener = RawShmListener::listen(&name);
        let serving = std::thread::spawn(move || {
            let connection = listener.accept_ready();
            let accept = encode_cm(1, ACCEPT, 3, b"welcome");
            let mut request = [0; 400];
            rustix::net::recv(&connection, &mut request, RecvFlags::empty()).unwrap();
            try_send_with_fds(&connection, &accept, &[&segment(), &unix_socket()]).unwrap();
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
