//! The client side for tonic and hyper.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use fabric_async::stream::FabricStream;
use fabric_async::{Address, BindOptions, Endpoint, ToAddress};
use http::Uri;
use hyper_util::rt::TokioIo;
use tower_service::Service;

use crate::FabricIo;

/// Opens the connections of a client to one fabric address: the connector of
/// `tonic::transport::Endpoint` and of the `Client` of hyper-util.
///
/// The address is an argument of the connector, not of the URI: a URI has no place for the name of
/// a shared-memory endpoint. The URI is only sent: its authority is the header `:authority`
/// (HTTP/2) or `host`. Write the name of the service, as in `http://echo`. The connector ignores
/// the URI, so the scheme must be `http`: a client for `https` would expect TLS.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use fabric_rpc::FabricConnector;
/// use tonic::transport::Endpoint;
///
/// let channel = Endpoint::from_static("http://echo")
///     .connect_with_connector_lazy(FabricConnector::new("shm://echo"));
/// # let _ = channel; }
/// ```
///
/// Each connection has its own fabric and domain. A host name, as in `tcp://localhost:7000`, is
/// resolved for each connection, so a client follows a server that moves.
///
/// # Errors
/// Those of [`FabricStream::connect`], such as
/// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) when no server has the address, and
/// [`InvalidInput`](io::ErrorKind::InvalidInput) when the address does not parse. tonic reports
/// each as `Code::Unavailable`.
///
/// # Cancel safety
/// Dropping the future of a call cancels the attempt, as the `connect_timeout` of a client does.
#[derive(Clone, Debug)]
pub struct FabricConnector<A = Address> {
    to: A,
    options: BindOptions,
}

impl<A> FabricConnector<A> {
    /// Creates a connector to the [`FabricIncoming`](crate::FabricIncoming) at this address: an
    /// [`Address`], or a string such as `shm://name` or `tcp://host:port`.
    pub fn new(to: A) -> Self {
        Self::with_options(Endpoint::options(), to)
    }

    /// Creates a connector as [`new`](Self::new), with these options for the domain and the
    /// endpoint of each connection.
    pub fn with_options(options: BindOptions, to: A) -> Self {
        Self { to, options }
    }
}

impl<A: ToAddress + Clone + Send + Sync + 'static> Service<Uri> for FabricConnector<A> {
    type Response = TokioIo<FabricIo>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (options, to) = (self.options.clone(), self.to.clone());
        Box::pin(async move {
            let stream = FabricStream::connect_with(options, to).await?;
            Ok(TokioIo::new(stream.into()))
        })
    }
}
