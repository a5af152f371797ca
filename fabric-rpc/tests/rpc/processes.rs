//! Servers in processes that are killed.

use std::pin::pin;
use std::time::Duration;

use fabric_rpc::{FabricConnector, FabricIncoming};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Server};

use crate::common::{Probe, TestProcess, report_listening, role, unassigned_address};
use crate::test_service::{Empty, TestClient, TestService};

/// Serves, if this process was started for that.
pub(crate) fn run_role() {
    let Some(address) = role() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("build a runtime");
    runtime.block_on(async {
        let server = Server::builder().add_service(TestService(Probe::new()));
        let served = if let Some(name) = address.strip_prefix("unix:") {
            let listener = UnixListener::bind(format!("\0{name}")).expect("listen");
            let incoming = stream::poll_fn(move |cx| {
                listener
                    .poll_accept(cx)
                    .map(|accepted| Some(accepted.map(|(io, _)| io)))
            });
            report_listening();
            server.serve_with_incoming(incoming).await
        } else {
            let incoming = FabricIncoming::bind(&address).await.expect("listen");
            report_listening();
            server.serve_with_incoming(incoming).await
        };
        served.expect("serve");
    });
}

fn connect_lazily(address: &str) -> Channel {
    let endpoint = Endpoint::from_static("http://test");
    let Some(name) = address.strip_prefix("unix:") else {
        return endpoint.connect_with_connector_lazy(FabricConnector::new(address.to_owned()));
    };
    let path = format!("\0{name}");
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }))
}

/// Calls a server that is killed during the call and started again, and returns the codes of the
/// call and of one without a server.
async fn call_killed_server(address: &str) -> (Code, Code) {
    let mut client = TestClient::new(connect_lazily(address));
    let mut codes = None;
    for _ in 0..2 {
        let mut server = TestProcess::start_server(address);
        let mut responses = client.output("RespondAndWait", Empty {}).await.unwrap();
        responses.message().await.unwrap().expect("a response");
        let mut other = client.clone();
        let mut waiting = pin!(other.unary::<_, Empty>("Wait", Empty {}));
        // Requests are sent in the order of their first polls.
        tokio::select! {
            biased;
            ended = &mut waiting => panic!("{ended:?}"),
            answer = client.empty_call() => answer.unwrap(),
        };
        server.kill();
        let killed = responses.message().await.unwrap_err().code();
        assert_eq!(waiting.await.unwrap_err().code(), killed);
        // A call that is sent before the client has noticed the end is canceled.
        let mut refused = client.empty_call().await;
        if refused
            .as_ref()
            .is_err_and(|error| error.code() == Code::Cancelled)
        {
            refused = client.empty_call().await;
        }
        codes = Some((killed, refused.unwrap_err().code()));
    }
    codes.expect("two rounds")
}

/// As over a Unix socket: tonic reports a connection that ends as `Unknown`, and a server that does
/// not listen as `Unavailable`.
#[test]
fn killed_server_fails_its_calls_and_can_return() {
    let name = format!("rpc-killed-server-{}", std::process::id());
    let runtime = tokio::runtime::Runtime::new().expect("build a runtime");
    runtime.block_on(async {
        let test = async {
            let of_unix = call_killed_server(&format!("unix:{name}")).await;
            assert_eq!(of_unix.1, Code::Unavailable);
            let of_shm = call_killed_server(&format!("shm://{name}")).await;
            let of_tcp = call_killed_server(&format!("tcp://{}", unassigned_address())).await;
            assert_eq!((of_shm, of_tcp), (of_unix, of_unix));
        };
        let limit = Duration::from_secs(100);
        tokio::time::timeout(limit, test)
            .await
            .expect("the test hangs");
    });
}
