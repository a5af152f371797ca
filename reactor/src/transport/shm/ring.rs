//! The ring buffer of cache lines: one producer and one consumer, in memory shared by two
//! processes. The sending end of a connection has the [`Producer`], the receiving end the
//! [`Consumer`].
//!
//! The memory is an array of 64-byte lines. A *record* is a contiguous run of lines, at most an
//! eighth of the ring; its first eight bytes are its header. The header contains the *lap*: how
//! many times the producer has gone through the array, plus one. Storing a header with the current
//! lap publishes the record. No index is shared for that, so a message of up to 56 bytes costs one
//! cache line, and a polling consumer reads from its own cache. A *position* counts lines since the
//! start and never wraps; `RingGeometry` derives the line and the lap from it.
//!
//! # Invariants
//!
//! 1. The consumer reads a header only at the line behind the last record it consumed, and accepts
//!    only a header of the current lap.
//! 2. When the producer publishes a record, the line behind the record does not hold a header of
//!    the current lap: the line holds zero, or the header of an earlier lap. Payload can look like
//!    any header, so the producer records which lines hold payload (`dirty_lines`), and zeroes the
//!    first word of such a line before the consumer can read it as a header.
//! 3. The producer writes only lines that the consumer has released. The producer always keeps one
//!    line free, so that the zeroing of invariant 2 does not touch a record in use.
//!
//! # Sleeping
//!
//! Both ends may sleep. The consumer sets `consumer_waiting` when it waits for records. The
//! producer sets `producer_waiting` when it waits for room, acks, returned slots or an RMA
//! response. Each then makes a full fence and checks its condition once more. The other end makes
//! the condition true, makes a full fence and reads the flag. So either the sleeping end sees that
//! its condition is true, or the other end sees the flag and rings the doorbell. The end that rings
//! clears the flag with a swap, so that one sleep costs one doorbell. All writes of a flag are
//! swaps: the model checker can then see their order, and the writes are rare.
//!
//! # Trust
//!
//! The other process can write anything anywhere at any time. Every header is copied out once and
//! checked. A record whose length is inconsistent is a [`ShmProtocolViolation`], never an access
//! outside of the memory.

use crate::sys::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// Bytes in a line.
pub(crate) const LINE_LEN: usize = 64;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 8;

/// The memory of a ring, as both ends access it.
pub(crate) trait RingMemory {
    /// Returns the number of lines, a power of two.
    fn lines(&self) -> usize;
    /// Returns the first word of a line, which is the header of a record that starts there.
    fn header(&self, line: usize) -> &AtomicU64;
    /// Returns the position up to which the consumer has released lines.
    fn released(&self) -> &AtomicU64;
    /// Returns the state of the consumer: 0 awake, 1 sleeping, [`CONSUMER_CLOSED`] closed.
    fn consumer_waiting(&self) -> &AtomicU32;
    /// Returns the flag of the producer: 1 if the producer sleeps, otherwise 0.
    fn producer_waiting(&self) -> &AtomicU32;
    /// Prefetches the cache line of a line that will be written soon, for writing.
    fn prefetch_for_write(&self, line: usize) {
        let _ = line;
    }
    /// Copies `bytes` into the lines, from byte `at` of the array. The producer does not write
    /// headers that the consumer may read now: the consumer would find a wrong header, which it
    /// checks like any header of a peer.
    ///
    /// # Panics
    /// If the bytes do not lie within the lines.
    fn write(&self, at: usize, bytes: &[u8]);
}

/// Clears `producer_waiting`. Returns whether the flag was set: the producer sleeps, and the caller
/// must ring the doorbell.
pub(crate) fn take_producer_waiting<M: RingMemory>(memory: &M) -> bool {
    // SYNC: pairs with the fence in `Producer::arm`.
    full_fence();
    memory.producer_waiting().load(Ordering::Relaxed) != 0
        && memory.producer_waiting().swap(0, Ordering::Relaxed) != 0
}

