//! Messages between two connected endpoints, and how a connection ends.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use fabric_async::buf::{Gather, Scatter};
use fabric_async::{
    Access, Caps, Class, ConnectedEndpoint, CounterBind, DownReason, Endpoint, EpType, Error,
    EventKind, Hints, OpKind, PassiveEndpoint, Resource, discover,
};
use futures_util::StreamExt;

use crate::connected_pair::{
    MsgDomainFixture, MsgEndpointFixture, connected_pair, connected_pair_with_listener,
};
use crate::payload::{LONG_LEN, assert_bytes, pattern, poll_once, yield_times};
use crate::raw_peer::frame_header;
use crate::setup::Setup;

async fn send_to_peer(side: &MsgEndpointFixture, bytes: &'static [u8]) {
    side.ep.send(bytes).await.unwrap();
}

/// Makes progress until `count` messages are unexpected.
async fn wait_for_unexpected(side: &MsgEndpointFixture, count: usize) {
    while side.ep.stats().unexpected < count {
        side.domain_fixture.domain.progress();
        tokio::task::yield_now().await;
    }
}

async fn shutdown_reason(side: &mut MsgEndpointFixture) -> DownReason {
    loop {
        match side.domain_fixture.next_other_event().await {
            EventKind::Shutdown { peer, reason } => {
                assert_eq!(&peer, side.ep.peer());
                return reason;
            }
            // Messages of the peer waited for a receive.
            EventKind::PeerOverBudget { peer, .. } => assert_eq!(&peer, side.ep.peer()),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn every_length_arrives_in_both_directions(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let lens = [
        0,
        1,
        2,
        63,
        64,
        100,
        4096,
        16_383,
        16_384,
        16_385,
        65_536,
        100_000,
        1 << 20,
        LONG_LEN,
    ];
    for len in lens {
        let (to_b, to_a) = (pattern(len, 1), pattern(len, 2));
        let (a_sent, b_got, b_sent, a_got) = tokio::join!(
            a.ep.send(to_b),
            b.ep.recv(),
            b.ep.send(to_a.to_vec()),
            a.ep.recv_into(Vec::with_capacity(len)),
        );
        assert_eq!(a_sent.unwrap().into_buf(), to_b);
        assert_eq!(b_sent.unwrap().into_buf(), to_a);
        assert_bytes(&b_got.unwrap(), to_b);
        assert_bytes(&a_got.unwrap(), to_a);
    }
    // Unexpected messages.
    for len in lens.into_iter().filter(|len| *len <= 1 << 20) {
        let sending = a.ep.send(pattern(len, 3)).start().unwrap();
        wait_for_unexpected(&b, 1).await;
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(len, 3));
        sending.await.unwrap();
    }
    let (sent, got) = (a.ep.stats(), b.ep.stats());
    assert_eq!(
        (sent.failed, got.failed, sent.sent.count),
        (0, 0, got.received.count)
    );
}

pub(crate) async fn every_buffer_type_and_send_call_works(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    a.ep.send(b"injected").inject().unwrap();
    a.ep.send(b"with data").data(7).inject().unwrap();
    a.ep.send("more data").data(u64::MAX).await.unwrap();
    let gather = Gather::from((
        pattern(100, 1).to_vec(),
        Bytes::from_static(pattern(50_000, 2)),
    ));
    let gathered = a.ep.send(gather).start().unwrap();
    let mut loan = a.ep.domain().try_loan(1000).unwrap();
    loan.copy_from_slice(pattern(1000, 3));
    let lent = a.ep.send(loan).start().unwrap();
    for number in 0..10u8 {
        a.ep.send(vec![number; 9]).fence().await.unwrap();
    }
    let got = b.ep.recv().await.unwrap();
    assert_eq!(
        (&got[..], got.data(), got.tag(), got.source()),
        (&b"injected"[..], None, None, Err(Error::UnknownSource))
    );
    assert_eq!(b.ep.probe().await.unwrap().len, 9);
    let claimed = b.ep.probe().claim().await.unwrap();
    let got = claimed.recv_into(vec![0; 9]).await.unwrap();
    assert_eq!((&got[..], got.data()), (&b"with data"[..], Some(7)));
    let got = b.ep.recv().await.unwrap();
    assert_eq!((&got[..], got.data()), (&b"more data"[..], Some(u64::MAX)));
    let target = Scatter::from([
        vec![0; 5].into_boxed_slice(),
        vec![0; 60_000].into_boxed_slice(),
    ]);
    let got = b.ep.recv_into(target).await.unwrap().into_buf();
    let bytes: Vec<u8> = got.pieces().flatten().copied().collect();
    assert_bytes(&bytes, &[pattern(100, 1), pattern(50_000, 2)].concat());
    assert_bytes(&b.ep.recv().await.unwrap(), pattern(1000, 3));
    gathered.await.unwrap();
    lent.await.unwrap();
    for number in 0..10 {
        assert_eq!(b.ep.recv().await.unwrap()[..], [number; 9]);
    }
    let short =
        b.ep.recv_into(vec![0; 4].into_boxed_slice())
            .start()
            .unwrap();
    send_to_peer(&a, b"cut to 4 bytes.").await;
    send_to_peer(&a, b"whole").await;
    let cut = short.await.unwrap_err();
    assert_eq!(
        (cut.error, &cut.buf[..]),
        (Error::Truncated { len: 4, lost: 11 }, &b"cut "[..])
    );
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"whole");
}

pub(crate) async fn ops_report_to_cqs_counters_and_event_queues(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let (sends, recvs) = (
        here.domain.counter().unwrap(),
        there.domain.counter().unwrap(),
    );
    let mut endpoint_eq = there.fabric.event_queue(8).unwrap();
    let connecting = here
        .endpoint()
        .bind_counter(&sends, CounterBind::SEND)
        .unwrap()
        .connect(pep.name());
    let accepting = async {
        let ep = there
            .endpoint()
            .bind_counter(&recvs, CounterBind::RECV)
            .unwrap()
            .context(5);
        ep.bind_eq(&endpoint_eq)
            .unwrap()
            .accept(pep.accept().await.unwrap(), b"")
            .unwrap()
    };
    let (a, b) = tokio::join!(connecting.into_future(), accepting);
    let a = a.unwrap();
    let (mut a, mut b) = (
        MsgEndpointFixture {
            ep: a,
            domain_fixture: here,
        },
        MsgEndpointFixture {
            ep: b,
            domain_fixture: there,
        },
    );
    for number in 0..20 {
        b.ep.recv_into(vec![0; 8]).context(number).post().unwrap();
    }
    for number in 0..20u64 {
        a.ep.send(number.to_le_bytes().to_vec())
            .context(100 + number)
            .post()
            .unwrap();
    }
    sends.wait(20).await.unwrap();
    recvs.wait(20).await.unwrap();
    for number in 0..20u64 {
        let (sent, mut got) = (
            a.domain_fixture.cq.next().await.unwrap(),
            b.domain_fixture.cq.next().await.unwrap(),
        );
        assert_eq!((sent.context, sent.kind), (100 + number, OpKind::Send));
        assert_eq!(
            (got.context, got.kind, &got.error),
            (number, OpKind::Recv, &None)
        );
        assert_eq!(got.take_buf::<Vec<u8>>().unwrap(), number.to_le_bytes());
    }
    // An operation that is pending when the peer closes is reported to the queue.
    b.ep.recv_into(vec![0; 8]).context(77).post().unwrap();
    a.ep.close().unwrap();
    let failed = b.domain_fixture.cq.next().await.unwrap();
    assert_eq!(failed.context, 77);
    assert!(failed.error.unwrap().is_peer_unavailable());
    assert_eq!(recvs.errors(), 1);
    let events = [endpoint_eq.read().await, endpoint_eq.read().await];
    assert!(matches!(&events[0].kind, EventKind::Connected { .. }) && events[0].context == 5);
    assert!(
        matches!(&events[1].kind, EventKind::Shutdown { .. }) && events[1].object_id == b.ep.id()
    );
}

/// Both sides end the connection, by `shutdown` and by dropping the endpoint.
pub(crate) async fn shutdown_or_close_of_either_side_disconnects(setup: Setup) {
    for round in 0..4 {
        let (active, passive) = connected_pair(&setup).await;
        let (mut ending, mut other) = if round % 2 == 0 {
            (active, passive)
        } else {
            (passive, active)
        };
        let waiting = other.ep.recv().start().unwrap();
        let further = other.ep.recv().start().unwrap();
        send_to_peer(&ending, b"the last word").await;
        let own = ending.ep.recv().start().unwrap();
        if round < 2 {
            ending.ep.shutdown().unwrap();
            assert_eq!(shutdown_reason(&mut ending).await, DownReason::Closed);
            assert_eq!(own.await.unwrap_err().error, Error::Canceled);
            let shut_down = Error::ShutDown;
            assert_eq!(ending.ep.send("more").await.unwrap_err().error, shut_down);
            assert_eq!(ending.ep.send(b"more").inject().unwrap_err(), shut_down);
            assert_eq!(ending.ep.recv().await.unwrap_err().error, shut_down);
            ending.ep.shutdown().unwrap();
        } else {
            drop(own);
            ending.ep.close().unwrap();
        }
        assert_eq!(&waiting.await.unwrap()[..], b"the last word");
        assert_eq!(shutdown_reason(&mut other).await, DownReason::Closed);
        let gone = Error::PeerGone(other.ep.peer().clone());
        assert_eq!(further.await.unwrap_err().error, gone);
        assert_eq!(other.ep.send("not received").await.unwrap_err().error, gone);
        assert_eq!(other.ep.send("not received").await.unwrap_err().error, gone);
        assert_eq!(
            other.ep.send("not received").post().unwrap_err().error,
            gone
        );
        assert_eq!(other.ep.send(b"not received").inject().unwrap_err(), gone);
        assert_eq!(other.ep.recv().await.unwrap_err().error, gone);
        assert_eq!(other.ep.probe().await.unwrap_err(), gone);
        other.ep.shutdown().unwrap();
        assert!(
            other
                .domain_fixture
                .eq
                .try_read()
                .is_none_or(|event| !matches!(event.kind, EventKind::Shutdown { .. }))
        );
    }
}

/// A shutdown while a message is being sent fails the send, which returns its buffer, and fails the
/// receive with `PeerGone`.
pub(crate) async fn shutdown_mid_message_fails_send_and_receive(setup: Setup) {
    let copies_once = setup.provider == "shm" && setup.single_copy_threshold != Some(usize::MAX);
    for is_received in [false, true] {
        let (a, mut b) = connected_pair(&setup).await;
        let receiving = is_received.then(|| {
            b.ep.recv_into(Vec::with_capacity(64 << 20))
                .start()
                .unwrap()
        });
        let mut sending = a.ep.send(vec![1; 64 << 20]).start().unwrap();
        // A single-copy message does not delay the next message.
        let behind = (!copies_once).then(|| a.ep.send(vec![2; 10]).start().unwrap());
        assert!(poll_once(&mut sending).await.is_pending());
        a.ep.shutdown().unwrap();
        // A zero-copy send completes when the peer's kernel has acknowledged the bytes.
        let failed_at_once = if setup.zero_copy {
            None
        } else {
            Some((&mut sending).await.unwrap_err())
        };
        if let Some(behind) = behind {
            assert_eq!(behind.await.unwrap_err().error, Error::Canceled);
        }
        // The message exceeds the budget: it stays in the socket buffers until a receive is posted.
        let receiving = receiving.unwrap_or_else(|| {
            b.ep.recv_into(Vec::with_capacity(64 << 20))
                .start()
                .unwrap()
        });
        assert!(receiving.await.unwrap_err().error.is_peer_unavailable());
        let failed = match failed_at_once {
            Some(failed) => failed,
            None => sending.await.unwrap_err(),
        };
        assert_eq!(
            (failed.error, failed.buf.len()),
            (Error::Canceled, 64 << 20)
        );
        shutdown_reason(&mut b).await;
        assert!(b.ep.recv().await.unwrap_err().error.is_peer_unavailable());
    }
}

/// Two messages arrive together. The second one is unexpected when the first is received, and is
/// still received after the shutdown.
pub(crate) async fn buffered_message_survives_local_shutdown(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    assert_eq!(a.ep.inject_all([&b"one"[..], b"two"]), (2, Ok(())));
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"one");
    b.ep.shutdown().unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"two");
    assert_eq!(b.ep.recv().await.unwrap_err().error, Error::ShutDown);
}

