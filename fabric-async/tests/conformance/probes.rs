//! Probes (`FI_PEEK`) and claims (`FI_CLAIM`) of unexpected messages.

use std::task::Poll;

use bytes::BytesMut;
use fabric_async::{Claimed, Endpoint, Error, FiAddr, OpKind, Resource, Transfer};
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::task::JoinHandle;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{
    LONG_LEN, all_bytes_equal, assert_bytes, message_number, numbered_message, pattern, poll_once,
    yield_times,
};
use crate::setup::Setup;

async fn send_numbers(a: &Endpoint, to: FiAddr, numbers: std::ops::Range<u64>) {
    for number in numbers {
        a.send(to, numbered_message(number, 30)).await.unwrap();
    }
}

pub(crate) async fn probe_reports_without_receiving(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let from_a = b.add_peer(&a).await;
    assert_eq!(b.ep.probe().try_probe(), Ok(None));
    a.ep.send(to_b, pattern(100, 1)).data(5).await.unwrap();
    a.ep.send(to_b, pattern(9000, 2)).tag(0x17).await.unwrap();
    a.ep.send(to_b, "").tag(0x27).await.unwrap();
    flush(&a, &b, to_b).await;
    let received = b.recv_counter.value();
    for _ in 0..3 {
        let found = b.ep.probe().try_probe().unwrap().unwrap();
        assert_eq!(
            (found.len, found.tag, found.source, found.data),
            (100, None, Some(from_a), Some(5))
        );
        assert_eq!(b.ep.probe().await, Ok(found));
        let first = b.ep.probe().tag_ignoring(0x07, 0xf0).await.unwrap();
        assert_eq!((first.len, first.tag, first.data), (9000, Some(0x17), None));
        let exact = b.ep.probe().tag(0x27).from(from_a).await.unwrap();
        assert_eq!((exact.len, exact.tag), (0, Some(0x27)));
        assert_eq!(b.ep.probe().tag(0x37).try_probe(), Ok(None));
    }
    assert_eq!(b.recv_counter.value(), received, "no message was received");
    assert_bytes(&b.ep.recv().await.unwrap(), pattern(100, 1));
    assert_bytes(&b.ep.recv().tag(0x17).await.unwrap(), pattern(9000, 2));
    b.ep.recv().tag(0x27).await.unwrap();
    assert_eq!(b.ep.probe().tag_ignoring(0, !0).try_probe(), Ok(None));
}

fn spawn_probe(fixture: &EndpointFixture, tag: u64) -> JoinHandle<Result<Transfer, Error>> {
    let ep = fixture.ep.clone();
    tokio::spawn(async move { ep.probe().tag(tag).await })
}

pub(crate) async fn probe_waits_for_a_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in [8, 3000, 300_000, LONG_LEN].into_iter().enumerate() {
        // One probe that is dropped, several that one message wakes, and some that look for other
        // messages.
        drop(poll_once(&mut Box::pin(async { b.ep.probe().await })).await);
        let probes: Vec<_> = (0..3).map(|_| spawn_probe(&b, 7)).collect();
        let other = spawn_probe(&b, 8);
        yield_times(5).await;
        let long = a.ep.send(to_b, pattern(len, which)).tag(7).start().unwrap();
        let long = tokio::spawn(long);
        for probe in probes {
            assert_eq!(probe.await.unwrap().unwrap().len, len);
        }
        let message = b.ep.recv().tag(7).await.unwrap();
        assert_bytes(&message, pattern(len, which));
        long.await.unwrap().unwrap();
        a.ep.send(to_b, "eight").tag(8).await.unwrap();
        assert_eq!(other.await.unwrap().unwrap().len, 5);
        b.ep.recv().tag(8).await.unwrap();
    }
}

