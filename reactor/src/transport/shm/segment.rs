//! Segments: the shared memory of one direction of a connection.
//!
//! A segment holds control words in its first page, and the lines of the ring behind them. The
//! sender creates the segment (a memfd), seals its size, and passes the descriptor to the receiver
//! in the hello. The receiver maps a segment only if the memory is sealed and has the announced
//! size. Hence no access within the mapping can fault, whatever the peer does.
//!
//! # Safety
//!
//! This module holds the raw access to ring memory. `SegmentMapping::base` is a mapping of
//! `LINES_AT + lines × LINE_LEN` bytes that lives as long as the value. Control words and headers
//! are accessed as atomics, which tolerate concurrent writes by the peer. Payload is only copied by
//! raw pointer, never borrowed, so no reference exists to memory that another process may change. A
//! peer that changes payload during a copy corrupts its own message.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use fabric_core::buf::CopySource;
use fabric_core::{Error, Result};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::record::MAX_ACKS;
use super::ring::{LINE_LEN, RingMemory};
use crate::sys::memfd;
use crate::sys::os_error::os_error;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

// Layout of a segment: byte offsets of the control words, and of the ring.

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
/// Flag of the receiver, 4 bytes: the receiver has read the marker from the sender's memory.
const CMA_CAPABLE_AT: usize = 6 * CONTROL_STRIDE;
/// Flag of the sender, 4 bytes: its CMA offers are revoked, and the receiver must discard what it
/// has copied.
const CMA_OFFERS_REVOKED_AT: usize = 7 * CONTROL_STRIDE;
/// Flag of the receiver, 4 bytes: the receiver has set ack bits.
const HAS_ACKS_AT: usize = 8 * CONTROL_STRIDE;
/// Bitmap of the ack ids that the receiver has acknowledged.
const ACK_BITS_AT: usize = 9 * CONTROL_STRIDE;
/// The lines of the ring.
const LINES_AT: usize = 4096;
const _: () = assert!(ACK_BITS_AT + MAX_ACKS / 8 <= LINES_AT);

/// Bounds of the number of lines of a segment that is accepted from a peer.
const MIN_LINES: usize = 64;
const MAX_LINES: usize = 1 << 20;

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
    mapping: Arc<SegmentMapping>,
}

