//! The writing half of a stream.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use fabric_core::buf::PooledBuf;
use tokio::task::coop;

use super::MAX_WRITE_LEN;
use super::send_queue::SendQueue;
use crate::endpoint::ConnectedEndpoint;

/// The longest message that the ring of `shm` takes at once. Sending a longer write as several such
/// messages costs less than copying it to a buffer.
const DIRECT_LEN: usize = 8 << 10;

/// The sends of a stream.
pub(super) struct WriteSide {
    queue: SendQueue<PooledBuf>,
    /// The most bytes of a message.
    max_len: usize,
    /// The most bytes of a message that is sent from the caller's memory.
    direct_len: usize,
}

impl WriteSide {
    pub(super) fn new(queue: SendQueue<PooledBuf>) -> Self {
        let max_len = MAX_WRITE_LEN
            .min(queue.endpoint().info().ep.max_msg_size)
            .max(1);
        let direct_len = max_len.min(DIRECT_LEN);
        Self {
            queue,
            max_len,
            direct_len,
        }
    }

    pub(super) fn endpoint(&self) -> &ConnectedEndpoint {
        self.queue.endpoint()
    }

    /// Sends the first bytes, once they may be in flight: from the caller's memory if the transport
    /// takes them at once, else as one message.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(coop::poll_proceed(cx));
        self.queue.remove_completed(cx)?;
        ready!(self.queue.poll_ready(cx))?;
        budget.made_progress();
        let mut sent = 0;
        for part in bytes[..bytes.len().min(MAX_WRITE_LEN)].chunks(self.direct_len) {
            if !self.queue.try_send(part)? {
                break;
            }
            sent += part.len();
        }
        if sent > 0 {
            return Poll::Ready(Ok(sent));
        }
        Poll::Ready(self.send_one(&[IoSlice::new(bytes)]))
    }

    /// Sends the first bytes of the slices as one message, once it may be in flight.
    pub(super) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(coop::poll_proceed(cx));
        self.queue.remove_completed(cx)?;
        ready!(self.queue.poll_ready(cx))?;
        budget.made_progress();
        Poll::Ready(self.send_one(slices))
    }

    /// Sends a copy of the first bytes of the slices as one message, and returns their number.
    fn send_one(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let total = slices.iter().map(|slice| slice.len()).sum::<usize>();
        let len = total.min(self.max_len);
        if len > 0 {
            let mut message = PooledBuf::with_capacity(len);
            for slice in slices {
                let count = slice.len().min(len - message.len());
                message.extend_from_slice(&slice[..count]);
            }
            self.queue.send(message)?;
        }
        Ok(len)
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll_flush(cx)
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll_shutdown(cx)
    }

    pub(super) fn abort(&mut self) {
        self.queue.abort();
    }
}

/// Implements the trait for writing by the `WriteSide` of a type.
macro_rules! impl_async_write {
    ($type:ty, |$half:ident| $side:expr) => {
        impl tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $half = self.get_mut();
                ($side).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $half = self.get_mut();
                ($side).poll_write_vectored(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $half = self.get_mut();
                ($side).poll_flush(cx)
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $half = self.get_mut();
                ($side).poll_shutdown(cx)
            }
        }
    };
}
pub(super) use impl_async_write;

/// The borrowed writing half of a [`FabricStream`](super::FabricStream), from
/// [`FabricStream::split`](super::FabricStream::split).
pub struct WriteHalf<'a>(&'a mut WriteSide);

/// The owned writing half of a [`FabricStream`](super::FabricStream), from
/// [`FabricStream::into_split`](super::FabricStream::into_split).
///
/// Dropping it ends the stream to the peer, as `shutdown` does.
pub struct OwnedWriteHalf(pub(super) WriteSide);

impl<'a> WriteHalf<'a> {
    pub(super) fn new(side: &'a mut WriteSide) -> Self {
        Self(side)
    }
}

impl_addresses!(WriteHalf<'_>, |half| half.0.endpoint());
impl_addresses!(OwnedWriteHalf, |half| half.0.endpoint());
impl_async_write!(WriteHalf<'_>, |half| half.0);
impl_async_write!(OwnedWriteHalf, |half| half.0);
