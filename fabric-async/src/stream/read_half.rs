//! The reading half of a stream.

use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fabric_core::buf::PooledBuf;
use tokio::io::ReadBuf;

use super::recv_queue::RecvQueue;
use super::{FabricStream, OwnedWriteHalf};
use crate::endpoint::ConnectedEndpoint;

/// The receives of a stream, and the message that is being read.
pub(super) struct ReadSide {
    queue: RecvQueue,
    /// The oldest message that was not read to its end; empty if there is none.
    message: PooledBuf,
    /// The number of bytes of `message` that were read.
    read: usize,
}

impl ReadSide {
    pub(super) fn new(queue: RecvQueue) -> Self {
        Self {
            queue,
            message: PooledBuf::empty(),
            read: 0,
        }
    }

    pub(super) fn endpoint(&self) -> &ConnectedEndpoint {
        self.queue.endpoint()
    }

    /// Waits for unread bytes; false at the end of the stream.
    fn poll_unread(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.message.is_empty() {
            match ready!(self.queue.poll_message(cx))? {
                Some(message) => self.message = message,
                None => return Poll::Ready(Ok(false)),
            }
        }
        Poll::Ready(Ok(true))
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0 && ready!(self.poll_unread(cx))? {
            let unread = &self.message[self.read..];
            let count = unread.len().min(buf.remaining());
            buf.put_slice(&unread[..count]);
            self.consume(count);
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        ready!(self.poll_unread(cx))?;
        Poll::Ready(Ok(&self.message[self.read..]))
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.read += count;
        if self.read >= self.message.len() {
            (self.message, self.read) = (PooledBuf::empty(), 0);
        }
    }

    pub(super) fn poll_read_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        if !ready!(self.poll_unread(cx))? {
            return Poll::Ready(Ok(None));
        }
        let message = std::mem::replace(&mut self.message, PooledBuf::empty()).into_bytes();
        let read = std::mem::take(&mut self.read);
        Poll::Ready(Ok(Some(message.slice(read..))))
    }
}

/// Implements reading by the `ReadSide` of a type.
macro_rules! impl_async_read {
    ($type:ty, |$half:ident| $side:expr) => {
        impl $type {
            /// Reads the rest of the current message, or the next message, without copying it: what
            /// the peer wrote with one call, up to [`MAX_WRITE_LEN`](crate::stream::MAX_WRITE_LEN)
            /// bytes, or a part of it. `None` at the end of the stream.
            ///
            /// The memory of the message is kept until the last clone of the `Bytes` is dropped.
            ///
            /// # Errors
            /// As a read.
            ///
            /// # Cancel safety
            /// Safe: a dropped future has taken no message.
            pub async fn read_message(&mut self) -> std::io::Result<Option<bytes::Bytes>> {
                std::future::poll_fn(|cx| self.poll_read_message(cx)).await
            }

            /// As [`read_message`](Self::read_message), for code that polls.
            ///
            /// # Errors
            /// As a read.
            pub fn poll_read_message(
                &mut self,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<Option<bytes::Bytes>>> {
                let $half = self;
                ($side).poll_read_message(cx)
            }
        }

        impl tokio::io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                let $half = self.get_mut();
                ($side).poll_read(cx, buf)
            }
        }

        /// The buffer is the current message.
        impl tokio::io::AsyncBufRead for $type {
            fn poll_fill_buf(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<&[u8]>> {
                let $half = self.get_mut();
                ($side).poll_fill_buf(cx)
            }

            fn consume(self: std::pin::Pin<&mut Self>, count: usize) {
                let $half = self.get_mut();
                ($side).consume(count);
            }
        }
    };
}
pub(super) use impl_async_read;

/// The borrowed reading half of a [`FabricStream`], from [`FabricStream::split`].
pub struct ReadHalf<'a>(&'a mut ReadSide);

/// The owned reading half of a [`FabricStream`], from [`FabricStream::into_split`].
///
/// Dropping it leaves what the peer sends unread.
pub struct OwnedReadHalf(pub(super) ReadSide);

/// The halves of different streams, which [`OwnedReadHalf::reunite`] returns.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of different streams")
    }
}

impl std::error::Error for ReuniteError {}

impl<'a> ReadHalf<'a> {
    pub(super) fn new(side: &'a mut ReadSide) -> Self {
        Self(side)
    }
}

impl OwnedReadHalf {
    /// Joins the halves of a stream.
    ///
    /// # Errors
    /// The halves, when they are of different streams.
    #[allow(clippy::result_large_err)] // the halves, as they were
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<FabricStream, ReuniteError> {
        if self.0.endpoint().is_same(write.0.endpoint()) {
            return Ok(FabricStream {
                read: self.0,
                write: write.0,
            });
        }
        Err(ReuniteError(self, write))
    }
}

impl_addresses!(ReadHalf<'_>, |half| half.0.endpoint());
impl_addresses!(OwnedReadHalf, |half| half.0.endpoint());
impl_async_read!(ReadHalf<'_>, |half| half.0);
impl_async_read!(OwnedReadHalf, |half| half.0);
