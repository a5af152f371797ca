//! Passive targets of one-sided operations, whose program posts and receives nothing. The memory is
//! registered in place, so every provider needs passes of the target's domain to access it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fabric_async::{
    Access, CompletionQueue, Counter, CounterBind, CqBind, Endpoint, EventQueue, RegisteredBuffer,
};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{assert_bytes, pattern, poll_once, yield_times};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
/// Lengths of one request and of several.
const LENGTHS: [usize; 3] = [8, 4096, 300_000];

/// Data progress is automatic: the program of the target makes no call.
pub(crate) async fn automatic_progress_needs_no_calls_of_the_target(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let region = b.domain.register(vec![0u8; LENGTHS[2]], READ_WRITE, None);
    let remote = region.as_ref().unwrap().remote();
    for (which, len) in LENGTHS.into_iter().enumerate() {
        let bytes = pattern(len, which);
        a.ep.write(to_b, remote.at(0), bytes).await.unwrap();
        let read = a.ep.read(to_b, remote.slice(..len as u64)).await.unwrap();
        assert_bytes(&read, bytes);
    }
}

/// A target whose domain makes passes only within calls of the program.
struct Target {
    ep: Endpoint,
    region: RegisteredBuffer<Vec<u8>>,
    counter: Counter,
    cq: CompletionQueue,
    eq: EventQueue,
}

impl Target {
    async fn open(setup: &Setup) -> Self {
        let (fabric, info) = setup.fabric().await;
        let builder = setup.domain_builder(&fabric, &info);
        let domain = builder.driven_by_event_loop().open().unwrap();
        let eq = fabric.event_queue(64).unwrap();
        domain.bind_eq(&eq).unwrap();
        let (cq, av, counter) = (
            domain.completion_queue(64).unwrap(),
            domain.auto_insert_address_vector().unwrap(),
            domain.counter().unwrap(),
        );
        let ep = domain.endpoint(&info).unwrap().bind_av(&av).unwrap();
        let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
        let ep = ep.bind_counter(&counter, CounterBind::RECV).unwrap();
        let memory = vec![0; LENGTHS[2]];
        Self {
            ep: ep.enable().unwrap(),
            region: domain.register(memory, READ_WRITE, None).unwrap(),
            counter,
            cq,
            eq,
        }
    }
}

/// Polls a wait that does not end once.
fn poll_wait<T>(wait: impl Future<Output = T>) {
    let _ = pin!(wait).poll(&mut Context::from_waker(Waker::noop()));
}

/// A call that makes progress at a target.
type Call = (&'static str, fn(&mut Target));

const CALLS: [Call; 6] = [
    ("read of the counter", |target| {
        let _ = target.counter.value();
    }),
    ("wait for the counter", |target| {
        poll_wait(target.counter.wait(u64::MAX));
    }),
    ("read of the event queue", |target| {
        let _ = target.eq.try_read();
    }),
    ("wait for an event", |target| poll_wait(target.eq.read())),
    ("read of the completion queue", |target| {
        target.cq.try_read_batch(&mut Vec::new(), 1);
    }),
    ("wait for a completion", |target| {
        poll_wait(target.cq.read_batch(&mut Vec::new(), 1));
    }),
];

/// Returns the result of an operation, which ends only while the target repeats this call.
async fn served_within<T>(
    target: &mut Target,
    (name, call): Call,
    operation: impl Future<Output = T>,
) -> T {
    let mut operation = pin!(operation);
    for _ in 0..100 {
        let polled = poll_once(&mut operation).await;
        assert!(polled.is_pending(), "ended before the {name}");
        yield_times(1).await;
    }
    loop {
        if let Poll::Ready(result) = poll_once(&mut operation).await {
            return result;
        }
        call(target);
        yield_times(1).await;
    }
}

/// Data progress is manual: an operation ends when the program of the target reads or waits for a
/// counter, an event queue or a completion queue.
pub(crate) async fn manual_progress_serves_within_calls_of_the_target(setup: Setup) {
    let (a, mut target) = (setup.open_endpoint().await, Target::open(&setup).await);
    let name = target.ep.name().clone();
    let to_target = a.ep.address_vector().insert(&name).unwrap();
    let remote = target.region.remote();
    for (which, call) in CALLS.into_iter().enumerate() {
        for len in LENGTHS {
            let bytes = pattern(len, which);
            let write = a.ep.write(to_target, remote.at(0), bytes);
            let write = write.delivery_complete().start().unwrap();
            served_within(&mut target, call, write).await.unwrap();
            assert_bytes(&target.region.lock()[..len], bytes);
            let read = a.ep.read(to_target, remote.slice(..len as u64));
            let read = served_within(&mut target, call, read.start().unwrap()).await;
            assert_bytes(&read.unwrap(), bytes);
        }
    }
}
