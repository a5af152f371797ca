//! A transport reduced to what progress depends on: arriving messages, waiting receives, a
//! doorbell.

use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::info::{Info, Progress};
use fabric_core::transport::{
    EndpointContext, EpId, MessageModel, OpKey, TransportDomain, TransportEndpoint, TrySend, TxOp,
    WaitToken,
};
use fabric_core::{Address, Result};

use super::EpollSet;
use super::fast_path_order::MockFastPath;
use crate::engine::endpoint_table::EngineTransportEndpoint;
use crate::engine::progress::Engine;
use crate::engine::state::bindings::{AvId, Bindings};
use crate::engine::state::domain_state::DomainState;
use crate::engine::state::ops::{CompletionTarget, OpPhase, OpState};
use crate::engine::state::regions::SharedRegions;
use crate::sys::sync::{AtomicU32, Ordering, fence};
use crate::sys::thread_lock::Owner;
use fabric_core::transport::{ThreadMode, WaitPolicy};

type MockContext<'a> = EndpointContext<'a, DomainState>;

/// The state that a peer and the transport share: the same flag protocol as a ring's, around a
/// count instead of records.
///
/// `armed` is only ever swapped. Loom does not order a plain store after the swap of another thread
/// that it came after, and would report a lost flag that no machine loses.
pub(super) struct MockConnection {
    arrived: AtomicU32,
    armed: AtomicU32,
    wait_set: Arc<EpollSet>,
}

impl MockConnection {
    /// Creates a domain with an endpoint over a mock connection.
    pub(super) fn engine(policy: WaitPolicy, progress: Progress) -> (Arc<Self>, Arc<Engine>) {
        Self::engine_with(ThreadMode::Shared, policy, progress, None)
    }

    /// Creates a domain over a mock connection, which passes sends to `fast_path`.
    pub(super) fn engine_with(
        mode: ThreadMode,
        policy: WaitPolicy,
        progress: Progress,
        fast_path: Option<Arc<MockFastPath>>,
    ) -> (Arc<Self>, Arc<Engine>) {
        let wait_set = Arc::new(EpollSet::new().expect("the mock set cannot fail"));
        let connection = Self {
            arrived: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            wait_set: wait_set.clone(),
        };
        let connection = Arc::new(connection);
        let owner = Owner::new(mode);
        let engine = Engine::new(
            Box::new(MockDomain),
            wait_set,
            (policy, MessageModel::Default),
            None,
            progress,
            owner,
            SharedRegions::default(),
        );
        let mut locked = engine.lock();
        let bindings = Bindings::for_tests(AvId(0));
        let id = locked.insert_endpoint(bindings).expect("no shared context");
        let endpoint = MockEndpoint {
            connection: connection.clone(),
            taken: 0,
            fast_path,
        };
        locked.endpoints.attach(id, Box::new(endpoint));
        drop(locked);
        (connection, Arc::new(engine))
    }

    /// Sends a message as the peer.
    pub(super) fn send(&self) {
        self.arrived.fetch_add(1, Ordering::Release);
        // SYNC: pairs with the fence in `MockEndpoint::arm`.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) != 0 && self.armed.swap(0, Ordering::Relaxed) != 0 {
            self.wait_set.ring_doorbell(0);
        }
    }
}

/// Posts an operation that completes to its future.
pub(super) fn post_op(engine: &Engine, kind: OpKind) -> OpKey {
    let mut locked = engine.lock();
    let op = OpState::new(EpId(0), kind, CompletionTarget::Future, AnyBuf::None);
    let key = locked.domain.ops.insert(op);
    locked.finish();
    key
}

/// Returns the oldest receive that waits for a message. A model has no receive queue: the receives
/// are found among the operations.
fn oldest_recv(domain: &DomainState) -> Option<OpKey> {
    let is_waiting = |op: &OpState| op.kind == OpKind::Recv && op.phase() == OpPhase::Executing;
    let mut posted = domain.ops.keys_where(is_waiting);
    domain.ops.sort_by_age(&mut posted);
    posted.first().copied()
}

/// A domain whose endpoint the model attaches.
struct MockDomain;

impl TransportDomain<DomainState> for MockDomain {
    fn open_endpoint(
        &mut self,
        _: &mut MockContext<'_>,
        _: &Info,
        _: Option<&Address>,
    ) -> Result<(Box<EngineTransportEndpoint>, Address)> {
        unreachable!("a model attaches its endpoint")
    }

    fn unexpected_budget(&self) -> usize {
        0
    }

    fn describe(&self) -> String {
        "mock".into()
    }
}

struct MockEndpoint {
    connection: Arc<MockConnection>,
    taken: u32,
    fast_path: Option<Arc<MockFastPath>>,
}

impl TransportEndpoint<DomainState> for MockEndpoint {
    fn try_send(&mut self, _: &mut MockContext<'_>, _: &TxOp, _: Payload<'_>) -> Result<TrySend> {
        Ok(TrySend::Done)
    }

    fn queue_send(&mut self, _: &mut MockContext<'_>, _: OpKey, tx_op: &TxOp) -> Result<()> {
        self.fast_path
            .iter()
            .for_each(|fast_path| fast_path.send(tx_op));
        Ok(())
    }

    fn progress(&mut self, ctx: &mut MockContext<'_>, _: usize) -> u32 {
        if self.connection.arrived.load(Ordering::Acquire) == self.taken {
            return 0;
        }
        let Some(op) = oldest_recv(ctx.engine()) else {
            return 0;
        };
        self.taken += 1;
        ctx.complete(op, Outcome::ok(Transfer::default()));
        1
    }

    fn ready(&mut self, _: &mut MockContext<'_>, _: WaitToken) {}

    fn arm(&mut self, ctx: &mut MockContext<'_>) -> bool {
        self.connection.armed.swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `MockConnection::send`.
        fence(Ordering::SeqCst);
        let is_empty = self.connection.arrived.load(Ordering::Relaxed) == self.taken
            || oldest_recv(ctx.engine()).is_none();
        if !is_empty {
            self.connection.armed.swap(0, Ordering::Relaxed);
        }
        is_empty
    }

    fn disarm(&mut self) {
        self.connection.armed.swap(0, Ordering::Relaxed);
    }

    fn close(&mut self, _: &mut MockContext<'_>) {}

    fn describe(&self) -> String {
        "mock".into()
    }
}
