//! Models of progress: the real engine and the real steps of the driver, on a mock transport and a
//! mock kernel.
//!
//! Three threads: a task that receives, a peer that sends, a driver. A lost wake-up is a deadlock,
//! which loom reports. Under loom the spin times of the wait policy are zero (`wait_policy`), so
//! nothing depends on time.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use fabric_core::completion::OpKind;
use fabric_core::transport::OpKey;
use loom::future::block_on;
use loom::thread;

use super::mock_transport::{MockConnection, add_op, post_recv};
use crate::engine::driver::{self, DriverState, DriverStep, TaskDriver};
use crate::engine::driver_phase::{DriverKind, DriverPhase};
use crate::engine::progress::Engine;
use crate::engine::state::ops::CompletionTarget;
use crate::engine::state::update_queue::Update;
use fabric_core::transport::{ThreadMode, WaitPolicy};

pub(super) fn task_driver(engine: &Arc<Engine>) -> thread::JoinHandle<()> {
    let (set, mut driver) = (engine.wait_set.clone(), TaskDriver::new(engine));
    thread::spawn(move || {
        block_on(poll_fn(move |cx| {
            let readable = |cx: &mut Context<'_>| match set.became_readable(cx.waker()) {
                true => Poll::Ready(Ok::<_, ()>(())),
                false => Poll::Pending,
            };
            let polled = driver.poll(cx, readable);
            if polled.is_pending() {
                // An executor runs other tasks first, also when the task has woken itself.
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

/// Starts the driver of a domain with this kind of driver.
fn start_driver(engine: &Arc<Engine>, kind: DriverKind) -> thread::JoinHandle<()> {
    match kind {
        DriverKind::Thread => thread_driver(engine),
        _ => task_driver(engine),
    }
}

/// Waits for the operation as a task.
fn wait_for_op(engine: &Engine, key: OpKey) {
    block_on(poll_fn(|cx| {
        let polled = engine.drive_op(engine.lock(), key, cx.waker());
        let ended = polled.map(|(mut locked, waker)| {
            let result = locked.domain.take_op_result(key);
            locked.unlock();
            drop(waker);
            result
        });
        if ended.is_pending() {
            assert_driver_invariant(engine);
            // An executor runs other tasks first, also when the task has woken itself.
            thread::yield_now();
        }
        ended.map(|result| assert!(result.is_some_and(|result| result.error.is_none())))
    }));
}

/// Checks the invariant of `engine/progress`: with a task waiting and the lock free, the driver is
/// awake, or the domain is armed, or the task keeps itself runnable. A driver thread in standby
/// checks within a period, which loom does not measure.
fn assert_driver_invariant(engine: &Engine) {
    let locked = engine.lock();
    let awake = matches!(locked.driver, DriverPhase::Awake | DriverPhase::NotRunning);
    assert!(
        locked.domain.deferred.waiting() == 0
            || locked.armed
            || awake
            || engine.waits.tasks_stay_runnable(),
        "a task waits, the domain is not armed, and the driver is {:?}",
        locked.driver
    );
}

/// Receives `messages` one after the other as a task, while a peer sends them.
fn check_receive(policy: WaitPolicy, kind: DriverKind, messages: u32) {
    check_receive_in(ThreadMode::Shared, policy, kind, messages);
}

fn check_receive_in(mode: ThreadMode, policy: WaitPolicy, kind: DriverKind, messages: u32) {
    loom::model(move || {
        let (connection, engine) = MockConnection::engine_with(mode, policy, kind, None);
        let driver = start_driver(&engine, kind);
        let peer = thread::spawn(move || (0..messages).for_each(|_| connection.send()));
        for _ in 0..messages {
            let key = post_recv(&engine);
            wait_for_op(&engine, key);
        }
        peer.join().expect("peer panicked");
        drop(engine);
        driver.join().expect("driver panicked");
    });
}

/// The driver is a task and only waits: it arms the doorbells before it sleeps.
#[test]
fn parked_task_driver_is_woken() {
    check_receive(WaitPolicy::Park, DriverKind::Task, 1);
}

/// The driver skips a step while the user is in the domain, and the user waits for the end of its
/// pass.
#[test]
pub(super) fn task_driver_beside_the_one_user_is_woken() {
    check_receive_in(ThreadMode::Serial, WaitPolicy::Park, DriverKind::Task, 1);
}

#[test]
fn driver_thread_beside_the_one_user_is_woken() {
    check_receive_in(ThreadMode::Serial, WaitPolicy::Park, DriverKind::Thread, 1);
}

/// Two threads break the promise of a domain for one at a time: one drops an operation while the
/// other, whose use is `peek`, may be in the domain. The drop is applied at once, or is queued and
/// wakes the driver, which applies it.
#[test]
fn drop_beside_another_use_takes_effect() {
    loom::model(|| {
        let (mode, policy) = (ThreadMode::Serial, WaitPolicy::Park);
        let (_mock, engine) = MockConnection::engine_with(mode, policy, DriverKind::Task, None);
        let key = add_op(&engine, OpKind::Send);
        let other = {
            let engine = engine.clone();
            thread::spawn(move || {
                engine.apply_or_queue(Update::DropFuture {
                    key,
                    cancels: false,
                });
            })
        };
        let (set, mut driver) = (engine.wait_set.clone(), TaskDriver::new(&engine));
        let mut poll_driver = |cx: &mut Context<'_>| {
            let readable = |cx: &mut Context<'_>| match set.became_readable(cx.waker()) {
                true => Poll::Ready(Ok::<_, ()>(())),
                false => Poll::Pending,
            };
            assert!(driver.poll(cx, readable).is_pending(), "the driver ended");
        };
        let is_detached = || {
            let target = engine.peek(|domain| domain.ops.get(key).map(|op| op.target()));
            target == Some(CompletionTarget::Discard)
        };
        // The driver may fall asleep before the drop.
        block_on(poll_fn(|cx| {
            poll_driver(cx);
            Poll::Ready(is_detached())
        }));
        other.join().expect("other user panicked");
        block_on(poll_fn(|cx| match engine.updates.has_updates() {
            true => {
                poll_driver(cx);
                match engine.updates.has_updates() {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            }
            false => Poll::Ready(()),
        }));
        assert!(is_detached());
    });
}

/// The driver is a task and is woken to spin for a while.
#[test]
fn adaptive_task_driver_is_woken() {
    check_receive(WaitPolicy::Adaptive, DriverKind::Task, 1);
}

/// A task waits while the driver is a thread, which must not be in standby then: a message would
/// wait for the end of the period.
#[test]
fn driver_thread_is_not_on_standby_while_a_task_waits() {
    loom::model(|| {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::Thread);
        let key = post_recv(&engine);
        let mut state = DriverState::new(&engine);
        engine.lock().driver = DriverPhase::Awake;
        let task = {
            let engine = engine.clone();
            thread::spawn(move || wait_for_op(&engine, key))
        };
        let step = state.step(&engine, None);
        assert!(
            step != DriverStep::Standby || engine.lock().domain.deferred.waiting() == 0,
            "driver thread is in standby while a task waits"
        );
        connection.send();
        while state.step(&engine, None) != DriverStep::Sleep {
            thread::yield_now();
        }
        task.join().expect("task panicked");
    });
}

/// The driver is a thread: it sleeps on the doorbells, or is in standby while tasks poll.
#[test]
fn task_beside_a_driver_thread_is_woken() {
    check_receive(WaitPolicy::Park, DriverKind::Thread, 1);
}

/// Two tasks wait, and the peer's two messages arrive in any order with their polls: a task that
/// stops polling (the doorbells are disarmed while it polls) leaves the domain armed or driven for
/// the other.
#[test]
fn waiting_task_is_woken_after_another_task_stops_polling() {
    loom::model(|| {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::Task);
        let (first, second) = (post_recv(&engine), post_recv(&engine));
        let driver = task_driver(&engine);
        // The second task has gone to sleep before anything arrives.
        let other = {
            let engine = engine.clone();
            thread::spawn(move || wait_for_op(&engine, second))
        };
        connection.send();
        wait_for_op(&engine, first);
        connection.send();
        other.join().expect("second task panicked");
        drop(engine);
        driver.join().expect("driver panicked");
    });
}

/// A manual progress call takes a message, and with it the doorbell, while a task sleeps: the next
/// message rings again.
#[test]
fn manual_progress_leaves_the_doorbells_armed() {
    loom::model(|| {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::Task);
        let (first, second) = (post_recv(&engine), post_recv(&engine));
        let driver = task_driver(&engine);
        let peer = thread::spawn(move || {
            connection.send();
            connection.send();
        });
        engine.progress();
        wait_for_op(&engine, second);
        wait_for_op(&engine, first);
        peer.join().expect("peer panicked");
        drop(engine);
        driver.join().expect("driver panicked");
    });
}

/// A read of a queue that does not wait (`DomainHandle::try_read_cq`) takes a message whose
/// doorbell has rung, while a task waits: the domain must not count as armed afterwards.
fn poll_once_beside_driver(kind: DriverKind) {
    loom::model(move || {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, kind);
        let (_first, second) = (post_recv(&engine), post_recv(&engine));
        let driver = start_driver(&engine, kind);
        let peer = thread::spawn(move || (0..2).for_each(|_| connection.send()));
        let mut has_polled = false;
        block_on(poll_fn(|cx| {
            let register = |domain: &mut crate::engine::state::domain_state::DomainState,
                            waker: &_| {
                domain.register_op_waker(second, waker)
            };
            let polled = engine.poll(cx.waker(), |domain| domain.take_op_result(second), register);
            if polled.is_pending() {
                if !std::mem::replace(&mut has_polled, true) {
                    thread::yield_now();
                    let mut locked = engine.lock();
                    locked.poll_once();
                    locked.finish();
                }
                thread::yield_now();
            }
            polled.map(drop)
        }));
        peer.join().expect("peer panicked");
        drop(engine);
        driver.join().expect("driver panicked");
    });
}

#[test]
fn poll_once_beside_a_thread_loses_no_doorbell() {
    poll_once_beside_driver(DriverKind::Thread);
}

#[test]
fn poll_once_beside_a_task_loses_no_doorbell() {
    poll_once_beside_driver(DriverKind::Task);
}
