//! Domains that one thread at a time uses (`thread_model::Serial`).
#![allow(unsafe_code)] // implements `CustomBuf`

#[path = "common/thread_models.rs"]
mod thread_models;

use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use fabric_async::buf::CustomBuf;
use fabric_async::info::Threading;
use fabric_async::stats::DomainStats;
use fabric_async::thread_model::Serial;
use fabric_async::{
    BindOptions, CancelOutcome, Endpoint, Error, EventKind, EventQueue, Fabric, FiAddr, Hints,
    Progress, discover,
};
use tokio::runtime::{Builder, Runtime};

use thread_models::{PROVIDERS, connect_and_accept, runtime};

fn multi_thread_runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

fn serial() -> BindOptions<Serial> {
    Endpoint::options().thread_model::<Serial>()
}

/// A buffer that calls a function in the domain, on the thread that completes a receive with it.
struct CallingBuf<F> {
    bytes: [u8; 8],
    on_filled: F,
}

impl<F: FnMut() + Send + Sync + 'static> CallingBuf<F> {
    fn boxed(on_filled: F) -> Box<dyn CustomBuf> {
        let bytes = [0; 8];
        Box::new(Self { bytes, on_filled })
    }
}

// SAFETY: the array is in the box of the buffer, which does not move.
unsafe impl<F: FnMut() + Send + Sync + 'static> CustomBuf for CallingBuf<F> {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn writable(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.bytes)
    }

    fn set_filled(&mut self, _: usize) {
        (self.on_filled)();
    }
}

/// An endpoint whose domain another thread is in, until it is told to go on. The driver does not
/// run meanwhile.
struct OccupiedDomain {
    ep: Endpoint<Serial>,
    me: FiAddr,
    events: EventQueue,
    occupant: JoinHandle<()>,
    go_on: Sender<()>,
    runtime: Runtime,
}

impl OccupiedDomain {
    fn new() -> Self {
        Self::with(|_, _| ())
    }

    /// Calls `prepare` before the other thread enters the domain.
    fn with(prepare: impl FnOnce(&Endpoint<Serial>, FiAddr)) -> Self {
        let runtime = runtime();
        let (ep, me) = runtime.block_on(async {
            let ep = serial().bind("shm://").await.unwrap();
            let me = ep.add_peer(ep.name()).await.unwrap();
            ep.send(me, "connects").await.unwrap();
            assert_eq!(&ep.recv().await.unwrap()[..], b"connects");
            (ep, me)
        });
        let events = ep.take_events().expect("the first call");
        prepare(&ep, me);
        let (reached, wait_until_reached) = channel();
        let (go_on, wait) = channel();
        let wait = Mutex::new(wait);
        let buf = CallingBuf::boxed(move || {
            // The test has ended if it is not there to receive, or to send.
            let _ = reached.send(());
            let _ = wait.lock().unwrap().recv();
        });
        let handle = ep.clone();
        let occupant = thread::spawn(move || {
            let receive = handle.recv_into(buf).tag(1).start().unwrap();
            handle.send(me, "occupied").tag(1).inject().unwrap();
            let got = self::runtime().block_on(receive).unwrap();
            assert_eq!(&got[..], b"occupied");
        });
        wait_until_reached.recv().unwrap();
        Self {
            ep,
            me,
            events,
            occupant,
            go_on,
            runtime,
        }
    }

