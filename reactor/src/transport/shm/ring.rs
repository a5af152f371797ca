//! The ring of lines: one producer and one consumer, in memory that the two processes share.
//!
//! The memory is an array of 64-byte lines. A *record* is a run of lines without a wrap, an eighth
//! of the ring at most; its first eight bytes are its header. A header that names the *lap*, the
//! how-manieth time the producer goes through the array, *is* the publication: no index has to
//! travel besides the message, so a message of up to 56 bytes costs one line, and a consumer that
//! polls does so in its own cache.
//!
//! # Invariants
//!
//! 1. The consumer looks for a header only at the line behind the last record it consumed, and
//!    takes only one that names the lap it is in.
//! 2. When the producer publishes a record, the line behind it does not hold a header of the
//!    current lap: it holds zero, or the header of an earlier lap. Lines that hold payload, which
//!    can look like anything, are known to the producer (`dirty_lines`); it zeroes them before a
//!    consumer can get to look at them.
//! 3. The producer writes only lines that the consumer has given back: it always keeps one line
//!    free, so that the zeroing of 2 does not touch a record in use.
//!
//! # Sleeping
//!
//! Both ends may sleep. The consumer raises `armed`, the producer `starved` (of room, or of what
//! else it waits for); each then makes a full fence and looks once more. The other end publishes,
//! makes a full fence and looks at the flag. So either the sleeper sees the news, or the other end
//! sees the flag and rings (the classic store-fence-load on both sides). Whoever rings takes the
//! flag down with a swap, so that one sleep costs one ring. All writes of a flag are swaps: their
//! order is then one that a model can see, and they are rare.
//!
//! # Trust
//!
//! The other process can write anything anywhere at any time. Every header is copied out once and
//! checked; a record whose lengths do not add up is a [`Broken`] ring, never an access outside of
//! the memory.
#![allow(unsafe_code)] // one call: `Memory::write`, whose duty invariant 3 discharges

use crate::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// Bytes in a line.
pub(crate) const LINE_LEN: usize = 64;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 8;

/// The memory of a ring, as its two ends see it.
pub(crate) trait RingMemory {
    /// The number of lines, a power of two.
    fn lines(&self) -> usize;
    /// The header at the start of a line.
    fn header(&self, line: usize) -> &AtomicU64;
    /// Lines the consumer has given back since the beginning.
    fn released(&self) -> &AtomicU64;
    /// Whether the consumer sleeps, or has closed.
    fn consumer_waiting(&self) -> &AtomicU32;
    /// The producer waits for room.
    fn producer_waiting(&self) -> &AtomicU32;
    /// Copies into the lines, from byte `at` of the array on.
    ///
    /// # Safety
    /// The bytes lie within the lines, and outside of headers the other end may read now.
    unsafe fn write(&self, at: usize, bytes: &[u8]);
}

/// What the two ends agree on from the number of lines.
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

    /// The longest record, in lines: an eighth of the ring.
    fn max_record_lines(self) -> usize {
        (self.lines / 8).max(1) as usize
    }

    /// The longest record in bytes, header included.
    pub(crate) fn max_record_len(self) -> usize {
        self.max_record_lines() * LINE_LEN
    }

    /// The lap of a position, as a header has room for it. The first is 1, unlike fresh memory.
    fn lap(self, position: u64) -> u64 {
        ((position >> self.lines.trailing_zeros()) + 1) & ((1 << (64 - LAP_SHIFT)) - 1)
    }

    fn index(self, position: u64) -> usize {
        (position & (self.lines - 1)) as usize
    }

    /// How many lines a record of this many bytes takes.
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

/// The bits of a header below its length, and below its lap.
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

/// The value of `armed` when the consumer has closed: nothing is read any more.
const CONSUMER_CLOSED: u32 = 2;

/// What the reading end is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsumerState {
    Awake,
    /// It slept; whoever learns of that must ring.
    Asleep,
    /// It has closed, and did not take the last record.
    Closed,
}

/// The kind of the record that fills the end of the array when the next one would wrap; never seen
/// outside.
const PAD: u8 = 0xff;

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    geometry: RingGeometry,
    position: u64,
    released: u64,
    /// Lines that hold payload, a bit each.
    dirty_lines: Box<[u64]>,
    /// Behind this position there are none: a lap later they were all written over, or zeroed.
    clean_from: u64,
}

impl<M: RingMemory> Producer<M> {
    /// The writing end of fresh memory.
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

    /// Publishes a record of `len` bytes, header included; `fill` puts its parts where they belong.
    /// False when there is no room now.
    #[inline(always)] // on the way of a small message
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
            start: self.geometry.index(self.position) * LINE_LEN,
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

