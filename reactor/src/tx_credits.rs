//! Transmit credits: how many sends an endpoint may have under way, in all and to one peer, and who
//! waits for more.

use std::collections::{HashMap, VecDeque};

use fabric_core::FiAddr;
use fabric_core::transport::OpKey;

/// The transmit side of one endpoint. One slow peer can take its own share of the credits, not all
/// of them.
#[derive(Debug)]
pub(crate) struct TxCredits {
    free: usize,
    per_peer_limit: usize,
    used: HashMap<FiAddr, usize>,
    waiters: VecDeque<CreditWaiter>,
    /// How many of them are fenced.
    fences: usize,
}

/// Somebody who waits for a credit, or for the end of what was posted before.
#[derive(Clone, Copy, Debug)]
struct CreditWaiter {
    op: OpKey,
    peer: FiAddr,
    /// It has a message to send; otherwise it only reserves.
    is_message: bool,
    fence: Option<FencedOp>,
}

/// An operation that lets nothing overlap with what was posted before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FencedOp {
    /// It has a credit already.
    pub(crate) has_credit: bool,
}

impl TxCredits {
    /// `size` credits in all; a quarter of them, at least one, for any single peer.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            free: size,
            per_peer_limit: (size / 4).max(1),
            used: HashMap::new(),
            waiters: VecDeque::new(),
            fences: 0,
        }
    }

    /// Whether somebody already waits to send to this peer: whoever comes now is behind them.
    pub(crate) fn has_waiter_for(&self, peer: FiAddr) -> bool {
        !self.waiters.is_empty() && self.waiters.iter().any(|waiting| waiting.peer == peer)
    }

    /// Whether a message to this peer waits: one that is posted now must not overtake it.
    pub(crate) fn has_queued_message_for(&self, peer: FiAddr) -> bool {
        self.waiters
            .iter()
            .any(|waiting| waiting.is_message && waiting.peer == peer)
    }

    /// Takes a credit, unless there is none or others wait for it.
    pub(crate) fn try_acquire(&mut self, peer: FiAddr) -> bool {
        !self.has_waiter_for(peer) && self.try_grant(peer)
    }

    /// Gives a credit back.
    pub(crate) fn release(&mut self, peer: FiAddr) {
        self.free += 1;
        if let Some(used) = self.used.get_mut(&peer) {
            *used -= 1;
            if *used == 0 {
                self.used.remove(&peer);
            }
        }
    }

    /// Takes a credit back that was just given.
    pub(crate) fn reacquire(&mut self, peer: FiAddr) {
        self.free = self.free.saturating_sub(1);
        *self.used.entry(peer).or_insert(0) += 1;
    }

    /// Queues for a credit.
    pub(crate) fn enqueue(&mut self, op: OpKey, peer: FiAddr, message: bool) {
        self.waiters.push_back(CreditWaiter {
            op,
            peer,
            is_message: message,
            fence: None,
        });
    }

    /// Queues until everything before it has ended, and for a credit if it has none.
    pub(crate) fn enqueue_fenced(&mut self, op: OpKey, peer: FiAddr, fence: FencedOp) {
        self.fences += 1;
        self.waiters.push_back(CreditWaiter {
            op,
            peer,
            is_message: true,
            fence: Some(fence),
        });
    }

    /// Leaves the queue.
    pub(crate) fn remove(&mut self, op: OpKey) {
        self.waiters.retain(|waiting| waiting.op != op);
        self.fences = self
            .waiters
            .iter()
            .filter(|waiting| waiting.fence.is_some())
            .count();
    }

    /// The next in the queue that can have a credit, which is taken for it. Order is kept per peer.
    /// One that is fenced goes when nothing is under way to its peer.
    pub(crate) fn next_ready(&mut self, under_way: impl Fn(FiAddr) -> bool) -> Option<OpKey> {
        if self.free == 0 && self.fences == 0 {
            return None;
        }
        let at = (0..self.waiters.len()).find(|&at| self.is_ready(at, &under_way))?;
        let next = self.waiters.remove(at)?;
        self.fences -= usize::from(next.fence.is_some());
        if !next.fence.is_some_and(|fence| fence.has_credit) {
            self.try_grant(next.peer);
        }
        Some(next.op)
    }

    fn is_ready(&self, at: usize, under_way: &impl Fn(FiAddr) -> bool) -> bool {
        let CreditWaiter { peer, fence, .. } = self.waiters[at];
        let has_credit =
            || self.free > 0 && self.used.get(&peer).copied().unwrap_or(0) < self.per_peer_limit;
        if self.fences > 0 && self.waiters.range(..at).any(|before| before.peer == peer) {
            return false;
        }
        match fence {
            None => has_credit(),
            Some(fence) => (fence.has_credit || has_credit()) && !under_way(peer),
        }
    }

    /// Everybody who waits, when the endpoint closes.
    pub(crate) fn drain(&mut self) -> Vec<OpKey> {
        self.fences = 0;
        self.waiters.drain(..).map(|waiting| waiting.op).collect()
    }

    pub(crate) fn has_no_waiters(&self) -> bool {
        self.waiters.is_empty()
    }

    fn try_grant(&mut self, peer: FiAddr) -> bool {
        if self.free == 0
            || self
                .used
                .get(&peer)
                .is_some_and(|used| *used >= self.per_peer_limit)
        {
            return false;
        }
        self.reacquire(peer);
        true
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
        let mut transmit = TxCredits::new(8);
        assert!(transmit.try_acquire(slow) && transmit.try_acquire(slow));
        assert!(!transmit.try_acquire(slow), "a quarter of eight");
        transmit.enqueue(op(1), slow, true);
        transmit.enqueue(op(2), slow, true);
        transmit.enqueue(op(3), other, true);
        assert_eq!(
            transmit.next_ready(|_| false),
            Some(op(3)),
            "the other peer goes ahead"
        );
        assert_eq!(transmit.next_ready(|_| false), None);
        transmit.release(slow);
        assert!(!transmit.try_acquire(slow), "nobody overtakes the queue");
        assert_eq!(transmit.next_ready(|_| false), Some(op(1)));
        transmit.remove(op(2));
        transmit.release(slow);
        assert_eq!(transmit.next_ready(|_| false), None);
        assert!(transmit.try_acquire(slow) && transmit.has_no_waiters());
    }

    #[test]
    fn fenced_op_waits_for_earlier_ops_and_is_not_overtaken() {
        let mut table = AddressTable::new();
        let [peer, other] = ["shm://a", "shm://b"].map(|text| table.insert(text.parse().unwrap()));
        let op = |index| OpKey {
            index,
            generation: 0,
        };
        let mut transmit = TxCredits::new(8);
        assert!(transmit.try_acquire(peer) && transmit.try_acquire(peer));
        transmit.enqueue_fenced(op(1), peer, FencedOp { has_credit: true });
        assert!(!transmit.try_acquire(peer), "it would overtake the fence");
        transmit.enqueue(op(2), peer, true);
        transmit.enqueue_fenced(op(3), other, FencedOp { has_credit: false });
        let busy = |busy: bool| move |address| busy && address == peer;
        assert_eq!(
            transmit.next_ready(busy(true)),
            Some(op(3)),
            "nothing is under way to the other"
        );
        assert_eq!(transmit.next_ready(busy(true)), None);
        transmit.release(peer);
        assert_eq!(
            transmit.next_ready(busy(true)),
            None,
            "a credit alone does not lift a fence"
        );
        assert_eq!(transmit.next_ready(busy(false)), Some(op(1)));
        assert_eq!(
            transmit.next_ready(busy(true)),
            Some(op(2)),
            "behind the fence nothing is fenced"
        );
        transmit.enqueue_fenced(op(4), peer, FencedOp { has_credit: false });
        transmit.remove(op(4));
        assert!(transmit.has_no_waiters() && transmit.next_ready(busy(false)).is_none());
    }
}
