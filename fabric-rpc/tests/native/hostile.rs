//! Messages that are no calls, and peers that take no answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fabric_async::{Address, Endpoint, Error, Event, EventKind};
use fabric_rpc::native::{Client, Code, ReconnectPolicy, Request, Server};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use crate::cancellation::{CANCEL, REQUEST, RESPONSE, receive_raw};
use crate::common::{Probe, take, unassigned_address};
use crate::run;
use crate::service::{ECHO, LEN, TestServer, WAIT, check_echo, handle};

/// Tags that are not of this protocol, or whose flags do not fit together.
const BAD_TAGS: [u64; 8] = [
    0,
    7,
    4 << 60,
    15 << 60,
    0x18 << 56,
    0x14 << 56,
    0x13 << 56,
    u64::MAX,
];

/// Malformed metadata: a length that is not there, one that is too long, pairs that are not there.
fn bad_prefixes() -> Vec<Vec<u8>> {
    let prefix = |len: u32, content: &[u8]| [&len.to_le_bytes()[..], content].concat();
    vec![
        vec![],
        vec![1, 0],
        prefix(1, &[]),
        prefix(u32::MAX, &[7; 100]),
        prefix(6, &[0, 0, 0, 0, 1, 0]),
        prefix(
            14,
            &[0, 0, 0, 0, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255],
        ),
        prefix(7, &[1, 0, 0, 0, 0xff, 0, 0]),
        prefix(7, &[0, 0, 0, 0, 0, 0, 9]),
    ]
}

#[test]
fn server_survives_messages_that_are_no_calls() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let ep = Endpoint::bind(address).await.unwrap();
        let to_server = ep.add_peer(&server.name).await.unwrap();
        for tag in BAD_TAGS.into_iter().chain([RESPONSE | 1]) {
            for len in [0, 3, 2000] {
                ep.send(to_server, vec![0xff; len])
                    .tag(tag)
                    .data(u64::MAX)
                    .await
                    .unwrap();
                ep.send(to_server, vec![0xff; len]).tag(tag).await.unwrap();
            }
        }
        check_echo(&client).await;

        // Requests whose metadata are malformed are answered.
        for (id, prefix) in (1..).zip(bad_prefixes()) {
            let tag = REQUEST | 1 << 56 | id;
            ep.send(to_server, prefix)
                .tag(tag)
                .data(u64::from(ECHO) << 32)
                .await
                .unwrap();
            let answer = ep.recv().tag(RESPONSE | 1 << 56 | id).await.unwrap();
            assert_eq!(answer.transfer.data, Some(7 << 32), "malformed");
        }
        // So is a trailer that is not there.
        let tag = REQUEST | 2 << 56 | 99;
        ep.send(to_server, vec![0; 1000])
            .tag(tag)
            .data(0)
            .await
            .unwrap();
        let answer = ep.recv().tag(RESPONSE | 1 << 56 | 99).await.unwrap();
        assert_eq!(answer.transfer.data, Some(7 << 32));

        // An id that is in flight is refused; the request that has it goes on.
        let wait = u64::from(WAIT) << 32;
        ep.send(to_server, "first")
            .tag(REQUEST | 5)
            .data(wait)
            .await
            .unwrap();
        take(&server.probe.waiting).await;
        ep.send(to_server, "second")
            .tag(REQUEST | 5)
            .data(wait)
            .await
            .unwrap();
        let answer = ep.recv().tag(RESPONSE | 1 << 56 | 5).await.unwrap();
        assert_eq!(answer.transfer.data, Some(7 << 32));
        server.probe.go_on.add_permits(1);
        assert_eq!(&ep.recv().tag(RESPONSE | 5).await.unwrap()[..], b"first");
        check_echo(&client).await;
    });
}

/// Counts the events of a server that disconnects a client. A client over `tcp` whose own budget is
/// used up reads no more, and does not see the end of the connection.
struct CountDisconnects(Arc<AtomicUsize>);

