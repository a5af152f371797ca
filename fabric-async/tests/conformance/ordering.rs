//! Order, and what happens to messages nobody receives for a long time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::payload::{number_of, numbered, pattern, settled};
use crate::setup::Setup;
use crate::station::{Plan, pair, pair_of};

pub(crate) async fn three_senders_keep_their_order(setup: Setup) {
    const EACH: u64 = 5000;
    let r = setup.station().await;
    let mut senders = Vec::new();
    for _ in 0..3 {
        let s = setup.station().await;
        let (to_r, source) = (s.meet(&r).await, r.av.insert(s.ep.name()).unwrap());
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
                    s.ep.send(to_r, numbered(number, len)).await.unwrap();
                }
                s
            })
        })
        .collect();
    for _ in 0..3 * EACH {
        let got = r.ep.recv().await.unwrap();
        let expected = next
            .get_mut(&got.source().unwrap())
            .expect("one of the three");
        assert_eq!(number_of(&got), *expected);
        *expected += 1;
    }
    assert!(next.values().all(|count| *count == EACH));
    for task in tasks {
        task.await.unwrap();
    }
}

pub(crate) async fn a_window_of_receives_fills_in_posting_order(setup: Setup) {
    const COUNT: u64 = 1000;
    let (a, b, to_b) = pair(&setup).await;
    let post = || b.ep.recv_into(Vec::with_capacity(64)).start().unwrap();
    let mut window: VecDeque<_> = (0..32).map(|_| post()).collect();
    let sender = tokio::spawn(async move {
        for number in 0..COUNT {
            a.ep.send(to_b, numbered(number, 16)).await.unwrap();
        }
        a
    });
    for number in 0..COUNT {
        let got = window
            .pop_front()
            .expect("one is always posted")
            .await
            .unwrap();
        assert_eq!(number_of(&got), number);
        window.push_back(post());
    }
    sender.await.unwrap();
}

pub(crate) async fn long_and_short_messages_keep_their_order(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let lengths = [8, 200_000, 8, 9000, 60, 17_000, 8, 1 << 20, 8];
    let sends = async {
        let posted: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(number, &len)| {
                a.ep.send(to_b, numbered(number as u64, len))
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
            assert_eq!((number_of(&got), got.len()), (number as u64, len));
        }
    };
    tokio::join!(sends, receives);
}

/// 64 MiB at a receiver that wants nothing of it: sooner or later the sender has to wait.
pub(crate) async fn unexpected_bytes_are_bounded_and_nothing_is_lost(setup: Setup) {
    const COUNT: u64 = 1024;
    const LEN: usize = 64 << 10;
    let (a, b, to_b) = pair(&setup).await;
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let sender = tokio::spawn(async move {
        for number in 0..COUNT {
            a.ep.send(to_b, numbered(number, LEN)).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
        a
    });
    // Keeps the receiver's domain moving without taking anything.
    let never = b.ep.clone();
    let idle = tokio::spawn(async move { never.recv().tag(0xdead).await.map(drop) });
    let stopped = settled(|| sent.load(Ordering::SeqCst)).await;
    assert!(
        stopped < COUNT,
        "all of {COUNT} messages were taken in while nobody receives"
    );
    for number in 0..COUNT {
        let got = b.ep.recv().await.unwrap();
        assert_eq!((number_of(&got), got.len()), (number, LEN));
    }
    sender.await.unwrap();
    idle.abort();
    assert!(idle.await.unwrap_err().is_cancelled());
}

/// One sender has filled the budget; another one's messages for a posted receive go through.
pub(crate) async fn what_is_held_back_does_not_hold_back_others(setup: Setup) {
    let small = Plan {
        tx_size: Some(16),
        ..Plan::default()
    };
    let (a, r, a_to_r) = pair_of(&setup, small, Plan::default()).await;
    let c = setup.station().await;
    let c_to_r = c.meet(&r).await;
    let from_c = r.av.insert(c.ep.name()).unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let stalled = tokio::spawn(async move {
        for number in 0..1024 {
            a.ep.send(a_to_r, numbered(number, 64 << 10)).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
        a
    });
    let idle = tokio::spawn({
        let ep = r.ep.clone();
        async move { ep.recv().tag(0xdead).await.map(drop) }
    });
    settled(|| sent.load(Ordering::SeqCst)).await;
    for which in 0..50 {
        let (got, sent) = tokio::join!(
            r.ep.recv().from(from_c),
            c.ep.send(c_to_r, pattern(100 + 1000 * which, which))
        );
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], pattern(100 + 1000 * which, which));
    }
    for number in 0..1024 {
        assert_eq!(number_of(&r.ep.recv().await.unwrap()), number);
    }
    stalled.await.unwrap();
    idle.abort();
}
