//! A poll of a pending operation moves a bounded number of messages, so that it does not hold up
//! the executor.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use fabric_async::Endpoint;

/// Senders to one endpoint: more than a poll makes a second pass for.
const SENDERS: usize = 20;
const MESSAGES: usize = 400;
/// Maximum messages that a pass receives from one peer.
const MESSAGES_PER_PASS: usize = 64;

/// Counts how often it is woken.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn poll_of_a_receive_ends_after_one_pass_over_many_busy_peers() {
    let receiver = Endpoint::bind("shm://").await.unwrap();
    let mut senders = Vec::new();
    for _ in 0..SENDERS {
        let sender = Endpoint::bind("shm://").await.unwrap();
        let peer = sender.add_peer(receiver.name()).await.unwrap();
        sender.send(peer, "connected").await.unwrap();
        receiver.recv().await.unwrap();
        senders.push((sender, peer));
    }
    for (sender, peer) in &senders {
        for _ in 0..MESSAGES {
            sender.send(*peer, b"message").inject().unwrap();
        }
    }
    // No receive matches the messages.
    let mut recv = pin!(receiver.recv().tag(1).into_future());
    let wakes = Arc::new(WakeCounter::default());
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    let mut polls = 0;
    while receiver.stats().unexpected < SENDERS * MESSAGES {
        let (before, woken) = (receiver.stats().unexpected, wakes.0.load(Ordering::Relaxed));
        assert!(recv.as_mut().poll(&mut cx).is_pending());
        polls += 1;
        let taken = receiver.stats().unexpected - before;
        assert!(
            taken <= SENDERS * MESSAGES_PER_PASS,
            "poll {polls}: {taken}"
        );
        if receiver.stats().unexpected < SENDERS * MESSAGES {
            assert!(taken > 0, "poll {polls} moved nothing");
            let is_woken = wakes.0.load(Ordering::Relaxed) > woken;
            assert!(
                is_woken,
                "poll {polls} left messages and did not wake its task"
            );
        }
    }
    assert!(polls > 1);
    let (sender, peer) = &senders[0];
    sender.send(*peer, "tagged").tag(1).inject().unwrap();
    let received = loop {
        if let Poll::Ready(received) = recv.as_mut().poll(&mut cx) {
            break received.unwrap();
        }
    };
    assert_eq!(received[..], *b"tagged");
}