/// Under automatic progress, messages are buffered although no task polls.
/// The transmit and receive context and the completion queue refuse posts while they are full.
pub(crate) async fn full_queues_refuse_posts(setup: Setup) {
    // Beyond the budget, so that the message waits for its receive.
    const UNBUFFERED: usize = 17 << 20;
    let (mut here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    (here.info.tx.size, here.info.rx.size) = (2, 2);
    here.cq = here.domain.completion_queue(3).unwrap();
    let mut pep = there.listen(&setup);
    let (a, b) = here.connect_to(&there, &mut pep).await;

    // The transmit context.
    let mut sends = Vec::new();
    let refused = loop {
        match a.send(vec![sends.len() as u8; UNBUFFERED]).start() {
            Ok(send) => sends.push(send),
            Err(refused) => break refused,
        }
        assert!(sends.len() <= 2, "the limit is 2");
    };
    let limit = sends.len();
    assert!(limit > 0);
    let Error::WouldBlock(Resource::TransmitCredit { in_use, .. }) = refused.error else {
        panic!("{}", refused.error)
    };
    assert_eq!((in_use, refused.buf.len()), (limit, UNBUFFERED));
    for (number, send) in sends.into_iter().enumerate() {
        let (sent, got) = tokio::join!(send.into_future(), b.recv());
        sent.unwrap();
        assert_bytes(&got.unwrap(), &vec![number as u8; UNBUFFERED]);
    }
    let (sent, got) = tokio::join!(a.send("credits are free").start().unwrap(), b.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"credits are free");

    // The receive context.
    let receives = [(); 2].map(|()| a.recv_into(vec![0; 8]).start().unwrap());
    let refused = a.recv_into(vec![7; 8]).start().unwrap_err();
    let entry = Error::WouldBlock(Resource::ReceiveEntry { limit: 2 });
    assert_eq!((refused.error, refused.buf), (entry, vec![7; 8]));
    for receive in receives {
        let (sent, got) = tokio::join!(b.send("x"), receive);
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], b"x");
    }

    // The completion queue, of sends and of receives.
    let full = Error::WouldBlock(Resource::CompletionEntry { capacity: 3 });
    a.recv_into(vec![0; 8]).context(1).post().unwrap();
    for context in 2..4 {
        a.send("y").context(context).post().unwrap();
        assert_eq!(&b.recv().await.unwrap()[..], b"y");
    }
    let refused = a.send("refused").post().unwrap_err();
    assert_eq!((refused.error, refused.buf), (full.clone(), "refused"));
    assert_eq!(a.recv_into(vec![0; 8]).post().unwrap_err().error, full);
    for context in 2..4 {
        assert_eq!(here.cq.next().await.unwrap().context, context);
    }
    b.send("z").await.unwrap();
    assert_eq!(here.cq.next().await.unwrap().context, 1);
    a.recv_into(vec![0; 8]).post().unwrap();
}

