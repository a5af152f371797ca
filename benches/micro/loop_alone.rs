//! The loops of other microbenchmarks alone: futures and requests are created, polled and dropped
//! and buffers are moved as in those, but nothing is sent.
//!
//! The difference between a row and the row of its loop is what the fabric takes.

use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use fabric_async::{Done, Failed, Transfer};
use tokio::runtime::Runtime;

use crate::messages::MESSAGES;
use crate::suite::{Microbench, Work};

pub(crate) fn all() -> Vec<Microbench> {
    let bench = |name, prepare: fn() -> Work| Microbench::new(name, prepare).operations(MESSAGES);
    vec![
        bench("loop alone/awaited", awaited),
        bench("loop alone/receiving poll and replying poll", reply).counted("*move_buffers_only*"),
        bench("loop alone/batched", batched),
    ]
}

/// The future of an operation that ends at its first poll and returns its buffer.
struct ReadyOperation<B> {
    buf: Option<B>,
    peer: u64,
}

impl<B> ReadyOperation<B> {
    fn new(peer: u64, buf: B) -> Self {
        Self {
            buf: Some(buf),
            peer,
        }
    }
}

impl<B: Unpin + AsRef<[u8]>> Future for ReadyOperation<B> {
    type Output = Result<Done<B>, Failed<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        black_box(&mut self.peer);
        let buf = self.buf.take().expect("polled once");
        let mut transfer = Transfer::default();
        transfer.len = buf.as_ref().len();
        Poll::Ready(Ok(Done { buf, transfer }))
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The loop of `awaited/shared`.
fn awaited() -> Work {
    let runtime = runtime();
    let (mut buf, mut buffer) = (vec![7u8; 8], vec![0u8; 8]);
    Box::new(move || {
        let trips = async {
            for _ in 0..MESSAGES {
                let sent = ReadyOperation::new(black_box(1), std::mem::take(&mut buf)).await?;
                let received =
                    ReadyOperation::new(black_box(0), std::mem::take(&mut buffer)).await?;
                (buf, buffer) = (sent.into_buf(), received.into_buf());
            }
            Ok::<_, fabric_async::Error>(buf.len())
        };
        runtime.block_on(trips).unwrap_or(0)
    })
}

/// The two polls of `receiving poll and replying poll`.
fn reply() -> Work {
    let mut buffer: Box<[u8]> = Box::new([7; 8]);
    Box::new(move || {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for _ in 0..MESSAGES {
            let receive = pin!(ReadyOperation::new(
                black_box(0),
                std::mem::take(&mut buffer)
            ));
            buffer = move_buffers_only(&mut cx, receive, black_box(1)).unwrap_or_default();
        }
        buffer.len()
    })
}

#[inline(never)] // counted by its name
fn move_buffers_only(
    cx: &mut Context<'_>,
    receive: Pin<&mut ReadyOperation<Box<[u8]>>>,
    to: u64,
) -> fabric_async::Result<Box<[u8]>> {
    let Poll::Ready(received) = receive.poll(cx) else {
        unreachable!("the operation is ready");
    };
    let reply = pin!(ReadyOperation::new(to, received?.into_buf()));
    let Poll::Ready(sent) = reply.poll(cx) else {
        unreachable!("the operation is ready");
    };
    Ok(sent?.into_buf())
}

/// The loop of `batched/shared`.
fn batched() -> Work {
    let mut buffers = vec![vec![0u8; 8]; MESSAGES];
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    Box::new(move || {
        let bytes = black_box(&[7u8; 8]);
        let posted = post_none(
            &mut receives,
            buffers
                .drain(..)
                .map(|buffer| ReadyOperation::new(0, buffer)),
        );
        let sent = post_none(
            &mut sends,
            (0..MESSAGES).map(|_| ReadyOperation::new(1, bytes)),
        );
        sends.clear();
        buffers.extend(receives.drain(..).filter_map(|request| request.buf));
        assert_eq!(posted + sent, 2 * MESSAGES, "all requests are made");
        buffers.len()
    })
}

/// Takes the requests of a batch, and posts none.
#[inline(never)] // as a call of the fabric
fn post_none<B>(
    taken: &mut Vec<ReadyOperation<B>>,
    requests: impl Iterator<Item = ReadyOperation<B>>,
) -> usize {
    taken.extend(requests);
    taken.len()
}
