//! Multi-receives (`FI_MULTI_RECV`): several messages in one buffer.

use bytes::{Bytes, BytesMut};
use fabric_async::{Caps, Class, Completion, Endpoint, Error, FiAddr, MultiRecv, OpKind, Resource};
use futures_util::StreamExt;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, poll_once, yield_times,
};
use crate::setup::Setup;

fn empty_buffer(bytes: usize) -> BytesMut {
    BytesMut::with_capacity(bytes)
}

/// Returns the next message, which must not be truncated.
async fn next_message(messages: &mut MultiRecv) -> Bytes {
    messages
        .next()
        .await
        .expect("the stream has not ended")
        .unwrap()
        .into_buf()
}

async fn next_entry(fixture: &mut EndpointFixture) -> Completion {
    fixture.cq.next().await.expect("the queue is open")
}

/// Returns the numbers of the messages in one buffer, to the end of its stream.
async fn remaining_numbers(messages: &mut MultiRecv) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(message) = messages.next().await {
        numbers.push(message_number(&message.unwrap()));
    }
    numbers
}

async fn send_numbers(a: &Endpoint, to: FiAddr, numbers: std::ops::Range<u64>, len: usize) {
    for number in numbers {
        a.send(to, numbered_message(number, len)).await.unwrap();
    }
}

pub(crate) async fn messages_share_one_buffer(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let from_a = b.add_peer(&a).await;
    let lengths = [0, 1, 8, 56, 57, 600, 0, 4096, 9000];
    let sum: usize = lengths.iter().sum();
    let buf = empty_buffer(sum + 100);
    let start = buf.as_ptr() as usize;
    let mut messages = b.ep.recv_multi(buf).min_free(100).start().unwrap();
    for (which, len) in lengths.into_iter().enumerate() {
        a.ep.send(to_b, pattern(len, which).to_vec())
            .data(which as u64)
            .await
            .unwrap();
    }
    let mut kept = Vec::new();
    for (which, len) in lengths.into_iter().enumerate() {
        let message = messages.next().await.unwrap().unwrap();
        assert_eq!(
            (message.len(), message.source(), message.data()),
            (len, Ok(from_a), Some(which as u64))
        );
        assert_bytes(&message, pattern(len, which));
        kept.push(message.into_buf());
    }
    let mut at = start;
    for message in kept.iter().filter(|message| !message.is_empty()) {
        assert_eq!(
            message.as_ptr() as usize,
            at,
            "messages are adjacent, inside the buffer"
        );
        at += message.len();
    }
    assert!(
        poll_once(&mut messages.next()).await.is_pending(),
        "a message of 100 bytes fits"
    );
    a.ep.send(to_b, vec![1]).await.unwrap();
    assert_eq!(&next_message(&mut messages).await[..], [1]);
    assert!(messages.next().await.is_none() && messages.next().await.is_none());
    let rest = messages.into_rest();
    assert_eq!((rest.len(), rest.capacity()), (0, 99));
    for (which, message) in kept.iter().enumerate() {
        assert_bytes(message, pattern(lengths[which], which));
    }
    assert_eq!(
        (b.recv_counter.value(), b.recv_counter.errors()),
        (lengths.len() as u64 + 1, 0),
        "each message is counted"
    );
    // The buffer is whole again when all messages are dropped.
    drop(kept);
    let mut rest = rest;
    assert!(rest.try_reclaim(sum + 100));
    assert_eq!(rest.as_ptr() as usize, start);
}

pub(crate) async fn message_too_long_for_the_rest_goes_to_next_receive(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    // A long send may complete only while its receiver makes progress.
    let _progress = b.spawn_progress();
    for unexpected in [false, true] {
        let lengths = [400, 500, 200, 30_000, 90_000, 10];
        let send = async || {
            for (which, len) in lengths.into_iter().enumerate() {
                a.ep.send(to_b, pattern(len, which).to_vec()).await.unwrap();
            }
        };
        if unexpected {
            send().await;
            flush(&a, &b, to_b).await;
        }
        let mut first = b.ep.recv_multi(empty_buffer(1000)).start().unwrap();
        let mut second = b.ep.recv_multi(empty_buffer(100_000)).start().unwrap();
        let mut third =
            b.ep.recv_multi(empty_buffer(90_000))
                .min_free(0)
                .start()
                .unwrap();
        if !unexpected {
            send().await;
        }
        assert_bytes(&next_message(&mut first).await, pattern(400, 0));
        assert_bytes(&next_message(&mut first).await, pattern(500, 1));
        assert!(
            first.next().await.is_none(),
            "the third message does not fit"
        );
        assert_bytes(&next_message(&mut second).await, pattern(200, 2));
        assert_bytes(&next_message(&mut second).await, pattern(30_000, 3));
        assert!(second.next().await.is_none());
        assert_bytes(&next_message(&mut third).await, pattern(90_000, 4));
        let mut rest = [first, second].map(|messages| messages.into_rest().capacity());
        rest.sort_unstable();
        assert_eq!(rest, [100, 69_800]);
        let last = b.ep.recv().start().unwrap();
        assert_bytes(&last.await.unwrap(), pattern(10, 5));
        assert!(third.next().await.is_none());
    }
}

