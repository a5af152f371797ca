//! The memory of a ring as loom sees it, and a doorbell.
//!
//! A line is a header, which is an atomic, and a cell of 64 bytes whose accesses loom checks for
//! races. In real memory the header is the first eight bytes of the line, so a payload that
//! continues in a line overwrites that line's header, and zeroing a header destroys payload that is
//! still there. Both happen here too.
#![allow(unsafe_code)] // access to loom's cells

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use crate::transport::shm::ring::{HEADER_LEN, LINE_LEN, RecordRef, RingMemory};

/// The memory of a ring; clones share it.
#[derive(Clone)]
pub(super) struct LoomRingMemory(Arc<LoomRingState>);

struct LoomRingState {
    headers: Vec<AtomicU64>,
    initial_lines: usize,
    cells: Vec<UnsafeCell<[u8; LINE_LEN]>>,
    released: AtomicU64,
    consumer_waiting: AtomicU32,
    producer_waiting: AtomicU32,
}

// SAFETY: loom's cells are not `Sync` by themselves; loom panics when two accesses race.
unsafe impl Sync for LoomRingState {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for LoomRingState {}

impl LoomRingMemory {
    pub(super) fn new(lines: usize) -> Self {
        Self::growing(lines, lines)
    }

    /// Creates the memory of a ring that begins with `initial_lines`.
    pub(super) fn growing(initial_lines: usize, lines: usize) -> Self {
        Self(Arc::new(LoomRingState {
            initial_lines,
            headers: (0..lines).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..lines).map(|_| UnsafeCell::new([0; LINE_LEN])).collect(),
            released: AtomicU64::new(0),
            consumer_waiting: AtomicU32::new(0),
            producer_waiting: AtomicU32::new(0),
        }))
    }

    /// Returns the payload of a record.
    pub(super) fn payload(&self, record: RecordRef) -> Vec<u8> {
        let (first, end) = (
            record.start / LINE_LEN,
            record.start + record.header.len as usize,
        );
        let mut bytes = Vec::new();
        for line in first..end.div_ceil(LINE_LEN) {
            // SAFETY: the pointer is valid during the closure, and loom checks that no thread
            // writes meanwhile.
            let mut copy = self.0.cells[line].with(|cell| unsafe { *cell });
            if line > first {
                let word = self.0.headers[line].load(Ordering::Relaxed);
                copy[..HEADER_LEN].copy_from_slice(&word.to_le_bytes());
            }
            let from = if line == first { HEADER_LEN } else { 0 };
            bytes.extend_from_slice(&copy[from..LINE_LEN.min(end - line * LINE_LEN)]);
        }
        bytes
    }
}

impl RingMemory for LoomRingMemory {
    fn lines(&self) -> usize {
        self.0.headers.len()
    }

    fn initial_lines(&self) -> usize {
        self.0.initial_lines
    }

    fn allocate_rest(&self) -> bool {
        true
    }

    fn is_rest_allocated(&self) -> bool {
        true
    }

    fn header(&self, line: usize) -> &AtomicU64 {
        &self.0.headers[line]
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

    fn write(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (line, from) = ((offset + done) / LINE_LEN, (offset + done) % LINE_LEN);
            let part = &bytes[done..bytes.len().min(done + LINE_LEN - from)];
            // SAFETY: the pointer is valid during the closure, and loom checks that no other thread
            // accesses the cell meanwhile.
            let cell = self.0.cells[line].with_mut(|cell| unsafe {
                let cell = &mut *cell;
                cell[from..from + part.len()].copy_from_slice(part);
                *cell
            });
            if from < HEADER_LEN {
                let word = cell.first_chunk().expect("longer than a header");
                self.0.headers[line].store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
            done += part.len();
        }
    }
}

/// A doorbell in place of an eventfd on which one thread sleeps. However often it rings, it wakes
/// one sleep.
#[derive(Clone)]
pub(super) struct LoomDoorbell(Arc<(Mutex<bool>, Condvar)>);

impl LoomDoorbell {
    pub(super) fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub(super) fn ring(&self) {
        *crate::sys::sync::lock(&self.0.0) = true;
        self.0.1.notify_one();
    }

    /// Sleeps until the doorbell rings. Loom reports a deadlock if it never does.
    pub(super) fn sleep(&self) {
        let mut rung = crate::sys::sync::lock(&self.0.0);
        while !*rung {
            rung = self
                .0
                .1
                .wait(rung)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *rung = false;
    }
}
