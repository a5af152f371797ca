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
use fabric_core::transport::{EpId, FastPath, FastPathResult, TxOp};
use loom::thread;

use super::mock_transport::MockConnection;
use crate::domain_state::{AvId, Bindings, Counters, DomainState};
use crate::engine::Engine;
use crate::ops::{CompletionTarget, CreditMode};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::wait::WaitPolicy;

const ENDPOINT: EpId = EpId(0);

/// A connection without a queue: what is given to it has been sent.
pub(super) struct MockFastPath {
    blocked: AtomicU32,
    sent: Mutex<Vec<u64>>,
}

impl MockFastPath {
    pub(super) fn new() -> Self {
        Self {
            blocked: AtomicU32::new(0),
            sent: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn send(&self, spec: &TxOp) {
        lock(&self.sent).extend(spec.tag);
    }
}

impl FastPath for MockFastPath {
    fn try_send(&self, spec: &TxOp, _: Payload<'_>) -> FastPathResult {
        // SYNC: as in `ConnectionTable::try_now`.
        if self.blocked.load(Ordering::Acquire) != 0 {
            return FastPathResult::WouldBlock;
        }
        self.send(spec);
        FastPathResult::Done
    }

    fn try_atomic(&self, _: &TxOp, _: &[u8], _: &mut [u8]) -> FastPathResult {
        FastPathResult::WouldBlock
    }

    fn set_blocked(&self, held: bool) {
        // SYNC: as in `ConnectionTable::hold`.
        self.blocked.store(held.into(), Ordering::Release);
    }
}

fn bindings() -> Bindings {
    Bindings {
        object_id: 0,
        context: 0,
        av: AvId(0),
        tx_cq: None,
        rx_cq: None,
        counters: Counters::default(),
        shared_rx: None,
        eq: None,
        tx_size: 1,
        rx_size: 1,
        max_msg_size: 1,
        inject_size: 1,
    }
}

/// Posts a message as `fabric_async` does: by the short way, or else by that over the domain.
fn send_or_queue(engine: &Engine, line: &MockFastPath, spec: TxOp) {
    if line.try_send(&spec, Payload::Contiguous(&[])) != FastPathResult::WouldBlock {
        return;
    }
    let mut locked = engine.lock();
    let posted = locked.queue_send(
        ENDPOINT,
        spec,
        Vec::new(),
        CompletionTarget::Discard,
        CreditMode::Wait,
    );
    locked.finish();
    drop(locked);
    posted.expect("it may wait");
}

#[test]
fn fast_path_send_does_not_overtake_queued_sends() {
    loom::model(|| {
        let line = Arc::new(MockFastPath::new());
        let (_wire, engine) =
            MockConnection::engine_with(WaitPolicy::Spin, Progress::Manual, Some(line.clone()));
        let peer = AddressTable::new().insert("shm://peer".parse().expect("an address"));
        let message = move |tag| TxOp {
            tag: Some(tag),
            ..TxOp::new(OpKind::Send, peer)
        };
        {
            let mut locked = engine.lock();
            let mut ep = DomainState::new_endpoint(bindings());
            ep.fast_path = Some(line.clone());
            assert!(
                ep.tx_credits.try_acquire(peer),
                "the only credit, for a permit"
            );
            locked.domain.endpoints.insert(ep);
        }
        let posted = Arc::new(AtomicU32::new(0));
        let first = thread::spawn({
            let (engine, posted) = (engine.clone(), posted.clone());
            move || {
                let mut locked = engine.lock();
                let waits = locked.queue_send(
                    ENDPOINT,
                    message(1),
                    Vec::new(),
                    CompletionTarget::Discard,
                    CreditMode::Wait,
                );
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
                    send_or_queue(&engine, &line, message(2));
                }
                told
            }
        });
        let mut locked = engine.lock();
        locked
            .domain
            .release_credit(ENDPOINT, OpKind::Send, Some(peer));
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
            !told || sent.len() == 2 || engine.lock().domain.ops.len() > 0,
            "the second is nowhere: {sent:?}"
        );
    });
}
