//! Segments: the shared memory that holds the ring of one direction between two endpoints.
//!
//! The sender creates the segment (a memfd), seals its size, and passes the descriptor to the
//! receiver. The receiver maps it only if it is sealed and has the announced size. Hence no access
//! within `RingMemory::lines` can fault, whatever the peer does.
//!
//! # Safety
//!
//! This module holds the raw access to ring memory. `base` is a mapping of `LINES_AT + lines × 64`
//! bytes that lives as long as the value. Control words and headers are accessed as atomics, which
//! tolerate concurrent writes by the peer. Payload is only copied by raw pointer, never borrowed,
//! so no reference exists to memory that another process may change. A peer that changes payload
//! during a copy spoils its own message.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use fabric_core::buf::CopySource;
use fabric_core::{Error, Result};
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::memfd;
use super::record::MAX_ACKS;
use super::ring::{LINE_LEN, RingMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// Distance between control words, so that writers of different words do not share a pair of cache
/// lines.
const CONTROL_STRIDE: usize = 128;
/// Number of lines that the consumer has released.
const RELEASED_AT: usize = 0;
/// Flag of the consumer: awake, sleeping or closed.
const CONSUMER_WAITING_AT: usize = CONTROL_STRIDE;
/// Flag of the producer: whether it sleeps until lines are released.
const PRODUCER_WAITING_AT: usize = 2 * CONTROL_STRIDE;
/// Bits of the slots that the receiver returns, in words of 64. A *slot* is the index of a loan or
/// of a single-copy buffer that the receiver holds.
const RETURNED_SLOTS_AT: usize = 4 * CONTROL_STRIDE;
pub(crate) const SLOT_BITMAP_WORDS: usize = 4;
/// Bits of the returned slots whose memory may still be read, in `SLOT_BITMAP_WORDS` words too.
const RETIRED_SLOTS_AT: usize = RETURNED_SLOTS_AT + 8 * SLOT_BITMAP_WORDS;
/// Marker for cross-memory attach: an address in the sender's memory and the value stored there. A
/// receiver that reads this value at this address can copy from the sender's memory.
const CMA_MARKER_AT: usize = 5 * CONTROL_STRIDE;
/// Flag of the receiver that it has read the marker.
const CMA_CAPABLE_AT: usize = 6 * CONTROL_STRIDE;
/// Flag of the sender that its offers are revoked: the receiver must discard what it has copied.
const CMA_OFFERS_REVOKED_AT: usize = 7 * CONTROL_STRIDE;
/// Flag of the receiver that it has set ack bits, and the ack bits themselves, one for each ack id.
const HAS_ACKS_AT: usize = 8 * CONTROL_STRIDE;
const ACK_BITS_AT: usize = 9 * CONTROL_STRIDE;
/// Offset of the first line.
const LINES_AT: usize = 4096;
const _: () = assert!(ACK_BITS_AT + MAX_ACKS / 8 <= LINES_AT);

/// Fewest and most lines of a segment that is accepted from a peer.
const MIN_LINES: usize = 64;
const MAX_LINES: usize = 1 << 20;

/// A mapped segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    mapping: Arc<SegmentMapping>,
}

#[derive(Debug)]
struct SegmentMapping {
    base: NonNull<u8>,
    lines: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access to it is atomic or by raw
// copy.
unsafe impl Send for SegmentMapping {}
// SAFETY: as above.
unsafe impl Sync for SegmentMapping {}

/// Reason for which a segment was not mapped.
#[derive(Debug)]
pub(crate) enum SegmentError {
    /// The memory has the wrong size or lacks seals.
    Malformed(&'static str),
    /// This process lacks memory or address space for the mapping.
    NoResources(Error),
}

/// Lines of a record that are prefetched together: about as many misses as a core keeps in flight.
const PREFETCH_LINES: usize = 12;

impl Segment {
    /// Creates a segment. Returns the segment and the descriptor to pass to the peer.
    pub(crate) fn create(lines: usize) -> Result<(Self, OwnedFd)> {
        let failed = |call| move |errno: rustix::io::Errno| Error::os(call, errno.raw_os_error());
        let fd = memfd::create("fabric-shm", mapping_len(lines) as u64, "ftruncate")?;
        rustix::fs::ftruncate(&fd, mapping_len(lines) as u64).map_err(failed("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(failed("fcntl(F_ADD_SEALS)"))?;
        Ok((Self::map(&fd, lines)?, fd))
    }

    /// Maps a segment that a peer passed.
    ///
    /// # Errors
    /// `Malformed` with the reason, or `NoResources` if this process cannot map it.
    pub(crate) fn map_from_peer(fd: &OwnedFd, lines: usize) -> Result<Self, SegmentError> {
        Self::check(fd, lines).map_err(SegmentError::Malformed)?;
        Self::map(fd, lines).map_err(SegmentError::NoResources)
    }

    fn check(fd: &OwnedFd, lines: usize) -> Result<(), &'static str> {
        if !lines.is_power_of_two() || !(MIN_LINES..=MAX_LINES).contains(&lines) {
            return Err("number of segment lines is out of bounds");
        }
        let seals =
            rustix::fs::fcntl_get_seals(fd).map_err(|_| "segment memory does not support seals")?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
            return Err("segment memory is not sealed");
        }
        let size = rustix::fs::fstat(fd)
            .map_err(|_| "fstat of the segment memory failed")?
            .st_size;
        if usize::try_from(size) != Ok(mapping_len(lines)) {
            return Err("segment memory does not have the announced size");
        }
        Ok(())
    }

