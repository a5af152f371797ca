//! Servers in processes that are killed under load and started again.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use fabric_async::{Endpoint, Error};
use fabric_rpc::native::{Client, Code, ReconnectPolicy, Request, Server};
use tokio::task::coop;

use crate::common::{Probe, TestProcess, report_listening, role, take, unassigned_address};
use crate::service::{ECHO, TestServer, WAIT, check_echo, handle};
use crate::{run, run_on_two_threads};

/// The role of a client process: this, and the name of its server.
const CLIENT: &str = "client of ";

/// Serves or calls, if this process was started for that.
pub(crate) fn run_role() {
    let Some(address) = role() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("build a runtime");
    runtime.block_on(async {
        if let Some(name) = address.strip_prefix(CLIENT) {
            let client = Client::connect(name).await.expect("connect");
            let answer = client.call(Request::new(WAIT, "")).await;
            panic!("the call ended: {answer:?}");
        }
        let server = Server::bind(address).await.expect("bind");
        report_listening();
        let probe = Probe::new();
        let service = tower::service_fn(move |request| handle(probe.clone(), request));
        server.serve(service).await.expect("serve");
    });
}

/// Answers and failures of the callers.
#[derive(Default)]
struct Counts {
    answers: AtomicU64,
    unsafe_failures: AtomicU64,
    safe_failures: AtomicU64,
}

/// Calls until the task is aborted. The only failures are those of a server that has left.
async fn call_forever(client: Client, counts: Arc<Counts>) {
    let body = vec![7; 3000];
    loop {
        match client.call(Request::new(ECHO, body.clone())).await {
            Ok(response) => {
                assert_eq!(response.body.as_slice(), Some(&body[..]));
                counts.answers.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) => match status.code() {
                Code::Unavailable if status.is_retry_safe() => {
                    counts.safe_failures.fetch_add(1, Ordering::Relaxed);
                }
                Code::Unavailable => {
                    counts.unsafe_failures.fetch_add(1, Ordering::Relaxed);
                }
                _ => panic!("{status}"),
            },
        }
    }
}

async fn survive_restarts(address: &str, restarts: usize) {
    const CALLERS: u64 = 8;
    let mut server = TestProcess::start_server(address);
    let policy = ReconnectPolicy {
        max: Duration::from_millis(50),
        ..ReconnectPolicy::default()
    };
    let client = Client::builder(address)
        .reconnect(policy)
        .connect()
        .await
        .unwrap();
    let counts = Arc::<Counts>::default();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| tokio::spawn(call_forever(client.clone(), counts.clone())))
        .collect();
    let mut answers = 0;
    for restart in 0..restarts {
        // Each server answers calls before it is killed.
        while counts.answers.load(Ordering::Relaxed) < answers + 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut waiting = Box::pin(client.call(Request::new(WAIT, "")));
        tokio::select! {
            biased;
            ended = &mut waiting => panic!("{ended:?}"),
            () = check_echo_until_answered(&client) => {}
        }
        tokio::task::block_in_place(|| server.kill());
        let status = waiting.await.unwrap_err();
        assert_eq!(
            (status.code(), status.is_retry_safe()),
            (Code::Unavailable, false),
            "{restart}: {status}"
        );

        let request = Request::new(ECHO, "").timeout(Duration::from_millis(5));
        let status = client.call(request).await.unwrap_err();
        assert!(
            matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable),
            "{status}"
        );
        answers = counts.answers.load(Ordering::Relaxed);
        server = tokio::task::block_in_place(|| TestProcess::start_server(address));
        check_echo_until_answered(&client).await;
    }
    for caller in callers {
        assert!(
            !caller.is_finished(),
            "a caller has failed: {:?}",
            caller.await
        );
        caller.abort();
        let _ = caller.await;
    }
    // In each restart a caller has at most one call in flight, and so one failure.
    let unsafe_failures = counts.unsafe_failures.load(Ordering::Relaxed);
    assert!(
        unsafe_failures <= CALLERS * restarts as u64,
        "{unsafe_failures} failures"
    );
    while client.available_credits() < 256 {
        check_echo(&client).await;
    }
}

