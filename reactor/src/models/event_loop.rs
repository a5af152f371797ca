//! Models of event loops that drive a domain: the real engine on a mock transport and a mock
//! kernel.
//!
//! A thread that may block according to `Engine::prepare_wait` waits on the domain's set without a
//! timeout. A lost wake-up is a deadlock, which loom reports.

use std::sync::Arc;
use std::task::Waker;

use fabric_core::transport::OpKey;
use loom::thread;

use super::EpollSet;
use super::mock_transport::{MockConnection, post_recv};
use crate::engine::driver_phase::DriverKind;
use crate::engine::progress::Engine;
use fabric_core::transport::WaitPolicy;

fn event_loop_domain() -> (Arc<MockConnection>, Arc<Engine>) {
    let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::EventLoop);
    engine.lock().finish();
    (connection, engine)
}

/// Waits for the operation on the domain's set.
fn wait_in_event_loop(engine: &Engine, key: OpKey) {
    wait_on(engine, key, &engine.wait_set, || {});
}

/// Waits for the operation. `set` becomes readable with the operation's completion; `reset` resets
/// it before that is checked.
fn wait_on(engine: &Engine, key: OpKey, set: &Arc<EpollSet>, reset: impl Fn()) {
    let waker = Waker::from(set.clone());
    loop {
        reset();
        let may_block = engine.prepare_wait(
            |domain| domain.ops.is_done(key),
            |domain| domain.register_op_waker(key, &waker),
        );
        if may_block {
            set.wait(None, |_| {});
        } else {
            thread::yield_now();
        }
        let mut locked = engine.lock();
        let is_done = locked.domain.take_op_result(key).is_some();
        locked.finish();
        if is_done {
            return;
        }
    }
}

/// One thread runs the loop, and its peer sends.
#[test]
fn event_loop_is_woken_by_arrivals() {
    loom::model(|| {
        let (connection, engine) = event_loop_domain();
        let peer = thread::spawn(move || (0..2).for_each(|_| connection.send()));
        for _ in 0..2 {
            let key = post_recv(&engine);
            wait_in_event_loop(&engine, key);
        }
        peer.join().expect("peer panicked");
    });
}

/// Another thread makes passes while the loop blocks, and so takes its doorbells: it leaves the
/// domain armed, or the loop readable.
#[test]
fn passes_of_other_threads_leave_the_event_loop_armed() {
    loom::model(|| {
        let (connection, engine) = event_loop_domain();
        let keys = [(); 2].map(|()| post_recv(&engine));
        let peer = thread::spawn(move || (0..2).for_each(|_| connection.send()));
        let other = {
            let engine = engine.clone();
            thread::spawn(move || engine.progress())
        };
        for key in keys {
            wait_in_event_loop(&engine, key);
        }
        peer.join().expect("peer panicked");
        other.join().expect("other thread panicked");
    });
}

/// A driver elsewhere makes progress: the loop is woken by its completion alone.
#[test]
fn event_loop_beside_a_driver_is_woken_by_completions() {
    loom::model(|| {
        let (connection, engine) = MockConnection::engine(WaitPolicy::Park, DriverKind::Thread);
        let driver = {
            let (set, engine) = (engine.wait_set.clone(), Arc::downgrade(&engine));
            thread::spawn(move || crate::engine::driver::run_thread(&set, &engine))
        };
        let key = post_recv(&engine);
        let peer = thread::spawn(move || connection.send());
        let own_set = Arc::new(EpollSet::new().expect("the mock set cannot fail"));
        wait_on(&engine, key, &own_set, || own_set.drain_wake_eventfd());
        peer.join().expect("peer panicked");
        drop(engine);
        driver.join().expect("driver panicked");
    });
}
