//! Completion levels: sends that complete when the message is matched (`FI_MATCH_COMPLETE`) or
//! received (`FI_DELIVERY_COMPLETE`).

use bytes::BytesMut;
use fabric_async::atomic::AtomicOp;
use fabric_async::buf::Gather;
use fabric_async::ops::SendOp;
use fabric_async::{
    Access, CancelOutcome, Completion, Error, FiAddr, OpFlags, Operation, Request, Resource,
    discover,
};
use futures_util::StreamExt;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, poll_once, yield_times,
};
use crate::requirements::LEVELS;
use crate::setup::Setup;

/// A length for each way to send a message; the smallest budget of unexpected messages holds
/// several messages of each length.
const LENGTHS: [usize; 8] = [0, 1, 40, 48, 60, 8192, 100_000, 1 << 20];

/// Checks that discovery offers exactly the levels that the hints ask for.
fn assert_discovery_offers_levels(setup: &Setup) {
    let flags = LEVELS[0] | LEVELS[1];
    let hints = setup.hints().caps(setup.caps).tx_op_flags(flags);
    let found = discover(&hints).unwrap();
    assert!(found.iter().all(|info| info.tx.op_flags == flags));
}

fn with_level<'a, B: fabric_async::buf::IoBuf>(
    level: OpFlags,
    request: Request<'a, SendOp, B>,
) -> Request<'a, SendOp, B> {
    if level == OpFlags::DELIVERY_COMPLETE {
        request.delivery_complete()
    } else {
        request.match_complete()
    }
}

/// Sends with a completion level and waits until the message is unexpected at the peer: the send is
/// still pending.
async fn start_unexpected<B: fabric_async::buf::IoBuf>(
    (a, b, to_b): (&EndpointFixture, &EndpointFixture, FiAddr),
    request: Request<'_, SendOp, B>,
) -> Operation<B> {
    let mut sent = request
        .start()
        .unwrap_or_else(|failed| panic!("{failed:?}"));
    flush(a, b, to_b).await;
    yield_times(5).await;
    assert!(
        poll_once(&mut sent).await.is_pending(),
        "the message has not been received"
    );
    sent
}

pub(crate) async fn unexpected_send_completes_when_received(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        for (which, len) in LENGTHS.into_iter().enumerate() {
            let tag = which as u64;
            let request = with_level(level, a.ep.send(to_b, pattern(len, which)).tag(tag).data(7));
            let sent = start_unexpected((&a, &b, to_b), request).await;
            let counted = a.send_counter.value();
            let got =
                b.ep.recv_into(Vec::with_capacity(len))
                    .tag(tag)
                    .await
                    .unwrap();
            assert_bytes(&got, pattern(len, which));
            assert_eq!(got.data(), Some(7));
            let done = sent.await.unwrap();
            assert_eq!((done.transfer.len, done.transfer.tag), (len, Some(tag)));
            assert_bytes(done.buf, pattern(len, which));
            assert_eq!(a.send_counter.value(), counted + 1);
        }
    }
}

pub(crate) async fn send_completes_with_a_posted_receive(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        for (which, len) in LENGTHS.into_iter().chain([LONG_LEN]).enumerate() {
            let receive = b.ep.recv().start().unwrap();
            let sent = with_level(level, a.ep.send(to_b, pattern(len, which)));
            // Send and receive wait for each other, in either order of posting.
            let got = if which % 2 == 0 {
                let (got, sent) = tokio::join!(receive, sent);
                assert_eq!(sent.unwrap().transfer.len, len);
                got
            } else {
                let receiving = tokio::spawn(receive);
                assert_eq!(sent.await.unwrap().transfer.len, len);
                receiving.await.unwrap()
            };
            assert_bytes(&got.unwrap(), pattern(len, which));
        }
    }
}

async fn next_entries(fixture: &mut EndpointFixture, count: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.len() < count {
        fixture.cq.read_batch(&mut out, count).await;
    }
    out
}

