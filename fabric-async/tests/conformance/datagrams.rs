//! Datagram endpoints (`FI_EP_DGRAM`): connectionless and unreliable.

use std::net::UdpSocket;

use bytes::Bytes;
use fabric_async::buf::{Gather, Memfd, Scatter};
use fabric_async::{
    Access, CancelOutcome, Caps, Endpoint, EpType, Error, FiAddr, Protocol, Scheme,
};
use futures_util::StreamExt;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with};
use crate::payload::{assert_bytes, message_number, numbered_message, pattern, poll_once};
use crate::setup::Setup;

/// Makes progress until a condition holds. Within one machine every datagram arrives if the
/// receiver reads in time.
async fn progress_until(
    fixture: &EndpointFixture,
    mut holds: impl FnMut(&EndpointFixture) -> bool,
) {
    while !holds(fixture) {
        fixture.domain.progress();
        tokio::task::yield_now().await;
    }
}

fn unexpected_count(fixture: &EndpointFixture) -> usize {
    fixture.ep.stats().unexpected
}

pub(crate) async fn every_length_arrives_whole(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let limit = a.info.ep.max_msg_size;
    for len in (0..70)
        .chain(70..limit)
        .filter(|len| *len < 70 || len % 97 == 0)
        .chain([limit - 1, limit])
    {
        let message = pattern(len, len).to_vec();
        let at = message.as_ptr();
        let (sent, got) = tokio::join!(a.ep.send(to_b, message), b.ep.recv());
        let (sent, got) = (sent.unwrap(), got.unwrap());
        assert_eq!(
            (sent.len(), sent.buf.as_ptr()),
            (len, at),
            "the buffer is returned unchanged"
        );
        assert_bytes(&got, pattern(len, len));
        assert_eq!((got.tag(), got.data()), (None, None));
        // The datagram is unexpected.
        a.ep.send(to_b, pattern(len, 1)).inject().unwrap();
        progress_until(&b, |b| unexpected_count(b) == 1).await;
        let got = b.ep.recv_into(Vec::with_capacity(len)).await.unwrap();
        assert_bytes(&got, pattern(len, 1));
        assert_eq!(unexpected_count(&b), 0);
    }
    assert_eq!(
        (
            a.ep.stats().failed,
            b.ep.stats().failed,
            b.ep.stats().dropped
        ),
        (0, 0, 0)
    );
}

pub(crate) async fn vectors_and_loans_are_sent_as_datagrams(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (first, second) in [(0, 0), (1, 0), (0, 7), (700, 772)] {
        let gather = Gather::from((
            pattern(first, 1).to_vec(),
            Bytes::from_static(pattern(second, 2)),
        ));
        let capacity = Scatter::from([
            vec![0; 5].into_boxed_slice(),
            vec![0; 2000].into_boxed_slice(),
        ]);
        let (sent, got) = tokio::join!(a.ep.send(to_b, gather), b.ep.recv_into(capacity));
        assert_eq!(sent.unwrap().into_buf().len(), first + second);
        let got = got.unwrap().into_buf();
        let bytes: Vec<u8> = got.pieces().flatten().copied().collect();
        assert_bytes(&bytes, &[pattern(first, 1), pattern(second, 2)].concat());
    }
    let mut loan = a.ep.domain().try_loan(1000).unwrap();
    loan.copy_from_slice(pattern(1000, 3));
    let (lent, got) = tokio::join!(a.ep.send(to_b, loan), b.ep.recv());
    lent.unwrap();
    assert_bytes(&got.unwrap(), pattern(1000, 3));
}

pub(crate) async fn send_beyond_max_msg_size_is_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let limit = a.info.ep.max_msg_size;
    assert_eq!(a.info.tx.inject_size, limit);
    let long = vec![7; limit + 1];
    let failed = a.ep.send(to_b, long.clone()).await.unwrap_err();
    assert_eq!(
        failed.error,
        Error::TooLong {
            what: "message",
            len: limit + 1,
            limit
        }
    );
    assert_eq!(failed.buf, long, "the buffer comes back");
    assert!(
        matches!(a.ep.send(to_b, long.clone()).post().map(drop), Err(f) if f.error.errno() == 90)
    );
    assert!(matches!(
        a.ep.send(to_b, &long).inject(),
        Err(Error::TooLong { .. })
    ));
    let gather = Gather::from([vec![1; limit], vec![2]]);
    assert!(matches!(a.ep.send(to_b, gather).await.map(drop), Err(f) if f.error.errno() == 90));
    a.ep.send(to_b, "no long message was sent").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"no long message was sent");
}

