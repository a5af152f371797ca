//! Statistics of endpoints and domains: snapshots of counters.

use crate::completion::OpKind;

/// The number of successful operations of one kind, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Number of operations.
    pub count: u64,
    /// Bytes of all operations together.
    pub bytes: u64,
}

impl OpStats {
    /// Returns the statistics of one operation of `len` bytes.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn one(len: usize) -> Self {
        Self {
            count: 1,
            bytes: len as u64,
        }
    }

    /// Counts an operation of `len` bytes.
    #[doc(hidden)]
    #[inline]
    pub fn record(&mut self, len: usize) {
        *self += Self::one(len);
    }
}

impl std::ops::AddAssign for OpStats {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        // A peer reports the length of its own operations: saturate, in case the value is bogus.
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Counters of an endpoint since it was enabled, and its load as of the last progress: `peers`,
/// `held_connections`, `unexpected` and `unexpected_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Messages sent: delivered to the peer's endpoint, or, with providers that reach other
    /// machines, to the network.
    pub sent: OpStats,
    /// Messages received, each counted once: when its future has resolved, its stream has yielded
    /// it, or its completion is in the queue. A message whose receive is dropped before that is
    /// counted for the receive that gets it afterwards.
    pub received: OpStats,
    /// RMA reads of peers' memory.
    pub read: OpStats,
    /// RMA writes to peers' memory.
    pub written: OpStats,
    /// Atomic operations on peers' memory, fetching ones included.
    pub atomics: OpStats,
    /// Operations of peers on local memory of which this side is notified: writes with remote
    /// completion data, and operations on regions whose owner counts remote accesses.
    pub remote_ops: OpStats,
    /// Operations that completed inside the posting call, of all operations started here. They
    /// took no transmit credit.
    pub inline: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Posts that were refused, or had to wait, for lack of transmit credit.
    pub out_of_credit: u64,

    /// Doorbells: wakeups of sleeping peers, a system call each.
    pub doorbells: u64,
    /// Messages that were sent as loans instead of copied.
    pub loaned: u64,
    /// Messages that were sent through the ring in segments: copied twice.
    pub segmented: OpStats,
    /// Messages sent that the peer copied directly from this process's memory: copied once.
    pub single_copy_tx: OpStats,
    /// Messages that this side copied directly from peers' memory (the peers' `single_copy_tx`),
    /// whether or not a receive has taken them.
    pub single_copy_rx: OpStats,
    /// Sends over TCP that the kernel transmitted from the buffer without copying. See
    /// [`SocketOptions::zero_copy_threshold`](crate::SocketOptions::zero_copy_threshold).
    pub zero_copy: u64,
    /// Zero-copy sends that the kernel copied nevertheless. At most one per connection, because the
    /// connection then stops requesting zero copy.
    pub zero_copy_fallbacks: u64,
    /// Unexpected messages that were discarded because the budget was used up. Only datagrams are
    /// discarded; datagrams that the network lost are not counted.
    pub dropped: u64,
    /// Unexpected messages of peers that had left, which were discarded because the budget was used
    /// up, a limit of connections was reached or the program disconnected the peer
    /// ([`EventKind::MessagesDiscarded`](crate::event::EventKind::MessagesDiscarded)).
    pub discarded: u64,
    /// Connections over TCP or shared memory that this endpoint refused because of a limit. See
    /// [`SocketOptions::max_inbound`](crate::SocketOptions::max_inbound).
    pub inbound_refused: u64,

    /// Peers that are connected to this endpoint now. Over shared memory, those that have sent
    /// something or have called `add_peer`: each direction has a connection of its own.
    pub peers: usize,
    /// Connections whose next message or remote access is held now, because the budget for
    /// unexpected messages or a completion queue has no room for it. See
    /// [`EventKind::PeerOverBudget`](crate::event::EventKind::PeerOverBudget).
    pub held_connections: usize,
    /// Unexpected messages that wait for a receive now.
    pub unexpected: usize,
    /// Bytes that unexpected and claimed messages use now, of the budget and beyond it.
    pub unexpected_bytes: usize,
}

impl EndpointStats {
    /// Counts successful operations of one kind.
    #[doc(hidden)]
    #[inline]
    pub fn record(&mut self, kind: OpKind, ops: OpStats) {
        let stats = match kind {
            OpKind::Send => &mut self.sent,
            OpKind::Recv => &mut self.received,
            OpKind::Read => &mut self.read,
            OpKind::Write => &mut self.written,
            OpKind::Atomic | OpKind::FetchAtomic => &mut self.atomics,
            OpKind::RemoteWrite => &mut self.remote_ops,
            OpKind::Connect | OpKind::MultiRecvRelease => return,
        };
        *stats += ops;
    }

    /// Adds other counters, such as those of another connection.
    #[doc(hidden)]
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.read += other.read;
        self.written += other.written;
        self.atomics += other.atomics;
        self.remote_ops += other.remote_ops;
        self.inline += other.inline;
        self.failed += other.failed;
        self.out_of_credit += other.out_of_credit;
        self.doorbells += other.doorbells;
        self.loaned += other.loaned;
        self.segmented += other.segmented;
        self.single_copy_tx += other.single_copy_tx;
        self.single_copy_rx += other.single_copy_rx;
        self.zero_copy += other.zero_copy;
        self.zero_copy_fallbacks += other.zero_copy_fallbacks;
        self.dropped += other.dropped;
        self.discarded += other.discarded;
        self.inbound_refused += other.inbound_refused;
        self.peers += other.peers;
        self.held_connections += other.held_connections;
        self.unexpected += other.unexpected;
        self.unexpected_bytes += other.unexpected_bytes;
    }
}

/// Counters of a domain since it was opened, and its current load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainStats {
    /// Polls by the application of operations, queues and counters, that had to run the progress
    /// engine.
    pub polls: u64,
    /// Passes of the progress engine, by polls and by the driver.
    pub passes: u64,
    /// Polls that found work after more than one pass of the engine.
    pub spins_succeeded: u64,
    /// Polls that found no work after more than one pass of the engine.
    pub spins_timed_out: u64,
    /// Number of times that the driver went to sleep.
    pub parks: u64,
    /// Calls that found another thread inside a call on this domain of thread model `Serial`
    /// ([`EventKind::ConcurrentUse`](crate::event::EventKind::ConcurrentUse)).
    pub concurrent_uses: u64,

    /// Operations that are pending now, or completed and not yet reported.
    pub operations: usize,
    /// Tasks that wait for the domain now.
    pub waiting_tasks: usize,
    /// Memory regions that are open now.
    pub regions: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns statistics in which each field is `n`.
    fn all(n: u32) -> EndpointStats {
        let (load, count) = (n as usize, u64::from(n));
        let bytes = count;
        let ops = OpStats { count, bytes };
        EndpointStats {
            sent: ops,
            received: ops,
            read: ops,
            written: ops,
            atomics: ops,
            remote_ops: ops,
            inline: count,
            failed: count,
            out_of_credit: count,
            doorbells: count,
            loaned: count,
            segmented: ops,
            single_copy_tx: ops,
            single_copy_rx: ops,
            zero_copy: count,
            zero_copy_fallbacks: count,
            dropped: count,
            discarded: count,
            inbound_refused: count,
            peers: load,
            held_connections: load,
            unexpected: load,
            unexpected_bytes: load,
        }
    }

    #[test]
    fn every_field_is_added() {
        let mut sum = all(1);
        sum.add(&all(2));
        assert_eq!(sum, all(3));
    }
}