/// Calls until the server answers: a call may still find the server that was killed.
async fn check_echo_until_answered(client: &Client) {
    loop {
        match client.call(Request::new(ECHO, "")).await {
            Ok(_) => return,
            Err(status) => assert!(matches!(status.code(), Code::Unavailable), "{status}"),
        }
    }
}

#[test]
fn killed_client_drops_its_handler() {
    crate::run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        for _ in 0..3 {
            let mut process = TestProcess::start(&format!("{CLIENT}{}", server.name));
            take(&server.probe.waiting).await;
            process.kill();
            take(&server.probe.dropped).await;
            check_echo(&client).await;
        }
    });
}

fn run_restarts(address: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("build a runtime");
    runtime.block_on(async {
        let limit = Duration::from_secs(100);
        tokio::time::timeout(limit, survive_restarts(address, 20))
            .await
            .expect("the test hangs");
    });
}

#[test]
fn client_survives_restarts_of_a_killed_server_over_shm() {
    run_restarts(&format!("shm://native-restarts-{}", std::process::id()));
}

#[test]
fn client_survives_restarts_of_a_killed_server_over_tcp() {
    run_restarts(&format!("tcp://{}", unassigned_address()));
}

/// A client outlives the runtime that connected it: the call in flight fails, and the next one
/// connects again on its own runtime.
#[test]
fn calls_go_on_after_the_end_of_the_runtime_that_connected() {
    run_on_two_threads(async |address| {
        let server = TestServer::start(address).await;
        let name = server.name.clone();
        let connecting = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("build a runtime");
            let client = runtime.block_on(Client::connect(name)).expect("connect");
            (runtime, client)
        });
        let (runtime, client) = connecting.join().unwrap();
        check_echo(&client).await;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.call(Request::new(WAIT, "")).await }
        });
        take(&server.probe.waiting).await;
        runtime.shutdown_background();
        let status = waiting.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(!status.is_retry_safe(), "the server has begun the call");
        check_echo(&client).await;
    });
}

/// A call that is first polled without cooperative budget ends when its server leaves.
#[test]
fn call_without_budget_ends_with_its_server() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        check_echo(&client).await;
        let mut call = std::pin::pin!(client.call(Request::new(WAIT, "")));
        poll_fn(|cx| {
            while coop::has_budget_remaining() {
                if let Poll::Ready(budget) = coop::poll_proceed(cx) {
                    budget.made_progress();
                }
            }
            assert!(call.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(server);
        // The endpoint has noticed it before the call is polled again.
        while client.endpoint_stats().is_some_and(|stats| stats.peers > 0) {
            tokio::task::yield_now().await;
        }
        let status = call.await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    });
}

/// A client without calls keeps no endpoint of a connection that has ended.
#[test]
fn endpoint_is_closed_with_its_session() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let name = match address {
            "shm://" => format!("shm://native-session-{}", std::process::id()),
            _ => format!("tcp://{}", unassigned_address()),
        };
        let client = server.client_with(|builder| builder.bind_to(&name)).await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.call(Request::new(WAIT, "")).await }
        });
        take(&server.probe.waiting).await;
        drop(server);
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        // The name is in use until the endpoint is closed.
        while let Err(error) = Endpoint::bind(&*name).await {
            assert!(matches!(error, Error::AddressInUse(_)), "{error}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(client.endpoint_stats().is_none());
    });
}

/// A call that waits for a server until its deadline says why there is no connection.
#[test]
fn deadline_of_a_call_without_a_server_names_the_connect_error() {
    run(async |address| {
        let name = match address {
            "shm://" => format!("shm://native-no-server-{}", std::process::id()),
            _ => format!("tcp://{}", unassigned_address()),
        };
        let client = Client::builder(&name).connect_lazy();
        let request = Request::new(ECHO, "").timeout(Duration::from_millis(50));
        let status = client.call(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.message().contains("cannot connect"), "{status}");
    });
}