/// The geometry of a ring: lines, laps and lengths derived from the number of lines.
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

    /// Returns the maximum number of lines of a record: an eighth of the ring.
    fn max_record_lines(self) -> usize {
        (self.lines / 8).max(1) as usize
    }

    /// Returns the maximum bytes of a record, header included.
    pub(crate) fn max_record_len(self) -> usize {
        self.max_record_lines() * LINE_LEN
    }

    /// Returns the lap of a position, as stored in headers. The first lap is 1, because new memory
    /// holds zeros.
    fn lap(self, position: u64) -> u64 {
        ((position >> self.lines.trailing_zeros()) + 1) & ((1 << (64 - LAP_SHIFT)) - 1)
    }

    /// Returns the index of the line at a position.
    fn line_of(self, position: u64) -> usize {
        (position & (self.lines - 1)) as usize
    }

    /// Returns how many lines a record of this many bytes takes.
    fn lines_for(bytes: usize) -> usize {
        bytes.div_ceil(LINE_LEN)
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    /// Kind of the record, never 0; `record` has the kinds.
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Bytes of the record, header included; below 2^24.
    pub(crate) len: u32,
}

// A header word: kind in bits 0 to 7, flags in 8 to 15, length in 16 to 39, lap in 40 to 63.
const LEN_SHIFT: u32 = 16;
const LAP_SHIFT: u32 = 40;
const LEN_MASK: u64 = ((1 << LAP_SHIFT) - 1) & !((1 << LEN_SHIFT) - 1);

impl RecordHeader {
    /// Returns the header word without the lap.
    fn pack(self) -> u64 {
        u64::from(self.kind) | u64::from(self.flags) << 8 | u64::from(self.len) << LEN_SHIFT
    }

    fn unpack(word: u64) -> Self {
        Self {
            kind: word as u8,
            flags: (word >> 8) as u8,
            len: ((word & LEN_MASK) >> LEN_SHIFT) as u32,
        }
    }
}

/// Number of lines ahead of the next record that `prefetch_next` prefetches.
const PREFETCH_DISTANCE: u64 = 4;

/// Value of `consumer_waiting` when the consumer has closed: nothing is read any more.
const CONSUMER_CLOSED: u32 = 2;

/// State of the consumer, as the producer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsumerState {
    Awake,
    /// The consumer sleeps. Its flag was cleared, so the caller must ring the doorbell.
    Asleep,
    /// The consumer has closed without consuming the last published record.
    Closed,
}

/// Kind of a *pad record*, which fills the end of the array if the next record would wrap. The
/// consumer skips pad records.
const PAD: u8 = 0xff;

/// The producer end of a ring.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    geometry: RingGeometry,
    /// Position of the next record.
    position: u64,
    /// Position up to which the consumer had released lines when that was last read.
    released: u64,
    /// The lap of `position`, in the bits that it has in a header.
    lap_bits: u64,
    /// Position up to which records can be published with this lap: in released lines, with a free
    /// line behind them, and in front of the end of the array.
    limit: u64,
    /// Bitmap of the lines that hold payload behind their record's first line.
    dirty_lines: Box<[u64]>,
    /// Position at which no line is dirty any more, unless another record of several lines is
    /// published: a lap after the last such record, all dirty lines were zeroed or overwritten.
    clean_from: u64,
}

