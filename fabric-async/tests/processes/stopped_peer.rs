//! A process that is stopped with SIGSTOP delays only operations to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fabric_async::{Endpoint, Error};
use tokio::time::timeout;

use crate::run;
use crate::test_peer::TestPeer;

/// More messages than the ring of a connection holds.
const QUEUED_SENDS: usize = 200;
const MESSAGE_LEN: usize = 20_000;
const ROUND_TRIPS: u64 = 2000;

#[test]
fn stopped_peer_does_not_block_other_peers() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let stopped_process = TestPeer::start("echo", &ep.name().to_string());
        let stopped = ep.recv().tag(3).await.unwrap().source().unwrap();
        let _bystander = TestPeer::start("echo", &ep.name().to_string());
        let bystander = ep.recv().tag(3).await.unwrap().source().unwrap();

        stopped_process.stop();
        let mut sent = Vec::new();
        for number in 0..QUEUED_SENDS {
            let mut message = vec![number as u8; MESSAGE_LEN];
            message[..8].copy_from_slice(&number.to_le_bytes());
            sent.push(ep.send(stopped, message).start().unwrap());
        }
        for number in 0..ROUND_TRIPS {
            ep.send(bystander, number.to_le_bytes().to_vec())
                .await
                .unwrap();
            assert_eq!(
                ep.recv().tag(4).from(bystander).await.unwrap()[..],
                number.to_le_bytes()
            );
        }
        // A peer may use only a part of the endpoint's transmit credits; more sends are refused,
        // not lost.
        let refused = ep
            .send(stopped, vec![0; MESSAGE_LEN])
            .context(1)
            .post()
            .map_err(|failed| failed.error);
        assert!(
            matches!(refused, Ok(()) | Err(Error::WouldBlock(_))),
            "{refused:?}"
        );

        stopped_process.resume();
        for (number, send) in sent.into_iter().enumerate() {
            send.await.unwrap();
            let back = ep.recv().tag(4).from(stopped).await.unwrap();
            assert_eq!(
                (back.len(), &back[..8]),
                (MESSAGE_LEN, &number.to_le_bytes()[..])
            );
            assert!(back[8..].iter().all(|byte| *byte == number as u8));
        }
        if refused.is_ok() {
            assert_eq!(
                ep.recv().tag(4).from(stopped).await.unwrap()[..],
                [0; MESSAGE_LEN]
            );
        }
    });
}

/// Operations to and from a peer that is stopped in the middle of a message fail when it is killed.
#[test]
fn ops_fail_when_stopped_peer_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut stopped_process = TestPeer::start("echo", &ep.name().to_string());
        let stopped = ep.recv().tag(3).await.unwrap().source().unwrap();
        stopped_process.stop();
        let send = ep.send(stopped, vec![1; 10 << 20]).start().unwrap();
        let reply = ep.recv().tag(4).from(stopped).start().unwrap();
        stopped_process.0.kill().unwrap();
        assert!(send.await.unwrap_err().error.is_peer_unavailable());
        assert!(reply.await.unwrap_err().error.is_peer_unavailable());
    });
}

/// A buffer that is counted in `live` until it is dropped.
struct LiveBuffer {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
}

impl LiveBuffer {
    fn allocate(live: &Arc<AtomicUsize>, len: usize) -> Bytes {
        live.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Self {
            bytes: vec![0; len],
            live: live.clone(),
        })
    }
}

impl AsRef<[u8]> for LiveBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LiveBuffer {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn timed_out_sends_with_cancel_on_drop_free_their_buffers() {
    for (address, role) in [("shm://", "echo"), ("tcp://", "tcp echo")] {
        run(async {
            let ep = Endpoint::bind(address).await.unwrap();
            let names = match role {
                "echo" => ep.name().to_string(),
                _ => format!("{address} {}", ep.name()),
            };
            let stopped_process = TestPeer::start(role, &names);
            let stopped = ep.recv().tag(3).await.unwrap().source().unwrap();
            stopped_process.stop();
            let live = Arc::new(AtomicUsize::new(0));
            let mut timed_out = 0;
            for _ in 0..400 {
                let send = ep.send(stopped, LiveBuffer::allocate(&live, 4 << 20));
                let sent = timeout(Duration::from_millis(1), send.cancel_on_drop()).await;
                timed_out += usize::from(sent.is_err());
            }
            // The socket buffers may hold the first messages.
            assert!(timed_out > 300, "{address}: {timed_out} of 400 timed out");
            let held = live.load(Ordering::Relaxed);
            assert!(
                held <= 1,
                "{address}: {held} buffers are held, though only the first send can have begun"
            );
            assert!(ep.domain().stats().operations <= held);
        });
    }
}
