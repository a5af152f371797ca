//! Calls of tonic. The service is that of the examples of `fabric-rpc`.

use std::io;

use bytes::Bytes;
use fabric_rpc::{FabricConnector, FabricIncoming};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use tonic::transport::{Endpoint, Server};

use super::super::byte_streams;
use super::initiator::{CallClient, FILL};
use super::{announce, service_error};
use crate::{Error, Result};
use echo::{EchoClient, EchoServer, Message};

#[allow(dead_code)] // the examples use all of it
#[path = "../../../../fabric-rpc/examples/echo/mod.rs"]
mod echo;

pub(super) async fn serve_fabric(at: &str, core: Option<usize>) -> Result<()> {
    let incoming = FabricIncoming::bind(at).await;
    let incoming = incoming.map_err(Error::io("opening an endpoint"))?;
    announce(incoming.local_addr(), core);
    let server = Server::builder().add_service(EchoServer);
    server
        .serve_with_incoming(incoming)
        .await
        .map_err(service_error)
}

pub(super) async fn serve_unix(core: Option<usize>) -> Result<()> {
    let (listener, address) = byte_streams::bind_unix().map_err(Error::io("opening a socket"))?;
    announce(address, core);
    let incoming = stream::poll_fn(move |cx| {
        let accepted = listener.poll_accept(cx);
        accepted.map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    });
    let server = Server::builder().add_service(EchoServer);
    server
        .serve_with_incoming(incoming)
        .await
        .map_err(service_error)
}

pub(super) async fn serve_tcp(core: Option<usize>) -> Result<()> {
    let (listener, address) = byte_streams::bind_tcp()
        .await
        .map_err(Error::io("opening a socket"))?;
    announce(address, core);
    let incoming = stream::poll_fn(move |cx| {
        listener.poll_accept(cx).map(|accepted| {
            let stream = accepted.and_then(|(stream, _)| {
                stream.set_nodelay(true)?;
                Ok(stream)
            });
            Some(stream)
        })
    });
    let server = Server::builder().add_service(EchoServer);
    server
        .serve_with_incoming(incoming)
        .await
        .map_err(service_error)
}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://echo")
}

pub(super) async fn connect_fabric(address: &str) -> Result<EchoClient> {
    let connector = FabricConnector::new(address.to_owned());
    let channel = endpoint().connect_with_connector(connector).await;
    Ok(EchoClient::new(channel.map_err(service_error)?))
}

pub(super) async fn connect_unix(address: &str) -> Result<EchoClient> {
    let address = address.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let address = address.clone();
        async move {
            let stream = byte_streams::connect_unix(&address).await?;
            io::Result::Ok(TokioIo::new(stream))
        }
    });
    let channel = endpoint().connect_with_connector(connector).await;
    Ok(EchoClient::new(channel.map_err(service_error)?))
}

pub(super) async fn connect_tcp(address: &str) -> Result<EchoClient> {
    let address = address.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let address = address.clone();
        async move {
            let stream = byte_streams::connect_tcp(&address).await?;
            io::Result::Ok(TokioIo::new(stream))
        }
    });
    let channel = endpoint().connect_with_connector(connector).await;
    Ok(EchoClient::new(channel.map_err(service_error)?))
}

impl CallClient for EchoClient {
    async fn echo(&self, payload: Bytes) -> Result<Bytes> {
        let response = self.clone().unary(Message { payload }).await;
        Ok(response.map_err(service_error)?.into_inner().payload)
    }

    async fn measure(&self, len: usize) -> Result<u64> {
        let payload = vec![FILL; len].into();
        let mut client = self.clone();
        let response = EchoClient::measure(&mut client, Message { payload }).await;
        Ok(response.map_err(service_error)?.into_inner().len)
    }
}