pub(crate) async fn posted_receives_take_precedence_over_probes(setup: Setup) {
    let config = EndpointConfig {
        rx_size: Some(2),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    let receive = b.ep.recv().start().unwrap();
    send_numbers(&a.ep, to_b, 0..2).await;
    let found = b.ep.probe().await.unwrap();
    assert_eq!(message_number(&receive.await.unwrap()), 0);
    assert_eq!(
        b.ep.probe().try_probe(),
        Ok(Some(found)),
        "the second message"
    );
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 1);
    // Messages that wait for room in a stream cannot be claimed.
    send_numbers(&a.ep, to_b, 0..6).await;
    flush(&a, &b, to_b).await;
    let mut messages =
        b.ep.recv_multi(BytesMut::with_capacity(1000))
            .start()
            .unwrap();
    assert_eq!(b.ep.probe().try_probe(), Ok(None));
    assert!(b.ep.probe().claim().try_claim().unwrap().is_none());
    assert_eq!(message_number(&messages.next().await.unwrap().unwrap()), 0);
    drop(messages);
    let claimed = b.ep.probe().claim().await.unwrap();
    assert_eq!(message_number(&claimed.recv().await.unwrap()), 1);
}

pub(crate) async fn claimed_message_matches_no_receive(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let from_a = b.add_peer(&a).await;
    send_numbers(&a.ep, to_b, 0..4).await;
    a.ep.send(to_b, pattern(500, 9))
        .tag(3)
        .data(4)
        .await
        .unwrap();
    flush(&a, &b, to_b).await;
    let first = b.ep.probe().claim().try_claim().unwrap().unwrap();
    let second = b.ep.probe().claim().await.unwrap();
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 2);
    let tagged =
        b.ep.probe()
            .tag_ignoring(0, !0)
            .from(from_a)
            .claim()
            .await
            .unwrap();
    assert_eq!(
        (tagged.len(), tagged.tag(), tagged.data()),
        (500, Some(3), Some(4))
    );
    assert_eq!(tagged.source(), Ok(from_a));
    assert_eq!(b.ep.probe().tag(3).try_probe(), Ok(None));
    assert_eq!(message_number(&second.recv().await.unwrap()), 1);
    assert_eq!(
        message_number(&first.recv_into(vec![0; 30]).await.unwrap()),
        0
    );
    let message = tagged.recv_into(vec![0; 100]).await.unwrap_err();
    assert_eq!(
        message.error,
        Error::Truncated {
            len: 100,
            lost: 400
        }
    );
    assert_bytes(&message.buf[..100], &pattern(500, 9)[..100]);
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 3);
}

pub(crate) async fn dropped_claim_requeues_message_in_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    send_numbers(&a.ep, to_b, 0..4).await;
    flush(&a, &b, to_b).await;
    let claims: Vec<_> = (0..3)
        .map(|_| b.ep.probe().claim().try_claim().unwrap().unwrap())
        .collect();
    let mut claims: Vec<_> = claims.into_iter().rev().collect();
    let last = claims.remove(0);
    drop(claims);
    // A pending probe finds a requeued message, and a receive takes it.
    let mut found = b.ep.probe().tag(1).into_future();
    assert!(poll_once(&mut found).await.is_pending());
    drop(found);
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 0);
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 1);
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 3);
    let waiting = b.ep.recv().start().unwrap();
    drop(last);
    assert_eq!(message_number(&waiting.await.unwrap()), 2);
    // Messages of a dropped claimed receive, and unexpected messages, are requeued as well.
    send_numbers(&a.ep, to_b, 10..13).await;
    flush(&a, &b, to_b).await;
    drop(b.ep.probe().claim().await.unwrap().recv().start().unwrap());
    drop(
        b.ep.probe()
            .claim()
            .await
            .unwrap()
            .recv_into(Vec::with_capacity(100)),
    );
    let probe = b.ep.probe().claim().await.unwrap();
    let mut waiting = b.ep.probe().tag_ignoring(0, !0).into_future();
    assert!(poll_once(&mut waiting).await.is_pending());
    drop(probe);
    for number in 10..13 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
}

