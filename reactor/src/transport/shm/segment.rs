//! Segments: the shared memory of one direction of a connection.
//!
//! A segment holds control words in its first page, and the lines of the ring behind them. The
//! sender creates the segment (a memfd), allocates its first [`INITIAL_LINES`], seals its size, and
//! passes the descriptor to the receiver in the hello. The receiver maps a segment only if the
//! memory is sealed, has the announced size and its first lines are allocated (`sys::memfd`). Both
//! populate the other lines when the ring grows.
//!
//! A peer may change the segment at any time. Control words and headers are accessed as atomics,
//! and payload is copied (`sys::mapping`). A peer that changes payload during a copy corrupts its
//! own message.

use std::os::fd::{AsFd, OwnedFd};

use fabric_core::{Error, Result};

use super::record::MAX_ACKS;
use super::ring::{LINE_LEN, RingMemory};
use crate::sys::mapping::{CONTROL_LEN, MappedRange, MemoryOwner, WordMapping};
use crate::sys::memfd;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

// Layout of a segment: byte offsets of the words in the control page. The data is the ring.

/// Distance between control words, so that writers of different words do not share a pair of cache
/// lines.
const CONTROL_STRIDE: usize = 128;
/// Number of lines that the consumer has released since the start, 8 bytes.
const RELEASED_AT: usize = 0;
/// State of the consumer, 4 bytes: awake, sleeping or closed (`RingMemory::consumer_waiting`).
const CONSUMER_WAITING_AT: usize = CONTROL_STRIDE;
/// Flag of the producer, 4 bytes: the producer sleeps (`RingMemory::producer_waiting`).
const PRODUCER_WAITING_AT: usize = 2 * CONTROL_STRIDE;
/// Bitmap of the slots that the receiver has returned. A *slot* numbers a loan or a CMA offer that
/// the receiver holds; the sender assigns slots (`loans/outstanding`).
const RETURNED_SLOTS_AT: usize = 4 * CONTROL_STRIDE;
/// Words of a bitmap of slots, of 64 bits each.
pub(crate) const SLOT_BITMAP_WORDS: usize = 4;
/// Bitmap of the returned slots that are retired: another process may still read their memory.
const RETIRED_SLOTS_AT: usize = RETURNED_SLOTS_AT + 8 * SLOT_BITMAP_WORDS;
/// The sender's [`CmaMarker`]: address and value, 8 bytes each.
const CMA_MARKER_AT: usize = 5 * CONTROL_STRIDE;
/// Flag of the receiver, 4 bytes: the kernel lets the receiver read the sender's memory.
const CMA_CAPABLE_AT: usize = 6 * CONTROL_STRIDE;
/// Flag of the receiver, 4 bytes: the sender is to grant no further chunks for loans.
const LOANS_REFUSED_AT: usize = CMA_CAPABLE_AT + 8;
/// Flag of the sender, 4 bytes: its CMA offers are revoked, and the receiver must discard what it
/// has copied.
const CMA_OFFERS_REVOKED_AT: usize = 7 * CONTROL_STRIDE;
/// Flag of the receiver, 4 bytes: the receiver has set ack bits.
const HAS_ACKS_AT: usize = 8 * CONTROL_STRIDE;
/// Bitmap of the ack ids that the receiver has acknowledged.
const ACK_BITS_AT: usize = 9 * CONTROL_STRIDE;
const _: () = assert!(ACK_BITS_AT + MAX_ACKS / 8 <= CONTROL_LEN);

/// Bounds of the number of lines of a segment that is accepted from a peer.
const MIN_LINES: usize = 64;
/// Lines of a segment that this process creates, once its ring has grown, and at most of a segment
/// of a peer: 512 KiB. A mapped segment holds its memory also when the peer has left. A peer may
/// leave lines that are not allocated, or free them later: this process allocates such lines when
/// it reads them.
pub(crate) const MAX_LINES: usize = 8192;
/// Lines that a ring begins with, if it grows: 128 KiB.
const INITIAL_LINES: usize = 2048;

/// Returns how many lines a ring of up to `lines` lines begins with. These are allocated.
fn initial_lines(lines: usize) -> usize {
    lines.min(INITIAL_LINES)
}

/// A word in the memory of the sender's process. A receiver that reads `value` at `address` with
/// `process_vm_readv` can copy from the sender's memory (`cma`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CmaMarker {
    pub(crate) address: u64,
    /// Random and not 0; 0 if the sender does not permit single copy.
    pub(crate) value: u64,
}

/// A mapped segment; clones share the mapping.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    mapping: WordMapping,
}

