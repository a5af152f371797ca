//! Senders that are faster than their receivers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric_async::{Error, FiAddr, Resource};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair_with};
use crate::payload::{let_other_tasks_run, message_number, numbered_message, poll_once};
use crate::setup::Setup;

const MESSAGE_LEN: usize = 64 << 10;

/// Returns a configuration with few transmit credits.
fn few_credits() -> EndpointConfig {
    EndpointConfig {
        tx_size: Some(16),
        ..EndpointConfig::default()
    }
}

/// After the first refused `inject` the sender makes no further call; the accepted messages are
/// still sent as room becomes available.
pub(crate) async fn injected_messages_leave_without_further_calls(setup: Setup) {
    let (a, b, to_b) =
        endpoint_pair_with(&setup, EndpointConfig::default(), EndpointConfig::default()).await;
    let len = a.info.tx.inject_size.min(4096);
    let mut sent = 0u64;
    while sent < 4096
        && a.ep
            .send(to_b, &numbered_message(sent, len))
            .inject()
            .is_ok()
    {
        sent += 1;
    }
    assert!(sent > 0);
    for number in 0..sent {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
}

pub(crate) async fn sends_run_out_of_credit_and_recover(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    for round in 0..3 {
        let mut posted = Vec::new();
        let refused = loop {
            assert!(
                posted.len() < 4096,
                "256 MiB were accepted without a receive"
            );
            let message = numbered_message(posted.len() as u64, MESSAGE_LEN);
            let at = message.as_ptr();
            match a.ep.send(to_b, message).start() {
                Ok(op) => posted.push(op),
                Err(failed) => break (failed, at),
            }
        };
        let (failed, at) = refused;
        assert!(
            matches!(
                failed.error,
                Error::WouldBlock(Resource::TransmitCredit { .. })
            ),
            "{failed}"
        );
        assert_eq!(failed.error.errno(), 11);
        assert_eq!(
            (failed.buf.as_ptr(), failed.buf.len()),
            (at, MESSAGE_LEN),
            "the buffer comes back"
        );
        // Under automatic progress a credit may have been returned meanwhile.
        let refused_again = match a.ep.send(to_b, failed.buf).start() {
            Ok(op) => {
                posted.push(op);
                None
            }
            Err(again) => {
                assert!(
                    matches!(
                        again.error,
                        Error::WouldBlock(Resource::TransmitCredit { .. })
                    ),
                    "{again}"
                );
                Some(again.buf)
            }
        };
        let count = posted.len() as u64;
        let sends = async {
            for op in posted {
                op.await.unwrap();
            }
        };
        let receives = async {
            for number in 0..count {
                assert_eq!(
                    message_number(&b.ep.recv().await.unwrap()),
                    number,
                    "round {round}"
                );
            }
        };
        tokio::join!(sends, receives);
        if let Some(buf) = refused_again {
            let (last, got) = tokio::join!(a.ep.send(to_b, buf).start().unwrap(), b.ep.recv());
            last.unwrap();
            assert_eq!(
                got.unwrap().len(),
                MESSAGE_LEN,
                "a refused message was sent"
            );
        }
    }
}

/// Sends until no credit is left; returns the number of sends that were accepted.
fn use_up_credits(a: &EndpointFixture, to_b: FiAddr) -> u64 {
    let mut count = 0;
    while let Ok(op) =
        a.ep.send(to_b, numbered_message(count, MESSAGE_LEN))
            .start()
    {
        drop(op);
        count += 1;
    }
    count
}

pub(crate) async fn awaited_send_is_pending_until_receiver_reads(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(
        &setup,
        few_credits().with_small_socket_buffers(),
        EndpointConfig::default().with_small_socket_buffers(),
    )
    .await;
    // More messages than the receiver, which makes no progress, and the transport between the two
    // buffer.
    let mut count = 0;
    let mut sends = Vec::new();
    while count < 600 {
        let mut op =
            a.ep.send(to_b, numbered_message(count, MESSAGE_LEN))
                .into_future();
        if poll_once(&mut op).await.is_pending() {
            sends.push(op);
        }
        count += 1;
    }
    let mut waiting = sends.pop().expect("sends run out of credit");
    let_other_tasks_run().await;
    assert!(poll_once(&mut waiting).await.is_pending());
    let receives = async {
        for number in 0..count {
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
        }
    };
    let earlier = async {
        for send in sends {
            send.await.unwrap();
        }
    };
    let ((), sent, ()) = tokio::join!(earlier, waiting, receives);
    assert_eq!(sent.unwrap().len(), MESSAGE_LEN);
}

pub(crate) async fn queued_sends_keep_their_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(
        &setup,
        few_credits().with_small_socket_buffers(),
        EndpointConfig::default().with_small_socket_buffers(),
    )
    .await;
    let before = use_up_credits(&a, to_b);
    // Long and short messages: none may overtake the queued ones. There are more of them than the
    // receiver, which makes no progress, and the transport buffer, so that some are queued in any
    // case.
    let count = before + 800;
    let mut waiting = Vec::new();
    for number in before..count {
        let len = if number % 2 == 0 { MESSAGE_LEN } else { 8 };
        let mut send = a.ep.send(to_b, numbered_message(number, len)).into_future();
        if poll_once(&mut send).await.is_pending() {
            waiting.push(send);
        }
    }
    let refused =
        a.ep.send(to_b, numbered_message(0, 8))
            .start()
            .map(drop)
            .unwrap_err();
    assert!(
        is_out_of_credit(&refused.error, to_b),
        "a short send does not overtake either: {refused}"
    );
    let injected = a.ep.send(to_b, b"x").inject().unwrap_err();
    assert!(is_out_of_credit(&injected, to_b), "{injected}");
    let sends = async {
        for op in waiting {
            op.await.unwrap();
        }
    };
    let receives = async {
        for number in 0..count {
            assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn stalled_peer_does_not_block_other_peers(setup: Setup) {
    let (a, stalled, to_stalled) =
        endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let c = setup.open_endpoint().await;
    let to_c = a.add_peer(&c).await;
    let before = use_up_credits(&a, to_stalled);
    let waiting: Vec<_> = (before..before + 50)
        .map(|n| {
            a.ep.send(to_stalled, numbered_message(n, MESSAGE_LEN))
                .into_future()
        })
        .collect();
    for number in 0..100 {
        let len = if number % 10 == 0 { 200_000 } else { 100 };
        let (sent, got) = tokio::join!(a.ep.send(to_c, numbered_message(number, len)), c.ep.recv());
        sent.unwrap();
        assert_eq!(message_number(&got.unwrap()), number);
    }
    let sends = async {
        for op in waiting {
            op.await.unwrap();
        }
    };
    let receives = async {
        for number in 0..before + 50 {
            assert_eq!(message_number(&stalled.ep.recv().await.unwrap()), number);
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn endpoints_flooding_each_other_make_progress(setup: Setup) {
    const COUNT: u64 = 1500;
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), few_credits()).await;
    let to_a = b.add_peer(&a).await;
    let sent_count = Arc::new(AtomicU64::new(0));
    let flood = |own: EndpointFixture, peer, sent_count: Arc<AtomicU64>| async move {
        let sends = async {
            for number in 0..COUNT {
                let len = if number % 4 == 0 { 30_000 } else { 3_000 };
                own.ep
                    .send(peer, numbered_message(number, len))
                    .await
                    .unwrap();
                sent_count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let receives = async {
            for number in 0..COUNT {
                assert_eq!(message_number(&own.ep.recv().await.unwrap()), number);
            }
        };
        tokio::join!(sends, receives);
        own
    };
    let (one, two) = (
        tokio::spawn(flood(a, to_b, sent_count.clone())),
        tokio::spawn(flood(b, to_a, sent_count.clone())),
    );
    // Neither endpoint closes before the other has received everything.
    let (_a, _b) = (one.await.unwrap(), two.await.unwrap());
    assert_eq!(sent_count.load(Ordering::Relaxed), 2 * COUNT);
}

pub(crate) async fn started_receives_are_limited_to_rx_size(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(
        &setup,
        EndpointConfig::default(),
        EndpointConfig {
            rx_size: Some(2),
            ..EndpointConfig::default()
        },
    )
    .await;
    let first = b.ep.recv_into(vec![1]).start().unwrap();
    let second = b.ep.recv_into(vec![2]).start().unwrap();
    let refused = b.ep.recv_into(vec![3]).start().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (
            Error::WouldBlock(Resource::ReceiveEntry { limit: 2 }),
            vec![3]
        )
    );
    let refused = b.ep.recv_into(vec![3]).post().unwrap_err();
    assert!(
        matches!(
            refused.error,
            Error::WouldBlock(Resource::ReceiveEntry { .. })
        ),
        "{refused}"
    );
    // Awaited receives are not limited by `rx_attr.size`.
    let mut third = b.ep.recv_into(vec![0; 2]).into_future();
    assert!(poll_once(&mut third).await.is_pending());
    drop(first);
    assert!(
        b.ep.recv_into(vec![4]).start().is_err(),
        "the awaited receive occupies an entry as well"
    );
    drop(second);
    let fourth = b.ep.recv_into(vec![0; 2]).start().unwrap();
    for text in ["3", "4", "5"] {
        a.ep.send(to_b, text).await.unwrap();
    }
    assert_eq!(&third.await.unwrap()[..], b"3");
    assert_eq!(&fourth.await.unwrap()[..], b"4");
    assert_eq!(
        &b.ep.recv_into(vec![5]).start().unwrap().await.unwrap()[..],
        b"5"
    );
}

/// Returns whether the error says that no credit for this peer is free, with the credits that the
/// peer holds.
fn is_out_of_credit(error: &Error, to: FiAddr) -> bool {
    let Error::WouldBlock(Resource::TransmitCredit {
        peer,
        in_use,
        peer_limit,
        ..
    }) = *error
    else {
        return false;
    };
    assert!(error.to_string().contains("Endpoint::reserve"), "{error}");
    peer == to && in_use <= peer_limit
}
