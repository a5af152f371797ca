//! A gRPC service over the fabric, and its client in another process.
//!
//! `cargo run --release -p fabric-rpc --features tonic --example tonic_echo`, or with
//! `-- --provider tcp` over TCP
//!
//! The program starts itself a second time as the client. The same service also serves at the
//! socket that the fabric replaces: a Unix socket, or TCP. The client measures both, in turns.

mod common;
mod echo;

use std::time::{Duration, Instant};

use common::{Link, Rates, Result, Socket};
use echo::{DownloadRequest, EchoClient, EchoServer, Message};
use fabric_rpc::{FabricConnector, FabricIncoming};
use futures_util::future::try_join_all;
use futures_util::stream;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Server};

const LARGE: u32 = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match common::role("tonic_echo") {
        common::Role::Server { provider } => serve(&provider).await,
        common::Role::Client { fabric, socket } => run_client(&fabric, &socket).await,
    }
}

async fn serve(provider: &str) -> Result<()> {
    let incoming = FabricIncoming::bind(format!("{provider}://")).await?;
    let fabric = incoming.local_addr().to_string();
    let socket = Socket::bind(provider).await?;
    let mut client = common::start_client(&fabric, &socket.address())?;

    // These are the lines that differ between the fabric and a socket.
    let over_fabric = Server::builder().add_service(EchoServer);
    let over_fabric = over_fabric.serve_with_incoming_shutdown(incoming, client.ended());
    let over_socket = Server::builder().add_service(EchoServer);
    let ended = client.ended();
    match socket {
        Socket::Unix(listener, _) => {
            let accepts = stream::poll_fn(move |cx| {
                listener
                    .poll_accept(cx)
                    .map(|accepted| Some(accepted.map(|(io, _)| io)))
            });
            let over_socket = over_socket.serve_with_incoming_shutdown(accepts, ended);
            tokio::try_join!(over_fabric, over_socket)?;
        }
        Socket::Tcp(listener) => {
            let accepts = stream::poll_fn(move |cx| {
                listener.poll_accept(cx).map(|accepted| {
                    let stream = accepted.and_then(|(io, _)| io.set_nodelay(true).map(|()| io));
                    Some(stream)
                })
            });
            let over_socket = over_socket.serve_with_incoming_shutdown(accepts, ended);
            tokio::try_join!(over_fabric, over_socket)?;
        }
    }
    client.wait().await
}

/// Opens a channel over the fabric or a socket.
async fn connect(link: &Link) -> Result<EchoClient> {
    let endpoint = Endpoint::from_static("http://echo");
    let channel: Channel = match link.clone() {
        Link::Fabric(address) => {
            let connector = FabricConnector::new(address);
            endpoint.connect_with_connector(connector).await?
        }
        Link::Unix(name) => {
            let connector = tower::service_fn(move |_: http::Uri| {
                let name = name.clone();
                async move { UnixStream::connect(name).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await?
        }
        Link::Tcp(address) => {
            let connector = tower::service_fn(move |_: http::Uri| {
                let address = address.clone();
                async move {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    std::io::Result::Ok(TokioIo::new(stream))
                }
            });
            endpoint.connect_with_connector(connector).await?
        }
    };
    Ok(EchoClient::new(channel))
}

async fn run_client(fabric: &str, socket: &str) -> Result<()> {
    let links = [Link::Fabric(fabric.to_owned()), Link::socket(socket)];
    let mut clients = Vec::new();
    for link in &links {
        clients.push(connect(link).await?);
    }
    let message = Message {
        payload: vec![7; 64].into(),
    };
    let reply = clients[0].unary(message.clone()).await?.into_inner();
    assert_eq!(reply, message, "the echo differs");

    let one = Rates::measure(&links, async |link, time| {
        call_until(clients[link].clone(), message.clone(), time).await
    });
    one.await?
        .print("unary calls of 64 B, one at a time", "calls/s", 1.0);
    let many = Rates::measure(&links, async |link, time| {
        let client = &clients[link];
        let callers = (0..16).map(|_| call_until(client.clone(), message.clone(), time));
        Ok(try_join_all(callers).await?.into_iter().sum())
    });
    many.await?
        .print("unary calls of 64 B, 16 at a time", "calls/s", 1.0);
    let bytes = Rates::measure(&links, async |link, time| {
        download_until(clients[link].clone(), time).await
    });
    let scale = f64::from(1 << 20);
    bytes
        .await?
        .print("stream of messages of 1 MiB", "MiB/s", scale);
    Ok(())
}

/// Makes calls for this long, and returns their number.
async fn call_until(mut client: EchoClient, message: Message, time: Duration) -> Result<usize> {
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < time {
        client.unary(message.clone()).await?;
        calls += 1;
    }
    Ok(calls)
}

/// Downloads messages for this long, and returns the number of bytes.
async fn download_until(mut client: EchoClient, time: Duration) -> Result<usize> {
    let began = Instant::now();
    let request = DownloadRequest {
        messages: u32::MAX,
        len: LARGE,
    };
    let mut messages = client.download(request).await?.into_inner();
    let mut bytes = 0;
    while began.elapsed() < time {
        let message = messages.message().await?.expect("a message");
        bytes += message.payload.len();
    }
    Ok(bytes)
}