impl<M: RingMemory> Producer<M> {
    /// Creates the producer of new memory, which must be zeroed.
    pub(crate) fn new(memory: M) -> Self {
        let geometry = RingGeometry::new(memory.lines());
        let dirty_lines = vec![0; memory.lines().div_ceil(64)].into();
        Self {
            memory,
            geometry,
            position: 0,
            released: 0,
            // Set before the first record.
            lap_bits: 0,
            limit: 0,
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

    /// Publishes a record of `len` bytes, header included; `fill` writes the other bytes. Returns
    /// false if the ring has no room now.
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
        // Computed before the record is written: afterwards the fields would be read again.
        let (position, geometry) = (self.position, self.geometry);
        let first_line = geometry.line_of(position);
        let header = RecordHeader {
            kind,
            flags,
            len: len as u32,
        };
        let word = header.pack() | self.lap_bits;
        fill(RecordWriter {
            memory: &self.memory,
            start: first_line * LINE_LEN,
            len,
        });
        if lines > 1 || position < self.clean_from {
            self.mark_dirty(header, first_line, lines);
        }
        self.publish(word, first_line, position + lines as u64);
        true
    }

    /// Makes `position` the start of `lines` free contiguous lines, publishing a pad record if
    /// needed. Returns false if the ring has no room now.
    #[inline(always)] // fast path of small messages
    fn reserve_lines(&mut self, lines: usize) -> bool {
        self.position + lines as u64 <= self.limit || self.advance_limit(lines)
    }

    /// Reserves lines as [`reserve_lines`](Self::reserve_lines) does, beyond `limit`: after the
    /// consumer has released lines, or in the next lap.
    #[cold]
    fn advance_limit(&mut self, lines: usize) -> bool {
        let rest = self.geometry.lines as usize - self.geometry.line_of(self.position);
        let has_room = if lines > rest {
            self.pad(rest, lines)
        } else {
            self.has_room(lines)
        };
        let RingGeometry { lines } = self.geometry;
        self.lap_bits = self.geometry.lap(self.position) << LAP_SHIFT;
        let lap_end = (self.position | (lines - 1)) + 1;
        self.limit = lap_end.min(self.position + self.free_lines().saturating_sub(1));
        has_room
    }

    /// Publishes a pad record of `rest` lines, up to the end of the array, if the ring also has
    /// room for `lines` lines behind it. Returns false if the ring has no room.
    fn pad(&mut self, rest: usize, lines: usize) -> bool {
        let has_room = self.has_room(rest + lines);
        if has_room {
            let header = RecordHeader {
                kind: PAD,
                flags: 0,
                len: (rest * LINE_LEN) as u32,
            };
            let first_line = self.geometry.line_of(self.position);
            if rest > 1 || self.position < self.clean_from {
                self.mark_dirty(header, first_line, rest);
            }
            let word = header.pack() | self.lap_bits;
            self.publish(word, first_line, self.position + rest as u64);
        }
        has_room
    }

    /// Prefetches, for writing, a line of a record that follows soon.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch_next(&self) {
        let line = self.geometry.line_of(self.position + PREFETCH_DISTANCE);
        self.memory.prefetch_for_write(line);
    }

    /// Returns whether the ring has room now for a record of `len` bytes, header included.
    pub(crate) fn fits(&mut self, len: usize) -> bool {
        let lines = RingGeometry::lines_for(len);
        let rest = self.geometry.lines as usize - self.geometry.line_of(self.position);
        self.has_room(lines + if lines > rest { rest } else { 0 })
    }

    /// Returns the state of the consumer, and clears the flag of a sleeping consumer, which the
    /// caller must wake. Called after a record was published.
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

    /// Returns whether the consumer has closed without consuming the last record. Makes no fence,
    /// so the result may be outdated.
    pub(crate) fn is_closed(&self) -> bool {
        // SYNC: pairs with the release in `Consumer::close`.
        self.memory.consumer_waiting().load(Ordering::Acquire) == CONSUMER_CLOSED
            && self.state_after_close() == ConsumerState::Closed
    }

    /// Returns the state of a closed consumer: `Awake` if it had consumed the last record, which
    /// has thus arrived, and `Closed` otherwise.
    #[cold]
    fn state_after_close(&self) -> ConsumerState {
        if self.memory.released().load(Ordering::Relaxed) == self.position {
            ConsumerState::Awake
        } else {
            ConsumerState::Closed
        }
    }

    /// Sets `producer_waiting` before the producer sleeps until `is_ready` is true (until the ring
    /// has room, for example). The consumer must call [`take_producer_waiting`] after it has made
    /// the condition true. Returns true if the producer can sleep, and false, with the flag
    /// cleared, if `is_ready` is true.
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

    /// Returns whether `lines` lines from `position` on are free, and one line behind them, which
    /// may have to be zeroed.
    fn has_room(&mut self, lines: usize) -> bool {
        let lines = lines as u64;
        if self.free_lines() <= lines {
            // SYNC: pairs with the release in `Consumer::release`: the consumer's reads of these
            // lines precede the producer's writes.
            self.released = self.memory.released().load(Ordering::Acquire);
        }
        self.free_lines() > lines
    }

    /// Returns the number of free lines from `position` on, as far as the producer knows.
    fn free_lines(&self) -> u64 {
        // If a hostile consumer releases more than was published, the difference wraps and the ring
        // counts as full.
        let used = self.position.wrapping_sub(self.released);
        self.geometry.lines.saturating_sub(used)
    }

    /// Publishes a record, whose other bytes are written already, by its header. `end` is the
    /// position behind the record.
    #[inline(always)] // fast path of small messages
    fn publish(&mut self, header: u64, first_line: usize, end: u64) {
        // SYNC: pairs with the acquires in `Consumer::peek_plain` and `peek`.
        self.memory
            .header(first_line)
            .store(header, Ordering::Release);
        self.position = end;
    }