pub(crate) async fn auto_progress_receives_without_polling(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    for number in 0..5u8 {
        a.ep.send(vec![number; 100]).await.unwrap();
    }
    while b.ep.stats().unexpected < 5 {
        yield_times(1).await;
    }
}

pub(crate) async fn buffered_messages_survive_peer_close(setup: Setup) {
    let (a, mut b) = connected_pair(&setup).await;
    let sending = async {
        for number in 0..50u8 {
            a.ep.send(vec![number; 1 + usize::from(number) * 1000])
                .await
                .unwrap();
        }
    };
    tokio::join!(sending, wait_for_unexpected(&b, 50));
    a.ep.close().unwrap();
    assert_eq!(shutdown_reason(&mut b).await, DownReason::Closed);
    assert_eq!(b.ep.stats().unexpected, 50);
    for number in 0..50u8 {
        // The message of a dropped receive is requeued at its place.
        let mut dropped = b.ep.recv().start().unwrap();
        if number % 2 == 0 {
            drop(dropped);
            dropped = b.ep.recv().start().unwrap();
        }
        let got = dropped.await.unwrap();
        assert_eq!(got[..], vec![number; 1 + usize::from(number) * 1000]);
    }
    assert!(b.ep.recv().await.unwrap_err().error.is_peer_unavailable());
}

