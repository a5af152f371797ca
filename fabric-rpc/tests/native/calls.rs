//! Answers: bodies, metadata, statuses, panics.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use fabric_rpc::native::{Client, Code, Request, Response, Server, Status};
use futures_util::future::BoxFuture;
use tower::Service;

use crate::common::take;
use crate::service::{DEADLINE, ECHO, FAIL, PANIC, PANIC_LATER, TestServer, WAIT, check_echo};
use crate::{run, run_on_two_threads};

fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len)
        .map(|at| (at * 7 + at / 251 + seed) as u8)
        .collect()
}

#[test]
fn bodies_and_metadata_come_back() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        for len in [0, 1, 8, 56, 57, 255, 4096, 65_537, 1 << 20] {
            let body = pattern(len, len);
            let reply = client.call(Request::new(ECHO, body.clone())).await.unwrap();
            assert_eq!(
                (reply.metadata.len(), reply.body.into_bytes()),
                (0, body.clone())
            );

            let request = Request::new(ECHO, body.clone())
                .metadata("key", "value")
                .metadata("", pattern(1000, 1))
                .metadata("key", "");
            let reply = client.call(request).await.unwrap();
            let pairs: Vec<_> = reply.metadata.iter().collect();
            let expected: [(Bytes, Bytes); 3] = [
                ("key".into(), "value".into()),
                ("".into(), pattern(1000, 1)),
                ("key".into(), "".into()),
            ];
            let expected: Vec<_> = expected.iter().map(|(key, value)| (key, value)).collect();
            assert_eq!(pairs, expected);
            assert_eq!(reply.metadata.get("key").unwrap(), "value");
            assert_eq!(reply.body.into_bytes(), body);
        }
    });
}

#[test]
fn statuses_have_code_message_and_metadata() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let request = Request::new(FAIL, "body").metadata("key", "value");
        let status = client.call(request).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Application(7), "as asked")
        );
        assert_eq!(status.metadata.get("key").unwrap(), "value");
        let status = client.call(Request::new(0, "")).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    });
}

#[test]
fn concurrent_calls_get_their_own_answers() {
    run_on_two_threads(async |address| {
        let server = TestServer::start(address).await;
        let client = server
            .client_with(|builder| builder.max_in_flight(50))
            .await;
        let callers = (0..100).map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                for call in 0..30 {
                    let body = pattern(caller * 20 + call, caller);
                    let reply = client.call(Request::new(ECHO, body.clone())).await.unwrap();
                    assert_eq!(reply.body.into_bytes(), body);
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert_eq!(client.available_credits(), 50);
    });
}

#[test]
fn answers_come_in_the_order_of_the_handlers() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let other = client.clone();
        let waiting = tokio::spawn(async move { other.call(Request::new(WAIT, "late")).await });
        take(&server.probe.waiting).await;
        for _ in 0..10 {
            check_echo(&client).await;
        }
        assert!(!waiting.is_finished());
        server.probe.go_on.add_permits(1);
        let reply = waiting.await.unwrap().unwrap();
        assert_eq!(reply.body.into_bytes(), "late");
    });
}

#[test]
fn handler_that_panics_fails_its_call_alone() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let other = client.clone();
        let waiting = tokio::spawn(async move { other.call(Request::new(WAIT, "")).await });
        take(&server.probe.waiting).await;
        for method in [PANIC, PANIC_LATER, PANIC, PANIC_LATER] {
            let status = client.call(Request::new(method, "")).await.unwrap_err();
            assert_eq!(
                (status.code(), status.message()),
                (Code::Internal, "the handler panicked")
            );
            check_echo(&client).await;
        }
        server.probe.go_on.add_permits(1);
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn requests_have_the_deadline_of_their_call() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let hour = std::time::Duration::from_secs(3600);
        let reply = client
            .call(Request::new(DEADLINE, "").timeout(hour))
            .await
            .unwrap();
        assert_eq!(reply.body.into_bytes(), [1][..]);
        let reply = client.call(Request::new(DEADLINE, "")).await.unwrap();
        assert_eq!(reply.body.into_bytes(), [0][..]);
        let with_default = Client::builder(&server.name).default_timeout(Some(hour));
        let client = with_default.connect().await.unwrap();
        let reply = client.call(Request::new(DEADLINE, "")).await.unwrap();
        assert_eq!(reply.body.into_bytes(), [1][..]);
    });
}

#[test]
fn connect_fails_without_a_server() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let name = server.name.clone();
        server.client().await;
        server.serving.abort();
        while !server.serving.is_finished() {
            tokio::task::yield_now().await;
        }
        let failed = Client::connect(&name).await.unwrap_err();
        assert!(failed.is_peer_unavailable(), "{failed}");
    });
}

/// A service that panics when it is cloned, called or dropped, by the method of the request.
#[derive(Debug)]
struct PanickingService {
    clones: Arc<AtomicU32>,
}

/// Panics when it is dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "as asked");
    }
}

impl Clone for PanickingService {
    fn clone(&self) -> Self {
        assert!(
            !(self.clones.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(3),
            "as asked"
        );
        Self {
            clones: self.clones.clone(),
        }
    }
}

impl Service<Request> for PanickingService {
    type Response = Response;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match request.method {
            2 => panic!("as asked"),
            4 => std::panic::panic_any(PanicOnDrop),
            _ => {}
        }
        let held = (request.method == 3).then(|| PanicOnDrop);
        Box::pin(poll_fn(move |_| {
            let _held = &held;
            Poll::Ready(Ok(Response::new("done")))
        }))
    }
}

/// No panic of the service's code ends the server.
#[test]
fn panics_of_a_service_fail_their_calls_alone() {
    run(async |address| {
        let server = Server::bind(address).await.unwrap();
        let client = Client::builder(server.name()).connect_lazy();
        let clones = Arc::default();
        let serving = tokio::spawn(server.serve(PanickingService { clones }));
        let mut codes = Vec::new();
        for method in [1, 1, 1, 2, 3, 1, 1, 4, 1, 1] {
            let result = client.call(Request::new(method, "")).await;
            codes.push(result.map_err(|status| status.code()).err());
        }
        let failed = Some(Code::Internal);
        // Every third clone panics, and the calls of methods 2, 3 and 4.
        let expected = [
            None, None, failed, failed, failed, failed, None, failed, failed, None,
        ];
        assert_eq!(codes, expected);
        serving.abort();
    });
}
