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
//!    can look like anything, are known to the producer (`littered`); it zeroes them before a
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
pub(crate) const LINE: usize = 64;
/// Bytes of the header.
pub(crate) const HEADER: usize = 8;

/// The memory of a ring, as its two ends see it.
pub(crate) trait Memory {
    /// The number of lines, a power of two.
    fn lines(&self) -> usize;
    /// The header at the start of a line.
    fn header(&self, line: usize) -> &AtomicU64;
    /// Lines the consumer has given back since the beginning.
    fn returned(&self) -> &AtomicU64;
    /// Whether the consumer sleeps, or has closed.
    fn armed(&self) -> &AtomicU32;
    /// The producer waits for room.
    fn starved(&self) -> &AtomicU32;
    /// Copies into the lines, from byte `at` of the array on.
    ///
    /// # Safety
    /// The bytes lie within the lines, and outside of headers the other end may read now.
    unsafe fn write(&self, at: usize, bytes: &[u8]);
}

/// What the two ends agree on from the number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    lines: u64,
}

impl Shape {
    pub(crate) fn new(lines: usize) -> Self {
        debug_assert!(lines.is_power_of_two());
        Self {
            lines: lines as u64,
        }
    }

    /// The longest record, in lines: an eighth of the ring.
    fn longest_lines(self) -> usize {
        (self.lines / 8).max(1) as usize
    }

    /// The longest record in bytes, header included.
    pub(crate) fn longest(self) -> usize {
        self.longest_lines() * LINE
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
        bytes.div_ceil(LINE)
    }
}

/// The header of a record: its kind (never 0), eight flag bits, and its length in bytes, header
/// included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Below 2^24.
    pub(crate) len: u32,
}

/// The bits of a header below its length, and below its lap.
const LEN_SHIFT: u32 = 16;
const LAP_SHIFT: u32 = 40;
const LEN_MASK: u64 = ((1 << LAP_SHIFT) - 1) & !((1 << LEN_SHIFT) - 1);

impl Header {
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
const CLOSED: u32 = 2;

/// What the reading end is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
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
    shape: Shape,
    position: u64,
    returned: u64,
    /// Lines that hold payload, a bit each.
    littered: Box<[u64]>,
    /// Behind this position there are none: a lap later they were all written over, or zeroed.
    clean_from: u64,
}

