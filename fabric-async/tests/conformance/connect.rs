//! How connected endpoints come by their peer: requests, answers, refusals, and those who say
//! nothing or nonsense.

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
    let mut door = there.listen(&setup);
    for len in [0, 1, 8, 255, MAX_PRIVATE_DATA] {
        let (question, said) = (pattern(len, 1), pattern(len, 2));
        let calling = here.connect(&door).private_data(question).into_future();
        let accepting = async {
            let request = door.next().await.unwrap();
            assert_eq!(request.private_data(), question);
            assert_eq!(request.info().ep.ep_type, fabric_async::EpType::Msg);
            let peer = request.peer().clone();
            (there.accept(request, said).await, peer)
        };
        let (active, (passive, peer)) = tokio::join!(calling, accepting);
        let active = active.unwrap();
        assert_eq!(
            (active.private_data(), passive.private_data()),
            (said, question)
        );
        assert_eq!(
            (active.peer_name().unwrap(), active.name()),
            (door.name(), &peer)
        );
        assert_eq!(
            (passive.peer_name().unwrap(), passive.name()),
            (&peer, door.name())
        );
        let event = here.eq.next().await;
        assert_eq!(event.endpoint_id, active.id());
        assert_eq!(
            event.kind,
            EventKind::Connected {
                peer: door.name().clone(),
                data: said.to_vec()
            }
        );
        let event = there.eq.next().await;
        assert_eq!(event.endpoint_id, door.id());
        assert_eq!(
            event.kind,
            EventKind::ConnectionRequest {
                peer: peer.clone(),
                data: question.to_vec()
            }
        );
        let event = there.eq.next().await;
        assert_eq!(event.endpoint_id, passive.id());
        assert_eq!(
            event.kind,
            EventKind::Connected {
                peer,
                data: Vec::new()
            }
        );
        let (to_passive, to_active) = (active.peer().unwrap(), passive.peer().unwrap());
        active.send(to_passive, "there").await.unwrap();
        passive.send(to_active, "and back").await.unwrap();
        let (got, back) = tokio::join!(passive.recv(), active.recv());
        let (out, back) = (got.unwrap(), back.unwrap());
        assert_eq!((&out[..], out.source()), (&b"there"[..], Ok(to_active)));
        assert_eq!(
            (&back[..], back.source()),
            (&b"and back"[..], Ok(to_passive))
        );
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
        // Whichever was closed last has heard of the other, or has been closed itself before that.
        while let Some(event) = here.eq.try_next().or_else(|| there.eq.try_next()) {
            assert!(shut(event.kind));
        }
    }
}

