//! Statistics: each operation is counted once, and operations in progress are visible.

use bytes::BytesMut;
use fabric_async::atomic::AtomicOp;
use fabric_async::stats::OpStats;
use fabric_async::{Access, Error};
use futures_util::StreamExt;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair, flush};
use crate::payload::{LONG_LEN, pattern, wait_until_stable, yield_times};
use crate::setup::Setup;
use crate::shared_rx_fixture::SharedRxFixture;

fn op_stats(count: u64, bytes: u64) -> OpStats {
    OpStats { count, bytes }
}

pub(crate) async fn messages_are_counted_on_both_sides(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert_eq!(
        (a.ep.stats().sent, b.ep.stats().received),
        (op_stats(0, 0), op_stats(0, 0))
    );
    for len in [10, 20, 300_000] {
        let (sent, got) = tokio::join!(a.ep.send(to_b, vec![7; len]), b.ep.recv());
        sent.unwrap();
        got.unwrap();
    }
    a.ep.send(to_b, b"four").inject().unwrap();
    a.ep.send(to_b, "posted").post().unwrap();
    let mut loan = a.ep.domain().try_loan(5000).unwrap();
    loan.fill(1);
    a.ep.send(to_b, loan).await.unwrap();
    for _ in 0..3 {
        b.ep.recv().await.unwrap();
    }
    let (sender, receiver) = (a.ep.stats(), b.ep.stats());
    assert_eq!(sender.sent, op_stats(6, 10 + 20 + 300_000 + 4 + 6 + 5000));
    assert_eq!(receiver.received, sender.sent);
    assert_eq!(
        (sender.failed, receiver.failed, sender.received),
        (0, 0, op_stats(0, 0))
    );
    assert!(sender.inline >= 2 && sender.inline <= 6, "{sender:?}");
    assert!(
        sender.loaned <= 1 && receiver.peers == 1,
        "{sender:?} {receiver:?}"
    );
    let failed =
        b.ep.recv_into(vec![0; 2].into_boxed_slice())
            .start()
            .unwrap();
    a.ep.send(to_b, "too long").await.unwrap();
    assert!(matches!(
        failed.await.unwrap_err().error,
        Error::Truncated { .. }
    ));
    assert_eq!((b.ep.stats().failed, b.ep.stats().received.count), (1, 6));
    a.ep.send(to_b, vec![0; 100]).await.unwrap();
    a.ep.send(to_b, vec![0; 100]).await.unwrap();
    wait_until_stable(|| b.ep.stats().unexpected as u64).await;
    while b.ep.stats().unexpected < 2 {
        b.domain.progress();
        tokio::task::yield_now().await;
    }
    assert!(b.ep.stats().unexpected_bytes >= 200);
    b.ep.recv().await.unwrap();
    b.ep.recv().await.unwrap();
    assert_eq!(
        (b.ep.stats().unexpected, b.ep.stats().unexpected_bytes),
        (0, 0)
    );
}

pub(crate) async fn one_sided_operations_are_counted(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    assert_eq!(b.domain.stats().regions, 1);
    a.ep.write(to_b, remote.at(0), vec![1; 9]).await.unwrap();
    a.ep.write(to_b, remote.at(0), &[1; 3]).inject().unwrap();
    a.ep.read(to_b, remote.slice(..)).await.unwrap();
    a.ep.atomic(to_b, remote.at(0), AtomicOp::Sum, 1u64)
        .await
        .unwrap();
    a.ep.fetch_add(to_b, remote.at(0), 1u32).await.unwrap();
    a.ep.write(to_b, remote.at(64), "beyond").await.unwrap_err();
    a.ep.write(to_b, remote.at(0), "data")
        .data(1)
        .await
        .unwrap();
    let stats = a.ep.stats();
    assert_eq!(
        (stats.written, stats.read, stats.atomics),
        (op_stats(3, 16), op_stats(1, 64), op_stats(2, 12))
    );
    while b.ep.stats().remote_ops.count == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        b.ep.stats().remote_ops,
        op_stats(1, 4),
        "the write with data"
    );
}

pub(crate) async fn domain_stats_report_ops_in_progress(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let receives: Vec<_> = (0..3).map(|_| b.ep.recv().start().unwrap()).collect();
    assert_eq!(b.domain.stats().operations, 3);
    let before = b.domain.stats();
    for (number, receive) in receives.into_iter().enumerate() {
        a.ep.send(to_b, vec![0; number]).await.unwrap();
        assert_eq!(receive.await.unwrap().len(), number);
    }
    let after = b.domain.stats();
    assert!(
        after.polls >= before.polls && after.passes > before.passes,
        "{before:?} {after:?}"
    );
    assert!(after.spins_succeeded >= before.spins_succeeded && after.parks >= before.parks);
    assert_eq!((after.operations, after.regions), (0, 0));
    let ep = b.ep.clone();
    b.ep.close().unwrap();
    assert_eq!(
        ep.stats(),
        Default::default(),
        "a closed endpoint has no statistics"
    );
}