/// A batch is posted and received in reverse order.
pub(crate) async fn send_completions_follow_receive_order(setup: Setup) {
    const COUNT: u64 = 48;
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        let len = |number: u64| [8, 30, 3000, 20_000][number as usize % 4];
        let all = (0..COUNT).map(|number| {
            with_level(
                level,
                a.ep.send(to_b, numbered_message(number, len(number)))
                    .tag(number)
                    .context(number),
            )
        });
        assert_eq!(a.ep.post_all(all).unwrap(), COUNT as usize);
        flush(&a, &b, to_b).await;
        let mut out = Vec::new();
        assert_eq!(a.cq.try_read_batch(&mut out, 1), 0, "no send has completed");
        for number in (0..COUNT).rev() {
            let got = b.ep.recv().tag(number).await.unwrap();
            assert_eq!(message_number(&got), number);
            let entry = next_entries(&mut a, 1).await.remove(0);
            assert_eq!((entry.context, &entry.error), (number, &None));
            assert_eq!(
                entry.into_result::<Vec<u8>>().unwrap().transfer.len,
                len(number)
            );
        }
    }
}

pub(crate) async fn every_send_kind_supports_levels(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let parts = [vec![1; 5000], vec![2; 9000], vec![3; 40]];
    let whole = parts.concat();
    let sent = start_unexpected(
        (&a, &b, to_b),
        a.ep.send(to_b, Gather::from(parts)).delivery_complete(),
    )
    .await;
    assert_bytes(&b.ep.recv().await.unwrap(), &whole);
    assert_eq!(
        sent.await
            .unwrap()
            .buf
            .into_parts::<Vec<u8>>()
            .unwrap()
            .len(),
        3
    );
    // Loans, with both levels.
    for len in [100, 5 << 20] {
        let mut loan = a.ep.domain().try_loan(len).unwrap();
        loan.copy_from_slice(pattern(len, 1));
        let lent = a.ep.send(to_b, loan).tag(1);
        let mut lent = if len == 100 {
            lent.delivery_complete()
        } else {
            lent.match_complete()
        }
        .start();
        if len == 100 {
            flush(&a, &b, to_b).await;
            assert!(poll_once(lent.as_mut().unwrap()).await.is_pending());
        }
        let got = b.ep.recv().tag(1).await.unwrap();
        assert_bytes(&got, pattern(len, 1));
        lent.unwrap().await.map_err(|failed| failed.error).unwrap();
    }
    // With a credit that was reserved.
    let permit = a.ep.reserve(to_b).await.unwrap();
    let (sent, got) = tokio::join!(
        permit.send(&a.ep, "reserved").delivery_complete(),
        b.ep.recv()
    );
    assert_eq!(
        (sent.unwrap().buf, &got.unwrap()[..]),
        ("reserved", &b"reserved"[..])
    );
}

pub(crate) async fn endpoint_op_flags_set_the_default_level(setup: Setup) {
    assert_discovery_offers_levels(&setup);
    for level in LEVELS {
        let config = EndpointConfig {
            op_flags: level,
            ..EndpointConfig::default()
        };
        let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
        // `transmit_complete` overrides the default level.
        a.ep.send(to_b, "now")
            .tag(1)
            .transmit_complete()
            .await
            .unwrap();
        a.ep.send(to_b, b"not awaited").tag(1).inject().unwrap();
        let mut sent = a.ep.send(to_b, "later").tag(1).start().unwrap();
        let mut lent =
            a.ep.send(to_b, a.ep.domain().try_loan(10).unwrap())
                .tag(1)
                .start()
                .unwrap();
        let marked = a.ep.send(to_b, "").tag(2).transmit_complete();
        let (marked, got) = tokio::join!(marked, b.ep.recv().tag(2));
        marked.unwrap();
        got.unwrap();
        assert!(poll_once(&mut sent).await.is_pending() && poll_once(&mut lent).await.is_pending());
        for _ in 0..4 {
            b.ep.recv().tag(1).await.unwrap();
        }
        sent.await.unwrap();
        lent.await.map_err(|failed| failed.error).unwrap();
    }
}

