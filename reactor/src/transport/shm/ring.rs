//! The ring buffer of cache lines: one producer and one consumer, in memory shared by two
//! processes.
//!
//! The memory is an array of 64-byte lines. A *record* is a contiguous run of lines, at most an
//! eighth of the ring; its first eight bytes are its header. The header contains the *lap*: how
//! many times the producer has gone through the array, plus one. Storing a header with the current
//! lap *is* the publication. No index is sent besides the message, so a message of up to 56 bytes
//! costs one line, and a polling consumer reads from its own cache.
//!
//! # Invariants
//!
//! 1. The consumer looks for a header only at the line behind the last record it consumed, and
//!    accepts only a header of the lap it is in.
//! 2. When the producer publishes a record, the line behind it does not hold a header of the
//!    current lap: it holds zero, or the header of an earlier lap. The producer knows which lines
//!    hold payload, which can look like any header (`dirty_lines`); it zeroes them before a
//!    consumer can look there.
//! 3. The producer writes only lines that the consumer has released: it always keeps one line free,
//!    so that the zeroing of invariant 2 does not touch a record in use.
//!
//! # Sleeping
//!
//! Both ends may sleep. The consumer sets `consumer_waiting`; the producer sets `producer_waiting`,
//! when it waits for room, acks or returned slots. Each then makes a full fence and checks once
//! more. The other end publishes, makes a full fence and reads the flag. So either the sleeper sees
//! the publication, or the other end sees the flag and rings the doorbell (store, fence, load on
//! both sides). The end that rings clears the flag with a swap, so that one sleep costs one
//! doorbell. All writes of a flag are swaps: a model checker can then see their order, and they are
//! rare.
//!
//! # Trust
//!
//! The other process can write anything anywhere at any time. Every header is copied out once and
//! checked. A record whose lengths are inconsistent is a [`ShmProtocolViolation`], never an access
//! outside of the memory.
#![allow(unsafe_code)] // one call of `RingMemory::write`; invariant 3 meets its contract

use crate::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// Bytes in a line.
pub(crate) const LINE_LEN: usize = 64;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 8;

/// The memory of a ring, as both ends access it.
pub(crate) trait RingMemory {
    /// Returns the number of lines, a power of two.
    fn lines(&self) -> usize;
    /// Returns the header word at the start of a line.
    fn header(&self, line: usize) -> &AtomicU64;
    /// Returns the position up to which the consumer has released lines.
    fn released(&self) -> &AtomicU64;
    /// Returns the flag of the consumer: awake, sleeping or closed.
    fn consumer_waiting(&self) -> &AtomicU32;
    /// Returns the flag of the producer: whether it sleeps.
    fn producer_waiting(&self) -> &AtomicU32;
    /// Requests ownership of a line that will be written soon.
    fn prefetch_for_write(&self, line: usize) {
        let _ = line;
    }
    /// Copies `bytes` into the lines, from byte `at` of the array.
    ///
    /// # Safety
    /// The bytes lie within the lines, and outside of headers that the other end may read now.
    unsafe fn write(&self, at: usize, bytes: &[u8]);
}

/// Clears `producer_waiting`. Returns whether the producer sleeps and must be woken.
pub(crate) fn take_producer_waiting<M: RingMemory>(memory: &M) -> bool {
    // SYNC: pairs with the fence in `Producer::arm`.
    full_fence();
    memory.producer_waiting().load(Ordering::Relaxed) != 0
        && memory.producer_waiting().swap(0, Ordering::Relaxed) != 0
}

/// The geometry of a ring: what both ends derive from the number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingGeometry {
    lines: u64,
}

impl RingGeometry {
    pub(crate) fn new(lines: usize) -> Self {
        debug_assert!(lines.is_power_of_two());
        Self {
            lines: lines as u64,
        }
    }

    /// Returns the longest record in lines: an eighth of the ring.
    fn max_record_lines(self) -> usize {
        (self.lines / 8).max(1) as usize
    }

    /// Returns the longest record in bytes, header included.
    pub(crate) fn max_record_len(self) -> usize {
        self.max_record_lines() * LINE_LEN
    }