/// As `buffered_messages_survive_peer_close`, with more bytes than the budget.
pub(crate) async fn messages_over_budget_survive_peer_close(setup: Setup) {
    const MANY: usize = 24;
    let (a, mut b) = connected_pair(&setup).await;
    let sending = tokio::spawn(async move {
        for number in 0..MANY {
            a.ep.send(vec![number as u8; 1 << 20]).await.unwrap();
        }
        a.ep.close().unwrap();
        a.domain_fixture
    });
    wait_for_unexpected(&b, 15).await;
    // The others are held at the sender.
    for _ in 0..200 {
        b.domain_fixture.domain.progress();
        yield_times(1).await;
        assert!(b.ep.stats().unexpected_bytes <= 16 << 20);
    }
    for number in 0..MANY {
        assert_eq!(b.ep.recv().await.unwrap()[..], vec![number as u8; 1 << 20]);
    }
    assert!(b.ep.recv().await.unwrap_err().error.is_peer_unavailable());
    assert_eq!(shutdown_reason(&mut b).await, DownReason::Closed);
    sending.await.unwrap();
}

pub(crate) async fn peer_close_fails_all_pending_ops(setup: Setup) {
    let (a, mut b) = connected_pair(&setup).await;
    let mut multi_recv =
        b.ep.recv_multi(BytesMut::with_capacity(4096))
            .start()
            .unwrap();
    let probing = async { b.ep.probe().await };
    let claiming = async { b.ep.probe().claim().await };
    let plain = b.ep.recv().start().unwrap();
    let unsent = vec![0; 64 << 20];
    let sending = b.ep.send(unsent).start().unwrap();
    send_to_peer(&a, b"one").await;
    assert_eq!(&multi_recv.next().await.unwrap().unwrap()[..], b"one");
    let ending = async {
        tokio::task::yield_now().await;
        a.ep.close().unwrap();
    };
    let (probed, claimed, ()) = tokio::join!(probing, claiming, ending);
    assert!(probed.unwrap_err().is_peer_unavailable());
    assert!(claimed.map(drop).unwrap_err().is_peer_unavailable());
    assert!(
        multi_recv
            .next()
            .await
            .unwrap()
            .unwrap_err()
            .error
            .is_peer_unavailable()
    );
    assert!(multi_recv.next().await.is_none());
    assert!(plain.await.unwrap_err().error.is_peer_unavailable());
    let failed = sending.await.unwrap_err();
    assert!(failed.error.is_peer_unavailable() && failed.buf.len() == 64 << 20);
    shutdown_reason(&mut b).await;
}

