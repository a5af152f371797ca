//! A tarpc service over the fabric, and its client in another process.
//!
//! `cargo run --release -p fabric-rpc --features tarpc --example tarpc_service`, or with
//! `-- --provider tcp` over TCP
//!
//! The program starts itself a second time as the client. The same service also serves at the
//! socket that the fabric replaces: a Unix socket, or TCP. The client measures both, in turns.

mod common;

use std::time::{Duration, Instant};

use common::{Link, Rates, Result, Role, Socket};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use tarpc::context;
use tarpc::serde_transport::Transport as SocketTransport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{ClientMessage, Response};
use tokio::net::{TcpStream, UnixStream};

#[tarpc::service]
trait Echo {
    async fn echo(bytes: Vec<u8>) -> Vec<u8>;
}

#[derive(Clone)]
struct EchoServer;

impl Echo for EchoServer {
    async fn echo(self, _: context::Context, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match common::role("tarpc_service") {
        Role::Server { provider } => serve(&provider).await,
        Role::Client { fabric, socket } => run_client(&fabric, &socket).await,
    }
}

/// Serves one client until it disconnects.
async fn serve_client<T>(transport: T)
where
    T: tarpc::Transport<Response<EchoResponse>, ClientMessage<EchoRequest>> + Send + 'static,
{
    let requests = BaseChannel::with_defaults(transport).execute(EchoServer.serve());
    requests
        .for_each(async |request| drop(tokio::spawn(request)))
        .await;
}

async fn serve(provider: &str) -> Result<()> {
    let address = format!("{provider}://");
    let mut incoming = fabric_rpc::tarpc::listen(address, Bincode::default).await?;
    let fabric = incoming.local_addr().to_string();
    let socket = Socket::bind(provider).await?;
    let mut client = common::start_client(&fabric, &socket.address())?;

    let over_fabric = async move {
        while let Some(transport) = incoming.next().await {
            tokio::spawn(serve_client(transport?));
        }
        Result::Ok(())
    };
    let over_socket = async move {
        loop {
            match &socket {
                Socket::Unix(listener, _) => {
                    let (stream, _) = listener.accept().await?;
                    let transport = SocketTransport::from((stream, Bincode::default()));
                    tokio::spawn(serve_client(transport));
                }
                Socket::Tcp(listener) => {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    let transport = SocketTransport::from((stream, Bincode::default()));
                    tokio::spawn(serve_client(transport));
                }
            }
        }
    };
    tokio::select! {
        result = over_fabric => return result,
        result = over_socket => return result,
        () = client.ended() => {}
    }
    client.wait().await
}

async fn connect(link: &Link) -> Result<EchoClient> {
    let config = tarpc::client::Config::default();
    Ok(match link {
        Link::Fabric(address) => {
            let transport = fabric_rpc::tarpc::connect(address, Bincode::default).await?;
            EchoClient::new(config, transport).spawn()
        }
        Link::Unix(name) => {
            let stream = UnixStream::connect(name).await?;
            let transport = SocketTransport::from((stream, Bincode::default()));
            EchoClient::new(config, transport).spawn()
        }
        Link::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let transport = SocketTransport::from((stream, Bincode::default()));
            EchoClient::new(config, transport).spawn()
        }
    })
}

async fn run_client(fabric: &str, socket: &str) -> Result<()> {
    let links = [Link::Fabric(fabric.to_owned()), Link::socket(socket)];
    let mut clients = Vec::new();
    for link in &links {
        clients.push(connect(link).await?);
    }
    let reply = clients[0]
        .echo(context::current(), b"hello".to_vec())
        .await?;
    assert_eq!(reply, b"hello", "the echo differs");

    let one = Rates::measure(&links, async |link, time| {
        call_until(&clients[link], 64, time).await
    });
    one.await?
        .print("calls of 64 B, one at a time", "calls/s", 1.0);
    let many = Rates::measure(&links, async |link, time| {
        let callers = (0..16).map(|_| call_until(&clients[link], 64, time));
        Ok(try_join_all(callers).await?.into_iter().sum())
    });
    many.await?
        .print("calls of 64 B, 16 at a time", "calls/s", 1.0);
    let large = Rates::measure(&links, async |link, time| {
        call_until(&clients[link], 64 << 10, time).await
    });
    large
        .await?
        .print("calls of 64 KiB, one at a time", "calls/s", 1.0);
    Ok(())
}

/// Makes calls for this long, and returns their number.
async fn call_until(client: &EchoClient, len: usize, time: Duration) -> Result<usize> {
    let began = Instant::now();
    let mut calls = 0;
    while began.elapsed() < time {
        let echo = client.echo(context::current(), vec![7; len]).await?;
        assert_eq!(echo.len(), len, "the echo differs");
        calls += 1;
    }
    Ok(calls)
}
