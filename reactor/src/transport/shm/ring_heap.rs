//! Ring memory on the heap, for tests in one thread and for fuzzing.

use std::sync::Arc;

use super::ring::{HEADER_LEN, LINE_LEN, RecordRef, RingMemory};
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};

const WORDS_PER_LINE: usize = LINE_LEN / 8;

/// Ring memory on the heap. Clones share the memory.
#[derive(Clone, Debug)]
pub(super) struct HeapRing(pub(super) Arc<HeapRingWords>);

/// The lines and the control words of a heap ring.
#[derive(Debug)]
pub(super) struct HeapRingWords {
    pub(super) words: Vec<AtomicU64>,
    initial_lines: usize,
    /// Whether there is memory for the other lines.
    can_grow: bool,
    pub(super) released: AtomicU64,
    pub(super) consumer_waiting: AtomicU32,
    pub(super) producer_waiting: AtomicU32,
}

impl HeapRing {
    /// Creates the memory of a ring that does not grow.
    pub(super) fn new(lines: usize) -> Self {
        Self::growing(lines, lines, true)
    }

    /// Creates the memory of a ring that begins with `initial_lines`, and grows to `lines` if
    /// `can_grow`.
    pub(super) fn growing(initial_lines: usize, lines: usize, can_grow: bool) -> Self {
        Self(Arc::new(HeapRingWords {
            initial_lines,
            can_grow,
            words: (0..lines * WORDS_PER_LINE)
                .map(|_| AtomicU64::new(0))
                .collect(),
            released: AtomicU64::new(0),
            consumer_waiting: AtomicU32::new(0),
            producer_waiting: AtomicU32::new(0),
        }))
    }

    /// Returns the payload of a record.
    pub(super) fn payload(&self, record: RecordRef) -> Vec<u8> {
        let (start, end) = (record.start, record.start + record.header.len as usize);
        let words = &self.0.words[start / 8..end.div_ceil(8)];
        let bytes = words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        bytes.take(end - start).skip(HEADER_LEN).collect()
    }
}

impl RingMemory for HeapRing {
    fn lines(&self) -> usize {
        self.0.words.len() / WORDS_PER_LINE
    }

    fn initial_lines(&self) -> usize {
        self.0.initial_lines
    }

    fn allocate_rest(&self) -> bool {
        self.0.can_grow
    }

    fn is_rest_allocated(&self) -> bool {
        self.0.can_grow
    }

    fn header(&self, line: usize) -> &AtomicU64 {
        &self.0.words[line * WORDS_PER_LINE]
    }

    fn released(&self) -> &AtomicU64 {
        &self.0.released
    }

    fn consumer_waiting(&self) -> &AtomicU32 {
        &self.0.consumer_waiting
    }

    fn producer_waiting(&self) -> &AtomicU32 {
        &self.0.producer_waiting
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let (word, shift) = (&self.0.words[at / 8], at % 8 * 8);
            let others = word.load(Ordering::Relaxed) & !(0xff << shift);
            word.store(others | u64::from(*byte) << shift, Ordering::Relaxed);
        }
    }
}
