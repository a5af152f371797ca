//! What endpoints and domains have done: snapshots, to be looked at or sent to a metrics system.

use crate::completion::OpKind;

/// How many operations of a kind ended well, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Operations.
    pub count: u64,
    /// Bytes, those of all of them together.
    pub bytes: u64,
}

impl OpStats {
    /// One more operation, of this many bytes.
    #[doc(hidden)]
    #[inline]
    pub fn record(&mut self, len: usize) {
        self.count += 1;
        // Of what peers did only they say how much it was.
        self.bytes = self.bytes.saturating_add(len as u64);
    }
}

impl std::ops::AddAssign for OpStats {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What an endpoint has done since it was enabled. Every number but the last group only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStats {
    /// Messages sent: the peer's endpoint has them, or, with providers that reach other machines,
    /// the network.
    pub sent: OpStats,
    /// Messages received, each once: when its future has resolved or its stream has yielded it, or
    /// when its completion is in the queue. One whose receive is dropped before that counts when
    /// another receive has it.
    pub received: OpStats,
    /// Memory of peers read.
    pub read: OpStats,
    /// Memory of peers written.
    pub written: OpStats,
    /// Atomic operations on memory of peers, those that fetch among them.
    pub atomics: OpStats,
    /// What peers have done to memory here, as far as they tell: with data, or counted.
    pub remote_ops: OpStats,
    /// Operations that ended where they were posted, of all that were started here. The others took
    /// a slot and a credit.
    pub inline: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Posts that were refused, or had to wait, without transmit credit.
    pub out_of_credit: u64,

    /// Sleeping peers that were woken, a system call each.
    pub doorbells: u64,
    /// Messages that were lent instead of copied.
    pub loaned: u64,
    /// Messages sent that went through the ring in pieces: copied twice.
    pub segmented: OpStats,
    /// Messages sent that the peer copied straight from here: copied once.
    pub single_copy_tx: OpStats,
    /// Messages that were copied straight from peers: those of their `single_copy`, whether or not
    /// a receive has taken them.
    pub single_copy_rx: OpStats,
    /// Sends over TCP that the network took from where they lay. See
    /// [`SocketOptions::zero_copy_threshold`](crate::SocketOptions::zero_copy_threshold).
    pub zero_copy: u64,
    /// Sends that were to be of that kind, and that the kernel has copied all the same: one for
    /// each connection where it was given up, for later ones are not of that kind.
    pub zero_copy_fallbacks: u64,
    /// Messages that were thrown away here: nobody had asked for them, and the budget was used up.
    /// Only datagrams are; those that the network has lost are not among them.
    pub dropped: u64,

    /// Peers that are connected to this endpoint now.
    pub peers: usize,
    /// Messages that wait for a receive now.
    pub unexpected: usize,
    /// What they use of the budget, in bytes.
    pub unexpected_bytes: usize,
}

/// What a provider adds to the statistics of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportStats {
    /// Of [`EndpointStats::sent`], what the domain did not see.
    pub sent: OpStats,
    /// Of [`EndpointStats::written`].
    pub written: OpStats,
    /// Of [`EndpointStats::atomics`].
    pub atomics: OpStats,
    /// See [`EndpointStats::doorbells`].
    pub doorbells: u64,
    /// See [`EndpointStats::loaned`].
    pub loaned: u64,
    /// See [`EndpointStats::segmented`].
    pub segmented: OpStats,
    /// See [`EndpointStats::single_copy_tx`].
    pub single_copy_tx: OpStats,
    /// See [`EndpointStats::single_copy_rx`].
    pub single_copy_rx: OpStats,
    /// See [`EndpointStats::zero_copy`].
    pub zero_copy: u64,
    /// See [`EndpointStats::zero_copy_fallbacks`].
    pub zero_copy_fallbacks: u64,
    /// See [`EndpointStats::dropped`].
    pub dropped: u64,
    /// See [`EndpointStats::peers`].
    pub peers: usize,
    /// See [`EndpointStats::unexpected`] and [`EndpointStats::unexpected_bytes`].
    pub unexpected: (usize, usize),
}

impl EndpointStats {
    /// Counts an operation that has ended well.
    #[doc(hidden)]
    #[inline]
    pub fn record(&mut self, kind: OpKind, len: usize) {
        let moved = match kind {
            OpKind::Send => &mut self.sent,
            OpKind::Recv => &mut self.received,
            OpKind::Read => &mut self.read,
            OpKind::Write => &mut self.written,
            OpKind::Atomic | OpKind::FetchAtomic => &mut self.atomics,
            OpKind::RemoteWrite => &mut self.remote_ops,
            OpKind::Connect | OpKind::MultiRecvRelease => return,
        };
        moved.record(len);
    }

    /// With what the provider knows.
    #[doc(hidden)]
    #[must_use]
    pub fn with_transport(mut self, provider: TransportStats) -> Self {
        let TransportStats {
            sent,
            written,
            atomics,
            ..
        } = provider;
        let TransportStats {
            doorbells,
            loaned: lent,
            segmented: pieces,
            single_copy_tx: single_copy,
            single_copy_rx: fetched,
            dropped,
            ..
        } = provider;
        let TransportStats {
            zero_copy,
            zero_copy_fallbacks: copied_anyway,
            peers,
            unexpected,
            ..
        } = provider;
        let (unexpected, unexpected_bytes) = unexpected;
        self.sent += sent;
        self.written += written;
        self.atomics += atomics;
        self.inline += sent.count + written.count + atomics.count;
        Self {
            doorbells,
            loaned: lent,
            segmented: pieces,
            single_copy_tx: single_copy,
            single_copy_rx: fetched,
            zero_copy,
            zero_copy_fallbacks: copied_anyway,
            dropped,
            peers,
            unexpected,
            unexpected_bytes,
            ..self
        }
    }
}

/// What a domain has done since it was opened, and what it has under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainStats {
    /// Polls by the application, of operations, queues and counters, that had to look for news.
    pub polls: u64,
    /// Looks for something to move, by polls and by the driver.
    pub passes: u64,
    /// Polls that found something only after looking more than once: spinning that paid off.
    pub spins_succeeded: u64,
    /// Polls that gave up looking.
    pub spins_timed_out: u64,
    /// How often the driver went to sleep.
    pub parks: u64,

    /// Operations under way now, or ended and not looked at.
    pub operations: usize,
    /// Tasks that wait for something of this domain now.
    pub waiting_tasks: usize,
    /// Memory regions that are open now.
    pub regions: usize,
}
