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
//! | 1 | A slot lives until the *last* completion of its operation; a receive has many. | `rule_1_a_slot_lives_until_the_last_completion` |
//! | 2 | Completions find their slot by index and generation. One that finds none is counted and ignored. | `rule_2_a_completion_of_nothing_is_counted_and_ignored`, `a_ticket_says_nothing_about_another_ring` |
//! | 3 | What was queued is the kernel's, whether handing it over succeeded or not: it stays, and goes with the next attempt. What found no room was never the kernel's. | `rule_3_what_was_queued_is_kept_when_it_cannot_be_handed_over`, `rule_3_what_finds_no_room_was_never_the_kernels` |
//! | 4 | A ring that is busy is emptied and asked again; an interrupted call is made again; completions that found no room are fetched. | `rule_4_a_busy_or_interrupted_call_is_made_again`, `rule_4_completions_that_find_no_room_are_fetched`, `rule_4_a_call_that_is_refused_for_good_is_an_error_and_loses_nothing` |
//! | 5 | A slot holds the descriptor it works on. What was abandoned closes it when it ends. | `rule_5_what_was_abandoned_closes_its_descriptor_when_it_ends` |
//! | 6 | A ring that is dropped cancels everything and waits. What does not end keeps its memory for ever. | `rule_6_a_ring_that_is_dropped_waits_for_its_operations`, `rule_6_nothing_is_under_way_any_more_when_a_ring_is_dropped`, `rule_6_what_does_not_end_keeps_its_memory` |
//! | 7 | Where the kernel refuses a ring, or lacks something, opening it fails, and whoever asked does without. | `rule_7_what_the_kernel_refuses_is_an_error`, `rule_7_a_forbidden_call_is_an_error`; in `tcp/io`, `where_rings_are_forbidden_a_wish_is_not_granted_and_a_demand_is_refused` |
//! | 8 | Lengths are cut to what a completion can tell of. | `rule_8_lengths_are_cut_to_what_a_completion_can_tell_of` |
//! | 9 | Memory that cannot be registered, or locked, is a refusal like any other. | `rule_9_memory_that_cannot_be_registered_is_an_error`, `rule_9_a_ring_beyond_the_limit_of_locked_memory_is_an_error` |
//! | 10 | A buffer from which the kernel sends without copying is the ring's until the *second* completion, whatever becomes of the send, the connection and the ring; also where the kernel refuses. | `rule_10_a_buffer_outlives_its_send_until_the_kernel_looks_no_more`, `rule_10_what_is_taken_back_comes_back_later`, `rule_10_a_connection_that_breaks_gives_buffers_back`, `rule_10_buffers_outlive_a_ring_that_is_dropped`, `rule_10_a_ring_that_is_dropped_gives_up_what_was_not_begun`, `rule_10_a_refusal_gives_the_buffer_back_likewise`, `rule_10_beyond_the_limit_of_locked_memory_it_is_refused`, `rule_10_what_finds_no_room_comes_back_at_once` |
//! | 11 | An operation that has its time is two entries, of which both are queued or none, and one slot, which lives until both completions are in, in whichever order. It has ended by itself, or its time was over, or something else has ended it; and when its timer is gone otherwise, it goes too. | `rule_11_an_operation_ends_by_itself_or_by_its_time`, `rule_11_what_fails_here_is_known_at_once`, `rule_11_what_two_results_say`, `rule_11_a_slot_lives_until_both_completions_in_any_order`, `rule_11_a_timer_that_ends_in_vain_takes_its_operation_along`, `rule_11_there_is_room_for_both_entries_or_for_none`, `rule_11_what_is_taken_back_leaves_nothing`, `rule_11_a_ring_that_is_dropped_waits_for_both`, `rule_11_the_end_of_a_thread_leaves_nothing_without_an_end` |
//!
//! # Threads
//!
//! Whoever holds the domain's lock submits and reaps: a task here, a thread there, under automatic
//! progress as well, because polls of the application drive in place. So there is no single issuer,
//! and work is not deferred to one.

mod buffers;
mod message;
mod remains;
mod ring;
mod slot;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod timed;
#[cfg(all(test, not(loom)))]
mod timed_tests;
#[cfg(all(test, not(loom)))]
mod zero_copy_tests;

pub(crate) use buffers::Lease;
pub(crate) use message::{LONGEST, PARTS};
pub(crate) use ring::{Completion, Ring, Shape, Ticket, What};
pub(crate) use slot::{Released, Sent, Way};
pub(crate) use timed::Ended;

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
