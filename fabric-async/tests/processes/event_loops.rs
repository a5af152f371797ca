//! Event loops without a runtime: waiting for a peer in another process and for its death, and what
//! changes while a thread waits.

use std::future::{Future, IntoFuture};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use fabric_async::{
    Counter, CqBind, Domain, EventKind, Fabric, Hints, Info, OpKind, TryWait, WaitFd, WaitPolicy,
    discover,
};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::test_peer::TestPeer;

/// Blocks until one of the descriptors is readable.
fn wait_for_any(fds: &[WaitFd]) {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    for fd in fds {
        epoll::add(&epoll, fd.as_fd(), EventData::new_u64(0), EventFlags::IN).unwrap();
    }
    let mut events = Vec::with_capacity(1);
    let events = rustix::buffer::spare_capacity(&mut events);
    match epoll::wait(&epoll, events, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => panic!("epoll_wait: {error}"),
    }
}

#[test]
fn event_loop_is_woken_by_a_process_and_by_its_death() {
    const ROUNDS: u64 = 300;
    for policy in [WaitPolicy::Park, WaitPolicy::Adaptive] {
        let found = discover(&Hints::new().provider("shm"));
        let info = found.unwrap().swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric
            .domain_builder(&info)
            .wait_policy(policy)
            .driven_by_event_loop()
            .open()
            .expect("no runtime is needed");
        let mut eq = fabric.event_queue(16).unwrap();
        domain.bind_eq(&eq).unwrap();
        let mut cq = domain.completion_queue(16).unwrap();
        let av = domain.auto_insert_address_vector().unwrap();
        let ep = domain.endpoint(&info).unwrap();
        let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
        let ep = ep.bind_av(&av).unwrap().enable().unwrap();
        let fds = [cq.wait_fd().unwrap(), eq.wait_fd().unwrap()];

        ep.recv_into(vec![0; 64])
            .tag_ignoring(0, !0)
            .post()
            .unwrap();
        let mut peer = Some(TestPeer::start("echo", &ep.name().to_string()));
        let (mut received, mut batch) = (0, Vec::new());
        let reason = 'events: loop {
            cq.try_read_batch(&mut batch, 8);
            for done in batch.drain(..) {
                if done.kind != OpKind::Recv || done.error.is_some() {
                    continue;
                }
                received += 1;
                ep.recv_into(vec![0; 64])
                    .tag_ignoring(0, !0)
                    .post()
                    .unwrap();
                let source = done.transfer.source.expect("the peer is inserted");
                if received <= ROUNDS {
                    ep.send(source, received.to_le_bytes().to_vec())
                        .post()
                        .unwrap();
                } else {
                    // Drop kills the process, which blocks in its next receive.
                    peer.take();
                }
            }
            while let Some(event) = eq.try_read() {
                if let EventKind::PeerDown { reason, .. } = event.kind {
                    break 'events reason;
                }
            }
            let may_block = [cq.prepare_wait().unwrap(), eq.prepare_wait().unwrap()];
            if may_block == [TryWait::Block; 2] {
                wait_for_any(&fds);
            }
        };
        assert_eq!(received, ROUNDS + 1, "{policy:?}: {reason:?}");
    }
}

/// Opens a domain that an event loop drives.
fn open_driven_domain(info: &Info) -> (Fabric, Domain) {
    let fabric = Fabric::open(info).unwrap();
    let builder = fabric.domain_builder(info).driven_by_event_loop();
    let domain = builder.open().unwrap();
    (fabric, domain)
}

fn shm_info() -> Info {
    let found = discover(&Hints::new().provider("shm"));
    found.unwrap().swap_remove(0)
}

fn is_readable(fd: &WaitFd) -> bool {
    let now = Timespec::default();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// A waker that asks a counter for its descriptor.
struct CounterWaker {
    counter: Counter,
    calls: AtomicUsize,
}

impl Wake for CounterWaker {
    fn wake(self: Arc<Self>) {
        self.counter.wait_fd().unwrap();
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn waker_can_use_the_counter_whose_wait_is_prepared() {
    let info = shm_info();
    let (_fabric, domain) = open_driven_domain(&info);
    let av = domain.address_vector().unwrap();
    let ep = domain.endpoint(&info).unwrap().bind_av(&av).unwrap();
    let ep = ep.enable().unwrap();
    let me = av.insert(ep.name()).unwrap();
    let calls = AtomicUsize::new(0);
    let counter = domain.counter().unwrap();
    let state = Arc::new(CounterWaker { counter, calls });
    let waker = Waker::from(state.clone());
    let mut receive = Box::pin(ep.recv().into_future());
    let mut cx = Context::from_waker(&waker);
    assert!(receive.as_mut().poll(&mut cx).is_pending());
    let _sent = ep.send(me, "hello").start().unwrap();
    while state.calls.load(Ordering::Relaxed) == 0 {
        let _ = state.counter.prepare_wait(0, 0).unwrap();
    }
}

#[test]
fn binding_a_domain_wakes_the_reader_of_its_event_queue() {
    let info = shm_info();
    let fabric = Fabric::open(&info).unwrap();
    let mut eq = fabric.event_queue(8).unwrap();
    let fd = eq.wait_fd().unwrap();
    assert_eq!(eq.prepare_wait().unwrap(), TryWait::Block);
    assert!(!is_readable(&fd));
    let builder = fabric.domain_builder(&info).driven_by_event_loop();
    builder.open().unwrap().bind_eq(&eq).unwrap();
    assert!(is_readable(&fd));
}

#[test]
fn counter_wait_follows_the_last_value_that_was_seen() {
    let (_fabric, domain) = open_driven_domain(&shm_info());
    let counter = domain.counter().unwrap();
    let fd = counter.wait_fd().unwrap();
    assert_eq!(counter.prepare_wait(0, 0).unwrap(), TryWait::Block);
    counter.add(1);
    assert_eq!(counter.prepare_wait(1, 0).unwrap(), TryWait::Block);
    // The value wraps around.
    counter.add(u64::MAX);
    assert_eq!(counter.prepare_wait(0, 0).unwrap(), TryWait::Block);
    assert!(!is_readable(&fd));
    counter.add(1);
    assert!(is_readable(&fd));
}
