//! Long messages, copied once by cross-memory attach (CMA), or twice through the ring buffer. Only
//! the statistics show the path.

use std::cell::Cell;
use std::task::Poll;

use fabric_async::Error;
use fabric_async::buf::CustomBuf;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::harness::skip_scenario;
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, poll_once, wait_until_stable,
};
use crate::setup::Setup;
use crate::skip::Facility;

fn config_with_threshold(from: usize) -> EndpointConfig {
    EndpointConfig {
        single_copy_threshold: Some(from),
        ..EndpointConfig::default()
    }
}

/// Returns how many messages were sent in segments, and how many by single copy.
fn copy_counts(fixture: &EndpointFixture) -> (u64, u64) {
    let stats = fixture.ep.stats();
    (stats.segmented.count, stats.single_copy_tx.count)
}

/// Lengths on both sides of each threshold; a provider without single copy counts none.
pub(crate) async fn threshold_selects_the_copy_path(setup: Setup) {
    for from in [0, 200_000, usize::MAX] {
        let (a, b, to_b) = endpoint_pair_with(
            &setup,
            config_with_threshold(from),
            config_with_threshold(0),
        )
        .await;
        let mut single_before = 0;
        for (which, len) in [100, 100_000, 199_999, 200_000, 1_000_000]
            .into_iter()
            .enumerate()
        {
            let (segmented_before, _) = copy_counts(&a);
            let send = a.ep.send(to_b, pattern(len, which));
            let (sent, got) = tokio::join!(send, b.ep.recv_into(Vec::with_capacity(len)));
            assert_eq!(sent.unwrap().transfer.len, len);
            assert_bytes(&got.unwrap(), pattern(len, which));
            let (segmented, single) = copy_counts(&a);
            assert!(
                single == single_before || (len >= from && len > 100),
                "{len} bytes with {from}"
            );
            assert!(
                segmented == segmented_before || single == single_before,
                "segmented or single copy, not both"
            );
            single_before = single;
        }
        let (sent, got) = (a.ep.stats(), b.ep.stats());
        assert_eq!(
            sent.single_copy_tx, got.single_copy_rx,
            "both sides count the same"
        );
        assert!(sent.sent.bytes >= sent.single_copy_tx.bytes + sent.segmented.bytes);
        // A receiver with single copy turned off reads no peer's memory either.
        let to_a = b.add_peer(&a).await;
        let (sent, got) = tokio::join!(b.ep.send(to_a, pattern(LONG_LEN, 9)), a.ep.recv());
        sent.unwrap();
        assert_bytes(&got.unwrap(), pattern(LONG_LEN, 9));
        assert!(
            from != usize::MAX
                || a.ep.stats().single_copy_rx.count + b.ep.stats().single_copy_tx.count == 0
        );
    }
}

/// By default, a message that finds the queue empty may be copied once, and one that follows
/// another goes through the ring buffer: all arrive in order, and each is counted by one path.
pub(crate) async fn lone_and_streamed_messages_arrive_in_order(setup: Setup) {
    const COUNT: u64 = 16;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for round in 0..4 {
        let lone = (round * 2) as usize;
        let (sent, got) = tokio::join!(a.ep.send(to_b, pattern(LONG_LEN, lone)), b.ep.recv());
        sent.unwrap();
        assert_bytes(&got.unwrap(), pattern(LONG_LEN, lone));
        let sends: Vec<_> = (0..COUNT)
            .map(|number| {
                a.ep.send(to_b, numbered_message(number, LONG_LEN))
                    .start()
                    .unwrap()
            })
            .collect();
        for number in 0..COUNT {
            assert_bytes(
                &b.ep.recv().await.unwrap(),
                &numbered_message(number, LONG_LEN)[..],
            );
        }
        for send in sends {
            assert_eq!(send.await.unwrap().transfer.len, LONG_LEN);
        }
    }
    let (sent, got) = (a.ep.stats(), b.ep.stats());
    assert_eq!(
        sent.single_copy_tx, got.single_copy_rx,
        "both sides count the same"
    );
    let counted = sent.single_copy_tx.count + sent.segmented.count;
    assert!(counted == 0 || counted == 4 * (1 + COUNT), "{sent:?}");
}

/// Neither sender waits for the other to receive, as long as the budgets last.
pub(crate) async fn both_peers_can_send_before_receiving(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    let exchange = async |one: &EndpointFixture, to, which| {
        one.ep.send(to, pattern(1 << 20, which)).await.unwrap();
        one.ep.recv().await.unwrap()
    };
    for round in 0..5 {
        let (to_one, to_other) =
            tokio::join!(exchange(&a, to_b, round), exchange(&b, to_a, 100 + round));
        assert_bytes(&to_one, pattern(1 << 20, 100 + round));
        assert_bytes(&to_other, pattern(1 << 20, round));
    }
}