/// The claim of a partial message is received, discarded or requeued after several numbers of
/// passes; unless discarded, the message arrives whole.
pub(crate) async fn claim_works_on_partial_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, polls) in [0u64, 1, 2, 5, 20, 50].into_iter().enumerate() {
        for end in 0..4 {
            let long = a.ep.send(to_b, pattern(LONG_LEN, which)).start().unwrap();
            let after = a.ep.send(to_b, numbered_message(7, 30)).start().unwrap();
            let sending = tokio::spawn(async move { (long.await.unwrap(), after.await.unwrap()) });
            let claimed = b.ep.probe().claim().await.unwrap();
            assert_eq!(claimed.len(), LONG_LEN);
            for _ in 0..polls {
                b.domain.progress();
                yield_times(1).await;
            }
            match end {
                0 => assert_bytes(
                    &claimed
                        .recv_into(Vec::with_capacity(LONG_LEN))
                        .await
                        .unwrap(),
                    pattern(LONG_LEN, which),
                ),
                1 => claimed.discard(),
                2 => {
                    drop(claimed);
                    assert_bytes(&b.ep.recv().await.unwrap(), pattern(LONG_LEN, which));
                }
                _ => {
                    let mut receive = claimed.recv().start().unwrap();
                    if let Poll::Ready(message) = poll_once(&mut receive).await {
                        assert_bytes(&message.unwrap(), pattern(LONG_LEN, which));
                    } else {
                        drop(receive);
                        assert_bytes(&b.ep.recv().await.unwrap(), pattern(LONG_LEN, which));
                    }
                }
            }
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), 7);
            sending.await.unwrap();
        }
    }
}

/// A probe finds a message beyond the budget, which stays at its sender. A claim buffers it. The
/// next probes and claims do the same.
pub(crate) async fn probe_finds_message_over_budget(setup: Setup) {
    const OVER: usize = 17 << 20;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for round in 0..3u8 {
        let sends =
            [round, round + 100].map(|byte| a.ep.send(to_b, vec![byte; OVER]).start().unwrap());
        let sending = tokio::spawn(join_all(sends));
        if round == 1 {
            // The message stays in the transport before the first probe is posted.
            for _ in 0..20 {
                b.domain.progress();
                yield_times(1).await;
            }
        }
        assert_eq!(b.ep.probe().await.unwrap().len, OVER);
        assert!(b.ep.stats().unexpected_bytes <= 16 << 20);
        let claimed = b.ep.probe().claim().await.unwrap();
        assert_eq!(claimed.len(), OVER);
        let second = if round == 2 {
            claimed.discard();
            b.ep.probe().claim().await.unwrap()
        } else {
            let first = claimed.recv_into(Vec::with_capacity(OVER)).await.unwrap();
            assert!(first.len() == OVER && all_bytes_equal(&first, round));
            b.ep.probe().claim().await.unwrap()
        };
        let second = second.recv().await.unwrap();
        assert!(second.len() == OVER && all_bytes_equal(&second, round + 100));
        assert!(sending.await.unwrap().into_iter().all(|sent| sent.is_ok()));
    }
}

/// The length of a message beyond the share of a peer. Only one such message is buffered beyond the
/// budget.
const BEYOND_SHARE: usize = 9 << 20;

/// Opens a receiver, and senders whose messages are beyond the budget: the tag of a message is the
/// index of its sender. Waits until the receiver has found all messages.
async fn senders_beyond_the_budget(
    setup: &Setup,
    count: u8,
) -> (EndpointFixture, Vec<(EndpointFixture, JoinHandle<bool>)>) {
    let setup = setup.single_copy_threshold(usize::MAX);
    let receiver = setup.open_endpoint().await;
    let mut senders = Vec::new();
    for index in 0..count {
        let sender = setup.open_endpoint().await;
        let to_receiver = sender.add_peer(&receiver).await;
        let message = vec![index; BEYOND_SHARE];
        let sent = sender.ep.send(to_receiver, message).tag(index.into());
        let sent = sent.start().unwrap();
        let sending = tokio::spawn(async { sent.await.is_ok() });
        senders.push((sender, sending));
    }
    for index in 0..count {
        let found = receiver.ep.probe().tag(index.into()).await.unwrap();
        assert_eq!(found.len, BEYOND_SHARE);
    }
    assert_eq!(receiver.ep.stats().unexpected_bytes, 0);
    (receiver, senders)
}

