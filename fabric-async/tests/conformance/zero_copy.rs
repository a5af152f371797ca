//! Zero-copy sends: the kernel reads the message from the buffer. The buffer is returned after the
//! last read, so overwriting it changes no message. Providers without zero-copy sends copy.

use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use fabric_async::{Access, Error, OpKind, SocketOptions};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, WINDOW_OF_A_SEGMENT, endpoint_pair_with,
};
use crate::payload::{message_number, numbered_message, pattern};
use crate::setup::Setup;

const MESSAGE_COUNT: u64 = 24;
/// Long enough for zero-copy, and longer than the socket buffers when the peer reads nothing.
const MESSAGE_LEN: usize = 300_000;

/// Returns configurations for zero-copy of every length, and for a peer with a small receive
/// buffer.
fn zero_copy_configs() -> (EndpointConfig, EndpointConfig) {
    let mut sockets = SocketOptions::new().zero_copy_threshold(0);
    sockets.force_zero_copy = true;
    let narrow = SocketOptions::new().receive_buffer(WINDOW_OF_A_SEGMENT);
    (
        EndpointConfig {
            socket_options: sockets,
            ..EndpointConfig::default()
        },
        EndpointConfig {
            socket_options: narrow,
            ..EndpointConfig::default()
        },
    )
}

/// Returns a numbered message; the length depends on the number.
fn test_message(number: u64) -> Vec<u8> {
    numbered_message(number, MESSAGE_LEN + 40_000 * (number as usize % 5))
}

async fn receive_all(b: &EndpointFixture) {
    for number in 0..MESSAGE_COUNT {
        assert_eq!(message_number(&b.ep.recv().await.unwrap()), number);
    }
}

/// Checks that each send was zero-copy or fell back to copying; setups without zero copy count no
/// send.
fn assert_zero_copy_counts(setup: &Setup, a: &EndpointFixture, count: u64) {
    let stats = a.ep.stats();
    assert!(
        stats.zero_copy + stats.zero_copy_fallbacks <= count,
        "{stats:?}"
    );
    if setup.supports_zero_copy() {
        assert_eq!(
            stats.zero_copy + stats.zero_copy_fallbacks,
            count,
            "{stats:?}"
        );
    }
}

pub(crate) async fn returned_buffers_can_be_overwritten(setup: Setup) {
    let (a, b) = zero_copy_configs();
    let (a, b, to_b) = endpoint_pair_with(&setup, a, b).await;
    let mut sends = JoinSet::new();
    for number in 0..MESSAGE_COUNT {
        let send = a.ep.send(to_b, test_message(number)).start().unwrap();
        sends.spawn(async move {
            let mut buf = send.await.unwrap().buf;
            buf.fill(0xff);
        });
    }
    receive_all(&b).await;
    while let Some(ended) = sends.join_next().await {
        ended.unwrap();
    }
    assert_zero_copy_counts(&setup, &a, MESSAGE_COUNT);
}

/// A buffer that is overwritten when dropped, and reports the drop.
struct PoisonOnDrop(Vec<u8>, Sender<()>);

impl AsRef<[u8]> for PoisonOnDrop {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PoisonOnDrop {
    fn drop(&mut self) {
        self.0.fill(0xff);
        let _ = self.1.send(());
    }
}

fn poison_on_drop(dropped: &Sender<()>, number: u64) -> Bytes {
    Bytes::from_owner(PoisonOnDrop(test_message(number), dropped.clone()))
}

/// Waits until `count` buffers have been dropped.
async fn wait_for_drops(drops: Receiver<()>, count: u64) {
    tokio::task::spawn_blocking(move || (0..count).for_each(|_| drops.recv().unwrap()))
        .await
        .unwrap();
}

pub(crate) async fn dropped_send_keeps_buffer_until_transmitted(setup: Setup) {
    let (a, b) = zero_copy_configs();
    let (a, b, to_b) = endpoint_pair_with(&setup, a, b).await;
    let (dropped, drops) = channel();
    for number in 0..MESSAGE_COUNT {
        drop(
            a.ep.send(to_b, poison_on_drop(&dropped, number))
                .start()
                .unwrap(),
        );
    }
    let _progress = a.spawn_progress();
    receive_all(&b).await;
    wait_for_drops(drops, MESSAGE_COUNT).await;
}

/// Closes in the middle of messages: each arrives whole or not at all, and each buffer is returned
/// once.
pub(crate) async fn endpoint_close_returns_buffers(setup: Setup) {
    let (a, b) = zero_copy_configs();
    let (mut a, b, to_b) = endpoint_pair_with(&setup, a, b).await;
    a.ep.send(to_b, numbered_message(0, 8)).await.unwrap();
    let mut futures = Vec::new();
    for number in 1..MESSAGE_COUNT {
        if number % 2 == 0 {
            a.ep.send(to_b, test_message(number))
                .context(number)
                .post()
                .unwrap();
        } else {
            futures.push((
                number,
                a.ep.send(to_b, test_message(number)).start().unwrap(),
            ));
        }
    }
    a.ep.close().unwrap();
    let reading = async {
        let mut next = 0;
        loop {
            match b.ep.recv().await {
                Ok(got) => {
                    let number = message_number(&got);
                    // The close cancels sends whose bytes the peer has not copied from this
                    // process, and later messages may be in the ring.
                    let is_next = number == next || setup.shares_memory() && number > next;
                    assert!(is_next, "{number} instead of {next}: not in order");
                    next = number;
                }
                Err(failed) => assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}"),
            }
            next += 1;
        }
    };
    let ending = async {
        for (number, send) in futures {
            let buf = match send.await {
                Ok(done) => done.buf,
                Err(failed) => {
                    assert_eq!(failed.error, Error::Canceled);
                    failed.buf
                }
            };
            assert!(buf == test_message(number));
        }
        let mut posted = Vec::new();
        while posted.len() < (2..MESSAGE_COUNT).step_by(2).count() {
            let done = a.cq.next().await.expect("the queue is open");
            assert!(
                done.kind == OpKind::Send
                    && done
                        .error
                        .as_deref()
                        .is_none_or(|error| *error == Error::Canceled)
            );
            let context = done.context;
            posted.push(context);
            let buf = done
                .into_result::<Vec<u8>>()
                .map_or_else(|failed| failed.buf, |done| done.buf);
            assert!(buf == test_message(context));
        }
        posted.sort_unstable();
        assert!(
            posted.iter().copied().eq((2..MESSAGE_COUNT).step_by(2)),
            "{posted:?}"
        );
        assert_eq!(
            a.send_counter.value() + a.send_counter.errors(),
            MESSAGE_COUNT,
            "each send was counted once"
        );
    };
    tokio::select! {
        () = reading => {}
        () = ending => {}
    }
}

