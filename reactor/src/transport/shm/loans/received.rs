//! Loans that peers sent to an endpoint.
//!
//! `recv_loan` takes a loan in place. Other receives copy it, above 256 KiB in chunks. An
//! unexpected loan waits where it is. Dropping it sets the slot's bit in the segment; the sender
//! collects the bits when it next needs a chunk or a slot.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_core::buf::{CopySource, PeerMemory};

use super::super::segment::Segment;
use super::super::shared_memory::SharedMapping;
use super::SLOTS_PER_PEER;
use crate::transport::fork_guard::ForkGuard;

/// Number of chunks that peers have granted to an endpoint and that are mapped, including those of
/// messages that are waiting or held.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedLoans(Arc<AtomicUsize>);

/// Maximum number of mapped chunks.
const MAX_RECEIVED: usize = 32_768;

impl ReceivedLoans {
    /// Counts a chunk that a peer has granted; `None` if there are too many.
    pub(crate) fn add_mapping(&self, mapping: SharedMapping) -> Option<Arc<LoanMapping>> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= MAX_RECEIVED {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Arc::new(LoanMapping {
            mapping,
            counter: self.clone(),
        }))
    }
}

/// A mapped chunk of a peer, counted while it is mapped.
#[derive(Debug)]
pub(crate) struct LoanMapping {
    mapping: SharedMapping,
    counter: ReceivedLoans,
}

impl Drop for LoanMapping {
    fn drop(&mut self) {
        self.counter.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message in a lent chunk, held until this value is dropped.
pub(crate) struct LoanGuard {
    loan: Arc<LoanMapping>,
    len: usize,
    /// Segment and slot by which the chunk is returned.
    segment: Segment,
    slot: usize,
    fork_guard: ForkGuard,
}

impl LoanGuard {
    /// Creates a guard; `None` if the message exceeds the chunk, or there is no such slot.
    pub(crate) fn new(
        mapping: Arc<LoanMapping>,
        len: usize,
        segment: Segment,
        slot: usize,
    ) -> Option<Self> {
        (len <= mapping.mapping.len() && slot < SLOTS_PER_PEER).then_some(Self {
            loan: mapping,
            len,
            segment,
            slot,
            fork_guard: ForkGuard::current_process(),
        })
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
        if self.slot < SLOTS_PER_PEER && self.fork_guard.in_original_process() {
            self.segment.return_slot(self.slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::flags::Access;

    use super::super::super::shared_memory::SharedMemory;
    use super::*;

    #[test]
    fn loan_mappings_of_a_peer_are_bounded() {
        let received = ReceivedLoans::default();
        let mapping = || {
            let memory = SharedMemory::create(1, Access::REMOTE_READ).unwrap();
            SharedMapping::map_from_peer(&memory.fd().try_clone_to_owned().unwrap(), 1, false)
                .unwrap()
        };
        let mut held: Vec<_> = (0..MAX_RECEIVED)
            .map(|_| received.add_mapping(mapping()))
            .collect();
        assert!(held.iter().all(Option::is_some) && received.add_mapping(mapping()).is_none());
        held.pop();
        assert!(received.add_mapping(mapping()).is_some());
    }
}
