//! io_uring operations: the kernel executes them while no thread of the program polls.
//!
//! | file | subject |
//! |---|---|
//! | `instance` | an io_uring instance: operations in slots, submitted together, reaped, canceled, waited for |
//! | `timed`, `timed_op` | operations with a timeout: two entries, one slot |
//! | `completion` | completions, and the ids of operations |
//! | `cqe` | entries of the completion queue |
//! | `slot` | the state of an operation, and the meaning of its completions |
//! | `buffers` | provided buffers for receives, and leases of them |
//! | `send_msg` | the message of a send |
//! | `orphaned` | memory that the kernel still reads after its instance was dropped |
//!
//! # The life of an operation
//!
//! The tests of rules 1 to 9 are in `tests`, those of rule 10 in `zero_copy_tests`, and those of
//! rule 11 in `timed_tests`. A test fails or never ends if its rule is broken.
//!
//! | | rule | test |
//! |---|---|---|
//! | 1 | A slot lives until the *last* completion of its operation; a multishot receive has many. | `slot_lives_until_the_last_completion` |
//! | 2 | Completions find their slot by index and generation. A completion that finds no slot is counted and ignored. | `unmatched_completion_is_counted_and_ignored`, `unknown_op_id_is_ignored` |
//! | 3 | A queued entry belongs to the kernel, also if its submission fails: the entry stays queued, and the next call submits it. An operation without room in the submission queue is returned to the caller. | `queued_entries_survive_a_failed_submit`, `op_without_sq_room_is_returned_to_the_caller` |
//! | 4 | When `io_uring_enter` returns `EBUSY` or `EAGAIN`, completions are reaped and the call is repeated; after `EINTR` it is repeated; overflowed completions are fetched. | `io_uring_enter_is_retried_when_busy_or_interrupted`, `overflowed_completions_are_fetched`, `failed_io_uring_enter_is_returned_and_keeps_submissions` |
//! | 5 | A slot holds the descriptor of its operation. A detached operation closes it when it ends. | `detached_op_closes_its_descriptor_when_it_ends` |
//! | 6 | An instance that is dropped cancels all operations and waits for them. The memory of an operation that does not end is leaked. | `drop_waits_for_active_ops`, `drop_leaves_no_active_ops`, `operation_that_never_ends_keeps_its_memory` |
//! | 7 | If the kernel refuses an instance or lacks an operation, opening fails, and the caller uses epoll or reports the error. | `invalid_configuration_is_an_error`, `io_uring_forbidden_by_seccomp_is_an_error`; in `tcp/io_backend`, `forbidden_io_uring_fails_explicit_and_falls_back_on_auto` |
//! | 8 | Lengths are limited to what a completion result can express. | `send_length_is_limited_to_a_completion_result` |
//! | 9 | Memory that cannot be registered or locked is an error of opening. | `unregistrable_buffers_are_an_error`, `exceeding_the_memlock_limit_is_an_error` |
//! | 10 | The buffer of a zero-copy send belongs to the instance until the *second* completion, also if the send is canceled or refused, the connection breaks, or the instance is dropped. | `buffer_is_held_until_the_second_completion`, `canceled_send_keeps_buffer_until_the_kernel_releases_it`, `buffer_is_returned_when_the_connection_breaks`, `buffers_outlive_a_dropped_instance`, `drop_releases_unsubmitted_buffers`, `buffer_is_returned_when_the_kernel_refuses`, `zero_copy_send_over_memlock_limit_returns_buffer`, `buffer_is_returned_to_the_caller_without_sq_room` |
//! | 11 | A timed operation has two entries, of which both are queued or none, and one slot, which lives until both completions have arrived, in either order. The outcome is completed, timed out or interrupted. If the timer ends before the operation without firing, the operation is canceled. | `timed_op_completes_or_times_out`, `local_connect_failure_is_known_after_submission`, `op_and_timer_results_are_combined`, `slot_is_freed_after_operation_and_timeout_cqes`, `failed_timer_cancels_its_operation`, `timed_op_queues_both_entries_or_none`, `detached_timed_op_is_released`, `drop_of_uring_waits_for_ops_with_linked_timeout`, `timed_op_ends_when_the_submitting_thread_exits` |
//!
//! # Threads
//!
//! The thread that holds the domain's lock submits and reaps: that of a polling task, or the
//! progress thread. Tasks submit and reap under automatic progress as well, because polls drive in
//! place. So the instance uses neither `SINGLE_ISSUER` nor `DEFER_TASKRUN`: the kernel would refuse
//! the calls of all threads but one, and completions would be visible only after a call of that
//! thread. Polls would then have to wake the progress thread instead of driving in place. Measured
//! set-ups of this kind gained nothing (docs/performance.md).
//!
//! Under manual progress the instance uses cooperative task work (`COOP_TASKRUN`), which interrupts
//! no thread. Under automatic progress it does not, because a thread that computes would delay the
//! completions. `SocketIo::Auto` selects epoll: while a thread polls, both backends make the same
//! calls, and measured round trips over io_uring were slower.

mod buffers;
mod completion;
mod cqe;
mod instance;
mod orphaned;
mod send_msg;
#[cfg(all(test, not(loom)))]
#[path = "../../../../fabric-async/tests/common/skip.rs"]
mod skip;
mod slot;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod timed;
mod timed_op;
#[cfg(all(test, not(loom)))]
mod timed_tests;
#[cfg(all(test, not(loom)))]
mod zero_copy_tests;

pub(crate) use buffers::LeasedBuffer;
pub(crate) use completion::{
    CompletionKind, OpId, ReleasedBuffer, SendResult, TimedOutcome, UringCompletion,
    ZeroCopyOutcome,
};
pub(crate) use instance::{Uring, UringConfig};
pub(crate) use send_msg::{MAX_IOVECS, MAX_SEND_LEN};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An io_uring instance that the connections of a domain share. All users hold the domain's lock,
/// so this mutex is uncontended.
#[derive(Clone)]
pub(crate) struct SharedUring(Arc<Mutex<Uring>>);

impl SharedUring {
    pub(crate) fn new(uring: Uring) -> Self {
        Self(Arc::new(Mutex::new(uring)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Uring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
