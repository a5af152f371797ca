//! Models of the op slots, through the real engine and tables: every operation completes once, to
//! its own target.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::transport::{OpKey, RxEngine};
use loom::sync::Notify;
use loom::thread;

use super::mock_transport::{MockConnection, add_op};
use crate::engine::driver_phase::DriverKind;
use crate::engine::progress::Engine;
use crate::engine::state::ops::{OpPhase, OpState};
use fabric_core::transport::WaitPolicy;

/// A waker that takes the domain's lock. If it were called under that lock it would deadlock, which
/// loom reports.
struct LockingWaker {
    engine: Arc<Engine>,
    notify: Notify,
}

impl Wake for LockingWaker {
    fn wake(self: Arc<Self>) {
        drop(self.engine.lock());
        self.notify.notify();
    }
}

fn park_engine() -> Arc<Engine> {
    MockConnection::engine(WaitPolicy::Park, DriverKind::Task).1
}

fn complete_op(engine: &Engine, key: OpKey, len: usize) {
    engine
        .lock()
        .domain
        .complete(key, Outcome::ok(Transfer::sent(len, None)));
}

/// Polls the operation's future once; ready with the length it completed with.
fn poll_op(engine: &Engine, key: OpKey, waker: &Waker) -> Poll<usize> {
    let mut locked = engine.lock();
    if let Some(result) = locked.domain.take_op_result(key) {
        return Poll::Ready(result.transfer.len);
    }
    locked.domain.register_op_waker(key, waker);
    Poll::Pending
}

fn assert_no_ops_left(engine: &Engine) {
    let locked = engine.lock();
    assert_eq!(
        (locked.domain.ops.len(), locked.domain.deferred.waiting()),
        (0, 0),
        "operations or waiters are left"
    );
}

/// A future that is polled until it is ready gets its outcome whenever it polls, and is woken
/// without the lock.
#[test]
fn completion_reaches_its_future_once() {
    loom::model(|| {
        let engine = park_engine();
        let key = add_op(&engine, OpKind::Send);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete_op(&engine, key, 7))
        };
        let task = Arc::new(LockingWaker {
            engine: engine.clone(),
            notify: Notify::new(),
        });
        let waker = Waker::from(task.clone());
        let len = loop {
            match poll_op(&engine, key, &waker) {
                Poll::Ready(len) => break len,
                Poll::Pending => task.notify.wait(),
            }
        };
        completer.join().expect("completer panicked");
        assert_eq!(len, 7);
        assert!(
            engine.lock().domain.take_op_result(key).is_none(),
            "the result was delivered twice"
        );
        assert_no_ops_left(&engine);
    });
}

/// The future of a send is dropped while the send ends: the slot is free afterwards, whichever is
/// first, and the waker is not dropped under the lock.
#[test]
fn dropped_send_frees_its_slot() {
    loom::model(|| {
        let engine = park_engine();
        let key = add_op(&engine, OpKind::Send);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete_op(&engine, key, 7))
        };
        let task = Arc::new(LockingWaker {
            engine: engine.clone(),
            notify: Notify::new(),
        });
        if poll_op(&engine, key, &Waker::from(task)).is_pending() {
            let mut locked = engine.lock();
            locked.detach(key);
            locked.finish();
        }
        completer.join().expect("completer panicked");
        assert_no_ops_left(&engine);
    });
}

/// The future of a receive is dropped and its slot is reused, while a transport still completes the
/// old key: the new operation is not affected.
#[test]
fn stale_op_key_never_reaches_a_reused_slot() {
    loom::model(|| {
        let engine = park_engine();
        let stale = add_op(&engine, OpKind::Recv);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete_op(&engine, stale, 0))
        };
        {
            let mut locked = engine.lock();
            locked.detach(stale);
            locked.finish();
        }
        let fresh = add_op(&engine, OpKind::Recv);
        assert_eq!(fresh.index, stale.index, "the slot is reused");
        completer.join().expect("completer panicked");
        let mut locked = engine.lock();
        assert!(matches!(
            locked.domain.ops.get(fresh).map(OpState::phase),
            Some(OpPhase::Executing)
        ));
        assert!(locked.domain.take_op_result(stale).is_none());
        locked.domain.discard_op(fresh);
        drop(locked);
        assert_no_ops_left(&engine);
    });
}
