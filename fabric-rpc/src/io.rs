//! The byte stream of a connection.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_async::Address;
use fabric_async::stream::{FabricStream, ProcessCredentials};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A [`FabricStream`] with the traits that the frameworks ask of a connection.
///
/// Accepted by [`FabricIncoming`](crate::FabricIncoming), or opened by `FabricConnector`. Reads,
/// writes, errors and cancel safety are those of a [`FabricStream`]; a connection that is dropped
/// ends as a stream that is dropped.
///
/// | feature | trait |
/// |---|---|
/// | `hyper` | `hyper_util::client::legacy::connect::Connection` |
/// | `tonic` | `tonic::transport::server::Connected`, with [`FabricConnectInfo`] |
pub struct FabricIo(FabricStream);

impl FabricIo {
    /// Returns the stream.
    #[must_use]
    pub fn get_ref(&self) -> &FabricStream {
        &self.0
    }

    /// Unwraps the stream.
    #[must_use]
    pub fn into_inner(self) -> FabricStream {
        self.0
    }

    /// Returns the addresses and the credentials of the connection.
    #[must_use]
    pub fn connect_info(&self) -> FabricConnectInfo {
        FabricConnectInfo(Arc::new(ConnectInfoFields {
            local_addr: self.0.local_addr().clone(),
            peer_addr: self.0.peer_addr().clone(),
            peer_credentials: self.0.peer_credentials(),
        }))
    }
}

impl From<FabricStream> for FabricIo {
    fn from(stream: FabricStream) -> Self {
        Self(stream)
    }
}

impl fmt::Debug for FabricIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FabricIo").field(&self.0).finish()
    }
}

impl AsyncRead for FabricIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for FabricIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(feature = "hyper")]
impl hyper_util::client::legacy::connect::Connection for FabricIo {
    fn connected(&self) -> hyper_util::client::legacy::connect::Connected {
        hyper_util::client::legacy::connect::Connected::new()
    }
}

#[cfg(feature = "tonic")]
impl tonic::transport::server::Connected for FabricIo {
    type ConnectInfo = FabricConnectInfo;

    fn connect_info(&self) -> FabricConnectInfo {
        FabricIo::connect_info(self)
    }
}

/// The addresses of a connection, and the credentials of the peer's process.
///
/// A tonic service finds it in the extensions of a request
/// (`request.extensions().get::<FabricConnectInfo>()`), a handler of axum extracts it with
/// `ConnectInfo<FabricConnectInfo>`. Clones share their fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConnectInfo(Arc<ConnectInfoFields>);

#[derive(Debug, PartialEq, Eq)]
struct ConnectInfoFields {
    local_addr: Address,
    peer_addr: Address,
    peer_credentials: Option<ProcessCredentials>,
}

impl FabricConnectInfo {
    /// Returns the address of this side; see [`FabricStream::local_addr`].
    #[must_use]
    pub fn local_addr(&self) -> &Address {
        &self.0.local_addr
    }

    /// Returns the address of the peer; see [`FabricStream::peer_addr`].
    #[must_use]
    pub fn peer_addr(&self) -> &Address {
        &self.0.peer_addr
    }

    /// Returns the user, group and process of the peer over `shm`, as the kernel reports them;
    /// `None` over `tcp`.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<ProcessCredentials> {
        self.0.peer_credentials
    }
}