pub(crate) async fn multi_recv_takes_messages_after_peer_close(setup: Setup) {
    let (a, mut b) = connected_pair(&setup).await;
    for number in 0..100u8 {
        a.ep.send(&[number; 10]).inject().unwrap();
    }
    a.ep.close().unwrap();
    shutdown_reason(&mut b).await;
    // The multi-receive is posted after the disconnect, and takes the messages that arrived before.
    let mut multi_recv =
        b.ep.recv_multi(BytesMut::with_capacity(4096))
            .start()
            .unwrap();
    for number in 0..100u8 {
        assert_eq!(multi_recv.next().await.unwrap().unwrap()[..], [number; 10]);
    }
    assert!(
        multi_recv
            .next()
            .await
            .unwrap()
            .unwrap_err()
            .error
            .is_peer_unavailable()
    );
}

pub(crate) async fn dropped_receives_lose_no_message(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let sending = async {
        for number in 0..200u32 {
            let len = if number % 10 == 0 { 300_000 } else { 8 };
            let mut message = vec![0; len];
            message[..4].copy_from_slice(&number.to_le_bytes());
            a.ep.send(message).await.unwrap();
        }
    };
    let receiving = async {
        for number in 0..200u32 {
            let mut got = None;
            for _ in 0..3 {
                let mut dropped = b.ep.recv().start().unwrap();
                if let Poll::Ready(taken) = poll_once(&mut dropped).await {
                    got = Some(taken);
                    break;
                }
            }
            let got = match got {
                Some(taken) => taken.unwrap(),
                None => b.ep.recv().await.unwrap(),
            };
            assert_eq!(got[..4], number.to_le_bytes());
        }
    };
    tokio::join!(sending, receiving);
}

