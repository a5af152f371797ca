//! Listeners for servers, which outlive failed accepts.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fabric_async::stream::FabricListener;
use fabric_async::{Address, BindOptions, Error, ToAddress};
use futures_core::Stream;
use tokio::time::Sleep;

use crate::FabricIo;

/// The pause after a failed accept. A failure means that this process lacks descriptors or memory:
/// other connections have to end first.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections that a server accepts.
///
/// A [`Stream`] for tonic's `serve_with_incoming` and `serve_with_incoming_shutdown`, a
/// `axum::serve::Listener` with the feature `axum`, and [`accept`](Self::accept) for a loop with
/// hyper.
///
/// No client ends the stream or delays others: a client that disconnects is skipped, one of another
/// protocol is rejected. When this process cannot accept a client, as without descriptors, the
/// client is rejected, the error is logged with `tracing`, and the next client is accepted after
/// 100 ms.
///
/// A client that connects and sends nothing holds a connection. Limit such clients in the
/// framework: tonic has `http2_keepalive_interval` and `max_connection_age`, the HTTP/1 builder of
/// hyper `header_read_timeout`.
///
/// # Panics
/// Polls panic after a failed accept if the Tokio runtime has no timer (`enable_time`).
#[derive(Debug)]
pub struct FabricIncoming {
    accepts: AcceptLoop<FabricListener>,
}

impl FabricIncoming {
    /// Listens at this address, such as `shm://name` or `tcp://host:port`, as
    /// [`FabricListener::bind`].
    ///
    /// # Errors
    /// As [`FabricListener::bind`].
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind(at: impl ToAddress) -> io::Result<Self> {
        Ok(FabricListener::bind(at).await?.into())
    }

    /// Listens as [`bind`](Self::bind), with these options for the domain and the endpoints of
    /// accepted connections.
    ///
    /// # Errors
    /// As [`FabricListener::bind`].
    ///
    /// # Cancel safety
    /// Safe: nothing is held across an await.
    pub async fn bind_with(options: BindOptions, at: impl ToAddress) -> io::Result<Self> {
        Ok(FabricListener::bind_with(options, at).await?.into())
    }

    /// Returns the address that this listener listens at.
    #[must_use]
    pub fn local_addr(&self) -> &Address {
        self.accepts.listener.local_addr()
    }

    /// Waits for the next connection; `None` when the listener was closed.
    ///
    /// # Cancel safety
    /// Safe: no connection is lost.
    pub async fn accept(&mut self) -> Option<FabricIo> {
        std::future::poll_fn(|cx| self.accepts.poll_accept(cx))
            .await
            .map(FabricIo::from)
    }
}

impl From<FabricListener> for FabricIncoming {
    fn from(listener: FabricListener) -> Self {
        Self {
            accepts: AcceptLoop::new(listener),
        }
    }
}

impl Stream for FabricIncoming {
    type Item = io::Result<FabricIo>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = ready!(self.accepts.poll_accept(cx));
        Poll::Ready(accepted.map(|stream| Ok(FabricIo::from(stream))))
    }
}

#[cfg(feature = "axum")]
impl axum::serve::Listener for FabricIncoming {
    type Io = FabricIo;
    type Addr = Address;

    /// A listener that was closed accepts no more connections: it waits forever.
    async fn accept(&mut self) -> (FabricIo, Address) {
        let Some(io) = FabricIncoming::accept(self).await else {
            return std::future::pending().await;
        };
        let peer = io.get_ref().peer_addr().clone();
        (io, peer)
    }

    fn local_addr(&self) -> io::Result<Address> {
        Ok(FabricIncoming::local_addr(self).clone())
    }
}

#[cfg(feature = "axum")]
impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, FabricIncoming>>
    for crate::FabricConnectInfo
{
    fn connect_info(stream: axum::serve::IncomingStream<'_, FabricIncoming>) -> Self {
        stream.io().connect_info()
    }
}

/// A listener, and the pause after its last failed accept.
#[derive(Debug)]
pub(crate) struct AcceptLoop<S> {
    pub(crate) listener: S,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> AcceptLoop<S> {
    pub(crate) fn new(listener: S) -> Self {
        Self {
            listener,
            pause: None,
        }
    }

    /// Waits for the next connection; `None` when the listener was closed.
    pub(crate) fn poll_accept<T>(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>>
    where
        S: Stream<Item = io::Result<T>> + Unpin,
    {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let error = match ready!(Pin::new(&mut self.listener).poll_next(cx)) {
                Some(Ok(connection)) => return Poll::Ready(Some(connection)),
                Some(Err(error)) => error,
                None => return Poll::Ready(None),
            };
            if is_closed(&error) {
                return Poll::Ready(None);
            }
            tracing::error!(%error, "accept failed");
            self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
        }
    }
}

/// Returns whether the listener accepts no more connections.
fn is_closed(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(Error::Closed(_)))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;

    /// A listener that returns these results.
    struct Scripted(VecDeque<io::Result<u32>>);

    impl Stream for Scripted {
        type Item = io::Result<u32>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0
                .pop_front()
                .map_or(Poll::Pending, |result| Poll::Ready(Some(result)))
        }
    }

    /// The clock is virtual: it advances when the test only waits for it.
    #[tokio::test(start_paused = true)]
    async fn failed_accepts_are_followed_by_a_pause() {
        let emfile = || Err(io::Error::from_raw_os_error(24));
        let script = [Ok(1), emfile(), emfile(), Ok(2), Ok(3)];
        let mut accepts = AcceptLoop::new(Scripted(script.into()));
        let began = Instant::now();
        for (connection, pauses) in [(1, 0), (2, 2), (3, 2)] {
            let accepted = poll_fn(|cx| accepts.poll_accept(cx)).await;
            assert_eq!(accepted, Some(connection));
            let passed = began.elapsed();
            assert!(
                passed >= pauses * PAUSE && passed < (pauses + 1) * PAUSE,
                "{passed:?}"
            );
        }
    }

    #[tokio::test]
    async fn closed_listener_ends_the_connections() {
        let closed = Error::Closed(fabric_async::Class::PassiveEndpoint).into();
        let mut accepts = AcceptLoop::new(Scripted([Err(closed), Ok(1)].into()));
        assert_eq!(poll_fn(|cx| accepts.poll_accept(cx)).await, None);
    }
}
