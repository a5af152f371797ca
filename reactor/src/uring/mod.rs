//! io_uring: operations that the kernel carries on with while nobody looks.
//!
//! | file | subject |
//! |---|---|
//! | `ring` | a ring: operations in slots, submitted together, reaped, cancelled, waited for |
//! | `buffers` | memory that receives are given when something comes, and leases of it |
//! | `message` | what a send is made of |
//!
//! # The life of an operation
//!
//! 1. A slot lives until the *last* completion of its operation; a receive has many.
//! 2. Completions find their slot by index and generation. One that finds none is counted and ignored.
//! 3. What was queued is the kernel's, whether handing it over succeeded or not: it stays, and goes with the next attempt.
//! 4. A ring that is busy is emptied and asked again; an interrupted call is made again; completions that found no room are
//!    fetched.
//! 5. A slot holds the descriptor it works on. What was abandoned closes it when it ends.
//! 6. A ring that is dropped cancels everything and waits. What does not end keeps its memory for ever.
//! 7. Where the kernel refuses a ring, or lacks something, opening it fails, and whoever asked does without.
//! 8. Lengths are cut to what a completion can tell of.
//! 9. Memory that cannot be registered is a refusal like any other.
//!
//! # Threads
//!
//! Whoever holds the domain's lock submits and reaps: a task here, a thread there, under automatic progress as well, because
//! polls of the application drive in place. So there is no single issuer, and work is not deferred to one.

mod buffers;
mod message;
mod ring;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use buffers::Lease;
pub(crate) use ring::{Completion, Ring, Sent, Shape, Ticket, What};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A ring that the connections of a domain share. Guarded by the domain's lock anyway.
#[derive(Clone)]
pub(crate) struct SharedRing(Arc<Mutex<Ring>>);

impl SharedRing {
    pub(crate) fn new(ring: Ring) -> Self {
        Self(Arc::new(Mutex::new(ring)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