pub(crate) async fn multi_recv_truncates_only_into_an_unused_buffer(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (len, which) in [(1001, 1), (60_000, 2), (LONG_LEN, 3)] {
        let mut messages = b.ep.recv_multi(empty_buffer(1000)).start().unwrap();
        let behind = b.ep.recv().start().unwrap();
        let sends = async {
            a.ep.send(to_b, pattern(len, which).to_vec()).await.unwrap();
            a.ep.send(to_b, "next").await.unwrap();
        };
        let receives = async {
            let cut = messages.next().await.unwrap().unwrap_err();
            assert_eq!(
                cut.error,
                Error::Truncated {
                    len: 1000,
                    lost: len - 1000
                }
            );
            assert_bytes(&cut.buf, pattern(1000, which));
            assert!(messages.next().await.is_none());
            assert_eq!(&behind.await.unwrap()[..], b"next");
        };
        tokio::join!(sends, receives);
        assert_eq!(messages.into_rest().capacity(), 0);
    }
}

pub(crate) async fn multi_recv_matches_in_posting_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let first = b.ep.recv().start().unwrap();
    let mut messages =
        b.ep.recv_multi(empty_buffer(100))
            .min_free(70)
            .start()
            .unwrap();
    let last = b.ep.recv().start().unwrap();
    let tagged = b.ep.recv().tag(1).start().unwrap();
    send_numbers(&a.ep, to_b, 0..4, 20).await;
    a.ep.send(to_b, "tagged").tag(1).await.unwrap();
    assert_eq!(message_number(&first.await.unwrap()), 0);
    assert_eq!(remaining_numbers(&mut messages).await, [1, 2,]);
    assert_eq!(&tagged.await.unwrap()[..], b"tagged");
    assert_eq!(message_number(&last.await.unwrap()), 3);
    // Tagged messages are matched by mask.
    let mut even =
        b.ep.recv_multi(empty_buffer(1000))
            .tag_ignoring(0, !1)
            .start()
            .unwrap();
    for tag in 0..10 {
        a.ep.send(to_b, numbered_message(tag, 8))
            .tag(tag)
            .await
            .unwrap();
    }
    for tag in (0..10).step_by(2) {
        let message = even.next().await.unwrap().unwrap();
        assert_eq!((message.tag(), message_number(&message)), (Some(tag), tag));
    }
    for tag in (1..10).step_by(2) {
        assert_eq!(message_number(&b.ep.recv().tag(tag).await.unwrap()), tag);
    }
}

pub(crate) async fn several_senders_fill_multi_recv_buffers(setup: Setup) {
    let b = setup.open_endpoint().await;
    let mut senders = Vec::new();
    for which in 0..3u64 {
        let a = setup.open_endpoint().await;
        let to_b = a.add_peer(&b).await;
        senders.push(tokio::spawn(async move {
            for number in 0..100 {
                let len = [8, 100, 3000, 150_000, 20][(number % 5) as usize];
                a.ep.send(to_b, numbered_message(1000 * which + number, len))
                    .await
                    .unwrap();
            }
            a
        }));
    }
    let (mut expected, mut buffers) = ([0, 1000, 2000], 0);
    while expected != [100, 1100, 2100] {
        buffers += 1;
        let mut messages = b.ep.recv_multi(empty_buffer(1 << 20)).start().unwrap();
        while let Some(message) = messages.next().await {
            let number = message_number(&message.unwrap());
            let next = &mut expected[(number / 1000) as usize];
            assert_eq!(number, *next, "in the order of each sender");
            *next += 1;
            if expected == [100, 1100, 2100] {
                break;
            }
        }
    }
    assert!(
        buffers >= 9,
        "{buffers} buffers of 1 MiB had more than 9 MB of messages"
    );
    for sender in senders {
        sender.await.unwrap();
    }
}

