//! A transport reduced to what progress depends on: arriving messages of one byte, which is their
//! number from 1 on, and a doorbell.

use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload};
use fabric_core::completion::OpKind;
use fabric_core::info::Info;
use fabric_core::matching::{Envelope, PeerKey, RecvSpec};
use fabric_core::transport::{
    EndpointContext, EpId, MessageModel, ModelSettings, OpKey, TransportDomain, TransportEndpoint,
    TrySend, TxOp, WaitToken,
};
use fabric_core::{Address, FiAddr, Result};

use super::EpollSet;
use super::fast_path_order::MockFastPath;
use crate::engine::driver_phase::DriverKind;
use crate::engine::endpoint_table::EngineTransportEndpoint;
use crate::engine::progress::Engine;
use crate::engine::state::bindings::{AvId, Bindings};
use crate::engine::state::domain_state::DomainState;
use crate::engine::state::ops::{CompletionTarget, CreditMode, OpState};
use crate::engine::state::regions::SharedRegions;
use crate::engine::wait_policy::WaitRules;
use crate::sys::sync::{AtomicU32, Ordering, fence};
use crate::sys::thread_lock::DomainLockMode;
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
    pub(super) fn engine(policy: WaitPolicy, driver: DriverKind) -> (Arc<Self>, Arc<Engine>) {
        Self::engine_with(ThreadMode::Shared, policy, driver, None)
    }

    /// Creates a domain over a mock connection, which passes sends to `fast_path`.
    pub(super) fn engine_with(
        mode: ThreadMode,
        policy: WaitPolicy,
        driver_kind: DriverKind,
        fast_path: Option<Arc<MockFastPath>>,
    ) -> (Arc<Self>, Arc<Engine>) {
        let wait_set = Arc::new(EpollSet::new().expect("the mock set cannot fail"));
        let connection = Self {
            arrived: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            wait_set: wait_set.clone(),
        };
        let connection = Arc::new(connection);
        let settings = ModelSettings::of(MessageModel::Default);
        let lock_mode = DomainLockMode::new(mode);
        let engine = Engine::new(
            Box::new(MockDomain),
            wait_set,
            WaitRules::new(policy, &settings).expect("the model reserves no core"),
            settings.sends_at_once(),
            driver_kind,
            lock_mode,
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

/// The receives of the models.
pub(super) const ANY_UNTAGGED: RecvSpec = RecvSpec {
    from: None,
    tag: None,
};

/// Posts a receive of one byte that completes to its future.
pub(super) fn post_recv(engine: &Engine) -> OpKey {
    let mut locked = engine.lock();
    let (target, credit) = (CompletionTarget::Future, CreditMode::Wait);
    let buf = Vec::with_capacity(1);
    let posted = locked.recv(EpId(0), ANY_UNTAGGED, buf, target, credit);
    locked.finish();
    posted.expect("the endpoint is open")
}

/// Adds an operation that completes to its future, and that only the model ends.
pub(super) fn add_op(engine: &Engine, kind: OpKind) -> OpKey {
    let mut locked = engine.lock();
    let op = OpState::new(EpId(0), kind, CompletionTarget::Future, AnyBuf::None);
    let key = locked.domain.ops.insert(op);
    locked.finish();
    key
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
    /// The number of messages that were received.
    taken: u32,
    fast_path: Option<Arc<MockFastPath>>,
}

impl MockEndpoint {
    fn has_message(&self) -> bool {
        self.connection.arrived.load(Ordering::Acquire) != self.taken
    }
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

    /// Delivers a message. Messages without a receive stay in the connection.
    fn progress(&mut self, ctx: &mut MockContext<'_>, _: usize) -> u32 {
        if !self.has_message() || !ctx.has_posted() {
            return 0;
        }
        self.taken += 1;
        let envelope = Envelope {
            peer: PeerKey::default(),
            source: None,
            tag: None,
            len: 1,
            data: None,
            arrival: 0,
            ack: None,
        };
        let message = [self.taken as u8];
        assert!(ctx.deliver(envelope, &&message[..]), "a receive is posted");
        1
    }

    fn try_recv(
        &mut self,
        _: Option<FiAddr>,
        _: usize,
        into: &mut AnyBuf,
    ) -> Option<(usize, Option<FiAddr>)> {
        if !self.has_message() {
            return None;
        }
        self.taken += 1;
        let message = [self.taken as u8];
        assert!(into.receive_whole(&&message[..]), "the buffer has a byte");
        Some((1, None))
    }

    fn ready(&mut self, _: &mut MockContext<'_>, _: WaitToken) {}

    fn arm(&mut self, ctx: &mut MockContext<'_>) -> bool {
        self.connection.armed.swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `MockConnection::send`.
        fence(Ordering::SeqCst);
        let is_empty =
            self.connection.arrived.load(Ordering::Relaxed) == self.taken || !ctx.has_posted();
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
