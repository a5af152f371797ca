//! Loans that peers sent to an endpoint.
//!
//! A peer grants a chunk once, which is then a [`LoanMapping`]; each message in the chunk is a
//! [`LoanGuard`]. `recv_loan` takes the message in place. Other receives copy it, above 256 KiB in
//! pieces. An unexpected loan stays in its chunk until a receive matches. Dropping the guard
//! returns the slot by its bit in the segment, and rings the doorbell if the sender waits for
//! returned slots. Other senders collect the bits when they next need a chunk or a slot.
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
use fabric_core::mr::RegionMemory;

use super::super::control::{self, ControlMessage};
use super::super::ring::take_producer_waiting;
use super::super::segment::Segment;
use super::super::socket::SocketHandle;
use super::{LoanPool, SLOTS_PER_PEER};
use crate::sys::closer::PeerFd;
use crate::sys::fork_guard::ForkGuard;
use crate::sys::mapping::SharedMapping;

/// Counters of the chunks that peers have granted to an endpoint; clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedLoans {
    /// Number of mapped chunks of the endpoint, at most [`MAX_MAPPED_CHUNKS`].
    mapped: Arc<AtomicUsize>,
    /// Number of descriptors that the endpoint keeps for relays, at most [`max_relay_fds`].
    relay_fds: Arc<AtomicUsize>,
    /// The pool of the endpoint's domain, which assigns the keys of relayed chunks.
    pool: LoanPool,
}

const MAX_MAPPED_CHUNKS: usize = 32_768;
const MAX_RELAY_FDS: usize = 256;

/// Number of descriptors that this process keeps for relays.
static PROCESS_RELAY_FDS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many descriptors this process may keep for relays: a quarter of `RLIMIT_NOFILE`.
fn max_process_relay_fds() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit / 4).unwrap_or(usize::MAX)
        })
    })
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
            mapped: Arc::default(),
            relay_fds: Arc::default(),
            pool,
        }
    }

    /// Counts a chunk that a peer has granted and that was mapped; `None` if the endpoint has too
    /// many chunks. The descriptor is kept for relays unless a limit is reached.
    pub(crate) fn add_mapping(
        &self,
        mapping: SharedMapping,
        fd: PeerFd,
    ) -> Option<Arc<LoanMapping>> {
        if !try_increment(&self.mapped, MAX_MAPPED_CHUNKS) {
            return None;
        }
        Some(Arc::new(LoanMapping {
            mapping,
            relay_source: RelaySource::new(fd, self),
            received: self.clone(),
        }))
    }
}

/// A mapped chunk of a peer, counted while it is mapped.
#[derive(Debug)]
pub(crate) struct LoanMapping {
    mapping: SharedMapping,
    /// `None` if the descriptor was not kept, so messages in the chunk cannot be relayed.
    relay_source: Option<RelaySource>,
    received: ReceivedLoans,
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
    }
}

impl LoanMapping {
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
        self.received.mapped.fetch_sub(1, Ordering::Relaxed);
        if self.relay_source.is_some() {
            self.received.pool.count_removed();
        }
    }
}

/// A message in a chunk that a peer lends. Dropping this value returns the slot to the peer.
pub(crate) struct LoanGuard {
    mapping: Arc<LoanMapping>,
    len: usize,
    /// Segment in which the slot is returned.
    segment: Segment,
    /// Slot to return on drop; [`SLOTS_PER_PEER`] if the slot must not be returned.
    slot: usize,
    /// Socket for the doorbell.
    socket: SocketHandle,
    /// Whether a peer to which the loan was relayed may read the chunk after its return.
    retired: AtomicBool,
    fork_guard: ForkGuard,
}

impl LoanGuard {
    /// Creates a guard; `None` if the message is longer than the chunk, or the slot is out of
    /// bounds.
    pub(crate) fn new(
        mapping: Arc<LoanMapping>,
        len: usize,
        (segment, slot): (Segment, usize),
        socket: SocketHandle,
    ) -> Option<Self> {
        (len <= mapping.mapping.len() && slot < SLOTS_PER_PEER).then_some(Self {
            mapping,
            len,
            segment,
            slot,
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
    /// Drops the handle without returning the slot.
    fn cancel_return(self);
}

impl ReturnOnDrop for LoanGuard {
    fn cancel_return(mut self) {
        self.slot = SLOTS_PER_PEER;
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
        if self.slot >= SLOTS_PER_PEER || !self.fork_guard.in_original_process() {
            return;
        }
        if *self.retired.get_mut() {
            self.segment.retire_slot(self.slot);
        }
        self.segment.return_slot(self.slot);
        if take_producer_waiting(&self.segment) {
            self.socket.with_socket(|socket| {
                control::try_send_control(socket, ControlMessage::Doorbell);
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::flags::Access;

    use super::super::super::shared_memory::{self, SharedMemory};
    use super::*;

    fn add_mapping(received: &ReceivedLoans) -> Option<Arc<LoanMapping>> {
        let memory = SharedMemory::create(1, Access::REMOTE_READ).unwrap();
        let fd = memory.fd().try_clone_to_owned().unwrap();
        let mapping = shared_memory::map_from_peer(&fd, 1, false).unwrap();
        received.add_mapping(mapping, fd.into())
    }

    /// Returns the number of chunks whose descriptors were kept for relays.
    fn kept_fds(mappings: &[Option<Arc<LoanMapping>>]) -> usize {
        let mappings = mappings.iter().flatten();
        mappings
            .filter(|mapping| mapping.relay_source.is_some())
            .count()
    }

    #[test]
    fn mapped_chunks_and_relay_fds_of_an_endpoint_are_bounded() {
        let received = ReceivedLoans::new(LoanPool::default());
        let mut held: Vec<_> = (0..MAX_MAPPED_CHUNKS)
            .map(|_| add_mapping(&received))
            .collect();
        assert!(held.iter().all(Option::is_some) && add_mapping(&received).is_none());
        assert_eq!(kept_fds(&held), max_relay_fds());
        // The descriptors that one endpoint keeps leave some for the others.
        let other = [add_mapping(&ReceivedLoans::new(LoanPool::default()))];
        assert_eq!(kept_fds(&other), 1);
        held.clear();
        let again = [add_mapping(&received)];
        assert_eq!(kept_fds(&again), 1, "closed descriptors are not counted");
    }
}