/// Claims the message of a sender. `None` if there is no room for it.
async fn claim_from(receiver: &EndpointFixture, index: u8) -> Option<Claimed> {
    let claim = || receiver.ep.probe().tag(index.into()).claim();
    let claimed = claim().await;
    // The most that messages beyond the budget use: one that is longer than its sender's share.
    assert!(receiver.ep.stats().unexpected_bytes < BEYOND_SHARE + (1 << 20));
    match claimed {
        Ok(claimed) => Some(claimed),
        Err(error) => {
            let resource = match &error {
                Error::WouldBlock(resource) => *resource,
                error => panic!("{error}"),
            };
            assert!(
                matches!(resource, Resource::BufferBeyondBudget { len: BEYOND_SHARE, in_use, .. }
                    if in_use > BEYOND_SHARE),
                "{resource:?}"
            );
            assert_eq!(claim().try_claim().unwrap_err(), error);
            None
        }
    }
}

fn assert_is_of(message: &[u8], index: u8) {
    assert!(message.len() == BEYOND_SHARE && all_bytes_equal(message, index));
}

/// While a claimed message is beyond the budget, claims of other such messages fail at once. They
/// succeed when that message is received or discarded. That of a dropped claim can be claimed again
/// and received.
pub(crate) async fn claims_beyond_the_limit_fail_at_once(setup: Setup) {
    let (b, senders) = senders_beyond_the_budget(&setup, 5).await;
    let none_but = async |claimed: u8| {
        for index in claimed + 1..5 {
            assert!(claim_from(&b, index).await.is_none(), "{index}");
        }
    };
    let first = claim_from(&b, 0).await.unwrap();
    none_but(0).await;
    drop(first);
    none_but(0).await;
    let first = claim_from(&b, 0).await.unwrap();
    none_but(0).await;
    assert_is_of(&first.recv().await.unwrap(), 0);
    drop(claim_from(&b, 1).await.unwrap());
    none_but(1).await;
    assert_is_of(&b.ep.recv().tag(1).await.unwrap(), 1);
    claim_from(&b, 2).await.unwrap().discard();
    let third = claim_from(&b, 3).await.unwrap();
    none_but(3).await;
    // A receive needs no room.
    assert_is_of(&b.ep.recv().tag(4).await.unwrap(), 4);
    // The receive of a claimed message is dropped, perhaps while the message arrives.
    drop(third.recv().start().unwrap());
    assert_is_of(&b.ep.recv().tag(3).await.unwrap(), 3);
    for (_, sending) in senders {
        assert!(sending.await.unwrap());
    }
    assert_eq!(b.ep.stats().unexpected_bytes, 0);
}

/// A claimed message whose sender leaves counts until the claim ends, and then no longer.
pub(crate) async fn claims_of_peers_that_leave_end(setup: Setup) {
    let (b, mut senders) = senders_beyond_the_budget(&setup, 4).await;
    for index in 0..3 {
        let claimed = claim_from(&b, index).await.unwrap();
        assert!(claim_from(&b, 3).await.is_none());
        let (sender, _) = senders.remove(0);
        let name = sender.ep.name().clone();
        sender.ep.close().unwrap();
        match index {
            0 => match claimed.recv().await {
                Ok(message) => assert_is_of(&message, index),
                Err(failed) => assert_eq!(failed.error, Error::PeerGone(name)),
            },
            1 => claimed.discard(),
            _ => drop(claimed),
        }
        if index < 2 {
            assert_eq!(b.ep.stats().unexpected_bytes, 0);
        }
    }
    // The message of the dropped claim is in the queue again, if all of it has arrived.
    let last = loop {
        if let Some(last) = claim_from(&b, 3).await {
            break last;
        }
        if let Some(again) = b.ep.probe().tag(2).claim().try_claim().unwrap() {
            again.discard();
        }
        yield_times(1).await;
    };
    assert_is_of(&last.recv().await.unwrap(), 3);
    assert!(senders.remove(0).1.await.unwrap());
}

