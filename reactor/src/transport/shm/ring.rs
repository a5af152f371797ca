//! The ring buffer of cache lines: one producer and one consumer, in memory shared by two
//! processes. The sending end of a connection has the [`Producer`], the receiving end the
//! [`Consumer`].
//!
//! The memory is an array of 64-byte lines. A *record* is a contiguous run of lines; its first
//! eight bytes are its header. The header contains the *lap*: how many times the producer has gone
//! through the array, plus one. Storing a header with the current lap publishes the record. No
//! index is shared for that, so a message of up to 56 bytes costs one cache line, and a polling
//! consumer reads from its own cache. A *position* counts lines since the start and never wraps.
//! Each end has a [`Cursor`] with the position, the lap and the line of its next record.
//!
//! # Growth
//!
//! A ring begins with a part of its lines, which are allocated when the memory is created. When the
//! ring has been full, the producer allocates the other lines. At the end of that lap it publishes
//! a *growth record*: the lap goes on in the other lines, and later laps have all lines. So a
//! connection of few messages in flight stays in few cache lines, and a stream has room for more.
//! If there is no memory, the ring stays as it is. A record takes at most an eighth of the first
//! part.
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
    /// Returns the number of lines.
    fn lines(&self) -> usize;
    /// Returns the number of lines that the ring begins with; these are allocated. The others, if
    /// there are any, have room for the longest record.
    fn initial_lines(&self) -> usize;
    /// Allocates the other lines, for the producer. Returns false if there is no memory.
    fn allocate_rest(&self) -> bool;
    /// Returns whether the other lines can be read, for the consumer. Allocates those that the
    /// producer has not allocated, or has freed.
    fn is_rest_allocated(&self) -> bool;
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

/// Returns how many lines a record of this many bytes takes.
fn lines_for(bytes: usize) -> usize {
    bytes.div_ceil(LINE_LEN)
}

/// Where an end of the ring is: its position, and the line and the lap of that position.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Position of the next record.
    position: u64,
    /// Position of line 0 in this lap.
    lap_start: u64,
    /// The lap, in the bits that it has in a header. The first lap is 1, because new memory holds
    /// zeros.
    lap_bits: u64,
    /// Number of lines of a lap.
    lap_lines: u64,
    /// Maximum number of lines of a record.
    max_record_lines: u64,
}

impl Cursor {
    fn new(memory: &impl RingMemory) -> Self {
        let lap_lines = memory.initial_lines() as u64;
        let max_record_lines = (lap_lines / 8).max(1);
        let rest = memory.lines() as u64 - lap_lines;
        debug_assert!(lap_lines > 0 && (rest == 0 || rest >= max_record_lines));
        Self {
            position: 0,
            lap_start: 0,
            lap_bits: 1 << LAP_SHIFT,
            lap_lines,
            max_record_lines,
        }
    }

    /// Returns the line of `position`. At the end of a lap, this is the number of lines.
    #[inline(always)] // fast path of small messages
    fn line(&self) -> usize {
        (self.position - self.lap_start) as usize
    }

    /// Returns the position at which the lap ends.
    fn lap_end(&self) -> u64 {
        self.lap_start + self.lap_lines
    }

    /// Returns the number of lines from `position` to the end of the lap.
    fn rest(&self) -> usize {
        (self.lap_end() - self.position) as usize
    }

