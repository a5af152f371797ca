//! Byte streams and streams of frames over connected endpoints, for Tokio services.
//!
//! [`FabricStream`] and [`FabricListener`] take the place of Tokio's `TcpStream` and `TcpListener`,
//! or `UnixStream` and `UnixListener`, over the providers `shm` and `tcp`. [`FabricFrames`] is a
//! `Stream` and `Sink` of frames, for RPC libraries. [`guide::streams`](crate::guide::streams)
//! shows how to serve with them.
//!
//! # Protocol
//!
//! A stream uses a [`ConnectedEndpoint`]. Each side names the protocol in its private data,
//! `fabric-stream/1` or `fabric-frames/1`, and refuses a peer that names another one. A write is
//! messages of 1 to [`MAX_WRITE_LEN`] bytes, a frame is one message. An empty message with
//! completion data 1 ends its direction; in a byte stream any empty message does. Messages that a
//! peer sends after that are not received: they stay within the
//! [budget](crate::guide::memory#unexpected-messages) of the endpoint, and beyond it with the peer.

/// Implements what the types of this module return of their endpoint.
macro_rules! impl_addresses {
    ($type:ident $(<$lifetime:lifetime>)?, |$this:ident| $endpoint:expr) => {
        impl $type $(<$lifetime>)? {
            /// Returns the address of this side; see
            /// [`ConnectedEndpoint::name`](crate::ConnectedEndpoint::name).
            #[must_use]
            pub fn local_addr(&self) -> &fabric_core::Address {
                let $this = self;
                $endpoint.name()
            }

            /// Returns the address of the peer; see
            /// [`ConnectedEndpoint::peer`](crate::ConnectedEndpoint::peer).
            #[must_use]
            pub fn peer_addr(&self) -> &fabric_core::Address {
                let $this = self;
                $endpoint.peer()
            }

            /// Returns the user, group and process of the peer over `shm`, as the kernel reports
            /// them; `None` over `tcp`. See
            /// [`ConnectedEndpoint::peer_credentials`](crate::ConnectedEndpoint::peer_credentials).
            #[must_use]
            pub fn peer_credentials(&self) -> Option<crate::stream::ProcessCredentials> {
                let $this = self;
                $endpoint.peer_credentials()
            }
        }

        impl std::fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))
                    .field("local_addr", &format_args!("{}", self.local_addr()))
                    .field("peer_addr", &format_args!("{}", self.peer_addr()))
                    .finish_non_exhaustive()
            }
        }
    };
}

mod frames;
mod listener;
mod read_half;
mod recv_queue;
mod send_queue;
mod write_half;

use std::io;

use fabric_core::Error;

use crate::av::ToAddress;
use crate::endpoint::{BindOptions, ConnectedEndpoint, Endpoint};
pub use fabric_core::transport::ProcessCredentials;
pub use frames::{FabricFrames, MAX_FRAME_LEN};
pub use listener::FabricListener;
pub use read_half::{OwnedReadHalf, ReadHalf, ReuniteError};
use read_half::{ReadSide, impl_async_read};
use recv_queue::RecvQueue;
use send_queue::{SendLimits, SendQueue};
pub use write_half::{OwnedWriteHalf, WriteHalf};
use write_half::{WriteSide, impl_async_write};

/// The most bytes that one write accepts, and the length in bytes of the longest message of a
/// stream.
pub const MAX_WRITE_LEN: usize = 64 << 10;

/// The most writes in flight in one direction: accepted, and not yet with the transport.
pub const MAX_WRITES_IN_FLIGHT: usize = 16;

/// The number of bytes in flight in one direction from which a writer waits.
pub const MAX_BYTES_IN_FLIGHT: usize = 512 << 10;

/// The most messages that a stream receives ahead of its reader, beside the [unexpected
/// messages](crate::guide::memory#unexpected-messages) of its endpoint.
pub const MAX_READ_AHEAD: usize = 16;

/// What a connection carries: a [`FabricStream`] or [`FabricFrames`].
pub(crate) trait StreamProtocol: Sized {
    /// The private data of both sides.
    const NAME: &'static [u8];
    /// The length in bytes of the longest message, unless the options set another one.
    const MAX_MESSAGE_LEN: usize;
    /// Wraps an endpoint whose peer has the same protocol. This is the only handle that sends and
    /// receives.
    fn new(ep: ConnectedEndpoint) -> Self;
}

