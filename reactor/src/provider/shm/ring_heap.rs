//! The memory of a ring on the heap, for one thread.
#![allow(unsafe_code)] // the duty of writing, which this memory does not need

use std::sync::Arc;

use super::ring::{HEADER, LINE, Memory, Record};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

const WORDS: usize = LINE / 8;

/// Clones are the same memory.
#[derive(Clone, Debug)]
pub(super) struct Heap(pub(super) Arc<Words>);

#[derive(Debug)]
pub(super) struct Words {
    pub(super) words: Vec<AtomicU64>,
    pub(super) returned: AtomicU64,
    pub(super) armed: AtomicU32,
    pub(super) starved: AtomicU32,
}

impl Heap {
    pub(super) fn new(lines: usize) -> Self {
        Self(Arc::new(Words {
            words: (0..lines * WORDS).map(|_| AtomicU64::new(0)).collect(),
            returned: AtomicU64::new(0),
            armed: AtomicU32::new(0),
            starved: AtomicU32::new(0),
        }))
    }

    /// The payload of a record.
    pub(super) fn payload(&self, record: Record) -> Vec<u8> {
        let (start, end) = (record.start, record.start + record.header.len as usize);
        let words = &self.0.words[start / 8..end.div_ceil(8)];
        let bytes = words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        bytes.take(end - start).skip(HEADER).collect()
    }
}

impl Memory for Heap {
    fn lines(&self) -> usize {
        self.0.words.len() / WORDS
    }

    fn header(&self, line: usize) -> &AtomicU64 {
        &self.0.words[line * WORDS]
    }

    fn returned(&self) -> &AtomicU64 {
        &self.0.returned
    }

    fn armed(&self) -> &AtomicU32 {
        &self.0.armed
    }

    fn starved(&self) -> &AtomicU32 {
        &self.0.starved
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let (word, shift) = (&self.0.words[at / 8], at % 8 * 8);
            let others = word.load(Ordering::Relaxed) & !(0xff << shift);
            word.store(others | u64::from(*byte) << shift, Ordering::Relaxed);
        }
    }
}