/// Injected bytes are sent also after the endpoint has closed, while the peer reads them.
pub(crate) async fn close_delivers_injected_messages(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    // As many messages as fit into the socket buffers or the ring: queued injects end on close.
    let count = if !setup.shares_memory() { 200 } else { 30 };
    for number in 0..count {
        a.ep.send(&[number; 4000]).inject().unwrap();
    }
    // The closing endpoint has an unread message. Closing its socket must not reset the connection,
    // which would discard the sent bytes.
    b.ep.send(b"unread").inject().unwrap();
    a.ep.shutdown().unwrap();
    drop(a);
    for number in 0..count {
        assert_eq!(b.ep.recv().await.unwrap()[..], [number; 4000]);
    }
    assert!(b.ep.recv().await.unwrap_err().error.is_peer_unavailable());
}

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Spawns a task that waits for a counter value that is never reached, and so keeps the domain
/// making progress.
pub(crate) fn spawn_progress(side: &MsgEndpointFixture) -> tokio::task::JoinHandle<()> {
    let never = side.domain_fixture.domain.counter().unwrap();
    tokio::spawn(async move {
        let _ = never.wait(u64::MAX).await;
    })
}

pub(crate) async fn every_length_is_written_and_read(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let _progress = spawn_progress(&b);
    let region = b.domain_fixture.domain.alloc(LONG_LEN, READ_WRITE).unwrap();
    let remote = region.remote();
    for len in [0, 1, 8, 4096, 65_537, 1 << 20, LONG_LEN] {
        a.ep.write(remote.at(0), pattern(len, 1)).await.unwrap();
        let mut there = vec![0; len];
        region.read(0, &mut there).unwrap();
        assert_bytes(&there, pattern(len, 1));
        let back = a.ep.read(remote.slice(0..len as u64)).await.unwrap();
        assert_bytes(&back, pattern(len, 1));
    }
    // Messages and RMA operations keep their order.
    a.ep.write(remote.at(0), b"before").inject().unwrap();
    send_to_peer(&a, b"look").await;
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"look");
    let mut there = [0; 6];
    region.read(0, &mut there).unwrap();
    assert_eq!(&there, b"before");
}

pub(crate) async fn writes_report_data_and_count_at_target(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let writes = there.domain.counter().unwrap();
    let initiating = here.connect(&pep).into_future();
    let accepting = async {
        let ep = there
            .endpoint()
            .bind_counter(&writes, CounterBind::REMOTE_WRITE)
            .unwrap();
        ep.accept(pep.accept().await.unwrap(), b"").unwrap()
    };
    let (a, b) = tokio::join!(initiating, accepting);
    let (a, mut b) = (
        a.unwrap(),
        MsgEndpointFixture {
            ep: b,
            domain_fixture: there,
        },
    );
    let region = b.domain_fixture.domain.alloc(100, READ_WRITE).unwrap();
    let writing = async {
        a.write(region.remote().at(10), "with data")
            .data(9)
            .await
            .unwrap();
        a.write(region.remote().at(50), "without").await.unwrap();
    };
    let ((), entry, counted) = tokio::join!(writing, b.domain_fixture.cq.next(), writes.wait(2));
    let entry = entry.unwrap();
    assert_eq!((entry.transfer.data, entry.transfer.len), (Some(9), 9));
    counted.unwrap();
}