pub(crate) async fn rejection_carries_private_data(setup: Setup) {
    let (mut here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut door = there.listen(&setup);
    for len in [0, 1, 100, MAX_PRIVATE_DATA] {
        let calling = here.connect(&door).into_future();
        let rejecting = async { door.next().await.unwrap().reject(pattern(len, 3)).unwrap() };
        let (refused, ()) = tokio::join!(calling, rejecting);
        let error = Error::Rejected {
            peer: door.name().clone(),
            data: pattern(len, 3).to_vec(),
        };
        assert_eq!(refused.unwrap_err(), error);
        assert_eq!(error.errno(), 111);
        assert_eq!(
            here.eq.next().await.kind,
            EventKind::ConnectFailed { error }
        );
        assert_eq!(here.domain.children().of(fabric_async::Class::Endpoint), 0);
    }
    let calling = here.connect(&door).into_future();
    let dropping = async { drop(door.next().await.unwrap()) };
    let (refused, ()) = tokio::join!(calling, dropping);
    assert_eq!(
        refused.unwrap_err(),
        Error::Rejected {
            peer: door.name().clone(),
            data: Vec::new()
        }
    );
    // Those nobody takes.
    let mut calling = here.connect(&door).into_future();
    while !format!("{door:?}").contains("(1 requests)") {
        assert!(poll_once(&mut calling).await.is_pending());
        tokio::task::yield_now().await;
    }
    let name = door.name().clone();
    door.close();
    assert_eq!(
        calling.await.unwrap_err(),
        Error::Rejected {
            peer: name.clone(),
            data: Vec::new()
        }
    );
    let nobody = here.endpoint().connect(&name).await.unwrap_err();
    assert_eq!(nobody, Error::NoSuchPeer(name));
}

pub(crate) async fn private_data_beyond_limit_is_refused(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut door = there.listen(&setup);
    let long = vec![7; MAX_PRIVATE_DATA + 1];
    let too_long = Error::TooLong {
        what: "private data",
        len: 257,
        limit: 256,
    };
    assert_eq!(
        here.connect(&door)
            .private_data(&long[..])
            .await
            .unwrap_err(),
        too_long
    );
    let rejected = Error::Rejected {
        peer: door.name().clone(),
        data: Vec::new(),
    };
    let calling = here.connect(&door).into_future();
    let answering = async {
        there
            .endpoint()
            .accept(door.next().await.unwrap(), &long)
            .await
    };
    let (refused, accepted) = tokio::join!(calling, answering);
    assert_eq!(
        (refused.unwrap_err(), accepted.unwrap_err()),
        (rejected.clone(), too_long.clone())
    );
    let calling = here.connect(&door).into_future();
    let answering = async { door.next().await.unwrap().reject(&long) };
    let (refused, answered) = tokio::join!(calling, answering);
    assert_eq!((refused.unwrap_err(), answered), (rejected, Err(too_long)));
}

pub(crate) async fn dropped_connect_aborts_the_attempt(setup: Setup) {
    let (here, mut there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut door = there.listen(&setup);
    // Some of them may have asked before they are dropped.
    for _ in 0..20 {
        let mut calling = here.connect(&door).private_data("never mind").into_future();
        assert!(poll_once(&mut calling).await.is_pending());
        drop(calling);
    }
    let mut calling = here
        .connect(&door)
        .private_data("never mind, too")
        .into_future();
    let request = loop {
        assert!(poll_once(&mut calling).await.is_pending());
        match door.try_next() {
            Some(request) if request.private_data() == b"never mind, too" => break request,
            _ => tokio::task::yield_now().await,
        }
    };
    drop(calling);
    // Its program is found to be gone when it is accepted, or afterwards.
    match there.endpoint().accept(request, b"too late").await {
        Ok(ep) => {
            assert!(ep.recv().await.unwrap_err().error.is_peer_gone());
            assert!(matches!(
                there.next_other_event().await,
                EventKind::Shutdown { .. }
            ));
        }
        Err(error) => assert!(error.is_peer_gone(), "{error}"),
    }
    let calling = here.connect(&door).private_data("in time").into_future();
    let accepting = async {
        loop {
            match door.next().await.unwrap() {
                request if request.private_data() == b"in time" => {
                    break there.accept(request, b"").await;
                }
                request => request.reject("too late").unwrap(),
            }
        }
    };
    let (active, _passive) = tokio::join!(calling, accepting);
    active.unwrap();
}

pub(crate) async fn many_clients_connect_to_one_passive_endpoint(setup: Setup) {
    const MANY: usize = 200;
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut door = there.listen(&setup);
    // More than may wait at the door.
    let calls = (0..MANY).map(|number| {
        here.connect(&door)
            .private_data(number.to_le_bytes())
            .into_future()
    });
    let mut calls: Vec<_> = calls.collect();
    for call in &mut calls {
        assert!(poll_once(call).await.is_pending());
    }
    let accepting = async {
        let mut all = Vec::new();
        while all.len() < MANY {
            let request = door.next().await.unwrap();
            let number = usize::from_le_bytes(request.private_data().try_into().unwrap());
            all.push((number, there.accept(request, &number.to_le_bytes()).await));
        }
        all
    };
    let connecting = async {
        let mut all = Vec::new();
        for (number, call) in calls.into_iter().enumerate() {
            let ep = call.await.unwrap();
            assert_eq!(ep.private_data(), number.to_le_bytes());
            all.push(ep);
        }
        all
    };
    let (mut passive, active) = tokio::join!(accepting, connecting);
    passive.sort_by_key(|(number, _)| *number);
    for (number, (active, (_, passive))) in active.iter().zip(&passive).enumerate() {
        active
            .send(active.peer().unwrap(), number.to_le_bytes().to_vec())
            .await
            .unwrap();
        passive
            .inject(passive.peer().unwrap(), &number.to_le_bytes())
            .unwrap();
    }
    for (number, (active, (_, passive))) in active.iter().zip(&passive).enumerate().rev() {
        assert_eq!(active.recv().await.unwrap()[..], number.to_le_bytes());
        assert_eq!(passive.recv().await.unwrap()[..], number.to_le_bytes());
    }
}

pub(crate) async fn connect_fails_on_timeout_or_closed_port(setup: Setup) {
    let mut here = MsgDomainFixture::open(&setup).await;
    let (silent, name) = raw_listener();
    let calling = here
        .endpoint()
        .connect(&name)
        .timeout(Duration::from_millis(50));
    let error = calling.await.unwrap_err();
    assert_eq!(error, Error::TimedOut(name.parse().unwrap()));
    assert_eq!(error.errno(), 110);
    assert_eq!(
        here.eq.next().await.kind,
        EventKind::ConnectFailed { error }
    );
    // For ever is possible too.
    let mut calling = here
        .endpoint()
        .connect(&name)
        .timeout(Duration::MAX)
        .into_future();
    assert!(poll_once(&mut calling).await.is_pending());
    drop(calling);
    drop(silent);
    let error = here.endpoint().connect(&name).await.unwrap_err();
    assert_eq!(error, Error::NoSuchPeer(name.parse().unwrap()));
}

/// Those who have connected and say nothing cost a bounded table, and the first of them make room.
pub(crate) async fn oldest_pending_handshake_is_evicted(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut door = there.listen(&setup);
    let mut silent: Vec<_> = (0..300).map(|_| connect_raw(&door)).collect();
    silent[0].write_all(&connect_request(b"")[..31]).unwrap();
    let calling = here.connect(&door).into_future();
    let accepting = async { there.accept(door.next().await.unwrap(), b"").await };
    let (active, _passive) = tokio::join!(calling, accepting);
    active.unwrap();
    let first = silent.remove(0);
    assert!(read_to_end(first).await.is_empty(), "no answer");
    // The last of them still can.
    let last = silent.last_mut().unwrap();
    last.write_all(&connect_request(b"at last")).unwrap();
    let late = door.next().await.unwrap();
    assert_eq!(late.private_data(), b"at last");
    late.reject("").unwrap();
    assert_eq!(read_to_end(silent.pop().unwrap()).await[..2], [3, 6]);
}

pub(crate) async fn connect_request_is_accepted_at_every_split(setup: Setup) {
    let there = MsgDomainFixture::open(&setup).await;
    let mut door = there.listen(&setup);
    let bytes = connect_request(b"in pieces");
    for split in 1..bytes.len() {
        let mut socket = connect_raw(&door);
        socket.write_all(&bytes[..split]).unwrap();
        assert!(door.try_next().is_none(), "{split} bytes are not all");
        socket.write_all(&bytes[split..]).unwrap();
        let request = door.next().await.unwrap();
        assert_eq!(request.private_data(), b"in pieces");
        let said = connect_response(b"yes");
        let ep = there.accept(request, b"yes").await;
        let mut heard = vec![0; said.len()];
        socket.read_exact(&mut heard).unwrap();
        assert_eq!(heard, said, "one answer, in one piece");
        // The first message may come with the request, as far as this side is concerned.
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
    let mut door = there.listen(&setup);
    let mut order = connect_request(b"");
    order[24..].fill(9);
    for bad in [
        control_message(2, 0, 0, b""),
        control_message(3, 1, 0, b""),
        control_message(3, 6, 0, b""),
        control_message(3, 7, 0, b""),
        control_message(3, 0, 257, &[0; 257]),
        control_message(3, 0, 0xffff, b""),
        order,
        b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n".to_vec(),
    ] {
        for split in [1, 2, 3, 4, 24, 31, 32, bad.len()] {
            let split = split.min(bad.len());
            let mut socket = connect_raw(&door);
            socket.write_all(&bad[..split]).unwrap();
            assert!(door.try_next().is_none());
            // It may have been thrown out already.
            let _ = socket.write_all(&bad[split..]);
            let rejected = loop {
                assert!(door.try_next().is_none());
                if let Some(event) = there.eq.try_next() {
                    break event;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(rejected.endpoint_id, door.id());
            let EventKind::Rejected {
                error: Error::Protocol { .. },
            } = rejected.kind
            else {
                panic!("{rejected:?}")
            };
            assert!(read_to_end(socket).await.is_empty(), "no answer");
        }
    }
    // Who hangs up in the middle is nothing to tell of.
    for len in 0..32 {
        let mut socket = connect_raw(&door);
        socket.write_all(&connect_request(b"")[..len]).unwrap();
        drop(socket);
        assert!(door.try_next().is_none());
    }
    let calling = here.connect(&door).into_future();
    let accepting = async {
        there
            .accept(door.next().await.unwrap(), b"still here")
            .await
    };
    let (active, _passive) = tokio::join!(calling, accepting);
    assert_eq!(active.unwrap().private_data(), b"still here");
}

pub(crate) async fn connect_response_is_accepted_at_every_split(setup: Setup) {
    let here = MsgDomainFixture::open(&setup).await;
    let (listener, name) = raw_listener();
    let bytes = connect_response(b"in pieces");
    for split in 1..bytes.len() {
        let mut calling = here
            .endpoint()
            .connect(&name)
            .private_data("hello")
            .into_future();
        assert!(poll_once(&mut calling).await.is_pending());
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let (mut heard, said) = (
            Vec::new(),
            with_vendor_extension(connect_request(b"hello"), 0),
        );
        socket.set_nonblocking(true).unwrap();
        while heard.len() < said.len() {
            assert!(poll_once(&mut calling).await.is_pending());
            let mut room = [0; 64];
            match socket.read(&mut room) {
                Ok(count) => heard.extend_from_slice(&room[..count]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(heard, said);
        socket.write_all(&bytes[..split]).unwrap();
        here.domain.progress();
        assert!(
            poll_once(&mut calling).await.is_pending(),
            "{split} bytes are not all"
        );
        socket.write_all(&bytes[split..]).unwrap();
        assert_eq!(calling.await.unwrap().private_data(), b"in pieces");
    }
}

pub(crate) async fn malformed_connect_response_fails_connect(setup: Setup) {
    let here = MsgDomainFixture::open(&setup).await;
    let (listener, name) = raw_listener();
    for (bad, is_gone) in [
        (control_message(2, 1, 0, b""), false),
        (connect_request(b""), false),
        (control_message(3, 9, 0, b""), false),
        (control_message(3, 1, 257, b""), false),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), false),
        (Vec::new(), true),
        (connect_response(b"cut")[..31].to_vec(), true),
        (connect_response(b"cut")[..33].to_vec(), true),
    ] {
        let mut calling = here.endpoint().connect(&name).into_future();
        assert!(poll_once(&mut calling).await.is_pending());
        let (mut socket, _) = listener.accept().unwrap();
        let answering = tokio::task::spawn_blocking(move || {
            socket.read_exact(&mut [0; 32]).unwrap();
            socket.write_all(&bad).unwrap();
        });
        let (failed, answered) = tokio::join!(calling, answering);
        answered.unwrap();
        let error = failed.unwrap_err();
        assert!(
            if is_gone {
                error.is_peer_gone()
            } else {
                matches!(error, Error::Protocol { .. })
            },
            "{error}"
        );
    }
}

/// A request waits unwatched, and may be accepted in any domain.
pub(crate) async fn connreq_can_be_accepted_in_any_domain(setup: Setup) {
    let (a, b, mut door) = connected_pair_with_listener(&setup).await;
    let other = MsgDomainFixture::open(&setup).await;
    let call = |number: u8| {
        a.domain_fixture
            .connect(&door)
            .private_data([number])
            .into_future()
    };
    let mut calls = [call(0), call(1)];
    let mut requests = Vec::new();
    while requests.len() < 2 {
        for call in &mut calls {
            assert!(poll_once(call).await.is_pending());
        }
        requests.extend(door.try_next());
        tokio::task::yield_now().await;
    }
    drop(door);
    requests.sort_by_key(|request| request.private_data().to_vec());
    let mut requests = requests.into_iter();
    let in_b = b.domain_fixture.accept(requests.next().unwrap(), b"").await;
    let in_other = other.accept(requests.next().unwrap(), b"").await;
    for (call, accepted) in calls.into_iter().zip([in_b, in_other]) {
        let ep = call.await.unwrap();
        ep.send(ep.peer().unwrap(), "wherever you are")
            .await
            .unwrap();
        assert_eq!(&accepted.recv().await.unwrap()[..], b"wherever you are");
    }
}
