//! Loans that peers sent to an endpoint.
//!
//! `recv_loan` takes a loan in place. Other receives copy it, above 256 KiB in chunks. An
//! unexpected loan waits where it is. Dropping it sets the slot's bit in the segment. A sender that
//! waits for loans is woken; others collect the bits when they next need a chunk or a slot.
//!
//! # Relays
//!
//! A loan that is sent on stays a loan. The descriptor of a chunk is kept for that, for as many
//! chunks of an endpoint as [`max_relay_fds`] says and of the process as [`max_process_relay_fds`]
//! says; the others are copied when they are sent on. The relaying side grants the chunk to the
//! next peer under a key of its own, and its `OutstandingSlots` hold the [`LoanGuard`], as the
//! receiver's `LoanedBuf` does: the slot is returned when the last of them is dropped. So a chain
//! of any length returns hop by hop, from its end.
//!
//! If the next peer's connection ends while the peer holds the loan, the peer may still read it.
//! The slot is then returned as *retired*, and the owner of the memory gives the chunk up instead
//! of reusing it, as it does with the chunks of a peer whose connection to it ends.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use fabric_core::buf::{CopySource, PeerMemory};

use super::super::control::{self, ControlMessage};
use super::super::ring::take_producer_waiting;
use super::super::segment::Segment;
use super::super::shared_memory::SharedMapping;
use super::super::socket::SocketHandle;
use super::{LoanPool, SLOTS_PER_PEER};
use crate::transport::fork_guard::ForkGuard;

/// Chunks that peers have granted to an endpoint and that are mapped, including those of messages
/// that are waiting or held.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedLoans {
    mapped: Arc<AtomicUsize>,
    /// Number of descriptors that the endpoint keeps to send received loans on.
    relay_fds: Arc<AtomicUsize>,
    pool: LoanPool,
}

/// Maximum number of mapped chunks.
const MAX_RECEIVED_CHUNKS: usize = 32_768;
/// Maximum number of descriptors that an endpoint keeps to send received loans on.
const MAX_RELAY_FDS: usize = 256;

/// Number of descriptors that this process keeps to send received loans on.
static PROCESS_RELAY_FDS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many descriptors this process keeps to send received loans on: a quarter of those
/// that it may have.
fn max_process_relay_fds() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit / 4).unwrap_or(usize::MAX)
        })
    })
}

/// Returns how many of these one endpoint keeps: at most half, so that the peers of one endpoint do
/// not take those of the others.
fn max_relay_fds() -> usize {
    MAX_RELAY_FDS.min(max_process_relay_fds() / 2)
}

/// Counts one more, unless that exceeds `limit`.
fn try_count(count: &AtomicUsize, limit: usize) -> bool {
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

    /// Counts a chunk that a peer has granted; `None` if there are too many. The descriptor is kept
    /// if this process has not kept too many.
    pub(crate) fn add_mapping(
        &self,
        mapping: SharedMapping,
        fd: OwnedFd,
    ) -> Option<Arc<LoanMapping>> {
        if !try_count(&self.mapped, MAX_RECEIVED_CHUNKS) {
            return None;
        }
        Some(Arc::new(LoanMapping {
            mapping,
            relay: RelaySource::new(fd, self),
            received: self.clone(),
        }))
    }
}

/// A mapped chunk of a peer, counted while it is mapped.
#[derive(Debug)]
pub(crate) struct LoanMapping {
    mapping: SharedMapping,
    /// What is needed to grant the chunk to another peer.
    relay: Option<RelaySource>,
    received: ReceivedLoans,
}

/// The kept descriptor of a received chunk, counted while it is open, and the chunk's key towards
/// other peers.
#[derive(Debug)]
struct RelaySource {
    fd: OwnedFd,
    key: u64,
    /// Number of descriptors that the endpoint keeps.
    kept: Arc<AtomicUsize>,
}

impl RelaySource {
    /// Keeps a descriptor, unless the endpoint or the process keeps too many.
    fn new(fd: OwnedFd, received: &ReceivedLoans) -> Option<Self> {
        if !try_count(&received.relay_fds, max_relay_fds()) {
            return None;
        }
        if !try_count(&PROCESS_RELAY_FDS, max_process_relay_fds()) {
            received.relay_fds.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self {
            fd,
            key: received.pool.new_key(),
            kept: received.relay_fds.clone(),
        })
    }
}

