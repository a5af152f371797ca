//! Limits of inbound connections: what one address can make an endpoint hold.

use std::net::SocketAddr;

use fabric_async::{Endpoint, EpType, EventKind, Hints, SocketOptions, discover};
use fabric_core::tcp::{CmKind, CmMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::claimed_addresses::{accept_request, listen_on_any_port, read_request, reply_accept};
use super::hostile::{encode_header, encode_request, read_until_closed};
use crate::leak_check::{ResourceUsage, run_in_own_process, wait_until};
use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Connects from this address, without a request.
async fn connect_from(from: SocketAddr, ep: &Endpoint) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.ip(), 0)).unwrap();
    socket
        .connect(ep.name().socket_addr().unwrap())
        .await
        .unwrap()
}

/// Requests a connection as the endpoint at this port. Returns whether the request was accepted.
async fn request(socket: &mut TcpStream, port: u16) -> bool {
    socket.write_all(&encode_request(port, 7)).await.unwrap();
    let mut response = [0; 32];
    socket.read_exact(&mut response).await.unwrap();
    let kind = response[1];
    // The private data, if there are any.
    let len = u16::from_be_bytes([response[2], response[3]]);
    let mut data = vec![0; len.into()];
    socket.read_exact(&mut data).await.unwrap();
    let message = [&response[..], &data].concat();
    let (control, _) = CmMessage::decode(&message).unwrap().unwrap();
    assert_eq!(control.kind == CmKind::Accept, kind == 1);
    control.kind == CmKind::Accept
}