    /// Calls `act` on another thread, and returns when the call waits for the domain.
    fn start_waiting<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let before = self.ep.domain().concurrent_uses();
        let waiting = thread::spawn(act);
        while self.ep.domain().concurrent_uses() == before {
            assert!(!waiting.is_finished(), "the call did not wait");
            thread::yield_now();
        }
        waiting
    }

    /// Lets the other thread leave the domain, and checks that it was not disturbed.
    fn leave(self) -> (Endpoint<Serial>, FiAddr, EventQueue, Runtime) {
        self.go_on.send(()).unwrap();
        self.occupant.join().unwrap();
        (self.ep, self.me, self.events, self.runtime)
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn second_user_is_refused_with_its_buffer() {
    let domain = OccupiedDomain::new();
    let (ep, me) = (&domain.ep, domain.me);
    let message = || b"of the second user".to_vec();
    let refused = ep.send(me, message()).start().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::ConcurrentUse, message())
    );
    let refused = ep.send(me, message()).post().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::ConcurrentUse, message())
    );
    let refused = ep.send(me, &message()).inject();
    assert_eq!(refused, Err(Error::ConcurrentUse));
    let Poll::Ready(Err(refused)) = poll_once(pin!(ep.send(me, message()).into_future())) else {
        panic!("an awaited send");
    };
    assert_eq!(
        (refused.error, refused.buf),
        (Error::ConcurrentUse, message())
    );
    let refused = ep.recv_into(message()).start().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::ConcurrentUse, message())
    );
    let Poll::Ready(Err(refused)) = poll_once(pin!(ep.recv_into(message()).into_future())) else {
        panic!("an awaited receive");
    };
    assert_eq!(
        (refused.error, refused.buf),
        (Error::ConcurrentUse, message())
    );
    let refused = ep.post_all([ep.send(me, message()), ep.send(me, message())]);
    let refused = refused.unwrap_err();
    assert_eq!(refused.error, Error::ConcurrentUse);
    assert_eq!((refused.posted, refused.unposted.len()), (0, 2));
    let opened = ep.domain().completion_queue(16);
    assert_eq!(opened.unwrap_err(), Error::ConcurrentUse);
    let opened = ep.domain().address_vector();
    assert_eq!(opened.unwrap_err(), Error::ConcurrentUse);
    let name = ep.name().clone();
    let added = poll_once(pin!(ep.add_peer(&name)));
    assert_eq!(added, Poll::Ready(Err(Error::ConcurrentUse)));

    let (ep, me, mut events, runtime) = domain.leave();
    let stats: DomainStats = ep.domain().stats();
    assert_eq!(stats.concurrent_uses, 10);
    assert_eq!(stats.operations, 0, "what was refused left nothing");
    runtime.block_on(async {
        ep.send(me, message()).await.unwrap();
        assert_eq!(ep.recv().await.unwrap()[..], message());
    });
    assert_concurrent_use_is_reported_once(&runtime, &mut events);
}

fn assert_concurrent_use_is_reported_once(runtime: &Runtime, events: &mut EventQueue) {
    runtime.block_on(async { while events.read().await.kind != EventKind::ConcurrentUse {} });
    while let Some(event) = events.try_read() {
        assert_ne!(event.kind, EventKind::ConcurrentUse);
    }
}

#[test]
fn poll_waits_for_the_other_user() {
    let mut posted = None;
    let domain = OccupiedDomain::with(|ep, me| {
        posted = Some(ep.recv().tag(2).start().unwrap());
        ep.send(me, "for the second user").tag(2).inject().unwrap();
    });
    let receive = posted.unwrap();
    let polling = domain.start_waiting(move || runtime().block_on(receive).unwrap());
    let (ep, _, mut events, runtime) = domain.leave();
    let got = polling.join().unwrap();
    assert_eq!(&got[..], b"for the second user");
    assert_eq!(ep.domain().stats().concurrent_uses, 1);
    assert_concurrent_use_is_reported_once(&runtime, &mut events);
}

#[test]
fn calls_that_cannot_be_refused_wait_for_the_other_user() {
    let mut posted = None;
    let domain = OccupiedDomain::with(|ep, _| {
        let receive = || ep.recv_into(Vec::with_capacity(64)).tag(2).start().unwrap();
        let av = ep.address_vector();
        posted = Some((
            receive(),
            receive(),
            ep.domain().completion_queue(16).unwrap(),
            (av.insert("shm://removed").unwrap(), av),
        ));
    });
    let (dropped, canceled, queue, (peer, av)) = posted.unwrap();
    // Takes effect when the other user has left.
    drop(dropped);
    let canceling = domain.start_waiting(move || runtime().block_on(canceled.cancel()));
    let closing = domain.start_waiting(move || queue.close().is_ok());
    let looking_up = domain.start_waiting({
        let (av, me) = (av.clone(), domain.me);
        move || av.lookup(me).unwrap()
    });
    let removing = domain.start_waiting(move || av.remove(peer).unwrap());
    let (ep, me, _, runtime) = domain.leave();
    assert_eq!(&looking_up.join().unwrap(), ep.name());
    assert_eq!(removing.join().unwrap(), "shm://removed".parse().unwrap());
    assert!(matches!(
        canceling.join().unwrap(),
        CancelOutcome::Canceled(_)
    ));
    assert!(closing.join().unwrap());
    assert_eq!(
        ep.domain().stats().operations,
        0,
        "no cancellation was lost"
    );
    let got = runtime.block_on(async {
        ep.send(me, "for the next receive").tag(2).await.unwrap();
        ep.recv().tag(2).await.unwrap()
    });
    assert_eq!(&got[..], b"for the next receive");
}