    fn map(fd: impl AsFd, lines: usize) -> Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapping_len(lines),
                protection,
                flags,
                fd,
                0,
            )
        };
        let base = base.map_err(|errno| Error::os("mmap", errno.raw_os_error()))?;
        let base = NonNull::new(base.cast()).ok_or(Error::os("mmap", 12))?;
        Ok(Self {
            mapping: Arc::new(SegmentMapping { base, lines }),
        })
    }

    /// Returns the payload of a record, to be copied out. `None` if it does not lie within the
    /// lines.
    pub(crate) fn payload(&self, start: usize, len: usize) -> Option<RecordPayload<'_>> {
        let end = start.checked_add(len)?;
        (end <= self.mapping.lines * LINE_LEN).then_some(RecordPayload {
            segment: self,
            start,
            len,
        })
    }

    /// Reads eight bytes of a record, once. Returns 0 if they do not lie within the lines.
    pub(crate) fn read_word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        if let Some(payload) = self.payload(at, 8) {
            payload.copy_to_init(0, &mut bytes);
        }
        u64::from_le_bytes(bytes)
    }

    /// Prefetches the lines of a record behind its first, so that they arrive while the message is
    /// matched.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        let count = (len.saturating_sub(1) / LINE_LEN).min(PREFETCH_LINES);
        for line in 1..=count {
            let line = self
                .mapping
                .base
                .as_ptr()
                .wrapping_add(LINES_AT + start + line * LINE_LEN);
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch accesses nothing, wherever the pointer leads.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                    line.cast_const().cast(),
                );
            }
        }
    }

    fn ptr_at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < mapping_len(self.mapping.lines));
        // SAFETY: callers pass offsets within the mapping.
        unsafe { self.mapping.base.add(offset) }
    }

    /// Returns a slot to the sender.
    pub(crate) fn return_slot(&self, slot: usize) {
        // SYNC: pairs with the acquire in `take_returned_slots`: the receiver is done with the
        // memory.
        self.returned_slots_word(slot / 64)
            .fetch_or(1 << (slot % 64), Ordering::Release);
    }

    /// Retires a slot, before it is returned: its memory may still be read and is not reused.
    pub(crate) fn retire_slot(&self, slot: usize) {
        // SYNC: published by the release in `return_slot`.
        self.retired_slots_word(slot)
            .fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    /// Returns whether a slot that was returned is retired, and clears the mark.
    pub(crate) fn take_retired_slot(&self, slot: usize) -> bool {
        let bit = 1 << (slot % 64);
        // SYNC: the acquire in `take_returned_slots` was before.
        self.retired_slots_word(slot).load(Ordering::Relaxed) & bit != 0
            && self
                .retired_slots_word(slot)
                .fetch_and(!bit, Ordering::Relaxed)
                & bit
                != 0
    }

    fn retired_slots_word(&self, slot: usize) -> &AtomicU64 {
        self.control_u64(RETIRED_SLOTS_AT + 8 * (slot / 64 % SLOT_BITMAP_WORDS))
    }

    /// Takes the slots of this word that were returned since the last call, a bit each.
    pub(crate) fn take_returned_slots(&self, word: usize) -> u64 {
        match self.returned_slots_word(word).load(Ordering::Relaxed) {
            0 => 0,
            // SYNC: pairs with the release in `return_slot`.
            _ => self.returned_slots_word(word).swap(0, Ordering::Acquire),
        }
    }

    /// Returns whether slots were returned since the last call of `take_returned_slots`.
    pub(crate) fn has_returned_slots(&self) -> bool {
        (0..SLOT_BITMAP_WORDS)
            .any(|word| self.returned_slots_word(word).load(Ordering::Relaxed) != 0)
    }

    fn returned_slots_word(&self, word: usize) -> &AtomicU64 {
        self.control_u64(RETURNED_SLOTS_AT + 8 * (word % SLOT_BITMAP_WORDS))
    }

    /// Acknowledges the message with this ack id, which must be below `MAX_ACKS`.
    pub(crate) fn set_ack(&self, ack_id: usize) {
        // SYNC: pairs with the acquire in `take_acks`: a sender that sees the bit sees what the
        // receiver did before.
        self.ack_word(ack_id / 64)
            .fetch_or(1 << (ack_id % 64), Ordering::Release);
        // SYNC: pairs with the acquire in `take_has_acks`: a sender that clears the flag sees the
        // bit.
        self.control_u32(HAS_ACKS_AT).store(1, Ordering::Release);
    }

    /// Returns whether acks may have arrived, without clearing the flag.
    pub(crate) fn has_acks(&self) -> bool {
        self.control_u32(HAS_ACKS_AT).load(Ordering::Relaxed) != 0
    }

    /// Clears the flag; returns whether acks arrived since the last call.
    pub(crate) fn take_has_acks(&self) -> bool {
        // SYNC: pairs with the release in `set_ack`.
        self.has_acks() && self.control_u32(HAS_ACKS_AT).swap(0, Ordering::Acquire) != 0
    }

    /// Takes the acks of this word that were set since the last call, a bit each.
    pub(crate) fn take_acks(&self, word: usize) -> u64 {
        match self.ack_word(word).load(Ordering::Relaxed) {
            0 => 0,
            // SYNC: pairs with the release in `set_ack`.
            _ => self.ack_word(word).swap(0, Ordering::Acquire),
        }
    }

    fn ack_word(&self, word: usize) -> &AtomicU64 {
        self.control_u64(ACK_BITS_AT + 8 * (word % (MAX_ACKS / 64)))
    }

    /// Publishes the sender's marker, before the hello: its address and the value stored there.
    pub(crate) fn set_cma_marker(&self, at: u64, value: u64) {
        self.control_u64(CMA_MARKER_AT).store(at, Ordering::Relaxed);
        self.control_u64(CMA_MARKER_AT + 8)
            .store(value, Ordering::Relaxed);
    }

    /// Returns the sender's marker; zeros if the sender does not permit single copy.
    pub(crate) fn cma_marker(&self) -> (u64, u64) {
        (
            self.control_u64(CMA_MARKER_AT).load(Ordering::Relaxed),
            self.control_u64(CMA_MARKER_AT + 8).load(Ordering::Relaxed),
        )
    }

    /// Records that the receiver has read the marker; set before the accept message is sent.
    pub(crate) fn set_cma_capable(&self) {
        self.control_u32(CMA_CAPABLE_AT).store(1, Ordering::Relaxed);
    }

    pub(crate) fn is_cma_capable(&self) -> bool {
        self.control_u32(CMA_CAPABLE_AT).load(Ordering::Relaxed) != 0
    }

    /// Records that the sender is about to free buffers that it has offered.
    pub(crate) fn revoke_cma_offers(&self) {
        self.control_u32(CMA_OFFERS_REVOKED_AT)
            .store(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `are_cma_offers_revoked`. A receiver that sees a later write to the
        // freed memory also sees this flag.
        full_fence();
    }

    /// Returns whether the sender has revoked its offers; checked after its memory was read.
    pub(crate) fn are_cma_offers_revoked(&self) -> bool {
        // SYNC: pairs with the fence in `revoke_cma_offers`.
        full_fence();
        self.control_u32(CMA_OFFERS_REVOKED_AT)
            .load(Ordering::Relaxed)
            != 0
    }

    fn control_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass offsets within the first page that are multiples of eight; the word
        // is only ever accessed as an atomic.
        unsafe { self.ptr_at(offset).cast().as_ref() }
    }

    fn control_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is one of the constants above: within the mapping and aligned. The word
        // is only ever accessed as an atomic.
        unsafe { self.ptr_at(offset).cast().as_ref() }
    }
}