/// Datagrams longer than the buffer, than the receiver's `max_msg_size`, and than the provider
/// sends.
pub(crate) async fn long_datagrams_are_truncated(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let limit = a.info.ep.max_msg_size;
    let small = setup
        .open_endpoint_with(EndpointConfig {
            max_msg_size: Some(100),
            ..EndpointConfig::default()
        })
        .await;
    let to_small = a.add_peer(&small).await;
    for early in [true, false] {
        for (len, capacity) in [(1, 0), (100, 10), (limit, limit - 1), (limit, 0)] {
            let buf = vec![0xee; capacity].into_boxed_slice();
            let early = early.then(|| b.ep.recv_into(buf.clone()).start().unwrap());
            a.ep.send(to_b, pattern(len, 1)).await.unwrap();
            let failed = match early {
                Some(early) => early.await.unwrap_err(),
                None => {
                    progress_until(&b, |b| unexpected_count(b) == 1).await;
                    b.ep.recv_into(buf).await.unwrap_err()
                }
            };
            assert_eq!(
                failed.error,
                Error::Truncated {
                    len: capacity,
                    lost: len - capacity
                }
            );
            assert_bytes(&failed.buf, &pattern(len, 1)[..capacity]);
        }
        // Two bytes more than the receiver's `max_msg_size`, received into a posted and into a
        // pooled buffer.
        let early = early.then(|| small.ep.recv().start().unwrap());
        a.ep.send(to_small, pattern(102, 2)).await.unwrap();
        let failed = match early {
            Some(early) => early.await.unwrap_err(),
            None => {
                progress_until(&small, |small| unexpected_count(small) == 1).await;
                small.ep.recv().await.unwrap_err()
            }
        };
        assert_eq!(failed.error, Error::Truncated { len: 100, lost: 2 });
        assert_bytes(&failed.buf, pattern(100, 2));
        // A datagram of a plain UDP socket, of the maximum length.
        let plain_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        plain_socket
            .send_to(pattern(60_000, 3), b.ep.name().name())
            .unwrap();
        progress_until(&b, |b| unexpected_count(b) == 1).await;
        let failed = b.ep.recv().await.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Truncated {
                len: limit,
                lost: 60_000 - limit
            }
        );
        assert_bytes(&failed.buf, pattern(limit, 3));
    }
}

pub(crate) async fn datagram_sources_have_stable_addresses(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let (kept, to_b_of_c) = (b.av.insert(c.ep.name()).unwrap(), c.add_peer(&b).await);
    a.ep.send(to_b, "from a peer").await.unwrap();
    let got = b.ep.recv().await.unwrap();
    let auto_addr = got.source().unwrap();
    assert_eq!(b.av.lookup(auto_addr).as_ref(), Ok(a.ep.name()));
    b.ep.send(auto_addr, "and back").await.unwrap();
    let back = a.ep.recv().await.unwrap();
    assert_eq!((&back[..], back.source()), (&b"and back"[..], Ok(to_b)));
    for _ in 0..3 {
        c.ep.send(to_b_of_c, "from an inserted peer").await.unwrap();
        assert_eq!(b.ep.recv().await.unwrap().source(), Ok(kept));
        a.ep.send(to_b, "again").await.unwrap();
        assert_eq!(
            b.ep.recv().await.unwrap().source(),
            Ok(auto_addr),
            "an auto-inserted peer keeps its handle"
        );
    }
    b.av.remove(kept).unwrap();
    assert_eq!(
        b.ep.send(kept, "x").await.map(drop).unwrap_err().error,
        Error::StaleAddress(kept)
    );
    c.ep.send(to_b_of_c, "of unknown source").await.unwrap();
    assert_eq!(
        b.ep.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
}

pub(crate) async fn source_is_unknown_until_av_insert(setup: Setup) {
    let no_auto_insert = EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), no_auto_insert).await;
    a.ep.send(to_b, "one").await.unwrap();
    assert_eq!(
        b.ep.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
    for text in ["two", "three"] {
        a.ep.send(to_b, text).await.unwrap();
    }
    progress_until(&b, |b| unexpected_count(b) == 2).await;
    let dropped = b.ep.recv().start().unwrap();
    let from_a = b.av.insert(a.ep.name()).unwrap();
    drop(dropped);
    for text in ["two", "three"] {
        let got = b.ep.recv().await.unwrap();
        assert_eq!(
            (&got[..], got.source()),
            (text.as_bytes(), Ok(from_a)),
            "{text}: source after the insert"
        );
    }
    assert_eq!(b.av.peers().len(), 1);
}

