//! A model of the fast path: a send over it never overtakes an operation that waits for a credit.
//!
//! Three threads: the first posts a message that has to wait, and announces it; the second sends
//! another message after the announcement, over the fast path if that is open; the third returns
//! the credit, so that the first message is granted. The engine and its credits are real. The
//! connection is a list of the messages that were sent over it, and its fast path is blocked and
//! unblocked like that of `transport::shm::connection_table`.

use std::sync::Arc;

use fabric_core::av::AddressTable;
use fabric_core::buf::Payload;
use fabric_core::completion::OpKind;
use fabric_core::transport::{BlockableFastPath, EpId, FastPath, FastPathResult, TxOp};
use loom::thread;

use super::mock_transport::MockConnection;
use crate::engine::driver_phase::DriverKind;
use crate::engine::progress::Engine;
use crate::engine::state::ops::{CompletionTarget, CreditMode};
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};
use fabric_core::transport::{ThreadMode, WaitPolicy};

const ENDPOINT: EpId = EpId(0);

/// A connection without a queue: a message that is given to it has been sent.
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

    pub(super) fn send(&self, tx_op: &TxOp) {
        lock(&self.sent).extend(tx_op.tag);
    }
}

impl FastPath for MockFastPath {
    fn try_send(&self, tx_op: &TxOp, _: Payload<'_>) -> FastPathResult {
        // SYNC: as in `ConnectionTable::try_inline`.
        if self.blocked.load(Ordering::Acquire) != 0 {
            return FastPathResult::WouldBlock;
        }
        self.send(tx_op);
        FastPathResult::Done
    }

    fn try_atomic(&self, _: &TxOp, _: &[u8], _: &mut [u8]) -> FastPathResult {
        FastPathResult::WouldBlock
    }
}

impl BlockableFastPath for MockFastPath {
    fn set_blocked(&self, blocked: bool) {
        // SYNC: as in `ConnectionTable::set_blocked`.
        self.blocked.store(blocked.into(), Ordering::Release);
    }
}

/// Posts a message as `fabric_async` does: over the fast path, or else through the domain.
fn send_or_queue(engine: &Engine, connection: &MockFastPath, tx_op: TxOp) {
    if connection.try_send(&tx_op, Payload::Contiguous(&[])) != FastPathResult::WouldBlock {
        return;
    }
    let mut locked = engine.lock();
    let result = locked.queue_send(
        ENDPOINT,
        tx_op,
        Vec::new(),
        CompletionTarget::Discard,
        CreditMode::Wait,
    );
    locked.finish();
    drop(locked);
    result.expect("operation may wait for a credit");
}

#[test]
fn fast_path_send_does_not_overtake_queued_sends() {
    loom::model(|| {
        let connection = Arc::new(MockFastPath::new());
        let (_mock, engine) = MockConnection::engine_with(
            ThreadMode::Shared,
            WaitPolicy::Spin,
            DriverKind::Task,
            Some(connection.clone()),
        );
        let peer = AddressTable::new().insert("shm://peer".parse().expect("valid address"));
        let message = move |tag| TxOp {
            tag: Some(tag),
            ..TxOp::new(OpKind::Send, peer)
        };
        {
            let mut locked = engine.lock();
            let ep = locked.domain.endpoints.get_open(ENDPOINT);
            let ep = ep.expect("the mock has opened it");
            ep.tx_credits.set_fast_path(Some(connection.clone()));
            assert!(ep.tx_credits.try_acquire(peer), "the only credit is free");
        }
        let posted = Arc::new(AtomicU32::new(0));
        let first = thread::spawn({
            let (engine, posted) = (engine.clone(), posted.clone());
            move || {
                let mut locked = engine.lock();
                let result = locked.queue_send(
                    ENDPOINT,
                    message(1),
                    Vec::new(),
                    CompletionTarget::Discard,
                    CreditMode::Wait,
                );
                locked.finish();
                drop(locked);
                result.expect("operation may wait for a credit");
                posted.store(1, Ordering::Release);
            }
        });
        let second = thread::spawn({
            let (engine, connection) = (engine.clone(), connection.clone());
            move || {
                let announced = posted.load(Ordering::Acquire) != 0;
                if announced {
                    send_or_queue(&engine, &connection, message(2));
                }
                announced
            }
        });
        let mut locked = engine.lock();
        locked
            .domain
            .release_credit(ENDPOINT, OpKind::Send, Some(peer));
        locked.finish();
        drop(locked);
        first.join().expect("first sender panicked");
        let announced = second.join().expect("second sender panicked");
        let sent = lock(&connection.sent).clone();
        assert!(
            sent.starts_with(&[1]),
            "the second message overtook the first: {sent:?}"
        );
        assert!(
            !announced || sent.len() == 2 || engine.lock().domain.ops.len() > 0,
            "the second message was lost: {sent:?}"
        );
    });
}