    /// Returns the lap of a position, as stored in headers. The first lap is 1, unlike fresh
    /// memory.
    fn lap(self, position: u64) -> u64 {
        ((position >> self.lines.trailing_zeros()) + 1) & ((1 << (64 - LAP_SHIFT)) - 1)
    }

    /// Returns the line of a position.
    fn line_of(self, position: u64) -> usize {
        (position & (self.lines - 1)) as usize
    }

    /// Returns how many lines a record of this many bytes takes.
    fn lines_for(bytes: usize) -> usize {
        bytes.div_ceil(LINE_LEN)
    }
}

/// The header of a record: its kind (never 0), eight flag bits, and its length in bytes, header
/// included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Below 2^24.
    pub(crate) len: u32,
}

/// Positions of the length and of the lap in a header word.
const LEN_SHIFT: u32 = 16;
const LAP_SHIFT: u32 = 40;
const LEN_MASK: u64 = ((1 << LAP_SHIFT) - 1) & !((1 << LEN_SHIFT) - 1);

impl RecordHeader {
    fn pack(self, lap: u64) -> u64 {
        u64::from(self.kind)
            | u64::from(self.flags) << 8
            | u64::from(self.len) << LEN_SHIFT
            | lap << LAP_SHIFT
    }

    fn unpack(word: u64) -> Self {
        Self {
            kind: word as u8,
            flags: (word >> 8) as u8,
            len: ((word & LEN_MASK) >> LEN_SHIFT) as u32,
        }
    }
}

/// How many lines ahead of a batch the producer requests the lines that the consumer has read.
const PREFETCH_DISTANCE: u64 = 4;

/// Value of `consumer_waiting` when the consumer has closed: nothing is read any more.
const CONSUMER_CLOSED: u32 = 2;

/// State of the consumer, as the producer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsumerState {
    Awake,
    /// The consumer slept. The flag is cleared: the caller must ring the doorbell.
    Asleep,
    /// The consumer has closed without consuming the last record.
    Closed,
}

/// Kind of the record that fills the end of the array when the next record would wrap; never
/// returned to callers.
const PAD: u8 = 0xff;

/// The producer end of a ring.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    geometry: RingGeometry,
    position: u64,
    released: u64,
    /// Lines that hold payload, a bit each.
    dirty_lines: Box<[u64]>,
    /// From this position on no line is dirty: a lap later all were overwritten or zeroed.
    clean_from: u64,
}

impl<M: RingMemory> Producer<M> {
    /// Creates the producer of fresh memory.
    pub(crate) fn new(memory: M) -> Self {
        let geometry = RingGeometry::new(memory.lines());
        let dirty_lines = vec![0; memory.lines().div_ceil(64)].into();
        Self {
            memory,
            geometry,
            position: 0,
            released: 0,
            dirty_lines,
            clean_from: 0,
        }
    }

