//! What peers lend to an endpoint, and messages in it.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_core::buf::{LentMemory, Source};

use super::super::area::Area;
use super::super::segment::Segment;
use super::SLOTS;
use crate::provider::origin::Origin;

/// How many pieces of memory peers lend to an endpoint, those of messages that wait or are held
/// among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adopted(Arc<AtomicUsize>);

/// The most of them.
const MOST_ADOPTED: usize = 32_768;

impl Adopted {
    /// Memory that a peer is going to lend.
    pub(crate) fn adopt(&self, area: Area) -> Option<Arc<Foreign>> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= MOST_ADOPTED {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Arc::new(Foreign {
            area,
            counted: self.clone(),
        }))
    }
}

/// Memory of a peer, counted as long as it is mapped.
#[derive(Debug)]
pub(crate) struct Foreign {
    area: Area,
    counted: Adopted,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.counted.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message in memory of its sender, held until this is dropped.
pub(crate) struct Borrow {
    area: Arc<Foreign>,
    len: usize,
    /// Where it is given back, and under which number.
    segment: Segment,
    slot: usize,
    origin: Origin,
}

impl Borrow {
    /// `None` when the message does not lie within the memory, or there is no such slot.
    pub(crate) fn new(
        area: Arc<Foreign>,
        len: usize,
        segment: Segment,
        slot: usize,
    ) -> Option<Self> {
        (len <= area.area.len() && slot < SLOTS).then_some(Self {
            area,
            len,
            segment,
            slot,
            origin: Origin::here(),
        })
    }
}

/// What is given back when it is dropped.
pub(crate) trait Keep {
    /// Ends this without giving anything back.
    fn keep(self);
}

impl Keep for Borrow {
    fn keep(mut self) {
        self.slot = SLOTS;
    }
}

impl Source for Borrow {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        self.area.area.part(0, self.len).copy_to(from, dst)
    }

    fn copy_over(&self, from: usize, dst: &mut [u8]) {
        self.area.area.part(0, self.len).copy_over(from, dst);
    }
}

impl LentMemory for Borrow {
    fn bytes(&self) -> &[u8] {
        // SAFETY: whoever receives into a `Lent` has promised that its senders do not write what
        // they have lent (`Endpoint::recv_lent` is unsafe for that); our own sender does not, as
        // long as this has not given it back.
        unsafe { self.area.area.slice(self.len) }
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        if self.slot < SLOTS && self.origin.is_here() {
            self.segment.give_back(self.slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::flags::Access;

    use super::super::super::area::OwnArea;
    use super::*;

    #[test]
    fn peers_lend_a_bounded_number_of_pieces() {
        let adopted = Adopted::default();
        let area = || {
            let lent = OwnArea::create(1, Access::REMOTE_READ).unwrap();
            Area::adopt(&lent.fd().try_clone_to_owned().unwrap(), 1, false).unwrap()
        };
        let mut held: Vec<_> = (0..MOST_ADOPTED).map(|_| adopted.adopt(area())).collect();
        assert!(held.iter().all(Option::is_some) && adopted.adopt(area()).is_none());
        held.pop();
        assert!(adopted.adopt(area()).is_some());
    }
}
