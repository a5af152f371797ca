//! Transmit credits: how many operations an endpoint may have under way, in all and to one peer,
//! and the operations that wait for more.
//!
//! Operations wait in posting order. A fenced operation (`FI_FENCE`) waits in the same queue, with
//! or without its credit, until no operation to its peer is under way. Operations to that peer that
//! are posted later wait behind it. So transports need not implement fences.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use fabric_core::transport::{BlockableFastPath, OpKey};
use fabric_core::{FiAddr, Resource};

/// The transmit credits of one endpoint. A slow peer can use up its own share of the credits, but
/// not all of them.
///
/// While operations wait, the fast path of the endpoint is blocked, so that no operation overtakes
/// them.
pub(crate) struct TxCredits {
    free: usize,
    per_peer_limit: usize,
    used: HashMap<FiAddr, usize>,
    waiters: VecDeque<CreditWaiter>,
    /// The number of waiters that are fenced.
    fences: usize,
    /// Executes operations without the domain's lock, if the transport offers it.
    fast_path: Option<Arc<dyn BlockableFastPath>>,
}

/// An operation or permit that waits for a credit, or a fenced operation that waits for earlier
/// ones to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditWaiter {
    pub(crate) op: OpKey,
    pub(crate) peer: FiAddr,
    pub(crate) awaits: AwaitedGrant,
}

/// What a [`CreditWaiter`] waits for. A fenced operation (`FI_FENCE`) must not overlap with earlier
/// operations to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedGrant {
    /// A permit waits for a credit.
    Permit,
    /// An operation waits for a credit.
    Credit,
    /// A fenced operation waits for a credit, and for the end of earlier operations.
    CreditAndFence,
    /// A fenced operation that has its credit waits for the end of earlier operations.
    Fence,
}

impl CreditWaiter {
    fn is_fenced(&self) -> bool {
        matches!(
            self.awaits,
            AwaitedGrant::CreditAndFence | AwaitedGrant::Fence
        )
    }

    fn has_credit(&self) -> bool {
        self.awaits == AwaitedGrant::Fence
    }
}

impl TxCredits {
    /// Creates `size` credits; a quarter of them, at least one, can be used for one peer.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            free: size,
            per_peer_limit: (size / 4).max(1),
            used: HashMap::new(),
            waiters: VecDeque::new(),
            fences: 0,
            fast_path: None,
        }
    }

    pub(crate) fn set_fast_path(&mut self, fast_path: Option<Arc<dyn BlockableFastPath>>) {
        self.fast_path = fast_path;
    }

    pub(crate) fn fast_path(&self) -> Option<&Arc<dyn BlockableFastPath>> {
        self.fast_path.as_ref()
    }

    fn update_fast_path(&self) {
        if let Some(fast_path) = &self.fast_path {
            fast_path.set_blocked(!self.waiters.is_empty());
        }
    }

    /// Returns whether a waiter for this peer exists, behind which later operations have to wait.
    pub(crate) fn has_waiter_for(&self, peer: FiAddr) -> bool {
        !self.waiters.is_empty() && self.waiters.iter().any(|waiter| waiter.peer == peer)
    }

    /// Returns whether a message to this peer waits, which a later message must not overtake.
    pub(crate) fn has_queued_message_for(&self, peer: FiAddr) -> bool {
        self.waiters
            .iter()
            .any(|waiter| waiter.awaits != AwaitedGrant::Permit && waiter.peer == peer)
    }

    /// Takes a credit, unless none is free, the peer has its share, or another operation for the
    /// peer waits for one.
    pub(crate) fn try_acquire(&mut self, peer: FiAddr) -> bool {
        let is_granted = !self.has_waiter_for(peer) && self.has_free_credit_for(peer);
        if is_granted {
            self.reacquire(peer);
        }
        is_granted
    }

    /// Returns the operations and permits that wait.
    pub(crate) fn waiting_ops(&self) -> impl Iterator<Item = OpKey> {
        self.waiters.iter().map(|waiter| waiter.op)
    }

    /// Returns the peers for whose operations credits are used: as many as credits at most.
    pub(crate) fn peers_in_use(&self) -> impl Iterator<Item = FiAddr> {
        self.used.keys().copied()
    }

    /// Describes what a post to this peer lacks.
    pub(crate) fn shortage(&self, peer: FiAddr) -> Resource {
        Resource::TransmitCredit {
            peer,
            in_use: self.used.get(&peer).copied().unwrap_or(0),
            peer_limit: self.per_peer_limit,
            free: self.free,
        }
    }

    /// Releases a credit.
    pub(crate) fn release(&mut self, peer: FiAddr) {
        self.free += 1;
        if let Some(used) = self.used.get_mut(&peer) {
            *used -= 1;
            if *used == 0 {
                self.used.remove(&peer);
            }
        }
    }

    /// Takes a credit: one that is free, or again one that was just released.
    pub(crate) fn reacquire(&mut self, peer: FiAddr) {
        self.free = self.free.saturating_sub(1);
        *self.used.entry(peer).or_insert(0) += 1;
    }

    /// Queues an operation or a permit for a credit. A fenced operation also waits until all
    /// earlier ones to its peer have ended.
    pub(crate) fn enqueue(&mut self, waiter: CreditWaiter) {
        self.fences += usize::from(waiter.is_fenced());
        self.waiters.push_back(waiter);
        self.update_fast_path();
    }

    /// Removes a waiter from the queue.
    pub(crate) fn remove(&mut self, op: OpKey) {
        self.waiters.retain(|waiter| waiter.op != op);
        let fenced = self.waiters.iter().filter(|waiter| waiter.is_fenced());
        self.fences = fenced.count();
        self.update_fast_path();
    }

    /// Removes and returns the next waiter that can have a credit, and takes the credit for it.
    /// Order is kept per peer. A fenced waiter is next when no operation to its peer is under way.
    ///
    /// If there is none, the caller has queued all earlier ones in the transport. Only then is the
    /// fast path unblocked, unless others wait.
    pub(crate) fn next_ready(&mut self, has_executing: impl Fn(FiAddr) -> bool) -> Option<OpKey> {
        let index = (self.free > 0 || self.fences > 0)
            .then(|| (0..self.waiters.len()).find(|&index| self.is_ready(index, &has_executing)))
            .flatten();
        let Some(next) = index.and_then(|index| self.waiters.remove(index)) else {
            self.update_fast_path();
            return None;
        };
        self.fences -= usize::from(next.is_fenced());
        if !next.has_credit() {
            self.reacquire(next.peer);
        }
        Some(next.op)
    }

    fn is_ready(&self, index: usize, has_executing: &impl Fn(FiAddr) -> bool) -> bool {
        let waiter = self.waiters[index];
        let peer = waiter.peer;
        let mut earlier = self.waiters.range(..index);
        if self.fences > 0 && earlier.any(|earlier| earlier.peer == peer) {
            return false;
        }
        let has_credit = waiter.has_credit() || self.has_free_credit_for(peer);
        has_credit && !(waiter.is_fenced() && has_executing(peer))
    }

    /// Removes and returns all waiters, when the endpoint closes.
    pub(crate) fn drain(&mut self) -> Vec<OpKey> {
        self.fences = 0;
        self.waiters.drain(..).map(|waiter| waiter.op).collect()
    }

    pub(crate) fn has_no_waiters(&self) -> bool {
        self.waiters.is_empty()
    }

    fn has_free_credit_for(&self, peer: FiAddr) -> bool {
        self.free > 0 && self.used.get(&peer).copied().unwrap_or(0) < self.per_peer_limit
    }
}

