//! The conformance suite: what every provider owes to the public interface, under both modes of
//! progress.
//!
//! A scenario is written once, as a function of a [`Setup`]. The table below instantiates all of
//! them for every provider, with progress modes, kinds of runtime and more, as tests of their own:
//! a failure reads `shm::auto_multi_thread::cancellation::…`. Beside each scenario stand the
//! capabilities it needs; where a provider does not offer them the scenario is skipped. A provider
//! is added by one more row of [`combinations`].
//!
//! | module | subject |
//! |---|---|
//! | `needs` | what scenarios need of a provider |
//! | `setup` | what a scenario runs on, and how it is run |
//! | `station` | an endpoint with everything around it |
//! | `hall` | several endpoints that share their receives |
//! | `meeting` | two endpoints that are connected with each other |
//! | `raw` | peers that are nothing but a socket |
//! | `payload` | contents that show where they come from, and small helpers |
//! | the others | scenarios |

mod addresses;
mod atomics;
mod backpressure;
mod batches;
mod cancellation;
mod completions;
mod connected;
mod connecting;
mod copies;
mod counters;
mod credits;
mod datagrams;
mod details;
mod events;
mod fences;
mod groups;
mod hall;
mod handles;
mod lending;
mod levels;
mod loopback;
mod matching;
mod meeting;
mod messages;
mod multi;
mod needs;
mod objects;
mod onesided;
mod ordering;
mod payload;
mod places;
mod pooling;
mod probes;
mod raw;
mod reaching;
mod regions;
mod registered;
mod selecting;
mod selective;
mod setup;
mod sharing;
mod sharing_ends;
mod sockets;
mod station;
mod statistics;
mod tagging;
mod truncation;
mod vectors;
mod waiters;
mod zero_copy;

use setup::Setup;

/// Makes a test of every scenario of the table, for one combination.
macro_rules! tests {
    ($($module:ident { $($scenario:ident: $needs:ident,)* })*) => {$(
        mod $module {
            $(
                #[test]
                fn $scenario() {
                    crate::setup::run(super::setup(), crate::needs::$needs, crate::$module::$scenario);
                }
            )*
        }
    )*};
}

