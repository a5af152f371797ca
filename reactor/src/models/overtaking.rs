//! A model of the short way beside the domain: what is sent at once never overtakes what waits for
//! credit.
//!
//! Three threads: one posts a message that has to wait, and says so; one that has heard it sends
//! another, by the short way if that is open; one gives the credit back, whereupon the first is
//! granted. The engine and its credits are real; the connection is a list of what went over it, and
//! its short way is that of `provider::shm::lanes`.

use std::sync::Arc;

use fabric_core::av::AddressTable;
use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::info::Progress;
use fabric_core::provider::{AtOnce, EpId, Express, SendSpec};
use loom::thread;

use super::wire::Wire;
use crate::engine::Engine;
use crate::hub::{AvId, Bindings, Counters, Hub};
use crate::ops::{Credit, Route};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::wait::WaitPolicy;

const EP: EpId = EpId(0);

/// A connection without a queue: what is given to it has been sent.
pub(super) struct Line {
    held: AtomicU32,
    sent: Mutex<Vec<u64>>,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            held: AtomicU32::new(0),
            sent: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn send(&self, spec: &SendSpec) {
        lock(&self.sent).extend(spec.tag);
    }
}

impl Express for Line {
    fn send_now(&self, spec: &SendSpec, _: Payload<'_>) -> AtOnce {
        // SYNC: as in `Lanes::at_once`.
        if self.held.load(Ordering::Acquire) != 0 {
            return AtOnce::No;
        }
        self.send(spec);
        AtOnce::Done
    }

    fn atomic_now(&self, _: &SendSpec, _: &[u8], _: &mut [u8]) -> AtOnce {
        AtOnce::No
    }

    fn hold(&self, held: bool) {
        // SYNC: as in `Lanes::hold`.
        self.held.store(held.into(), Ordering::Release);
    }
}

fn bindings() -> Bindings {
    Bindings {
        object: 0,
        context: 0,
        av: AvId(0),
        tx_cq: None,
        rx_cq: None,
        counters: Counters::default(),
        shared: None,
        eq: None,
        tx_size: 1,
        rx_size: 1,
        max_msg_size: 1,
        inject_size: 1,
    }
}

/// Posts a message as `fabric_async` does: by the short way, or else by that over the domain.
fn send(engine: &Engine, line: &Line, spec: SendSpec) {
    if line.send_now(&spec, Payload::Whole(&[])) != AtOnce::No {
        return;
    }
    let mut locked = engine.lock();
    let posted = locked.queue_send(EP, spec, Vec::new(), Route::Nobody, Credit::Wait);
    locked.finish();
    drop(locked);
    posted.expect("it may wait");
}

#[test]
fn what_is_sent_at_once_overtakes_nothing_that_waits_for_credit() {
    loom::model(|| {
        let line = Arc::new(Line::new());
        let (_wire, engine) =
            Wire::engine_with(WaitPolicy::Spin, Progress::Manual, Some(line.clone()));
        let peer = AddressTable::new().insert("shm://peer".parse().expect("an address"));
        let message = move |tag| SendSpec {
            tag: Some(tag),
            ..SendSpec::new(OpKind::Send, peer)
        };
        {
            let mut locked = engine.lock();
            let mut ep = Hub::new_ep(bindings());
            ep.express = Some(line.clone());
            assert!(ep.transmit.take(peer), "the only credit, for a permit");
            locked.hub.eps.insert(ep);
        }
        let posted = Arc::new(AtomicU32::new(0));
        let first = thread::spawn({
            let (engine, posted) = (engine.clone(), posted.clone());
            move || {
                let mut locked = engine.lock();
                let waits =
                    locked.queue_send(EP, message(1), Vec::new(), Route::Nobody, Credit::Wait);
                locked.finish();
                drop(locked);
                waits.expect("it may wait");
                posted.store(1, Ordering::Release);
            }
        });
        let second = thread::spawn({
            let (engine, line) = (engine.clone(), line.clone());
            move || {
                let told = posted.load(Ordering::Acquire) != 0;
                if told {
                    send(&engine, &line, message(2));
                }
                told
            }
        });
        let mut locked = engine.lock();
        locked.hub.release(EP, OpKind::Send, Some(peer));
        locked.finish();
        drop(locked);
        first.join().expect("it does not panic");
        let told = second.join().expect("it does not panic");
        let sent = lock(&line.sent).clone();
        assert!(
            sent.starts_with(&[1]),
            "the first was posted before: {sent:?}"
        );
        assert!(
            !told || sent.len() == 2 || engine.lock().hub.ops.len() > 0,
            "the second is nowhere: {sent:?}"
        );
    });
}