#[test]
fn drop_within_a_call_takes_effect_after_the_call() {
    let runtime = runtime();
    runtime.block_on(async {
        let ep = serial().bind("shm://").await.unwrap();
        let me = ep.add_peer(ep.name()).await.unwrap();
        let mut dropped = Some(ep.recv_into(Vec::new()).tag(2).start().unwrap());
        let buf = CallingBuf::boxed(move || drop(dropped.take().expect("one receive")));
        let receive = ep.recv_into(buf).tag(1);
        let (sent, got) = tokio::join!(ep.send(me, "12345678").tag(1), receive);
        sent.unwrap();
        assert_eq!(&got.unwrap()[..], b"12345678");
        assert_eq!(ep.domain().stats().operations, 0);
        assert_eq!(ep.domain().stats().concurrent_uses, 0);
    });
}

#[test]
fn reader_of_an_event_queue_is_no_user() {
    let domain = OccupiedDomain::new();
    let OccupiedDomain {
        ep,
        mut events,
        occupant,
        go_on,
        ..
    } = domain;
    let (begun, wait_until_begun) = channel();
    let reading = thread::spawn(move || {
        begun.send(()).unwrap();
        while events.try_read().is_some() {}
        // Makes a pass, for which it waits.
        events.try_read()
    });
    wait_until_begun.recv().unwrap();
    go_on.send(()).unwrap();
    occupant.join().unwrap();
    assert_eq!(reading.join().unwrap(), None);
    assert_eq!(ep.domain().stats().concurrent_uses, 0);
}

#[test]
fn task_of_a_multi_thread_runtime_is_one_user() {
    for provider in PROVIDERS {
        for progress in [Progress::Manual, Progress::Auto] {
            let work = async move {
                let options = || serial().progress(progress);
                let address = format!("{provider}://");
                let ep = options().bind(&address).await.unwrap();
                let other = options().bind(&address).await.unwrap();
                let to_other = ep.add_peer(other.name()).await.unwrap();
                for round in 0..200u8 {
                    // The task moves between the workers.
                    tokio::task::yield_now().await;
                    let message = vec![round; 7 * usize::from(round)];
                    let receive = other.recv_into(Vec::with_capacity(2000)).start().unwrap();
                    ep.send(to_other, message.clone()).await.unwrap();
                    assert_eq!(receive.await.unwrap()[..], message, "{provider}");
                }
                let uses = [&ep, &other].map(|ep| ep.domain().stats().concurrent_uses);
                assert_eq!(uses, [0, 0], "{provider} {progress:?}");
            };
            let runtime = multi_thread_runtime();
            runtime.block_on(async { tokio::spawn(work).await.unwrap() });
        }
    }
}

/// The threads order their calls by a lock, as the model asks.
#[test]
fn threads_that_take_turns_are_one_user() {
    let runtime = multi_thread_runtime();
    let (ep, me) = runtime.block_on(async {
        let ep = serial().bind("shm://").await.unwrap();
        let me = ep.add_peer(ep.name()).await.unwrap();
        (ep, me)
    });
    let turns = Mutex::new(0u32);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let mut turn = turns.lock().unwrap();
                    ep.send(me, turn.to_le_bytes()).inject().unwrap();
                    let got = self::runtime().block_on(ep.recv().into_future()).unwrap();
                    assert_eq!(got[..], turn.to_le_bytes());
                    *turn += 1;
                }
            });
        }
    });
    assert_eq!(ep.domain().stats().concurrent_uses, 0);
}

#[test]
fn serial_needs_the_level() {
    let hints = || Hints::new().provider("shm");
    let open = |hints: Hints| {
        let info = discover(&hints).unwrap().swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let opened = fabric.domain_builder(&info).thread_model::<Serial>().open();
        opened.map(|domain| domain.info().domain.threading)
    };
    let _runtime = multi_thread_runtime();
    let _entered = _runtime.enter();
    for hints in [hints(), hints().threading(Threading::Completion)] {
        let refused = open(hints).unwrap_err().to_string();
        assert!(
            refused.contains("Serial needs Threading::Domain"),
            "{refused}"
        );
    }
    let with_level = || hints().threading(Threading::Domain);
    assert_eq!(open(with_level()), Ok(Threading::Domain));
    assert_eq!(
        open(with_level().progress(Progress::Auto)),
        Ok(Threading::Domain)
    );
}

#[test]
fn serial_endpoints_connect_and_accept() {
    for provider in ["shm", "tcp"] {
        let work = async move {
            let domain = connect_and_accept(provider, |name| serial().connect(name)).await;
            assert_eq!(domain.stats().concurrent_uses, 0);
        };
        multi_thread_runtime().block_on(async { tokio::spawn(work).await.unwrap() });
    }
}
