//! Transports for tarpc.
//!
//! A message of tarpc is a frame of [`FabricFrames`]: one message of the fabric, without a length
//! prefix. The codec is one of tokio-serde, which tarpc re-exports, such as `Bincode` or `Json`.
//! The functions take the place of those of `tarpc::serde_transport::tcp`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use futures_util::StreamExt;
//! use tarpc::server::{BaseChannel, Channel};
//! use tarpc::tokio_serde::formats::Bincode;
//!
//! #[tarpc::service]
//! trait Greeter {
//!     async fn hello(name: String) -> String;
//! }
//!
//! #[derive(Clone)]
//! struct Server;
//! impl Greeter for Server {
//!     async fn hello(self, _: tarpc::context::Context, name: String) -> String {
//!         format!("hello, {name}")
//!     }
//! }
//!
//! let mut incoming = fabric_rpc::tarpc::listen("shm://", Bincode::default).await?;
//! let address = incoming.local_addr().clone();
//! tokio::spawn(async move {
//!     while let Some(Ok(transport)) = incoming.next().await {
//!         let requests = BaseChannel::with_defaults(transport).execute(Server.serve());
//!         tokio::spawn(requests.for_each(|request| async { drop(tokio::spawn(request)) }));
//!     }
//! });
//!
//! let transport = fabric_rpc::tarpc::connect(address, Bincode::default).await?;
//! let client = GreeterClient::new(Default::default(), transport).spawn();
//! let reply = client.hello(tarpc::context::current(), "Ada".into()).await;
//! assert_eq!(reply.unwrap(), "hello, Ada");
//! # Ok(()) }
//! ```
//!
//! # Limits
//! A message has at most [`MAX_FRAME_LEN`](fabric_async::stream::MAX_FRAME_LEN) bytes in the form
//! of its codec. For longer messages use [`connect_with`] and [`listen_with`] with the same
//! `max_msg_size` on both sides. tarpc ends a transport on any error: a client whose request is too
//! long, or that gets one it cannot decode, loses the connection; the server loses only that
//! connection.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_async::stream::{FabricFrames, FabricListener};
use fabric_async::{Address, BindOptions, Endpoint, ToAddress};
use futures_core::Stream;
use tokio_serde::Framed;

use crate::incoming::AcceptLoop;

/// A transport: a `Stream` of `Item` and a `Sink` of `SinkItem` over frames of the fabric. Its
/// errors are [`io::Error`]s if those of the codec are, as with `Bincode` and `Json`.
///
/// [`get_ref`](Framed::get_ref) returns the frames, and so the addresses and credentials of the
/// connection.
pub type FramedTransport<Item, SinkItem, Codec> = Framed<FabricFrames, Item, SinkItem, Codec>;

/// Connects to a server that [listens](listen) at this address.
///
/// # Errors
/// Those of [`FabricFrames::connect`].
///
/// # Cancel safety
/// Dropping the future cancels the attempt.
pub async fn connect<Item, SinkItem, Codec>(
    to: impl ToAddress,
    codec: impl FnOnce() -> Codec,
) -> io::Result<FramedTransport<Item, SinkItem, Codec>> {
    connect_with(Endpoint::options(), to, codec).await
}

/// Connects as [`connect`], with these options for the domain and the endpoint.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// As [`connect`].
pub async fn connect_with<Item, SinkItem, Codec>(
    options: BindOptions,
    to: impl ToAddress,
    codec: impl FnOnce() -> Codec,
) -> io::Result<FramedTransport<Item, SinkItem, Codec>> {
    let frames = FabricFrames::connect_with(options, to).await?;
    Ok(Framed::new(frames, codec()))
}

/// Listens at this address, such as `shm://name` or `tcp://host:port`. Each transport has a codec
/// of its own.
///
/// # Errors
/// Those of [`FabricListener::bind_frames`].
///
/// # Cancel safety
/// Safe: nothing is held across an await.
pub async fn listen<Item, SinkItem, Codec, F: FnMut() -> Codec>(
    at: impl ToAddress,
    codec: F,
) -> io::Result<IncomingTransports<Item, SinkItem, F>> {
    listen_with(Endpoint::options(), at, codec).await
}

/// Listens as [`listen`], with these options for the domain and the endpoints of accepted
/// transports.
///
/// # Errors
/// As [`listen`].
///
/// # Cancel safety
/// Safe: nothing is held across an await.
pub async fn listen_with<Item, SinkItem, Codec, F: FnMut() -> Codec>(
    options: BindOptions,
    at: impl ToAddress,
    codec: F,
) -> io::Result<IncomingTransports<Item, SinkItem, F>> {
    let listener = FabricListener::bind_frames_with(options, at).await?;
    Ok(IncomingTransports {
        accepts: AcceptLoop::new(listener),
        codec,
        items: std::marker::PhantomData,
    })
}

/// The transports that a server accepts: a [`Stream`] from [`listen`].
///
/// Failed accepts are treated as by [`FabricIncoming`](crate::FabricIncoming): no client ends the
/// stream, and no item is an error.
///
/// # Panics
/// As [`FabricIncoming`](crate::FabricIncoming).
pub struct IncomingTransports<Item, SinkItem, F> {
    accepts: AcceptLoop<FabricListener<FabricFrames>>,
    codec: F,
    items: std::marker::PhantomData<fn() -> (Item, SinkItem)>,
}

impl<Item, SinkItem, F> IncomingTransports<Item, SinkItem, F> {
    /// Returns the address that this listener listens at.
    #[must_use]
    pub fn local_addr(&self) -> &Address {
        self.accepts.listener.local_addr()
    }
}

impl<Item, SinkItem, Codec, F> Stream for IncomingTransports<Item, SinkItem, F>
where
    F: FnMut() -> Codec + Unpin,
{
    type Item = io::Result<FramedTransport<Item, SinkItem, Codec>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = ready!(self.accepts.poll_accept(cx));
        Poll::Ready(accepted.map(|frames| Ok(Framed::new(frames, (self.codec)()))))
    }
}

impl<Item, SinkItem, F> fmt::Debug for IncomingTransports<Item, SinkItem, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingTransports")
            .field("accepts", &self.accepts)
            .finish_non_exhaustive()
    }
}
