//! Streams of frames.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use fabric_core::Error;
use futures_core::Stream;
use futures_sink::Sink;

use super::recv_queue::RecvQueue;
use super::send_queue::{SendLimits, SendQueue};
use super::{MAX_BYTES_IN_FLIGHT, MAX_READ_AHEAD, MAX_WRITES_IN_FLIGHT, StreamProtocol, io_error};
use crate::av::ToAddress;
use crate::endpoint::{BindOptions, ConnectedEndpoint, Endpoint};

/// The length in bytes of the longest frame, unless the
/// [options](crate::BindOptions::max_msg_size) set another one.
pub const MAX_FRAME_LEN: usize = 1 << 20;

/// The bytes of frames that are received ahead of the reader. A longer frame is received alone.
const READ_AHEAD_BYTES: usize = 4 << 20;

/// A connected stream of frames over `shm` or `tcp`: a [`Stream`] of received frames and a [`Sink`]
/// of frames to send.
///
/// Created by [`connect`](Self::connect), or by a listener from
/// [`FabricListener::bind_frames`](super::FabricListener::bind_frames). The items are those that
/// `tokio_serde::Framed` and tarpc take as their transport: `BytesMut` in the stream, `Bytes` in
/// the sink, errors of type [`io::Error`]. No codec is between them: a frame is one message of the
/// fabric. An empty frame is a frame.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fabric_async::stream::{FabricFrames, FabricListener};
/// use futures_util::{SinkExt, StreamExt};
///
/// let mut listener = FabricListener::bind_frames("shm://").await?;
/// let name = listener.local_addr().clone();
/// tokio::spawn(async move {
///     let mut frames = listener.accept().await?;
///     while let Some(frame) = frames.next().await {
///         frames.send(frame?.freeze()).await?;
///     }
///     std::io::Result::Ok(())
/// });
/// let mut frames = FabricFrames::connect(name).await?;
/// frames.send("ping".into()).await?;
/// assert_eq!(frames.next().await.expect("a reply")?, "ping");
/// frames.close().await?;
/// assert!(frames.next().await.is_none());
/// # Ok(()) }
/// ```
///
/// # Limits
///
/// A frame has at most [`max_frame_len`](Self::max_frame_len) bytes: [`MAX_FRAME_LEN`], or
/// `max_msg_size` of the options with which the side was opened. A longer one is refused by
/// `start_send` with [`InvalidInput`](io::ErrorKind::InvalidInput); the stream goes on. If the
/// limit of the peer is lower, the peer gets [`InvalidData`](io::ErrorKind::InvalidData) from its
/// stream, which receives nothing more. Both errors name the length and the limit.
///
/// The sink is ready while fewer than [`MAX_WRITES_IN_FLIGHT`] frames and [`MAX_BYTES_IN_FLIGHT`]
/// bytes are in flight; one frame may exceed the latter. Frames are sent from their own memory. Up
/// to [`MAX_READ_AHEAD`] frames, and about 4 MiB, are received ahead of the reader: under manual
/// progress, while a task waits for something of the domain. So a task that feeds long frames must
/// not be the one that reads them.
///
/// # Flush, close, end and errors
///
/// As those of a [`FabricStream`](super::FabricStream). Over `shm` a frame is sent at once;
/// over `tcp` short frames go out together, with one system call: when 16 KiB of them, or as many
/// as may be in flight, have been accepted, and by `flush`, `close` and the drop. `close` ends the
/// stream to the peer and fails no frame; so does a drop. The stream ends with `None` after all
/// frames if the peer has closed or dropped its side. If the connection ends before, it returns an
/// error once, and then ends.
///
/// # Cancel safety
/// `next` takes no frame if its future is dropped, and `send` loses none that it has accepted.
pub struct FabricFrames {
    recv: RecvQueue,
    send: SendQueue<Bytes>,
    /// Whether the stream has returned an error.
    has_failed: bool,
}

impl StreamProtocol for FabricFrames {
    const NAME: &'static [u8] = b"fabric-frames/1";
    const MAX_MESSAGE_LEN: usize = MAX_FRAME_LEN;

    fn new(ep: ConnectedEndpoint) -> Self {
        let read_ahead = READ_AHEAD_BYTES / ep.info().ep.max_msg_size.max(1);
        let limits = SendLimits {
            sends: MAX_WRITES_IN_FLIGHT,
            bytes: MAX_BYTES_IN_FLIGHT,
        };
        Self {
            recv: RecvQueue::new(ep.clone(), read_ahead.min(MAX_READ_AHEAD), true),
            send: SendQueue::new(ep, limits),
            has_failed: false,
        }
    }
}

impl FabricFrames {
    /// Connects to a listener of frames at this address, as
    /// [`FabricStream::connect`](super::FabricStream::connect).
    ///
    /// # Errors
    /// As [`FabricStream::connect`](super::FabricStream::connect).
    ///
    /// # Cancel safety
    /// Dropping the future cancels the attempt.
    pub async fn connect(to: impl ToAddress) -> io::Result<Self> {
        Self::connect_with(Endpoint::options(), to).await
    }

    /// Connects as [`connect`](Self::connect), with these options for the domain and the endpoint.
    /// [`max_msg_size`](BindOptions::max_msg_size) sets the length of the longest frame.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(options: BindOptions, to: impl ToAddress) -> io::Result<Self> {
        super::connect(options, to).await
    }

    /// Returns the length in bytes of the longest frame that this side sends and receives.
    #[must_use]
    pub fn max_frame_len(&self) -> usize {
        self.endpoint().info().ep.max_msg_size
    }

    /// Returns the endpoint, for its [statistics](ConnectedEndpoint::stats), events and attributes.
    /// Messages that are sent or received with it, instead of the stream, violate the protocol.
    #[must_use]
    pub fn endpoint(&self) -> &ConnectedEndpoint {
        self.recv.endpoint()
    }
}

impl Stream for FabricFrames {
    type Item = io::Result<BytesMut>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.recv.poll_message(cx)) {
            Ok(frame) => frame.map(|frame| Ok(BytesMut::from(Bytes::from(frame.into_vec())))),
            Err(error) => {
                self.has_failed = true;
                Some(Err(error))
            }
        })
    }
}

impl Sink<Bytes> for FabricFrames {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.poll_ready(cx)
    }

    /// Sends a frame, without a copy of its bytes.
    fn start_send(mut self: Pin<&mut Self>, frame: Bytes) -> io::Result<()> {
        let limit = self.max_frame_len();
        if frame.len() > limit {
            return Err(io_error(Error::TooLong {
                what: "frame",
                len: frame.len(),
                limit,
            }));
        }
        self.send.hold(frame)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.poll_shutdown(cx)
    }
}

impl_addresses!(FabricFrames, |frames| frames.endpoint());