pub(crate) async fn discarded_message_completes_its_send(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for level in LEVELS {
        for len in [8, 9000, 1 << 20] {
            let sent = start_unexpected(
                (&a, &b, to_b),
                with_level(level, a.ep.send(to_b, pattern(len, 1)).tag(1)),
            )
            .await;
            b.ep.probe().tag(1).claim().await.unwrap().discard();
            assert_eq!(sent.await.unwrap().transfer.len, len);
        }
        // Discarded while the message arrives.
        let sent = with_level(level, a.ep.send(to_b, pattern(LONG_LEN, 1)).tag(1))
            .start()
            .unwrap();
        b.ep.probe().tag(1).claim().await.unwrap().discard();
        let (sent, got) = tokio::join!(sent, async {
            a.ep.send(to_b, "behind").tag(2).await.unwrap();
            b.ep.recv().tag(2).await.unwrap()
        });
        assert_eq!(
            (sent.unwrap().transfer.len, &got[..]),
            (LONG_LEN, &b"behind"[..])
        );
        assert_eq!(b.ep.probe().tag(1).try_probe(), Ok(None));
    }
}

pub(crate) async fn dropped_claim_sends_no_ack(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        let mut sent = start_unexpected(
            (&a, &b, to_b),
            with_level(level, a.ep.send(to_b, vec![5; 100]).tag(1)),
        )
        .await;
        drop(b.ep.probe().tag(1).claim().await.unwrap());
        flush(&a, &b, to_b).await;
        assert!(poll_once(&mut sent).await.is_pending());
        let claimed = b.ep.probe().tag(1).claim().await.unwrap();
        flush(&a, &b, to_b).await;
        assert!(
            poll_once(&mut sent).await.is_pending(),
            "a claimed message is not received"
        );
        assert_eq!(
            claimed
                .recv_into(Vec::with_capacity(100))
                .await
                .unwrap()
                .into_buf(),
            [5; 100]
        );
        sent.await.unwrap();
    }
}

/// A receive that matched the message is dropped before it is polled, and the message is received
/// again: it is acknowledged once.
pub(crate) async fn requeued_message_is_acknowledged_once(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for level in LEVELS {
        let dropped = b.ep.recv().tag(1).start().unwrap();
        let first = with_level(level, a.ep.send(to_b, "first").tag(1));
        let second = a.ep.send(to_b, "second").tag(1).delivery_complete();
        first.await.unwrap();
        drop(dropped);
        let mut second = start_unexpected((&a, &b, to_b), second).await;
        assert_eq!(&b.ep.recv().tag(1).await.unwrap()[..], b"first");
        flush(&a, &b, to_b).await;
        assert!(
            poll_once(&mut second).await.is_pending(),
            "the acknowledgement is of another message"
        );
        assert_eq!(&b.ep.recv().tag(1).await.unwrap()[..], b"second");
        second.await.unwrap();
    }
}

pub(crate) async fn receives_dropped_mid_message_lose_no_ack(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        for number in 0..10u64 {
            let sent = with_level(level, a.ep.send(to_b, numbered_message(number, LONG_LEN)))
                .start()
                .unwrap();
            let mut got = None;
            for _ in 0..number % 4 {
                let mut dropped = b.ep.recv().start().unwrap();
                if let std::task::Poll::Ready(message) = poll_once(&mut dropped).await {
                    got = Some(message.unwrap());
                    break;
                }
            }
            let got = match got {
                Some(got) => got,
                None => b.ep.recv().await.unwrap(),
            };
            assert_eq!(message_number(&got), number);
            assert_eq!(sent.await.unwrap().transfer.len, LONG_LEN);
        }
    }
    assert_eq!(
        (a.send_counter.value(), a.ep.stats().failed),
        (20, 0),
        "each send completes once"
    );
}