    /// Marks the lines of a record behind its first line as dirty, and zeroes the first word of the
    /// next line if that line is dirty (invariant 2). The record's own first line is not dirty,
    /// because it was the next line of the record before.
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
            // SYNC: ordered before the publication by the release in `publish`.
            self.memory.header(next).store(0, Ordering::Relaxed);
        }
    }
}

/// A record that is being written. Its lines belong to the producer until the record is published.
pub(crate) struct RecordWriter<'a, M> {
    memory: &'a M,
    /// Byte of the array at which the record starts.
    start: usize,
    /// Bytes of the record, header included.
    len: usize,
}

impl<M: RingMemory> RecordWriter<'_, M> {
    /// Writes `bytes` at byte `at` of the record, which must be behind the header.
    ///
    /// # Panics
    /// If the bytes do not lie within the record behind its header.
    #[inline]
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(
            at >= HEADER_LEN && at <= self.len && bytes.len() <= self.len - at,
            "write of {} bytes at byte {at} of a record of {} bytes",
            bytes.len(),
            self.len
        );
        // The record does not wrap and lies in lines that the consumer has released (invariant 3),
        // and the assertion excludes its header.
        self.memory.write(self.start + at, bytes);
    }
}

/// A violation of the protocol by the peer: which rule a record or a message breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmProtocolViolation(pub(crate) &'static str);

/// A record that [`Consumer::peek`] has found and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    pub(crate) header: RecordHeader,
    /// Byte of the array at which the record starts.
    pub(crate) start: usize,
    lines: u32,
}

/// Result of [`Consumer::peek_plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// The ring has no record.
    Empty,
    /// A record of the requested kind, without flags.
    Plain {
        /// Byte of the array at which the record starts.
        start: usize,
        /// Bytes of the record, header included.
        len: usize,
        /// Lines of the record.
        lines: u32,
    },
    /// Any other record, also an invalid one; [`Consumer::peek`] checks and returns it.
    Other,
}