/// A datagram leaves with its post and holds no transmit credit after it, whether the receiver
/// reads or not: more datagrams than credits are posted in a row, and each has completed.
pub(crate) async fn posted_datagrams_hold_no_credit(setup: Setup) {
    const CREDITS: usize = 4;
    const SENDS: usize = 50 * CREDITS;
    let config = EndpointConfig {
        tx_size: Some(CREDITS),
        ..EndpointConfig::default()
    };
    let (mut a, _b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    for context in 0..SENDS as u64 {
        let posted = a.ep.send(to_b, vec![7; 1000]).context(context).post();
        posted.unwrap_or_else(|failed| panic!("send {context}: {failed}"));
    }
    let stats = a.ep.stats();
    assert_eq!((stats.sent.count, stats.out_of_credit), (SENDS as u64, 0));
    let mut done = Vec::new();
    assert_eq!(a.cq.try_read_batch(&mut done, SENDS), SENDS);
    for (entry, context) in done.iter().zip(0..) {
        assert_eq!((entry.context, entry.error.as_deref()), (context, None));
    }
}

pub(crate) async fn send_to_closed_port_succeeds(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let closed = setup.open_endpoint().await;
    let absent = a.add_peer(&closed).await;
    drop(closed);
    assert_eq!(
        a.ep.add_peer(&a.av.lookup(absent).unwrap()).await,
        Ok(absent),
        "an insert sends nothing"
    );
    for number in 0..20 {
        a.ep.send(absent, "to a closed port").await.unwrap();
        a.ep.send(absent, b"injected").inject().unwrap();
        // An ICMP error for a closed port affects no datagram to another peer.
        a.ep.send(to_b, numbered_message(number, 8)).await.unwrap();
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
    assert_eq!((a.ep.stats().failed, a.eq.try_read()), (0, None));
}

pub(crate) async fn unexpected_datagrams_over_budget_are_dropped_and_counted(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let limit = a.info.ep.max_msg_size;
    let mut sent = 0;
    while b.ep.stats().dropped < 10 {
        a.ep.send(to_b, numbered_message(sent, limit))
            .await
            .unwrap();
        sent += 1;
        progress_until(&b, |b| {
            unexpected_count(b) as u64 + b.ep.stats().dropped == sent
        })
        .await;
        assert!(sent < 1 << 16, "the budget is never exhausted");
    }
    let stats = b.ep.stats();
    assert!(
        stats.unexpected_bytes <= 4 << 20 && stats.unexpected_bytes > 3 << 20,
        "{stats:?}"
    );
    for number in 0..stats.unexpected as u64 {
        assert_eq!(
            message_number(&b.ep.recv().await.unwrap()),
            number,
            "the oldest datagrams are kept"
        );
    }
    let stats = b.ep.stats();
    assert_eq!(
        (stats.unexpected, stats.unexpected_bytes, stats.dropped),
        (0, 0, 10)
    );
    let (got, late) = tokio::join!(b.ep.recv(), a.ep.send(to_b, numbered_message(sent, limit)));
    late.unwrap();
    assert_eq!(message_number(&got.unwrap()), sent);
}

pub(crate) async fn dropped_receives_requeue_messages(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut early = b.ep.recv().start().unwrap();
    assert!(poll_once(&mut early).await.is_pending());
    for number in 0..4 {
        a.ep.send(to_b, numbered_message(number, 8)).await.unwrap();
    }
    // Both receives have matched a message when they are dropped.
    progress_until(&b, |b| unexpected_count(b) == 3).await;
    let late = b.ep.recv().start().unwrap();
    drop(early);
    drop(late);
    assert_eq!(unexpected_count(&b), 4);
    for number in 0..4 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
    let unmatched = b.ep.recv_into(vec![1, 2, 3]).start().unwrap();
    let CancelOutcome::Canceled(buf) = unmatched.cancel().await else {
        panic!("a receive without a message completed")
    };
    assert_eq!(buf, [1, 2, 3]);
}

pub(crate) async fn inject_all_and_post_all_batches_arrive(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let to_c = a.add_peer(&c).await;
    for count in [1, 31, 32, 33, 100] {
        let messages: Vec<Vec<u8>> = (0..count)
            .map(|number| numbered_message(number, 8 + number as usize))
            .collect();
        let (injected, stopped) =
            a.ep.inject_all(to_b, messages.iter().map(|message| &message[..]));
        assert_eq!((injected as u64, stopped), (count, Ok(())));
        progress_until(&b, |b| unexpected_count(b) as u64 == count).await;
        // One datagram after the batch, to another peer.
        a.ep.send(to_c, "not of the batch").await.unwrap();
        let posts = messages.iter().cloned().enumerate();
        let posts = posts.map(|(at, message)| a.ep.send(to_b, message).context(at as u64));
        a.ep.post_all(posts).unwrap();
        progress_until(&b, |b| unexpected_count(b) as u64 == 2 * count).await;
        for round in 0..2 {
            for number in 0..count {
                assert_eq!(
                    message_number(&b.ep.recv().await.unwrap()),
                    number,
                    "round {round} of {count}"
                );
            }
        }
        let mut ended = Vec::new();
        while ended.len() < messages.len() {
            a.cq.read_batch(&mut ended, messages.len()).await;
        }
        assert!(
            ended
                .iter()
                .enumerate()
                .all(|(at, end)| end.context == at as u64 && end.error.is_none())
        );
        assert_eq!(&c.ep.recv().await.unwrap()[..], b"not of the batch");
    }
    assert_eq!((b.ep.stats().dropped, a.ep.stats().failed), (0, 0));
}

pub(crate) async fn probes_find_unexpected_datagrams(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert_eq!(b.ep.probe().try_probe().unwrap(), None);
    let (seen, sent) = tokio::join!(b.ep.probe(), a.ep.send(to_b, "hello"));
    sent.unwrap();
    assert_eq!(seen.unwrap().len, 5);
    a.ep.send(to_b, "another").await.unwrap();
    let claimed = b.ep.probe().claim().await.unwrap();
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"another",
        "the first datagram is claimed"
    );
    assert_eq!(
        &claimed
            .recv_into(Vec::with_capacity(5))
            .await
            .unwrap()
            .into_buf()[..],
        b"hello"
    );
}

pub(crate) async fn unsupported_caps_and_ops_are_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let info = a.ep.info();
    assert_eq!(
        (info.ep.ep_type, info.ep.protocol),
        (EpType::Dgram, Some(Protocol::Udp))
    );
    assert!(info.tx.msg_order.is_empty() && info.rx.msg_order.is_empty());
    for missing in [
        Caps::TAGGED,
        Caps::RMA,
        Caps::ATOMIC,
        Caps::DIRECTED_RECV,
        Caps::FENCE,
        Caps::MULTI_RECV,
    ] {
        assert!(!setup.offers(Caps::MSG | missing).await, "{missing:?}");
    }
    let refused = |error: Error| assert!(matches!(error, Error::NotSupported(_)), "{error}");
    refused(a.ep.send(to_b, "x").tag(1).await.unwrap_err().error);
    refused(a.ep.send(to_b, "x").data(1).await.unwrap_err().error);
    refused(
        a.ep.send(to_b, "x")
            .data(1)
            .post()
            .map(drop)
            .unwrap_err()
            .error,
    );
    refused(a.ep.send(to_b, b"x").data(1).inject().unwrap_err());
    refused(b.ep.recv().tag(1).await.unwrap_err().error);
    refused(b.ep.recv().from(to_b).await.unwrap_err().error);
    refused(a.ep.send(to_b, "x").fence().await.unwrap_err().error);
    refused(
        a.ep.send(to_b, "x")
            .match_complete()
            .await
            .unwrap_err()
            .error,
    );
    refused(
        a.ep.send(to_b, "x")
            .delivery_complete()
            .post()
            .map(drop)
            .unwrap_err()
            .error,
    );
    assert_regions_are_refused(&a).await;
    a.ep.send(to_b, "no refused message was sent")
        .await
        .unwrap();
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"no refused message was sent"
    );
}

