//! Models of who drives: the real engine and the real turns of the driver, on a reduced provider
//! and a reduced kernel.
//!
//! Three threads: a task that receives, a peer that sends, a driver. A lost wake-up is a deadlock,
//! which loom reports. Under loom the windows of the wait policy are zero long (`wait/policy.rs`),
//! so that nothing depends on time.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::completion::OpKind;
use fabric_core::info::Progress;
use fabric_core::transport::OpKey;
use loom::future::block_on;
use loom::thread;

use super::mock_transport::{MockConnection, post_op};
use crate::driver::{self, DriverState, DriverStep, TaskDriver};
use crate::engine::{DriverStatus, Engine};
use crate::wait::WaitPolicy;

fn task_driver(engine: &Arc<Engine>) -> thread::JoinHandle<()> {
    let (set, mut driver) = (engine.wait_set.clone(), TaskDriver::new(engine));
    thread::spawn(move || {
        block_on(poll_fn(move |cx| {
            let readable = |cx: &mut Context<'_>| match set.became_readable(cx.waker()) {
                true => Poll::Ready(Ok::<_, ()>(())),
                false => Poll::Pending,
            };
            let polled = driver.poll(cx, readable);
            if polled.is_pending() {
                // An executor runs others first, also when the task has woken itself.
                thread::yield_now();
            }
            polled
        }));
    })
}

fn thread_driver(engine: &Arc<Engine>) -> thread::JoinHandle<()> {
    let (set, engine) = (engine.wait_set.clone(), Arc::downgrade(engine));
    thread::spawn(move || driver::run_thread(&set, &engine))
}

/// The driver of a domain with this progress.
fn start_driver(engine: &Arc<Engine>, progress: Progress) -> thread::JoinHandle<()> {
    match progress {
        Progress::Auto => thread_driver(engine),
        _ => task_driver(engine),
    }
}

/// A task that waits for the operation.
fn wait_for_op(engine: &Engine, key: OpKey) {
    block_on(poll_fn(|cx| {
        let polled = engine.poll(
            cx.waker(),
            |hub| hub.take_op_result(key),
            |hub, waker| hub.register_op_waker(key, waker),
        );
        if polled.is_pending() {
            assert_driver_invariant(engine);
            // An executor runs others first, also when the task has woken itself.
            thread::yield_now();
        }
        polled.map(|ended| assert!(ended.error.is_none()))
    }));
}

/// The module doc of `engine`: with a task waiting and the lock free, the driver is awake, or the
/// domain is armed, or the task keeps itself runnable. A thread that watches will look within a
/// period, which loom does not measure.
fn assert_driver_invariant(engine: &Engine) {
    let locked = engine.lock();
    let awake = matches!(
        locked.driver,
        DriverStatus::Awake | DriverStatus::NotRunning
    );
    assert!(
        locked.domain.waiters == 0 || locked.armed || awake || engine.policy == WaitPolicy::Spin,
        "a task waits, the domain is not armed, and the driver is {:?}",
        locked.driver
    );
}

/// A task receives `messages`, one after the other, while a peer sends them.
fn check_receive(policy: WaitPolicy, progress: Progress, messages: u32) {
    loom::model(move || {
        let (wire, engine) = MockConnection::engine(policy, progress);
        let driver = start_driver(&engine, progress);
        let peer = thread::spawn(move || (0..messages).for_each(|_| wire.send()));
        for _ in 0..messages {
            let key = post_op(&engine, OpKind::Recv);
            wait_for_op(&engine, key);
        }
        peer.join().expect("the peer does not panic");
        drop(engine);
        driver.join().expect("the driver does not panic");
    });
}

/// The driver is a task and listens only: whoever goes to sleep arms the doorbells.
#[test]
fn parked_task_driver_is_woken() {
    check_receive(WaitPolicy::Park, Progress::Manual, 1);
}

/// The driver is a task and is woken to look for a while.
#[test]
fn adaptive_task_driver_is_woken() {
    check_receive(WaitPolicy::Adaptive, Progress::Manual, 1);
}