impl RingMemory for Segment {
    fn lines(&self) -> usize {
        self.mapping.lines
    }

    fn header(&self, line: usize) -> &AtomicU64 {
        let line = line & (self.mapping.lines - 1);
        // SAFETY: the line is within the mapping and aligned, since a line is 64 bytes. The
        // producer also overwrites it with payload by raw copy, but only while the ring's
        // invariants keep the consumer from reading it; a hostile peer that does so at another time
        // spoils the value, which is checked.
        unsafe { self.ptr_at(LINES_AT + line * LINE_LEN).cast().as_ref() }
    }

    fn released(&self) -> &AtomicU64 {
        // SAFETY: as in `control_u32`.
        unsafe { self.ptr_at(RELEASED_AT).cast().as_ref() }
    }

    fn consumer_waiting(&self) -> &AtomicU32 {
        self.control_u32(CONSUMER_WAITING_AT)
    }

    fn producer_waiting(&self) -> &AtomicU32 {
        self.control_u32(PRODUCER_WAITING_AT)
    }

    #[inline(always)] // fast path of small messages
    fn prefetch_for_write(&self, line: usize) {
        let line = self.ptr_at(LINES_AT + line * LINE_LEN);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch accesses nothing, and is a no-op on processors without it. The
        // intrinsic has no hint for writing on the baseline processor.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) line.as_ptr(),
                options(nostack, preserves_flags, readonly)
            );
        }
        let _ = line;
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.mapping.lines * LINE_LEN);
        // SAFETY: the caller guarantees that the range lies within the lines; `bytes` is ordinary
        // memory, so the two ranges do not overlap.
        unsafe {
            copy_bytes(
                bytes.as_ptr(),
                self.ptr_at(LINES_AT + at).as_ptr(),
                bytes.len(),
            );
        }
    }
}