pub(crate) async fn concurrent_claims_take_each_message_once(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    const COUNT: u64 = 200;
    let claimants: Vec<_> = (0..4)
        .map(|_| {
            let ep = b.ep.clone();
            tokio::spawn(async move {
                let mut numbers = Vec::new();
                loop {
                    let claimed = ep.probe().claim().await.unwrap();
                    yield_times(1).await;
                    match claimed.len() {
                        0 => break numbers,
                        _ => numbers.push(message_number(&claimed.recv().await.unwrap())),
                    }
                }
            })
        })
        .collect();
    send_numbers(&a.ep, to_b, 0..COUNT).await;
    // One empty message for each claimant, which ends it; the claimed message is requeued.
    for _ in 0..4 {
        a.ep.send(to_b, "").await.unwrap();
    }
    let mut all = Vec::new();
    for claimant in claimants {
        all.extend(claimant.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
}

pub(crate) async fn claimed_message_can_be_received_by_post(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 1,
        ..EndpointConfig::default()
    };
    let (a, mut b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    send_numbers(&a.ep, to_b, 0..2).await;
    flush(&a, &b, to_b).await;
    let first = b.ep.probe().claim().await.unwrap();
    let second = b.ep.probe().claim().await.unwrap();
    second.recv().context(9).post().unwrap();
    let refused = first.recv_into(vec![0; 64]).post().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf.len()),
        (
            Error::WouldBlock(Resource::CompletionEntry { capacity: 1 }),
            64
        )
    );
    let entry = b.cq.next().await.unwrap();
    assert_eq!(
        (entry.context, entry.kind, message_number(entry.bytes())),
        (9, OpKind::Recv, 1)
    );
    assert_eq!(
        message_number(&b.ep.recv().await.unwrap()),
        0,
        "the refused message was not requeued"
    );
    assert_eq!(
        b.recv_counter.value(),
        3,
        "each message is counted once, including that of the flush"
    );
}

pub(crate) async fn close_ends_probes_and_claims(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let from_a = b.add_peer(&a).await;
    let mut directed = b.ep.probe().tag(1).from(from_a).into_future();
    assert!(poll_once(&mut directed).await.is_pending());
    a.ep.send(to_b, "kept").await.unwrap();
    let long =
        a.ep.send(to_b, pattern(LONG_LEN, 1))
            .tag(2)
            .start()
            .unwrap();
    let kept = b.ep.probe().claim().await.unwrap();
    let partial = b.ep.probe().tag(2).claim().await.unwrap();
    let name = a.ep.name().clone();
    a.ep.close().unwrap();
    drop(long);
    assert_eq!(directed.await, Err(Error::PeerGone(name.clone())));
    match partial.recv().await {
        // The message had arrived whole before the close.
        Ok(whole) => assert_bytes(&whole, pattern(LONG_LEN, 1)),
        Err(failed) => {
            assert_eq!(failed.error, Error::PeerGone(name));
            assert!(failed.buf.len() < LONG_LEN, "{}", failed.buf.len());
            assert_bytes(&failed.buf, &pattern(LONG_LEN, 1)[..failed.buf.len()]);
        }
    }
    let mut waiting = b.ep.probe().into_future();
    assert!(poll_once(&mut waiting).await.is_pending());
    b.ep.clone().close().unwrap();
    assert_eq!(waiting.await, Err(Error::Canceled));
    assert!(matches!(
        kept.recv().await.unwrap_err().error,
        Error::Closed(_)
    ));
    assert!(matches!(b.ep.probe().try_probe(), Err(Error::Closed(_))));
    assert!(matches!(b.ep.probe().await, Err(Error::Closed(_))));
}

