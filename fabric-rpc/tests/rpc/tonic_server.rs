//! A server of tonic over the fabric, and what ends its connections.

use std::io::ErrorKind;
use std::sync::Arc;

use fabric_async::Address;
use fabric_async::stream::FabricStream;
use fabric_rpc::{FabricConnector, FabricIncoming};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Endpoint, Server};
use tonic::{Response, Status};

use crate::common::{Probe, take};
use crate::run;
use crate::test_service::{Empty, SimpleRequest, SimpleResponse, TestClient, TestService, payload};

/// A server of [`TestService`] in a task.
pub(crate) struct TestServer {
    pub(crate) probe: Arc<Probe>,
    address: Address,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl TestServer {
    pub(crate) async fn start(at: &str) -> Self {
        let incoming = FabricIncoming::bind(at).await.expect("listen");
        let address = incoming.local_addr().clone();
        let (shutdown, stopped) = oneshot::channel();
        let probe = Probe::new();
        let server = Server::builder()
            .add_service(TestService(probe.clone()))
            .serve_with_incoming_shutdown(incoming, async { drop(stopped.await) });
        Self {
            probe,
            address,
            shutdown,
            task: tokio::spawn(server),
        }
    }

    pub(crate) async fn connect(&self) -> TestClient {
        let connector = FabricConnector::new(self.address.clone());
        let endpoint = Endpoint::from_static("http://test");
        let channel = endpoint.connect_with_connector(connector).await;
        TestClient::new(channel.expect("connect"))
    }

    /// Shuts the server down, and waits until its connections have ended.
    pub(crate) async fn stop(self) {
        self.shutdown.send(()).expect("the server runs");
        self.task.await.expect("no panic").expect("no error");
    }
}

#[test]
fn service_learns_the_identity_of_its_peer() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let response = server.connect().await.unary("Peer", Empty {}).await;
        let response: Response<Empty> = response.unwrap();
        let get = |key| Some(response.metadata().get(key)?.to_str().expect("text"));
        assert!(get("local").is_some());
        let peer = get("peer").expect("an address").parse::<Address>().unwrap();
        assert_eq!(peer.scheme(), server.address.scheme());
        if address.starts_with("shm") {
            let user = rustix::process::getuid().as_raw().to_string();
            assert_eq!(get("uid"), Some(&user[..]));
            assert_eq!(get("pid"), Some(&std::process::id().to_string()[..]));
        } else {
            assert_eq!((get("uid"), get("pid")), (None, None));
        }
        server.stop().await;
    });
}

#[test]
fn calls_share_a_connection() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.connect().await;
        let calls = (0..100).map(|number| {
            let mut client = client.clone();
            async move {
                let request = SimpleRequest {
                    response_size: number * 1_000,
                    payload: payload(100_000 - number as usize * 1_000),
                    response_status: None,
                };
                let response = client.unary("UnaryCall", request).await;
                let response: SimpleResponse = response.unwrap().into_inner();
                assert_eq!(response.payload, payload(number as usize * 1_000));
            }
        });
        join_all(calls).await;
        server.stop().await;
    });
}

#[test]
fn graceful_shutdown_ends_calls_in_flight_and_refuses_connections() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let call = tokio::spawn(async move { client.unary::<_, Empty>("Wait", Empty {}).await });
        take(&server.probe.waiting).await;
        server.shutdown.send(()).expect("the server runs");
        // The server stops listening when its task runs.
        let refused = loop {
            match FabricStream::connect(&server.address).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
        assert!(!server.task.is_finished(), "a call is in flight");
        server.probe.go_on.add_permits(1);
        call.await.unwrap().expect("the call in flight ends well");
        server.task.await.expect("no panic").expect("no error");
    });
}

#[test]
fn client_that_does_not_speak_http2_disturbs_no_other() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.connect().await;
        let silent = FabricStream::connect(&server.address).await.unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let garbage = (0..100_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8);
        let garbage: Vec<u8> = garbage.collect();
        for bytes in [
            b"GET / HTTP/1.1\r\nhost: test\r\n\r\n".to_vec(),
            garbage.clone(),
            [&preface[..], &garbage].concat(),
            // A frame that is longer than the limit.
            [&preface[..], &[0xff; 9]].concat(),
            preface[..10].to_vec(),
            Vec::new(),
        ] {
            let mut stream = FabricStream::connect(&server.address).await.unwrap();
            // The server may end the connection before it has read everything.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
            client.empty_call().await.unwrap();
            let mut other = server.connect().await;
            other.empty_call().await.unwrap();
        }
        drop(silent);
        server.stop().await;
    });
}

#[test]
fn connect_to_no_server_is_unavailable() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let address = server.address.clone();
        server.stop().await;
        let endpoint = Endpoint::from_static("http://test");
        let connector = FabricConnector::new(address);
        let error = endpoint.connect_with_connector(connector.clone()).await;
        let error = Status::from_error(error.unwrap_err().into());
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error:?}");
        let mut lazy = TestClient::new(endpoint.connect_with_connector_lazy(connector));
        let error = lazy.empty_call().await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error:?}");
        let mut lazy = TestClient::new(
            endpoint.connect_with_connector_lazy(FabricConnector::new("no address")),
        );
        let error = lazy.empty_call().await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error:?}");
    });
}
