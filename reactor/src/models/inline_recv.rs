//! Models of receives that end inline, through the real engine and receive queue, beside passes of
//! another thread and a peer that sends.
//!
//! Each message completes one receive, the one that was posted first, and each receive completes
//! once. A receive that ends inline takes no doorbell from a driver that sleeps: a lost wake-up is
//! a deadlock, which loom reports.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use fabric_core::rx::RxQueue;
use fabric_core::transport::{EpId, OpKey, WaitPolicy};
use loom::future::block_on;
use loom::thread;

use super::mock_transport::{ANY_UNTAGGED, MockConnection, post_recv};
use super::progress::task_driver;
use crate::engine::DomainHandle;
use crate::engine::driver_phase::DriverKind;

/// Polls a posted receive. Ready with its message.
fn poll_posted(domain: &DomainHandle, key: OpKey, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
    let done = ready!(domain.poll_op(key, cx)).take::<Vec<u8>>();
    Poll::Ready(done.expect("receive failed").buf)
}

/// Receives a message as the future of a receive does.
fn receive(domain: &DomainHandle) -> Vec<u8> {
    let mut posted = None;
    block_on(poll_fn(|cx| {
        let polled = match posted {
            Some(key) => poll_posted(domain, key, cx),
            None => {
                let buf = Vec::with_capacity(1);
                let polled = domain.recv_and_poll(EpId(0), ANY_UNTAGGED, buf, cx, &mut posted);
                polled.map(|done| done.expect("receive failed").buf)
            }
        };
        if polled.is_pending() {
            // An executor runs other tasks first, also when the task has woken itself.
            thread::yield_now();
        }
        polled
    }))
}

/// Waits for a posted receive as a task.
fn wait_for_message(domain: &DomainHandle, key: OpKey) -> Vec<u8> {
    block_on(poll_fn(|cx| {
        let polled = poll_posted(domain, key, cx);
        if polled.is_pending() {
            thread::yield_now();
        }
        polled
    }))
}

/// Checks that each receive has left its slot and the receive queue.
fn assert_nothing_left(domain: &DomainHandle) {
    let locked = domain.engine().lock();
    assert_eq!(locked.domain.ops.len(), 0, "operations are left");
    let rx = locked.endpoints.own_rx(EpId(0));
    assert!(rx.is_some_and(RxQueue::is_empty), "left: {rx:?}");
}

/// A task receives message after message beside a driver that makes passes, arms the doorbells and
/// sleeps.
#[test]
fn receives_beside_a_driver_take_each_message_once() {
    loom::model(|| {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::Task);
        connection.send();
        let driver = task_driver(&engine);
        let domain = DomainHandle::for_models(engine);
        let peer = thread::spawn(move || connection.send());
        assert_eq!((receive(&domain), receive(&domain)), (vec![1], vec![2]));
        assert_nothing_left(&domain);
        peer.join().expect("peer panicked");
        drop(domain);
        driver.join().expect("driver panicked");
    });
}

/// Another thread makes a pass, and polls the second of two posted receives, which must not take
/// the message of the first.
#[test]
fn posted_receives_complete_in_order_and_once() {
    loom::model(|| {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::Task);
        let keys = [(); 2].map(|()| post_recv(&engine));
        let other = {
            let engine = engine.clone();
            thread::spawn(move || {
                engine.lock().try_recv_posted(keys[1]);
                engine.progress();
            })
        };
        let peer = thread::spawn(move || (0..2).for_each(|_| connection.send()));
        let domain = DomainHandle::for_models(engine);
        let messages = keys.map(|key| wait_for_message(&domain, key));
        assert_eq!(messages, [[1], [2]]);
        assert_nothing_left(&domain);
        other.join().expect("other thread panicked");
        peer.join().expect("peer panicked");
    });
}