    /// Begins the next lap if this one has ended.
    fn begin_lap_at_end(&mut self) {
        if self.position == self.lap_end() {
            self.lap_start = self.position;
            self.lap_bits = self.lap_bits.wrapping_add(1 << LAP_SHIFT);
        }
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
const FLAGS_SHIFT: u32 = 8;
const LEN_SHIFT: u32 = 16;
const LAP_SHIFT: u32 = 40;
const LEN_MASK: u64 = ((1 << LAP_SHIFT) - 1) & !((1 << LEN_SHIFT) - 1);

impl RecordHeader {
    /// Returns the header word without the lap.
    fn pack(self) -> u64 {
        u64::from(self.kind)
            | u64::from(self.flags) << FLAGS_SHIFT
            | u64::from(self.len) << LEN_SHIFT
    }

    fn unpack(word: u64) -> Self {
        Self {
            kind: word as u8,
            flags: (word >> FLAGS_SHIFT) as u8,
            len: ((word & LEN_MASK) >> LEN_SHIFT) as u32,
        }
    }
}

/// Number of lines ahead of the next record that `prefetch_next` prefetches.
const PREFETCH_DISTANCE: usize = 4;

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
/// Kind of the *growth record*, which fills the end of the first lines. The lap goes on in the
/// others.
const GROWTH: u8 = 0xfe;

/// Whether a ring has grown, as its producer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// The ring has its first lines, and was never full.
    NotNeeded,
    /// All lines are allocated. The lap ends with the growth record.
    Allocated,
    /// The ring has grown, or there was no memory.
    Done,
}

/// The producer end of a ring.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    at: Cursor,
    growth: Growth,
    /// Position up to which the consumer had released lines when that was last read.
    released: u64,
    /// Position up to which records can be published in this lap: in released lines, with a free
    /// line behind them, and in front of the growth record, if it is to come.
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
        let dirty_lines = vec![0; memory.lines().div_ceil(64)].into();
        let growth = match memory.lines() > memory.initial_lines() {
            true => Growth::NotNeeded,
            false => Growth::Done,
        };
        Self {
            at: Cursor::new(&memory),
            memory,
            growth,
            released: 0,
            // Set before the first record.
            limit: 0,
            dirty_lines,
            clean_from: 0,
        }
    }

    /// Returns the maximum bytes of a record, header included.
    pub(crate) fn max_record_len(&self) -> usize {
        self.at.max_record_lines as usize * LINE_LEN
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
            !matches!(kind, 0 | PAD | GROWTH)
                && (HEADER_LEN..=self.max_record_len()).contains(&len)
        );
        let lines = lines_for(len);
        if !self.reserve_lines(lines) {
            return false;
        }
        // Computed before the record is written: afterwards the fields would be read again.
        let (position, first_line) = (self.at.position, self.at.line());
        let header = RecordHeader {
            kind,
            flags,
            len: len as u32,
        };
        let word = header.pack() | self.at.lap_bits;
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

    /// Makes `position` the start of `lines` free contiguous lines, ending the lap if needed.
    /// Returns false if the ring has no room now.
    #[inline(always)] // fast path of small messages
    fn reserve_lines(&mut self, lines: usize) -> bool {
        self.at.position + lines as u64 <= self.limit || self.advance_limit(lines)
    }

    /// Reserves lines as [`reserve_lines`](Self::reserve_lines) does, beyond `limit`: after the
    /// consumer has released lines, or in the next lap. Allocates the other lines if the first ones
    /// are full.
    #[cold]
    fn advance_limit(&mut self, lines: usize) -> bool {
        self.at.begin_lap_at_end();
        let has_room = if self.ends_lap(lines) {
            self.end_lap(lines)
        } else {
            self.has_room(lines)
        };
        if !has_room && self.growth == Growth::NotNeeded {
            self.growth = match self.memory.allocate_rest() {
                true => Growth::Allocated,
                false => Growth::Done,
            };
        }
        let lap_limit = self.at.lap_end() - u64::from(self.growth == Growth::Allocated);
        let room_limit = self.at.position + self.free_lines().saturating_sub(1);
        self.limit = lap_limit.min(room_limit);
        has_room
    }

    /// Returns whether a record of `lines` lines does not fit into this lap, because of its end or
    /// of the growth record.
    fn ends_lap(&self, lines: usize) -> bool {
        lines + usize::from(self.growth == Growth::Allocated) > self.at.rest()
    }

    /// Publishes a pad record or the growth record up to the end of the lap, if the ring also has
    /// room for `lines` lines behind it. Returns false if the ring has no room.
    fn end_lap(&mut self, lines: usize) -> bool {
        let rest = self.at.rest();
        // The room behind the record is the beginning of the array: so all records that were not
        // released are of this lap, and the lines behind a growth record follow on them.
        let has_room = self.has_room(rest + lines);
        if has_room {
            let grows = self.growth == Growth::Allocated;
            let header = RecordHeader {
                kind: if grows { GROWTH } else { PAD },
                flags: 0,
                len: (rest * LINE_LEN) as u32,
            };
            let (first_line, end) = (self.at.line(), self.at.lap_end());
            if grows {
                self.growth = Growth::Done;
                let added = self.memory.lines() as u64 - self.at.lap_lines;
                self.at.lap_lines += added;
                self.clean_from += added;
            }
            if rest > 1 || self.at.position < self.clean_from {
                self.mark_dirty(header, first_line, rest);
            }
            self.publish(header.pack() | self.at.lap_bits, first_line, end);
            self.at.begin_lap_at_end();
        }
        has_room
    }

    /// Prefetches, for writing, a line of a record that follows soon.
    #[inline(always)] // fast path of small messages
    pub(crate) fn prefetch_next(&self) {
        self.memory
            .prefetch_for_write(self.at.line() + PREFETCH_DISTANCE);
    }

    /// Returns whether the ring has room now for a record of `len` bytes, header included.
    pub(crate) fn fits(&mut self, len: usize) -> bool {
        let lines = lines_for(len);
        let rest = if self.ends_lap(lines) {
            self.at.rest()
        } else {
            0
        };
        self.has_room(rest + lines)
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
        if self.memory.released().load(Ordering::Relaxed) == self.at.position {
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
        let used = self.at.position.wrapping_sub(self.released);
        self.at.lap_lines.saturating_sub(used)
    }

    /// Publishes a record, whose other bytes are written already, by its header. `end` is the
    /// position behind the record.
    #[inline(always)] // fast path of small messages
    fn publish(&mut self, header: u64, first_line: usize, end: u64) {
        // SYNC: pairs with the acquires in `Consumer::peek_kind` and `peek`.
        self.memory
            .header(first_line)
            .store(header, Ordering::Release);
        self.at.position = end;
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
        if !matches!(header.kind, PAD | GROWTH) {
            (first_line + 1..end).for_each(|line| self.dirty_lines[line / 64] |= 1 << (line % 64));
        }
        if lines > 1 {
            self.clean_from = self.at.position + self.at.lap_lines + lines as u64;
        }
        let next = if end as u64 == self.at.lap_lines {
            0
        } else {
            end
        };
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

/// Result of [`Consumer::peek_kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// The ring has no record.
    Empty,
    /// A record of the requested kind, without other flags than the requested ones.
    Record {
        flags: u8,
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
    /// Never at the end of a lap.
    at: Cursor,
    /// Position up to which lines were released to the producer.
    released: u64,
    /// Position from which lines are to be released, or that begins the next lap.
    checkpoint: u64,
    /// Whether this side has set `consumer_waiting` since the last `disarm`.
    armed: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// Creates the consumer of memory whose first record was not consumed yet.
    pub(crate) fn new(memory: M) -> Self {
        let mut consumer = Self {
            at: Cursor::new(&memory),
            memory,
            released: 0,
            checkpoint: 0,
            armed: false,
        };
        consumer.set_checkpoint();
        consumer
    }

    /// Begins the next lap if this one has ended, and sets the next position at which a lap ends or
    /// from which lines are to be released. Lines are released in batches of an eighth of the ring.
    /// The producer does not starve, because no record takes more than an eighth.
    #[cold]
    fn set_checkpoint(&mut self) {
        self.at.begin_lap_at_end();
        self.checkpoint = self.at.lap_end().min(self.released + self.batch());
    }

    /// Returns the number of lines that are released together.
    fn batch(&self) -> u64 {
        self.at.lap_lines / 8
    }

    pub(crate) fn position(&self) -> u64 {
        self.at.position
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns whether the ring has no record that was not consumed.
    #[inline(always)] // fast path of small messages
    pub(crate) fn is_empty(&self) -> bool {
        // No bytes of the record are read.
        let word = self.memory.header(self.at.line()).load(Ordering::Relaxed);
        word >> LAP_SHIFT != self.at.lap_bits >> LAP_SHIFT
    }

    /// Peeks at the oldest record: the fast version of [`peek`](Self::peek) for records of `kind`
    /// with no other flags than `allowed_flags`.
    #[inline(always)] // fast path of small messages
    pub(crate) fn peek_kind(&self, kind: u8, allowed_flags: u8) -> Peeked {
        let index = self.at.line();
        // SYNC: pairs with the release in `Producer::publish`.
        let word = self.memory.header(index).load(Ordering::Acquire);
        // Of the expected header only the length and the flags remain.
        let rest = word ^ (self.at.lap_bits | u64::from(kind));
        let (start, len) = (index * LINE_LEN, (rest >> LEN_SHIFT) as usize);
        let allowed = LEN_MASK | u64::from(allowed_flags) << FLAGS_SHIFT;
        if rest & !allowed != 0 || len < HEADER_LEN {
            if word >> LAP_SHIFT == self.at.lap_bits >> LAP_SHIFT {
                return Peeked::Other;
            }
            return Peeked::Empty;
        }
        let lines = if len <= LINE_LEN { 1 } else { lines_for(len) };
        if lines > 1
            && (lines > self.at.max_record_lines as usize
                || index + lines > self.at.lap_lines as usize)
        {
            return Peeked::Other;
        }
        Peeked::Record {
            flags: (rest >> FLAGS_SHIFT) as u8 & allowed_flags,
            start,
            len,
            lines: lines as u32,
        }
    }

    /// Returns the oldest record that was not consumed; `None` if the ring has none. Skips pad
    /// records and the growth record.
    ///
    /// # Errors
    /// [`ShmProtocolViolation`] if the length of the record is invalid, or if the memory that the
    /// ring is to grow by cannot be read.
    pub(crate) fn peek(&mut self) -> Result<Option<RecordRef>, ShmProtocolViolation> {
        loop {
            let index = self.at.line();
            // SYNC: pairs with the release in `Producer::publish`.
            let word = self.memory.header(index).load(Ordering::Acquire);
            let Some(header) = self.unpack_published(word) else {
                return Ok(None);
            };
            let (lines, rest) = (lines_for(header.len as usize), self.at.rest());
            if (header.len as usize) < HEADER_LEN
                || lines > self.at.max_record_lines as usize
                || lines > rest
            {
                return Err(ShmProtocolViolation("record length out of bounds"));
            }
            if !matches!(header.kind, PAD | GROWTH) {
                return Ok(Some(RecordRef {
                    header,
                    start: index * LINE_LEN,
                    lines: lines as u32,
                }));
            }
            // As a pad record takes at most an eighth of a lap, the loop ends.
            if lines != rest {
                return Err(ShmProtocolViolation("pad record does not end with the lap"));
            }
            if header.kind == GROWTH {
                self.grow()?;
            }
            self.at.position += lines as u64;
            self.set_checkpoint();
        }
    }

    /// Makes this lap and later ones as long as the memory.
    #[cold]
    fn grow(&mut self) -> Result<(), ShmProtocolViolation> {
        let lines = self.memory.lines() as u64;
        if self.at.lap_lines == lines || !self.memory.is_rest_allocated() {
            return Err(ShmProtocolViolation(
                "ring grows twice, or by memory that is not allocated",
            ));
        }
        self.at.lap_lines = lines;
        Ok(())
    }

    /// Consumes the record that `peek` returned. Returns true if the producer sleeps and the caller
    /// must ring the doorbell.
    #[inline]
    pub(crate) fn consume(&mut self, record: RecordRef) -> bool {
        self.consume_lines(u64::from(record.lines))
    }

    /// Consumes the record that [`peek_kind`](Self::peek_kind) returned, of `lines` lines.
    /// Returns true if the producer sleeps and the caller must ring the doorbell.
    #[inline]
    pub(crate) fn consume_lines(&mut self, lines: u64) -> bool {
        self.at.position += lines;
        self.at.position >= self.checkpoint && self.pass_checkpoint()
    }

    #[cold]
    fn pass_checkpoint(&mut self) -> bool {
        let producer_waits = self.at.position - self.released >= self.batch() && self.release();
        self.set_checkpoint();
        producer_waits
    }

    /// Releases all consumed lines to the producer. Returns true if the producer sleeps and the
    /// caller must ring the doorbell.
    #[cold]
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.at.position {
            return false;
        }
        self.released = self.at.position;
        // SYNC: pairs with the acquire in `Producer::reload_released`.
        self.memory
            .released()
            .store(self.at.position, Ordering::Release);
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
        let word = self.memory.header(self.at.line()).load(Ordering::Relaxed);
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
            .store(self.at.position, Ordering::Release);
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
        (word >> LAP_SHIFT == self.at.lap_bits >> LAP_SHIFT && header.kind != 0).then_some(header)
    }
}
