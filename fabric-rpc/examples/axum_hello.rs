//! An axum application over the fabric, and its client in another process.
//!
//! `cargo run --release -p fabric-rpc --features axum,hyper --example axum_hello`, or with
//! `-- --provider tcp` over TCP
//!
//! The program starts itself a second time as the client. The same application also serves at the
//! socket that the fabric replaces: a Unix socket, or TCP. The client measures both, in turns.

mod common;

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::serve::ListenerExt;
use bytes::Bytes;
use common::{Link, Rates, Result, Role, Socket};
use fabric_async::stream::FabricStream;
use fabric_rpc::{FabricConnectInfo, FabricIncoming};
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The length in bytes of the page `/large`.
const LARGE: usize = 256 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    match common::role("axum_hello") {
        Role::Server { provider } => serve(&provider).await,
        Role::Client { fabric, socket } => run_client(&fabric, &socket).await,
    }
}

async fn who(ConnectInfo(peer): ConnectInfo<FabricConnectInfo>) -> String {
    match peer.peer_credentials() {
        Some(peer) => format!("you are user {}, process {:?}", peer.uid, peer.pid),
        None => format!("you are {}", peer.peer_addr()),
    }
}

async fn serve(provider: &str) -> Result<()> {
    let incoming = FabricIncoming::bind(format!("{provider}://")).await?;
    let fabric = incoming.local_addr().to_string();
    let socket = Socket::bind(provider).await?;
    let mut client = common::start_client(&fabric, &socket.address())?;

    let page = Bytes::from(vec![b'x'; LARGE]);
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route("/large", get(async move || page.clone()));
    let over_fabric = app.clone().route("/who", get(who));
    let over_fabric = over_fabric.into_make_service_with_connect_info::<FabricConnectInfo>();
    let over_fabric = axum::serve(incoming, over_fabric).with_graceful_shutdown(client.ended());
    let ended = client.ended();
    let over_socket: BoxFuture<'_, std::io::Result<()>> = match socket {
        Socket::Unix(listener, _) => {
            let server = axum::serve(listener, app).with_graceful_shutdown(ended);
            Box::pin(server.into_future())
        }
        Socket::Tcp(listener) => {
            let listener = listener.tap_io(|stream| {
                stream.set_nodelay(true).expect("a connected socket");
            });
            let server = axum::serve(listener, app).with_graceful_shutdown(ended);
            Box::pin(server.into_future())
        }
    };
    tokio::try_join!(over_fabric.into_future(), over_socket)?;
    client.wait().await
}

type Connection = SendRequest<Empty<Bytes>>;

/// Begins HTTP/1 on a byte stream.
async fn begin(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Connection> {
    let (requests, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("the connection has ended: {error}");
        }
    });
    Ok(requests)
}

async fn connect(link: &Link) -> Result<Connection> {
    match link {
        Link::Fabric(address) => begin(FabricStream::connect(address).await?).await,
        Link::Unix(name) => begin(UnixStream::connect(name).await?).await,
        Link::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            begin(stream).await
        }
    }
}

async fn fetch(connection: &mut Connection, path: &str) -> Result<Bytes> {
    connection.ready().await?;
    let request = Request::get(path).header("host", "hello");
    let response = connection.send_request(request.body(Empty::new())?).await?;
    if !response.status().is_success() {
        return Err(format!("{path}: {}", response.status()).into());
    }
    Ok(response.into_body().collect().await?.to_bytes())
}

async fn run_client(fabric: &str, socket: &str) -> Result<()> {
    let links = [Link::Fabric(fabric.to_owned()), Link::socket(socket)];
    let mut first = connect(&links[0]).await?;
    assert_eq!(fetch(&mut first, "/").await?, "hello");
    let who = fetch(&mut first, "/who").await?;
    println!("the server says: {}", String::from_utf8_lossy(&who));
    assert_eq!(fetch(&mut first, "/large").await?.len(), LARGE);

    let requests = Rates::measure(&links, async |link, time| {
        fetch_until(&links[link], "/", time)
            .await
            .map(|(count, _)| count)
    });
    requests
        .await?
        .print("GET of 5 B, one at a time", "requests/s", 1.0);
    let bytes = Rates::measure(&links, async |link, time| {
        fetch_until(&links[link], "/large", time)
            .await
            .map(|(_, bytes)| bytes)
    });
    let what = "GET of 256 KiB, one at a time";
    bytes.await?.print(what, "MiB/s", f64::from(1 << 20));
    Ok(())
}

/// Fetches a page for this long, and returns the number of requests and of bytes.
async fn fetch_until(link: &Link, path: &str, time: Duration) -> Result<(usize, usize)> {
    let mut connection = connect(link).await?;
    let began = Instant::now();
    let (mut requests, mut bytes) = (0, 0);
    while began.elapsed() < time {
        bytes += fetch(&mut connection, path).await?.len();
        requests += 1;
    }
    Ok((requests, bytes))
}