/// The mapping of a segment, which is removed on drop.
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
    /// Creates a segment with a ring of `lines` lines. Returns the segment and the descriptor to
    /// pass to the peer.
    pub(crate) fn create(lines: usize) -> Result<(Self, OwnedFd)> {
        let fd = memfd::create("fabric-shm", mapping_len(lines) as u64, "ftruncate")?;
        rustix::fs::ftruncate(&fd, mapping_len(lines) as u64).map_err(os_error("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(os_error("fcntl(F_ADD_SEALS)"))?;
        Ok((Self::map(&fd, lines)?, fd))
    }

    /// Maps a segment that a peer passed and announced with this number of lines.
    pub(crate) fn map_from_peer(fd: &OwnedFd, lines: usize) -> Result<Self, SegmentError> {
        Self::check(fd, lines).map_err(SegmentError::Malformed)?;
        Self::map(fd, lines).map_err(SegmentError::NoResources)
    }

    /// Checks the size and the seals of a segment that a peer passed.
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
        let base =
            NonNull::new(base.cast()).ok_or(Error::os("mmap", Errno::NOMEM.raw_os_error()))?;
        Ok(Self {
            mapping: Arc::new(SegmentMapping { base, lines }),
        })
    }

    /// Returns `len` bytes of a record from byte `start` of the lines, to be copied out. `None` if
    /// these bytes do not lie within the lines.
    pub(crate) fn payload(&self, start: usize, len: usize) -> Option<RecordPayload<'_>> {
        let end = start.checked_add(len)?;
        (end <= self.mapping.lines * LINE_LEN).then_some(RecordPayload {
            segment: self,
            start,
            len,
        })
    }

    /// Reads a word of a record, once, at byte `at` of the lines. Returns 0 if the word does not
    /// lie within the lines.
    pub(crate) fn read_word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        if let Some(payload) = self.payload(at, 8) {
            payload.copy_to_init(0, &mut bytes);
        }
        u64::from_le_bytes(bytes)
    }

    /// Prefetches the lines of a record except the first, so that the lines arrive while the
    /// message is matched. The record has `len` bytes from byte `start` of the lines.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        let count = (len.saturating_sub(1) / LINE_LEN).min(PREFETCH_LINES);
        for line in 1..=count {
            let line_ptr = self
                .mapping
                .base
                .as_ptr()
                .wrapping_add(LINES_AT + start + line * LINE_LEN);
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch accesses nothing, wherever the pointer leads.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                    line_ptr.cast_const().cast(),
                );
            }
        }
    }

    /// Returns the address of a byte offset, which must lie within the mapping.
    fn ptr_at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < mapping_len(self.mapping.lines));
        // SAFETY: callers pass offsets within the mapping.
        unsafe { self.mapping.base.add(offset) }
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
        self.control_u64(RETIRED_SLOTS_AT + 8 * (word % SLOT_BITMAP_WORDS))
    }

    /// Takes the bits of one word of the bitmap: the slots returned since the last call. Bit `n` of
    /// word `w` is slot `64 * w + n`.
    pub(crate) fn take_returned_slots(&self, word: usize) -> u64 {
        match self.returned_slots_word(word).load(Ordering::Relaxed) {
            0 => 0,
            // SYNC: pairs with the release in `return_slot`.
            _ => self.returned_slots_word(word).swap(0, Ordering::Acquire),
        }
    }

    /// Returns whether a slot was returned that `take_returned_slots` has not reported.
    pub(crate) fn has_returned_slots(&self) -> bool {
        (0..SLOT_BITMAP_WORDS)
            .any(|word| self.returned_slots_word(word).load(Ordering::Relaxed) != 0)
    }

    fn returned_slots_word(&self, word: usize) -> &AtomicU64 {
        self.control_u64(RETURNED_SLOTS_AT + 8 * (word % SLOT_BITMAP_WORDS))
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
        self.control_u32(HAS_ACKS_AT).store(1, Ordering::Release);
    }

    /// Returns whether acks may have arrived, without clearing the flag.
    pub(crate) fn has_acks(&self) -> bool {
        self.control_u32(HAS_ACKS_AT).load(Ordering::Relaxed) != 0
    }

    /// Clears the flag of arrived acks. Returns whether the flag was set.
    pub(crate) fn take_has_acks(&self) -> bool {
        // SYNC: pairs with the release in `set_ack`.
        self.has_acks() && self.control_u32(HAS_ACKS_AT).swap(0, Ordering::Acquire) != 0
    }

    /// Takes the bits of one word of the bitmap: the ack ids acknowledged since the last call. Bit
    /// `n` of word `w` is ack id `64 * w + n`.
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

    // ---- cross-memory attach

    /// Publishes the sender's marker, before the hello is sent.
    pub(crate) fn set_cma_marker(&self, marker: CmaMarker) {
        self.control_u64(CMA_MARKER_AT)
            .store(marker.address, Ordering::Relaxed);
        self.control_u64(CMA_MARKER_AT + 8)
            .store(marker.value, Ordering::Relaxed);
    }

    /// Returns the marker that the sender has published; zeros if there is none.
    pub(crate) fn cma_marker(&self) -> CmaMarker {
        CmaMarker {
            address: self.control_u64(CMA_MARKER_AT).load(Ordering::Relaxed),
            value: self.control_u64(CMA_MARKER_AT + 8).load(Ordering::Relaxed),
        }
    }

    /// Records that the receiver has read the marker, before the accept message is sent.
    pub(crate) fn set_cma_capable(&self) {
        self.control_u32(CMA_CAPABLE_AT).store(1, Ordering::Relaxed);
    }

    /// Returns whether the receiver has read the marker; valid once the accept message has arrived.
    pub(crate) fn is_cma_capable(&self) -> bool {
        self.control_u32(CMA_CAPABLE_AT).load(Ordering::Relaxed) != 0
    }

    /// Records that the sender is about to free the buffers of its CMA offers.
    pub(crate) fn revoke_cma_offers(&self) {
        self.control_u32(CMA_OFFERS_REVOKED_AT)
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
        self.control_u32(CMA_OFFERS_REVOKED_AT)
            .load(Ordering::Relaxed)
            != 0
    }

    // ---- control words

    fn control_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass multiples of eight within the first page, so the word is mapped and
        // aligned. It is only ever accessed as an atomic.
        unsafe { self.ptr_at(offset).cast().as_ref() }
    }

    fn control_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `control_u64`.
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
        // producer also overwrites the word with payload by raw copy, but only while the ring's
        // invariants keep the consumer from reading it. A hostile peer may overwrite the word at
        // any time; the consumer checks each header it reads.
        unsafe { self.ptr_at(LINES_AT + line * LINE_LEN).cast().as_ref() }
    }

    fn released(&self) -> &AtomicU64 {
        self.control_u64(RELEASED_AT)
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
        // Inline assembly, because the intrinsic has no hint for writing on the baseline processor.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch accesses nothing, and is a no-op on processors without `prefetchw`.
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

/// Copies `count` bytes; 8 to 16 bytes as two words, which may overlap, without a call of `memcpy`.
///
/// # Safety
/// The contract of `std::ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: the caller guarantees both ranges, and each access lies within them: the second word
    // ends where the range ends.
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
    /// Byte of the lines at which the payload starts.
    start: usize,
    len: usize,
}

