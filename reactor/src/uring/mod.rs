//! io_uring: operations that the kernel carries on with while nobody looks.
//!
//! | file | subject |
//! |---|---|
//! | `ring` | a ring: operations in slots, submitted together, reaped, cancelled, waited for |
//! | `timed` | operations that have their time: two entries, one slot |
//! | `slot` | what is kept of an operation, and what its completions say |
//! | `buffers` | memory that receives are given when something comes, and leases of it |
//! | `message` | what a send is made of |
//! | `remains` | memory that the kernel still reads when its ring is gone |
//!
//! # The life of an operation
//!
//! Each rule has tests of its name in `tests`, the last two in `zero_copy_tests` and `timed_tests`,
//! which fail, or never end, when it is broken.
//!
//! | | rule | test |
//! |---|---|---|
//! | 1 | A slot lives until the *last* completion of its operation; a receive has many. | `slot_lives_until_the_last_completion` |
//! | 2 | Completions find their slot by index and generation. One that finds none is counted and ignored. | `unmatched_completion_is_counted_and_ignored`, `op_id_of_another_instance_is_ignored` |
//! | 3 | What was queued is the kernel's, whether handing it over succeeded or not: it stays, and goes with the next attempt. What found no room was never the kernel's. | `queued_entries_survive_a_failed_submit`, `op_without_sq_room_is_returned_to_the_caller` |
//! | 4 | A ring that is busy is emptied and asked again; an interrupted call is made again; completions that found no room are fetched. | `busy_or_interrupted_enter_is_retried`, `overflowed_completions_are_fetched`, `refused_enter_is_an_error_and_loses_nothing` |
//! | 5 | A slot holds the descriptor it works on. What was abandoned closes it when it ends. | `detached_op_closes_its_descriptor_when_it_ends` |
//! | 6 | A ring that is dropped cancels everything and waits. What does not end keeps its memory for ever. | `drop_waits_for_active_ops`, `drop_leaves_no_active_ops`, `op_that_never_ends_keeps_its_memory` |
//! | 7 | Where the kernel refuses a ring, or lacks something, opening it fails, and whoever asked does without. | `invalid_configuration_is_an_error`, `io_uring_forbidden_by_seccomp_is_an_error`; in `tcp/io`, `forbidden_io_uring_fails_explicit_and_falls_back_on_auto` |
//! | 8 | Lengths are cut to what a completion can tell of. | `send_length_is_limited_to_a_completion_result` |
//! | 9 | Memory that cannot be registered, or locked, is a refusal like any other. | `unregistrable_buffers_are_an_error`, `exceeding_the_memlock_limit_is_an_error` |
//! | 10 | A buffer from which the kernel sends without copying is the ring's until the *second* completion, whatever becomes of the send, the connection and the ring; also where the kernel refuses. | `buffer_is_held_until_the_second_completion`, `buffer_of_a_canceled_send_is_returned_later`, `buffer_is_returned_when_the_connection_breaks`, `buffers_outlive_a_dropped_instance`, `drop_releases_unsubmitted_buffers`, `buffer_is_returned_when_the_kernel_refuses`, `buffer_is_returned_beyond_the_memlock_limit`, `buffer_is_returned_at_once_without_sq_room` |
//! | 11 | An operation that has its time is two entries, of which both are queued or none, and one slot, which lives until both completions are in, in whichever order. It has ended by itself, or its time was over, or something else has ended it; and when its timer is gone otherwise, it goes too. | `timed_op_completes_or_times_out`, `local_connect_failure_is_known_at_once`, `op_and_timer_results_are_combined`, `timed_slot_lives_until_both_completions`, `failed_timer_cancels_its_operation`, `timed_op_queues_both_entries_or_none`, `detached_timed_op_is_released`, `drop_waits_for_timed_ops`, `timed_op_ends_when_the_submitting_thread_exits` |
//!
//! # Threads
//!
//! Whoever holds the domain's lock submits and reaps: a task here, a thread there, under automatic
//! progress as well, because polls of the application drive in place. So there is no single issuer,
//! and work is not deferred to one.

mod buffers;
mod instance;
mod orphaned;
mod send_msg;
mod slot;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod timed;
#[cfg(all(test, not(loom)))]
mod timed_tests;
#[cfg(all(test, not(loom)))]
mod zero_copy_tests;

pub(crate) use buffers::LeasedBuffer;
pub(crate) use instance::{CompletionKind, OpId, Uring, UringCompletion, UringConfig};
pub(crate) use send_msg::{MAX_IOVECS, MAX_SEND_LEN};
pub(crate) use slot::{ReleasedBuffer, SendResult, ZeroCopyOutcome};
pub(crate) use timed::TimedOutcome;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A ring that the connections of a domain share. Guarded by the domain's lock anyway.
#[derive(Clone)]
pub(crate) struct SharedUring(Arc<Mutex<Uring>>);

impl SharedUring {
    pub(crate) fn new(ring: Uring) -> Self {
        Self(Arc::new(Mutex::new(ring)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Uring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
