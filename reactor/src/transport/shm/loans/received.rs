//! What peers lend to an endpoint, and messages in it.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_core::buf::{CopySource, PeerMemory};

use super::super::segment::Segment;
use super::super::shared_memory::SharedMapping;
use super::SLOTS_PER_PEER;
use crate::transport::fork_guard::ForkGuard;

/// How many pieces of memory peers lend to an endpoint, those of messages that wait or are held
/// among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedLoans(Arc<AtomicUsize>);

/// The most of them.
const MAX_RECEIVED: usize = 32_768;

impl ReceivedLoans {
    /// Memory that a peer is going to lend.
    pub(crate) fn add_mapping(&self, area: SharedMapping) -> Option<Arc<LoanMapping>> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= MAX_RECEIVED {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Arc::new(LoanMapping {
            mapping: area,
            counter: self.clone(),
        }))
    }
}

/// Memory of a peer, counted as long as it is mapped.
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

/// A message in memory of its sender, held until this is dropped.
pub(crate) struct LoanGuard {
    loan: Arc<LoanMapping>,
    len: usize,
    /// Where it is given back, and under which number.
    segment: Segment,
    slot: usize,
    fork_guard: ForkGuard,
}

impl LoanGuard {
    /// `None` when the message does not lie within the memory, or there is no such slot.
    pub(crate) fn new(
        area: Arc<LoanMapping>,
        len: usize,
        segment: Segment,
        slot: usize,
    ) -> Option<Self> {
        (len <= area.mapping.len() && slot < SLOTS_PER_PEER).then_some(Self {
            loan: area,
            len,
            segment,
            slot,
            fork_guard: ForkGuard::current_process(),
        })
    }
}

/// What is given back when it is dropped.
pub(crate) trait ReturnOnDrop {
    /// Ends this without giving anything back.
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
    fn bytes(&self) -> &[u8] {
        // SAFETY: whoever receives into a `Lent` has promised that its senders do not write what
        // they have lent (`Endpoint::recv_loan` is unsafe for that); our own sender does not, as
        // long as this has not given it back.
        unsafe { self.loan.mapping.slice(self.len) }
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
        let adopted = ReceivedLoans::default();
        let area = || {
            let lent = SharedMemory::create(1, Access::REMOTE_READ).unwrap();
            SharedMapping::map_from_peer(&lent.fd().try_clone_to_owned().unwrap(), 1, false)
                .unwrap()
        };
        let mut held: Vec<_> = (0..MAX_RECEIVED)
            .map(|_| adopted.add_mapping(area()))
            .collect();
        assert!(held.iter().all(Option::is_some) && adopted.add_mapping(area()).is_none());
        held.pop();
        assert!(adopted.add_mapping(area()).is_some());
    }
}