/// Connects to a listener of this protocol.
async fn connect<T: StreamProtocol>(options: BindOptions, to: impl ToAddress) -> io::Result<T> {
    let ep = options
        .or_max_msg_size(T::MAX_MESSAGE_LEN)
        .connect(to)
        .private_data(T::NAME)
        .await?;
    if ep.private_data() == T::NAME {
        return Ok(T::new(ep));
    }
    Err(io_error(Error::Protocol {
        peer: ep.peer().clone(),
        what: format!(
            "private data is \"{}\", not \"{}\"",
            ep.private_data().escape_ascii(),
            T::NAME.escape_ascii()
        ),
    }))
}

/// Converts an error of the fabric. Every error of this module that has a cause in the fabric is
/// converted here; the kind is that of the [`Error`].
fn io_error(error: Error) -> io::Error {
    error.into()
}

/// A connected byte stream over `shm` or `tcp`, in place of Tokio's `TcpStream` or `UnixStream`.
///
/// Created by [`connect`](Self::connect) or [`FabricListener::accept`]. Reads and writes are those
/// of the traits [`AsyncRead`](tokio::io::AsyncRead), [`AsyncBufRead`](tokio::io::AsyncBufRead) and
/// [`AsyncWrite`](tokio::io::AsyncWrite); a stream is `Send` and `Unpin`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fabric_async::stream::{FabricListener, FabricStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut listener = FabricListener::bind("shm://").await?;          // or "tcp://127.0.0.1:0"
/// let name = listener.local_addr().clone();
/// tokio::spawn(async move {
///     let mut stream = listener.accept().await?;
///     let (mut reader, mut writer) = stream.split();
///     tokio::io::copy_buf(&mut reader, &mut writer).await?;
///     writer.shutdown().await
/// });
/// let mut stream = FabricStream::connect(name).await?;
/// stream.write_all(b"hello").await?;
/// stream.shutdown().await?;
/// let mut reply = String::new();
/// stream.read_to_string(&mut reply).await?;
/// assert_eq!(reply, "hello");
/// # Ok(()) }
/// ```
///
/// # Writes
///
/// A write accepts up to [`MAX_WRITE_LEN`] bytes and starts to send them at once, as a TCP socket
/// with `TCP_NODELAY` does. A vectored write, and one of up to 8 KiB, is one message. Over `shm` a
/// longer one is sent from the caller's memory in messages of 8 KiB while the peer's ring has room;
/// other writes are copied to a pooled buffer. A write waits
/// while [`MAX_WRITES_IN_FLIGHT`] messages or [`MAX_BYTES_IN_FLIGHT`] bytes are in flight, which
/// they are until the peer's ring (`shm`) or the kernel (`tcp`) has them. So a writer waits when
/// its peer does not read. An empty write sends nothing.
///
/// `flush` waits until no write is in flight: afterwards the process may end, and the peer still
/// gets the bytes. It does not wait until the peer has read them. Over `tcp`, read up to the end of
/// file before the process ends: the exit of a process with unread input resets the connection, as
/// that of any TCP socket, and what the peer's kernel does not have yet is lost.
///
/// `shutdown` ends the stream to the peer, which reads the end of file after all bytes, and waits
/// as `flush` does. Later writes fail with [`BrokenPipe`](io::ErrorKind::BrokenPipe). Reads go on.
///
/// # Reads
///
/// Up to [`MAX_READ_AHEAD`] messages are received ahead of the reader: under manual progress, while
/// a task waits for something of the domain. A read copies from the oldest one; `AsyncBufRead` and
/// [`read_message`](Self::read_message) copy nothing. Further messages wait as [unexpected
/// messages](crate::guide::memory#unexpected-messages) of the endpoint and then with the peer.
///
/// # End and errors
///
/// A stream that is dropped ends as with `shutdown`: the peer reads all that was written, and then
/// the end of file. Writes that are in flight go on in a task of the runtime, which keeps the
/// connection open until the peer takes the bytes or disconnects; when the runtime ends before,
/// they are lost, and the peer gets [`ConnectionReset`](io::ErrorKind::ConnectionReset).
/// [`abort`](Self::abort) does not wait for the peer.
///
/// | [kind](io::ErrorKind) | cause |
/// |---|---|
/// | [`ConnectionReset`](io::ErrorKind::ConnectionReset) | the connection ended before the end of the stream, as when the peer is killed; of a write also after the peer has dropped its stream |
/// | [`BrokenPipe`](io::ErrorKind::BrokenPipe) | a write after `shutdown` |
/// | [`InvalidData`](io::ErrorKind::InvalidData) | the peer violated the protocol |
/// | [`ConnectionAborted`](io::ErrorKind::ConnectionAborted) | the connection was closed at this side |
/// | others | those of [`Error`] |
///
/// [`get_ref`](io::Error::get_ref) downcasts to the [`Error`]. After an error, all later calls of
/// that direction fail with it. The end of file stays the end of file.
///
/// # Cancel safety
/// Reads and writes have no state outside the stream: a read or write whose future is dropped
/// while it is pending has taken or accepted no byte. A dropped `flush` or `shutdown` can be called
/// again; what was written, and the end of the stream, are sent nevertheless. As with any writer,
/// `write_all` that is dropped has written an unknown part of its bytes.
pub struct FabricStream {
    read: ReadSide,
    write: WriteSide,
}

