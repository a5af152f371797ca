//! Messages over shared memory that arrive shortly before their receive is posted stay in the ring
//! until then, so they are copied once.

use fabric_async::{Endpoint, FiAddr, WaitPolicy};

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