/// Reason why a segment of a peer was not mapped.
#[derive(Debug)]
pub(crate) enum SegmentError {
    /// The memory has the wrong size or lacks seals: the peer violated the protocol.
    Malformed(&'static str),
    /// `mmap` failed in this process.
    NoResources(Error),
}

/// Maximum number of lines that are prefetched for a record: about as many cache misses as a core
/// keeps in flight.
const PREFETCH_LINES: usize = 12;

impl Segment {
    /// Creates a segment with a ring of up to `lines` lines. Returns the segment and the descriptor
    /// to pass to the peer.
    pub(crate) fn create(lines: usize) -> Result<(Self, OwnedFd)> {
        let len = lines * LINE_LEN;
        let allocated = CONTROL_LEN + initial_lines(lines) * LINE_LEN;
        let memory = memfd::create_sparse("fabric-shm", CONTROL_LEN + len, allocated)?;
        memfd::seal(&memory, true)?;
        let mapping = WordMapping::map(&memory, len, MemoryOwner::ThisProcess)?;
        Ok((Self { mapping }, memory))
    }

    /// Maps a segment that a peer passed and announced with this number of lines.
    pub(crate) fn map_from_peer(memory: impl AsFd, lines: usize) -> Result<Self, SegmentError> {
        if !lines.is_power_of_two() || !(MIN_LINES..=MAX_LINES).contains(&lines) {
            return Err(SegmentError::Malformed(
                "number of segment lines is out of bounds",
            ));
        }
        let len = lines * LINE_LEN;
        let allocated = CONTROL_LEN + initial_lines(lines) * LINE_LEN;
        memfd::check_received_sparse(&memory, CONTROL_LEN + len, allocated)
            .map_err(SegmentError::Malformed)?;
        let mapping =
            WordMapping::map(memory, len, MemoryOwner::Peer).map_err(SegmentError::NoResources)?;
        Ok(Self { mapping })
    }

    /// Returns the bytes of the mapping.
    pub(crate) fn mapped_len(&self) -> usize {
        CONTROL_LEN + self.mapping.len()
    }

    /// Returns `len` bytes of a record from byte `start` of the lines, to be copied out. `None` if
    /// these bytes do not lie within the lines.
    #[inline(always)] // fast path of small messages
    pub(crate) fn payload(&self, start: usize, len: usize) -> Option<MappedRange<'_>> {
        self.mapping.get(start, len)
    }

    /// Reads a word of a record, once, at byte `at` of the lines, a multiple of eight. A position
    /// behind the lines wraps around.
    #[inline]
    pub(crate) fn read_word(&self, at: usize) -> u64 {
        debug_assert!(at.is_multiple_of(8), "words of records are aligned");
        u64::from_le(self.mapping.word(at).load(Ordering::Relaxed))
    }