impl FabricStream {
    /// Connects to the [`FabricListener`] at this address, such as `shm://name` or
    /// `tcp://host:port`, with its own fabric and domain, as
    /// [`ConnectedEndpoint::connect`](ConnectedEndpoint::connect).
    ///
    /// # Errors
    /// Those of [`Connect`](crate::Connect), of the kinds that [`Error`] has; with
    /// [`InvalidData`](io::ErrorKind::InvalidData) when the peer has accepted, but is no
    /// [`FabricListener`].
    ///
    /// # Cancel safety
    /// Dropping the future cancels the attempt.
    pub async fn connect(to: impl ToAddress) -> io::Result<Self> {
        Self::connect_with(Endpoint::options(), to).await
    }

    /// Connects as [`connect`](Self::connect), with these options for the domain and the endpoint.
    /// A [`max_msg_size`](BindOptions::max_msg_size) below [`MAX_WRITE_LEN`] fails as soon as the
    /// peer sends a longer message.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(options: BindOptions, to: impl ToAddress) -> io::Result<Self> {
        connect(options, to).await
    }

    /// Returns the endpoint, for its [statistics](ConnectedEndpoint::stats), events and attributes.
    /// Messages that are sent or received with it, instead of the stream, violate the protocol.
    #[must_use]
    pub fn endpoint(&self) -> &ConnectedEndpoint {
        self.read.endpoint()
    }

    /// Splits the stream into borrowed halves, for one task that reads and writes at once. Dropping
    /// a half does nothing.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (
            ReadHalf::new(&mut self.read),
            WriteHalf::new(&mut self.write),
        )
    }

    /// Splits the stream into owned halves, for two tasks. Halves share no lock. The connection is
    /// closed when both halves are dropped; dropping the writing half ends the stream to the peer.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (OwnedReadHalf(self.read), OwnedWriteHalf(self.write))
    }

    /// Closes the connection at once: what was received and not read, and writes in flight, are
    /// dropped. The peer reads what has reached it, and then gets
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    pub fn abort(mut self) {
        self.write.abort();
    }
}

impl StreamProtocol for FabricStream {
    const NAME: &'static [u8] = b"fabric-stream/1";
    const MAX_MESSAGE_LEN: usize = MAX_WRITE_LEN;

    fn new(ep: ConnectedEndpoint) -> Self {
        let limits = SendLimits {
            sends: MAX_WRITES_IN_FLIGHT,
            bytes: MAX_BYTES_IN_FLIGHT,
        };
        Self {
            read: ReadSide::new(RecvQueue::new(ep.clone(), MAX_READ_AHEAD, false)),
            write: WriteSide::new(SendQueue::new(ep, limits)),
        }
    }
}

impl_async_read!(FabricStream, |stream| &mut stream.read);
impl_async_write!(FabricStream, |stream| &mut stream.write);

impl_addresses!(FabricStream, |stream| stream.endpoint());