/// Checks that every call that registers memory is refused, because the provider has no regions.
async fn assert_regions_are_refused(fixture: &EndpointFixture) {
    let (domain, access) = (&fixture.domain, Access::REMOTE_READ);
    let memory = Memfd::create(4096).unwrap();
    let in_place = domain.register(vec![0; 8], access, None);
    let local = domain.register_local(vec![0; 8], Access::SEND);
    assert_eq!(
        local.unwrap().into_inner(),
        [0; 8],
        "a buffer like any other"
    );
    for refused in [
        domain.alloc(8, access).map(drop).unwrap_err(),
        domain
            .alloc_from(vec![0; 8], access, None)
            .unwrap_err()
            .error,
        in_place.map(drop).unwrap_err().error,
        domain.register_memfd(&memory, access, None).unwrap_err(),
        domain.alloc_async(8, access).await.map(drop).unwrap_err(),
    ] {
        let expected = "not supported: memory regions over udp (FI_RMA); use shm or tcp";
        assert_eq!(refused.to_string(), expected);
    }
}

pub(crate) async fn bind_opens_a_working_endpoint(setup: Setup) {
    for (server, client) in [("127.0.0.1:0", ""), ("[::1]:0", "[::1]:0")] {
        let bind = async |name: &str| {
            let options = Endpoint::options()
                .progress(setup.progress)
                .wait_policy(setup.wait_policy);
            options
                .bind(format!("{}://{name}", setup.provider))
                .await
                .unwrap()
        };
        let (server, client) = (bind(server).await, bind(client).await);
        let socket = server.name().socket_addr().unwrap();
        assert!(socket.ip().is_loopback() && socket.port() != 0);
        let peer = client.add_peer(server.name()).await.unwrap();
        client.send(peer, "hello, fabric").await.unwrap();
        let request = server.recv().await.unwrap();
        server
            .send(request.source().unwrap(), request.into_bytes())
            .await
            .unwrap();
        assert_eq!(&client.recv().await.unwrap()[..], b"hello, fabric");
    }
}

