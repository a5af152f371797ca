//! Listeners of streams.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fabric_core::tree::Class;
use fabric_core::{Address, Error};
use futures_core::Stream;

use super::{FabricFrames, FabricStream, StreamProtocol, io_error};
use crate::av::ToAddress;
use crate::endpoint::{BindOptions, Endpoint};
use crate::passive::PassiveEndpoint;

/// Accepts byte streams, in place of Tokio's `TcpListener` or `UnixListener`, or streams of frames.
///
/// Also a [`Stream`] of accepted streams, which does not end. Streams are accepted by the program:
/// the limits of requests that wait are those of a [`PassiveEndpoint`]. A client of another
/// protocol is rejected, and one that has disconnected is skipped. When the listener is dropped,
/// accepted streams continue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use fabric_async::stream::{FabricListener, FabricStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use futures_util::StreamExt;
///
/// let mut listener = FabricListener::bind("tcp://127.0.0.1:0").await?;
/// let name = listener.local_addr().clone();
/// let client = tokio::spawn(async move {
///     let mut stream = FabricStream::connect(name).await?;
///     stream.write_u32(7).await                    // the drop ends the stream
/// });
/// let mut stream = listener.next().await.expect("a listener does not end")?;
/// assert_eq!(stream.read_u32().await?, 7);
/// # client.await.unwrap()
/// # }
/// ```
pub struct FabricListener<T = FabricStream> {
    passive: PassiveEndpoint,
    protocol: PhantomData<fn() -> T>,
}

impl FabricListener {
    /// Listens at this address, such as `shm://name`, `tcp://host:port`, or at a free one with
    /// `shm://` or port 0, as [`PassiveEndpoint::bind`].
    ///
    /// # Errors
    /// Those of [`PassiveEndpoint::bind`], of the kinds that [`Error`] has.
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> io::Result<Self> {
        Self::bind_with(Endpoint::options(), at).await
    }

    /// Listens as [`bind`](Self::bind), with these options for the domain and the endpoints of
    /// accepted streams.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind_with(options: BindOptions, at: impl ToAddress) -> io::Result<Self> {
        Self::listen(options, at).await
    }
}

impl FabricListener<FabricFrames> {
    /// Listens at this address as [`bind`](FabricListener::bind), for
    /// [`FabricFrames::connect`].
    ///
    /// # Errors
    /// As [`bind`](FabricListener::bind).
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind_frames(at: impl ToAddress) -> io::Result<Self> {
        Self::bind_frames_with(Endpoint::options(), at).await
    }

    /// Listens as [`bind_frames`](Self::bind_frames), with these options for the domain and the
    /// endpoints of accepted streams. [`max_msg_size`](BindOptions::max_msg_size) sets the length
    /// of the longest frame.
    ///
    /// # Errors
    /// As [`bind`](FabricListener::bind).
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind_frames_with(options: BindOptions, at: impl ToAddress) -> io::Result<Self> {
        Self::listen(options, at).await
    }
}

#[allow(private_bounds)] // implemented for the two kinds of streams
impl<T: StreamProtocol> FabricListener<T> {
    async fn listen(options: BindOptions, at: impl ToAddress) -> io::Result<Self> {
        let passive = options
            .or_max_msg_size(T::MAX_MESSAGE_LEN)
            .listen(at)
            .await?;
        Ok(Self {
            passive,
            protocol: PhantomData,
        })
    }

    /// Waits for the next client and accepts it.
    ///
    /// # Errors
    /// When a client cannot be accepted, as without descriptors; the listener goes on. For
    /// [`Error::Closed`] it does not.
    ///
    /// # Cancel safety
    /// Safe: no client is lost.
    pub async fn accept(&mut self) -> io::Result<T> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`accept`](Self::accept), for code that polls.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        loop {
            let request = ready!(Pin::new(&mut self.passive).poll_next(cx));
            let Some(request) = request else {
                return Poll::Ready(Err(io_error(Error::Closed(Class::PassiveEndpoint))));
            };
            if request.private_data() != T::NAME {
                // The text is short enough for private data.
                let _ = request.reject(T::NAME);
                continue;
            }
            match request.accept(T::NAME) {
                Err(Error::PeerGone(_)) => {}
                accepted => return Poll::Ready(accepted.map(T::new).map_err(io_error)),
            }
        }
    }

    /// Returns the address that this listener listens at.
    #[must_use]
    pub fn local_addr(&self) -> &Address {
        self.passive.name()
    }
}

#[allow(private_bounds)] // implemented for the two kinds of streams
impl<T: StreamProtocol> Stream for FabricListener<T> {
    type Item = io::Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(Some)
    }
}

impl<T> fmt::Debug for FabricListener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricListener")
            .field("passive", &self.passive)
            .finish_non_exhaustive()
    }
}
