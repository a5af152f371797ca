//! The events that a `tracing` subscriber gets, while the subscriber uses the endpoints that emit
//! them.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use fabric_async::{Endpoint, PassiveEndpoint, Progress};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The recorded events, each with its fields.
static RECORDED_EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The endpoint that the subscriber uses while it handles an event.
static SUBSCRIBER_ENDPOINT: OnceLock<Endpoint> = OnceLock::new();

thread_local! {
    static IN_EVENT: Cell<bool> = const { Cell::new(false) };
}

struct ReentrantSubscriber;

struct FieldVisitor(String);

impl Visit for FieldVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for ReentrantSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fabric::")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = FieldVisitor(format!(
            "{} {}",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut text);
        RECORDED_EVENTS.lock().unwrap().push(text.0);
        if let Some(ep) = SUBSCRIBER_ENDPOINT.get()
            && !IN_EVENT.replace(true)
        {
            // Each of these calls takes the lock of the domain.
            let _ = (
                ep.stats(),
                ep.domain().progress(),
                format!("{:?}", ep.domain()),
            );
            drop(ep.recv().tag(77).start());
            IN_EVENT.set(false);
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

/// Waits until events with all of these words were recorded, and returns their endpoint_field.
async fn wait_for_event(words: &[&str]) -> usize {
    loop {
        let count = RECORDED_EVENTS
            .lock()
            .unwrap()
            .iter()
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count();
        if count > 0 {
            return count;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn check_all_events(progress: Progress) {
    let options = Endpoint::options().progress(progress);
    let server = options.clone().bind("shm://").await.unwrap();
    let endpoint_field = format!("endpoint={} ", server.id());
    let name = server.name().to_string();
    wait_for_event(&[
        "DEBUG fabric::endpoint message=endpoint opened",
        &format!("name={name}"),
    ])
    .await;
    let driver = if progress == Progress::Auto {
        "thread"
    } else {
        "task"
    };
    wait_for_event(&[
        "DEBUG fabric::progress message=driver started",
        &format!("driver={driver:?}"),
    ])
    .await;
    let _ = SUBSCRIBER_ENDPOINT.set(server.clone());

    // A peer connects, receives a loan, and closes while it holds the loan.
    let client = options.clone().bind("shm://").await.unwrap();
    let to_server = client.add_peer(server.name()).await.unwrap();
    let before = RECORDED_EVENTS.lock().unwrap().len();
    client.send(to_server, "hello").await.unwrap();
    let peer = server.recv().await.unwrap().source().unwrap();
    wait_for_event(&[
        "message=peer connected",
        &endpoint_field,
        &format!("peer={}", client.name()),
    ])
    .await;
    for _ in 0..100 {
        client.send(to_server, "more").await.unwrap();
        server.recv().await.unwrap();
    }
    let message_events = RECORDED_EVENTS.lock().unwrap().len() - before;
    assert!(
        message_events <= 2,
        "{message_events} events of a hundred messages"
    );
    server
        .send(peer, server.domain().try_loan(5000).unwrap())
        .await
        .unwrap();
    let held = client.recv_loan().await.unwrap();
    drop(client);
    wait_for_event(&["message=peer closed its endpoint", &endpoint_field]).await;
    wait_for_event(&[
        "INFO fabric::connection message=peer ended while holding loans",
        &endpoint_field,
        "loans=1",
    ])
    .await;
    drop(held);

    // A raw connection whose hello is too short.
    let (socket, address) = {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, socket};
        let name = format!("fabric-async/shm/{}", server.name().name());
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        (
            socket,
            SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap(),
        )
    };
    rustix::net::connect(&socket, &address).unwrap();
    rustix::net::send(&socket, b"hi", rustix::net::SendFlags::empty()).unwrap();
    wait_for_event(&[
        "WARN fabric::connection message=inbound connection refused",
        &endpoint_field,
        "hello is too short",
    ])
    .await;

    // Connected endpoints emit their name once they are connected, on both sides.
    let mut listener = PassiveEndpoint::bind("tcp://127.0.0.1:0").await.unwrap();
    let name = listener.name().clone();
    let accepted = async { listener.accept().await.unwrap().accept("").unwrap() };
    let (connected, accepted) = tokio::join!(options.clone().connect(name), accepted);
    for ep in [connected.unwrap(), accepted] {
        let endpoint_field = format!("endpoint={} ", ep.id());
        wait_for_event(&["message=connected", &endpoint_field]).await;
        let name = format!("name={}", ep.name());
        assert_eq!(
            wait_for_event(&["message=endpoint opened", &endpoint_field, &name]).await,
            1
        );
        drop(ep);
        wait_for_event(&["message=endpoint closed", endpoint_field.trim_end()]).await;
    }

    // The subscriber keeps the first endpoint open: another endpoint is closed.
    let (endpoint_field, other) = {
        let other = options.bind("shm://").await.unwrap();
        (format!("endpoint={}", other.id()), other)
    };
    drop(other);
    wait_for_event(&["message=endpoint closed", &endpoint_field]).await;
    wait_for_event(&["message=driver ended", &format!("driver={driver:?}")]).await;
}

/// An event that is emitted under the domain's lock would deadlock a subscriber that uses the
/// endpoint.
#[test]
fn subscriber_may_use_the_endpoint_during_its_event() {
    tracing::subscriber::set_global_default(ReentrantSubscriber).unwrap();
    let (done, finished) = channel();
    let scenario = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(check_all_events(Progress::Manual));
        runtime.block_on(check_all_events(Progress::Auto));
        done.send(()).unwrap();
    });
    let ended = finished.recv_timeout(Duration::from_secs(60));
    assert!(
        ended.is_ok() || scenario.is_finished(),
        "the test hangs; recorded events: {:#?}",
        RECORDED_EVENTS.lock().unwrap()
    );
    scenario.join().unwrap();
}
