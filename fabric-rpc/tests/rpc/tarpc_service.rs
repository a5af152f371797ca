//! Services of tarpc over frames of the fabric.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_async::stream::MAX_FRAME_LEN;
use fabric_async::{Address, ConnectedEndpoint, Endpoint};
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use tarpc::client::RpcError;
use tarpc::context::{self, Context};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::{Bincode, Json};
use tokio::task::JoinHandle;

use crate::common::{Probe, take};
use crate::run;

#[tarpc::service]
trait Test {
    async fn echo(bytes: Vec<u8>) -> Vec<u8>;
    async fn wait() -> u32;
}

#[derive(Clone)]
struct TestServer(Arc<Probe>);

impl Test for TestServer {
    async fn echo(self, _: Context, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    async fn wait(self, _: Context) -> u32 {
        self.0.wait().await;
        7
    }
}

/// Serves with `Bincode`, and returns the address.
async fn serve(at: &str, probe: &Arc<Probe>) -> (Address, JoinHandle<()>) {
    let incoming = fabric_rpc::tarpc::listen(at, Bincode::default).await;
    let mut incoming = incoming.expect("listen");
    let address = incoming.local_addr().clone();
    let server = TestServer(probe.clone());
    let task = tokio::spawn(async move {
        while let Some(transport) = incoming.next().await {
            let transport = transport.expect("no item is an error");
            let requests = BaseChannel::with_defaults(transport).execute(server.clone().serve());
            tokio::spawn(requests.for_each(async |request| drop(tokio::spawn(request))));
        }
    });
    (address, task)
}

async fn connect(address: &Address) -> TestClient {
    let transport = fabric_rpc::tarpc::connect(address, Bincode::default).await;
    TestClient::new(Default::default(), transport.expect("connect")).spawn()
}

#[test]
fn tarpc_calls() {
    run(async |address| {
        let (address, _server) = serve(address, &Probe::new()).await;
        let client = connect(&address).await;
        let calls = (0..50).map(|number| {
            let (client, bytes) = (client.clone(), vec![number as u8; number * 1_000]);
            async move {
                let echo = client.echo(context::current(), bytes.clone()).await;
                assert!(echo.unwrap() == bytes);
            }
        });
        join_all(calls).await;
    });
}

#[test]
fn tarpc_calls_with_json() {
    run(async |address| {
        let incoming = fabric_rpc::tarpc::listen(address, Json::default).await;
        let mut incoming = incoming.expect("listen");
        let address = incoming.local_addr().clone();
        let connect = fabric_rpc::tarpc::connect(&address, Json::default);
        let (client, server) = tokio::join!(connect, incoming.next());
        let server = server.expect("open").expect("a transport");
        assert_eq!(server.get_ref().peer_addr().scheme(), address.scheme());
        let requests = BaseChannel::with_defaults(server).execute(TestServer(Probe::new()).serve());
        tokio::spawn(requests.for_each(|request| request));
        let client = TestClient::new(Default::default(), client.expect("connect")).spawn();
        let echo = client.echo(context::current(), b"echo".to_vec()).await;
        assert_eq!(echo.unwrap(), b"echo");
    });
}

#[test]
fn tarpc_deadline_ends_the_call_on_both_sides() {
    run(async |address| {
        let probe = Probe::new();
        let (address, _server) = serve(address, &probe).await;
        let client = connect(&address).await;
        let mut context = context::current();
        context.deadline = Instant::now() + Duration::from_millis(50);
        let error = client.wait(context).await.unwrap_err();
        assert!(matches!(error, RpcError::DeadlineExceeded), "{error:?}");
        take(&probe.dropped).await;
    });
}

#[test]
fn tarpc_cancellation_reaches_the_handler() {
    run(async |address| {
        let probe = Probe::new();
        let (address, _server) = serve(address, &probe).await;
        let client = connect(&address).await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.wait(context::current()).await }
        });
        take(&probe.waiting).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        take(&probe.dropped).await;
        // The connection goes on.
        let echo = client.echo(context::current(), vec![1]).await;
        assert_eq!(echo.unwrap(), [1]);
    });
}

#[test]
fn tarpc_client_that_leaves_cancels_its_calls() {
    run(async |address| {
        let probe = Probe::new();
        let (address, _server) = serve(address, &probe).await;
        let transport = fabric_rpc::tarpc::connect(&address, Bincode::default).await;
        let client = TestClient::new(Default::default(), transport.expect("connect"));
        let dispatch = tokio::spawn(client.dispatch);
        let mut call = std::pin::pin!(client.client.wait(context::current()).fuse());
        tokio::select! {
            result = &mut call => panic!("the call waits: {result:?}"),
            () = take(&probe.waiting) => {}
        }
        dispatch.abort();
        take(&probe.dropped).await;
        assert!(call.await.is_err());
    });
}

#[test]
fn tarpc_message_above_the_limit_ends_its_connection_only() {
    run(async |address| {
        let (address, _server) = serve(address, &Probe::new()).await;
        let (client, other) = (connect(&address).await, connect(&address).await);
        let long = vec![1; MAX_FRAME_LEN + 1];
        client.echo(context::current(), long).await.unwrap_err();
        let echo = other
            .echo(context::current(), vec![1; MAX_FRAME_LEN / 2])
            .await;
        assert_eq!(echo.unwrap().len(), MAX_FRAME_LEN / 2);
    });
}

#[test]
fn tarpc_options_raise_the_limit() {
    run(async |address| {
        let options = Endpoint::options().max_msg_size(8 << 20);
        let incoming =
            fabric_rpc::tarpc::listen_with(options.clone(), address, Bincode::default).await;
        let mut incoming = incoming.expect("listen");
        let address = incoming.local_addr().clone();
        let connect = fabric_rpc::tarpc::connect_with(options, &address, Bincode::default);
        let (client, server) = tokio::join!(connect, incoming.next());
        let server = BaseChannel::with_defaults(server.expect("open").expect("a transport"));
        let requests = server.execute(TestServer(Probe::new()).serve());
        tokio::spawn(requests.for_each(|request| request));
        let client = TestClient::new(Default::default(), client.expect("connect")).spawn();
        let echo = client.echo(context::current(), vec![1; 4 << 20]).await;
        assert_eq!(echo.unwrap().len(), 4 << 20);
    });
}

#[test]
fn tarpc_server_outlives_malformed_frames_and_other_protocols() {
    run(async |address| {
        let (address, _server) = serve(address, &Probe::new()).await;
        let client = connect(&address).await;
        for frame in [&b""[..], b"\xff\xff\xff\xff", &[0; 1_000]] {
            let ep = ConnectedEndpoint::connect(&address)
                .private_data("fabric-frames/1")
                .await;
            let ep = ep.expect("connect");
            ep.send(frame).await.expect("send");
            let refused = ConnectedEndpoint::connect(&address)
                .private_data("other")
                .await;
            assert!(refused.is_err(), "a client of another protocol");
            let echo = client.echo(context::current(), vec![1]).await;
            assert_eq!(echo.unwrap(), [1]);
        }
    });
}

#[test]
fn tarpc_server_that_stops_refuses_and_fails_calls() {
    run(async |address| {
        let probe = Probe::new();
        let (address, server) = serve(address, &probe).await;
        let client = connect(&address).await;
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        let refused = fabric_rpc::tarpc::connect::<(), (), _>(&address, Bincode::<(), ()>::default);
        assert_eq!(
            refused.await.unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        // The connection outlives the listener.
        let echo = client.echo(context::current(), vec![1]).await;
        assert_eq!(echo.unwrap(), [1]);
    });
}