/// The credits return with the acknowledgements, and the messages arrive.
pub(crate) async fn dropped_send_returns_its_credit_on_ack(setup: Setup) {
    let config = EndpointConfig {
        tx_size: Some(8),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let _progress = a.spawn_progress();
    for level in LEVELS {
        let mut number = 0u8;
        let refused = loop {
            match with_level(level, a.ep.send(to_b, vec![number; 10]).tag(1)).start() {
                Ok(sent) => drop(sent),
                Err(refused) => break refused,
            }
            number += 1;
        };
        assert!(
            matches!(
                refused.error,
                Error::WouldBlock(Resource::TransmitCredit { .. })
            ),
            "{refused}"
        );
        assert!((1..=8).contains(&number), "{number} sends hold a credit");
        let waiting = with_level(level, a.ep.send(to_b, refused.buf).tag(1)).into_future();
        let taking = async {
            for expected in 0..=number {
                assert_eq!(b.ep.recv().tag(1).await.unwrap()[..], [expected; 10]);
            }
        };
        let (waited, ()) = tokio::join!(waiting, taking);
        waited.unwrap();
        // The last acknowledgements may still be in transit.
        while a.domain.stats().operations > 0 {
            yield_times(1).await;
        }
    }
}

pub(crate) async fn cancel_waits_for_the_ack(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        let sent = start_unexpected(
            (&a, &b, to_b),
            with_level(level, a.ep.send(to_b, vec![9; 20])),
        )
        .await;
        let mut cancel = Box::pin(sent.cancel());
        assert!(
            poll_once(&mut cancel).await.is_pending(),
            "a send that waits for its acknowledgement was canceled"
        );
        assert_eq!(b.ep.recv().await.unwrap()[..], [9; 20]);
        match cancel.await {
            CancelOutcome::Completed(Ok(done)) => assert_eq!(done.buf, [9; 20]),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn truncated_receive_sends_ack(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        for len in [100, 9000, LONG_LEN] {
            let receive =
                b.ep.recv_into(vec![0; 50].into_boxed_slice())
                    .start()
                    .unwrap();
            let (sent, got) =
                tokio::join!(with_level(level, a.ep.send(to_b, pattern(len, 3))), receive);
            assert_eq!(sent.unwrap().transfer.len, len);
            assert_eq!(
                got.unwrap_err().error,
                Error::Truncated {
                    len: 50,
                    lost: len - 50
                }
            );
        }
    }
}

pub(crate) async fn multi_recv_acknowledges_each_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        let first = start_unexpected(
            (&a, &b, to_b),
            with_level(level, a.ep.send(to_b, numbered_message(0, 100))),
        )
        .await;
        let mut messages =
            b.ep.recv_multi(BytesMut::with_capacity(100_000))
                .start()
                .unwrap();
        let second = with_level(level, a.ep.send(to_b, numbered_message(1, 20_000)))
            .start()
            .unwrap();
        for number in 0..2 {
            let message = messages.next().await.unwrap().unwrap();
            assert_eq!(message_number(&message.into_buf()), number);
        }
        first.await.unwrap();
        second.await.unwrap();
        drop(messages);
    }
}

pub(crate) async fn directed_receive_after_av_insert_sends_ack(setup: Setup) {
    let no_auto_insert = EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    };
    for level in LEVELS {
        let (a, b, to_b) =
            endpoint_pair_with(&setup, EndpointConfig::default(), no_auto_insert.clone()).await;
        let sent = start_unexpected(
            (&a, &b, to_b),
            with_level(level, a.ep.send(to_b, "from a").tag(1)),
        )
        .await;
        let receive = b.ep.recv().tag(1);
        let from_a = b.av.insert(a.ep.name()).unwrap();
        let (got, sent) = tokio::join!(receive.from(from_a), sent);
        assert_eq!(
            (&got.unwrap()[..], sent.unwrap().buf),
            (&b"from a"[..], "from a")
        );
    }
}

