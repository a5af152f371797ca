//! Servers of axum and hyper over the fabric, and the client of hyper-util.

use std::convert::Infallible;
use std::io::ErrorKind;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::routing::{get, post};
use bytes::Bytes;
use fabric_async::Address;
use fabric_async::stream::FabricStream;
use fabric_rpc::{FabricConnectInfo, FabricConnector, FabricIncoming};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::{Probe, take};
use crate::run;

type HttpClient = Client<FabricConnector, Full<Bytes>>;

fn client(address: &Address) -> HttpClient {
    Client::builder(TokioExecutor::new()).build(FabricConnector::new(address.clone()))
}

/// Sends a request, and returns the body of the response.
async fn fetch(client: &HttpClient, path: &str, body: Bytes) -> Bytes {
    let request = Request::post(format!("http://test{path}"));
    let request = request.body(Full::new(body)).expect("a request");
    let response = client.request(request).await.expect("a response");
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.expect("a body");
    body.to_bytes()
}

/// Waits until the server at this address refuses connections.
async fn wait_refused(address: &Address) {
    loop {
        match FabricStream::connect(address).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        }
    }
}

struct AxumServer {
    probe: std::sync::Arc<Probe>,
    address: Address,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start_axum(at: &str) -> AxumServer {
    let incoming = FabricIncoming::bind(at).await.expect("listen");
    let address = incoming.local_addr().clone();
    let probe = Probe::new();
    let peer = async |ConnectInfo(peer): ConnectInfo<FabricConnectInfo>| {
        format!("{} {:?}", peer.peer_addr(), peer.peer_credentials())
    };
    let wait = async |State(probe): State<std::sync::Arc<Probe>>| {
        probe.wait().await;
        "waited"
    };
    let app = Router::new()
        .route("/hello", get(async || "hello"))
        .route("/echo", post(async |body: Bytes| body))
        .route("/peer", post(peer))
        .route("/wait", post(wait))
        .with_state(probe.clone())
        .into_make_service_with_connect_info::<FabricConnectInfo>();
    let (shutdown, stopped) = oneshot::channel::<()>();
    let server = axum::serve(incoming, app).with_graceful_shutdown(async { drop(stopped.await) });
    AxumServer {
        probe,
        address,
        shutdown,
        task: tokio::spawn(server.into_future()),
    }
}

#[test]
fn axum_serves_and_learns_its_peer() {
    run(async |address| {
        let server = start_axum(address).await;
        let client = client(&server.address);
        let response = client.get("http://test/hello".parse().unwrap()).await;
        let body = response.unwrap().into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "hello");
        let long = Bytes::from(vec![7; 1_000_000]);
        assert!(fetch(&client, "/echo", long.clone()).await == long);
        let peer = fetch(&client, "/peer", Bytes::new()).await;
        let peer = String::from_utf8(peer.to_vec()).unwrap();
        let pid = format!("pid: Some({})", std::process::id());
        assert_eq!(peer.contains(&pid), address.starts_with("shm"), "{peer}");
        let response = client.get("http://test/missing".parse().unwrap()).await;
        assert_eq!(response.unwrap().status(), StatusCode::NOT_FOUND);
        drop(client);
        server.shutdown.send(()).expect("the server runs");
        server.task.await.expect("no panic").expect("no error");
    });
}

#[test]
fn axum_shuts_down_gracefully() {
    run(async |address| {
        let server = start_axum(address).await;
        let client = client(&server.address);
        let call = tokio::spawn(async move { fetch(&client, "/wait", Bytes::new()).await });
        take(&server.probe.waiting).await;
        server.shutdown.send(()).expect("the server runs");
        wait_refused(&server.address).await;
        assert!(!server.task.is_finished(), "a request is in flight");
        server.probe.go_on.add_permits(1);
        assert_eq!(call.await.unwrap(), "waited");
        server.task.await.expect("no panic").expect("no error");
    });
}

#[test]
fn axum_outlives_clients_that_leave_or_do_not_speak_http() {
    run(async |address| {
        let server = start_axum(address).await;
        for bytes in [&b""[..], b"GET /hello", &[0xff; 10_000]] {
            drop(FabricStream::connect(&server.address).await.unwrap());
            let mut stream = FabricStream::connect(&server.address).await.unwrap();
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
            let echo = fetch(&client(&server.address), "/echo", "echo".into()).await;
            assert_eq!(echo, "echo");
        }
        server.shutdown.send(()).expect("the server runs");
        server.task.await.expect("no panic").expect("no error");
    });
}

#[test]
fn hyper_shuts_down_gracefully() {
    run(async |address| {
        let mut incoming = FabricIncoming::bind(address).await.expect("listen");
        let address = incoming.local_addr().clone();
        let probe = Probe::new();
        let (shutdown, mut stopped) = oneshot::channel::<()>();
        let service = {
            let probe = probe.clone();
            hyper::service::service_fn(move |request: Request<Incoming>| {
                let probe = probe.clone();
                async move {
                    let body = request.into_body().collect().await.expect("a body");
                    probe.wait().await;
                    Ok::<_, Infallible>(Response::new(Full::new(body.to_bytes())))
                }
            })
        };
        let server = tokio::spawn(async move {
            let graceful = GracefulShutdown::new();
            loop {
                let io = tokio::select! {
                    io = incoming.accept() => io.expect("the listener is open"),
                    _ = &mut stopped => break,
                };
                let http = http1::Builder::new();
                let connection = http.serve_connection(TokioIo::new(io), service.clone());
                let connection = graceful.watch(connection);
                tokio::spawn(async move { drop(connection.await) });
            }
            drop(incoming);
            graceful.shutdown().await;
        });
        let client = client(&address);
        let calls = [1, 2].map(|number| {
            let client = client.clone();
            tokio::spawn(async move { fetch(&client, "/", vec![number; 100_000].into()).await })
        });
        take(&probe.waiting).await;
        take(&probe.waiting).await;
        shutdown.send(()).expect("the server runs");
        wait_refused(&address).await;
        assert!(!server.is_finished(), "two requests are in flight");
        probe.go_on.add_permits(2);
        for (call, number) in calls.into_iter().zip(1..) {
            assert!(call.await.unwrap() == vec![number; 100_000]);
        }
        server.await.expect("no panic");
    });
}
