//! Layers of tower over a native client: a timeout, a limit of concurrent calls, and retries that
//! never execute a request twice.
//!
//! `cargo run --release -p fabric-rpc --features native --example tower_service`, or with
//! `-- --provider tcp` over TCP
//!
//! The server is stopped and another one takes its name while the client calls.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use fabric_rpc::native::{Client, Request, Response, Server, Status};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::retry::Policy;
use tower::{Service, ServiceBuilder, ServiceExt};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DOUBLE: u32 = 1;
const SLEEP: u32 = 2;

/// Retries what the server has certainly not started, with pauses.
#[derive(Clone)]
struct RetrySafe {
    left: u32,
}

impl Policy<Request, Response, Status> for RetrySafe {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(
        &mut self,
        _: &mut Request,
        result: &mut std::result::Result<Response, Status>,
    ) -> Option<Self::Future> {
        let is_safe = result.as_ref().is_err_and(Status::is_retry_safe);
        if !is_safe || self.left == 0 {
            return None;
        }
        self.left -= 1;
        Some(Box::pin(tokio::time::sleep(Duration::from_millis(5))))
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        request.try_clone()
    }
}

async fn handle(request: Request) -> std::result::Result<Response, Infallible> {
    if request.method == SLEEP {
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    let doubled = request.body.into_bytes().repeat(2);
    Ok(Response::new(doubled))
}

/// Starts a server, and returns its name, what stops it, and its task.
async fn start_server(
    at: &str,
) -> Result<(
    String,
    oneshot::Sender<()>,
    JoinHandle<fabric_async::Result<()>>,
)> {
    let server = Server::bind(at).await?;
    let name = server.name().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    // The server side takes layers too.
    let service = ServiceBuilder::new()
        .concurrency_limit(100)
        .service_fn(handle);
    let serving = server.serve_with_shutdown(service, async { drop(stopped.await) });
    Ok((name, stop, tokio::spawn(serving)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let at = match &args[..] {
        [] => "shm://",
        [flag, provider] if flag == "--provider" && provider == "tcp" => "tcp://127.0.0.1:0",
        [flag, provider] if flag == "--provider" && provider == "shm" => "shm://",
        other => {
            eprintln!("tower_service takes --provider and shm or tcp, not {other:?}");
            std::process::exit(2);
        }
    };
    let (name, stop, serving) = start_server(at).await?;
    let client = Client::connect(&name).await?;
    let service = ServiceBuilder::new()
        .concurrency_limit(8)
        .timeout(Duration::from_secs(5))
        .retry(RetrySafe { left: 100 })
        .service(client.clone());

    let calls = (0..100).map(|number: u32| {
        let body = number.to_string();
        let expected = body.repeat(2);
        let call = service.clone().oneshot(Request::new(DOUBLE, body));
        async move {
            assert_eq!(call.await?.body.into_bytes(), expected);
            Result::Ok(())
        }
    });
    futures_util::future::try_join_all(calls).await?;
    println!("100 calls, 8 at a time: answered");

    let slow = ServiceBuilder::new()
        .timeout(Duration::from_millis(20))
        .service(client.clone());
    let failed = slow.oneshot(Request::new(SLEEP, "")).await.unwrap_err();
    println!("a slow call with a timeout of 20 ms: {failed}");

    drop(stop);
    serving.await??;
    // A request that is sent before the client has noticed the end is not safe to retry.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut service = service;
    let call = service.ready().await?.call(Request::new(DOUBLE, "again"));
    let call = tokio::spawn(call);
    let (_, _stop, _serving) = start_server(&name).await?;
    assert_eq!(call.await??.body.into_bytes(), "againagain");
    println!("a call while another server takes the name: answered");
    Ok(())
}
