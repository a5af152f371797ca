//! Servers in processes that are killed.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fabric_rpc::{FabricConnector, FabricIncoming};
use futures_util::stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Server};

use crate::test_service::{Empty, Probe, TestClient, TestService};

/// A server process, which is killed with the test.
struct ServerProcess(Child);

impl ServerProcess {
    /// Starts a server at this address, and waits until it listens.
    fn start(address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("path of the test program"))
            .args(["--exact", "server_entry_point", "--nocapture"])
            .env("FABRIC_ROLE", address)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the test program");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let listens = stdout
            .lines()
            .any(|line| line.expect("text").contains(LISTENS));
        assert!(listens, "the server ended");
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().expect("kill a child");
        self.0.wait().expect("wait for a child");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a server prints when it listens.
const LISTENS: &str = "the server listens";

/// Serves, if this process was started for that.
pub(crate) fn run_role() {
    let Ok(address) = std::env::var("FABRIC_ROLE") else {
        return;
    };
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

fn report_listening() {
    println!("{LISTENS}");
    std::io::stdout().flush().expect("a pipe");
}

/// Returns a port outside the range of which the kernel assigns ports to sockets.
fn unassigned_port() -> u16 {
    let begin = std::process::id().wrapping_mul(61) as u16;
    (0..u16::MAX)
        .map(|offset| 10_000 + begin.wrapping_add(offset) % 20_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
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
        let mut server = ServerProcess::start(address);
        let mut responses = client.output("RespondAndWait", Empty {}).await.unwrap();
        responses.message().await.unwrap().expect("a response");
        let mut waiting = client.clone();
        let waiting =
            tokio::spawn(async move { waiting.unary::<_, Empty>("Wait", Empty {}).await });
        client.empty_call().await.unwrap();
        server.kill();
        let killed = responses.message().await.unwrap_err().code();
        assert_eq!(waiting.await.unwrap().unwrap_err().code(), killed);
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
            let of_tcp =
                call_killed_server(&format!("tcp://127.0.0.1:{}", unassigned_port())).await;
            assert_eq!((of_shm, of_tcp), (of_unix, of_unix));
        };
        let limit = Duration::from_secs(100);
        tokio::time::timeout(limit, test)
            .await
            .expect("the test hangs");
    });
}