/// The consumer end of a ring.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    geometry: RingGeometry,
    /// Position of the next record.
    position: u64,
    /// Position up to which lines were released to the producer.
    released: u64,
    /// The lap of `position`, in the bits that it has in a header.
    lap_bits: u64,
    /// Position from which lines are to be released, or that begins the next lap.
    checkpoint: u64,
    /// Whether this side has set `consumer_waiting` since the last `disarm`.
    armed: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// Creates the consumer of memory whose first record was not consumed yet.
    pub(crate) fn new(memory: M) -> Self {
        let geometry = RingGeometry::new(memory.lines());
        let mut consumer = Self {
            memory,
            geometry,
            position: 0,
            released: 0,
            lap_bits: 0,
            checkpoint: 0,
            armed: false,
        };
        consumer.set_checkpoint();
        consumer
    }

    /// Sets the lap of `position`, and the next position that changes it or from which lines are to
    /// be released. Lines are released in batches of an eighth of the ring. The producer does not
    /// starve, because no record takes more than an eighth.
    #[cold]
    fn set_checkpoint(&mut self) {
        let RingGeometry { lines } = self.geometry;
        self.lap_bits = self.geometry.lap(self.position) << LAP_SHIFT;
        let lap_end = (self.position | (lines - 1)) + 1;
        self.checkpoint = lap_end.min(self.released + lines / 8);
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns whether the ring has no record that was not consumed.
    #[inline(always)] // fast path of small messages
    pub(crate) fn is_empty(&self) -> bool {
        let index = self.geometry.line_of(self.position);
        // No bytes of the record are read.
        let word = self.memory.header(index).load(Ordering::Relaxed);
        word >> LAP_SHIFT != self.lap_bits >> LAP_SHIFT
    }

    /// Peeks at the oldest record: the fast version of [`peek`](Self::peek) for records of `kind`
    /// without flags.
    #[inline(always)] // fast path of small messages
    pub(crate) fn peek_plain(&self, kind: u8) -> Peeked {
        let index = self.geometry.line_of(self.position);
        // SYNC: pairs with the release in `Producer::publish`.
        let word = self.memory.header(index).load(Ordering::Acquire);
        // Of the expected header only the length remains.
        let rest = word ^ (self.lap_bits | u64::from(kind));
        let (start, len) = (index * LINE_LEN, (rest >> LEN_SHIFT) as usize);
        if rest & !LEN_MASK != 0 || len < HEADER_LEN {
            if word >> LAP_SHIFT == self.lap_bits >> LAP_SHIFT {
                return Peeked::Other;
            }
            return Peeked::Empty;
        }
        let lines = if len <= LINE_LEN {
            1
        } else {
            RingGeometry::lines_for(len)
        };
        if lines > 1
            && (lines > self.geometry.max_record_lines()
                || index + lines > self.geometry.lines as usize)
        {
            return Peeked::Other;
        }
        Peeked::Plain {
            start,
            len,
            lines: lines as u32,
        }
    }

    /// Returns the oldest record that was not consumed; `None` if the ring has none. Skips pad
    /// records.
    ///
    /// # Errors
    /// [`ShmProtocolViolation`] if the length of the record is invalid.
    pub(crate) fn peek(&mut self) -> Result<Option<RecordRef>, ShmProtocolViolation> {
        loop {
            let index = self.geometry.line_of(self.position);
            // SYNC: pairs with the release in `Producer::publish`.
            let word = self.memory.header(index).load(Ordering::Acquire);
            let Some(header) = self.unpack_published(word) else {
                return Ok(None);
            };
            let lines = RingGeometry::lines_for(header.len as usize);
            let rest = self.geometry.lines as usize - index;
            if header.kind == PAD {
                // A pad record is shorter than the record that would wrap, and so than the longest
                // record. A pad record as long as the ring would make this loop endless.
                if lines != rest || lines >= self.geometry.max_record_lines() {
                    return Err(ShmProtocolViolation(
                        "pad record does not end with the ring",
                    ));
                }
                self.position += lines as u64;
                self.set_checkpoint();
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

    /// Consumes the record that `peek` returned. Returns true if the producer sleeps and the caller
    /// must ring the doorbell.
    #[inline]
    pub(crate) fn consume(&mut self, record: RecordRef) -> bool {
        self.consume_lines(u64::from(record.lines))
    }

    /// Consumes the record that [`peek_plain`](Self::peek_plain) returned, of `lines` lines.
    /// Returns true if the producer sleeps and the caller must ring the doorbell.
    #[inline]
    pub(crate) fn consume_lines(&mut self, lines: u64) -> bool {
        self.position += lines;
        self.position >= self.checkpoint && self.pass_checkpoint()
    }

    #[cold]
    fn pass_checkpoint(&mut self) -> bool {
        let producer_waits =
            self.position - self.released >= self.geometry.lines / 8 && self.release();
        self.set_checkpoint();
        producer_waits
    }

    /// Releases all consumed lines to the producer. Returns true if the producer sleeps and the
    /// caller must ring the doorbell.
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

    /// Calls [`take_producer_waiting`].
    pub(crate) fn take_producer_waiting(&self) -> bool {
        take_producer_waiting(&self.memory)
    }

    /// Sets `consumer_waiting` before the consumer sleeps. Returns true if the ring is empty, so
    /// that the consumer can sleep.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.memory.consumer_waiting().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Producer::consumer_state`.
        full_fence();
        let word = self
            .memory
            .header(self.geometry.line_of(self.position))
            .load(Ordering::Relaxed);
        self.unpack_published(word).is_none()
    }

    /// Clears `consumer_waiting`, because the consumer polls again.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.memory.consumer_waiting().swap(0, Ordering::Relaxed);
        }
    }

    /// Marks the consumer closed: it does not read the ring any more. Releases all consumed lines
    /// before, so that the producer can tell whether its last record was consumed.
    pub(crate) fn close(&self) {
        self.memory
            .released()
            .store(self.position, Ordering::Release);
        // SYNC: pairs with the acquire in `Producer::consumer_state`.
        self.memory
            .consumer_waiting()
            .swap(CONSUMER_CLOSED, Ordering::Release);
    }

    /// Unpacks the header word at `position`; `None` if it is not of the current lap, so that no
    /// record is published there.
    #[inline]
    fn unpack_published(&self, word: u64) -> Option<RecordHeader> {
        let header = RecordHeader::unpack(word);
        (word >> LAP_SHIFT == self.lap_bits >> LAP_SHIFT && header.kind != 0).then_some(header)
    }
}
