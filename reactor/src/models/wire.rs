//! A provider reduced to what progress depends on: messages that arrive, receives that wait, a
//! doorbell.

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_core::buf::{AnyBuf, Payload, PooledBuf};
use fabric_core::completion::{OpKind, Outcome, Transfer};
use fabric_core::info::{Info, Progress};
use fabric_core::matching::{Envelope, RecvSpec};
use fabric_core::provider::{EpId, Host, OpKey, ProviderDomain, SendNow, SendSpec};
use fabric_core::rx::Receiving;
use fabric_core::{Address, FiAddr, Result};

use super::PollSet;
use super::overtaking::Line;
use crate::engine::Engine;
use crate::ops::{Op, Route};
use crate::sync::{AtomicU32, Ordering, fence};
use crate::wait::WaitPolicy;

/// What a peer and the provider share: the same handshake as a ring's, around a count instead of
/// records.
///
/// `armed` is only ever swapped. Loom does not order a plain store behind the swap of another
/// thread that it came after, and would report a flag as lost that no machine loses.
pub(super) struct Wire {
    arrived: AtomicU32,
    armed: AtomicU32,
    set: Arc<PollSet>,
}

impl Wire {
    /// A domain on such a wire.
    pub(super) fn engine(policy: WaitPolicy, progress: Progress) -> (Arc<Self>, Arc<Engine>) {
        Self::engine_with(policy, progress, None)
    }

    /// Likewise, with a line for what is sent.
    pub(super) fn engine_with(
        policy: WaitPolicy,
        progress: Progress,
        line: Option<Arc<Line>>,
    ) -> (Arc<Self>, Arc<Engine>) {
        let set = Arc::new(PollSet::new().expect("nothing can fail"));
        let wire = Self {
            arrived: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            set: set.clone(),
        };
        let wire = Arc::new(wire);
        let provider = WireDomain {
            wire: wire.clone(),
            taken: 0,
            posted: VecDeque::new(),
            line,
        };
        (
            wire,
            Arc::new(Engine::new(Box::new(provider), set, policy, progress)),
        )
    }

    /// The peer sends a message.
    pub(super) fn send(&self) {
        self.arrived.fetch_add(1, Ordering::Release);
        // SYNC: pairs with the fence in `WireDomain::arm`.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) != 0 && self.armed.swap(0, Ordering::Relaxed) != 0 {
            self.set.ring(0);
        }
    }
}

/// Posts an operation whose completion its future hears of.
pub(super) fn post(engine: &Engine, kind: OpKind) -> OpKey {
    let mut locked = engine.lock();
    let key = locked
        .hub
        .ops
        .insert(Op::new(EpId(0), kind, Route::Future, AnyBuf::None));
    if kind == OpKind::Recv {
        let state = &mut *locked;
        state.provider.post_recv(
            &mut state.hub,
            EpId(0),
            key,
            RecvSpec {
                from: None,
                tag: None,
            },
        );
    }
    locked.finish();
    key
}

struct WireDomain {
    wire: Arc<Wire>,
    taken: u32,
    posted: VecDeque<OpKey>,
    line: Option<Arc<Line>>,
}

impl ProviderDomain for WireDomain {
    fn open_endpoint(
        &mut self,
        _: EpId,
        _: &Info,
        _: Option<&Address>,
        _: Receiving<'_>,
    ) -> Result<Address> {
        unreachable!("a model has no endpoints")
    }

    fn close_endpoint(&mut self, _: &mut dyn Host, _: EpId) {}

    fn send_now(
        &mut self,
        _: &mut dyn Host,
        _: EpId,
        _: &SendSpec,
        _: Payload<'_>,
    ) -> Result<SendNow> {
        Ok(SendNow::Done)
    }

    fn queue_send(&mut self, _: &mut dyn Host, _: EpId, _: OpKey, spec: &SendSpec) -> Result<()> {
        self.line.iter().for_each(|line| line.send(spec));
        Ok(())
    }

    fn post_recv(&mut self, _: &mut dyn Host, _: EpId, op: OpKey, _: RecvSpec) {
        self.posted.push_back(op);
    }

    fn cancel(&mut self, _: &mut dyn Host, _: EpId, _: OpKey) -> bool {
        false
    }

    /// Leaves the name behind: a provider that completes it later must reach nobody.
    fn abandon_recv(&mut self, _: &mut dyn Host, _: EpId, _: OpKey) {}

    fn put_back(&mut self, _: &mut dyn Host, _: EpId, _: Envelope, _: PooledBuf) {}

    fn address_inserted(&mut self, _: &mut dyn Host, _: EpId, _: FiAddr, _: &Address) {}

    fn address_removed(&mut self, _: &mut dyn Host, _: EpId, _: FiAddr) {}

    fn holds(&self, _: EpId, _: FiAddr) -> bool {
        false
    }

    fn progress(&mut self, host: &mut dyn Host) -> bool {
        if self.wire.arrived.load(Ordering::Acquire) == self.taken {
            return false;
        }
        let Some(op) = self.posted.pop_front() else {
            return false;
        };
        self.taken += 1;
        host.complete(op, Outcome::ok(Transfer::default()));
        true
    }

    fn ready(&mut self, _: &mut dyn Host, _: u64) {}

    fn arm(&mut self) -> bool {
        self.wire.armed.swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Wire::send`.
        fence(Ordering::SeqCst);
        let quiet =
            self.wire.arrived.load(Ordering::Relaxed) == self.taken || self.posted.is_empty();
        if !quiet {
            self.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        self.wire.armed.swap(0, Ordering::Relaxed);
    }

    fn describe(&self) -> String {
        "wire".into()
    }
}