    pub(crate) fn geometry(&self) -> RingGeometry {
        self.geometry
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Publishes a record of `len` bytes, header included; `fill` writes its parts. Returns false
    /// if there is no room now.
    #[inline(always)] // fast path of small messages
    pub(crate) fn push(
        &mut self,
        kind: u8,
        flags: u8,
        len: usize,
        fill: impl FnOnce(RecordWriter<'_, M>),
    ) -> bool {
        debug_assert!(
            kind != 0 && kind != PAD && len >= HEADER_LEN && len <= self.geometry.max_record_len()
        );
        let lines = RingGeometry::lines_for(len);
        if !self.reserve_lines(lines) {
            return false;
        }
        fill(RecordWriter {
            memory: &self.memory,
            start: self.geometry.line_of(self.position) * LINE_LEN,
            len,
        });
        self.publish(
            RecordHeader {
                kind,
                flags,
                len: len as u32,
            },
            lines,
        );
        true
    }

    /// Reserves the next `lines` lines in one piece, padding the end of the array if needed.
    /// Returns false if there is no room now.
    #[inline(always)] // fast path of small messages
    fn reserve_lines(&mut self, lines: usize) -> bool {
        let rest = self.geometry.lines as usize - self.geometry.line_of(self.position);
        if lines > rest {
            return self.pad(rest, lines);
        }
        self.has_room(lines)
    }

    /// Fills the end of the array if there is room for `lines` lines behind it.
    #[cold]
    fn pad(&mut self, rest: usize, lines: usize) -> bool {
        let has_room = self.has_room(rest + lines);
        if has_room {
            self.publish(
                RecordHeader {
                    kind: PAD,
                    flags: 0,
                    len: (rest * LINE_LEN) as u32,
                },
                rest,
            );
        }
        has_room
    }

    /// Requests the line of a record that follows soon, while other records are being written.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch_next(&self) {
        let line = self.geometry.line_of(self.position + PREFETCH_DISTANCE);
        self.memory.prefetch_for_write(line);
    }

    /// Returns whether a record of this many bytes has room now.
    pub(crate) fn fits(&mut self, len: usize) -> bool {
        let lines = RingGeometry::lines_for(len);
        let rest = self.geometry.lines as usize - self.geometry.line_of(self.position);
        self.has_room(lines + if lines > rest { rest } else { 0 })
    }

    /// Returns the state of the consumer; called after each publication. A sleeping consumer must
    /// be woken by the caller.
    pub(crate) fn consumer_state(&self) -> ConsumerState {
        // SYNC: pairs with the fence in `Consumer::arm`.
        full_fence();
        // SYNC: the acquire pairs with the release in `Consumer::close`.
        match self.memory.consumer_waiting().load(Ordering::Acquire) {
            0 => ConsumerState::Awake,
            CONSUMER_CLOSED => self.state_after_close(),
            _ => match self.memory.consumer_waiting().swap(0, Ordering::Acquire) {
                0 => ConsumerState::Awake,
                CONSUMER_CLOSED => {
                    // The closed state is final: the next call must find it again.
                    self.memory
                        .consumer_waiting()
                        .swap(CONSUMER_CLOSED, Ordering::Relaxed);
                    self.state_after_close()
                }
                _ => ConsumerState::Asleep,
            },
        }
    }

    /// Returns whether the consumer has closed without consuming the last record, without a fence.
    pub(crate) fn is_closed(&self) -> bool {
        // SYNC: pairs with the release in `Consumer::close`.
        self.memory.consumer_waiting().load(Ordering::Acquire) == CONSUMER_CLOSED
            && self.state_after_close() == ConsumerState::Closed
    }

    /// Returns the state of a closed consumer: a last record that was consumed before has arrived.
    #[cold]
    fn state_after_close(&self) -> ConsumerState {
        let taken = self.memory.released().load(Ordering::Relaxed) == self.position;
        if taken {
            ConsumerState::Awake
        } else {
            ConsumerState::Closed
        }
    }

    /// Sets `producer_waiting` before the producer sleeps until `is_ready` becomes true (room for a
    /// record, for example). The consumer must call [`Consumer::take_producer_waiting`] after it
    /// has made the condition true. Returns true if it is safe to sleep.
    pub(crate) fn arm(&mut self, is_ready: impl FnOnce(&mut Self) -> bool) -> bool {
        self.memory.producer_waiting().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `take_producer_waiting`.
        full_fence();
        let is_ready = is_ready(self);
        if is_ready {
            self.disarm();
        }
        !is_ready
    }

    /// Clears `producer_waiting`.
    pub(crate) fn disarm(&self) {
        self.memory.producer_waiting().swap(0, Ordering::Relaxed);
    }

    #[inline]
    fn has_room(&mut self, lines: usize) -> bool {
        // One line stays free for the zero behind the record.
        let used = self
            .position
            .wrapping_sub(self.released)
            .saturating_add(lines as u64);
        used < self.geometry.lines || self.reload_released(lines)
    }

    #[cold]
    fn reload_released(&mut self, lines: usize) -> bool {
        let free = |position: u64, released: u64, geometry: RingGeometry| {
            // A consumer that releases more than it received finds the ring full for ever.
            let used = position.wrapping_sub(released).min(geometry.lines);
            (geometry.lines - used) as usize
        };
        // SYNC: pairs with the release in `Consumer::release`: the consumer is done with these
        // lines.
        self.released = self.memory.released().load(Ordering::Acquire);
        free(self.position, self.released, self.geometry) > lines
    }

    #[inline(always)] // fast path of small messages
    fn publish(&mut self, header: RecordHeader, lines: usize) {
        let first_line = self.geometry.line_of(self.position);
        if lines > 1 || self.position < self.clean_from {
            self.mark_dirty(header, first_line, lines);
        }
        // SYNC: pairs with the acquires in `Consumer::peek_plain` and `peek`.
        self.memory.header(first_line).store(
            header.pack(self.geometry.lap(self.position)),
            Ordering::Release,
        );
        self.position += lines as u64;
    }

    /// Marks the lines that hold payload, and zeroes the next line if it is dirty, so that it is
    /// not taken for a record. The line of the header is not dirty: it was the next line before.
    #[inline]
    fn mark_dirty(&mut self, header: RecordHeader, first_line: usize, lines: usize) {
        debug_assert!(
            self.dirty_lines[first_line / 64] & 1 << (first_line % 64) == 0,
            "header published on a dirty line"
        );
        let end = first_line + lines;
        if header.kind != PAD {
            (first_line + 1..end).for_each(|line| self.dirty_lines[line / 64] |= 1 << (line % 64));
        }
        if lines > 1 {
            self.clean_from = self.position + self.geometry.lines + lines as u64;
        }
        let next = self.geometry.line_of(end as u64);
        let (word, bit) = (&mut self.dirty_lines[next / 64], 1 << (next % 64));
        if *word & bit != 0 {
            *word &= !bit;
            // Invariant 2; ordered before the publication by its release.
            self.memory.header(next).store(0, Ordering::Relaxed);
        }
    }
}

/// A record that is being written: the producer owns its lines until it is published.
pub(crate) struct RecordWriter<'a, M> {
    memory: &'a M,
    start: usize,
    len: usize,
}

