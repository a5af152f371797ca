//! Loans that peers sent to an endpoint.
//!
//! A peer grants a chunk once, which is then a [`LoanMapping`]; each message in the chunk is a
//! [`LoanGuard`]. `recv_loan` takes the message in place. Other receives copy it, above 256 KiB in
//! pieces. An unexpected loan stays in its chunk until a receive matches. Dropping the guard
//! returns the slot by its bit in the segment, and rings the doorbell if the sender waits for
//! returned slots. Other senders collect the bits when they next need a chunk or a slot.
//!
//! # Limits
//!
//! Each mapped chunk takes one of the mappings of the process ([`mapping_limit`]). A peer whose
//! share is used up, and every peer while the process has few left, is told so by a flag in the
//! segment. The peer then lends chunks that it has granted before, and copies other messages into
//! the ring. A peer that grants chunks nevertheless loses its connection.
//!
//! # Relays
//!
//! A received loan that is sent on is *relayed* without a copy. The relaying side grants the chunk
//! to the next peer under a key of its own. Its `OutstandingSlots` hold the [`LoanGuard`], and so
//! does the receiver's `LoanedBuf`; the slot is returned when the last of them is dropped. So a
//! chain of any length returns a loan hop by hop, from its end.
//!
//! A relay needs the descriptor of the chunk. An endpoint keeps at most [`max_relay_fds`]
//! descriptors and the process [`max_process_relay_fds`]; loans in other chunks are copied when
//! they are sent on.
//!
//! If the connection to the next peer ends while that peer holds the loan, the peer may still read
//! the chunk. The slot is then returned as *retired*, and the owner of the chunk does not reuse it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use fabric_core::buf::{CopySource, PeerMemory};
use fabric_core::mr::RegionBytes;

use super::super::doorbell;
use super::super::held_slots::HeldSlot;
use super::super::ring::take_producer_waiting;
use super::super::socket::SocketHandle;
use super::{LoanPool, MAX_LOAN_MAPPINGS, SLOTS_PER_PEER};
use crate::sys::closer::PeerFd;
use crate::sys::fd_limit::max_descriptors;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::mapping::SharedMapping;
use crate::sys::mapping_limit::{self, MappingCount, MappingPermit};
use crate::transport::inbound_limits;

/// Counters of the chunks that peers have granted to an endpoint; clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedLoans {
    /// The mapped chunks of the process.
    mapped: &'static MappedChunks,
    /// Number of descriptors that the endpoint keeps for relays, at most [`max_relay_fds`].
    relay_fds: Arc<AtomicUsize>,
    /// The pool of the endpoint's domain, which assigns the keys of relayed chunks.
    pool: LoanPool,
}

/// The mapped chunks of all endpoints of a process.
#[derive(Debug)]
struct MappedChunks {
    count: MappingCount,
    limit: fn() -> usize,
}

/// Chunks may take half of the mappings of shared memory, and leave the rest for segments and
/// regions.
static PROCESS_CHUNKS: MappedChunks = MappedChunks {
    count: MappingCount::new(),
    limit: || mapping_limit::max_mappings() / 2,
};

const MAX_RELAY_FDS: usize = 256;

/// Number of descriptors that this process keeps for relays.
static PROCESS_RELAY_FDS: AtomicUsize = AtomicUsize::new(0);

impl MappedChunks {
    /// Returns whether three quarters of the chunks are in use: the rest is for grants that peers
    /// have sent already.
    fn is_scarce(&self) -> bool {
        self.count.get() >= (self.limit)() / 4 * 3
    }

    /// Returns how many chunks of one peer are mapped before the peer is told to copy: at most an
    /// eighth of those of the process.
    fn share_of_peer(&self) -> usize {
        ((self.limit)() / 8).min(MAX_LOAN_MAPPINGS - SLOTS_PER_PEER)
    }
}

/// Returns how many descriptors this process may keep for relays: a quarter of `RLIMIT_NOFILE`.
fn max_process_relay_fds() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| max_descriptors() / 4)
}

/// Returns how many descriptors one endpoint may keep for relays: at most half of those of the
/// process, so that the peers of one endpoint leave some for other endpoints.
fn max_relay_fds() -> usize {
    MAX_RELAY_FDS.min(max_process_relay_fds() / 2)
}

/// Increments `count`. Returns false, without an increment, if `count` has reached `limit`.
fn try_increment(count: &AtomicUsize, limit: usize) -> bool {
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < limit).then_some(count + 1)
        })
        .is_ok()
}

impl ReceivedLoans {
    pub(crate) fn new(pool: LoanPool) -> Self {
        Self {
            mapped: &PROCESS_CHUNKS,
            relay_fds: Arc::default(),
            pool,
        }
    }

