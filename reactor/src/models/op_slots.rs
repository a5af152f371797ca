//! Models of the op slots, by way of the real engine, hub and table: one completion, for whom it is
//! meant.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::info::Progress;
use fabric_core::transport::{EngineContext, OpKey};
use loom::sync::Notify;
use loom::thread;

use super::mock_transport::{MockConnection, post_op};
use crate::engine::Engine;
use crate::ops::OpPhase;
use crate::wait::WaitPolicy;

/// A waker that takes the domain's lock. Called under that lock it would wait for itself, which
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
    MockConnection::engine(WaitPolicy::Park, Progress::Manual).1
}

fn complete_op(engine: &Engine, key: OpKey, len: usize) {
    engine
        .lock()
        .domain
        .complete(key, Outcome::ok(Transfer::sent(len, None)));
}

/// One poll of the operation's future: the length it ended with.
fn poll_op(engine: &Engine, key: OpKey, waker: &Waker) -> Poll<usize> {
    let mut locked = engine.lock();
    if let Some(ended) = locked.domain.take_op_result(key) {
        return Poll::Ready(ended.transfer.len);
    }
    locked.domain.register_op_waker(key, waker);
    Poll::Pending
}

fn assert_no_ops_left(engine: &Engine) {
    let locked = engine.lock();
    assert_eq!(
        (locked.domain.ops.len(), locked.domain.waiters),
        (0, 0),
        "no operation and no waiter is left"
    );
}

/// A future that is polled until it is ready gets its outcome, whenever it looks, and is woken
/// without the lock.
#[test]
fn completion_reaches_its_future_once() {
    loom::model(|| {
        let engine = park_engine();
        let key = post_op(&engine, OpKind::Send);
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
        completer.join().expect("the completer does not panic");
        assert_eq!(len, 7);
        assert!(
            engine.lock().domain.take_op_result(key).is_none(),
            "delivered once"
        );
        assert_no_ops_left(&engine);
    });
}

/// The future of a send is dropped while the send ends: the slot is free afterwards, whoever comes
/// first, and a waker that is dropped is not dropped under the lock.
#[test]
fn dropped_send_frees_its_slot() {
    loom::model(|| {
        let engine = park_engine();
        let key = post_op(&engine, OpKind::Send);
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
        completer.join().expect("the completer does not panic");
        assert_no_ops_left(&engine);
    });
}

/// The future of a receive is dropped and its slot is used again, while a provider still completes
/// the old name: the new operation does not notice.
#[test]
fn stale_op_key_never_reaches_a_reused_slot() {
    loom::model(|| {
        let engine = park_engine();
        let stale = post_op(&engine, OpKind::Recv);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete_op(&engine, stale, 0))
        };
        {
            let mut locked = engine.lock();
            locked.detach(stale);
            locked.finish();
        }
        let fresh = post_op(&engine, OpKind::Recv);
        assert_eq!(fresh.index, stale.index, "the slot is used again");
        completer.join().expect("the completer does not panic");
        let mut locked = engine.lock();
        assert!(matches!(
            locked.domain.ops.get(fresh).map(|op| &op.phase),
            Some(OpPhase::Posted)
        ));
        assert!(locked.domain.take_op_result(stale).is_none());
        locked.domain.discard_op(fresh);
        drop(locked);
        assert_no_ops_left(&engine);
    });
}