impl<M: RingMemory> RecordWriter<'_, M> {
    /// Writes a part at byte `at` of the record. The first eight bytes are the header's.
    #[inline]
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(
            at >= HEADER_LEN && at <= self.len && bytes.len() <= self.len - at,
            "write outside of the record"
        );
        // SAFETY: the record does not wrap and lies in lines that the consumer has released
        // (invariant 3); bytes 0 to 8 of its first line, the header, are excluded.
        unsafe { self.memory.write(self.start + at, bytes) };
    }
}

/// The peer violated the protocol: shared memory or a message does not hold what a peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmProtocolViolation(pub(crate) &'static str);

/// A record that the consumer has peeked: its header and its position in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    pub(crate) header: RecordHeader,
    pub(crate) start: usize,
    lines: u32,
}

/// Result of [`Consumer::peek_plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// No new record.
    Empty,
    /// A record of the requested kind, without flags: its position, and its length with the header.
    Plain {
        start: usize,
        len: usize,
        lines: u32,
    },
    /// Another record; [`Consumer::peek`] returns it.
    Other,
}

/// The consumer end of a ring.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    geometry: RingGeometry,
    position: u64,
    released: u64,
    armed: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// Creates the consumer of memory from which nothing was read yet.
    pub(crate) fn new(memory: M) -> Self {
        let geometry = RingGeometry::new(memory.lines());
        Self {
            memory,
            geometry,
            position: 0,
            released: 0,
            armed: false,
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Peeks at the oldest record. For an empty ring and for plain records this is all that is
    /// needed.
    #[inline(always)] // fast path of small messages
    pub(crate) fn peek_plain(&self, kind: u8) -> Peeked {
        let index = self.geometry.line_of(self.position);
        // SYNC: pairs with the release in `Producer::publish`.
        let word = self.memory.header(index).load(Ordering::Acquire);
        let (lap, len) = (
            self.geometry.lap(self.position),
            (word & LEN_MASK) >> LEN_SHIFT,
        );
        if word >> LAP_SHIFT != lap {
            Peeked::Empty
        } else if word & !LEN_MASK == lap << LAP_SHIFT | u64::from(kind) && len >= HEADER_LEN as u64
        {
            let (len, lines) = (len as usize, RingGeometry::lines_for(len as usize));
            if lines > 1
                && (lines > self.geometry.max_record_lines()
                    || index + lines > self.geometry.lines as usize)
            {
                return Peeked::Other;
            }
            Peeked::Plain {
                start: index * LINE_LEN,
                len,
                lines: lines as u32,
            }
        } else {
            Peeked::Other
        }
    }

    /// Returns the oldest record that was not consumed yet.
    pub(crate) fn peek(&mut self) -> Result<Option<RecordRef>, ShmProtocolViolation> {
        loop {
            let index = self.geometry.line_of(self.position);
            // SYNC: pairs with the release in `Producer::publish`.
            let word = self.memory.header(index).load(Ordering::Acquire);
            let Some(header) = self.published(word) else {
                return Ok(None);
            };
            let lines = RingGeometry::lines_for(header.len as usize);
            let rest = self.geometry.lines as usize - index;
            if header.kind == PAD {
                // A pad record is shorter than the record that would wrap. One of the length of the
                // ring would lead back to itself, for ever.
                if lines != rest || lines >= self.geometry.max_record_lines() {
                    return Err(ShmProtocolViolation(
                        "pad record does not end with the ring",
                    ));
                }
                self.advance(lines as u64);
                continue;
            }
            if (header.len as usize) < HEADER_LEN
                || lines > self.geometry.max_record_lines()
                || lines > rest
            {
                return Err(ShmProtocolViolation("record length out of bounds"));
            }
            return Ok(Some(RecordRef {
                header,
                start: index * LINE_LEN,
                lines: lines as u32,
            }));
        }
    }

    /// Consumes the record that `peek` returned. Returns true if the producer waits and must be
    /// woken.
    #[inline]
    pub(crate) fn consume(&mut self, record: RecordRef) -> bool {
        self.consume_lines(u64::from(record.lines))
    }

    /// Consumes the lines of a record that [`peek_plain`](Self::peek_plain) returned. Returns true
    /// if the producer waits and must be woken.
    #[inline]
    pub(crate) fn consume_lines(&mut self, lines: u64) -> bool {
        self.advance(lines);
        // Lines are released in batches. An eighth of the ring may be unreleased without starving
        // the producer, because no record takes more than an eighth.
        if self.position - self.released < self.geometry.lines / 8 {
            return false;
        }
        self.release()
    }

    /// Releases everything consumed. Returns true if the producer must be woken.
    #[cold]
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.position {
            return false;
        }
        self.released = self.position;
        // SYNC: pairs with the acquire in `Producer::reload_released`.
        self.memory
            .released()
            .store(self.position, Ordering::Release);
        self.take_producer_waiting()
    }

    /// Clears `producer_waiting`. Returns whether the producer sleeps and must be woken.
    pub(crate) fn take_producer_waiting(&self) -> bool {
        take_producer_waiting(&self.memory)
    }

    /// Sets `consumer_waiting` before the consumer sleeps. Returns true if the ring is empty.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.memory.consumer_waiting().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Producer::consumer_state`.
        full_fence();
        let word = self
            .memory
            .header(self.geometry.line_of(self.position))
            .load(Ordering::Relaxed);
        self.published(word).is_none()
    }

    /// Clears `consumer_waiting`: the consumer polls again.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.memory.consumer_waiting().swap(0, Ordering::Relaxed);
        }
    }

    /// Marks the consumer closed: nothing will be read any more. The consumed position is published
    /// first, so that the producer can tell whether its last record was consumed.
    pub(crate) fn close(&self) {
        self.memory
            .released()
            .store(self.position, Ordering::Release);
        // SYNC: pairs with the acquire in `Producer::consumer_state`.
        self.memory
            .consumer_waiting()
            .swap(CONSUMER_CLOSED, Ordering::Release);
    }

    /// Unpacks the header at the current position if it is of the current lap.
    #[inline]
    fn published(&self, word: u64) -> Option<RecordHeader> {
        let header = RecordHeader::unpack(word);
        (word >> LAP_SHIFT == self.geometry.lap(self.position) && header.kind != 0)
            .then_some(header)
    }

    fn advance(&mut self, lines: u64) {
        self.position += lines;
    }
}
