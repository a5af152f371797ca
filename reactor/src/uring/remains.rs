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

use super::buffers::Buffers;
use super::slot::{Raw, Slot, index};

/// The kernel may still look at what the slots have, and write to the buffers while there is one.
pub(super) struct Remains {
    uring: IoUring,
    slots: Slab<Slot>,
    buffers: Arc<Buffers>,
}

impl Remains {
    pub(super) fn new(uring: IoUring, slots: Slab<Slot>, buffers: Arc<Buffers>) -> Self {
        Self {
            uring,
            slots,
            buffers,
        }
    }

    /// Frees each slot when its last completion has come.
    pub(super) fn await_last_looks(mut self) {
        self.reap();
        if !self.slots.is_empty() {
            // Without a thread they are kept.
            let _ = thread::Builder::new()
                .name("fab-remains".into())
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
            .uring
            .submit_and_wait(1)
            .map_err(|error| error.raw_os_error());
        let again =
            [Errno::INTR, Errno::BUSY, Errno::AGAIN].map(|errno| Err(Some(errno.raw_os_error())));
        waited.is_ok() || again.contains(&waited)
    }

    fn reap(&mut self) {
        for raw in self.uring.completion().map(Raw::of) {
            if raw.is_last() {
                self.slots.try_remove(index(raw.name));
            }
        }
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            // Neither that memory nor what the slots have is ever freed.
            std::mem::forget(self.buffers.clone());
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
