//! Connection management of `FI_EP_MSG` endpoints: requests, responses, rejections, and peers that
//! send nothing or malformed messages.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::time::Duration;

use fabric_async::{DownReason, Error, EventKind, MAX_PRIVATE_DATA};

use crate::connected_pair::{MsgDomainFixture, connected_pair_with_listener};
use crate::payload::{pattern, poll_once};
use crate::raw_peer::{
    connect_raw, connect_request, connect_response, control_message, raw_listener, read_to_end,
    with_vendor_extension,
};
use crate::setup::Setup;

pub(crate) async fn private_data_is_exchanged_on_connect(setup: Setup) {
    let (mut here, mut there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    for len in [0, 1, 8, 255, MAX_PRIVATE_DATA] {
        let (request_data, expected) = (pattern(len, 1), pattern(len, 2));
        let initiating = here.connect(&pep).private_data(request_data).into_future();
        let accepting = async {
            let request = pep.accept().await.unwrap();
            assert_eq!(request.private_data(), request_data);
            assert_eq!(request.info().ep.ep_type, fabric_async::EpType::Msg);
            let peer = request.peer().clone();
            (there.accept(request, expected), peer)
        };
        let (active, (passive, peer)) = tokio::join!(initiating, accepting);
        let active = active.unwrap();
        assert_eq!(
            (active.private_data(), passive.private_data()),
            (expected, request_data)
        );
        assert_eq!((active.peer(), active.name()), (pep.name(), &peer));
        assert_eq!((passive.peer(), passive.name()), (&peer, pep.name()));
        let event = here.eq.read().await;
        assert_eq!(event.object_id, active.id());
        assert_eq!(
            event.kind,
            EventKind::Connected {
                peer: pep.name().clone(),
                data: expected.to_vec()
            }
        );
        let event = there.eq.read().await;
        assert_eq!(event.object_id, pep.id());
        assert_eq!(
            event.kind,
            EventKind::ConnectionRequest {
                peer: peer.clone(),
                data: request_data.to_vec()
            }
        );
        let event = there.eq.read().await;
        assert_eq!(event.object_id, passive.id());
        assert_eq!(
            event.kind,
            EventKind::Connected {
                peer,
                data: Vec::new()
            }
        );
        active.send("there").await.unwrap();
        passive.send("and back").await.unwrap();
        let (got, back) = tokio::join!(passive.recv(), active.recv());
        let (out, back) = (got.unwrap(), back.unwrap());
        assert_eq!((&out[..], &back[..]), (&b"there"[..], &b"and back"[..]));
        drop((active, passive));
        let shut = |kind| {
            matches!(
                kind,
                EventKind::Shutdown {
                    reason: DownReason::Closed,
                    ..
                }
            )
        };
        // The endpoint that was closed last has seen the other's shutdown, or was closed before
        // that.
        while let Some(event) = here.eq.try_read().or_else(|| there.eq.try_read()) {
            assert!(shut(event.kind));
        }
    }
}

pub(crate) async fn rejection_carries_private_data(setup: Setup) {
    let (mut here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    for len in [0, 1, 100, MAX_PRIVATE_DATA] {
        let initiating = here.connect(&pep).into_future();
        let rejecting = async { pep.accept().await.unwrap().reject(pattern(len, 3)).unwrap() };
        let (refused, ()) = tokio::join!(initiating, rejecting);
        let error = Error::RejectedByPeer {
            peer: pep.name().clone(),
            data: pattern(len, 3).to_vec(),
        };
        assert_eq!(refused.unwrap_err(), error);
        assert_eq!(error.errno(), 111);
        assert_eq!(
            here.eq.read().await.kind,
            EventKind::ConnectFailed { error }
        );
        assert_eq!(here.domain.children().of(fabric_async::Class::Endpoint), 0);
    }
    let initiating = here.connect(&pep).into_future();
    let dropping = async { drop(pep.accept().await.unwrap()) };
    let (refused, ()) = tokio::join!(initiating, dropping);
    assert_eq!(
        refused.unwrap_err(),
        Error::RejectedByPeer {
            peer: pep.name().clone(),
            data: Vec::new()
        }
    );
    // Connection requests that are never accepted.
    let mut initiating = here.connect(&pep).into_future();
    while !format!("{pep:?}").contains("(1 requests)") {
        assert!(poll_once(&mut initiating).await.is_pending());
        tokio::task::yield_now().await;
    }
    let name = pep.name().clone();
    pep.close().unwrap();
    assert_eq!(
        initiating.await.unwrap_err(),
        Error::RejectedByPeer {
            peer: name.clone(),
            data: Vec::new()
        }
    );
    let absent = here.endpoint().connect(&name).await.unwrap_err();
    assert_eq!(absent, Error::NoSuchPeer(name));
}

pub(crate) async fn private_data_beyond_limit_is_refused(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let long = vec![7; MAX_PRIVATE_DATA + 1];
    let too_long = Error::TooLong {
        what: "private data",
        len: 257,
        limit: 256,
    };
    assert_eq!(
        here.connect(&pep)
            .private_data(&long[..])
            .await
            .unwrap_err(),
        too_long
    );
    let rejected = Error::RejectedByPeer {
        peer: pep.name().clone(),
        data: Vec::new(),
    };
    let initiating = here.connect(&pep).into_future();
    let answering = async { there.endpoint().accept(pep.accept().await.unwrap(), &long) };
    let (refused, accepted) = tokio::join!(initiating, answering);
    assert_eq!(
        (refused.unwrap_err(), accepted.unwrap_err()),
        (rejected.clone(), too_long.clone())
    );
    let initiating = here.connect(&pep).into_future();
    let answering = async { pep.accept().await.unwrap().reject(&long) };
    let (refused, answered) = tokio::join!(initiating, answering);
    assert_eq!((refused.unwrap_err(), answered), (rejected, Err(too_long)));
}

pub(crate) async fn dropped_connect_aborts_the_attempt(setup: Setup) {
    let (here, mut there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    // Some attempts may have sent their request before they are dropped.
    for _ in 0..20 {
        let mut initiating = here
            .connect(&pep)
            .private_data("dropped at once")
            .into_future();
        assert!(poll_once(&mut initiating).await.is_pending());
        drop(initiating);
    }
    let mut initiating = here
        .connect(&pep)
        .private_data("dropped later")
        .into_future();
    let request = loop {
        assert!(poll_once(&mut initiating).await.is_pending());
        match pep.try_accept() {
            Some(request) if request.private_data() == b"dropped later" => break request,
            _ => tokio::task::yield_now().await,
        }
    };
    drop(initiating);
    // The end of the initiator is noticed when its request is accepted, or later.
    match there.endpoint().accept(request, b"too late") {
        Ok(ep) => {
            assert!(ep.recv().await.unwrap_err().error.is_peer_unavailable());
            assert!(matches!(
                there.next_other_event().await,
                EventKind::Shutdown { .. }
            ));
        }
        Err(error) => assert!(error.is_peer_unavailable(), "{error}"),
    }
    let initiating = here.connect(&pep).private_data("in time").into_future();
    let accepting = async {
        loop {
            match pep.accept().await.unwrap() {
                request if request.private_data() == b"in time" => {
                    break there.accept(request, b"");
                }
                request => request.reject("too late").unwrap(),
            }
        }
    };
    let (active, _passive) = tokio::join!(initiating, accepting);
    active.unwrap();
}

pub(crate) async fn many_clients_connect_to_one_passive_endpoint(setup: Setup) {
    const MANY: usize = 200;
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    // More requests than a passive endpoint queues.
    let connects = (0..MANY).map(|number| {
        here.connect(&pep)
            .private_data(number.to_le_bytes())
            .into_future()
    });
    let mut connects: Vec<_> = connects.collect();
    for connect in &mut connects {
        assert!(poll_once(connect).await.is_pending());
    }
    let accepting = async {
        let mut all = Vec::new();
        while all.len() < MANY {
            let request = pep.accept().await.unwrap();
            let number = usize::from_le_bytes(request.private_data().try_into().unwrap());
            all.push((number, there.accept(request, &number.to_le_bytes())));
        }
        all
    };
    let connecting = async {
        let mut all = Vec::new();
        for (number, connect) in connects.into_iter().enumerate() {
            let ep = connect.await.unwrap();
            assert_eq!(ep.private_data(), number.to_le_bytes());
            all.push(ep);
        }
        all
    };
    let (mut passive, active) = tokio::join!(accepting, connecting);
    passive.sort_by_key(|(number, _)| *number);
    for (number, (active, (_, passive))) in active.iter().zip(&passive).enumerate() {
        active.send(number.to_le_bytes().to_vec()).await.unwrap();
        passive.send(&number.to_le_bytes()).inject().unwrap();
    }
    for (number, (active, (_, passive))) in active.iter().zip(&passive).enumerate().rev() {
        assert_eq!(active.recv().await.unwrap()[..], number.to_le_bytes());
        assert_eq!(passive.recv().await.unwrap()[..], number.to_le_bytes());
    }
}

pub(crate) async fn connect_fails_on_timeout_or_closed_listener(setup: Setup) {
    let (mut here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    // The requests are neither accepted nor rejected.
    let pep = there.listen(&setup);
    let name = pep.name().clone();
    let initiating = here
        .endpoint()
        .connect(&name)
        .timeout(Duration::from_millis(50));
    let error = initiating.await.unwrap_err();
    assert_eq!(error, Error::TimedOut(name.clone()));
    assert_eq!(error.errno(), 110);
    assert_eq!(
        here.eq.read().await.kind,
        EventKind::ConnectFailed { error }
    );
    // A connect without a timeout works, too.
    let mut initiating = here
        .endpoint()
        .connect(&name)
        .timeout(Duration::MAX)
        .into_future();
    assert!(poll_once(&mut initiating).await.is_pending());
    drop(initiating);
    drop(pep);
    let error = here.endpoint().connect(&name).await.unwrap_err();
    assert_eq!(error, Error::NoSuchPeer(name));
    assert_eq!(
        here.eq.read().await.kind,
        EventKind::ConnectFailed { error }
    );
}

/// Sockets that connect and send nothing occupy a bounded table; the oldest of them is evicted.
pub(crate) async fn oldest_pending_handshake_is_evicted(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let mut silent_sockets: Vec<_> = (0..300).map(|_| connect_raw(&pep)).collect();
    silent_sockets[0]
        .write_all(&connect_request(b"")[..31])
        .unwrap();
    let initiating = here.connect(&pep).into_future();
    let accepting = async { there.accept(pep.accept().await.unwrap(), b"") };
    let (active, _passive) = tokio::join!(initiating, accepting);
    active.unwrap();
    let first = silent_sockets.remove(0);
    assert!(read_to_end(first).await.is_empty(), "no answer");
    // The newest socket can still send its request.
    let last = silent_sockets.last_mut().unwrap();
    last.write_all(&connect_request(b"at last")).unwrap();
    let late = pep.accept().await.unwrap();
    assert_eq!(late.private_data(), b"at last");
    late.reject("").unwrap();
    assert_eq!(
        read_to_end(silent_sockets.pop().unwrap()).await[..2],
        [3, 6]
    );
}

pub(crate) async fn connect_request_is_accepted_at_every_split(setup: Setup) {
    let there = MsgDomainFixture::open(&setup).await;
    let mut pep = there.listen(&setup);
    let bytes = connect_request(b"in pieces");
    for split in 1..bytes.len() {
        let mut socket = connect_raw(&pep);
        socket.write_all(&bytes[..split]).unwrap();
        assert!(
            pep.try_accept().is_none(),
            "{split} bytes are not the whole message"
        );
        socket.write_all(&bytes[split..]).unwrap();
        let request = pep.accept().await.unwrap();
        assert_eq!(request.private_data(), b"in pieces");
        let expected = connect_response(b"yes");
        let ep = there.accept(request, b"yes");
        let mut received = vec![0; expected.len()];
        socket.read_exact(&mut received).unwrap();
        assert_eq!(received, expected, "one response, in one piece");
        // The peer may send its first message together with the request.
        socket
            .write_all(&[
                3, 0, 0, 0, 0, 0, 16, 0, 19, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c',
            ])
            .unwrap();
        assert_eq!(&ep.recv().await.unwrap()[..], b"abc");
    }
}

pub(crate) async fn malformed_connect_request_closes_socket(setup: Setup) {
    let (here, mut there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let mut wrong_byte_order = connect_request(b"");
    wrong_byte_order[24..].fill(9);
    for bad in [
        control_message(2, 0, 0, b""),
        control_message(3, 1, 0, b""),
        control_message(3, 6, 0, b""),
        control_message(3, 7, 0, b""),
        control_message(3, 0, 257, &[0; 257]),
        control_message(3, 0, 0xffff, b""),
        wrong_byte_order,
        b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n".to_vec(),
    ] {
        for split in [1, 2, 3, 4, 24, 31, 32, bad.len()] {
            let split = split.min(bad.len());
            let mut socket = connect_raw(&pep);
            socket.write_all(&bad[..split]).unwrap();
            assert!(pep.try_accept().is_none());
            // The passive endpoint may have closed the socket already.
            let _ = socket.write_all(&bad[split..]);
            let rejected = loop {
                assert!(pep.try_accept().is_none());
                if let Some(event) = there.eq.try_read() {
                    break event;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(rejected.object_id, pep.id());
            let EventKind::InboundRefused {
                error: Error::Protocol { .. },
                ..
            } = rejected.kind
            else {
                panic!("{rejected:?}")
            };
            assert!(read_to_end(socket).await.is_empty(), "no answer");
        }
    }
    // A socket that closes in the middle of a request causes no event.
    for len in 0..32 {
        let mut socket = connect_raw(&pep);
        socket.write_all(&connect_request(b"")[..len]).unwrap();
        drop(socket);
        assert!(pep.try_accept().is_none());
    }
    let initiating = here.connect(&pep).into_future();
    let accepting = async { there.accept(pep.accept().await.unwrap(), b"still here") };
    let (active, _passive) = tokio::join!(initiating, accepting);
    assert_eq!(active.unwrap().private_data(), b"still here");
}

pub(crate) async fn connect_response_is_accepted_at_every_split(setup: Setup) {
    let here = MsgDomainFixture::open(&setup).await;
    let (listener, name) = raw_listener();
    let bytes = connect_response(b"in pieces");
    for split in 1..bytes.len() {
        let mut initiating = here
            .endpoint()
            .connect(&name)
            .private_data("hello")
            .into_future();
        assert!(poll_once(&mut initiating).await.is_pending());
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let (mut received, expected) = (
            Vec::new(),
            with_vendor_extension(connect_request(b"hello"), 0),
        );
        socket.set_nonblocking(true).unwrap();
        while received.len() < expected.len() {
            assert!(poll_once(&mut initiating).await.is_pending());
            let mut chunk = [0; 64];
            match socket.read(&mut chunk) {
                Ok(count) => received.extend_from_slice(&chunk[..count]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(received, expected);
        socket.write_all(&bytes[..split]).unwrap();
        here.domain.progress();
        assert!(
            poll_once(&mut initiating).await.is_pending(),
            "{split} bytes are not the whole message"
        );
        socket.write_all(&bytes[split..]).unwrap();
        assert_eq!(initiating.await.unwrap().private_data(), b"in pieces");
    }
}

pub(crate) async fn malformed_connect_response_fails_connect(setup: Setup) {
    let here = MsgDomainFixture::open(&setup).await;
    let (listener, name) = raw_listener();
    for (bad, ends_early) in [
        (control_message(2, 1, 0, b""), false),
        (connect_request(b""), false),
        (control_message(3, 9, 0, b""), false),
        (control_message(3, 1, 257, b""), false),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), false),
        (Vec::new(), true),
        (connect_response(b"cut")[..31].to_vec(), true),
        (connect_response(b"cut")[..33].to_vec(), true),
    ] {
        let mut initiating = here.endpoint().connect(&name).into_future();
        assert!(poll_once(&mut initiating).await.is_pending());
        let (mut socket, _) = listener.accept().unwrap();
        let answering = tokio::task::spawn_blocking(move || {
            socket.read_exact(&mut [0; 32]).unwrap();
            socket.write_all(&bad).unwrap();
        });
        let (failed, answered) = tokio::join!(initiating, answering);
        answered.unwrap();
        let error = failed.unwrap_err();
        assert!(
            if ends_early {
                error.is_peer_unavailable()
            } else {
                matches!(error, Error::Protocol { .. })
            },
            "{error}"
        );
    }
}

/// A connection request belongs to no domain while it waits, and can be accepted in any domain.
pub(crate) async fn connreq_can_be_accepted_in_any_domain(setup: Setup) {
    let (a, b, mut pep) = connected_pair_with_listener(&setup).await;
    let other = MsgDomainFixture::open(&setup).await;
    let connect = |number: u8| {
        a.domain_fixture
            .connect(&pep)
            .private_data([number])
            .into_future()
    };
    let mut connects = [connect(0), connect(1)];
    let mut requests = Vec::new();
    while requests.len() < 2 {
        for connect in &mut connects {
            assert!(poll_once(connect).await.is_pending());
        }
        requests.extend(pep.try_accept());
        tokio::task::yield_now().await;
    }
    drop(pep);
    requests.sort_by_key(|request| request.private_data().to_vec());
    let mut requests = requests.into_iter();
    let in_b = b.domain_fixture.accept(requests.next().unwrap(), b"");
    let in_other = other.accept(requests.next().unwrap(), b"");
    for (connect, accepted) in connects.into_iter().zip([in_b, in_other]) {
        let ep = connect.await.unwrap();
        ep.send("hello").await.unwrap();
        assert_eq!(&accepted.recv().await.unwrap()[..], b"hello");
    }
}