    /// Returns whether a peer may grant further chunks, if `of_peer` of its chunks are mapped.
    /// Otherwise the peer is told to copy the messages.
    pub(crate) fn permits_grants(&self, of_peer: usize) -> bool {
        of_peer < self.mapped.share_of_peer() && !self.mapped.is_scarce()
    }

    /// Counts a chunk that a peer has granted and that is to be mapped. `of_peer` of its chunks are
    /// mapped already. `None` if the process has too many chunks, or the peer has granted more than
    /// could be on the way when it was told to copy.
    pub(crate) fn reserve(&self, of_peer: usize) -> Option<MappingPermit> {
        let mapped = self.mapped;
        if of_peer >= mapped.share_of_peer() + SLOTS_PER_PEER {
            return None;
        }
        mapped.count.acquire((mapped.limit)())
    }

    /// Adds a chunk that was mapped. Its descriptor is kept for relays unless a limit is reached.
    pub(crate) fn add_mapping(
        &self,
        permit: MappingPermit,
        mapping: SharedMapping,
        fd: PeerFd,
    ) -> Arc<LoanMapping> {
        Arc::new(LoanMapping {
            mapping,
            relay_source: RelaySource::new(fd, self),
            received: self.clone(),
            _permit: permit,
        })
    }
}

/// A mapped chunk of a peer, counted while it is mapped.
#[derive(Debug)]
pub(crate) struct LoanMapping {
    mapping: SharedMapping,
    /// `None` if the descriptor was not kept, so messages in the chunk cannot be relayed.
    relay_source: Option<RelaySource>,
    received: ReceivedLoans,
    _permit: MappingPermit,
}

/// What another peer is granted when a message in a received chunk is relayed: the descriptor,
/// counted while it is open, and a key.
#[derive(Debug)]
struct RelaySource {
    fd: PeerFd,
    /// Key from the pool of this side's domain.
    key: u64,
    /// `ReceivedLoans::relay_fds` of the endpoint.
    relay_fds: Arc<AtomicUsize>,
}

impl RelaySource {
    /// Keeps a descriptor; `None` if the endpoint or the process has reached its limit.
    fn new(fd: PeerFd, received: &ReceivedLoans) -> Option<Self> {
        if !try_increment(&received.relay_fds, max_relay_fds()) {
            return None;
        }
        if !try_increment(&PROCESS_RELAY_FDS, max_process_relay_fds()) {
            received.relay_fds.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        if !inbound_limits::try_add_descriptor() {
            received.relay_fds.fetch_sub(1, Ordering::Relaxed);
            PROCESS_RELAY_FDS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self {
            fd,
            key: received.pool.new_key(),
            relay_fds: received.relay_fds.clone(),
        })
    }
}

impl Drop for RelaySource {
    fn drop(&mut self) {
        self.relay_fds.fetch_sub(1, Ordering::Relaxed);
        PROCESS_RELAY_FDS.fetch_sub(1, Ordering::Relaxed);
        inbound_limits::remove_descriptor();
    }
}

impl LoanMapping {
    /// Returns the bytes of the chunk.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Returns the key and the descriptor with which another peer is granted the chunk; `None` if
    /// the descriptor was not kept.
    pub(super) fn relay_source(&self) -> Option<(u64, BorrowedFd<'_>)> {
        let source = self.relay_source.as_ref()?;
        Some((source.key, source.fd.as_fd()))
    }

    /// Returns whether the chunk was received in the domain of this pool.
    pub(super) fn belongs_to(&self, pool: &LoanPool) -> bool {
        self.received.pool.is_same(pool)
    }
}

impl Drop for LoanMapping {
    fn drop(&mut self) {
        if self.relay_source.is_some() {
            self.received.pool.count_removed();
        }
    }
}

/// A message in a chunk that a peer lends. Dropping this value returns the slot to the peer.
pub(crate) struct LoanGuard {
    mapping: Arc<LoanMapping>,
    len: usize,
    /// Slot to return on drop; `None` if the slot must not be returned.
    slot: Option<HeldSlot>,
    /// Socket for the doorbell.
    socket: SocketHandle,
    /// Whether a peer to which the loan was relayed may read the chunk after its return.
    retired: AtomicBool,
    fork_guard: ForkGuard,
}

impl LoanGuard {
    /// Creates a guard; `None` if the message is longer than the chunk.
    pub(crate) fn new(
        mapping: Arc<LoanMapping>,
        len: usize,
        slot: HeldSlot,
        socket: SocketHandle,
    ) -> Option<Self> {
        (len <= mapping.mapping.len()).then_some(Self {
            mapping,
            len,
            slot: Some(slot),
            socket,
            retired: AtomicBool::new(false),
            fork_guard: ForkGuard::current_process(),
        })
    }