pub(crate) async fn av_accepts_and_checks_socket_addresses(setup: Setup) {
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let port = b.ep.name().socket_addr().unwrap().port();
    let to_b =
        a.av.insert(format!("fi_sockaddr_in://127.0.0.1:{port}"))
            .unwrap();
    assert_eq!(a.av.lookup(to_b).as_ref(), Ok(b.ep.name()));
    a.ep.send(to_b, "hello").await.unwrap();
    b.ep.recv().await.unwrap();
    let wrong = a.av.insert("tcp://127.0.0.1:5000").unwrap_err();
    assert!(matches!(wrong, Error::WrongScheme { .. }), "{wrong}");
    // A socket of one address family reaches no address of another.
    let other: FiAddr = a.av.insert("fi_sockaddr_in6://[::1]:5000").unwrap();
    assert_eq!(a.av.lookup(other).unwrap().scheme(), Scheme::Udp);
    for _ in 0..2 {
        assert!(matches!(
            a.ep.send(other, "x").await.unwrap_err().error,
            Error::Invalid { .. }
        ));
    }
    // The kernel refuses to send to the broadcast address without SO_BROADCAST.
    let broadcast = a.av.insert("udp://255.255.255.255:5000").unwrap();
    assert!(matches!(
        a.ep.send(broadcast, "x").await.unwrap_err().error,
        Error::Os { call: "sendto", .. }
    ));
    // The refusal of a datagram in the middle of a batch is an event.
    let mut a = a;
    assert_eq!(
        a.ep.inject_all(broadcast, [&b"one"[..], b"two"]),
        (2, Ok(()))
    );
    for _ in 0..2 {
        let event = a.eq.read().await;
        let fabric_async::EventKind::OperationFailed { peer, .. } = event.kind else {
            panic!("{event:?}");
        };
        assert_eq!(peer, Some(broadcast));
    }
}

pub(crate) async fn close_cancels_posted_receives(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let started = b.ep.recv().start().unwrap();
    b.ep.recv().context(5).post().unwrap();
    a.ep.send(to_b, "one").await.unwrap();
    let got = started.await.unwrap();
    let started = b.ep.recv().start().unwrap();
    b.ep.close().unwrap();
    assert_eq!(started.await.unwrap_err().error, Error::Canceled);
    let end = b.cq.next().await.unwrap();
    assert_eq!(
        (end.context, end.error.as_deref()),
        (5, Some(&Error::Canceled))
    );
    assert_eq!(&got[..], b"one");
    a.ep.send(to_b, "not received").await.unwrap();
}
