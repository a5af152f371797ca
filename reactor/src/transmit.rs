//! Transmit credits: how many sends an endpoint may have under way, in all and to one peer, and who
//! waits for more.

use std::collections::{HashMap, VecDeque};

use fabric_core::FiAddr;
use fabric_core::provider::OpKey;

/// The transmit side of one endpoint. One slow peer can take its own share of the credits, not all
/// of them.
#[derive(Debug)]
pub(crate) struct Transmit {
    free: usize,
    per_peer: usize,
    used: HashMap<FiAddr, usize>,
    waiting: VecDeque<Waiting>,
    /// How many of them are fenced.
    fences: usize,
}

/// Somebody who waits for a credit, or for the end of what was posted before.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    op: OpKey,
    peer: FiAddr,
    /// It has a message to send; otherwise it only reserves.
    message: bool,
    fence: Option<Fence>,
}

/// An operation that lets nothing overlap with what was posted before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence {
    /// It has a credit already.
    pub(crate) credit: bool,
}

impl Transmit {
    /// `size` credits in all; a quarter of them, at least one, for any single peer.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            free: size,
            per_peer: (size / 4).max(1),
            used: HashMap::new(),
            waiting: VecDeque::new(),
            fences: 0,
        }
    }

    /// Whether somebody already waits to send to this peer: whoever comes now is behind them.
    pub(crate) fn is_behind(&self, peer: FiAddr) -> bool {
        !self.waiting.is_empty() && self.waiting.iter().any(|waiting| waiting.peer == peer)
    }

    /// Whether a message to this peer waits: one that is posted now must not overtake it.
    pub(crate) fn is_behind_message(&self, peer: FiAddr) -> bool {
        self.waiting
            .iter()
            .any(|waiting| waiting.message && waiting.peer == peer)
    }

    /// Takes a credit, unless there is none or others wait for it.
    pub(crate) fn take(&mut self, peer: FiAddr) -> bool {
        !self.is_behind(peer) && self.grant(peer)
    }

    /// Gives a credit back.
    pub(crate) fn give(&mut self, peer: FiAddr) {
        self.free += 1;
        if let Some(used) = self.used.get_mut(&peer) {
            *used -= 1;
            if *used == 0 {
                self.used.remove(&peer);
            }
        }
    }

    /// Takes a credit back that was just given.
    pub(crate) fn retake(&mut self, peer: FiAddr) {
        self.free = self.free.saturating_sub(1);
        *self.used.entry(peer).or_insert(0) += 1;
    }

    /// Queues for a credit.
    pub(crate) fn wait(&mut self, op: OpKey, peer: FiAddr, message: bool) {
        self.waiting.push_back(Waiting {
            op,
            peer,
            message,
            fence: None,
        });
    }

    /// Queues until everything before it has ended, and for a credit if it has none.
    pub(crate) fn wait_fenced(&mut self, op: OpKey, peer: FiAddr, fence: Fence) {
        self.fences += 1;
        self.waiting.push_back(Waiting {
            op,
            peer,
            message: true,
            fence: Some(fence),
        });
    }

    /// Leaves the queue.
    pub(crate) fn leave(&mut self, op: OpKey) {
        self.waiting.retain(|waiting| waiting.op != op);
        self.fences = self
            .waiting
            .iter()
            .filter(|waiting| waiting.fence.is_some())
            .count();
    }

    /// The next in the queue that can have a credit, which is taken for it. Order is kept per peer.
    /// One that is fenced goes when nothing is under way to its peer.
    pub(crate) fn next(&mut self, under_way: impl Fn(FiAddr) -> bool) -> Option<OpKey> {
        if self.free == 0 && self.fences == 0 {
            return None;
        }
        let at = (0..self.waiting.len()).find(|&at| self.may_go(at, &under_way))?;
        let next = self.waiting.remove(at)?;
        self.fences -= usize::from(next.fence.is_some());
        if !next.fence.is_some_and(|fence| fence.credit) {
            self.grant(next.peer);
        }
        Some(next.op)
    }

    fn may_go(&self, at: usize, under_way: &impl Fn(FiAddr) -> bool) -> bool {
        let Waiting { peer, fence, .. } = self.waiting[at];
        let has_credit =
            || self.free > 0 && self.used.get(&peer).copied().unwrap_or(0) < self.per_peer;
        if self.fences > 0 && self.waiting.range(..at).any(|before| before.peer == peer) {
            return false;
        }
        match fence {
            None => has_credit(),
            Some(fence) => (fence.credit || has_credit()) && !under_way(peer),
        }
    }

    /// Everybody who waits, when the endpoint closes.
    pub(crate) fn drain(&mut self) -> Vec<OpKey> {
        self.fences = 0;
        self.waiting.drain(..).map(|waiting| waiting.op).collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn grant(&mut self, peer: FiAddr) -> bool {
        if self.free == 0
            || self
                .used
                .get(&peer)
                .is_some_and(|used| *used >= self.per_peer)
        {
            return false;
        }
        self.retake(peer);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::av::AddressTable;

    use super::*;

    #[test]
    fn a_slow_peer_cannot_take_every_credit_and_order_is_kept_per_peer() {
        let mut table = AddressTable::new();
        let [slow, other] = ["shm://a", "shm://b"].map(|text| table.insert(text.parse().unwrap()));
        let op = |index| OpKey {
            index,
            generation: 0,
        };
        let mut transmit = Transmit::new(8);
        assert!(transmit.take(slow) && transmit.take(slow));
        assert!(!transmit.take(slow), "a quarter of eight");
        transmit.wait(op(1), slow, true);
        transmit.wait(op(2), slow, true);
        transmit.wait(op(3), other, true);
        assert_eq!(
            transmit.next(|_| false),
            Some(op(3)),
            "the other peer goes ahead"
        );
        assert_eq!(transmit.next(|_| false), None);
        transmit.give(slow);
        assert!(!transmit.take(slow), "nobody overtakes the queue");
        assert_eq!(transmit.next(|_| false), Some(op(1)));
        transmit.leave(op(2));
        transmit.give(slow);
        assert_eq!(transmit.next(|_| false), None);
        assert!(transmit.take(slow) && transmit.is_idle());
    }

    #[test]
    fn a_fence_waits_for_what_was_before_and_is_not_overtaken() {
        let mut table = AddressTable::new();
        let [peer, other] = ["shm://a", "shm://b"].map(|text| table.insert(text.parse().unwrap()));
        let op = |index| OpKey {
            index,
            generation: 0,
        };
        let mut transmit = Transmit::new(8);
        assert!(transmit.take(peer) && transmit.take(peer));
        transmit.wait_fenced(op(1), peer, Fence { credit: true });
        assert!(!transmit.take(peer), "it would overtake the fence");
        transmit.wait(op(2), peer, true);
        transmit.wait_fenced(op(3), other, Fence { credit: false });
        let busy = |busy: bool| move |address| busy && address == peer;
        assert_eq!(
            transmit.next(busy(true)),
            Some(op(3)),
            "nothing is under way to the other"
        );
        assert_eq!(transmit.next(busy(true)), None);
        transmit.give(peer);
        assert_eq!(
            transmit.next(busy(true)),
            None,
            "a credit alone does not lift a fence"
        );
        assert_eq!(transmit.next(busy(false)), Some(op(1)));
        assert_eq!(
            transmit.next(busy(true)),
            Some(op(2)),
            "behind the fence nothing is fenced"
        );
        transmit.wait_fenced(op(4), peer, Fence { credit: false });
        transmit.leave(op(4));
        assert!(transmit.is_idle() && transmit.next(busy(false)).is_none());
    }
}
