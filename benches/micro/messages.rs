//! Microbenchmarks of messages between two endpoints of one thread, over shared memory.

use std::future::poll_fn;
use std::hint::black_box;
use std::iter::repeat_n;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use fabric_async::{
    Access, BindOptions, Completion, CompletionQueue, Done, Endpoint, Failed, FiAddr, Result,
    WaitPolicy,
};
use fabric_bench::instructions::Section;
use tokio::runtime::Runtime;

use crate::suite::{Microbench, Work};

/// Messages of one repetition.
pub(crate) const MESSAGES: usize = 64;

/// Times are those of one repetition, instructions those of one message.
pub(crate) fn all() -> Vec<Microbench> {
    let bench = |name, prepare: fn() -> Work| Microbench::new(name, prepare).operations(MESSAGES);
    let batched = || stream(Posted, MESSAGES, MESSAGES);
    vec![
        bench("awaited/shared", || send_and_recv(options())),
        bench("awaited/shared, header seen to header published", || {
            reply(true)
        })
        .header_to_header(REPLY),
        bench(
            "awaited/shared, header to header, receive not posted",
            || reply(false),
        )
        .header_to_header(REPLY),
        bench("awaited/shared, receiving poll and replying poll", || {
            reply(true)
        })
        .counted(REPLY),
        bench("batched/shared", batched),
        bench("batched/shared, sending side", batched).counted("*send_and_drain*"),
        bench("batched/shared, receiving side", batched).counted("*receiving_side*"),
        bench("awaited/pinned", || send_and_recv(pinned_options())),
        bench("batched/pinned", || {
            stream_with(pinned_options(), Posted, MESSAGES, MESSAGES)
        }),
        bench("awaited/serial", || send_and_recv(serial_options())),
        bench("batched/serial", || {
            stream_with(serial_options(), Posted, MESSAGES, MESSAGES)
        }),
        bench("injected in a batch", || {
            stream(Injected, MESSAGES, MESSAGES)
        }),
        bench("injected in batches of 1", || stream(Injected, 1, MESSAGES)),
        bench("injected one by one", || stream(Injected, 0, MESSAGES)),
        bench("posted in batches of 1", || stream(Posted, 1, MESSAGES)),
        bench("posted one by one", || stream(Posted, 0, MESSAGES)),
        bench("receives posted one by one", || {
            stream(Injected, MESSAGES, 0)
        }),
        bench("written in a batch", write_batches),
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
    async fn open(options: BindOptions) -> Result<Self> {
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

    /// Sends all messages, and takes their completions.
    #[inline(never)] // counted by its name
    fn send_and_drain(
        &self,
        mode: SendMode,
        batch: usize,
        (queue, entries): &mut (CompletionQueue, Vec<Completion>),
    ) -> usize {
        let sent = self.send(mode, batch);
        queue.try_read_batch(entries, MESSAGES);
        entries.clear();
        sent
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
    #[inline(never)] // counted by its name
    fn post_receiving_side(&self, buffers: &mut Vec<Vec<u8>>, batch: usize) -> usize {
        let requests = buffers
            .drain(..)
            .map(|buffer| self.receiver.recv_into(buffer));
        match batch {
            0 => requests.filter_map(|request| request.post().ok()).count(),
            _ => self.receiver.post_all(requests).unwrap_or(0),
        }
    }
}

fn options() -> BindOptions {
    Endpoint::options().wait_policy(WaitPolicy::Spin)
}

/// The data path is that of `Endpoint<Pinned>`, compiled once for both models.
fn pinned_options() -> BindOptions {
    options().owned_by_this_thread()
}

/// The data path is that of `Endpoint<Serial>`, compiled once for both models.
fn serial_options() -> BindOptions {
    options().used_by_one_thread_at_a_time()
}

fn open_pair(options: BindOptions) -> (Runtime, EndpointPair) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let pair = runtime
        .block_on(EndpointPair::open(options))
        .expect("shared memory");
    (runtime, pair)
}

/// Each message is awaited on both sides before the next one is sent.
fn send_and_recv(options: BindOptions) -> Work {
    let (runtime, pair) = open_pair(options);
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

/// A type of its own, so that the code for it is inlined as in a program with one place that sends.
type MessageBuffer = Box<[u8]>;

fn message_buffer() -> MessageBuffer {
    Box::new([0; 8])
}

/// A pattern of [`reply_to_arrived`].
const REPLY: &str = "*reply_to_arrived*";

/// A message arrives, and the reply is sent at once. The receive is posted before the message
/// arrives, as in a ping-pong whose receiver waits, or is first polled afterwards.
fn reply(is_posted: bool) -> Work {
    let (runtime, pair) = open_pair(options());
    let replying = runtime.block_on(pair.receiver.add_peer(pair.sender.name()));
    let reply_to = replying.expect("the peer is known");
    let (mut buffer, mut answer) = (message_buffer(), message_buffer());
    Box::new(move || {
        let trips = async {
            for _ in 0..MESSAGES {
                let receive = pair.receiver.recv_into(std::mem::take(&mut buffer));
                let mut receive = pin!(receive.into_future());
                if is_posted {
                    let posted = poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx).is_pending()));
                    assert!(posted.await, "nothing has arrived yet");
                }
                Section::Request.begin();
                pair.sender.send(pair.peer, &[7; 8]).inject()?;
                Section::Reply.begin();
                buffer = poll_fn(|cx| {
                    Poll::Ready(reply_to_arrived(
                        cx,
                        receive.as_mut(),
                        &pair.receiver,
                        reply_to,
                    ))
                })
                .await?;
                Section::Answer.begin();
                let received = pair.sender.recv_into(std::mem::take(&mut answer)).await?;
                Section::Outside.begin();
                answer = received.into_buf();
            }
            Ok::<_, fabric_async::Error>(answer.len())
        };
        runtime
            .block_on(tokio::task::unconstrained(trips))
            .unwrap_or(0)
    })
}

