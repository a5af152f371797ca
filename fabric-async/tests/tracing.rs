//! What a subscriber of `tracing` hears, while it uses the endpoints that it hears of.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use fabric_async::{Endpoint, PassiveEndpoint, Progress};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What was heard, each with its fields.
static RECORDED_EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What a subscriber uses whenever it hears of anything.
static SUBSCRIBER_ENDPOINT: OnceLock<Endpoint> = OnceLock::new();

thread_local! {
    static USES: Cell<bool> = const { Cell::new(false) };
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
            && !USES.replace(true)
        {
            // Every one of these takes the lock of the domain.
            let _ = (
                ep.stats(),
                ep.domain().progress(),
                format!("{:?}", ep.domain()),
            );
            drop(ep.recv().tag(77).start());
            USES.set(false);
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

/// Waits until something was heard with all of these words in it, and returns how often.
async fn wait_for_event(words: &[&str]) -> usize {
    loop {
        let heard = RECORDED_EVENTS
            .lock()
            .unwrap()
            .iter()
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count();
        if heard > 0 {
            return heard;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn check_all_events(progress: Progress) {
    let options = Endpoint::options().progress(progress);
    let host = options.clone().bind("shm://").await.unwrap();
    let number = format!("endpoint={} ", host.id());
    let name = host.name().to_string();
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
    let _ = SUBSCRIBER_ENDPOINT.set(host.clone());

    // A peer that comes, gets loans, and goes with them.
    let guest = options.clone().bind("shm://").await.unwrap();
    let to_host = guest.add_peer(host.name()).await.unwrap();
    let before = RECORDED_EVENTS.lock().unwrap().len();
    guest.send(to_host, "hello").await.unwrap();
    let peer = host.recv().await.unwrap().source().unwrap();
    wait_for_event(&[
        "message=peer connected",
        &number,
        &format!("peer={}", guest.name()),
    ])
    .await;
    for _ in 0..100 {
        guest.send(to_host, "more").await.unwrap();
        host.recv().await.unwrap();
    }
    let of_messages = RECORDED_EVENTS.lock().unwrap().len() - before;
    assert!(
        of_messages <= 2,
        "one connection, a hundred messages, {of_messages} lines"
    );
    host.lend(peer, host.loan(5000).unwrap()).await.unwrap();
    drop(guest);
    wait_for_event(&["message=peer closed", &number]).await;
    wait_for_event(&[
        "INFO fabric::connection message=loans lost",
        &number,
        "loans=1",
    ])
    .await;

    // A caller that says nothing of meaning.
    let (socket, address) = {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, socket};
        let name = format!("fabric-async/shm/{}", host.name().name());
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        (
            socket,
            SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap(),
        )
    };
    rustix::net::connect(&socket, &address).unwrap();
    rustix::net::send(&socket, b"hi", rustix::net::SendFlags::empty()).unwrap();
    wait_for_event(&[
        "WARN fabric::connection message=incoming connection rejected",
        &number,
        "short hello",
    ])
    .await;

    // Connected endpoints have a name when they are connected, on both sides.
    let mut door = PassiveEndpoint::bind("tcp://127.0.0.1:0").await.unwrap();
    let name = door.name().clone();
    let accepted = async { door.next().await.unwrap().accept("").await.unwrap() };
    let (caller, accepted) = tokio::join!(options.clone().connect(name), accepted);
    for ep in [caller.unwrap(), accepted] {
        let number = format!("endpoint={} ", ep.id());
        wait_for_event(&["message=connected", &number]).await;
        let name = format!("name={}", ep.name());
        assert_eq!(
            wait_for_event(&["message=endpoint opened", &number, &name]).await,
            1
        );
        drop(ep);
        wait_for_event(&["message=endpoint closed", number.trim_end()]).await;
    }

    // An endpoint of its own, since the subscriber keeps the other.
    let (number, other) = {
        let other = options.bind("shm://").await.unwrap();
        (format!("endpoint={}", other.id()), other)
    };
    drop(other);
    wait_for_event(&["message=endpoint closed", &number]).await;
    wait_for_event(&["message=driver ended", &format!("driver={driver:?}")]).await;
}

/// A subscriber that is told of something under the domain's lock would wait for itself.
#[test]
fn subscriber_may_use_the_endpoint_during_its_event() {
    tracing::subscriber::set_global_default(ReentrantSubscriber).unwrap();
    let (done, is_done) = channel();
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
    let ended = is_done.recv_timeout(Duration::from_secs(60));
    assert!(
        ended.is_ok() || scenario.is_finished(),
        "stuck; heard: {:#?}",
        RECORDED_EVENTS.lock().unwrap()
    );
    scenario.join().unwrap();
}