impl Drop for RelaySource {
    fn drop(&mut self) {
        self.kept.fetch_sub(1, Ordering::Relaxed);
        PROCESS_RELAY_FDS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LoanMapping {
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Returns the key and the descriptor by which another peer is granted the chunk; `None` if the
    /// descriptor was not kept.
    pub(super) fn relay(&self) -> Option<(u64, BorrowedFd<'_>)> {
        let relay = self.relay.as_ref()?;
        Some((relay.key, relay.fd.as_fd()))
    }

    /// Returns whether the chunk was received in the domain of this pool.
    pub(super) fn is_of(&self, pool: &LoanPool) -> bool {
        self.received.pool.is_same(pool)
    }
}

impl Drop for LoanMapping {
    fn drop(&mut self) {
        self.received.mapped.fetch_sub(1, Ordering::Relaxed);
        if self.relay.is_some() {
            self.received.pool.count_removed();
        }
    }
}

/// A message in a lent chunk, held until this value is dropped.
pub(crate) struct LoanGuard {
    loan: Arc<LoanMapping>,
    len: usize,
    /// Segment and slot by which the chunk is returned, and the socket by which the sender is
    /// woken.
    segment: Segment,
    slot: usize,
    socket: SocketHandle,
    /// Whether a peer to which the loan was passed on may read it after it was returned.
    retired: AtomicBool,
    fork_guard: ForkGuard,
}

impl LoanGuard {
    /// Creates a guard; `None` if the message exceeds the chunk, or there is no such slot.
    pub(crate) fn new(
        mapping: Arc<LoanMapping>,
        len: usize,
        (segment, slot): (Segment, usize),
        socket: SocketHandle,
    ) -> Option<Self> {
        (len <= mapping.mapping.len() && slot < SLOTS_PER_PEER).then_some(Self {
            loan: mapping,
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
        &self.loan
    }

    /// Notes that a peer to which the loan was passed on may read it after it was returned.
    pub(super) fn mark_retired(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }
}

/// A handle that returns memory to its sender when it is dropped.
pub(crate) trait ReturnOnDrop {
    /// Drops the handle without returning the memory.
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
        self.loan.mapping.range(0, self.len).copy_to(from, dst)
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        self.loan.mapping.range(0, self.len).copy_to_init(from, dst);
    }
}

impl PeerMemory for LoanGuard {
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller guarantees that the sender does not write; a sender of this
        // implementation does not until the slot is returned.
        unsafe { self.loan.mapping.slice(self.len) }
    }

    fn write_to(&self, fd: BorrowedFd<'_>, from: usize, len: usize) -> std::io::Result<usize> {
        self.loan.mapping.range(0, self.len).write_to(fd, from, len)
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

    use super::super::super::shared_memory::SharedMemory;
    use super::*;

    fn add_mapping(received: &ReceivedLoans) -> Option<Arc<LoanMapping>> {
        let memory = SharedMemory::create(1, Access::REMOTE_READ).unwrap();
        let fd = memory.fd().try_clone_to_owned().unwrap();
        let mapping = SharedMapping::map_from_peer(&fd, 1, false).unwrap();
        received.add_mapping(mapping, fd)
    }

    /// Returns how many of these can be passed on.
    fn kept(mappings: &[Option<Arc<LoanMapping>>]) -> usize {
        let mappings = mappings.iter().flatten();
        mappings.filter(|mapping| mapping.relay.is_some()).count()
    }

    #[test]
    fn mappings_and_descriptors_of_an_endpoint_are_bounded() {
        let received = ReceivedLoans::new(LoanPool::default());
        let mut held: Vec<_> = (0..MAX_RECEIVED_CHUNKS)
            .map(|_| add_mapping(&received))
            .collect();
        assert!(held.iter().all(Option::is_some) && add_mapping(&received).is_none());
        assert_eq!(kept(&held), max_relay_fds());
        // The descriptors that one endpoint keeps leave some for the others.
        let other = [add_mapping(&ReceivedLoans::new(LoanPool::default()))];
        assert_eq!(kept(&other), 1);
        held.clear();
        let again = [add_mapping(&received)];
        assert_eq!(kept(&again), 1, "the descriptors are counted as closed");
    }
}