/// As `endpoint_close_returns_buffers`, but the peer closes.
pub(crate) async fn peer_close_returns_buffers(setup: Setup) {
    let (a, b) = zero_copy_configs();
    let (a, b, to_b) = endpoint_pair_with(&setup, a, b).await;
    let sends: Vec<_> = (0..MESSAGE_COUNT)
        .map(|number| a.ep.send(to_b, test_message(number)).start().unwrap())
        .collect();
    assert_eq!(message_number(&b.ep.recv().await.unwrap()), 0);
    drop(b);
    for (send, number) in sends.into_iter().zip(0..) {
        let buf = send.await.map_or_else(|failed| failed.buf, |done| done.buf);
        assert!(buf == test_message(number), "the buffer was changed");
    }
}

pub(crate) async fn rma_writes_use_zero_copy(setup: Setup) {
    let (a, b) = zero_copy_configs();
    let (a, b, to_b) = endpoint_pair_with(&setup, a, b).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(16 * MESSAGE_LEN, Access::REMOTE_WRITE)
        .unwrap();
    let mut writes = JoinSet::new();
    for number in 0..16 {
        let at = region.remote().at((number * MESSAGE_LEN) as u64);
        let write =
            a.ep.write(to_b, at, pattern(MESSAGE_LEN, number).to_vec())
                .start()
                .unwrap();
        writes.spawn(async move { write.await.unwrap().buf.fill(0xff) });
    }
    while let Some(ended) = writes.join_next().await {
        ended.unwrap();
    }
    for number in 0..16 {
        let mut there = vec![0; MESSAGE_LEN];
        region.read(number * MESSAGE_LEN, &mut there).unwrap();
        assert!(there == pattern(MESSAGE_LEN, number), "{number}");
    }
    assert_zero_copy_counts(&setup, &a, 16);
}

/// Zero-copy and copied messages keep their order; the queue and the counters report each once.
pub(crate) async fn short_and_zero_copy_messages_keep_order(setup: Setup) {
    let (a, b) = zero_copy_configs();
    let (mut a, b, to_b) = endpoint_pair_with(&setup, a, b).await;
    for number in 0..MESSAGE_COUNT {
        let len = if number % 3 == 0 { MESSAGE_LEN } else { 10 };
        a.ep.send(to_b, numbered_message(number, len))
            .context(number)
            .post()
            .unwrap();
    }
    let reading = async {
        receive_all(&b).await;
        b.ep.recv().await.unwrap()
    };
    let ending = async {
        let mut seen = vec![false; MESSAGE_COUNT as usize];
        for _ in 0..MESSAGE_COUNT {
            let done = a.cq.next().await.expect("the queue is open");
            assert!(
                done.error.is_none() && !std::mem::replace(&mut seen[done.context as usize], true)
            );
        }
        assert_eq!(
            (a.send_counter.value(), a.send_counter.errors()),
            (MESSAGE_COUNT, 0)
        );
        a.ep.send(to_b, "last").await.unwrap();
    };
    let (last, ()) = tokio::join!(reading, ending);
    assert_eq!(&last[..], b"last");
}

/// On the loopback interface the kernel copies and reports that: without `force_zero_copy`, later
/// sends are copied by the send call.
pub(crate) async fn zero_copy_is_disabled_when_the_kernel_copies(mut setup: Setup) {
    let config = EndpointConfig {
        socket_options: SocketOptions::new().zero_copy_threshold(100_000),
        ..EndpointConfig::default()
    };
    setup.zero_copy = false;
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    for number in 0..5 {
        // The first messages are below the threshold.
        let len = if number < 2 { 99_999 } else { 100_000 };
        let (sent, got) = tokio::join!(a.ep.send(to_b, numbered_message(number, len)), b.ep.recv());
        sent.unwrap();
        assert_eq!(message_number(&got.unwrap()), number);
        let stats = a.ep.stats();
        assert!(
            stats.zero_copy == 0 && stats.zero_copy_fallbacks <= u64::from(number >= 2),
            "{number}: {stats:?}"
        );
        if setup.supports_zero_copy() && number >= 2 {
            assert_eq!(stats.zero_copy_fallbacks, 1);
        }
    }
}