/// Copies bytes; 8 to 16 bytes are copied by two words instead of a call of `memcpy`.
///
/// # Safety
/// Those of `std::ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller guarantees both ranges, and each access lies within them: the second word
    // of a pair ends where the range ends.
    unsafe {
        if (8..=16).contains(&count) {
            let last = count - 8;
            let words = (
                from.cast::<u64>().read_unaligned(),
                from.add(last).cast::<u64>().read_unaligned(),
            );
            to.cast::<u64>().write_unaligned(words.0);
            to.add(last).cast::<u64>().write_unaligned(words.1);
        } else {
            std::ptr::copy_nonoverlapping(from, to, count);
        }
    }
}

/// Payload of a record: bytes in shared memory that a peer wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordPayload<'a> {
    segment: &'a Segment,
    start: usize,
    len: usize,
}

impl RecordPayload<'_> {
    fn ptr_at(&self, from: usize, count: usize) -> *const u8 {
        assert!(
            from <= self.len && count <= self.len - from,
            "access beyond the payload of a record"
        );
        self.segment
            .ptr_at(LINES_AT)
            .as_ptr()
            .wrapping_add(self.start + from)
    }
}

impl CopySource for RecordPayload<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_to<'d>(&self, from: usize, dst: &'d mut [MaybeUninit<u8>]) -> &'d mut [u8] {
        let source = self.ptr_at(from, dst.len());
        let (start, count) = (dst.as_mut_ptr().cast::<u8>(), dst.len());
        // SAFETY: `ptr_at` checked that the source lies within the mapping; `dst` is ordinary
        // memory of `count` bytes, initialised by the copy.
        unsafe {
            copy_bytes(source, start, count);
            std::slice::from_raw_parts_mut(start, count)
        }
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        let source = self.ptr_at(from, dst.len());
        // SAFETY: as in `copy_to`.
        unsafe { std::ptr::copy_nonoverlapping(source, dst.as_mut_ptr(), dst.len()) };
    }
}

impl Drop for SegmentMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), mapping_len(self.lines)) };
    }
}

fn mapping_len(lines: usize) -> usize {
    LINES_AT + lines * LINE_LEN
}

#[cfg(all(test, not(loom)))]
mod tests {
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
        assert!(rejected(&fd, 1 << 40, "out of bounds"));
        let bare = memfd::create("bare", 0, "ftruncate").unwrap();
        rustix::fs::ftruncate(&bare, mapping_len(64) as u64).unwrap();
        assert!(rejected(&bare, 64, "not sealed"));
        let null = std::fs::File::open("/dev/null").unwrap().into();
        assert!(Segment::map_from_peer(&null, 64).is_err());
    }

    #[test]
    fn payload_never_exceeds_the_ring_lines() {
        let (segment, _fd) = Segment::create(64).unwrap();
        assert!(segment.payload(64 * LINE_LEN - 8, 8).is_some());
        assert!(segment.payload(64 * LINE_LEN - 8, 9).is_none());
        assert!(segment.payload(usize::MAX, 2).is_none());
        assert_eq!(segment.read_word(64 * LINE_LEN), 0);
    }
}