pub(crate) async fn dropped_multi_recv_requeues_in_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for taken in 0..6 {
        let mut messages = b.ep.recv_multi(empty_buffer(10_000)).start().unwrap();
        send_numbers(&a.ep, to_b, 0..5, 50).await;
        for number in 0..taken.min(5) {
            assert_eq!(message_number(&next_message(&mut messages).await), number);
        }
        flush(&a, &b, to_b).await;
        if taken == 5 {
            drop(messages);
            continue;
        }
        // A receive is posted before the multi-receive is dropped, and two are posted after it.
        let waiting = b.ep.recv().start().unwrap();
        drop(messages);
        let mut rest =
            b.ep.recv_multi(empty_buffer(120))
                .min_free(0)
                .start()
                .unwrap();
        send_numbers(&a.ep, to_b, 5..9, 50).await;
        assert_eq!(message_number(&waiting.await.unwrap()), taken);
        let last = b.ep.recv().start().unwrap();
        assert_eq!(remaining_numbers(&mut rest).await, [taken + 1, taken + 2]);
        assert_eq!(message_number(&last.await.unwrap()), taken + 3);
        for number in taken + 4..9 {
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
        }
    }
}

pub(crate) async fn dropping_mid_message_loses_nothing(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for (which, polls) in [0u64, 1, 2, 3, 5, 9, 20].into_iter().enumerate() {
        let first = a.ep.send(to_b, numbered_message(1, 30)).start().unwrap();
        let long =
            a.ep.send(to_b, pattern(LONG_LEN, which).to_vec())
                .start()
                .unwrap();
        let after = a.ep.send(to_b, numbered_message(2, 30)).start().unwrap();
        let sending = tokio::spawn(async move {
            (
                first.await.unwrap(),
                long.await.unwrap(),
                after.await.unwrap(),
            )
        });
        let mut messages =
            b.ep.recv_multi(empty_buffer(LONG_LEN + 1000))
                .start()
                .unwrap();
        assert_eq!(message_number(&next_message(&mut messages).await), 1);
        let mut early = Vec::new();
        for _ in 0..polls {
            if let std::task::Poll::Ready(Some(message)) = poll_once(&mut messages.next()).await {
                early.push(message.unwrap().into_buf());
            }
            yield_times(1).await;
        }
        let rest = messages.into_rest();
        assert!(
            rest.capacity() == 970 + LONG_LEN || rest.capacity() <= 970,
            "{}",
            rest.capacity()
        );
        for at in early.len()..2 {
            early.insert(at, b.ep.recv().await.unwrap().into_bytes());
        }
        assert_bytes(&early[0], pattern(LONG_LEN, which));
        assert_eq!(message_number(&early[1]), 2);
        sending.await.unwrap();
    }
}

/// A stream that is not read takes at most `rx_attr.size` messages; the others wait at the sender.
pub(crate) async fn unread_message_stream_stalls_sender(setup: Setup) {
    let config = EndpointConfig {
        rx_size: Some(4),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    let mut messages =
        b.ep.recv_multi(empty_buffer(1 << 16))
            .min_free(0)
            .start()
            .unwrap();
    let empty = 500;
    let sending = tokio::spawn(async move {
        for _ in 0..empty {
            a.ep.send(to_b, Vec::new()).await.unwrap();
        }
        send_numbers(&a.ep, to_b, 0..200, 100).await;
        a
    });
    // The domain makes progress while no task takes a message.
    while b.recv_counter.value() < 4 {
        b.domain.progress();
        yield_times(1).await;
    }
    for _ in 0..50 {
        b.domain.progress();
        yield_times(1).await;
    }
    assert_eq!(
        b.recv_counter.value(),
        4,
        "the stream took more than `rx_attr.size` messages"
    );
    for _ in 0..empty {
        assert_eq!(next_message(&mut messages).await.len(), 0);
    }
    for number in 0..200 {
        assert_eq!(message_number(&next_message(&mut messages).await), number);
    }
    drop(sending.await.unwrap());
}

pub(crate) async fn full_message_stream_keeps_its_matched_messages(setup: Setup) {
    let config = EndpointConfig {
        rx_size: Some(2),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    // Unexpected messages, more than the stream may hold untaken.
    send_numbers(&a.ep, to_b, 0..6, 100).await;
    flush(&a, &b, to_b).await;
    let mut messages = b.ep.recv_multi(empty_buffer(10_000)).start().unwrap();
    let mut behind = b.ep.recv().start().unwrap();
    send_numbers(&a.ep, to_b, 6..8, 100).await;
    yield_times(20).await;
    assert!(
        poll_once(&mut behind).await.is_pending(),
        "all messages match the multi-receive posted first"
    );
    for number in 0..3 {
        assert_eq!(message_number(&next_message(&mut messages).await), number);
    }
    messages.cancel();
    assert_eq!(message_number(&behind.await.unwrap()), {
        // The stream yields the messages that it had taken before the cancel.
        let mut own = remaining_numbers(&mut messages).await;
        own.insert(0, 2);
        assert_eq!(own, (2..2 + own.len() as u64).collect::<Vec<_>>());
        own[own.len() - 1] + 1
    });
    let rest = messages.into_rest();
    let mut next = (10_000 - rest.capacity() as u64) / 100 + 1;
    while next < 8 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), next);
        next += 1;
    }
}

