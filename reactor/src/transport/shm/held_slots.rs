//! The slots that this side holds: those of the loans and CMA offers of one sender.
//!
//! The sender assigns a slot to each loan and each offer (`loans/outstanding`), and assigns a slot
//! again only after this side has returned the slot. This side removes a slot from its own bitmap
//! before it returns the slot, so a record whose slot is held is a protocol violation. That bounds
//! the loans and offers of a sender here, however many records the sender writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::loans::SLOTS_PER_PEER;
use super::ring::ShmProtocolViolation;
use super::segment::{SLOT_BITMAP_WORDS, Segment};

const _: () = assert!(64 * SLOT_BITMAP_WORDS == SLOTS_PER_PEER);

/// The slots of one connection that this side holds.
#[derive(Debug)]
pub(crate) struct HeldSlots {
    /// Bit `n` of word `w` is slot `64 * w + n`.
    words: [AtomicU64; SLOT_BITMAP_WORDS],
    /// Segment in which slots are returned.
    segment: Segment,
}

impl HeldSlots {
    pub(crate) fn new(segment: Segment) -> Self {
        Self {
            words: Default::default(),
            segment,
        }
    }
}

/// A slot that this side holds. A slot that is dropped without a call stays held, as the slot of a
/// lost message does.
#[derive(Debug)]
pub(crate) struct HeldSlot {
    slots: Arc<HeldSlots>,
    slot: usize,
}

impl HeldSlot {
    /// Holds the slot of a record.
    ///
    /// # Errors
    /// The protocol violation, if the slot is out of bounds or held already.
    pub(crate) fn hold(slots: &Arc<HeldSlots>, slot: usize) -> Result<Self, ShmProtocolViolation> {
        if slot >= SLOTS_PER_PEER {
            return Err(ShmProtocolViolation("slot out of bounds"));
        }
        let held = Self {
            slots: slots.clone(),
            slot,
        };
        // SYNC: the cleared bit of a slot that was returned is visible here: `return_to_sender`
        // publishes the bit with the slot, and the ring publishes the sender's next record.
        if held.word().fetch_or(held.bit(), Ordering::Relaxed) & held.bit() != 0 {
            return Err(ShmProtocolViolation("slot of a message that is held"));
        }
        Ok(held)
    }

    fn word(&self) -> &AtomicU64 {
        &self.slots.words[self.slot / 64]
    }

    fn bit(&self) -> u64 {
        1 << (self.slot % 64)
    }

    /// Releases the slot without returning it: the record stays in the ring, and is received again.
    pub(crate) fn release(&self) {
        self.word().fetch_and(!self.bit(), Ordering::Relaxed);
    }

    /// Releases the slot and returns it to the sender.
    pub(crate) fn return_to_sender(&self) {
        // SYNC: before the return, whose release publishes the cleared bit.
        self.release();
        self.slots.segment.return_slot(self.slot);
    }

    /// Retires the slot, before it is returned: another process may still read its memory.
    pub(crate) fn retire(&self) {
        self.slots.segment.retire_slot(self.slot);
    }

    /// Returns the segment in which the slot is returned.
    pub(crate) fn segment(&self) -> &Segment {
        &self.slots.segment
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    /// Holds a slot of a connection of its own with this segment.
    pub(crate) fn hold_slot(segment: &Segment, slot: usize) -> HeldSlot {
        HeldSlot::hold(&Arc::new(HeldSlots::new(segment.clone())), slot).unwrap()
    }

    #[test]
    fn slot_is_held_once_until_it_is_returned_or_released() {
        let (segment, _fd) = Segment::create(64).unwrap();
        let slots = Arc::new(HeldSlots::new(segment.clone()));
        let all: Vec<_> = (0..SLOTS_PER_PEER)
            .map(|slot| HeldSlot::hold(&slots, slot).unwrap())
            .collect();
        for slot in [0, 63, 64, SLOTS_PER_PEER - 1, SLOTS_PER_PEER, usize::MAX] {
            assert!(HeldSlot::hold(&slots, slot).is_err(), "{slot}");
        }
        all[64].return_to_sender();
        all[65].release();
        for slot in [64, 65] {
            assert!(HeldSlot::hold(&slots, slot).is_ok());
            assert!(HeldSlot::hold(&slots, slot).is_err());
        }
        let returned: Vec<_> = (0..SLOT_BITMAP_WORDS)
            .map(|word| segment.take_returned_slots(word))
            .collect();
        assert_eq!(returned, [0, 1, 0, 0], "a released slot is not returned");
        drop(all);
        assert!(HeldSlot::hold(&slots, 7).is_err(), "a lost slot stays held");
    }
}