/// A task waits while the driver is a thread, which must not watch then: a message would wait for
/// the end of the period.
#[test]
fn driver_thread_is_not_on_standby_while_a_task_waits() {
    loom::model(|| {
        let (wire, engine) = MockConnection::engine(WaitPolicy::Park, Progress::Auto);
        let key = post_op(&engine, OpKind::Recv);
        let mut turns = DriverState::new();
        engine.lock().driver = DriverStatus::Awake;
        let task = {
            let engine = engine.clone();
            thread::spawn(move || wait_for_op(&engine, key))
        };
        let next = turns.step(&engine, None);
        assert!(
            next != DriverStep::Standby || engine.lock().domain.waiters == 0,
            "a task waits and the thread watches"
        );
        wire.send();
        while turns.step(&engine, None) != DriverStep::Sleep {
            thread::yield_now();
        }
        task.join().expect("the task does not panic");
    });
}

/// The driver is a thread: it sleeps on the doorbells, or leaves the field to tasks that poll.
#[test]
fn task_beside_a_driver_thread_is_woken() {
    check_receive(WaitPolicy::Park, Progress::Auto, 1);
}

/// Two tasks wait and the peer's two messages come in any order with their polls: what one task
/// takes up (the doorbells are off while it polls) is left in order for the other.
#[test]
fn task_that_stops_polling_leaves_the_other_driven() {
    loom::model(|| {
        let (wire, engine) = MockConnection::engine(WaitPolicy::Park, Progress::Manual);
        let (first, second) = (
            post_op(&engine, OpKind::Recv),
            post_op(&engine, OpKind::Recv),
        );
        let driver = task_driver(&engine);
        // The second task has gone to sleep before anything arrives.
        let other = {
            let engine = engine.clone();
            thread::spawn(move || wait_for_op(&engine, second))
        };
        wire.send();
        wait_for_op(&engine, first);
        wire.send();
        other.join().expect("the other task does not panic");
        drop(engine);
        driver.join().expect("the driver does not panic");
    });
}

/// A pass by hand takes up the news, and with it the ring of a doorbell, while a task sleeps: the
/// next message rings again.
#[test]
fn manual_progress_leaves_the_doorbells_armed() {
    loom::model(|| {
        let (wire, engine) = MockConnection::engine(WaitPolicy::Park, Progress::Manual);
        let (first, second) = (
            post_op(&engine, OpKind::Recv),
            post_op(&engine, OpKind::Recv),
        );
        let driver = task_driver(&engine);
        let peer = thread::spawn(move || {
            wire.send();
            wire.send();
        });
        engine.progress();
        wait_for_op(&engine, second);
        wait_for_op(&engine, first);
        peer.join().expect("the peer does not panic");
        drop(engine);
        driver.join().expect("the driver does not panic");
    });
}

/// A glance at a queue (`DomainHandle::try_read_cq`) takes a message whose doorbell has rung, while a
/// task waits: the domain must not be taken for armed afterwards.
fn poll_once_beside_driver(progress: Progress) {
    loom::model(move || {
        let (wire, engine) = MockConnection::engine(WaitPolicy::Park, progress);
        let (_first, second) = (
            post_op(&engine, OpKind::Recv),
            post_op(&engine, OpKind::Recv),
        );
        let driver = start_driver(&engine, progress);
        let peer = thread::spawn(move || (0..2).for_each(|_| wire.send()));
        let mut glanced = false;
        block_on(poll_fn(|cx| {
            let register = |hub: &mut crate::domain_state::DomainState, waker: &_| {
                hub.register_op_waker(second, waker)
            };
            let polled = engine.poll(cx.waker(), |hub| hub.take_op_result(second), register);
            if polled.is_pending() {
                if !std::mem::replace(&mut glanced, true) {
                    thread::yield_now();
                    let mut locked = engine.lock();
                    locked.poll_once();
                    locked.finish();
                }
                thread::yield_now();
            }
            polled.map(drop)
        }));
        peer.join().expect("the peer does not panic");
        drop(engine);
        driver.join().expect("the driver does not panic");
    });
}

#[test]
fn poll_once_beside_a_thread_loses_no_doorbell() {
    poll_once_beside_driver(Progress::Auto);
}

#[test]
fn poll_once_beside_a_task_loses_no_doorbell() {
    poll_once_beside_driver(Progress::Manual);
}