/// Takes the message that has arrived, and sends it back: one poll that receives, and one poll that
/// sends.
#[inline(never)] // counted by its name
fn reply_to_arrived(
    cx: &mut Context<'_>,
    receive: Pin<&mut impl Future<Output = Result<Done<MessageBuffer>, Failed<MessageBuffer>>>>,
    ep: &Endpoint,
    to: FiAddr,
) -> Result<MessageBuffer> {
    let Poll::Ready(received) = receive.poll(cx) else {
        unreachable!("the message has arrived");
    };
    let reply = pin!(ep.send(to, received?.into_buf()).into_future());
    let Poll::Ready(sent) = reply.poll(cx) else {
        unreachable!("the ring has room");
    };
    Ok(sent?.into_buf())
}

/// The receiving side of a stream.
struct StreamReceiver {
    queue: CompletionQueue,
    entries: Vec<Completion>,
    buffers: Vec<Vec<u8>>,
}

impl StreamReceiver {
    /// Takes the completions of all messages.
    #[inline(never)] // counted by its name
    fn drain_receiving_side(&mut self) -> usize {
        while self.buffers.len() < MESSAGES {
            self.queue.try_read_batch(&mut self.entries, MESSAGES);
            let results = self.entries.drain(..).filter_map(|entry| {
                let done = entry.into_result::<Vec<u8>>().ok()?;
                Some(done.into_buf())
            });
            self.buffers.extend(results);
        }
        self.buffers.len()
    }
}

/// Posts receives, sends messages, and takes the completions of both sides. A batch size of 0 posts
/// one by one.
fn stream(mode: SendMode, batch: usize, receives: usize) -> Work {
    stream_with(options(), mode, batch, receives)
}

fn stream_with(options: BindOptions, mode: SendMode, batch: usize, receives: usize) -> Work {
    let (runtime, pair) = open_pair(options);
    let queue = |ep: &Endpoint| {
        ep.take_completions()
            .expect("the endpoint has a queue of its own")
    };
    let mut sent = (queue(&pair.sender), Vec::new());
    let mut receiver = StreamReceiver {
        queue: queue(&pair.receiver),
        entries: Vec::new(),
        buffers: vec![vec![0u8; 8]; MESSAGES],
    };
    Box::new(move || {
        let _keeps_tasks_alive = &runtime;
        let posted = pair.post_receiving_side(&mut receiver.buffers, receives);
        assert_eq!(posted, MESSAGES, "the queue has room for all");
        assert_eq!(
            pair.send_and_drain(mode, batch, &mut sent),
            MESSAGES,
            "the queue has room for all"
        );
        receiver.drain_receiving_side()
    })
}

/// Writes to memory of the peer in batches, and takes the completions.
fn write_batches() -> Work {
    let (runtime, pair) = open_pair(options());
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = pair.receiver.domain().alloc(8 * MESSAGES, access);
    let region = region.expect("shared memory");
    let remote = region.remote();
    let mapped = runtime.block_on(async {
        let first = pair.sender.write(pair.peer, remote.at(0), &[0; 8]);
        first.await.map(drop)
    });
    mapped.expect("the region is mapped by the first access");
    let queue = pair.sender.take_completions();
    let mut queue = queue.expect("the endpoint has a queue of its own");
    let mut entries = Vec::new();
    Box::new(move || {
        let _keeps_open = (&runtime, &pair, &region);
        let bytes = black_box(&[7u8; 8]);
        let writes =
            (0..MESSAGES as u64).map(|at| pair.sender.write(pair.peer, remote.at(8 * at), bytes));
        let written = pair.sender.post_all(writes);
        let written = written.expect("the queue has room for all");
        queue.try_read_batch(&mut entries, MESSAGES);
        entries.clear();
        written
    })
}