impl<M: Memory> Producer<M> {
    /// The writing end of fresh memory.
    pub(crate) fn new(memory: M) -> Self {
        let shape = Shape::new(memory.lines());
        let littered = vec![0; memory.lines().div_ceil(64)].into();
        Self {
            memory,
            shape,
            position: 0,
            returned: 0,
            littered,
            clean_from: 0,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
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
        fill: impl FnOnce(Draft<'_, M>),
    ) -> bool {
        debug_assert!(kind != 0 && kind != PAD && len >= HEADER && len <= self.shape.longest());
        let lines = Shape::lines_for(len);
        if !self.make_way(lines) {
            return false;
        }
        fill(Draft {
            memory: &self.memory,
            start: self.shape.index(self.position) * LINE,
            len,
        });
        self.publish(
            Header {
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
    fn make_way(&mut self, lines: usize) -> bool {
        let rest = self.shape.lines as usize - self.shape.index(self.position);
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
                Header {
                    kind: PAD,
                    flags: 0,
                    len: (rest * LINE) as u32,
                },
                rest,
            );
        }
        has_room
    }

    /// Whether a record of this many bytes has room now.
    pub(crate) fn fits(&mut self, len: usize) -> bool {
        let lines = Shape::lines_for(len);
        let rest = self.shape.lines as usize - self.shape.index(self.position);
        self.has_room(lines + if lines > rest { rest } else { 0 })
    }

    /// What the consumer is doing; asked after each publication. One that sleeps has to be woken
    /// now.
    pub(crate) fn reader(&self) -> Reader {
        // SYNC: pairs with the fence in `Consumer::arm`.
        full_fence();
        // SYNC: the acquire pairs with the release in `Consumer::close`.
        match self.memory.armed().load(Ordering::Acquire) {
            0 => Reader::Awake,
            CLOSED => self.closed(),
            _ => match self.memory.armed().swap(0, Ordering::Acquire) {
                0 => Reader::Awake,
                CLOSED => {
                    // Not the producer's to take down: the next question has the same answer.
                    self.memory.armed().swap(CLOSED, Ordering::Relaxed);
                    self.closed()
                }
                _ => Reader::Asleep,
            },
        }
    }

    /// Whether the consumer has closed, as far as can be told without a fence, and did not take the
    /// last record.
    pub(crate) fn is_closed(&self) -> bool {
        // SYNC: pairs with the release in `Consumer::close`.
        self.memory.armed().load(Ordering::Acquire) == CLOSED && self.closed() == Reader::Closed
    }

    /// The consumer has closed: what it took before arrived all the same.
    #[cold]
    fn closed(&self) -> Reader {
        let taken = self.memory.returned().load(Ordering::Relaxed) == self.position;
        if taken { Reader::Awake } else { Reader::Closed }
    }

    /// Before sleeping for this to become true (room for a record, say), by what the consumer does
    /// before it asks
    /// [`Consumer::starves`]: true when it is safe to sleep.
    pub(crate) fn arm(&mut self, news: impl FnOnce(&mut Self) -> bool) -> bool {
        self.memory.starved().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Consumer::starves`.
        full_fence();
        let news = news(self);
        if news {
            self.disarm();
        }
        !news
    }

    /// No longer waits for room.
    pub(crate) fn disarm(&self) {
        self.memory.starved().swap(0, Ordering::Relaxed);
    }

    #[inline]
    fn has_room(&mut self, lines: usize) -> bool {
        // One line stays free for the zero behind the record.
        let used = self
            .position
            .wrapping_sub(self.returned)
            .saturating_add(lines as u64);
        used < self.shape.lines || self.finds_room(lines)
    }

    #[cold]
    fn finds_room(&mut self, lines: usize) -> bool {
        let free = |position: u64, returned: u64, shape: Shape| {
            // A consumer that returns more than it got finds the ring full for ever.
            let used = position.wrapping_sub(returned).min(shape.lines);
            (shape.lines - used) as usize
        };
        // SYNC: pairs with the release in `Consumer::give_back`: the consumer is done with these
        // lines.
        self.returned = self.memory.returned().load(Ordering::Acquire);
        free(self.position, self.returned, self.shape) > lines
    }

    #[inline(always)] // on the way of a small message
    fn publish(&mut self, header: Header, lines: usize) {
        let here = self.shape.index(self.position);
        if lines > 1 || self.position < self.clean_from {
            self.litter(header, here, lines);
        }
        // SYNC: pairs with the acquires in `Consumer::glance` and `peek`.
        self.memory.header(here).store(
            header.pack(self.shape.lap(self.position)),
            Ordering::Release,
        );
        self.position += lines as u64;
    }

    /// Remembers which lines hold payload, and keeps the next one from being taken for a record.
    /// The line of the header is none of them: it was the next one before.
    #[inline]
    fn litter(&mut self, header: Header, here: usize, lines: usize) {
        debug_assert!(
            self.littered[here / 64] & 1 << (here % 64) == 0,
            "a header where payload was"
        );
        let end = here + lines;
        if header.kind != PAD {
            (here + 1..end).for_each(|line| self.littered[line / 64] |= 1 << (line % 64));
        }
        if lines > 1 {
            self.clean_from = self.position + self.shape.lines + lines as u64;
        }
        let next = self.shape.index(end as u64);
        let (word, bit) = (&mut self.littered[next / 64], 1 << (next % 64));
        if *word & bit != 0 {
            *word &= !bit;
            // Invariant 2; ordered before the publication by its release.
            self.memory.header(next).store(0, Ordering::Relaxed);
        }
    }
}

/// A record that is being written: its lines are the producer's until it is published.
pub(crate) struct Draft<'a, M> {
    memory: &'a M,
    start: usize,
    len: usize,
}

impl<M: Memory> Draft<'_, M> {
    /// Puts a part at this byte of the record. The first eight bytes are the header's.
    #[inline]
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(
            at >= HEADER && at <= self.len && bytes.len() <= self.len - at,
            "a part outside of its record"
        );
        // SAFETY: the record does not wrap and lies in lines that the consumer has given back
        // (invariant 3); position 0 to 8 of its first line is left out.
        unsafe { self.memory.write(self.start + at, bytes) };
    }
}

/// The ring's memory does not hold what a producer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// A record the consumer is looking at: where its bytes lie in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) start: usize,
    lines: u32,
}

/// What the consumer sees at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Glance {
    /// Nothing new.
    Nothing,
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
    shape: Shape,
    position: u64,
    returned: u64,
    armed: bool,
}

impl<M: Memory> Consumer<M> {
    /// The reading end of memory of which nothing was read yet.
    pub(crate) fn new(memory: M) -> Self {
        let shape = Shape::new(memory.lines());
        Self {
            memory,
            shape,
            position: 0,
            returned: 0,
            armed: false,
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// What the oldest record is: for most of them, and for none, this is all there is to find out.
    #[inline(always)] // on the way of a small message
    pub(crate) fn glance(&self, kind: u8) -> Glance {
        let index = self.shape.index(self.position);
        // SYNC: pairs with the release in `Producer::publish`.
        let word = self.memory.header(index).load(Ordering::Acquire);
        let (lap, len) = (
            self.shape.lap(self.position),
            (word & LEN_MASK) >> LEN_SHIFT,
        );
        if word >> LAP_SHIFT != lap {
            Glance::Nothing
        } else if word & !LEN_MASK == lap << LAP_SHIFT | u64::from(kind) && len >= HEADER as u64 {
            let (len, lines) = (len as usize, Shape::lines_for(len as usize));
            if lines > 1
                && (lines > self.shape.longest_lines() || index + lines > self.shape.lines as usize)
            {
                return Glance::Other;
            }
            Glance::Plain {
                start: index * LINE,
                len,
                lines: lines as u32,
            }
        } else {
            Glance::Other
        }
    }

    /// The oldest record that was not consumed yet.
    pub(crate) fn peek(&mut self) -> Result<Option<Record>, Broken> {
        loop {
            let index = self.shape.index(self.position);
            // SYNC: pairs with the release in `Producer::publish`.
            let word = self.memory.header(index).load(Ordering::Acquire);
            let Some(header) = self.published(word) else {
                return Ok(None);
            };
            let lines = Shape::lines_for(header.len as usize);
            let rest = self.shape.lines as usize - index;
            if header.kind == PAD {
                // A filler is shorter than the record that would wrap. One around the whole ring
                // would lead back to itself, for ever.
                if lines != rest || lines >= self.shape.longest_lines() {
                    return Err(Broken("a filler that does not end with the ring"));
                }
                self.advance(lines as u64);
                continue;
            }
            if (header.len as usize) < HEADER || lines > self.shape.longest_lines() || lines > rest
            {
                return Err(Broken("a record length out of bounds"));
            }
            return Ok(Some(Record {
                header,
                start: index * LINE,
                lines: lines as u32,
            }));
        }
    }

    /// Done with the record that `peek` returned. True when the producer waits for room and must be
    /// woken.
    #[inline]
    pub(crate) fn consume(&mut self, record: Record) -> bool {
        self.consume_lines(u64::from(record.lines))
    }

    /// Done with so many lines of a record that [`glance`](Self::glance) has shown. As
    /// [`consume`](Self::consume).
    #[inline]
    pub(crate) fn consume_lines(&mut self, lines: u64) -> bool {
        self.advance(lines);
        // A producer is told in batches; an eighth of the ring may be outstanding without starving
        // it, because no record takes more than an eighth.
        if self.position - self.returned < self.shape.lines / 8 {
            return false;
        }
        self.give_back()
    }

    /// Tells the producer of everything consumed. True when it must be woken.
    #[cold]
    pub(crate) fn give_back(&mut self) -> bool {
        if self.returned == self.position {
            return false;
        }
        self.returned = self.position;
        // SYNC: pairs with the acquire in `Producer::finds_room`.
        self.memory
            .returned()
            .store(self.position, Ordering::Release);
        self.starves()
    }

    /// Whether the producer sleeps, and must be woken for what was done before.
    pub(crate) fn starves(&self) -> bool {
        // SYNC: pairs with the fence in `Producer::arm`.
        full_fence();
        self.memory.starved().load(Ordering::Relaxed) != 0
            && self.memory.starved().swap(0, Ordering::Relaxed) != 0
    }

    /// Before sleeping: true when there is nothing new.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.memory.armed().swap(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `Producer::reader`.
        full_fence();
        let word = self
            .memory
            .header(self.shape.index(self.position))
            .load(Ordering::Relaxed);
        self.published(word).is_none()
    }

    /// Polls again.
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.memory.armed().swap(0, Ordering::Relaxed);
        }
    }

    /// Nothing will be read any more. What was consumed is made known first: a producer that asks
    /// finds out whether its last record was.
    pub(crate) fn close(&self) {
        self.memory
            .returned()
            .store(self.position, Ordering::Release);
        // SYNC: pairs with the acquire in `Producer::reader`.
        self.memory.armed().swap(CLOSED, Ordering::Release);
    }

    /// The header at the current position, if it is one of this lap.
    #[inline]
    fn published(&self, word: u64) -> Option<Header> {
        let header = Header::unpack(word);
        (word >> LAP_SHIFT == self.shape.lap(self.position) && header.kind != 0).then_some(header)
    }

    fn advance(&mut self, lines: u64) {
        self.position += lines;
    }
}