impl fmt::Debug for TxCredits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxCredits")
            .field("free", &self.free)
            .field("waiters", &self.waiters)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::av::AddressTable;

    use super::*;

    #[test]
    fn credits_are_limited_per_peer_and_order_is_kept() {
        let mut table = AddressTable::new();
        let [slow, other] = ["shm://a", "shm://b"].map(|text| table.insert(text.parse().unwrap()));
        let op = |index| OpKey {
            index,
            generation: 0,
        };
        let waiter = |index, peer| CreditWaiter {
            op: op(index),
            peer,
            awaits: AwaitedGrant::Credit,
        };
        let mut credits = TxCredits::new(8);
        assert!(credits.try_acquire(slow) && credits.try_acquire(slow));
        assert!(
            !credits.try_acquire(slow),
            "one peer may use a quarter of 8 credits"
        );
        credits.enqueue(waiter(1, slow));
        credits.enqueue(waiter(2, slow));
        credits.enqueue(waiter(3, other));
        assert_eq!(
            credits.next_ready(|_| false),
            Some(op(3)),
            "the other peer has credits left"
        );
        assert_eq!(credits.next_ready(|_| false), None);
        credits.release(slow);
        assert!(
            !credits.try_acquire(slow),
            "a new operation must not overtake the queue"
        );
        assert_eq!(credits.next_ready(|_| false), Some(op(1)));
        credits.remove(op(2));
        credits.release(slow);
        assert_eq!(credits.next_ready(|_| false), None);
        assert!(credits.try_acquire(slow) && credits.has_no_waiters());
    }

    #[test]
    fn fenced_op_waits_for_earlier_ops_and_is_not_overtaken() {
        let mut table = AddressTable::new();
        let [peer, other] = ["shm://a", "shm://b"].map(|text| table.insert(text.parse().unwrap()));
        let op = |index| OpKey {
            index,
            generation: 0,
        };
        let waiter = |index, peer, awaits| CreditWaiter {
            op: op(index),
            peer,
            awaits,
        };
        let mut credits = TxCredits::new(8);
        assert!(credits.try_acquire(peer) && credits.try_acquire(peer));
        credits.enqueue(waiter(1, peer, AwaitedGrant::Fence));
        assert!(
            !credits.try_acquire(peer),
            "a new operation must not overtake the fence"
        );
        credits.enqueue(waiter(2, peer, AwaitedGrant::Credit));
        credits.enqueue(waiter(3, other, AwaitedGrant::CreditAndFence));
        let busy = |busy: bool| move |address| busy && address == peer;
        assert_eq!(
            credits.next_ready(busy(true)),
            Some(op(3)),
            "no operation to the other peer is under way"
        );
        assert_eq!(credits.next_ready(busy(true)), None);
        credits.release(peer);
        assert_eq!(
            credits.next_ready(busy(true)),
            None,
            "a credit alone does not lift a fence"
        );
        assert_eq!(credits.next_ready(busy(false)), Some(op(1)));
        assert_eq!(
            credits.next_ready(busy(true)),
            Some(op(2)),
            "an operation behind the fence is not fenced itself"
        );
        credits.enqueue(waiter(4, peer, AwaitedGrant::CreditAndFence));
        credits.remove(op(4));
        assert!(credits.has_no_waiters() && credits.next_ready(busy(false)).is_none());
    }
}