/// With and without selective completion.
pub(crate) async fn posted_multi_recv_reports_messages_and_release(setup: Setup) {
    for selective in [false, true] {
        check_reports(
            endpoint_pair_with(
                &setup,
                EndpointConfig::default(),
                EndpointConfig {
                    selective_completion: selective,
                    ..EndpointConfig::default()
                },
            )
            .await,
        )
        .await;
    }
}

async fn check_reports((a, mut b, to_b): (EndpointFixture, EndpointFixture, FiAddr)) {
    for len in [10, 5000, 200_000] {
        let control =
            b.ep.recv_multi(empty_buffer(3 * len + 5))
                .min_free(6)
                .context(7)
                .post()
                .unwrap();
        b.ep.recv_into(vec![0; len])
            .context(8)
            .completion()
            .post()
            .unwrap();
        let sends = async {
            for which in 0..4 {
                a.ep.send(to_b, pattern(len, which).to_vec())
                    .data(which as u64)
                    .await
                    .unwrap();
            }
        };
        let receives = async {
            let mut order = Vec::new();
            for _ in 0..5 {
                let mut entry = next_entry(&mut b).await;
                assert_eq!(entry.error, None);
                order.push((entry.context, entry.kind));
                if entry.kind == OpKind::MultiRecvRelease {
                    assert_eq!(entry.take_buf::<BytesMut>().unwrap().capacity(), 5);
                } else {
                    let which = entry.transfer.data.unwrap() as usize;
                    assert_eq!(entry.context, if which < 3 { 7 } else { 8 });
                    assert_bytes(entry.bytes(), pattern(len, which));
                    if which < 3 {
                        assert_bytes(&entry.into_result::<Bytes>().unwrap(), pattern(len, which));
                    }
                }
            }
            let of = |wanted| {
                order
                    .iter()
                    .filter(move |(context, _)| *context == wanted)
                    .map(|(_, kind)| *kind)
            };
            assert_eq!(
                of(7).collect::<Vec<_>>(),
                [
                    OpKind::Recv,
                    OpKind::Recv,
                    OpKind::Recv,
                    OpKind::MultiRecvRelease
                ]
            );
            assert_eq!(of(8).collect::<Vec<_>>(), [OpKind::Recv]);
        };
        tokio::join!(sends, receives);
        control.cancel();
    }
    assert!(
        poll_once(&mut b.cq.next()).await.is_pending(),
        "each message completes once"
    );
}