/// The table of scenarios.
macro_rules! scenarios {
    () => {
        tests! {
            messages {
                every_length_arrives_whole_in_pooled_memory: MSG,
                every_length_arrives_whole_in_own_buffers: MSG,
                every_length_arrives_whole_under_a_tag: TAGGED,
                unexpected_messages_arrive_whole: MSG,
                every_kind_of_buffer_can_be_sent: MSG,
                every_kind_of_buffer_can_receive: MSG,
                a_received_message_can_be_sent_on: SOURCE,
                the_front_door_leads_to_the_same_place: DIRECTED,
            }
            details {
                data_tag_and_source_come_with_the_message: DIRECTED,
                what_was_not_given_is_absent: BOTH,
                a_send_reports_its_length_and_tag: BOTH,
                injected_messages_arrive_and_have_a_limit: BOTH,
                injected_messages_bring_their_data: BOTH,
                a_message_beyond_the_limit_is_refused: ANY,
                what_was_not_asked_for_is_refused: ANY,
            }
            datagrams {
                every_length_arrives_whole: DATAGRAMS,
                vectors_and_loans_are_messages_too: DATAGRAMS,
                longer_ones_are_refused: DATAGRAMS,
                what_does_not_fit_is_cut: DATAGRAMS,
                senders_have_numbers: DATAGRAMS,
                strangers_stay_strangers_until_inserted: DATAGRAMS,
                nobody_there_is_no_error: DATAGRAMS,
                what_was_not_asked_for_is_kept_or_dropped_and_counted: DATAGRAMS,
                dropped_receives_give_messages_back: DATAGRAMS,
                batches_of_every_kind_arrive: DATAGRAMS,
                probes_see_what_waits: DATAGRAMS,
                there_are_no_tags_and_no_data: DATAGRAMS,
                the_front_door_leads_here: DATAGRAMS,
                addresses_of_sockets_are_understood: DATAGRAMS,
                ended_endpoints_take_what_is_posted_with_them: DATAGRAMS,
            }
            connecting {
                both_sides_have_the_others_data: CONNECTED,
                a_rejection_tells_why: CONNECTED,
                private_data_has_a_limit: CONNECTED,
                dropping_an_attempt_gives_it_up: CONNECTED,
                many_connect_with_one: CONNECTED,
                nobody_and_silence: CONNECTED,
                the_silent_make_room: CONNECTED,
                requests_may_come_in_pieces: CONNECTED,
                bad_requests_are_turned_away: CONNECTED,
                answers_may_come_in_pieces: CONNECTED,
                bad_answers_end_the_attempt: CONNECTED,
                requests_are_of_no_domain: CONNECTED,
            }
            connected {
                every_length_goes_both_ways: CONNECTED,
                every_kind_of_buffer_and_call: CONNECTED,
                queues_and_counters_hear_of_all: CONNECTED,
                either_side_may_end_it: CONNECTED,
                ending_in_the_middle_of_a_message: CONNECTED,
                nobody_need_look_from_the_beginning: CONNECTED,
                what_has_come_outlives_the_connection: CONNECTED,
                what_has_been_seen_outlives_the_connection: CONNECTED,
                what_was_held_back_outlives_the_connection: CONNECTED,
                everything_that_waits_ends_with_the_connection: CONNECTED_MULTI,
                several_messages_into_one_buffer: CONNECTED_MULTI,
                dropped_receives_lose_nothing: CONNECTED,
                closing_hands_over_what_was_sent: CONNECTED,
                memory_is_written_and_read: CONNECTED_RMA,
                writes_are_heard_of_and_counted: CONNECTED_EVENT,
                delivery_is_confirmed: CONNECTED,
                what_breaks_the_rules_ends_the_connection: CONNECTED,
                what_makes_no_sense_is_refused: CONNECTED,
                the_front_door_leads_here: CONNECTED,
                the_object_tree_knows_them: CONNECTED,
            }
            tagging {
                every_length_goes_both_ways_under_a_tag: CONNECTED_TAGGED,
                every_call_has_tags: CONNECTED_TAGGED,
                receives_take_their_tags: CONNECTED_TAGGED,
                tags_come_to_a_pool_of_receives: CONNECTED_TAGGED,
                who_takes_no_tags_is_sent_none: CONNECTED_TAGGED,
                strangers_are_sent_tags_when_the_program_says_so: CONNECTED_TAGGED,
                tags_of_strangers_come_split_anywhere: CONNECTED_TAGGED,
                marks_are_not_taken_at_more_than_their_word: CONNECTED_TAGGED,
                a_tag_ends_a_connection_that_takes_none: CONNECTED,
            }
            reaching {
                every_operation_goes_both_ways: CONNECTED_ATOMIC,
                concurrent_additions_add_up: CONNECTED_ATOMIC,
                posted_and_counted: CONNECTED_ATOMIC_EVENT,
                what_is_out_of_reach_fails_alone: CONNECTED_RMA,
                misplaced_atomics_fail_alone: CONNECTED_ATOMIC,
                who_has_no_atomics_is_asked_for_none: CONNECTED_ATOMIC,
                who_is_no_target_says_so: CONNECTED_RMA,
                strangers_are_asked_for_nothing_they_do_not_know: CONNECTED_ATOMIC,
                what_strangers_reach_for_ends_their_connection: CONNECTED_RMA,
                strangers_that_say_they_are_kin_are_served: CONNECTED_ATOMIC,
            }
            pooling {
                many_connections_live_on_one_pool_of_receives: CONNECTED,
                who_called_and_who_was_called_share_alike: CONNECTED,
                every_kind_of_receive_hears_all_connections: CONNECTED_MULTI,
                what_has_come_outlives_its_connection: CONNECTED,
                what_is_given_back_keeps_its_source: CONNECTED,
                one_budget_serves_all_connections: CONNECTED,
                an_endpoint_that_closes_in_the_middle_ends_one_receive: CONNECTED,
                wrong_bindings_are_refused: CONNECTED,
            }
            groups {
                everybody_in_a_group_hears_what_is_sent_to_it: GROUPS,
                a_group_is_left_with_its_last_handle: GROUPS,
                what_is_no_group_is_refused: GROUPS,
                groups_need_their_capability: DATAGRAMS,
            }
            matching {
                ignored_bits_of_a_tag_do_not_count: TAGGED,
                tagged_and_untagged_never_meet: BOTH,
                the_receive_posted_first_gets_the_message: ANY,
                posting_order_counts_not_polling_order: ANY,
                a_late_receive_takes_the_earliest_arrival: TAGGED,
                an_earlier_receive_for_any_tag_wins: TAGGED,
                directed_and_any_compete_by_posting_time: DIRECTED,
                a_directed_receive_leaves_other_messages_waiting: DIRECTED,
            }
            addresses {
                a_stranger_has_no_source_until_inserted: DIRECTED,
                a_directed_receive_gets_a_stranger_once_inserted: DIRECTED,
                waiting_messages_are_matched_by_the_insertion: DIRECTED,
                waiting_messages_of_the_gone_are_matched_by_the_insertion: DIRECTED,
                directed_receives_end_with_their_number: DIRECTED,
                a_guest_that_leaves_ends_directed_receives_everywhere: DIRECTED,
                a_number_given_again_is_not_taken_back_for_the_old: DIRECTED,
                a_removed_number_is_stale: DIRECTED,
                a_removed_peer_still_arrives_as_a_stranger: DIRECTED,
                a_number_of_another_vector_is_stale: ANY,
                inserting_twice_gives_one_number: ANY,
                looking_up_nobody_names_it: MSG,
                sending_to_nobody_names_it: MSG,
                addresses_of_other_kinds_are_refused: ANY,
                guests_are_welcomed_and_forgotten: SOURCE,
            }
            truncation {
                expected_messages_are_cut_to_the_room: BOTH,
                unexpected_messages_are_cut_to_the_room: BOTH,
                the_rest_of_a_long_message_is_lost_and_the_next_is_whole: MSG,
                details_survive_truncation: DIRECTED,
                an_endpoint_receives_no_more_than_its_limit: MSG,
            }
            ordering {
                three_senders_keep_their_order: SOURCE,
                a_window_of_receives_fills_in_posting_order: MSG,
                long_and_short_messages_keep_their_order: MSG,
                unexpected_bytes_are_bounded_and_nothing_is_lost: BOTH,
                what_is_held_back_does_not_hold_back_others: DIRECTED,
            }
            cancellation {
                dropping_an_unmatched_receive_takes_nothing: ANY,
                dropping_an_arrived_receive_gives_the_message_back: BOTH,
                given_back_messages_keep_their_place: BOTH,
                a_waiting_receive_takes_what_is_given_back: BOTH,
                dropping_in_the_middle_of_a_message_loses_nothing: MSG,
                cancel_returns_the_buffer_of_an_unmatched_receive: ANY,
                cancel_reports_a_matched_receive_once: BOTH,
                cancel_in_the_middle_of_a_message_waits_for_it: MSG,
                a_send_without_credit_can_be_taken_back: MSG,
                dropping_a_send_without_credit_sends_nothing: MSG,
                a_dropped_send_is_delivered: MSG,
            a_started_send_goes_on_by_itself: MSG,
            }
            selecting {
                select_loses_nothing: MSG,
                select_over_two_kinds_loses_nothing: BOTH,
                timeouts_lose_nothing: MSG,
            }
            backpressure {
                what_fills_the_way_leaves_without_another_call: MSG,
                sends_run_out_of_credit_and_recover: MSG,
                an_awaited_send_waits_for_the_receiver: MSG,
                sends_that_wait_keep_their_order: MSG,
                one_stalled_peer_does_not_stop_the_rest: MSG,
                two_endpoints_flooding_each_other_go_on: MSG,
                receive_entries_are_limited: ANY,
            }
            credits {
                a_permit_does_not_overtake_a_send: MSG,
                a_permit_is_a_credit: MSG,
                a_dropped_permit_gives_its_credit_back: MSG,
                a_reservation_that_is_given_up_gives_way: ANY,
                a_used_permit_gives_its_credit_back_once: MSG,
                a_refused_send_gives_its_permit_back_once: MSG,
                a_permit_for_a_stale_number_is_refused: ANY,
                closing_ends_a_reservation: ANY,
            }
            completions {
                posts_report_with_their_context: MSG,
                a_full_queue_refuses_posts: ANY,
                a_refused_post_leaves_its_entry_free: ANY,
                a_failure_is_an_entry_like_any_other: ANY,
                closing_the_endpoint_cancels_what_is_posted: ANY,
                closing_the_endpoint_ends_futures: BOTH,
                batches_are_bounded: ANY,
                dropping_a_pending_next_loses_nothing: ANY,
                a_busy_queue_lets_other_tasks_run: MSG,
                posts_need_a_queue_futures_do_not: ANY,
            }
            counters {
                sends_and_receives_are_counted: MSG,
                every_ending_is_counted: ANY,
                waiting_ends_at_the_threshold: ANY,
                a_failure_wakes_who_waits: ANY,
                counting_by_hand_wakes_who_waits: ANY,
                a_wait_that_is_dropped_leaves_others_alone: ANY,
                closing_ends_who_waits: ANY,
            }
            events {
                a_last_word_has_arrived: MSG,
                a_peer_connects_and_closes: SOURCE,
                an_endpoint_can_have_a_queue_of_its_own: MSG,
                a_failed_send_nobody_awaits_is_an_event: MSG,
                events_beyond_the_capacity_are_counted: MSG,
                a_closed_peer_fails_sends_and_directed_receives: DIRECTED,
                what_a_peer_sent_before_it_closed_arrives: MSG,
                what_a_peer_sent_stays_its_own: DIRECTED,
                reopened_guest_gets_a_new_handle: DIRECTED,
                directed_receives_do_not_match_a_successor: DIRECTED,
                guest_that_connects_again_keeps_its_handle: DIRECTED,
                sends_to_a_closed_peer_fail_at_once: MSG,
                a_name_that_is_used_again_is_somebody_else: MSG,
            }
            lending {
                every_length_arrives_whole: SOURCE,
                ordinary_messages_are_received_likewise: MSG,
                memory_goes_round: MSG,
                they_are_messages_like_any_other: BOTH,
                dropping_a_receive_loses_nothing: MSG,
                what_is_held_outlives_its_sender: MSG,
                a_peer_that_returns_nothing_gets_copies: MSG,
                what_was_lent_is_given_back_once: MSG,
                loans_of_another_domain_are_copied: MSG,
                a_loan_has_a_longest_length: MSG,
                a_promise_is_for_one_receive: MSG,
                many_pieces_of_memory_go_to_one_peer: MSG,
                long_ones_are_copied_by_and_by: MSG,
            }
            vectors {
                every_length_goes_out_of_pieces_into_pieces: MSG,
                unexpected_ones_arrive_whole: BOTH,
                parts_come_back_as_they_were: MSG,
                empty_ones_are_messages_too: ANY,
                truncation_fills_what_there_is: TAGGED,
                more_than_the_limit_is_refused: RMA,
                they_are_written_and_read: RMA,
                queues_bring_them_back: ANY,
                a_dropped_receive_loses_nothing: MSG,
                they_wait_for_credit_like_others: MSG,
            }
            batches {
                injected_ones_arrive_in_order: MSG,
                posted_ones_arrive_and_report_in_order: BOTH,
                all_lengths_go_together: MSG,
                sleepers_are_woken_once: ANY,
                a_refusal_stops_there_and_gives_the_rest_back: ANY,
                a_full_queue_stops_a_batch_and_nothing_is_lost: ANY,
                want_of_credit_stops_a_batch: MSG,
                receives_go_together: DIRECTED,
                an_iterator_that_panics_holds_nothing_up: ANY,
                writes_go_together_and_tell: RMA_SOURCE,
                a_closed_peer_ends_a_batch: MSG,
                what_is_left_of_a_batch_wakes_sleepers: MSG,
            }
            selective {
                success_is_reported_when_asked_for: BOTH,
                failure_always_is: BOTH,
                a_silent_operation_holds_an_entry: BOTH,
                an_entry_given_back_lets_a_write_in: RMA,
                the_default_can_be_to_report: MSG,
                every_kind_of_operation_asks: ATOMIC,
            }
            multi {
                messages_share_one_buffer: MULTI_DIRECTED,
                what_does_not_fit_goes_to_the_next: MULTI,
                only_a_whole_buffer_truncates: MULTI,
                competing_by_posting_time: MULTI,
                several_senders_at_once: MULTI_DIRECTED,
                dropping_gives_messages_back_in_order: MULTI,
                dropping_in_the_middle_of_a_message_loses_nothing: MULTI,
                a_stream_that_is_not_read_holds_the_sender_back: MULTI,
                what_waits_for_a_full_stream_goes_to_nobody_else: MULTI,
                posted_ones_report_each_message_and_the_release: MULTI,
                a_full_queue_holds_messages_back: MULTI,
                cancel_gives_the_rest_back: MULTI,
                cancel_in_the_middle_of_a_message_waits_for_it: MULTI,
                closing_ends_them: MULTI,
                a_queue_that_is_dropped_swallows_no_message: MULTI,
                directed_ones_end_with_their_peer: MULTI_DIRECTED,
                a_stranger_is_matched_once_inserted: MULTI_DIRECTED,
                lent_messages_keep_their_place: MULTI,
                what_cannot_be_is_refused: MULTI_DIRECTED,
            }
            probes {
                they_see_and_take_nothing: DIRECTED,
                they_wait_for_what_comes: BOTH,
                posted_receives_come_first: MULTI,
                claimed_ones_are_nobody_elses: DIRECTED,
                dropped_claims_go_back_to_their_place: BOTH,
                claims_work_while_the_message_arrives: BOTH,
                what_is_held_back_is_found: BOTH,
                claimants_share_nothing: BOTH,
                claimed_ones_are_posted_too: BOTH,
                they_end_with_their_peer_and_endpoint: DIRECTED,
                a_claim_keeps_the_number_of_a_guest: DIRECTED,
                strangers_are_found_once_inserted: DIRECTED,
                lent_ones_are_claimed_where_they_lie: BOTH,
                what_a_receive_of_several_leaves_is_found: MULTI,
            }
            sharing {
                many_endpoints_live_on_one_pool_of_receives: DIRECTED,
                posting_order_counts_at_every_door: DIRECTED,
                what_waits_is_taken_in_order_of_arrival: BOTH,
                directed_receives_hear_one_peer_at_all_doors: DIRECTED,
                a_stranger_at_several_doors_is_one: DIRECTED,
                dropping_receives_loses_nothing: MSG,
                one_budget_serves_all_doors: MSG,
                posts_report_to_the_queue_of_the_context: MSG,
                one_buffer_takes_messages_of_all_doors: MULTI,
                probes_and_claims_see_all_doors: BOTH,
                lent_messages_come_by_any_door: MSG,
                senders_hear_what_was_received: MSG,
            }
            sharing_ends {
                doors_take_no_receives: MULTI_DIRECTED,
                wrong_bindings_are_refused: MSG,
                it_outlives_its_doors: MULTI_DIRECTED,
                a_door_that_closes_in_the_middle_ends_one_receive: MSG,
                sources_outlive_the_door: DIRECTED,
                guests_are_forgotten_after_their_last_message: DIRECTED,
            }
            fences {
                a_fence_begins_when_all_before_it_has_ended: FENCED,
                other_peers_do_not_wait_for_a_fence: FENCED,
                every_kind_of_operation_can_be_fenced: FENCED_ATOMIC,
                a_fence_that_is_taken_back_lets_others_go: FENCED,
                a_dropped_fence_goes_on: FENCED,
                fences_end_with_their_peer_and_with_their_endpoint: FENCED,
                a_fence_needs_its_capability: FENCED,
            }
            levels {
                a_message_ends_when_a_receive_has_it: BOTH,
                a_posted_receive_lets_it_end: BOTH,
                completions_come_in_the_order_of_receipt: BOTH,
                every_kind_of_message_asks: BOTH,
                the_default_is_the_endpoints: BOTH,
                what_is_discarded_has_ended: BOTH,
                a_claim_that_is_put_back_is_no_receipt: BOTH,
                a_receive_that_is_dropped_says_nothing_twice: BOTH,
                receives_that_go_midway_say_nothing_early: MSG,
                a_dropped_send_is_confirmed_to_nobody: BOTH,
                a_cancelled_one_waits_for_its_receipt: BOTH,
                a_truncated_message_has_ended: BOTH,
                receives_of_several_confirm_each: MULTI,
                a_stranger_is_confirmed_once_inserted: DIRECTED,
                two_flooding_each_other_go_on: BOTH,
                a_fence_waits_for_the_receipt: FENCED,
                closing_ends_them: BOTH,
                one_that_talks_to_itself_is_its_own_receiver: BOTH,
                what_changes_memory_is_delivered_at_its_end: ATOMIC,
                what_is_not_offered_is_refused: MSG,
                what_is_delivered_is_there: BOTH,
            }
            copies {
                the_threshold_says_which_way: MSG,
                those_by_themselves_and_those_in_a_stream: MSG,
                two_may_send_before_they_receive: MSG,
                what_waits_with_its_sender_holds_up_nothing: BOTH,
                receives_come_and_go: MSG,
                closing_takes_back_what_was_not_received: BOTH,
                own_kinds_of_buffers_are_not_read_by_others: MSG,
            }
            statistics {
                messages_are_counted_on_both_sides: MSG,
                each_message_is_received_once: BOTH,
                each_part_is_received_once: MULTI,
                each_shared_message_is_received_once: MSG,
                each_write_with_data_is_heard_once: RMA_SOURCE,
                one_sided_operations_are_counted: ATOMIC,
                a_domain_tells_what_is_under_way: ANY,
            }
            onesided {
                a_window_is_the_memory_itself: ATOMIC,
                a_window_says_why_it_has_closed: RMA,
                there_is_no_window_on_memory_that_is_heeded: RMA_EVENT,
                every_length_is_written_and_read: RMA,
                a_window_of_operations_before_the_first_answer: RMA,
                what_is_out_of_reach_fails_alone: RMA,
                a_key_lasts_as_long_as_its_region: RMA,
                a_registered_buffer_comes_back: RMA,
                data_comes_with_a_write: RMA_SOURCE,
                a_full_queue_holds_back_writes_with_data: RMA,
                a_message_follows_what_was_written: RMA,
                posts_report_to_the_transmit_queue: RMA,
                both_sides_count: RMA_EVENT,
                what_was_not_asked_for_is_refused: ATOMIC,
                who_is_no_target_lends_nothing: ATOMIC,
                dropped_operations_end: RMA,
                a_cancelled_operation_leaves_the_rest_in_order: RMA,
                a_region_that_closes_midway_ends_the_operation: RMA,
                an_emptied_queue_lets_the_rest_in: RMA,
            }
            places {
                every_length_goes_to_its_places: RMA,
                vectors_on_both_sides: RMA,
                what_is_out_of_reach_changes_nothing: RMA,
                what_cannot_be_is_refused: RMA,
                each_has_one_completion: RMA,
                data_comes_once_behind_all_bytes: RMA,
                the_target_counts_each_place: RMA_EVENT,
                places_are_addresses_where_that_was_agreed: RMA,
                they_end_as_others_do: RMA,
            }
            regions {
                places_are_addresses_where_that_was_agreed: ATOMIC,
                what_peers_do_is_counted_by_region: ATOMIC_EVENT,
                counting_is_to_be_asked_for: RMA,
            }
            registered {
                every_length_is_written_and_read_in_place: RMA,
                atomics_of_many_add_up: ATOMIC,
                what_is_out_of_reach_fails_alone: ATOMIC,
                the_owner_has_it_alone: RMA,
                a_key_lasts_as_long_as_its_buffer: RMA,
                closing_midway_ends_the_operation: RMA,
                data_comes_with_a_write: RMA_SOURCE,
                the_owner_counts: ATOMIC_EVENT,
                no_answer_is_missed: RMA,
            }
            atomics {
                every_operation_on_every_type: ATOMIC,
                concurrent_additions_add_up: ATOMIC,
                a_lock_by_compare_and_swap: ATOMIC,
                rows_of_values: ATOMIC,
                misplaced_ones_fail_alone: ATOMIC,
                what_fails_is_done_once_at_most: ATOMIC_EVENT,
                posted_ones_report_what_they_fetched: ATOMIC,
            }
            objects {
                a_busy_domain_names_its_children: ANY,
                queues_and_vectors_are_busy_while_bound: ANY,
                an_endpoint_closes_for_all_its_clones: ANY,
                closing_with_clones_alive_frees_what_was_bound: ANY,
                operations_on_a_closed_endpoint_are_refused: BOTH,
                a_closed_domain_accepts_no_children: ANY,
                a_name_is_taken_while_its_endpoint_lives: ANY,
                objects_of_another_domain_are_foreign: ANY,
                wrong_bindings_are_refused: ANY,
                an_endpoint_needs_an_address_vector: ANY,
                dropped_handles_close_their_objects: MSG,
                a_closed_vector_is_closed_for_all_its_clones: ANY,
                a_queue_that_is_dropped_swallows_no_message: ANY,
            }
            handles {
                receives_end_with_the_last_handle: ANY,
                claimed_messages_end_with_the_last_handle: ANY,
                sends_end_with_the_last_handle: MSG,
                unreceived_sends_end_with_the_last_handle: BOTH,
                streams_end_with_the_last_handle: MULTI,
                one_sided_operations_end_with_the_last_handle: ATOMIC,
                an_operation_keeps_no_object_open: ANY,
                shared_receives_end_with_the_last_handle: MSG,
                connected_operations_end_with_the_last_handle: CONNECTED,
                a_group_keeps_no_endpoint_open: GROUPS,
            }
            sockets {
                all_options_together_change_no_message: ANY,
                ports_of_a_range_run_out: ANY,
                the_name_of_a_host_leads_there: ANY,
            }
            zero_copy {
                buffers_may_be_used_when_they_are_back: MSG,
                dropped_futures_leave_buffers_where_they_are: MSG,
                an_endpoint_that_closes_gives_them_back: MSG,
                a_peer_that_closes_gives_them_back: MSG,
                writes_are_taken_likewise: RMA,
                short_ones_go_on_behind_them: MSG,
                where_the_kernel_copies_it_is_given_up: MSG,
            }
            waiters {
                eight_tasks_wait_on_one_endpoint: TAGGED,
                the_last_to_poll_may_go: TAGGED,
                a_busy_holder_of_a_ticket_stops_nobody: TAGGED,
                one_operation_moves_between_tasks: ANY,
                messages_wake_sleepers: ANY,
                many_peers_that_end_at_once_are_all_noticed: MSG,
            }
            loopback {
                an_endpoint_talks_to_itself: DIRECTED,
                long_messages_to_itself: MSG,
                endpoints_of_one_domain_talk: SOURCE,
                a_ring_of_endpoints_in_one_domain: MSG,
            }
        }
    };
}