    /// Prefetches the lines of a record except the first, so that the lines arrive while the
    /// message is matched. The record has `len` bytes from byte `start` of the lines.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        let count = (len.saturating_sub(1) / LINE_LEN).min(PREFETCH_LINES);
        (1..=count).for_each(|line| self.mapping.prefetch(start + line * LINE_LEN));
    }

    // ---- slots of loans and CMA offers

    /// Returns a slot to the sender.
    pub(crate) fn return_slot(&self, slot: usize) {
        // SYNC: pairs with the acquire in `take_returned_slots`: the receiver's accesses to the
        // memory of the slot precede the sender's reuse.
        self.returned_slots_word(slot / 64)
            .fetch_or(1 << (slot % 64), Ordering::Release);
    }

    /// Retires a slot, before it is returned: the sender must not reuse its memory, because another
    /// process may still read it.
    pub(crate) fn retire_slot(&self, slot: usize) {
        // SYNC: published by the release in `return_slot`.
        self.retired_slots_word(slot / 64)
            .fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    /// Clears the retired bit of a slot that `take_returned_slots` has reported. Returns whether
    /// the bit was set.
    pub(crate) fn take_retired_slot(&self, slot: usize) -> bool {
        let (word, bit) = (self.retired_slots_word(slot / 64), 1 << (slot % 64));
        // SYNC: ordered by the acquire in `take_returned_slots`.
        word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    fn retired_slots_word(&self, word: usize) -> &AtomicU64 {
        self.mapping
            .control_u64(RETIRED_SLOTS_AT + 8 * (word % SLOT_BITMAP_WORDS))
    }

    /// Takes the bits of one word of the bitmap: the slots returned since the last call. Bit `n` of
    /// word `w` is slot `64 * w + n`.
    pub(crate) fn take_returned_slots(&self, word: usize) -> u64 {
        // SYNC: pairs with the release in `return_slot`.
        take_bits(self.returned_slots_word(word))
    }

    /// Returns whether a slot was returned that `take_returned_slots` has not reported.
    pub(crate) fn has_returned_slots(&self) -> bool {
        (0..SLOT_BITMAP_WORDS)
            .any(|word| self.returned_slots_word(word).load(Ordering::Relaxed) != 0)
    }

    fn returned_slots_word(&self, word: usize) -> &AtomicU64 {
        self.mapping
            .control_u64(RETURNED_SLOTS_AT + 8 * (word % SLOT_BITMAP_WORDS))
    }

    /// Records whether the receiver refuses to map further chunks.
    pub(crate) fn set_loans_refused(&self, refused: bool) {
        self.mapping
            .control_u32(LOANS_REFUSED_AT)
            .store(u32::from(refused), Ordering::Relaxed);
    }

    /// Returns whether the receiver refuses to map further chunks, so that the sender copies
    /// messages that are in chunks the receiver does not have.
    pub(crate) fn are_loans_refused(&self) -> bool {
        self.mapping
            .control_u32(LOANS_REFUSED_AT)
            .load(Ordering::Relaxed)
            != 0
    }

    // ---- acks

    /// Acknowledges the message with this ack id, which must be below `MAX_ACKS`.
    pub(crate) fn set_ack(&self, ack_id: usize) {
        // SYNC: pairs with the acquire in `take_acks`: a sender that sees the bit sees the earlier
        // writes of the receiver.
        self.ack_word(ack_id / 64)
            .fetch_or(1 << (ack_id % 64), Ordering::Release);
        // SYNC: pairs with the acquire in `take_has_acks`: a sender that clears the flag sees the
        // bit.
        self.mapping
            .control_u32(HAS_ACKS_AT)
            .store(1, Ordering::Release);
    }

    /// Returns whether acks may have arrived, without clearing the flag.
    pub(crate) fn has_acks(&self) -> bool {
        self.mapping
            .control_u32(HAS_ACKS_AT)
            .load(Ordering::Relaxed)
            != 0
    }

    /// Clears the flag of arrived acks. Returns whether the flag was set.
    pub(crate) fn take_has_acks(&self) -> bool {
        // SYNC: pairs with the release in `set_ack`.
        self.has_acks()
            && self
                .mapping
                .control_u32(HAS_ACKS_AT)
                .swap(0, Ordering::Acquire)
                != 0
    }

    /// Takes the bits of one word of the bitmap: the ack ids acknowledged since the last call. Bit
    /// `n` of word `w` is ack id `64 * w + n`.
    pub(crate) fn take_acks(&self, word: usize) -> u64 {
        // SYNC: pairs with the release in `set_ack`.
        take_bits(self.ack_word(word))
    }

    fn ack_word(&self, word: usize) -> &AtomicU64 {
        self.mapping
            .control_u64(ACK_BITS_AT + 8 * (word % (MAX_ACKS / 64)))
    }

    // ---- cross-memory attach

    /// Publishes the sender's marker, before the hello is sent.
    pub(crate) fn set_cma_marker(&self, marker: CmaMarker) {
        self.mapping
            .control_u64(CMA_MARKER_AT)
            .store(marker.address, Ordering::Relaxed);
        self.mapping
            .control_u64(CMA_MARKER_AT + 8)
            .store(marker.value, Ordering::Relaxed);
    }

    /// Returns the marker that the sender has published; zeros if there is none.
    pub(crate) fn cma_marker(&self) -> CmaMarker {
        CmaMarker {
            address: self
                .mapping
                .control_u64(CMA_MARKER_AT)
                .load(Ordering::Relaxed),
            value: self
                .mapping
                .control_u64(CMA_MARKER_AT + 8)
                .load(Ordering::Relaxed),
        }
    }

    /// Records that the receiver may read the sender's memory, before the accept message is sent.
    pub(crate) fn set_cma_capable(&self) {
        self.mapping
            .control_u32(CMA_CAPABLE_AT)
            .store(1, Ordering::Relaxed);
    }

    /// Returns whether the receiver may read this process's memory; valid once the accept message
    /// has arrived.
    pub(crate) fn is_cma_capable(&self) -> bool {
        self.mapping
            .control_u32(CMA_CAPABLE_AT)
            .load(Ordering::Relaxed)
            != 0
    }

    /// Records that the sender is about to free the buffers of its CMA offers.
    pub(crate) fn revoke_cma_offers(&self) {
        self.mapping
            .control_u32(CMA_OFFERS_REVOKED_AT)
            .store(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `are_cma_offers_revoked`. A receiver that sees a later
        // write to the freed memory also sees this flag.
        full_fence();
    }

    /// Returns whether the sender has revoked its CMA offers. The receiver calls this after it has
    /// read the sender's memory.
    pub(crate) fn are_cma_offers_revoked(&self) -> bool {
        // SYNC: pairs with the fence in `revoke_cma_offers`.
        full_fence();
        self.mapping
            .control_u32(CMA_OFFERS_REVOKED_AT)
            .load(Ordering::Relaxed)
            != 0
    }
}

/// Clears a word of a bitmap with acquire, if a bit is set. Returns the bits.
fn take_bits(word: &AtomicU64) -> u64 {
    match word.load(Ordering::Relaxed) {
        0 => 0,
        _ => word.swap(0, Ordering::Acquire),
    }
}

impl RingMemory for Segment {
    fn lines(&self) -> usize {
        self.mapping.len() / LINE_LEN
    }

    fn initial_lines(&self) -> usize {
        initial_lines(self.lines())
    }

    fn allocate_rest(&self) -> bool {
        self.mapping
            .populate_from(self.initial_lines() * LINE_LEN, true)
    }

    fn is_rest_allocated(&self) -> bool {
        self.mapping
            .populate_from(self.initial_lines() * LINE_LEN, false)
    }

    #[inline(always)] // fast path of small messages
    fn header(&self, line: usize) -> &AtomicU64 {
        self.mapping.word(line * LINE_LEN)
    }

    fn released(&self) -> &AtomicU64 {
        self.mapping.control_u64(RELEASED_AT)
    }

    fn consumer_waiting(&self) -> &AtomicU32 {
        self.mapping.control_u32(CONSUMER_WAITING_AT)
    }

    fn producer_waiting(&self) -> &AtomicU32 {
        self.mapping.control_u32(PRODUCER_WAITING_AT)
    }

    #[inline(always)] // fast path of small messages
    fn prefetch_for_write(&self, line: usize) {
        self.mapping.prefetch_for_write(line * LINE_LEN);
    }

    #[inline(always)] // fast path of small messages
    fn write(&self, at: usize, bytes: &[u8]) {
        self.mapping.write(at, bytes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::ring::{Consumer, HEADER_LEN};
    use super::*;

    #[test]
    fn only_sealed_segments_of_announced_size_are_mapped() {
        let (_segment, fd) = Segment::create(64).unwrap();
        assert!(Segment::map_from_peer(&fd, 64).is_ok());
        let rejected = |fd: &OwnedFd, lines, reason: &str| {
            matches!(
                Segment::map_from_peer(fd, lines),
                Err(SegmentError::Malformed(what)) if what.contains(reason)
            )
        };
        assert!(rejected(&fd, 128, "announced size"));
        assert!(rejected(&fd, 65, "out of bounds"));
        assert!(rejected(&fd, 2 * MAX_LINES, "out of bounds"));
        assert!(rejected(&fd, 1 << 40, "out of bounds"));
        let size = CONTROL_LEN + 64 * LINE_LEN;
        let unsealed = memfd::create("unsealed", size).unwrap();
        assert!(rejected(&unsealed, 64, "not sealed"));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Segment::map_from_peer(&null, 64).is_err());
    }

    /// The lines that a peer has not allocated are allocated by this process when the ring grows,
    /// and stay allocated as long as the peer has the memory: the number of lines bounds them.
    #[test]
    fn growth_of_a_hostile_ring_allocates_little_memory() {
        const MAX_ALLOCATED: usize = 1 << 20;
        let size = CONTROL_LEN + MAX_LINES * LINE_LEN;
        let allocated = CONTROL_LEN + INITIAL_LINES * LINE_LEN;
        let memory = memfd::create_sparse("hostile", size, allocated).unwrap();
        memfd::seal(&memory, true).unwrap();
        let segment = Segment::map_from_peer(&memory, MAX_LINES).unwrap();
        let mut consumer = Consumer::new(segment.clone());
        let header = |kind: u64, len: usize| kind | (len as u64) << 16 | 1 << 40;
        for line in 0..INITIAL_LINES - 1 {
            let record = header(1, HEADER_LEN);
            segment.header(line).store(record, Ordering::Relaxed);
            let record = consumer.peek().unwrap().expect("a record");
            consumer.consume(record);
        }
        let growth = header(0xfe, LINE_LEN);
        segment
            .header(INITIAL_LINES - 1)
            .store(growth, Ordering::Relaxed);
        assert_eq!(consumer.peek(), Ok(None));
        let blocks = rustix::fs::fstat(&memory).unwrap().st_blocks;
        assert!(blocks as usize * 512 <= MAX_ALLOCATED, "{blocks} blocks");
    }

    #[test]
    fn payload_outside_of_the_lines_is_not_returned() {
        let (segment, _fd) = Segment::create(64).unwrap();
        assert!(segment.payload(64 * LINE_LEN - 8, 8).is_some());
        assert!(segment.payload(64 * LINE_LEN - 8, 9).is_none());
        assert!(segment.payload(usize::MAX, 2).is_none());
    }
}