/// When the queue has no free entry, messages wait at their senders, and no message is lost.
pub(crate) async fn full_cq_stalls_multi_recv(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 4,
        ..EndpointConfig::default()
    };
    let (a, mut b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    const COUNT: u64 = 300;
    for unexpected in [false, true] {
        if unexpected {
            send_numbers(&a.ep, to_b, 0..10, 30).await;
            flush(&a, &b, to_b).await;
        }
        let before = b.recv_counter.value();
        b.ep.recv_multi(empty_buffer(1 << 20))
            .context(1)
            .post()
            .unwrap();
        let ep = a.ep.clone();
        let sending = tokio::spawn(async move {
            send_numbers(&ep, to_b, if unexpected { 10 } else { 0 }..COUNT, 30).await;
        });
        while b.recv_counter.value() < before + 3 {
            b.domain.progress();
            yield_times(1).await;
        }
        // All entries are used or reserved.
        let refused = b.ep.recv().context(2).post().unwrap_err();
        assert!(
            matches!(
                refused.error,
                Error::WouldBlock(Resource::CompletionEntry { .. })
            ),
            "{refused}"
        );
        let mut taken = 0;
        while taken < COUNT {
            let entry = next_entry(&mut b).await;
            assert_eq!(
                (entry.context, entry.kind, entry.error.as_ref()),
                (1, OpKind::Recv, None)
            );
            assert_eq!(message_number(entry.bytes()), taken);
            taken += 1;
        }
        sending.await.unwrap();
        // Other operations get entries after the multi-receive has ended.
        let mut out = Vec::new();
        assert_eq!(b.cq.try_read_batch(&mut out, 8), 0);
        for _ in 0..2 {
            b.ep.recv_into(vec![0; 8])
                .tag(99)
                .context(2)
                .post()
                .unwrap();
        }
        let refused = b.ep.recv_into(vec![0; 8]).tag(99).post().unwrap_err();
        assert!(
            matches!(
                refused.error,
                Error::WouldBlock(Resource::CompletionEntry { .. })
            ),
            "one entry is for the release of the buffer: {refused}"
        );
        for tag in [99, 99] {
            a.ep.send(to_b, "x").tag(tag).await.unwrap();
            assert_eq!(next_entry(&mut b).await.context, 2);
        }
        let long = a.ep.send(to_b, vec![0; 1 << 20]).start().unwrap();
        let released = next_entry(&mut b).await;
        assert_eq!(
            (released.context, released.kind, released.error.as_deref()),
            (1, OpKind::MultiRecvRelease, None)
        );
        assert_eq!(
            b.ep.recv().await.unwrap().len(),
            1 << 20,
            "the message that did not fit"
        );
        long.await.unwrap();
    }
}

pub(crate) async fn cancel_returns_the_unused_buffer(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let mut messages = b.ep.recv_multi(empty_buffer(1000)).start().unwrap();
    messages.cancel();
    assert!(messages.next().await.is_none());
    assert_eq!(messages.into_rest().capacity(), 1000);

    let mut messages = b.ep.recv_multi(empty_buffer(1000)).start().unwrap();
    send_numbers(&a.ep, to_b, 0..2, 100).await;
    flush(&a, &b, to_b).await;
    messages.cancel();
    messages.cancel();
    a.ep.send(to_b, "for the next").await.unwrap();
    assert_eq!(remaining_numbers(&mut messages).await, [0, 1]);
    assert_eq!(messages.into_rest().capacity(), 800);
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"for the next");

    let control =
        b.ep.recv_multi(empty_buffer(1000))
            .context(3)
            .post()
            .unwrap();
    a.ep.send(to_b, numbered_message(5, 100)).await.unwrap();
    assert_eq!(message_number(next_entry(&mut b).await.bytes()), 5);
    control.cancel();
    let mut released = next_entry(&mut b).await;
    assert_eq!(
        (released.context, released.kind),
        (3, OpKind::MultiRecvRelease)
    );
    assert_eq!(released.error.as_deref(), Some(&Error::Canceled));
    assert_eq!(released.take_buf::<BytesMut>().unwrap().capacity(), 900);
    control.cancel();
    assert!(poll_once(&mut b.cq.next()).await.is_pending());
}

/// The buffer is released after the partial message has arrived.
pub(crate) async fn cancel_mid_message_waits_for_the_message(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let sending =
        a.ep.send(to_b, pattern(LONG_LEN, 4).to_vec())
            .start()
            .unwrap();
    let control =
        b.ep.recv_multi(empty_buffer(LONG_LEN + 100))
            .context(1)
            .post()
            .unwrap();
    let sending = tokio::spawn(async move { sending.await.unwrap() });
    for _ in 0..3 {
        b.domain.progress();
        yield_times(1).await;
    }
    control.cancel();
    let mut first = next_entry(&mut b).await;
    if first.kind == OpKind::Recv {
        assert_bytes(first.bytes(), pattern(LONG_LEN, 4));
        first = next_entry(&mut b).await;
        assert_eq!(first.take_buf::<BytesMut>().unwrap().capacity(), 100);
    } else {
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(LONG_LEN, 4));
    }
    assert_eq!(
        (first.kind, first.error.as_deref()),
        (OpKind::MultiRecvRelease, Some(&Error::Canceled))
    );
    sending.await.unwrap();
}