/// Every scenario, for each of these combinations.
///
/// Not for all there are. What can go wrong with the provider, with progress, with the runtime,
/// with the policy of waiting, with the way long messages are copied, or with what waits for
/// sockets, would be some hundred combinations, most of which meet nothing that the others have not
/// met:
///
/// * who drives, and on which thread, is the engine's affair: progress and runtime are met in full
///   over shm;
/// * a provider knows no runtime and is called under one lock, whoever drives: over the others each
///   progress and each runtime is met once. Over tcp that is in full again, half of it by epoll and
///   half by io_uring;
/// * a policy of waiting concerns the engine, and what it sleeps on: over shm, and over both ways
///   of waiting for sockets where nobody looks before sleeping;
/// * how long messages are copied concerns one provider, and nothing else; how they are sent
///   without a copy, those that are connected over a ring.
macro_rules! combinations {
    ($($of:ident { $($name:ident: $setup:expr,)* })*) => {$(
        mod $of {
            $(
                mod $name {
                    fn setup() -> crate::Setup {
                        use crate::Setup;
                        $setup
                    }

                    scenarios!();
                }
            )*
        }
    )*};
}

combinations! {
    shm {
        manual_current_thread: Setup::new("shm"),
        manual_multi_thread: Setup::new("shm").multi_thread(),
        auto_current_thread: Setup::new("shm").auto(),
        auto_multi_thread: Setup::new("shm").auto().multi_thread(),
        spin_manual: Setup::new("shm").spin(),
        spin_auto: Setup::new("shm").spin().auto().multi_thread(),
        park_manual: Setup::new("shm").park(),
        park_auto: Setup::new("shm").park().auto().multi_thread(),
        copied_once: Setup::new("shm").single_copy_from(0).auto().multi_thread(),
        copied_twice: Setup::new("shm").single_copy_from(usize::MAX),
    }
    tcp {
        manual_current_thread: Setup::new("tcp"),
        auto_multi_thread: Setup::new("tcp").auto().multi_thread(),
        park_auto: Setup::new("tcp").epoll().park().auto().multi_thread(),
        ring_manual_multi_thread: Setup::new("tcp").io_uring().multi_thread(),
        ring_auto_current_thread: Setup::new("tcp").io_uring().auto(),
        ring_park_manual: Setup::new("tcp").io_uring().park(),
        ring_park_auto: Setup::new("tcp").io_uring().park().auto().multi_thread(),
        // Under automatic progress only: a long send waits for its peer's machine, which may wait
        // for the peer.
        ring_zero_copy: Setup::new("tcp").io_uring().zero_copy().auto().multi_thread(),
    }
    // The other dialect. Over a ring under automatic progress only: a long send waits for its
    // receiver, and nobody listens there under manual progress where nobody waits.
    rxm {
        manual_current_thread: Setup::new("tcp").rxm(),
        ring_auto_multi_thread: Setup::new("tcp").rxm().io_uring().auto().multi_thread(),
    }
    udp {
        manual_multi_thread: Setup::new("udp").multi_thread(),
        auto_current_thread: Setup::new("udp").auto(),
    }
    sim {
        manual_current_thread: Setup::new("sim"),
        auto_multi_thread: Setup::new("sim").auto().multi_thread(),
    }
}
