//! Message order, and messages that stay unexpected for a long time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::endpoint_fixture::{EndpointConfig, endpoint_pair, endpoint_pair_with};
use crate::payload::{message_number, numbered_message, pattern, wait_until_stable};
use crate::setup::Setup;

pub(crate) async fn messages_of_each_of_three_senders_stay_in_order(setup: Setup) {
    const EACH: u64 = 2000;
    let r = setup.open_endpoint().await;
    let mut senders = Vec::new();
    for _ in 0..3 {
        let s = setup.open_endpoint().await;
        let (to_r, source) = (s.add_peer(&r).await, r.av.insert(s.ep.name()).unwrap());
        senders.push((s, to_r, source));
    }
    let mut next: HashMap<_, u64> = senders.iter().map(|(_, _, source)| (*source, 0)).collect();
    let tasks: Vec<_> = senders
        .into_iter()
        .map(|(s, to_r, _)| {
            tokio::spawn(async move {
                for number in 0..EACH {
                    let len = if number % 97 == 0 {
                        20_000
                    } else {
                        8 + (number % 50) as usize
                    };
                    s.ep.send(to_r, numbered_message(number, len))
                        .await
                        .unwrap();
                }
                s
            })
        })
        .collect();
    for _ in 0..3 * EACH {
        let got = r.ep.recv().await.unwrap();
        let expected = next
            .get_mut(&got.source().unwrap())
            .expect("the source is one of the three senders");
        assert_eq!(message_number(&got), *expected);
        *expected += 1;
    }
    assert!(next.values().all(|count| *count == EACH));
    for task in tasks {
        task.await.unwrap();
    }
}

pub(crate) async fn posted_receives_fill_in_posting_order(setup: Setup) {
    const COUNT: u64 = 1000;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let post = || b.ep.recv_into(Vec::with_capacity(64)).start().unwrap();
    let mut window: VecDeque<_> = (0..32).map(|_| post()).collect();
    let sender = tokio::spawn(async move {
        for number in 0..COUNT {
            a.ep.send(to_b, numbered_message(number, 16)).await.unwrap();
        }
        a
    });
    for number in 0..COUNT {
        let got = window
            .pop_front()
            .expect("a receive is posted")
            .await
            .unwrap();
        assert_eq!(message_number(&got), number);
        window.push_back(post());
    }
    sender.await.unwrap();
}

pub(crate) async fn long_and_short_messages_keep_their_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let lengths = [8, 200_000, 8, 9000, 60, 17_000, 8, 1 << 20, 8];
    let sends = async {
        let posted: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(number, &len)| {
                a.ep.send(to_b, numbered_message(number as u64, len))
                    .start()
                    .unwrap()
            })
            .collect();
        for op in posted.into_iter().rev() {
            op.await.unwrap();
        }
    };
    let receives = async {
        for (number, len) in lengths.into_iter().enumerate() {
            let got = b.ep.recv().await.unwrap();
            assert_eq!((message_number(&got), got.len()), (number as u64, len));
        }
    };
    tokio::join!(sends, receives);
}

/// The sender of 64 MiB to a receiver that posts no receive has to wait.
pub(crate) async fn unexpected_bytes_are_bounded_and_nothing_is_lost(setup: Setup) {
    const COUNT: u64 = 1024;
    const LEN: usize = 64 << 10;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let sender = tokio::spawn(async move {
        for number in 0..COUNT {
            a.ep.send(to_b, numbered_message(number, LEN))
                .await
                .unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
        a
    });
    // Keeps the receiver's domain making progress without taking a message.
    let never = b.ep.clone();
    let idle = tokio::spawn(async move { never.recv().tag(0xdead).await.map(drop) });
    let stopped = wait_until_stable(|| sent.load(Ordering::SeqCst)).await;
    assert!(
        stopped < COUNT,
        "all {COUNT} messages were buffered without a receive"
    );
    for number in 0..COUNT {
        let got = b.ep.recv().await.unwrap();
        assert_eq!((message_number(&got), got.len()), (number, LEN));
    }
    sender.await.unwrap();
    idle.abort();
    assert!(idle.await.unwrap_err().is_cancelled());
}

/// When one sender has filled the budget, messages of another sender to posted receives still
/// arrive.
pub(crate) async fn stalled_sender_does_not_block_other_senders(setup: Setup) {
    let small = EndpointConfig {
        tx_size: Some(16),
        ..EndpointConfig::default()
    };
    let (a, r, a_to_r) = endpoint_pair_with(&setup, small, EndpointConfig::default()).await;
    let c = setup.open_endpoint().await;
    let c_to_r = c.add_peer(&r).await;
    let from_c = r.av.insert(c.ep.name()).unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let stalled = tokio::spawn(async move {
        for number in 0..1024 {
            a.ep.send(a_to_r, numbered_message(number, 64 << 10))
                .await
                .unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
        a
    });
    let idle = tokio::spawn({
        let ep = r.ep.clone();
        async move { ep.recv().tag(0xdead).await.map(drop) }
    });
    wait_until_stable(|| sent.load(Ordering::SeqCst)).await;
    for which in 0..50 {
        let (got, sent) = tokio::join!(
            r.ep.recv().from(from_c),
            c.ep.send(c_to_r, pattern(100 + 1000 * which, which))
        );
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], pattern(100 + 1000 * which, which));
    }
    for number in 0..1024 {
        assert_eq!(message_number(&r.ep.recv().await.unwrap()), number);
    }
    stalled.await.unwrap();
    idle.abort();
}
