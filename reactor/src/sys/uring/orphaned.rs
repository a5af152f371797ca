//! Memory that the kernel still reads after its io_uring instance was dropped.
//!
//! The kernel reads the buffer of a zero-copy send until the peer has acknowledged all bytes or the
//! connection has ended, which may be minutes after the socket was closed. So a thread waits for
//! the last completions, and then frees the memory.

use std::sync::Arc;
use std::thread;

use io_uring::IoUring;
use rustix::io::Errno;
use slab::Slab;

use super::buffers::ProvidedBuffers;
use super::cqe::Cqe;
use super::slot::{UringSlot, slot_index};

/// A dropped instance: the kernel may still read the memory of the slots, and write to the buffers
/// while a slot is left.
pub(super) struct OrphanedRing {
    io_uring: IoUring,
    slots: Slab<UringSlot>,
    buffers: Arc<ProvidedBuffers>,
}

impl OrphanedRing {
    pub(super) fn new(
        io_uring: IoUring,
        slots: Slab<UringSlot>,
        buffers: Arc<ProvidedBuffers>,
    ) -> Self {
        Self {
            io_uring,
            slots,
            buffers,
        }
    }

    /// Frees each slot when its last completion has arrived. A thread waits for the completions
    /// that have not arrived yet.
    pub(super) fn free_on_completion(mut self) {
        self.reap();
        if !self.slots.is_empty() {
            // If no thread can be started, the slots are leaked.
            let _ = thread::Builder::new()
                .name("fab-uring-drop".into())
                .spawn(move || {
                    while !self.slots.is_empty() && self.wait() {
                        self.reap();
                    }
                });
        }
    }

    /// Waits for a completion. Returns false if waiting fails for good.
    fn wait(&self) -> bool {
        let waited = self
            .io_uring
            .submit_and_wait(1)
            .map_err(|error| error.raw_os_error());
        let retryable =
            [Errno::INTR, Errno::BUSY, Errno::AGAIN].map(|errno| Err(Some(errno.raw_os_error())));
        waited.is_ok() || retryable.contains(&waited)
    }

    /// Frees the slots whose last completion has arrived.
    fn reap(&mut self) {
        for cqe in self.io_uring.completion().map(Cqe::from_entry) {
            if cqe.is_last() {
                self.slots.try_remove(slot_index(cqe.user_data));
            }
        }
    }
}

impl Drop for OrphanedRing {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            // The kernel may still use the buffers and the memory of the slots, so both are leaked.
            std::mem::forget(self.buffers.clone());
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