pub(crate) async fn close_cancels_multi_recvs(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let mut messages = b.ep.recv_multi(empty_buffer(1000)).tag(1).start().unwrap();
    b.ep.recv_multi(empty_buffer(1000))
        .context(2)
        .post()
        .unwrap();
    a.ep.send(to_b, numbered_message(1, 10))
        .tag(1)
        .await
        .unwrap();
    a.ep.send(to_b, numbered_message(2, 10)).await.unwrap();
    flush(&a, &b, to_b).await;
    b.ep.clone().close().unwrap();
    assert_eq!(
        message_number(&next_message(&mut messages).await),
        1,
        "the messages that had arrived are delivered"
    );
    assert_eq!(
        messages.next().await.unwrap().unwrap_err().error,
        Error::Canceled
    );
    assert!(messages.next().await.is_none());
    assert_eq!(messages.into_rest().capacity(), 990);
    assert_eq!(message_number(next_entry(&mut b).await.bytes()), 2);
    let mut released = next_entry(&mut b).await;
    assert_eq!(
        (released.kind, released.error.as_deref()),
        (OpKind::MultiRecvRelease, Some(&Error::Canceled))
    );
    assert_eq!(released.take_buf::<BytesMut>().unwrap().capacity(), 990);
}

pub(crate) async fn dropped_cq_loses_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let EndpointFixture {
        ep,
        cq,
        av,
        send_counter: sends,
        recv_counter: recvs,
        domain,
        eq,
        fabric,
        info,
    } = b;
    let control = ep.recv_multi(empty_buffer(1000)).post().unwrap();
    drop(cq);
    a.ep.send(to_b, "for the next receive").await.unwrap();
    assert_eq!(&ep.recv().await.unwrap()[..], b"for the next receive");
    control.cancel();
    assert_eq!(
        ep.recv_multi(empty_buffer(10))
            .min_free(0)
            .post()
            .unwrap_err()
            .error,
        Error::Closed(Class::CompletionQueue)
    );
    drop((ep, av, sends, recvs, domain, eq, fabric, info));
}

pub(crate) async fn peer_close_ends_directed_multi_recv(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let other = setup.open_endpoint().await;
    let other_to_b = other.add_peer(&b).await;
    let from_a = b.add_peer(&a).await;
    let mut messages =
        b.ep.recv_multi(empty_buffer(1000))
            .from(from_a)
            .start()
            .unwrap();
    send_numbers(&other.ep, other_to_b, 50..52, 20).await;
    send_numbers(&a.ep, to_b, 0..3, 20).await;
    assert_eq!(message_number(&next_message(&mut messages).await), 0);
    let waiting = tokio::spawn(async move {
        let mut got = Vec::new();
        loop {
            match messages
                .next()
                .await
                .expect("the failure is an item of the stream")
            {
                Ok(message) => got.push(message_number(&message)),
                Err(failed) => break (got, failed.error, messages),
            }
        }
    });
    let name = a.ep.name().clone();
    a.ep.close().unwrap();
    let (got, error, mut messages) = waiting.await.unwrap();
    assert_eq!((got, error), (vec![1, 2], Error::PeerGone(name)));
    assert!(messages.next().await.is_none());
    assert_eq!(messages.into_rest().capacity(), 940);
    for number in 50..52 {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
}

pub(crate) async fn directed_multi_recv_matches_after_av_insert(setup: Setup) {
    let config = EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config.clone()).await;
    // One message arrives before the handle is removed, and one is taken after the removal.
    let from_a = b.av.insert(a.ep.name().to_string().as_str()).unwrap();
    let mut messages =
        b.ep.recv_multi(empty_buffer(1000))
            .from(from_a)
            .start()
            .unwrap();
    send_numbers(&a.ep, to_b, 0..2, 20).await;
    assert_eq!(message_number(&next_message(&mut messages).await), 0);
    flush(&a, &b, to_b).await;
    b.av.remove(from_a).unwrap();
    assert_eq!(message_number(&next_message(&mut messages).await), 1);
    assert_eq!(
        messages.next().await.unwrap().unwrap_err().error,
        Error::StaleAddress(from_a)
    );
    // Messages of unknown source match any-source receives only. Two messages wait; the any-source
    // receive is posted after the insert.
    let mut any_source = b.ep.recv_multi(empty_buffer(1000)).tag(1).start().unwrap();
    send_numbers(&a.ep, to_b, 2..4, 20).await;
    flush(&a, &b, to_b).await;
    let again = b.av.insert(a.ep.name().to_string().as_str()).unwrap();
    let mut directed =
        b.ep.recv_multi(empty_buffer(1000))
            .from(again)
            .start()
            .unwrap();
    assert_eq!(message_number(&next_message(&mut directed).await), 2);
    assert_eq!(message_number(&next_message(&mut directed).await), 3);
    assert!(poll_once(&mut any_source.next()).await.is_pending());
}

