//! The service of the tests, and a server with it.

use std::sync::Arc;

use fabric_rpc::native::{
    Client, ClientBuilder, Code, Request, Response, Server, ServerBuilder, Status,
};
use tokio::task::JoinHandle;

use crate::common::Probe;

/// The answer is the request.
pub(crate) const ECHO: u32 = 1;
/// Waits for the probe.
pub(crate) const WAIT: u32 = 2;
/// Fails with a status.
pub(crate) const FAIL: u32 = 3;
/// Panics at the first poll.
pub(crate) const PANIC: u32 = 4;
/// Panics at a later poll.
pub(crate) const PANIC_LATER: u32 = 5;
/// Answers with as many bytes as the body says.
pub(crate) const LEN: u32 = 6;
/// Answers whether the request has a deadline.
pub(crate) const DEADLINE: u32 = 7;

pub(crate) async fn handle(probe: Arc<Probe>, request: Request) -> Result<Response, Status> {
    match request.method {
        ECHO => Ok(Response {
            metadata: request.metadata,
            body: request.body,
        }),
        WAIT => {
            probe.wait().await;
            Ok(Response::new(request.body))
        }
        FAIL => {
            let mut status = Status::new(Code::Application(7), "as asked");
            status.metadata = request.metadata;
            Err(status)
        }
        PANIC => panic!("as asked"),
        PANIC_LATER => {
            tokio::task::yield_now().await;
            panic!("as asked")
        }
        LEN => Ok(Response::new(vec![7; number(request) as usize])),
        DEADLINE => Ok(Response::new(vec![u8::from(request.deadline().is_some())])),
        _ => Err(Status::new(Code::Unimplemented, "no such method")),
    }
}

pub(crate) fn number(request: Request) -> u64 {
    let bytes = request.body.into_bytes();
    u64::from_le_bytes(bytes[..].try_into().expect("8 bytes"))
}

/// A server of [`handle`] in a task.
pub(crate) struct TestServer {
    pub(crate) name: String,
    pub(crate) probe: Arc<Probe>,
    pub(crate) serving: JoinHandle<fabric_async::Result<()>>,
}

impl TestServer {
    pub(crate) async fn start(at: &str) -> Self {
        Self::start_with(at, Server::builder()).await
    }

    pub(crate) async fn start_with(at: &str, builder: ServerBuilder) -> Self {
        let server = builder.bind(at).await.expect("bind");
        let name = server.name().to_string();
        let probe = Probe::new();
        let handler = probe.clone();
        let service = tower::service_fn(move |request| handle(handler.clone(), request));
        Self {
            name,
            probe,
            serving: tokio::spawn(server.serve(service)),
        }
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(|builder| builder).await
    }

    pub(crate) async fn client_with(
        &self,
        options: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Client {
        let builder = options(Client::builder(&self.name));
        builder.connect().await.expect("connect")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Checks that calls work.
pub(crate) async fn check_echo(client: &Client) {
    let response = client.call(Request::new(ECHO, "echo")).await.unwrap();
    assert_eq!(response.body.into_bytes(), "echo");
}

/// Starts tasks that call the method.
pub(crate) fn spawn_calls(
    client: &Client,
    method: u32,
    count: usize,
) -> Vec<JoinHandle<Result<Response, Status>>> {
    let call = |_| {
        let client = client.clone();
        tokio::spawn(async move { client.call(Request::new(method, "")).await })
    };
    (0..count).map(call).collect()
}
