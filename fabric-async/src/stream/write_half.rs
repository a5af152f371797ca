//! The writing half of a stream.

use std::fmt;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use fabric_core::Address;
use fabric_core::buf::PooledBuf;

use super::MAX_WRITE_LEN;
use super::send_queue::SendQueue;
use crate::endpoint::ConnectedEndpoint;

/// The sends of a stream.
pub(super) struct WriteSide {
    queue: SendQueue<PooledBuf>,
    /// The most bytes of a message.
    max_len: usize,
}

impl WriteSide {
    pub(super) fn new(queue: SendQueue<PooledBuf>) -> Self {
        let max_len = MAX_WRITE_LEN.min(queue.endpoint().info().ep.max_msg_size);
        Self { queue, max_len }
    }

    pub(super) fn endpoint(&self) -> &ConnectedEndpoint {
        self.queue.endpoint()
    }

    /// Sends the first bytes of the slices as one message, once it may be in flight.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.queue.poll_ready(cx))?;
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
        Poll::Ready(Ok(len))
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
                ($side).poll_write(cx, &[std::io::IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let $half = self.get_mut();
                ($side).poll_write(cx, bufs)
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

macro_rules! impl_write_half {
    ($type:ident $(<$lifetime:lifetime>)?) => {
        impl $type $(<$lifetime>)? {
            /// Returns the address of this side.
            #[must_use]
            pub fn local_addr(&self) -> &Address {
                self.0.endpoint().name()
            }

            /// Returns the address of the peer.
            #[must_use]
            pub fn peer_addr(&self) -> &Address {
                self.0.endpoint().peer()
            }
        }

        impl fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("peer_addr", &format_args!("{}", self.peer_addr()))
                    .finish_non_exhaustive()
            }
        }
    };
}

impl_write_half!(WriteHalf<'_>);
impl_write_half!(OwnedWriteHalf);
impl_async_write!(WriteHalf<'_>, |half| half.0);
impl_async_write!(OwnedWriteHalf, |half| half.0);