    /// Returns the chunk that the message is in.
    pub(super) fn mapping(&self) -> &Arc<LoanMapping> {
        &self.mapping
    }

    /// Records that a peer to which the loan was relayed may read the chunk after its return.
    pub(super) fn mark_retired(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }
}

/// A handle of a message in the sender's memory, whose drop returns the slot to the sender.
pub(crate) trait ReturnOnDrop {
    /// Drops the handle without returning the slot: the record stays in the ring.
    fn cancel_return(self);
}

impl ReturnOnDrop for LoanGuard {
    fn cancel_return(mut self) {
        self.slot.take().iter().for_each(HeldSlot::release);
    }
}

impl CopySource for LoanGuard {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.mapping.mapping.range(0, self.len).copy_to(from, dst)
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.mapping
            .mapping
            .range(0, self.len)
            .copy_to_init(from, dst);
    }
}

impl PeerMemory for LoanGuard {
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller guarantees that the sender does not write; a sender of this
        // implementation does not write before the slot is returned.
        unsafe { self.mapping.mapping.slice(self.len) }
    }

    fn write_to(&self, fd: BorrowedFd<'_>, from: usize, len: usize) -> std::io::Result<usize> {
        self.mapping
            .mapping
            .range(0, self.len)
            .write_to(fd, from, len)
    }
}

impl Drop for LoanGuard {
    fn drop(&mut self) {
        let Some(slot) = &self.slot else { return };
        if !self.fork_guard.in_original_process() {
            return;
        }
        if *self.retired.get_mut() {
            slot.retire();
        }
        slot.return_to_sender();
        if take_producer_waiting(slot.segment()) {
            doorbell::ring_if_open(&self.socket);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::flags::Access;

    use super::super::super::shared_memory::{self, SharedMemory};
    use super::*;

    /// Counters apart from those of the process, with this limit.
    fn new_received(limit: fn() -> usize) -> ReceivedLoans {
        let mapped = Box::leak(Box::new(MappedChunks {
            count: MappingCount::new(),
            limit,
        }));
        ReceivedLoans {
            mapped,
            ..ReceivedLoans::new(LoanPool::default())
        }
    }

    fn add_mapping(received: &ReceivedLoans, of_peer: usize) -> Option<Arc<LoanMapping>> {
        let permit = received.reserve(of_peer)?;
        let memory = SharedMemory::create(1, Access::REMOTE_READ).unwrap();
        let fd = memory.fd().try_clone_to_owned().unwrap();
        let mapping = shared_memory::map_from_peer(&fd, 1, false).unwrap();
        Some(received.add_mapping(permit, mapping, fd.into()))
    }

    /// Returns the number of chunks whose descriptors were kept for relays.
    fn kept_fds(mappings: &[Option<Arc<LoanMapping>>]) -> usize {
        let mappings = mappings.iter().flatten();
        mappings
            .filter(|mapping| mapping.relay_source.is_some())
            .count()
    }

    #[test]
    fn chunks_of_a_peer_and_of_the_process_are_bounded() {
        let received = new_received(|| 800);
        let hostile: Vec<_> = (0..)
            .map_while(|of_peer| add_mapping(&received, of_peer))
            .collect();
        assert_eq!(hostile.len(), 100 + SLOTS_PER_PEER);
        assert!(received.permits_grants(99) && !received.permits_grants(100));
        // Further peers fill the process, and share its limit with another endpoint.
        let endpoint = received.clone();
        let others: Vec<_> = (0..)
            .map_while(|count| add_mapping(&endpoint, count % 100))
            .collect();
        assert_eq!(hostile.len() + others.len(), 800);
        assert!(!received.permits_grants(0) && add_mapping(&received, 0).is_none());
        assert_eq!(received.mapped.count.get(), 800);
        drop(hostile);
        assert!(received.permits_grants(0) && add_mapping(&received, 0).is_some());
    }

    #[test]
    fn relay_fds_of_an_endpoint_are_bounded() {
        let received = new_received(|| 100_000);
        let mut held: Vec<_> = (0..2 * MAX_RELAY_FDS)
            .map(|_| add_mapping(&received, 0))
            .collect();
        assert_eq!(kept_fds(&held), max_relay_fds());
        // The descriptors that one endpoint keeps leave some for the others.
        let other = [add_mapping(&new_received(|| 100_000), 0)];
        assert_eq!(kept_fds(&other), 1);
        held.clear();
        let again = [add_mapping(&received, 0)];
        assert_eq!(kept_fds(&again), 1, "closed descriptors are not counted");
    }
}
