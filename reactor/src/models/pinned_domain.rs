//! A model of a domain that one thread owns: what other threads drop is removed by the owner.
//!
//! Another thread queues updates and wakes the driver, which sleeps or makes a pass. The driver
//! applies every update. A lost wake-up is a deadlock, which loom reports.

use std::future::poll_fn;
use std::task::{Context, Poll};

use fabric_core::transport::{ThreadMode, WaitPolicy};
use loom::future::block_on;
use loom::thread;

use super::mock_transport::MockConnection;
use crate::engine::DomainUpdates;
use crate::engine::driver::TaskDriver;
use crate::engine::driver_phase::DriverKind;
use crate::engine::state::domain_state::DomainState;

#[test]
fn address_vector_that_another_thread_drops_is_closed_by_the_owner() {
    loom::model(|| {
        let (mode, policy) = (ThreadMode::Pinned, WaitPolicy::Park);
        let (_mock, engine) = MockConnection::engine_with(mode, policy, DriverKind::Task, None);
        let avs = [(); 2].map(|()| engine.lock().domain.avs.open(false));
        let updates = DomainUpdates::new(&engine);
        let other = {
            let engine = engine.clone();
            thread::spawn(move || {
                assert!(engine.try_lock().is_none(), "another thread entered");
                avs.into_iter().for_each(|av| drop(updates.close_av(av)));
            })
        };
        let (set, mut driver) = (engine.wait_set.clone(), TaskDriver::new(&engine));
        block_on(poll_fn(|cx| {
            let readable = |cx: &mut Context<'_>| match set.became_readable(cx.waker()) {
                true => Poll::Ready(Ok::<_, ()>(())),
                false => Poll::Pending,
            };
            assert!(driver.poll(cx, readable).is_pending(), "the driver ended");
            let is_open = |domain: &DomainState| avs.iter().any(|av| domain.avs.get(*av).is_ok());
            match engine.peek(is_open) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        }));
        other.join().expect("other thread panicked");
        assert!(!engine.updates.has_updates());
    });
}
