//! Models of the op slots, by way of the real engine, hub and table: one completion, for whom it is
//! meant.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::info::Progress;
use fabric_core::provider::{Host, OpKey};
use loom::sync::Notify;
use loom::thread;

use super::wire::{Wire, post};
use crate::engine::Engine;
use crate::ops::Phase;
use crate::wait::WaitPolicy;

/// A waker that takes the domain's lock. Called under that lock it would wait for itself, which
/// loom reports.
struct Locking {
    engine: Arc<Engine>,
    notify: Notify,
}

impl Wake for Locking {
    fn wake(self: Arc<Self>) {
        drop(self.engine.lock());
        self.notify.notify();
    }
}

fn engine() -> Arc<Engine> {
    Wire::engine(WaitPolicy::Park, Progress::Manual).1
}

fn complete(engine: &Engine, key: OpKey, len: usize) {
    engine
        .lock()
        .hub
        .complete(key, Outcome::ok(Transfer::sent(len, None)));
}

/// One poll of the operation's future: the length it ended with.
fn poll(engine: &Engine, key: OpKey, waker: &Waker) -> Poll<usize> {
    let mut locked = engine.lock();
    if let Some(ended) = locked.hub.take_done(key) {
        return Poll::Ready(ended.transfer.len);
    }
    locked.hub.register(key, waker);
    Poll::Pending
}

fn assert_nothing_is_left(engine: &Engine) {
    let locked = engine.lock();
    assert_eq!(
        (locked.hub.ops.len(), locked.hub.waiters),
        (0, 0),
        "no operation and no waiter is left"
    );
}

/// A future that is polled until it is ready gets its outcome, whenever it looks, and is woken
/// without the lock.
#[test]
fn a_completion_reaches_its_future_once() {
    loom::model(|| {
        let engine = engine();
        let key = post(&engine, OpKind::Send);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete(&engine, key, 7))
        };
        let task = Arc::new(Locking {
            engine: engine.clone(),
            notify: Notify::new(),
        });
        let waker = Waker::from(task.clone());
        let len = loop {
            match poll(&engine, key, &waker) {
                Poll::Ready(len) => break len,
                Poll::Pending => task.notify.wait(),
            }
        };
        completer.join().expect("the completer does not panic");
        assert_eq!(len, 7);
        assert!(engine.lock().hub.take_done(key).is_none(), "delivered once");
        assert_nothing_is_left(&engine);
    });
}

/// The future of a send is dropped while the send ends: the slot is free afterwards, whoever comes
/// first, and a waker that is dropped is not dropped under the lock.
#[test]
fn a_dropped_send_leaves_nothing() {
    loom::model(|| {
        let engine = engine();
        let key = post(&engine, OpKind::Send);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete(&engine, key, 7))
        };
        let task = Arc::new(Locking {
            engine: engine.clone(),
            notify: Notify::new(),
        });
        if poll(&engine, key, &Waker::from(task)).is_pending() {
            let mut locked = engine.lock();
            locked.abandon(key);
            locked.finish();
        }
        completer.join().expect("the completer does not panic");
        assert_nothing_is_left(&engine);
    });
}

/// The future of a receive is dropped and its slot is used again, while a provider still completes
/// the old name: the new operation does not notice.
#[test]
fn a_stale_name_never_reaches_a_reused_slot() {
    loom::model(|| {
        let engine = engine();
        let stale = post(&engine, OpKind::Recv);
        let completer = {
            let engine = engine.clone();
            thread::spawn(move || complete(&engine, stale, 0))
        };
        {
            let mut locked = engine.lock();
            locked.abandon(stale);
            locked.finish();
        }
        let fresh = post(&engine, OpKind::Recv);
        assert_eq!(fresh.index, stale.index, "the slot is used again");
        completer.join().expect("the completer does not panic");
        let mut locked = engine.lock();
        assert!(matches!(
            locked.hub.ops.get(fresh).map(|op| &op.phase),
            Some(Phase::Posted)
        ));
        assert!(locked.hub.take_done(stale).is_none());
        locked.hub.discard(fresh);
        drop(locked);
        assert_nothing_is_left(&engine);
    });
}