impl RecordPayload<'_> {
    /// Returns the address of byte `from`, after checking that `count` bytes from there are in the
    /// payload.
    fn ptr_at(&self, from: usize, count: usize) -> *const u8 {
        assert!(
            from <= self.len && count <= self.len - from,
            "access of {count} bytes at byte {from} of a record payload of {} bytes",
            self.len
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
        let (to, count) = (dst.as_mut_ptr().cast::<u8>(), dst.len());
        // SAFETY: `ptr_at` checked that the source lies within the mapping; `dst` is ordinary
        // memory of `count` bytes, initialised by the copy.
        unsafe {
            copy_bytes(source, to, count);
            std::slice::from_raw_parts_mut(to, count)
        }
    }

    fn copy_to_init(&self, from: usize, dst: &mut [u8]) {
        let source = self.ptr_at(from, dst.len());
        // SAFETY: as in `copy_to`.
        unsafe { copy_bytes(source, dst.as_mut_ptr(), dst.len()) };
    }
}

impl Drop for SegmentMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), mapping_len(self.lines)) };
    }
}

/// Returns the bytes of a segment with this number of lines.
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
        let unsealed = memfd::create("unsealed", 0, "ftruncate").unwrap();
        rustix::fs::ftruncate(&unsealed, mapping_len(64) as u64).unwrap();
        assert!(rejected(&unsealed, 64, "not sealed"));
        let null = std::fs::File::open("/dev/null").unwrap().into();
        assert!(Segment::map_from_peer(&null, 64).is_err());
    }

    #[test]
    fn payload_outside_of_the_lines_is_not_returned() {
        let (segment, _fd) = Segment::create(64).unwrap();
        assert!(segment.payload(64 * LINE_LEN - 8, 8).is_some());
        assert!(segment.payload(64 * LINE_LEN - 8, 9).is_none());
        assert!(segment.payload(usize::MAX, 2).is_none());
        assert_eq!(segment.read_word(64 * LINE_LEN), 0, "behind the lines");
    }
}
