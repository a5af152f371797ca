//! What is left of a ring that is gone: memory at which the kernel still looks.
//!
//! What was sent from where it lies is looked at until the peer has acknowledged it, and nothing
//! ends that but the end of the connection, which the kernel sees to when it is closed, in minutes.
//! So it is waited for on a thread of its own.

use std::sync::Arc;
use std::thread;

use io_uring::IoUring;
use rustix::io::Errno;
use slab::Slab;

use super::buffers::ProvidedBuffers;
use super::slot::{Cqe, UringSlot, slot_index};

/// The kernel may still look at what the slots have, and write to the buffers while there is one.
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

    /// Frees each slot when its last completion has come.
    pub(super) fn free_on_completion(mut self) {
        self.reap();
        if !self.slots.is_empty() {
            // Without a thread they are kept.
            let _ = thread::Builder::new()
                .name("fab-uring-drop".into())
                .spawn(move || {
                    while !self.slots.is_empty() && self.wait() {
                        self.reap();
                    }
                });
        }
    }

    /// Waits for a completion. False when that will never do.
    fn wait(&self) -> bool {
        let waited = self
            .io_uring
            .submit_and_wait(1)
            .map_err(|error| error.raw_os_error());
        let again =
            [Errno::INTR, Errno::BUSY, Errno::AGAIN].map(|errno| Err(Some(errno.raw_os_error())));
        waited.is_ok() || again.contains(&waited)
    }

    fn reap(&mut self) {
        for raw in self.io_uring.completion().map(Cqe::from_entry) {
            if raw.is_last() {
                self.slots.try_remove(slot_index(raw.user_data));
            }
        }
    }
}

impl Drop for OrphanedRing {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            // Neither that memory nor what the slots have is ever freed.
            std::mem::forget(self.buffers.clone());
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