/// A long loan is copied in several passes; later messages of its sender are delivered after it.
pub(crate) async fn loaned_messages_keep_their_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut messages = b.ep.recv_multi(empty_buffer(3 * LONG_LEN)).start().unwrap();
    for which in 0..2 {
        let mut loan = a.ep.domain().try_loan(LONG_LEN).unwrap();
        loan.copy_from_slice(pattern(LONG_LEN, which));
        let lent = a.ep.send(to_b, loan).start().unwrap();
        let after =
            a.ep.send(to_b, numbered_message(which as u64, 40))
                .start()
                .unwrap();
        let sending = tokio::spawn(async move { (lent.await.unwrap(), after.await.unwrap()) });
        assert_bytes(&next_message(&mut messages).await, pattern(LONG_LEN, which));
        assert_eq!(
            message_number(&next_message(&mut messages).await),
            which as u64
        );
        sending.await.unwrap();
    }
}

pub(crate) async fn invalid_multi_recv_is_refused(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 1,
        rx_size: Some(1),
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    let mut full = empty_buffer(8);
    full.extend_from_slice(&[1; 8]);
    let refused = b.ep.recv_multi(full).start().unwrap_err();
    assert!(
        matches!(refused.error, Error::Invalid { .. }),
        "{}",
        refused.error
    );
    assert_eq!(&refused.buf[..], [1; 8]);
    let refused =
        b.ep.recv_multi(empty_buffer(100))
            .min_free(101)
            .start()
            .unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }) && refused.buf.capacity() == 100);
    let refused = b.ep.recv_multi(empty_buffer(100)).post().unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }) && refused.buf.capacity() == 100);
    let mut held = empty_buffer(100);
    held.extend_from_slice(b"before");
    let one = b.ep.recv().start().unwrap();
    let refused = b.ep.recv_multi(held).start().unwrap_err();
    assert!(
        matches!(
            refused.error,
            Error::WouldBlock(Resource::ReceiveEntry { .. })
        ),
        "{refused}"
    );
    assert_eq!(
        (&refused.buf[..], refused.buf.capacity()),
        (&b"before"[..], 100),
        "the whole buffer is returned"
    );
    drop(one);
    let mut messages = b.ep.recv_multi(refused.buf).min_free(94).start().unwrap();
    a.ep.send(to_b, "behind").await.unwrap();
    assert_eq!(&next_message(&mut messages).await[..], b"behind");
    assert!(messages.next().await.is_none());
    let other = setup
        .open_endpoint()
        .await
        .av
        .insert(b.ep.name().to_string().as_str())
        .unwrap();
    let refused =
        b.ep.recv_multi(empty_buffer(100))
            .from(other)
            .start()
            .unwrap_err();
    assert_eq!(refused.error, Error::StaleAddress(other));
    // A capability that is left out of the info is not available.
    let mut info = b.info.clone();
    for caps in [&mut info.caps, &mut info.rx.caps] {
        *caps -= Caps::MULTI_RECV;
    }
    let ep = b
        .domain
        .endpoint(&info)
        .unwrap()
        .bind_av(&b.av)
        .unwrap()
        .enable()
        .unwrap();
    let refused = ep.recv_multi(empty_buffer(100)).start().unwrap_err();
    assert!(
        matches!(refused.error, Error::NotSupported(_)),
        "{}",
        refused.error
    );
    drop(ep.recv_multi(empty_buffer(100)).tag(1).start().unwrap());
    assert_eq!(
        ep.recv_multi(empty_buffer(100))
            .tag(1)
            .post()
            .unwrap_err()
            .error,
        Error::Unbound(Class::CompletionQueue)
    );
}