pub(crate) async fn delivery_complete_waits_for_the_peer(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    for len in [0, 8, 100_000, 1 << 20] {
        let (sent, got) = tokio::join!(
            a.ep.send(pattern(len, 1)).delivery_complete().into_future(),
            b.ep.recv()
        );
        sent.unwrap();
        assert_bytes(&got.unwrap(), pattern(len, 1));
    }
    // A peer that closes acknowledges no further message.
    let sending =
        a.ep.send(vec![0; 64 << 20])
            .delivery_complete()
            .start()
            .unwrap();
    b.ep.close().unwrap();
    assert!(sending.await.unwrap_err().error.is_peer_unavailable());
}

pub(crate) async fn protocol_violation_closes_connection(setup: Setup) {
    let fixture = MsgDomainFixture::open(&setup).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}", listener.local_addr().unwrap());
    for bad in [
        frame_header(0, 2, 0, 16, 16),      // an acknowledgement without a send
        frame_header(0, 0, 0, 15, 16),      // a header that is too short
        frame_header(0, 0, 0, 121, 200),    // a header that is too long
        frame_header(0, 0, 0, 16, 15),      // less than its header
        frame_header(0, 0, 0, 16, 1 << 60), // longer than memory
        frame_header(3, 0, 0, 16, 16),      // a response without a read
        frame_header(6, 0, 0, 16, 16),      // a rendezvous that was not negotiated
        frame_header(200, 0, 0, 16, 16),
    ] {
        let (listener, bad) = (listener.try_clone().unwrap(), bad);
        let peer = tokio::task::spawn_blocking(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; 32]).unwrap();
            let mut bytes_sent = vec![3, 1];
            bytes_sent.resize(24, 0);
            bytes_sent.extend(1u64.to_ne_bytes());
            bytes_sent.extend(frame_header(0, 0, 0, 16, 20));
            bytes_sent.extend(b"good");
            bytes_sent.extend(bad);
            socket.write_all(&bytes_sent).unwrap();
            let _ = socket.read_to_end(&mut Vec::new());
        });
        let ep = fixture.endpoint().connect(&name).await.unwrap();
        assert_eq!(&ep.recv().await.unwrap()[..], b"good");
        let failed = ep.recv().await.unwrap_err();
        assert!(
            matches!(failed.error, Error::Protocol { .. }),
            "{}",
            failed.error
        );
        let failed = ep.send("anything").await.unwrap_err();
        assert!(
            matches!(failed.error, Error::Protocol { .. }),
            "{}",
            failed.error
        );
        peer.await.unwrap();
    }
}

pub(crate) async fn unsupported_calls_are_refused(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let unsupported = |error: Error| assert!(matches!(error, Error::NotSupported(_)), "{error}");
    let ep = &a.ep;
    unsupported(ep.recv().tag(1).await.unwrap_err().error);
    unsupported(ep.send("").tag(1).await.unwrap_err().error);
    unsupported(ep.send(b"").tag(1).inject().unwrap_err());
    if !setup.shares_memory() {
        unsupported(ep.send("").match_complete().await.unwrap_err().error);
    }
    let av = a.domain_fixture.domain.address_vector().unwrap();
    let from = av.insert(b.ep.name()).unwrap();
    unsupported(ep.recv().from(from).await.unwrap_err().error);
    // The endpoint still works after the refused calls.
    send_to_peer(&a, b"still works").await;
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"still works");

    let fixture = &a.domain_fixture;
    unsupported(fixture.endpoint().bind_av(&av).map(drop).unwrap_err());
    let invalid = |error: Error| assert!(matches!(error, Error::Invalid { .. }), "{error}");
    invalid(fixture.endpoint().enable().map(drop).unwrap_err());
    let rdm_info = setup.hints().provider(setup.provider).ep_type(EpType::Rdm);
    let rdm_info = discover(&rdm_info).unwrap().swap_remove(0);
    invalid(
        fixture
            .fabric
            .passive_endpoint(&rdm_info)
            .map(drop)
            .unwrap_err(),
    );
    let builder = || fixture.domain.endpoint(&rdm_info).unwrap();
    invalid(builder().connect(b.ep.name()).await.map(drop).unwrap_err());
    // An endpoint of type `FI_EP_RDM` can be opened in the same domain.
    let rdm = builder().bind_av(&av).unwrap().enable().unwrap();
    drop(rdm);
    let others = ["shm://other", "tcp://127.0.0.1:1", "udp://127.0.0.1:1"];
    for wrong in others
        .iter()
        .filter(|other| !other.starts_with(setup.provider))
    {
        let refused = fixture.endpoint().connect(wrong).await.unwrap_err();
        assert!(matches!(refused, Error::WrongScheme { .. }), "{refused}");
    }
    for absent in [&setup.unnamed_address()[..], "tcp://127.0.0.1:0"] {
        if !absent.starts_with(setup.provider) {
            continue;
        }
        invalid(
            fixture
                .endpoint()
                .connect(absent)
                .await
                .map(drop)
                .unwrap_err(),
        );
    }
    let directed = Hints::new()
        .provider(setup.provider)
        .ep_type(EpType::Msg)
        .caps(Caps::DIRECTED_RECV);
    assert!(matches!(discover(&directed), Err(Error::NoMatch(_))));
}