impl Subscriber for CountDisconnects {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "fabric_rpc::native"
    }

    fn event(&self, event: &tracing::Event<'_>) {
        if event.metadata().fields().field("reason").is_some() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Sends messages with the tags that `tag` returns until the server has disconnected the sender,
/// which receives nothing.
async fn send_until_disconnected(
    address: &str,
    server: &TestServer,
    tag: impl Fn(u64) -> Option<u64>,
    len: usize,
) {
    let client = server.client().await;
    let disconnects = Arc::new(AtomicUsize::new(0));
    let _counting = tracing::subscriber::set_default(CountDisconnects(disconnects.clone()));
    let ep = Endpoint::bind(address).await.unwrap();
    let to_server = ep.add_peer(&server.name).await.unwrap();
    for id in 0.. {
        let send = ep.send(to_server, vec![0; len]).data(u64::from(ECHO) << 32);
        let sent = match tag(id) {
            Some(tag) => send.tag(tag).await,
            None => send.await,
        };
        if let Err(failed) = sent {
            assert!(
                matches!(failed.error, Error::PeerGone(_)),
                "{}",
                failed.error
            );
        }
        if disconnects.load(Ordering::Relaxed) > 0 {
            break;
        }
        if id % 100 == 0 {
            check_echo(&client).await;
        }
    }
    check_echo(&client).await;
}

/// The server receives only tagged messages, so untagged ones fill the share of their sender.
#[test]
fn server_disconnects_a_client_of_untagged_messages() {
    run(async |address| {
        let server = TestServer::start(address).await;
        send_until_disconnected(address, &server, |_| None, 16 << 10).await;
    });
}

#[test]
fn server_disconnects_a_client_that_takes_no_answers() {
    run(async |address| {
        let builder = Server::builder().max_in_flight_per_client(8);
        let server = TestServer::start_with(address, builder).await;
        send_until_disconnected(address, &server, |id| Some(REQUEST | id), 4000).await;
    });
}

/// Requests of one id count as those of many.
#[test]
fn server_disconnects_a_client_that_repeats_an_id() {
    run(async |address| {
        let builder = Server::builder().max_in_flight_per_client(8);
        let server = TestServer::start_with(address, builder).await;
        send_until_disconnected(address, &server, |_| Some(REQUEST | 5), 4000).await;
        // So do requests that are too long, which are refused before others.
        let builder = Server::builder().max_body_len(1000);
        let server = TestServer::start_with(address, builder).await;
        send_until_disconnected(address, &server, |_| Some(REQUEST | 5), 1001).await;
    });
}

/// A repeated id, which is refused, changes nothing of the request that has it: it can be canceled.
#[test]
fn request_of_a_repeated_id_can_be_canceled() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let ep = Endpoint::bind(address).await.unwrap();
        let to_server = ep.add_peer(&server.name).await.unwrap();
        let wait = u64::from(WAIT) << 32;
        let request = || {
            ep.send(to_server, vec![0; 20_000])
                .tag(REQUEST | 5)
                .data(wait)
        };
        request().await.unwrap();
        take(&server.probe.waiting).await;
        for _ in 0..300 {
            request().await.unwrap();
        }
        ep.send(to_server, "")
            .tag(CANCEL | 5)
            .data(0)
            .await
            .unwrap();
        take(&server.probe.dropped).await;
        check_echo(&server.client().await).await;
    });
}

/// A server with a short time limit of answers, in a task.
struct StoppableServer {
    name: Address,
    probe: Arc<Probe>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<fabric_async::Result<()>>,
}

impl StoppableServer {
    async fn start(address: &str) -> Self {
        let builder = Server::builder().answer_timeout(Duration::from_millis(50));
        let server = builder.bind(address).await.unwrap();
        let name = server.name().clone();
        let probe = Probe::new();
        let handler = probe.clone();
        let service = tower::service_fn(move |request| handle(handler.clone(), request));
        let (stop, stopped) = oneshot::channel();
        let serving = server.serve_with_shutdown(service, async { drop(stopped.await) });
        Self {
            name,
            probe,
            stop,
            serving: tokio::spawn(serving),
        }
    }

    /// Begins the shutdown, lets the handler that waits go on, and waits until the server has
    /// ended.
    async fn shut_down(self) {
        drop(self.stop);
        self.probe.go_on.add_permits(1);
        self.serving.await.unwrap().unwrap();
    }
}

/// A client that does not take its answers holds up a shutdown no longer than the time limit of
/// answers.
#[test]
fn server_shuts_down_beside_a_client_that_takes_no_answers() {
    run(async |address| {
        let server = StoppableServer::start(address).await;
        let ep = Endpoint::bind(address).await.unwrap();
        let to_server = ep.add_peer(&server.name).await.unwrap();
        let len = 16_u64 << 20;
        for id in 0..3 {
            let send = ep.send(to_server, len.to_le_bytes().to_vec());
            send.tag(REQUEST | id)
                .data(u64::from(LEN) << 32)
                .await
                .unwrap();
        }
        // The server has the requests before this one.
        let wait = ep.send(to_server, "").tag(REQUEST | 7);
        wait.data(u64::from(WAIT) << 32).await.unwrap();
        take(&server.probe.waiting).await;
        server.shut_down().await;
    });
}