/// A message is counted once, when the program receives it, also if it was requeued before.
pub(crate) async fn each_message_is_counted_once(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    // Awaited, unexpected, and long messages.
    for len in [10, 20_000, LONG_LEN] {
        let (sent, got) = tokio::join!(a.ep.send(to_b, pattern(len, 1)), b.ep.recv());
        sent.unwrap();
        got.unwrap();
        assert_counts_match(&a, &b);
        let sent = a.ep.send(to_b, pattern(len, 2)).start().unwrap();
        b.ep.probe().await.unwrap();
        b.ep.recv().await.unwrap();
        sent.await.unwrap();
        assert_counts_match(&a, &b);
        // Matched, not polled, and requeued.
        let first = b.ep.recv().start().unwrap();
        a.ep.send(to_b, pattern(len, 3)).await.unwrap();
        flush(&a, &b, to_b).await;
        let before = b.ep.stats().received;
        drop(first);
        let second = b.ep.recv_into(Vec::with_capacity(len)).start().unwrap();
        yield_times(3).await;
        drop(second);
        assert_eq!(
            b.ep.stats().received,
            before,
            "the program has not received the message"
        );
        assert_eq!(b.ep.recv().await.unwrap().len(), len);
        assert_counts_match(&a, &b);
    }
    // Claimed, requeued, and claimed again.
    a.ep.send(to_b, pattern(300, 4)).await.unwrap();
    drop(b.ep.probe().claim().await.unwrap());
    let claimed = b.ep.probe().claim().await.unwrap();
    drop(claimed.recv().start().unwrap());
    b.ep.probe().claim().await.unwrap().recv().await.unwrap();
    assert_counts_match(&a, &b);
    // A loan.
    let mut loan = a.ep.domain().try_loan(5000).unwrap();
    loan.fill(1);
    a.ep.send(to_b, loan).await.unwrap();
    let lent = b.ep.recv_loan().start().unwrap();
    flush(&a, &b, to_b).await;
    drop(lent);
    b.ep.recv_loan().await.unwrap();
    assert_counts_match(&a, &b);
    // Posted to a queue.
    b.ep.recv_into(vec![0; 8]).post().unwrap();
    a.ep.send(to_b, "posted").await.unwrap();
    b.cq.next().await.unwrap();
    assert_counts_match(&a, &b);
    assert_eq!((a.ep.stats().failed, b.ep.stats().failed), (0, 0));
}

/// Each message of a multi-receive is counted once.
pub(crate) async fn each_multi_recv_message_is_counted_once(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let buf = || BytesMut::with_capacity(10_000);
    let mut messages = b.ep.recv_multi(buf()).start().unwrap();
    for number in 0..6 {
        a.ep.send(to_b, vec![number; 100]).await.unwrap();
    }
    flush(&a, &b, to_b).await;
    for _ in 0..2 {
        messages.next().await.unwrap().unwrap();
    }
    // Four messages were not taken.
    drop(messages);
    let mut messages = b.ep.recv_multi(buf()).start().unwrap();
    messages.next().await.unwrap().unwrap();
    drop(messages);
    b.ep.recv().await.unwrap();
    b.ep.recv_multi(buf()).post().unwrap();
    for _ in 0..2 {
        b.cq.next().await.unwrap();
    }
    assert_counts_match(&a, &b);
    assert_eq!(
        b.ep.stats().received.count,
        7,
        "seven, including that of the flush"
    );
}

/// A message of an endpoint with a shared receive context is counted by the endpoint and by the
/// context.
pub(crate) async fn each_shared_rx_message_is_counted_once(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    for endpoint in &fixture.endpoints {
        let peer = a.ep.add_peer(endpoint.name()).await.unwrap();
        for len in [10, 20_000] {
            let first = fixture.shared_rx.recv().start().unwrap();
            a.ep.send(peer, pattern(len, 1)).await.unwrap();
            while fixture.recv_counter.value() == 0 {
                tokio::task::yield_now().await;
                fixture.domain.progress();
            }
            drop(first);
            fixture.shared_rx.recv().await.unwrap();
        }
    }
    let received = fixture.shared_rx.stats().received;
    assert_eq!(received, a.ep.stats().sent);
    let mut at_endpoints = op_stats(0, 0);
    for endpoint in &fixture.endpoints {
        let received = endpoint.stats().received;
        assert_eq!(received, op_stats(2, 20_010));
        at_endpoints += received;
    }
    assert_eq!(received, at_endpoints);
}

/// Each write with data is counted once at the target.
pub(crate) async fn each_write_with_data_is_counted_once(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = b.domain.alloc(LONG_LEN, rights).unwrap();
    let remote = region.remote();
    let lens = [0, 8, 5000, LONG_LEN];
    for (data, len) in (0..).zip(lens) {
        let write = a.ep.write(to_b, remote.at(0), pattern(len, 1)).data(data);
        let (wrote, entry) = tokio::join!(write, b.cq.next());
        wrote.unwrap();
        assert_eq!(entry.unwrap().transfer.data, Some(data));
    }
    let total = lens.iter().sum::<usize>() as u64;
    assert_eq!(b.ep.stats().remote_ops, op_stats(4, total));
    assert_eq!(a.ep.stats().written, b.ep.stats().remote_ops);
    assert_eq!(b.ep.stats().received, op_stats(0, 0));
}

/// Checks that the receiver has counted the messages and bytes that the sender has counted.
#[track_caller]
fn assert_counts_match(a: &EndpointFixture, b: &EndpointFixture) {
    assert_eq!(b.ep.stats().received, a.ep.stats().sent);
}