pub(crate) async fn listen_and_connect_open_working_endpoints(setup: Setup) {
    let options = || {
        let options = Endpoint::options()
            .wait_policy(setup.wait_policy)
            .progress(setup.progress);
        options.socket_io(setup.socket_io)
    };
    let mut pep = options().listen(&setup.unnamed_address()).await.unwrap();
    let name = pep.name().clone();
    let accepting = async { pep.accept().await.unwrap().accept("welcome").unwrap() };
    let (active, passive) = tokio::join!(options().connect(&name), accepting);
    let active = active.unwrap();
    assert_eq!(
        (active.private_data(), active.peer()),
        (&b"welcome"[..], &name)
    );
    assert_eq!(active.info().domain.data_progress, setup.progress);
    active.send("in").context(1).post().unwrap();
    passive.recv_into(vec![0; 2]).context(2).post().unwrap();
    let sent = active.take_completions().unwrap().next().await.unwrap();
    let got = passive.take_completions().unwrap().next().await.unwrap();
    assert_eq!((sent.context, got.context), (1, 2));
    drop(active);
    let mut events = passive.take_events().unwrap();
    assert!(matches!(
        events.read().await.kind,
        EventKind::Connected { .. }
    ));
    assert!(matches!(
        events.read().await.kind,
        EventKind::Shutdown { .. }
    ));
    let taken = PassiveEndpoint::bind(&name).await.map(drop).unwrap_err();
    assert_eq!(taken, Error::AddressInUse(name));
    let none = ConnectedEndpoint::connect("udp://127.0.0.1:1")
        .await
        .map(drop)
        .unwrap_err();
    assert!(matches!(none, Error::NoMatch(_)), "{none}");
}

pub(crate) async fn object_tree_counts_connected_endpoints(setup: Setup) {
    let (a, b, pep) = connected_pair_with_listener(&setup).await;
    assert_eq!(a.domain_fixture.domain.children().of(Class::Endpoint), 1);
    assert_eq!(
        a.domain_fixture.domain.children().of(Class::AddressVector),
        0
    );
    assert_eq!(
        b.domain_fixture
            .fabric
            .children()
            .of(Class::PassiveEndpoint),
        1
    );
    let MsgDomainFixture { eq, fabric, .. } = b.domain_fixture;
    let refused = eq.close().unwrap_err();
    assert!(
        refused.to_string().contains("1 passive endpoint"),
        "{refused}"
    );
    let busy = fabric.close().unwrap_err();
    assert!(busy.to_string().contains("1 passive endpoint"), "{busy}");
    pep.close().unwrap();
    let clone = a.ep.clone();
    a.ep.close().unwrap();
    let closed = Error::Closed(Class::Endpoint);
    assert_eq!(clone.shutdown(), Err(closed.clone()));
    assert_eq!(clone.send("").await.unwrap_err().error, closed);
    assert!(b.ep.recv().await.unwrap_err().error.is_peer_unavailable());
}