/// Full ring buffers in both directions do not delay acknowledgements.
pub(crate) async fn endpoints_flooding_each_other_make_progress(setup: Setup) {
    const COUNT: u64 = 60;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    let exchange = async |one: &EndpointFixture, to, level| {
        let sends: Vec<_> = (0..COUNT)
            .map(|number| {
                with_level(
                    level,
                    one.ep.send(to, numbered_message(number, 30_000)).tag(1),
                )
                .start()
                .unwrap()
            })
            .collect();
        for number in 0..COUNT {
            assert_eq!(message_number(&one.ep.recv().tag(1).await.unwrap()), number);
        }
        for sent in sends {
            sent.await.unwrap();
        }
    };
    for _ in 0..3 {
        tokio::join!(exchange(&a, to_b, LEVELS[0]), exchange(&b, to_a, LEVELS[1]));
    }
}

pub(crate) async fn fence_waits_for_the_ack(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        let sent = start_unexpected(
            (&a, &b, to_b),
            with_level(level, a.ep.send(to_b, "before").tag(1)),
        )
        .await;
        let mut fenced = a.ep.send(to_b, "behind").tag(2).fence().start().unwrap();
        assert!(poll_once(&mut fenced).await.is_pending());
        assert_eq!(b.ep.probe().tag(2).try_probe(), Ok(None));
        b.ep.recv().tag(1).await.unwrap();
        let (fenced, got) = tokio::join!(fenced, b.ep.recv().tag(2));
        fenced.unwrap();
        got.unwrap();
        sent.await.unwrap();
    }
}

pub(crate) async fn close_fails_unacknowledged_sends(setup: Setup) {
    for sender_closes in [false, true] {
        let (mut a, b, to_b) = endpoint_pair(&setup).await;
        let received =
            a.ep.send(to_b, "received")
                .delivery_complete()
                .start()
                .unwrap();
        b.ep.recv().await.unwrap();
        let sent = start_unexpected(
            (&a, &b, to_b),
            a.ep.send(to_b, vec![1; 10]).delivery_complete(),
        )
        .await;
        let matched = start_unexpected(
            (&a, &b, to_b),
            a.ep.send(to_b, vec![2; 9000]).match_complete(),
        )
        .await;
        let long =
            a.ep.send(to_b, pattern(LONG_LEN, 1))
                .delivery_complete()
                .start()
                .unwrap();
        a.ep.send(to_b, vec![3; 10])
            .delivery_complete()
            .context(5)
            .post()
            .unwrap();
        // Unacknowledged sends, and sends of which nothing was transmitted.
        if sender_closes {
            a.ep.clone().close().unwrap();
        } else {
            b.ep.clone().close().unwrap();
        }
        let is_expected = |error: &Error| {
            if sender_closes {
                *error == Error::Canceled
            } else {
                error.is_peer_unavailable()
            }
        };
        for (which, len, sent) in [(1, 10, sent), (2, 9000, matched)] {
            let failed = sent.await.unwrap_err();
            assert!(is_expected(&failed.error), "{}", failed.error);
            assert_eq!(failed.buf, vec![which; len]);
        }
        assert!(is_expected(&long.await.unwrap_err().error));
        let entry = next_entries(&mut a, 1).await.remove(0);
        assert!(
            entry.context == 5 && is_expected(entry.error.as_ref().unwrap()),
            "{entry:?}"
        );
        // The send that was received before has succeeded, if the acknowledgement came before the
        // close.
        match received.await {
            Ok(_) => {}
            Err(failed) => assert!(sender_closes, "{failed}"),
        }
    }
}

pub(crate) async fn loopback_sends_support_levels(setup: Setup) {
    let a = setup.open_endpoint().await;
    let me = a.add_peer(&a).await;
    for level in LEVELS {
        for len in LENGTHS {
            let (sent, got) = tokio::join!(
                with_level(level, a.ep.send(me, pattern(len, 4))),
                a.ep.recv()
            );
            assert_eq!(sent.unwrap().transfer.len, len);
            assert_bytes(&got.unwrap(), pattern(len, 4));
        }
    }
}