/// A thread with clients that take no answers: nothing drives their endpoints.
struct UndrivenClients {
    end: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl UndrivenClients {
    /// Starts the thread, which runs `send` and keeps what that returns. Waits until then.
    async fn start<T>(send: impl AsyncFnOnce() -> T + Send + 'static) -> Self {
        let (end, ended) = std::sync::mpsc::channel();
        let (report_sent, sent) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let kept = send().await;
                let _ = report_sent.send(());
                let _ = ended.recv();
                drop(kept);
            });
        });
        sent.await.unwrap();
        Self { end, thread }
    }

    fn end(self) {
        drop(self.end);
        self.thread.join().unwrap();
    }
}

/// Short answers wait in the fabric for a client that stands still, and a shutdown does not wait
/// for that client for longer than the time limit of answers.
#[test]
fn server_shuts_down_beside_a_client_that_stands_still() {
    run(async |address| {
        let server = StoppableServer::start(address).await;
        let (address, name) = (address.to_string(), server.name.clone());
        let client = UndrivenClients::start(async move || {
            let ep = Endpoint::bind(&*address).await.unwrap();
            let to_server = ep.add_peer(name).await.unwrap();
            let send = |id, method, len: u64| {
                let send = ep.send(to_server, len.to_le_bytes().to_vec());
                send.tag(REQUEST | id).data(u64::from(method) << 32)
            };
            let answers = (0..100).map(|id| send(id, LEN, 8000).start().unwrap());
            let answers: Vec<_> = answers.collect();
            send(300, WAIT, 0).await.unwrap();
            (ep.clone(), answers)
        });
        let client = client.await;
        take(&server.probe.waiting).await;
        server.shut_down().await;
        client.end();
    });
}

/// Messages of another endpoint than the server end no call of the client.
#[test]
fn client_survives_messages_of_other_endpoints() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let name = match address {
            "shm://" => format!("shm://native-client-{}", std::process::id()),
            _ => format!("tcp://{}", unassigned_address()),
        };
        let client = server.client_with(|builder| builder.bind_to(&name)).await;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.call(Request::new(WAIT, "")).await }
        });
        take(&server.probe.waiting).await;
        let other = Endpoint::bind(address).await.unwrap();
        let mut events = other.take_events().unwrap();
        let to_client = other.add_peer(&*name).await.unwrap();
        let is_down = |event: Event| matches!(event.kind, EventKind::PeerDown { .. });
        // The client disconnects the endpoint, whose messages fill its share of the budget.
        let limit = Duration::from_millis(20);
        let send = || other.send(to_client, vec![0; 1 << 20]).tag(RESPONSE);
        while !std::iter::from_fn(|| events.try_read()).any(is_down) {
            let _ = timeout(limit, send()).await;
            check_echo(&client).await;
        }
        server.probe.go_on.add_permits(1);
        waiting.await.unwrap().unwrap();
    });
}

/// A server that ends each connection is not connected to without pauses.
#[test]
fn client_pauses_before_it_connects_to_a_server_that_answers_nothing() {
    run(async |address| {
        let ep = Endpoint::bind(address).await.unwrap();
        let mut events = ep.take_events().unwrap();
        let policy = ReconnectPolicy {
            initial: Duration::from_secs(10_000),
            max: Duration::from_secs(10_000),
            ..ReconnectPolicy::default()
        };
        let client = Client::builder(ep.name()).reconnect(policy).connect_lazy();
        let ending = tokio::spawn(async move {
            let mut connections = 0;
            while connections < 2 {
                if let EventKind::PeerConnected { peer, .. } = events.read().await.kind {
                    connections += 1;
                    ep.disconnect(&peer).unwrap();
                }
            }
        });
        for _ in 0..10 {
            let request = Request::new(ECHO, "").timeout(Duration::from_millis(20));
            let status = client.call(request).await.unwrap_err();
            assert!(
                matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded),
                "{status}"
            );
        }
        assert!(!ending.is_finished(), "the client has connected again");
        ending.abort();
    });
}

/// Long answers that wait for their client count as requests in flight.
#[test]
fn server_keeps_no_more_long_answers_than_its_limit() {
    run(async |address| {
        const LIMIT: u64 = 8;
        const REQUESTS: u64 = 100;
        let builder = Server::builder().max_in_flight_per_client(LIMIT as usize);
        let server = TestServer::start_with(address, builder).await;
        let client = server.client().await;
        let ep = Endpoint::bind(address).await.unwrap();
        let to_server = ep.add_peer(&server.name).await.unwrap();
        for id in 0..REQUESTS {
            let send = ep.send(to_server, vec![0; 1 << 20]).tag(REQUEST | id);
            send.data(u64::from(ECHO) << 32).await.unwrap();
        }
        check_echo(&client).await;
        let mut refused = 0;
        for _ in 0..REQUESTS {
            let answer = ep.recv().tag_ignoring(0, u64::MAX).await.unwrap();
            match answer.transfer.data {
                Some(0) => assert_eq!(answer.len(), 1 << 20),
                other => {
                    assert_eq!(
                        other,
                        Some(5 << 32 | 1),
                        "resource exhausted, safe to retry"
                    );
                    refused += 1;
                }
            }
        }
        // What the connection has taken is not kept by the server.
        assert!(refused > 0, "the server has kept all answers");
        check_echo(&client).await;
    });
}

