//! Messages over shared memory that arrive shortly before their receive is posted stay in the ring
//! until then, so they are copied once.

use std::future::{Future, IntoFuture};
use std::task::Poll;

use fabric_async::{Endpoint, Error, FiAddr, WaitPolicy};

/// Two connected endpoints that only make progress when a test polls them.
async fn endpoint_pair() -> (Endpoint, Endpoint, FiAddr) {
    let options = Endpoint::options().wait_policy(WaitPolicy::Spin);
    let a = options.clone().bind("shm://").await.unwrap();
    let b = options.bind("shm://").await.unwrap();
    let to_b = a.add_peer(b.name()).await.unwrap();
    a.send(to_b, "connected").await.unwrap();
    assert_eq!(b.recv().await.unwrap().buf[..], *b"connected");
    (a, b, to_b)
}

#[tokio::test(flavor = "current_thread")]
async fn message_stays_in_the_ring_until_its_receive_is_posted() {
    let (a, b, to_b) = endpoint_pair().await;
    a.send(to_b, "first").inject().unwrap();
    a.send(to_b, "second").inject().unwrap();
    assert!(b.domain().progress(), "the pass made no progress");
    assert_eq!(b.stats().unexpected, 0, "a message was buffered");
    for expected in ["first", "second"] {
        assert_eq!(b.recv().await.unwrap().buf[..], *expected.as_bytes());
        assert_eq!(b.stats().unexpected, 0, "a message was buffered");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn messages_without_receives_are_buffered_after_some_passes() {
    let (a, b, to_b) = endpoint_pair().await;
    for _ in 0..3 {
        a.send(to_b, "message").inject().unwrap();
    }
    while b.domain().progress() {}
    assert_eq!(b.stats().unexpected, 3);
    for _ in 0..3 {
        assert_eq!(b.recv().await.unwrap().buf[..], *b"message");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn probe_finds_a_message_in_the_ring() {
    let (a, b, to_b) = endpoint_pair().await;
    a.send(to_b, "message").inject().unwrap();
    let found = b.probe().try_probe().unwrap();
    assert_eq!(found.map(|message| message.len), Some(7));
}

#[tokio::test(flavor = "current_thread")]
async fn message_of_a_peer_that_has_closed_is_received() {
    let (a, b, to_b) = endpoint_pair().await;
    a.send(to_b, "last").inject().unwrap();
    drop(a);
    while b.domain().progress() {}
    assert_eq!(b.recv().await.unwrap().buf[..], *b"last");
}

#[tokio::test(flavor = "current_thread")]
async fn awaited_receives_keep_order_and_count_each_message_once() {
    let (a, b, to_b) = endpoint_pair().await;
    let received = b.stats().received.count;
    for round in 0..20u8 {
        let started = (round % 3 == 0).then(|| b.recv().start().unwrap());
        a.send(to_b, vec![round, 0]).inject().unwrap();
        a.send(to_b, vec![round, 1]).data(9).await.unwrap();
        a.send(to_b, vec![round, 2]).tag(7).await.unwrap();
        a.send(to_b, vec![round; 9000]).await.unwrap();
        a.send(to_b, vec![round, 4]).inject().unwrap();
        if let Some(started) = started {
            assert_eq!(started.await.unwrap().buf[..], [round, 0]);
        } else {
            assert_eq!(b.recv().await.unwrap().buf[..], [round, 0]);
        }
        let with_data = b.recv().await.unwrap();
        assert_eq!(
            (&with_data.buf[..], with_data.data()),
            (&[round, 1][..], Some(9))
        );
        assert_eq!(b.recv().await.unwrap().buf[..], [round; 9000]);
        assert_eq!(b.recv().await.unwrap().buf[..], [round, 4]);
        assert_eq!(b.recv().tag(7).await.unwrap().buf[..], [round, 2]);
    }
    assert_eq!(b.stats().received.count, received + 100);
}

#[tokio::test(flavor = "current_thread")]
async fn awaited_receives_serve_all_peers() {
    let (a, b, to_b) = endpoint_pair().await;
    let mut peers = vec![(a, to_b)];
    for _ in 0..2 {
        let peer = Endpoint::bind("shm://").await.unwrap();
        let to_b = peer.add_peer(b.name()).await.unwrap();
        peers.push((peer, to_b));
    }
    for (number, (peer, to_b)) in peers.iter().enumerate() {
        for _ in 0..30 {
            peer.send(*to_b, vec![number as u8]).inject().unwrap();
        }
    }
    let mut counts = [0; 3];
    for _ in 0..30 {
        counts[usize::from(b.recv().await.unwrap().buf[0])] += 1;
    }
    assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
    for _ in 0..60 {
        counts[usize::from(b.recv().await.unwrap().buf[0])] += 1;
    }
    assert_eq!(counts, [30; 3]);
}

#[tokio::test(flavor = "current_thread")]
async fn awaited_receive_takes_only_a_message_that_it_accepts() {
    let (a, b, to_b) = endpoint_pair().await;
    let c = Endpoint::bind("shm://").await.unwrap();
    let c_to_b = c.add_peer(b.name()).await.unwrap();
    let from_c = b.add_peer(c.name()).await.unwrap();
    a.send(to_b, "from a").inject().unwrap();
    let mut directed = std::pin::pin!(b.recv().from(from_c).into_future());
    let polled = std::future::poll_fn(|cx| Poll::Ready(directed.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "{polled:?}");
    c.send(c_to_b, "from c").inject().unwrap();
    assert_eq!(directed.await.unwrap().buf[..], *b"from c");
    assert_eq!(b.recv().await.unwrap().buf[..], *b"from a");

    a.send(to_b, "too long").inject().unwrap();
    let failed = b.recv_into(Vec::with_capacity(3)).await.unwrap_err();
    assert_eq!(failed.error, Error::Truncated { len: 3, lost: 5 });
    assert_eq!(failed.buf, b"too");
}

/// A peer whose short messages have always arrived delays the long message of another peer by a
/// bounded number of receives.
#[tokio::test(flavor = "current_thread")]
async fn awaited_short_messages_let_a_long_message_arrive() {
    const LONG_LEN: usize = 1 << 20;
    let (a, b, to_b) = endpoint_pair().await;
    let c = Endpoint::options()
        .wait_policy(WaitPolicy::Spin)
        .single_copy_threshold(usize::MAX)
        .bind("shm://")
        .await
        .unwrap();
    let c_to_b = c.add_peer(b.name()).await.unwrap();
    for _ in 0..50 {
        a.send(to_b, "short").inject().unwrap();
    }
    let sending = c.send(c_to_b, vec![7; LONG_LEN]).start().unwrap();
    let mut receives = 0;
    loop {
        c.domain().progress();
        a.send(to_b, "short").inject().unwrap();
        if b.recv().await.unwrap().len() == LONG_LEN {
            break;
        }
        receives += 1;
        assert!(receives < 200, "the long message does not arrive");
    }
    sending.await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn messages_after_a_truncated_one_stay_in_the_ring() {
    let (a, b, to_b) = endpoint_pair().await;
    let truncated = b.recv_into(Vec::with_capacity(3)).start().unwrap();
    for _ in 0..40 {
        a.send(to_b, "message").inject().unwrap();
    }
    b.domain().progress();
    assert_eq!(b.stats().unexpected, 0, "a message was buffered");
    let failed = truncated.await.unwrap_err();
    assert!(matches!(failed.error, Error::Truncated { .. }));
    for _ in 1..40 {
        assert_eq!(b.recv().await.unwrap().buf[..], *b"message");
    }
}