/// The handle of an auto-inserted peer stays valid as long as a message of the peer is claimed.
pub(crate) async fn claim_keeps_auto_inserted_address_valid(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    a.ep.send(to_b, "from a peer").await.unwrap();
    let claimed = b.ep.probe().claim().await.unwrap();
    let auto_addr = claimed.source().unwrap();
    let name = a.ep.name().clone();
    a.ep.close().unwrap();
    let _progress = b.spawn_progress();
    yield_times(100).await;
    assert_eq!(b.av.lookup(auto_addr), Ok(name));
    claimed.discard();
    while b.av.lookup(auto_addr).is_ok() {
        b.domain.progress();
        yield_times(1).await;
    }
    let refused = b.ep.probe().from(auto_addr).await;
    assert_eq!(refused, Err(Error::StaleAddress(auto_addr)));
}

/// A peer that is inserted is found by its handle, also if its message was claimed before the
/// insert.
pub(crate) async fn probe_by_source_matches_after_av_insert(setup: Setup) {
    let config = EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    send_numbers(&a.ep, to_b, 0..2).await;
    let claimed = b.ep.probe().claim().await.unwrap();
    assert_eq!(claimed.source(), Err(Error::UnknownSource));
    let from_a = b.av.insert(a.ep.name().to_string().as_str()).unwrap();
    let found = b.ep.probe().from(from_a).await.unwrap();
    assert_eq!((found.len, found.source), (30, Some(from_a)));
    drop(claimed);
    assert_eq!(message_number(&b.ep.recv().from(from_a).await.unwrap()), 0);
    b.av.remove(from_a).unwrap();
    assert_eq!(b.ep.probe().try_probe().unwrap().unwrap().source, None);
    let message = b.ep.recv().await.unwrap();
    assert_eq!(
        (message_number(&message), message.source()),
        (1, Err(Error::UnknownSource))
    );
}

pub(crate) async fn loaned_message_can_be_claimed(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    // A discarded message still has to be taken in.
    let _progress = b.spawn_progress();
    for end in 0..3 {
        let mut loan = a.ep.domain().try_loan(LONG_LEN).unwrap();
        loan.copy_from_slice(pattern(LONG_LEN, 3));
        let lent = tokio::spawn(a.ep.send(to_b, loan).start().unwrap());
        let claimed = b.ep.probe().claim().await.unwrap();
        match end {
            0 => assert_bytes(&claimed.recv().await.unwrap(), pattern(LONG_LEN, 3)),
            1 => {
                drop(claimed);
                assert_bytes(&b.ep.recv().await.unwrap(), pattern(LONG_LEN, 3));
            }
            _ => claimed.discard(),
        }
        lent.await.unwrap().unwrap();
    }
}

/// After a multi-receive is dropped, a claim finds the messages that it had matched.
pub(crate) async fn claim_finds_messages_of_dropped_multi_recv(setup: Setup) {
    let config = EndpointConfig {
        rx_size: Some(4),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    send_numbers(&a.ep, to_b, 0..10).await;
    flush(&a, &b, to_b).await;
    let multi_recv =
        b.ep.recv_multi(BytesMut::with_capacity(4096))
            .start()
            .unwrap();
    let mut claim = b.ep.probe().claim().into_future();
    assert!(
        poll_once(&mut claim).await.is_pending(),
        "the multi-receive takes all messages"
    );
    drop(multi_recv);
    assert_eq!(
        message_number(&claim.await.unwrap().recv().await.unwrap()),
        0
    );
    for number in 1..10 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
}
