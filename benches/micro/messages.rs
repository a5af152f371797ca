//! Microbenchmarks of messages between two endpoints of one thread, over shared memory.

use std::hint::black_box;
use std::iter::repeat_n;

use fabric_async::{Endpoint, FiAddr, Result, WaitPolicy};
use tokio::runtime::Runtime;

use crate::suite::Microbench;

/// Messages of one repetition.
const MESSAGES: usize = 64;

pub(crate) fn all() -> Vec<Microbench> {
    vec![
        ("64 messages/sent and received in turn", send_and_recv()),
        (
            "64 messages/injected in a batch",
            stream(Injected, MESSAGES, MESSAGES),
        ),
        (
            "64 messages/injected in batches of 1",
            stream(Injected, 1, MESSAGES),
        ),
        (
            "64 messages/injected one by one",
            stream(Injected, 0, MESSAGES),
        ),
        (
            "64 messages/posted in a batch",
            stream(Posted, MESSAGES, MESSAGES),
        ),
        (
            "64 messages/posted in batches of 1",
            stream(Posted, 1, MESSAGES),
        ),
        ("64 messages/posted one by one", stream(Posted, 0, MESSAGES)),
        (
            "64 messages/receives posted one by one",
            stream(Injected, MESSAGES, 0),
        ),
    ]
}

/// How messages are sent.
#[derive(Clone, Copy)]
enum SendMode {
    Injected,
    /// With completions, which are taken afterwards.
    Posted,
}

use SendMode::{Injected, Posted};

/// Two connected endpoints.
struct EndpointPair {
    sender: Endpoint,
    receiver: Endpoint,
    peer: FiAddr,
}

impl EndpointPair {
    async fn open() -> Result<Self> {
        let options = Endpoint::options().wait_policy(WaitPolicy::Spin);
        let (sender, receiver) = (
            options.clone().bind("shm://").await?,
            options.bind("shm://").await?,
        );
        let peer = sender.add_peer(receiver.name()).await?;
        Ok(Self {
            sender,
            receiver,
            peer,
        })
    }

    /// Sends all messages in batches of this size, or one by one with 0.
    fn send(&self, mode: SendMode, batch: usize) -> usize {
        let bytes = black_box(&[7u8; 8]);
        let request = |_| self.sender.send(self.peer, bytes);
        match (mode, batch) {
            (Injected, 0) => (0..MESSAGES)
                .filter(|_| self.sender.send(self.peer, bytes).inject().is_ok())
                .count(),
            (Posted, 0) => (0..MESSAGES)
                .filter(|at| request(*at).post().is_ok())
                .count(),
            (Injected, _) => {
                let batches = (0..MESSAGES / batch).map(|_| repeat_n(&bytes[..], batch));
                batches
                    .map(|batch| self.sender.inject_all(self.peer, batch).0)
                    .sum()
            }
            (Posted, _) => {
                let batches = (0..MESSAGES / batch).map(|_| (0..batch).map(request));
                batches
                    .map(|batch| self.sender.post_all(batch).unwrap_or(0))
                    .sum()
            }
        }
    }

    /// Posts receives, in a batch or one by one with 0.
    fn receive(&self, buffers: &mut Vec<Vec<u8>>, batch: usize) -> usize {
        let requests = buffers
            .drain(..)
            .map(|buffer| self.receiver.recv_into(buffer));
        match batch {
            0 => requests.filter_map(|request| request.post().ok()).count(),
            _ => self.receiver.post_all(requests).unwrap_or(0),
        }
    }
}

fn open_pair() -> (Runtime, EndpointPair) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let pair = runtime
        .block_on(EndpointPair::open())
        .expect("shared memory");
    (runtime, pair)
}

fn send_and_recv() -> Box<dyn FnMut() -> usize> {
    let (runtime, pair) = open_pair();
    let (mut buf, mut buffer) = (vec![7u8; 8], vec![0u8; 8]);
    Box::new(move || {
        let trips = async {
            for _ in 0..MESSAGES {
                let sent = pair
                    .sender
                    .send(pair.peer, std::mem::take(&mut buf))
                    .await?;
                let received = pair.receiver.recv_into(std::mem::take(&mut buffer)).await?;
                (buf, buffer) = (sent.into_buf(), received.into_buf());
            }
            Ok::<_, fabric_async::Error>(buf.len())
        };
        runtime.block_on(trips).unwrap_or(0)
    })
}

/// Posts receives, sends messages, and takes the completions of both sides. A batch size of 0 posts
/// one by one.
fn stream(mode: SendMode, batch: usize, receives: usize) -> Box<dyn FnMut() -> usize> {
    let (runtime, pair) = open_pair();
    let queue = |ep: &Endpoint| {
        ep.take_completions()
            .expect("the endpoint has a queue of its own")
    };
    let (mut sent, mut received) = (queue(&pair.sender), queue(&pair.receiver));
    let mut out = Vec::new();
    let mut buffers = vec![vec![0u8; 8]; MESSAGES];
    Box::new(move || {
        let _keeps_tasks_alive = &runtime;
        assert_eq!(
            pair.receive(&mut buffers, receives),
            MESSAGES,
            "the queue has room for all"
        );
        assert_eq!(
            pair.send(mode, batch),
            MESSAGES,
            "the queue has room for all"
        );
        sent.try_read_batch(&mut out, MESSAGES);
        out.clear();
        while buffers.len() < MESSAGES {
            received.try_read_batch(&mut out, MESSAGES);
            buffers.extend(
                out.drain(..)
                    .filter_map(|entry| Some(entry.into_result::<Vec<u8>>().ok()?.into_buf())),
            );
        }
        buffers.len()
    })
}