/// Messages that stay in their sender's memory block no later message, and are received in any
/// order.
pub(crate) async fn unreceived_single_copy_messages_block_nothing(setup: Setup) {
    const COUNT: u64 = 12;
    let (a, b, to_b) =
        endpoint_pair_with(&setup, config_with_threshold(0), config_with_threshold(0)).await;
    let (sent, got) = tokio::join!(a.ep.send(to_b, pattern(LONG_LEN, 0)), b.ep.recv());
    sent.unwrap();
    got.unwrap();
    if a.ep.stats().single_copy_tx.count == 0 {
        skip_scenario(Facility::Capability, "the kernel refuses process_vm_readv");
    }
    let sends: Vec<_> = (0..COUNT)
        .map(|number| {
            a.ep.send(to_b, numbered_message(number, LONG_LEN))
                .tag(number)
                .start()
                .unwrap()
        })
        .collect();
    flush(&a, &b, to_b).await;
    let waiting = b.ep.stats();
    assert_eq!(waiting.unexpected as u64, COUNT);
    assert!(
        waiting.unexpected_bytes < 17 << 20,
        "{} bytes",
        waiting.unexpected_bytes
    );
    for number in (0..COUNT).rev() {
        let got = b.ep.recv().tag(number).await.unwrap();
        assert_eq!((message_number(&got), got.len()), (number, LONG_LEN));
    }
    for send in sends {
        send.await.unwrap();
    }
    assert_eq!(
        (b.ep.stats().unexpected, b.ep.stats().unexpected_bytes),
        (0, 0)
    );
}

/// Receives that are dropped in the middle of a message, or have too small a buffer, lose no later
/// message.
pub(crate) async fn dropped_and_truncated_receives_lose_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for number in 0..30u64 {
        let send =
            a.ep.send(to_b, numbered_message(number, LONG_LEN))
                .start()
                .unwrap();
        // One poll may suffice for the whole message.
        let mut got = None;
        for _ in 0..number % 5 {
            let mut dropped = b.ep.recv().start().unwrap();
            if let Poll::Ready(message) = poll_once(&mut dropped).await {
                got = Some(message.unwrap());
                break;
            }
        }
        if let Some(got) = got {
            assert_eq!(message_number(&got), number);
        } else if number.is_multiple_of(3) {
            let small =
                b.ep.recv_into(vec![0; 1000].into_boxed_slice())
                    .await
                    .unwrap_err();
            assert_eq!(
                small.error,
                Error::Truncated {
                    len: 1000,
                    lost: LONG_LEN - 1000
                }
            );
            assert_bytes(&small.buf, &numbered_message(number, LONG_LEN)[..1000]);
        } else {
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
        }
        assert_eq!(send.await.unwrap().transfer.len, LONG_LEN);
    }
}

/// A closing endpoint fails the sends that were not received, and the receiver gets no partial
/// message.
pub(crate) async fn close_returns_unreceived_messages(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (sent, got) = tokio::join!(a.ep.send(to_b, pattern(LONG_LEN, 0)), b.ep.recv());
    sent.unwrap();
    got.unwrap();
    // More messages than the budget of the peer and the socket buffers admit, so that some stay
    // with the sender.
    let count = if !setup.shares_memory() { 16 } else { 8 };
    let sends: Vec<_> = (0..count)
        .map(|number| {
            a.ep.send(to_b, numbered_message(number, LONG_LEN))
                .tag(1)
                .start()
                .unwrap()
        })
        .collect();
    wait_until_stable(|| b.ep.stats().unexpected as u64).await;
    a.ep.clone().close().unwrap();
    let ended = Cell::new(None);
    let ending = async {
        let mut arrived = 0;
        for send in sends {
            match send.await {
                Ok(_) => arrived += 1,
                Err(failed) => assert_eq!(failed.buf.len(), LONG_LEN, "{}", failed.error),
            }
        }
        assert!(arrived < count, "more was sent than the peer has room for");
        ended.set(Some(arrived));
        // Messages whose sends succeeded arrive whole, and so do later ones. A message of another
        // peer may overtake them.
        let c = setup.open_endpoint().await;
        let to_b = c.add_peer(&b).await;
        c.ep.send(to_b, "last").tag(1).await.unwrap();
    };
    let reading = async {
        let (mut next, mut is_over) = (0, false);
        while !is_over || ended.get().is_none_or(|arrived| next < arrived) {
            match b.ep.recv().tag(1).await {
                Ok(got) if got.len() == LONG_LEN => {
                    assert!(message_number(&got) >= next, "in order");
                    next = message_number(&got) + 1;
                }
                Ok(_) => is_over = true,
                Err(failed) => assert!(failed.error.is_peer_unavailable(), "{}", failed.error),
            }
        }
    };
    tokio::join!(ending, reading);
}

/// A custom buffer may lie in memory that other processes cannot read.
pub(crate) async fn custom_buffers_are_not_single_copied(setup: Setup) {
    #[derive(Debug)]
    struct HeapBuf(Vec<u8>);
    // SAFETY: the heap memory of a vector does not move, and nothing changes it while it is lent.
    #[allow(unsafe_code)]
    unsafe impl CustomBuf for HeapBuf {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn writable(&mut self) -> Option<&mut [u8]> {
            None
        }
        fn set_filled(&mut self, _: usize) {}
    }
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let buf: Box<dyn CustomBuf> = Box::new(HeapBuf(pattern(LONG_LEN, 3).to_vec()));
    let (sent, got) = tokio::join!(a.ep.send(to_b, buf), b.ep.recv());
    sent.unwrap();
    assert_bytes(&got.unwrap(), pattern(LONG_LEN, 3));
    assert_eq!(a.ep.stats().single_copy_tx.count, 0);
}
