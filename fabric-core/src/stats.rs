//! What endpoints and domains have done: snapshots, to be looked at or sent to a metrics system.

use crate::completion::OpKind;

/// How many operations of a kind ended well, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Operations.
    pub count: u64,
    /// Bytes, those of all of them together.
    pub bytes: u64,
}

impl Moved {
    /// One more operation, of this many bytes.
    #[doc(hidden)]
    #[inline]
    pub fn add(&mut self, len: usize) {
        self.count += 1;
        // Of what peers did only they say how much it was.
        self.bytes = self.bytes.saturating_add(len as u64);
    }
}

impl std::ops::AddAssign for Moved {
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
    pub sent: Moved,
    /// Messages received, each once: when its future has resolved or its stream has yielded it, or
    /// when its completion is in the queue. One whose receive is dropped before that counts when
    /// another receive has it.
    pub received: Moved,
    /// Memory of peers read.
    pub read: Moved,
    /// Memory of peers written.
    pub written: Moved,
    /// Atomic operations on memory of peers, those that fetch among them.
    pub atomics: Moved,
    /// What peers have done to memory here, as far as they tell: with data, or counted.
    pub heard: Moved,
    /// Operations that ended where they were posted, of all that were started here. The others took
    /// a slot and a credit.
    pub at_once: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Posts that were refused, or had to wait, without transmit credit.
    pub out_of_credit: u64,

    /// Sleeping peers that were woken, a system call each.
    pub doorbells: u64,
    /// Messages that were lent instead of copied.
    pub lent: u64,
    /// Messages sent that went through the ring in pieces: copied twice.
    pub pieces: Moved,
    /// Messages sent that the peer copied straight from here: copied once.
    pub single_copy: Moved,
    /// Messages that were copied straight from peers: those of their `single_copy`, whether or not
    /// a receive has taken them.
    pub fetched: Moved,
    /// Sends over TCP that the network took from where they lay. See
    /// [`SocketOptions::zero_copy_from`](crate::SocketOptions::zero_copy_from).
    pub zero_copy: u64,
    /// Sends that were to be of that kind, and that the kernel has copied all the same: one for
    /// each connection where it was given up, for later ones are not of that kind.
    pub copied_anyway: u64,
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
pub struct ProviderStats {
    /// Of [`EndpointStats::sent`], what the domain did not see.
    pub sent: Moved,
    /// Of [`EndpointStats::written`].
    pub written: Moved,
    /// Of [`EndpointStats::atomics`].
    pub atomics: Moved,
    /// See [`EndpointStats::doorbells`].
    pub doorbells: u64,
    /// See [`EndpointStats::lent`].
    pub lent: u64,
    /// See [`EndpointStats::pieces`].
    pub pieces: Moved,
    /// See [`EndpointStats::single_copy`].
    pub single_copy: Moved,
    /// See [`EndpointStats::fetched`].
    pub fetched: Moved,
    /// See [`EndpointStats::zero_copy`].
    pub zero_copy: u64,
    /// See [`EndpointStats::copied_anyway`].
    pub copied_anyway: u64,
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
    pub fn moved(&mut self, kind: OpKind, len: usize) {
        let moved = match kind {
            OpKind::Send => &mut self.sent,
            OpKind::Recv => &mut self.received,
            OpKind::Read => &mut self.read,
            OpKind::Write => &mut self.written,
            OpKind::Atomic | OpKind::FetchAtomic => &mut self.atomics,
            OpKind::RemoteWrite => &mut self.heard,
            OpKind::Connect | OpKind::Release => return,
        };
        moved.add(len);
    }

    /// With what the provider knows.
    #[doc(hidden)]
    #[must_use]
    pub fn with(mut self, provider: ProviderStats) -> Self {
        let ProviderStats {
            sent,
            written,
            atomics,
            ..
        } = provider;
        let ProviderStats {
            doorbells,
            lent,
            pieces,
            single_copy,
            fetched,
            dropped,
            ..
        } = provider;
        let ProviderStats {
            zero_copy,
            copied_anyway,
            peers,
            unexpected,
            ..
        } = provider;
        let (unexpected, unexpected_bytes) = unexpected;
        self.sent += sent;
        self.written += written;
        self.atomics += atomics;
        self.at_once += sent.count + written.count + atomics.count;
        Self {
            doorbells,
            lent,
            pieces,
            single_copy,
            fetched,
            zero_copy,
            copied_anyway,
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
    pub spins_paid: u64,
    /// Polls that gave up looking.
    pub spins_lost: u64,
    /// How often the driver went to sleep.
    pub parks: u64,

    /// Operations under way now, or ended and not looked at.
    pub operations: usize,
    /// Tasks that wait for something of this domain now.
    pub waiting: usize,
    /// Memory regions that are open now.
    pub regions: usize,
}