    /// Makes sure that the next so many lines are free, and in one piece.
    #[inline(always)] // likewise
    fn reserve_lines(&mut self, lines: usize) -> bool {
        let rest = self.geometry.lines as usize - self.geometry.index(self.position);
        if lines > rest {
            return self.pad(rest, lines);
        }
        self.has_room(lines)
    }

    /// Fills the end of the array, if there is room for so many lines behind it.
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

    /// Whether a record of this many bytes has room now.
    pub(crate) fn fits(&mut self, len: usize) -> bool {
        let lines = RingGeometry::lines_for(len);
        let rest = self.geometry.lines as usize - self.geometry.index(self.position);
        self.has_room(lines + if lines > rest { rest } else { 0 })
    }

    /// What the consumer is doing; asked after each publication. One that sleeps has to be woken
    /// now.
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
                    // Not the producer's to take down: the next question has the same answer.
                    self.memory
                        .consumer_waiting()
                        .swap(CONSUMER_CLOSED, Ordering::Relaxed);
                    self.state_after_close()
                }
                _ => ConsumerState::Asleep,
            },
        }
    }

    /// Whether the consumer has closed, as far as can be told without a fence, and did not take the
    /// last record.
    pub(crate) fn is_closed(&self) -> bool {
        // SYNC: pairs with the release in `Consumer::close`.
        self.memory.consumer_waiting().load(Ordering::Acquire) == CONSUMER_CLOSED
            && self.state_after_close() == ConsumerState::Closed
    }

    /// The consumer has closed: what it took before arrived all the same.
    #[cold]
    fn state_after_close(&self) -> ConsumerState {
        let taken = self.memory.released().load(Ordering::Relaxed) == self.position;
        if taken {
            ConsumerState::Awake
        } else {
            ConsumerState::Closed
        }
    }

    /// Before sleeping for this to become true (room for a record, say), by what the consumer does
    /// before it asks
    /// [`Consumer::take_producer_waiting`]: true when it is safe to sleep.
    pub(crate) fn arm(&mut self, news: impl FnOnce(&mut Self) -> bool) -> bool {
        self.memory.producer_waiting().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Consumer::take_producer_waiting`.
        full_fence();
        let news = news(self);
        if news {
            self.disarm();
        }
        !news
    }

    /// No longer waits for room.
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
        let free = |position: u64, returned: u64, shape: RingGeometry| {
            // A consumer that returns more than it got finds the ring full for ever.
            let used = position.wrapping_sub(returned).min(shape.lines);
            (shape.lines - used) as usize
        };
        // SYNC: pairs with the release in `Consumer::release`: the consumer is done with these
        // lines.
        self.released = self.memory.released().load(Ordering::Acquire);
        free(self.position, self.released, self.geometry) > lines
    }

    #[inline(always)] // on the way of a small message
    fn publish(&mut self, header: RecordHeader, lines: usize) {
        let here = self.geometry.index(self.position);
        if lines > 1 || self.position < self.clean_from {
            self.mark_dirty(header, here, lines);
        }
        // SYNC: pairs with the acquires in `Consumer::peek_plain` and `peek`.
        self.memory.header(here).store(
            header.pack(self.geometry.lap(self.position)),
            Ordering::Release,
        );
        self.position += lines as u64;
    }

    /// Remembers which lines hold payload, and keeps the next one from being taken for a record.
    /// The line of the header is none of them: it was the next one before.
    #[inline]
    fn mark_dirty(&mut self, header: RecordHeader, here: usize, lines: usize) {
        debug_assert!(
            self.dirty_lines[here / 64] & 1 << (here % 64) == 0,
            "a header where payload was"
        );
        let end = here + lines;
        if header.kind != PAD {
            (here + 1..end).for_each(|line| self.dirty_lines[line / 64] |= 1 << (line % 64));
        }
        if lines > 1 {
            self.clean_from = self.position + self.geometry.lines + lines as u64;
        }
        let next = self.geometry.index(end as u64);
        let (word, bit) = (&mut self.dirty_lines[next / 64], 1 << (next % 64));
        if *word & bit != 0 {
            *word &= !bit;
            // Invariant 2; ordered before the publication by its release.
            self.memory.header(next).store(0, Ordering::Relaxed);
        }
    }
}

/// A record that is being written: its lines are the producer's until it is published.
pub(crate) struct RecordWriter<'a, M> {
    memory: &'a M,
    start: usize,
    len: usize,
}

impl<M: RingMemory> RecordWriter<'_, M> {
    /// Puts a part at this byte of the record. The first eight bytes are the header's.
    #[inline]
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(
            at >= HEADER_LEN && at <= self.len && bytes.len() <= self.len - at,
            "a part outside of its record"
        );
        // SAFETY: the record does not wrap and lies in lines that the consumer has given back
        // (invariant 3); position 0 to 8 of its first line is left out.
        unsafe { self.memory.write(self.start + at, bytes) };
    }
}

/// The ring's memory does not hold what a producer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmProtocolViolation(pub(crate) &'static str);

/// A record the consumer is looking at: where its bytes lie in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    pub(crate) header: RecordHeader,
    pub(crate) start: usize,
    lines: u32,
}

/// What the consumer sees at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// Nothing new.
    Empty,
    /// A record of the kind in question, without flags: where it begins, and its length, with the
    /// header.
    Plain {
        start: usize,
        len: usize,
        lines: u32,
    },
    /// Something else: [`Consumer::peek`] says what.
    Other,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    geometry: RingGeometry,
    position: u64,
    released: u64,
    armed: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// The reading end of memory of which nothing was read yet.
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

    /// What the oldest record is: for most of them, and for none, this is all there is to find out.
    #[inline(always)] // on the way of a small message
    pub(crate) fn peek_plain(&self, kind: u8) -> Peeked {
        let index = self.geometry.index(self.position);
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

    /// The oldest record that was not consumed yet.
    pub(crate) fn peek(&mut self) -> Result<Option<RecordRef>, ShmProtocolViolation> {
        loop {
            let index = self.geometry.index(self.position);
            // SYNC: pairs with the release in `Producer::publish`.
            let word = self.memory.header(index).load(Ordering::Acquire);
            let Some(header) = self.published(word) else {
                return Ok(None);
            };
            let lines = RingGeometry::lines_for(header.len as usize);
            let rest = self.geometry.lines as usize - index;
            if header.kind == PAD {
                // A filler is shorter than the record that would wrap. One around the whole ring
                // would lead back to itself, for ever.
                if lines != rest || lines >= self.geometry.max_record_lines() {
                    return Err(ShmProtocolViolation(
                        "a filler that does not end with the ring",
                    ));
                }
                self.advance(lines as u64);
                continue;
            }
            if (header.len as usize) < HEADER_LEN
                || lines > self.geometry.max_record_lines()
                || lines > rest
            {
                return Err(ShmProtocolViolation("a record length out of bounds"));
            }
            return Ok(Some(RecordRef {
                header,
                start: index * LINE_LEN,
                lines: lines as u32,
            }));
        }
    }

    /// Done with the record that `peek` returned. True when the producer waits for room and must be
    /// woken.
    #[inline]
    pub(crate) fn consume(&mut self, record: RecordRef) -> bool {
        self.consume_lines(u64::from(record.lines))
    }

    /// Done with so many lines of a record that [`glance`](Self::glance) has shown. As
    /// [`consume`](Self::consume).
    #[inline]
    pub(crate) fn consume_lines(&mut self, lines: u64) -> bool {
        self.advance(lines);
        // A producer is told in batches; an eighth of the ring may be outstanding without starving
        // it, because no record takes more than an eighth.
        if self.position - self.released < self.geometry.lines / 8 {
            return false;
        }
        self.release()
    }

    /// Tells the producer of everything consumed. True when it must be woken.
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

    /// Whether the producer sleeps, and must be woken for what was done before.
    pub(crate) fn take_producer_waiting(&self) -> bool {
        // SYNC: pairs with the fence in `Producer::arm`.
        full_fence();
        self.memory.producer_waiting().load(Ordering::Relaxed) != 0
            && self.memory.producer_waiting().swap(0, Ordering::Relaxed) != 0
    }

    /// Before sleeping: true when there is nothing new.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.memory.consumer_waiting().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Producer::consumer_state`.
        full_fence();
        let word = self
            .memory
            .header(self.geometry.index(self.position))
            .load(Ordering::Relaxed);
        self.published(word).is_none()
    }

    /// Polls again.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.memory.consumer_waiting().swap(0, Ordering::Relaxed);
        }
    }

    /// Nothing will be read any more. What was consumed is made known first: a producer that asks
    /// finds out whether its last record was.
    pub(crate) fn close(&self) {
        self.memory
            .released()
            .store(self.position, Ordering::Release);
        // SYNC: pairs with the acquire in `Producer::consumer_state`.
        self.memory
            .consumer_waiting()
            .swap(CONSUMER_CLOSED, Ordering::Release);
    }

    /// The header at the current position, if it is one of this lap.
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