/// Beyond the limits, connections are refused and counted, and leave nothing behind. Peers that the
/// program has inserted are accepted and served.
#[test]
fn connections_beyond_the_limit_are_refused() {
    run_in_own_process(
        "tcp::inbound_limits::connections_beyond_the_limit_are_refused",
        || {
            run(async {
                let local = SocketAddr::from(([127, 0, 0, 1], 0));
                for (options, limit) in [
                    (SocketOptions::new().max_inbound(8), 4),
                    (SocketOptions::new().max_inbound_per_source(5), 5),
                    (
                        SocketOptions::new()
                            .max_inbound(3)
                            .max_inbound_per_source(9),
                        3,
                    ),
                ] {
                    let ep = Endpoint::options().socket_options(options);
                    let ep = ep.bind("tcp://").await.unwrap();
                    let mut events = ep.take_events().unwrap();
                    // A free port, on an address that only this process uses.
                    let [.., high, low] = std::process::id().to_be_bytes();
                    let any_port = format!("tcp://127.{high}.{low}.4:0");
                    let inserted = Endpoint::bind(&any_port).await.unwrap().name().clone();
                    let peer = ep.address_vector().insert(&inserted).unwrap();
                    // Starts the threads of the endpoint.
                    assert!(request(&mut connect_from(local, &ep).await, 9999).await);
                    while ep.stats().peers > 0 {
                        ep.domain().progress();
                        tokio::task::yield_now().await;
                    }
                    let before = ResourceUsage::wait_stable().await;
                    let mut sockets = Vec::new();
                    for number in 0..100u16 {
                        let mut socket = connect_from(local, &ep).await;
                        let is_accepted = request(&mut socket, 10_000 + number).await;
                        assert_eq!(is_accepted, usize::from(number) < limit, "{number}");
                        sockets.push(socket);
                    }
                    assert_eq!(ep.stats().peers, limit);
                    assert_eq!(ep.stats().inbound_refused, 100 - limit as u64);
                    let refusals =
                        std::iter::from_fn(|| events.try_read()).map(|event| match event.kind {
                            EventKind::InboundRefused { error, count }
                                if error.to_string().contains("inbound connections") =>
                            {
                                count
                            }
                            _ => 0,
                        });
                    assert_eq!(refusals.sum::<u64>(), 100 - limit as u64);

                    let echo = TestPeer::start("tcp echo", &format!("{inserted} {}", ep.name()));
                    let ready = ep.recv().tag(3).await.unwrap();
                    assert_eq!(ready.source(), Ok(peer));
                    for round in 0..20u8 {
                        ep.send(peer, vec![round; 50]).await.unwrap();
                        assert_eq!(ep.recv().tag(4).await.unwrap()[..], [round; 50]);
                    }
                    drop(echo);

                    // A connection that ends makes room.
                    drop(sockets);
                    while ep.stats().peers > 0 {
                        ep.domain().progress();
                        tokio::task::yield_now().await;
                    }
                    let after = ResourceUsage::wait_stable().await;
                    // The first refusal starts the thread that closes refused connections.
                    assert_eq!(after.descriptors, before.descriptors);
                    let mut again = connect_from(local, &ep).await;
                    assert!(request(&mut again, 9).await);
                    let message = [&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat();
                    again.write_all(&message).await.unwrap();
                    assert_eq!(ep.recv().await.unwrap()[..], *b"x");
                }
            });
        },
    );
}

/// Peers that close while their messages wait for room make way for other peers. Peers that are
/// still connected do not.
#[test]
fn closed_connections_with_held_messages_make_room() {
    run(async {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = SocketOptions::new().max_inbound_per_source(4);
        let ep = Endpoint::options().socket_options(options);
        let ep = ep.bind("tcp://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let mut sockets = Vec::new();
        for number in 0..4u16 {
            let mut socket = connect_from(local, &ep).await;
            assert!(request(&mut socket, 10_000 + number).await);
            // Longer than the share of a peer, so that the endpoint holds it.
            let header = encode_header(0, 0, 0, 16, 1 << 30);
            let beginning = [&header[..], &[0; 5000]].concat();
            socket.write_all(&beginning).await.unwrap();
            sockets.push(socket);
        }
        let mut other = connect_from(local, &ep).await;
        assert!(!request(&mut other, 20_000).await);
        sockets.truncate(1);
        let mut accepted = Vec::new();
        for number in 1..10u16 {
            let mut socket = connect_from(local, &ep).await;
            let is_accepted = request(&mut socket, 20_000 + number).await;
            assert_eq!(is_accepted, number <= 3, "{number}");
            accepted.push(socket);
        }
        assert_eq!((ep.stats().peers, ep.stats().discarded), (4, 3));
        let discarded = std::iter::from_fn(|| events.try_read()).filter(|event| {
            matches!(
                &event.kind,
                EventKind::MessagesDiscarded {
                    peer: Some(_),
                    peers: 1,
                    messages: 1,
                    ..
                }
            )
        });
        assert_eq!(discarded.count(), 3);
    });
}

/// A peer whose connection is verified keeps its place within the limits: the connection that the
/// endpoint makes replaces the counted one.
#[test]
fn verified_connections_count_towards_the_limit() {
    run(async {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = SocketOptions::new().max_inbound_per_source(4);
        let ep = Endpoint::options().socket_options(options);
        let ep = ep.bind("tcp://").await.unwrap();
        let mut sockets = Vec::new();
        for number in 0..4 {
            let (listener, port) = listen_on_any_port().await;
            let mut first = connect_from(local, &ep).await;
            assert!(request(&mut first, port).await, "{number}");
            let mut claim = connect_from(local, &ep).await;
            assert!(!request(&mut claim, port).await, "{number}");
            sockets.push(accept_request(&listener, 7).await);
            assert_eq!(read_until_closed(first).await, []);
        }
        let mut refused = connect_from(local, &ep).await;
        assert!(!request(&mut refused, 9).await);
        assert_eq!((ep.stats().peers, ep.stats().inbound_refused), (4, 1));
        // A connection that ends makes room.
        drop(sockets);
        wait_until(&ep, |stats| stats.peers == 0).await;
        let mut again = connect_from(local, &ep).await;
        assert!(request(&mut again, 9).await);
        assert_eq!(ep.stats().peers, 1);
    });
}

/// A connect that verifies a connection counts also if the connection has ended before the peer
/// accepts the connect.
#[test]
fn verifications_of_ended_connections_count_towards_the_limit() {
    run(async {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = SocketOptions::new().max_inbound_per_source(2);
        let ep = Endpoint::options().socket_options(options);
        let ep = ep.bind("tcp://").await.unwrap();
        let mut sockets = Vec::new();
        for number in 0..3 {
            let (listener, port) = listen_on_any_port().await;
            let mut first = connect_from(local, &ep).await;
            assert_eq!(request(&mut first, port).await, number < 2, "{number}");
            if number == 2 {
                break;
            }
            let mut claim = connect_from(local, &ep).await;
            assert!(!request(&mut claim, port).await, "{number}");
            let (mut verifying, connect) = read_request(&listener).await;
            drop(first);
            wait_until(&ep, |stats| stats.peers == number).await;
            reply_accept(&mut verifying, &connect, 8).await;
            wait_until(&ep, |stats| stats.peers == number + 1).await;
            sockets.push(verifying);
        }
        assert_eq!(ep.stats().inbound_refused, 1);
        // Another connection takes the place of the one that has ended.
        drop(sockets.pop());
        wait_until(&ep, |stats| stats.peers == 1).await;
        let (listener, port) = listen_on_any_port().await;
        let mut first = connect_from(local, &ep).await;
        assert!(request(&mut first, port).await);
        let mut claim = connect_from(local, &ep).await;
        assert!(!request(&mut claim, port).await);
        let (mut verifying, connect) = read_request(&listener).await;
        drop(first);
        wait_until(&ep, |stats| stats.peers == 1).await;
        let mut other = connect_from(local, &ep).await;
        assert!(request(&mut other, 9).await);
        reply_accept(&mut verifying, &connect, 8).await;
        assert_eq!(read_until_closed(verifying).await, []);
        assert_eq!((ep.stats().peers, ep.stats().inbound_refused), (2, 2));
    });
}

/// A request that replaces a connect which verifies an ended connection counts as well.
#[test]
fn requests_that_replace_a_verification_count_towards_the_limit() {
    run(async {
        // The endpoint is at 127.0.0.1: a request from a greater address wins.
        let from = SocketAddr::from(([127, 0, 0, 2], 0));
        let options = SocketOptions::new().max_inbound_per_source(2);
        let ep = Endpoint::options().socket_options(options);
        let ep = ep.bind("tcp://").await.unwrap();
        let mut sockets = Vec::new();
        for number in 0..3 {
            let listener = TcpListener::bind(from).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut first = connect_from(from, &ep).await;
            assert_eq!(request(&mut first, port).await, number < 2, "{number}");
            if number == 2 {
                break;
            }
            let mut claim = connect_from(from, &ep).await;
            assert!(!request(&mut claim, port).await, "{number}");
            let (_verifying, _) = read_request(&listener).await;
            drop(first);
            wait_until(&ep, |stats| stats.peers == number).await;
            let mut replacing = connect_from(from, &ep).await;
            assert!(request(&mut replacing, port).await, "{number}");
            sockets.push(replacing);
        }
        assert_eq!((ep.stats().peers, ep.stats().inbound_refused), (2, 1));
    });
}

/// A reply to a peer that has closed makes the endpoint connect to the address that the peer has
/// claimed. That connection counts as well.
#[test]
fn connections_of_replies_to_closed_peers_count_towards_the_limit() {
    run(async {
        let options = SocketOptions::new().max_inbound_per_source(2);
        let ep = Endpoint::options().socket_options(options);
        let ep = ep.bind("tcp://").await.unwrap();
        let mut sockets = Vec::new();
        for number in 0..2 {
            let (listener, port) = listen_on_any_port().await;
            let mut closed = connect_from(ep.name().socket_addr().unwrap(), &ep).await;
            assert!(request(&mut closed, port).await, "{number}");
            // The second message keeps the handle of the peer valid.
            let message = [&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat();
            closed.write_all(&message.repeat(2)).await.unwrap();
            drop(closed);
            wait_until(&ep, |stats| stats.peers == number && stats.unexpected == 2).await;
            let source = ep.recv().await.unwrap().source().unwrap();
            let reply = ep.send(source, "reply").start().unwrap();
            let (accepted, _) = tokio::join!(accept_request(&listener, 8), reply);
            sockets.push(accepted);
            ep.recv().await.unwrap();
        }
        let mut refused = connect_from(ep.name().socket_addr().unwrap(), &ep).await;
        assert!(!request(&mut refused, 9).await);
        assert_eq!((ep.stats().peers, ep.stats().inbound_refused), (2, 1));
    });
}

/// Peers that do not take what the endpoint sends, and then violate the protocol, hold few
/// descriptors of the process.
#[test]
fn closed_connections_with_unsent_bytes_hold_few_descriptors() {
    const LIMIT: usize = 8;
    run_in_own_process(
        "tcp::inbound_limits::closed_connections_with_unsent_bytes_hold_few_descriptors",
        || {
            run(async {
                let options = SocketOptions::new().max_inbound_per_source(LIMIT);
                let options = options.send_buffer(4096);
                let ep = Endpoint::options().socket_options(options);
                let ep = ep.bind("tcp://").await.unwrap();
                let to = ep.name().socket_addr().unwrap();
                let mut sockets = Vec::new();
                let before = ResourceUsage::wait_stable().await.descriptors;
                let mut most = 0;
                while sockets.len() < 100 {
                    let socket = TcpSocket::new_v4().unwrap();
                    socket.set_recv_buffer_size(4096).unwrap();
                    let mut socket = socket.connect(to).await.unwrap();
                    let is_accepted = request(&mut socket, 9).await;
                    if is_accepted {
                        let message = [&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat();
                        socket.write_all(&message).await.unwrap();
                        let source = ep.recv().await.unwrap().source().unwrap();
                        let sends = (0..200).map(|_| ep.send(source, vec![1; 8192]).start().ok());
                        let sends: Vec<_> = sends.collect();
                        socket.write_all(&[255; 16]).await.unwrap();
                        wait_until(&ep, |stats| stats.peers == 0).await;
                        drop(sends);
                    }
                    sockets.push(socket);
                    let held = ResourceUsage::current().descriptors - before - sockets.len();
                    most = most.max(held);
                }
                // Up to 16 of the others are rejected requests, and some are being closed.
                assert!(most < LIMIT + 16 + 20, "{most}");
            });
        },
    );
}

/// Requests that are rejected hold few descriptors of the process, although their peers do not
/// close.
#[test]
fn rejected_requests_hold_few_descriptors() {
    const REQUESTS: u16 = 200;
    run_in_own_process(
        "tcp::inbound_limits::rejected_requests_hold_few_descriptors",
        || {
            run(async {
                let ep = Endpoint::bind("tcp://").await.unwrap();
                let to = ep.name().socket_addr().unwrap();
                let mut sockets = Vec::new();
                let mut before = None;
                for _ in 0..REQUESTS {
                    let mut socket = connect_from(to, &ep).await;
                    // The endpoint's own address.
                    assert!(!request(&mut socket, to.port()).await);
                    sockets.push(socket);
                    before.get_or_insert_with(|| ResourceUsage::current().descriptors);
                    // Each request has a descriptor of this test, and up to 16 of those in the
                    // list have one of the endpoint, or are being closed.
                    let more = ResourceUsage::current().descriptors - before.unwrap();
                    assert!(more < sockets.len() + 40, "{more} of {}", sockets.len());
                }
            });
        },
    );
}

/// A silent connection is evicted by connections from its own address, and not by those from
/// another one.
#[test]
fn pending_handshakes_of_one_address_do_not_evict_others() {
    let found = discover(&Hints::new().provider("tcp").ep_type(EpType::Rdm)).unwrap();
    let name = found
        .into_iter()
        .filter_map(|info| info.src_addr)
        .find(|name| {
            let ip = name.socket_addr().unwrap().ip();
            ip.is_ipv4() && !ip.is_loopback()
        });
    let Some(name) = name else {
        let reason = "no IPv4 network besides loopback";
        return skip(Facility::Capability, reason.to_string());
    };
    run(async {
        let ep = Endpoint::bind(&name).await.unwrap();
        let mut honest = connect_from(name.socket_addr().unwrap(), &ep).await;
        let other_source = SocketAddr::from(([127, 0, 0, 2], 0));
        let mut attackers = Vec::new();
        for _ in 0..300 {
            attackers.push(connect_from(other_source, &ep).await);
        }
        // The endpoint has evicted all but the last 64.
        for attacker in attackers.drain(..300 - 64) {
            assert_eq!(read_until_closed(attacker).await, []);
        }
        assert!(request(&mut honest, 9).await);
        let message = [&encode_header(0, 0, 0, 16, 22)[..], b"honest"].concat();
        honest.write_all(&message).await.unwrap();
        assert_eq!(ep.recv().await.unwrap()[..], *b"honest");
    });
}
