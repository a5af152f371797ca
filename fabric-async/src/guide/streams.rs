//! Streams: byte streams and frames for Tokio services.
//!
//! After this chapter you can serve a Tokio service over shared memory or TCP, end its connections
//! without losing bytes, and send frames for an RPC library.
//!
//! A [`FabricStream`] implements `AsyncRead`, `AsyncBufRead` and `AsyncWrite`, so code that is
//! generic over these traits takes it in place of Tokio's `TcpStream` or `UnixStream`. A
//! [`FabricListener`] accepts streams. The address decides: `shm://name` for processes of one user
//! on this machine, `tcp://host:port` for others. Both sides use this library: a stream is a
//! [connected endpoint](super::connected_endpoints) with [its own
//! protocol](crate::stream#protocol). For a new program that sends messages, an [`Endpoint`] does
//! more and copies less.
//!
//! # Accept loop
//!
//! The listener is a [`Stream`](futures_core::Stream) too. One task accepts, and each connection
//! has a task of its own. A task that waits for a connection makes progress for the others of its
//! domain, and so does the domain's driver.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use fabric_async::stream::{FabricListener, FabricStream};
//! use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
//!
//! // Code that knows only the traits of Tokio.
//! async fn greet(stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
//!     let mut lines = BufReader::new(stream);
//!     let mut name = String::new();
//!     while lines.read_line(&mut name).await? > 0 {
//!         lines.write_all(format!("hello, {name}").as_bytes()).await?;
//!         name.clear();
//!     }
//!     lines.shutdown().await
//! }
//!
//! let mut listener = FabricListener::bind("shm://").await?;
//! let address = listener.local_addr().clone();
//! tokio::spawn(async move {
//!     loop {
//!         match listener.accept().await {
//!             Ok(stream) => drop(tokio::spawn(greet(stream))),
//!             // One client could not be accepted; the listener goes on.
//!             Err(error) => eprintln!("accept: {error}"),
//!         }
//!     }
//! });
//!
//! let mut stream = FabricStream::connect(address).await?;
//! stream.write_all(b"Ada\nGrace\n").await?;
//! stream.shutdown().await?;
//! let mut reply = String::new();
//! stream.read_to_string(&mut reply).await?;
//! assert_eq!(reply, "hello, Ada\nhello, Grace\n");
//! # Ok(()) }
//! ```
//!
//! # Reading without a copy
//!
//! What the peer wrote arrives in messages, each in a [pooled
//! buffer](super::memory#pooled-buffers). [`FabricStream::read_message`] returns it as `Bytes`, and
//! `AsyncBufRead` lends it; `tokio::io::copy_buf` therefore forwards with one copy less than
//! `copy`.
//!
//! A write copies its bytes once, into the ring of `shm` or a pooled buffer, and is complete for
//! the caller. Slices of a vectored write become one message. So buffer small writes, as with a
//! socket with `TCP_NODELAY`: in a `BufWriter`, or with `write_vectored`.
//!
//! # Halves
//!
//! [`split`](FabricStream::split) borrows the stream for one task, and
//! [`into_split`](FabricStream::into_split) makes halves for two tasks, without a lock between
//! them. [`reunite`](OwnedReadHalf::reunite) joins them.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use fabric_async::stream::{FabricListener, FabricStream};
//! use tokio::io::AsyncWriteExt;
//!
//! # let mut listener = FabricListener::bind("shm://").await?;
//! # let connect = FabricStream::connect(listener.local_addr().clone());
//! # let (client, server) = tokio::try_join!(connect, listener.accept())?;
//! let (mut from_client, _) = server.into_split();
//! let (_reader, mut to_server) = client.into_split();
//! let reader = tokio::spawn(async move {
//!     let mut total = 0;
//!     while let Some(message) = from_client.read_message().await? {
//!         total += message.len();
//!     }
//!     std::io::Result::Ok(total)
//! });
//! for _ in 0..100 {
//!     to_server.write_all(&[7; 10_000]).await?;
//! }
//! drop(to_server);                                     // ends the stream to the server
//! assert_eq!(reader.await.unwrap()?, 1_000_000);
//! # Ok(()) }
//! ```
//!
//! # Backpressure
//!
//! A writer waits when [`MAX_WRITES_IN_FLIGHT`] writes or [`MAX_BYTES_IN_FLIGHT`] bytes are in
//! flight. A reader that is behind holds [`MAX_READ_AHEAD`] messages and the
//! [budget](super::memory#unexpected-messages) of its endpoint, which is 16 messages of
//! [`MAX_WRITE_LEN`] bytes. Between them are the ring of up to 512 KiB (`shm`) or the buffers of
//! two sockets (`tcp`). So a stream whose reader does not read holds at most 3 MiB on both sides
//! together, beside the kernel's buffers, and its writer goes on when the reader does.
//!
//! # Graceful shutdown
//!
//! * `shutdown`, or dropping the stream, ends the stream to the peer: the peer reads all bytes and
//!   then the end of file. The peer can still write until it ends its own direction.
//! * `flush` and `shutdown` return when no write is in flight. After that the process may exit.
//!   Over `tcp`, read to the end of file before: an exit with unread input resets the connection.
//! * A dropped stream leaves its writes in flight to a task. A runtime that is shut down ends that
//!   task: call `shutdown` before the program ends.
//! * When the process of the peer dies, reads return what has arrived, and then
//!   [`ConnectionReset`](std::io::ErrorKind::ConnectionReset): the end of file means that the peer
//!   has sent everything. Over `tcp` too, because the end is a message.
//! * To stop a service, stop accepting (drop the listener), and wait for the tasks of its
//!   connections. [`FabricStream::abort`] ends a connection whose peer does not read.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use fabric_async::stream::{FabricListener, FabricStream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::task::JoinSet;
//!
//! let mut listener = FabricListener::bind("tcp://127.0.0.1:0").await?;
//! let address = listener.local_addr().clone();
//! let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
//! let server = tokio::spawn(async move {
//!     let mut connections = JoinSet::new();
//!     loop {
//!         tokio::select! {
//!             _ = &mut stopped => break,
//!             accepted = listener.accept() => {
//!                 let mut stream = accepted?;
//!                 connections.spawn(async move {
//!                     stream.write_all(b"goodbye").await?;
//!                     stream.shutdown().await
//!                 });
//!             }
//!         }
//!     }
//!     drop(listener);
//!     while let Some(ended) = connections.join_next().await {
//!         ended??;
//!     }
//!     std::io::Result::Ok(())
//! });
//! let mut text = String::new();
//! FabricStream::connect(address).await?.read_to_string(&mut text).await?;
//! stop.send(()).unwrap();
//! server.await??;
//! assert_eq!(text, "goodbye");
//! # Ok(()) }
//! ```
//!
//! # Frames
//!
//! [`FabricFrames`] sends and receives frames, each of which is one message of the fabric: no
//! length prefix, and no copy of a frame that is sent. It is the transport of
//! `tokio_serde::Framed`, and through that of tarpc. A frame has at most [`MAX_FRAME_LEN`] bytes,
//! or [`max_msg_size`](crate::BindOptions::max_msg_size) of the options on both sides.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use fabric_async::Endpoint;
//! use fabric_async::stream::{FabricFrames, FabricListener};
//! use futures_util::{SinkExt, StreamExt};
//!
//! let options = Endpoint::options().max_msg_size(4 << 20);
//! let mut listener = FabricListener::bind_frames_with(options.clone(), "shm://").await?;
//! let connect = FabricFrames::connect_with(options, listener.local_addr().clone());
//! let (mut client, mut server) = tokio::try_join!(connect, listener.accept())?;
//! let send = async {
//!     client.feed(vec![1; 3 << 20].into()).await?;
//!     client.feed("the last frame".into()).await?; // waits until the first one is sent
//!     client.close().await
//! };
//! let receive = async {
//!     assert_eq!(server.next().await.expect("a frame")?.len(), 3 << 20);
//!     assert_eq!(server.next().await.expect("a frame")?, "the last frame");
//!     assert!(server.next().await.is_none());
//!     Ok(())
//! };
//! tokio::try_join!(send, receive)?;
//!
//! let error = server.send(vec![0; (4 << 20) + 1].into()).await.unwrap_err();
//! assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
//! # Ok(()) }
//! ```

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{stream::*, *};