pub(crate) async fn rma_and_atomics_complete_after_delivery(setup: Setup) {
    let config = EndpointConfig {
        op_flags: OpFlags::DELIVERY_COMPLETE,
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote_at = |offset| region.remote().at(offset);
    for round in 1..=5u64 {
        a.ep.write(to_b, remote_at(0), round.to_le_bytes().to_vec())
            .delivery_complete()
            .await
            .unwrap();
        assert_eq!(region.load::<u64>(0), Ok(round));
        a.ep.atomic(to_b, remote_at(8), AtomicOp::Sum, 1u64)
            .delivery_complete()
            .await
            .unwrap();
        assert_eq!(region.load::<u64>(8), Ok(round));
        assert_eq!(a.ep.fetch_add(to_b, remote_at(8), 0u64).await, Ok(round));
        assert_eq!(
            a.ep.read(to_b, region.remote().slice(..8)).await.unwrap()[..],
            round.to_le_bytes()
        );
    }
}

/// A provider refuses a level that it does not offer, and the endpoint keeps working.
pub(crate) async fn unsupported_level_is_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for level in LEVELS {
        if offers_level(&setup, level) {
            continue;
        }
        let refused = with_level(level, a.ep.send(to_b, vec![1; 10]))
            .await
            .unwrap_err();
        assert!(
            matches!(refused.error, Error::NotSupported(_)),
            "{}",
            refused.error
        );
        let sent = a.ep.send(to_b, refused.buf).transmit_complete();
        let (sent, got) = tokio::join!(sent, b.ep.recv());
        sent.unwrap();
        assert_eq!(got.unwrap()[..], [1; 10]);
    }
}

fn offers_level(setup: &Setup, level: OpFlags) -> bool {
    let hints = setup.hints().caps(setup.caps);
    discover(&hints.tx_op_flags(level)).is_ok()
}

/// A send with `FI_DELIVERY_COMPLETE` succeeds only when the whole message is at the peer's
/// endpoint, for every length, posted or awaited, among other messages.
pub(crate) async fn delivery_complete_means_the_peer_has_the_message(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    for (which, len) in LENGTHS.into_iter().enumerate() {
        let tag = which as u64;
        let sent =
            a.ep.send(to_b, pattern(len, which))
                .tag(tag)
                .data(7)
                .delivery_complete()
                .start()
                .unwrap();
        a.ep.send(to_b, b"behind").inject().unwrap();
        let (sent, got) = tokio::join!(sent, b.ep.recv_into(Vec::with_capacity(len)).tag(tag));
        let (sent, got) = (sent.unwrap(), got.unwrap());
        assert_eq!(
            (sent.transfer.len, sent.transfer.tag, got.data()),
            (len, Some(tag), Some(7))
        );
        assert_bytes(&got, pattern(len, which));
        assert_eq!(&b.ep.recv().await.unwrap()[..], b"behind");
    }
    let all = (0..20).map(|number| {
        a.ep.send(to_b, numbered_message(number, 100))
            .context(number)
            .delivery_complete()
    });
    assert_eq!(a.ep.post_all(all).unwrap(), 20);
    for number in 0..20 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
    let ended = next_entries(&mut a, 20).await;
    assert!(
        ended
            .iter()
            .map(|entry| (entry.context, entry.error.is_none()))
            .eq((0..20).map(|at| (at, true)))
    );
    // A peer that closes acknowledges no further message. The message is longer than the budget.
    let long =
        a.ep.send(to_b, vec![1; 17 << 20])
            .delivery_complete()
            .start()
            .unwrap();
    b.ep.clone().close().unwrap();
    assert!(long.await.unwrap_err().error.is_peer_unavailable());
}
