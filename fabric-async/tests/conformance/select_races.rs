//! Receives that lose races in `select!`, and receives with timeouts.

use std::time::Duration;

use tokio::time::timeout;

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{TestRng, message_number, numbered_message, yield_times};
use crate::setup::Setup;

const MESSAGE_COUNT: u64 = 3000;

fn message_len(number: u64) -> usize {
    match number % 40 {
        0 => 20_000,
        1 => 9_000,
        other => 8 + other as usize,
    }
}

pub(crate) async fn select_loses_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let sender = tokio::spawn(async move {
        let mut rng = TestRng::new(3);
        for number in 0..MESSAGE_COUNT {
            a.ep.send(to_b, numbered_message(number, message_len(number)))
                .await
                .unwrap();
            yield_times(rng.next() % 3).await;
        }
        a
    });
    let (mut rng, mut next, mut lost_races) = (TestRng::new(4), 0, 0_u64);
    while next < MESSAGE_COUNT {
        let limit = yield_times(rng.next() % 4);
        if rng.next().is_multiple_of(2) {
            tokio::select! {
                biased;
                () = limit => lost_races += 1,
                got = b.ep.recv() => {
                    assert_eq!(message_number(&got.unwrap()), next);
                    next += 1;
                }
            }
        } else {
            tokio::select! {
                biased;
                got = b.ep.recv_into(Vec::with_capacity(32_768)) => {
                    assert_eq!(message_number(&got.unwrap()), next);
                    next += 1;
                }
                () = limit => lost_races += 1,
            }
        }
    }
    assert!(lost_races > 0, "no receive was dropped");
    sender.await.unwrap();
}

/// In a `select!` over tagged and untagged receives each message arrives once, in order among the
/// messages of its kind.
pub(crate) async fn select_over_tagged_and_untagged_loses_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let sender = tokio::spawn(async move {
        for number in 0..MESSAGE_COUNT {
            let send =
                a.ep.send(to_b, numbered_message(number, message_len(number)));
            let send = if number % 3 == 0 {
                send.tag(number)
            } else {
                send
            };
            send.await.unwrap();
        }
        a
    });
    let mut tagged = (0..MESSAGE_COUNT)
        .filter(|number| number % 3 == 0)
        .peekable();
    let mut plain = (0..MESSAGE_COUNT)
        .filter(|number| number % 3 != 0)
        .peekable();
    while tagged.peek().is_some() || plain.peek().is_some() {
        tokio::select! {
            got = b.ep.recv().tag_ignoring(0, u64::MAX), if tagged.peek().is_some() => {
                let got = got.unwrap();
                assert_eq!(Some(message_number(&got)), tagged.next());
                assert_eq!(got.tag(), Some(message_number(&got)));
            }
            got = b.ep.recv(), if plain.peek().is_some() => {
                assert_eq!(Some(message_number(&got.unwrap())), plain.next());
            }
        }
    }
    sender.await.unwrap();
}

pub(crate) async fn receive_timeouts_lose_no_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let sender = tokio::spawn(async move {
        for number in 0..300 {
            a.ep.send(to_b, numbered_message(number, message_len(number)))
                .await
                .unwrap();
            if number % 16 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        a
    });
    let mut next = 0;
    while next < 300 {
        // With a timeout of zero a receive is polled once.
        let limit = Duration::from_micros(50 * (next % 3));
        if let Ok(got) = timeout(limit, b.ep.recv()).await {
            assert_eq!(message_number(&got.unwrap()), next);
            next += 1;
        }
    }
    sender.await.unwrap();
}