#[test]
fn client_survives_messages_that_answer_no_call() {
    run(async |address| {
        let ep = Endpoint::bind(address).await.unwrap();
        let mut requests = receive_raw(&ep);
        let client = Client::connect(ep.name()).await.unwrap();
        let caller = client.clone();
        let serving = tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let (client, id) = (request.client, request.id);
                let other_calls = [id + 1, id + (1 << 20), id + (7 << 20), (1 << 56) - 1];
                let unknown = other_calls.map(|id| RESPONSE | id);
                for tag in BAD_TAGS.into_iter().chain([REQUEST | id]).chain(unknown) {
                    ep.send(client, vec![0xff; 3000])
                        .tag(tag)
                        .data(1)
                        .await
                        .unwrap();
                }
                let answer = RESPONSE | id;
                match request.method {
                    // Malformed metadata.
                    2 => {
                        ep.send(client, vec![0xff; 30])
                            .tag(answer | 1 << 56)
                            .data(0)
                            .await
                            .unwrap();
                    }
                    // An unknown code.
                    3 => {
                        ep.send(client, "").tag(answer).data(77).await.unwrap();
                    }
                    // Two answers.
                    _ => {
                        ep.send(client, "echo").tag(answer).data(0).await.unwrap();
                        ep.send(client, "again").tag(answer).data(0).await.unwrap();
                    }
                }
            }
        });
        for _ in 0..3 {
            check_echo(&caller).await;
            for method in [2, 3] {
                let status = caller.call(Request::new(method, "")).await.unwrap_err();
                assert_eq!(status.code(), Code::Malformed);
            }
        }
        check_echo(&caller).await;
        assert_eq!(client.available_credits(), 256);
        serving.abort();
    });
}

/// Untagged messages are of no call, and hold up the answers behind them. The client finds them
/// while a later call waits.
#[test]
fn client_leaves_a_server_that_sends_untagged_messages() {
    run(async |address| {
        let ep = Endpoint::bind(address).await.unwrap();
        let client = Client::connect(ep.name()).await.unwrap();
        let mut requests = receive_raw(&ep);
        let call = || client.call(Request::new(ECHO, "").timeout(Duration::from_millis(20)));
        let (status, request) = tokio::join!(call(), requests.recv());
        assert_eq!(status.unwrap_err().code(), Code::DeadlineExceeded);
        let to_client = request.expect("a request").client;
        let sending = tokio::spawn(async move {
            // The last one is held back until the client has left.
            while ep.send(to_client, vec![0; 16 << 10]).await.is_ok() {}
        });
        loop {
            let status = call().await.unwrap_err();
            if status.code() != Code::DeadlineExceeded {
                assert_eq!(status.code(), Code::Unavailable);
                assert!(status.message().contains("untagged"), "{status}");
                break;
            }
        }
        sending.await.unwrap();
    });
}

/// The server gives few transmit credits to clients that take no answers, so others need not wait
/// until the server disconnects them.
#[test]
fn clients_that_take_no_answers_leave_transmit_credits_to_others() {
    const CLIENTS: usize = 8;
    run(async |address| {
        let builder = Server::builder().answer_timeout(Duration::from_secs(300));
        let server = TestServer::start_with(address, builder).await;
        let client = server.client().await;
        let (address, name) = (address.to_string(), server.name.clone());
        let undriven = UndrivenClients::start(async move || {
            let mut all = Vec::new();
            for _ in 0..CLIENTS {
                let ep = Endpoint::bind(&*address).await.unwrap();
                let to_server = ep.add_peer(&*name).await.unwrap();
                let request = |id| {
                    let send = ep.send(to_server, 8000_u64.to_le_bytes().to_vec());
                    let send = send.tag(REQUEST | id).data(u64::from(LEN) << 32);
                    send.start().ok()
                };
                let requests: Vec<_> = (0..200).map(request).collect();
                all.push((ep, requests));
            }
            all
        });
        let undriven = undriven.await;
        for _ in 0..3 {
            let call = |method, body: Vec<u8>| {
                let request = Request::new(method, body).timeout(Duration::from_secs(20));
                client.call(request)
            };
            call(ECHO, b"echo".to_vec()).await.unwrap();
            let long = call(LEN, (1_u64 << 20).to_le_bytes().to_vec()).await;
            assert_eq!(long.unwrap().body.len(), 1 << 20);
        }
        undriven.end();
    });
}
