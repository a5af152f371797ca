//! Calls of tarpc.

use bytes::Bytes;
use fabric_async::stream::MAX_FRAME_LEN;
use fabric_async::{BindOptions, Endpoint};
use futures_util::StreamExt;
use tarpc::context::{self, Context};
use tarpc::serde_transport::Transport as SocketTransport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{ClientMessage, Response};

use super::super::byte_streams;
use super::initiator::{CallClient, FILL};
use super::{announce, service_error};
use crate::{Error, Result};

/// The longest argument over the fabric, in bytes: that of a frame without options.
pub(super) const MAX_FABRIC_ARGUMENT: usize = MAX_FRAME_LEN;
/// Room for the header of a call in its frame.
const CALL_HEADER_LEN: usize = 4 << 10;

#[tarpc::service]
pub(super) trait Calls {
    async fn echo(argument: Bytes) -> Bytes;
    async fn measure(argument: Bytes) -> u64;
}

#[derive(Clone)]
struct CallsServer;

impl Calls for CallsServer {
    async fn echo(self, _: Context, argument: Bytes) -> Bytes {
        argument
    }

    async fn measure(self, _: Context, argument: Bytes) -> u64 {
        argument.len() as u64
    }
}

/// Serves one client until it disconnects.
async fn serve_client<T>(transport: T)
where
    T: tarpc::Transport<Response<CallsResponse>, ClientMessage<CallsRequest>> + Send + 'static,
{
    BaseChannel::with_defaults(transport)
        .execute(CallsServer.serve())
        .for_each(async |request| drop(tokio::spawn(request)))
        .await;
}

fn frame_options() -> BindOptions {
    Endpoint::options().max_msg_size(MAX_FABRIC_ARGUMENT + CALL_HEADER_LEN)
}

pub(super) async fn serve_fabric(at: &str, core: Option<usize>) -> Result<()> {
    let failed = || Error::io("serving tarpc");
    let incoming = fabric_rpc::tarpc::listen_with(frame_options(), at, Bincode::default).await;
    let mut incoming = incoming.map_err(failed())?;
    announce(incoming.local_addr(), core);
    while let Some(transport) = incoming.next().await {
        serve_client(transport.map_err(failed())?).await;
    }
    Ok(())
}

pub(super) async fn serve_unix(core: Option<usize>) -> Result<()> {
    let failed = || Error::io("serving tarpc");
    let (listener, address) = byte_streams::bind_unix().map_err(failed())?;
    announce(address, core);
    loop {
        let (stream, _) = listener.accept().await.map_err(failed())?;
        serve_client(SocketTransport::from((stream, Bincode::default()))).await;
    }
}

pub(super) async fn connect_fabric(address: &str) -> Result<CallsClient> {
    let transport =
        fabric_rpc::tarpc::connect_with(frame_options(), address, Bincode::default).await;
    let transport = transport.map_err(Error::io(format!("connecting to {address}")))?;
    Ok(CallsClient::new(tarpc::client::Config::default(), transport).spawn())
}

pub(super) async fn connect_unix(address: &str) -> Result<CallsClient> {
    let stream = byte_streams::connect_unix(address).await;
    let stream = stream.map_err(Error::io(format!("connecting to {address}")))?;
    let transport = SocketTransport::from((stream, Bincode::default()));
    Ok(CallsClient::new(tarpc::client::Config::default(), transport).spawn())
}

impl CallClient for CallsClient {
    async fn echo(&self, argument: Bytes) -> Result<Bytes> {
        let response = CallsClient::echo(self, context::current(), argument).await;
        response.map_err(service_error)
    }

    async fn measure(&self, len: usize) -> Result<u64> {
        let argument = vec![FILL; len].into();
        let response = CallsClient::measure(self, context::current(), argument).await;
        response.map_err(service_error)
    }
}
