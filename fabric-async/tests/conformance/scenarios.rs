//! The table of scenarios: each with its requirements.

use crate::requirements::*;
use crate::setup::{Setup, run};

/// One behaviour that providers are checked for.
pub(crate) struct Scenario {
    /// The module and the function, as in `messages::unexpected_messages_arrive_whole`.
    pub(crate) name: &'static str,
    pub(crate) requirements: Requirements,
    /// Runs the scenario; panics when it fails.
    pub(crate) run: fn(Setup),
}

/// Makes a slice of [`Scenario`]s of the table.
macro_rules! scenarios {
    ($($module:ident { $($scenario:ident: $requirements:expr,)* })*) => {
        &[$($(
            Scenario {
                name: concat!(stringify!($module), "::", stringify!($scenario)),
                requirements: $requirements,
                run: |setup| run(setup, crate::$module::$scenario),
            },
        )*)*]
    };
}

/// Every scenario, in the order of execution.
pub(crate) const SCENARIOS: &[Scenario] = scenarios! {
    messages {
        every_length_arrives_whole_in_pooled_memory: MSG,
        every_length_arrives_whole_in_own_buffers: MSG,
        every_length_arrives_whole_under_a_tag: TAGGED,
        unexpected_messages_arrive_whole: MSG,
        every_kind_of_buffer_can_be_sent: MSG,
        every_kind_of_buffer_can_receive: MSG,
        queued_arrays_arrive_whole: MSG,
        received_buffer_can_be_sent_without_copy: SOURCE,
        bind_opens_a_working_endpoint: DIRECTED,
    }
    posting {
        unpolled_requests_post_nothing: MSG_TAGGED,
        unpolled_one_sided_requests_post_nothing: RMA,
        disabled_select_branch_posts_nothing: ANY_EP_TYPE,
        requests_are_posted_in_order_of_first_polls: ANY_EP_TYPE,
        poll_without_coop_budget_posts_nothing: ANY_EP_TYPE,
        cancel_on_drop_cancels_ops_that_have_not_begun: MSG,
        permit_of_another_endpoint_is_refused: ANY_EP_TYPE,
        unpolled_claimed_receive_releases_its_message: MSG_TAGGED,
        invalid_injects_are_refused: RMA,
    }
    message_metadata {
        message_carries_data_tag_and_source: DIRECTED,
        omitted_tag_and_data_are_absent: MSG_TAGGED,
        send_reports_its_length_and_tag: MSG_TAGGED,
        inject_delivers_up_to_inject_size: MSG_TAGGED,
        inject_data_delivers_cq_data: MSG_TAGGED,
        send_beyond_max_msg_size_is_refused: ANY_EP_TYPE,
        ops_without_requested_caps_are_refused: ANY_EP_TYPE,
    }
    datagrams {
        every_length_arrives_whole: DATAGRAMS,
        vectors_and_loans_are_sent_as_datagrams: DATAGRAMS,
        send_beyond_max_msg_size_is_refused: DATAGRAMS,
        long_datagrams_are_truncated: DATAGRAMS,
        datagram_sources_have_stable_addresses: DATAGRAMS,
        source_is_unknown_until_av_insert: DATAGRAMS,
        posted_datagrams_hold_no_credit: DATAGRAMS,
        send_to_closed_port_succeeds: DATAGRAMS,
        unexpected_datagrams_over_budget_are_dropped_and_counted: DATAGRAMS,
        dropped_receives_requeue_messages: DATAGRAMS,
        inject_all_and_post_all_batches_arrive: DATAGRAMS,
        probes_find_unexpected_datagrams: DATAGRAMS,
        unsupported_caps_and_ops_are_refused: DATAGRAMS,
        bind_opens_a_working_endpoint: DATAGRAMS,
        av_accepts_and_checks_socket_addresses: DATAGRAMS,
        close_cancels_posted_receives: DATAGRAMS,
    }
    connect {
        private_data_is_exchanged_on_connect: CONNECTED,
        rejection_carries_private_data: CONNECTED,
        private_data_beyond_limit_is_refused: CONNECTED,
        dropped_connect_aborts_the_attempt: CONNECTED,
        many_clients_connect_to_one_passive_endpoint: CONNECTED,
        connect_fails_on_timeout_or_closed_listener: CONNECTED,
        oldest_pending_handshake_is_evicted: CONNECTED.sockets(),
        connect_request_is_accepted_at_every_split: CONNECTED.sockets(),
        malformed_connect_request_closes_socket: CONNECTED.sockets(),
        connect_response_is_accepted_at_every_split: CONNECTED.sockets(),
        malformed_connect_response_fails_connect: CONNECTED.sockets(),
        connreq_can_be_accepted_in_any_domain: CONNECTED,
    }
    connected {
        every_length_arrives_in_both_directions: CONNECTED,
        every_buffer_type_and_send_call_works: CONNECTED,
        ops_report_to_cqs_counters_and_event_queues: CONNECTED,
        shutdown_or_close_of_either_side_disconnects: CONNECTED,
        shutdown_mid_message_fails_send_and_receive: CONNECTED,
        full_queues_refuse_posts: CONNECTED,
        auto_progress_receives_without_polling: CONNECTED.auto_progress(),
        buffered_messages_survive_peer_close: CONNECTED,
        buffered_message_survives_local_shutdown: CONNECTED,
        messages_over_budget_survive_peer_close: CONNECTED,
        peer_close_fails_all_pending_ops: CONNECTED_MULTI_RECV,
        multi_recv_takes_messages_after_peer_close: CONNECTED_MULTI_RECV,
        dropped_receives_lose_no_message: CONNECTED,
        close_delivers_injected_messages: CONNECTED,
        every_length_is_written_and_read: CONNECTED_RMA,
        writes_report_data_and_count_at_target: CONNECTED_RMA_EVENT,
        delivery_complete_waits_for_the_peer: CONNECTED,
        protocol_violation_closes_connection: CONNECTED.sockets(),
        unsupported_calls_are_refused: CONNECTED,
        listen_and_connect_open_working_endpoints: CONNECTED,
        object_tree_counts_connected_endpoints: CONNECTED,
    }
    connected_batches {
        batches_arrive_and_report_in_order: CONNECTED,
        batch_of_writes_reaches_peer_memory: CONNECTED_RMA,
        batch_refuses_requests_of_another_endpoint: CONNECTED,
        permit_sends_without_a_further_credit: CONNECTED,
    }
    connected_local {
        window_outlives_neither_region_nor_connection: CONNECTED_ATOMIC.shared_memory(),
        both_completion_levels_wait_for_a_receive: CONNECTED_FENCE.levels(),
        long_messages_are_copied_once_in_both_directions: CONNECTED.single_copy(),
        connecting_endpoint_has_the_name_it_asks_for: CONNECTED.shared_memory(),
    }
    connected_tagged {
        every_length_arrives_tagged_in_both_directions: CONNECTED_TAGGED,
        every_send_call_accepts_a_tag: CONNECTED_TAGGED,
        receives_match_by_tag: CONNECTED_TAGGED,
        shared_rx_receives_match_by_tag: CONNECTED_TAGGED.shared_rx(),
        tagged_send_to_untagged_peer_is_refused: CONNECTED_TAGGED,
        peer_supports_tags_option_enables_tagged_sends: CONNECTED_TAGGED.sockets(),
        tagged_frame_of_raw_peer_is_read_at_every_split: CONNECTED_TAGGED.sockets(),
        vendor_extension_enables_only_announced_caps: CONNECTED_TAGGED.sockets(),
        tagged_frame_closes_untagged_connection: CONNECTED.sockets(),
    }
    connected_rma {
        every_atomic_op_works_in_both_directions: CONNECTED_ATOMIC,
        concurrent_atomic_adds_are_not_lost: CONNECTED_ATOMIC,
        posted_atomics_report_and_count_at_target: CONNECTED_ATOMIC_RMA_EVENT,
        bad_key_or_range_fails_only_its_op: CONNECTED_RMA,
        misaligned_atomic_fails_only_its_op: CONNECTED_ATOMIC,
        atomics_to_peer_without_support_are_refused: CONNECTED_ATOMIC,
        rma_to_msg_only_endpoint_fails_with_unknown_key: CONNECTED_RMA,
        atomics_to_unannounced_peer_are_refused: CONNECTED_ATOMIC.sockets(),
        bad_rma_of_unannounced_peer_closes_connection: CONNECTED_RMA.sockets(),
        peer_with_vendor_extension_gets_atomics_and_nacks: CONNECTED_ATOMIC.sockets(),
    }
    shared_rx_connected {
        many_connections_share_few_posted_receives: CONNECTED.shared_rx(),
        connecting_and_accepting_endpoints_share_receives_in_order: CONNECTED.shared_rx(),
        every_receive_kind_takes_from_all_connections: CONNECTED_MULTI_RECV.shared_rx(),
        buffered_messages_survive_their_connection: CONNECTED.shared_rx(),
        requeued_message_keeps_its_endpoint: CONNECTED.shared_rx(),
        unexpected_budget_is_shared_by_connections: CONNECTED.shared_rx(),
        endpoint_close_mid_message_fails_no_receive: CONNECTED.shared_rx(),
        invalid_bindings_are_refused: CONNECTED.shared_rx(),
    }
    multicast {
        group_send_reaches_every_member: MULTICAST,
        dropping_the_last_handle_leaves_the_group: MULTICAST,
        invalid_group_address_is_refused: MULTICAST,
        groups_require_fi_multicast: DATAGRAMS,
    }
    matching {
        ignored_tag_bits_do_not_affect_matching: TAGGED,
        tagged_and_untagged_never_match: MSG_TAGGED,
        receive_posted_first_gets_the_message: ANY_EP_TYPE,
        late_receive_matches_earliest_unexpected: TAGGED,
        earlier_any_tag_receive_wins_over_exact_tag: TAGGED,
        directed_and_any_source_match_in_posting_order: DIRECTED,
        directed_receive_skips_other_sources: DIRECTED,
        awaited_receives_take_the_earliest_arrived_messages: MSG_TAGGED,
    }
    addresses {
        source_is_unknown_until_av_insert: DIRECTED,
        directed_receive_matches_after_av_insert: DIRECTED,
        av_insert_assigns_source_to_unexpected_messages: DIRECTED,
        av_insert_assigns_source_after_peer_closed: DIRECTED,
        av_remove_fails_directed_receives: DIRECTED,
        auto_inserted_peer_close_fails_all_directed_receives: DIRECTED,
        reinserted_address_survives_old_connection_close: DIRECTED,
        removed_address_is_stale: DIRECTED,
        removed_peer_is_received_with_unknown_source: DIRECTED,
        address_of_another_av_is_stale: ANY_EP_TYPE,
        inserting_twice_returns_the_same_address: ANY_EP_TYPE,
        insert_all_reports_each_entry: ANY_EP_TYPE,
        insert_all_assigns_sources: DIRECTED,
        add_peer_error_names_the_missing_peer: MSG,
        send_error_names_the_missing_peer: MSG,
        wrong_scheme_and_malformed_addresses_are_refused: ANY_EP_TYPE,
        auto_inserted_peers_are_released_on_close: SOURCE,
    }
    unknown_senders {
        unknown_sender_comes_with_its_address: SOURCE_ERR,
        posted_receives_report_unknown_senders: SOURCE_ERR,
        removed_peer_comes_with_its_address: SOURCE_ERR,
        every_kind_of_receive_reports_unknown_senders: MULTI_RECV_SOURCE_ERR,
        dropped_receive_of_unknown_sender_loses_no_message: MULTI_RECV_SOURCE_ERR,
        senders_that_have_left_are_reported: MULTI_RECV_SOURCE_ERR,
        shared_contexts_report_unknown_senders: MULTI_RECV_SOURCE_ERR.shared_rx(),
        unknown_senders_are_no_error_without_fi_source_err: SOURCE,
        writes_with_data_are_no_errors: SOURCE_ERR_RMA,
    }
    truncation {
        expected_messages_are_truncated_to_the_buffer: MSG_TAGGED,
        unexpected_messages_are_truncated_to_the_buffer: MSG_TAGGED,
        custom_buffer_that_panics_fails_its_receive_only: MSG,
        custom_buffer_that_panics_fails_its_post_only: MSG,
        message_after_a_truncated_one_arrives_whole: MSG,
        truncated_receive_reports_tag_data_and_source: DIRECTED,
        messages_are_limited_to_max_msg_size: MSG,
    }
    ordering {
        messages_of_each_of_three_senders_stay_in_order: SOURCE,
        posted_receives_fill_in_posting_order: MSG,
        long_and_short_messages_keep_their_order: MSG,
        unexpected_bytes_are_bounded_and_nothing_is_lost: MSG_TAGGED,
        stalled_sender_does_not_block_other_senders: DIRECTED,
    }
    cancellation {
        dropped_unmatched_receive_takes_no_message: ANY_EP_TYPE,
        dropped_matched_receive_requeues_its_message: MSG_TAGGED,
        requeued_messages_keep_arrival_order: MSG_TAGGED,
        requeued_message_goes_to_posted_receive: MSG_TAGGED,
        dropping_receive_mid_message_loses_nothing: MSG,
        cancel_returns_the_buffer_of_an_unmatched_receive: ANY_EP_TYPE,
        cancel_reports_a_matched_receive_once: MSG_TAGGED,
        cancel_mid_message_waits_for_the_message: MSG,
        send_without_credit_can_be_canceled: MSG,
        dropping_a_send_without_credit_sends_nothing: MSG,
        dropped_send_is_delivered: MSG,
        started_send_progresses_without_sender_polling: MSG,
        oldest_posted_receive_of_a_context_is_canceled: ANY_EP_TYPE,
        matched_posted_receive_is_not_canceled: MSG_TAGGED,
        posted_sends_are_canceled_until_they_begin: MSG,
        cancel_finds_ops_of_its_endpoint_only: ANY_EP_TYPE,
        posted_sends_to_several_peers_are_canceled_in_order: MSG,
        posted_fenced_send_is_canceled_by_context: FENCE,
        canceled_posts_are_reported_with_selective_completion: ANY_EP_TYPE,
        posted_multi_recv_is_canceled_by_context: MULTI_RECV,
        posted_shared_receive_is_canceled_by_context: MSG.shared_rx(),
    }
    select_races {
        select_loses_no_message: MSG,
        select_over_tagged_and_untagged_loses_no_message: MSG_TAGGED,
        receive_timeouts_lose_no_message: MSG,
    }
    backpressure {
        injected_messages_leave_without_further_calls: MSG,
        sends_run_out_of_credit_and_recover: MSG,
        awaited_send_is_pending_until_receiver_reads: MSG,
        queued_sends_keep_their_order: MSG,
        stalled_peer_does_not_block_other_peers: MSG,
        endpoints_flooding_each_other_make_progress: MSG,
        started_receives_are_limited_to_rx_size: ANY_EP_TYPE,
    }
    permits {
        permit_send_does_not_overtake_queued_send: MSG,
        permit_holds_one_credit: MSG,
        dropped_permit_returns_its_credit: MSG,
        dropped_reservation_passes_its_credit_on: ANY_EP_TYPE,
        used_permit_returns_its_credit_once: MSG,
        failed_permit_send_returns_its_credit_once: MSG,
        permit_for_stale_address_is_refused: ANY_EP_TYPE,
        close_cancels_pending_reservation: ANY_EP_TYPE,
    }
    completions {
        queue_reads_make_progress: ANY_EP_TYPE,
        posted_ops_complete_with_their_context: MSG,
        full_cq_refuses_posts: ANY_EP_TYPE,
        refused_post_releases_its_cq_entry: ANY_EP_TYPE.shared_memory(),
        failed_ops_report_in_order: ANY_EP_TYPE,
        close_cancels_posted_receives: ANY_EP_TYPE,
        close_cancels_futures: MSG_TAGGED,
        batch_reads_are_bounded_and_ordered: ANY_EP_TYPE,
        dropped_cq_next_loses_no_completion: ANY_EP_TYPE,
        busy_cq_yields_to_other_tasks: MSG,
        posts_need_a_cq_and_futures_do_not: ANY_EP_TYPE,
    }
    counters {
        sends_and_receives_are_counted: MSG,
        every_way_to_complete_is_counted: ANY_EP_TYPE,
        wait_completes_at_the_threshold: ANY_EP_TYPE,
        counter_reads_make_progress: ANY_EP_TYPE,
        failed_op_ends_counter_wait: ANY_EP_TYPE,
        manual_add_ends_counter_wait: ANY_EP_TYPE,
        dropped_wait_does_not_affect_other_waits: ANY_EP_TYPE,
        close_fails_pending_waits: ANY_EP_TYPE,
    }
    events {
        event_queue_reads_make_progress: ANY_EP_TYPE,
        automatic_control_progress_needs_no_calls: MSG.other_threads(),
        send_succeeds_when_receiver_closes_after_receiving: MSG,
        peer_over_budget_is_reported: DIRECTED,
        disconnect_discards_the_messages_of_a_peer: DIRECTED,
        peer_connect_and_close_are_events: SOURCE,
        endpoint_can_bind_its_own_event_queue: MSG,
        connection_events_have_the_context_of_their_object: CONNECTED,
        contexts_of_one_call_endpoints_come_with_events: CONNECTED,
        shared_receive_context_reports_its_context: MSG.shared_rx(),
        end_of_the_driver_is_an_event_of_the_domain: ANY_EP_TYPE,
        closed_domain_leaves_no_events: ANY_EP_TYPE,
        failure_of_dropped_send_is_an_event: MSG,
        event_queue_overrun_is_counted: MSG,
        peer_close_fails_sends_and_directed_receives: DIRECTED,
        messages_sent_before_close_arrive: MSG,
        source_stays_valid_until_last_message_is_consumed: DIRECTED,
        reopened_peer_gets_a_new_handle: DIRECTED,
        directed_receives_do_not_match_a_successor: DIRECTED,
        reconnecting_peer_keeps_its_handle: DIRECTED,
        sends_to_a_closed_peer_fail_at_once: MSG,
        reused_endpoint_name_is_a_new_peer: MSG,
    }
    extensions {
        extensions_belong_to_one_provider: ANY_EP_TYPE,
        tcp_info_follows_the_traffic: DIRECTED.sockets(),
        connected_endpoints_have_provider_information: CONNECTED,
        shm_info_counts_mapped_memory: RMA.shared_memory(),
    }
    user_events {
        written_events_are_read_in_order: MSG,
        written_events_take_no_room_of_other_events: MSG,
        writer_of_a_closed_queue_is_refused: ANY_EP_TYPE,
        peeked_event_stays_in_the_queue: MSG,
        closed_endpoint_leaves_no_events: MSG,
        closed_passive_endpoint_leaves_no_requests: CONNECTED,
    }
    loans {
        every_length_arrives_whole: SOURCE,
        recv_loan_takes_ordinary_messages: MSG,
        returned_loan_memory_is_reused: MSG,
        loans_follow_message_semantics: MSG_TAGGED,
        dropped_loan_receive_loses_no_message: MSG,
        held_loan_outlives_its_sender: MSG,
        loans_are_copied_while_too_many_are_unreturned: MSG,
        loan_memory_is_returned_once: MSG,
        loans_of_another_domain_are_copied: MSG,
        loan_beyond_the_length_limit_is_refused: MSG,
        reused_loan_buffer_receives_a_copy: MSG,
        more_loans_than_mappings_reach_one_peer: MSG,
        long_loans_are_copied_in_chunks: MSG,
        received_loans_are_sent_on: MSG,
        relayed_loans_are_not_copied: MSG_TAGGED.loans(),
        relayed_loan_is_returned_by_its_last_holder: MSG.loans(),
        lost_relayed_loan_is_not_reused: MSG.loans(),
        received_loans_are_written_to_regions: RMA,
    }
    vectors {
        every_length_is_gathered_and_scattered: MSG,
        unexpected_vectors_arrive_whole: MSG_TAGGED,
        completed_ops_return_the_original_buffers: MSG,
        empty_vectors_are_sent_and_received: ANY_EP_TYPE,
        truncation_fills_every_scatter_buffer: TAGGED,
        vector_beyond_iov_limit_is_refused: RMA,
        vectors_are_written_and_read_by_rma: RMA,
        cq_entries_return_the_vector: ANY_EP_TYPE,
        dropped_scatter_receive_loses_no_message: MSG,
        vector_sends_run_out_of_credit: MSG,
    }
    batches {
        inject_all_arrives_in_order: MSG,
        post_all_arrives_and_completes_in_order: MSG_TAGGED,
        batch_of_long_arrays_takes_little_stack: MSG.other_threads(),
        mixed_length_batch_keeps_order: MSG,
        batch_rings_each_peer_doorbell_once: ANY_EP_TYPE,
        failed_request_stops_batch_and_returns_the_rest: ANY_EP_TYPE,
        full_cq_stops_batch_without_loss: ANY_EP_TYPE,
        missing_credit_stops_batch: MSG,
        receives_are_posted_in_one_batch: DIRECTED,
        panicking_iterator_does_not_block_the_domain: ANY_EP_TYPE,
        batched_writes_report_data_in_order: RMA_SOURCE,
        closed_peer_stops_batch: MSG.shared_memory(),
        request_returned_by_batch_wakes_receiver_when_sent: MSG,
    }
    selective_completion {
        success_is_reported_only_with_fi_completion: MSG_TAGGED,
        failure_is_always_reported: MSG_TAGGED,
        unreported_op_reserves_a_cq_entry: MSG_TAGGED,
        released_cq_entry_admits_pending_write: RMA,
        endpoint_op_flags_can_default_to_fi_completion: MSG,
        every_op_kind_supports_fi_completion: ATOMIC,
    }
    multi_recv {
        messages_share_one_buffer: MULTI_RECV_DIRECTED,
        message_too_long_for_the_rest_goes_to_next_receive: MULTI_RECV,
        multi_recv_truncates_only_into_an_unused_buffer: MULTI_RECV,
        multi_recv_matches_in_posting_order: MULTI_RECV,
        several_senders_fill_multi_recv_buffers: MULTI_RECV_DIRECTED,
        dropped_multi_recv_requeues_in_order: MULTI_RECV,
        dropping_mid_message_loses_nothing: MULTI_RECV,
        unread_message_stream_stalls_sender: MULTI_RECV,
        full_message_stream_keeps_its_matched_messages: MULTI_RECV,
        posted_multi_recv_reports_messages_and_release: MULTI_RECV,
        full_cq_stalls_multi_recv: MULTI_RECV,
        cancel_returns_the_unused_buffer: MULTI_RECV,
        cancel_mid_message_waits_for_the_message: MULTI_RECV,
        close_cancels_multi_recvs: MULTI_RECV,
        dropped_cq_loses_no_message: MULTI_RECV,
        peer_close_ends_directed_multi_recv: MULTI_RECV_DIRECTED,
        directed_multi_recv_matches_after_av_insert: MULTI_RECV_DIRECTED,
        loaned_messages_keep_their_order: MULTI_RECV,
        invalid_multi_recv_is_refused: MULTI_RECV_DIRECTED,
    }
    probes {
        probe_reports_without_receiving: DIRECTED,
        probe_waits_for_a_message: MSG_TAGGED,
        posted_receives_take_precedence_over_probes: MULTI_RECV,
        claimed_message_matches_no_receive: DIRECTED,
        dropped_claim_requeues_message_in_order: MSG_TAGGED,
        claim_works_on_partial_message: MSG_TAGGED,
        probe_finds_message_over_budget: MSG_TAGGED,
        claims_beyond_the_limit_fail_at_once: MSG_TAGGED,
        claims_of_peers_that_leave_end: MSG_TAGGED,
        concurrent_claims_take_each_message_once: MSG_TAGGED,
        claimed_message_can_be_received_by_post: MSG_TAGGED,
        close_ends_probes_and_claims: DIRECTED,
        claim_keeps_auto_inserted_address_valid: DIRECTED,
        probe_by_source_matches_after_av_insert: DIRECTED,
        loaned_message_can_be_claimed: MSG_TAGGED,
        claim_finds_messages_of_dropped_multi_recv: MULTI_RECV,
    }
    shared_rx {
        many_endpoints_share_few_posted_receives: DIRECTED.shared_rx(),
        posting_order_holds_across_endpoints: DIRECTED.shared_rx(),
        unexpected_messages_match_in_arrival_order: MSG_TAGGED.shared_rx(),
        directed_receive_matches_on_every_endpoint: DIRECTED.shared_rx(),
        av_insert_assigns_source_across_endpoints: DIRECTED.shared_rx(),
        dropped_receives_lose_no_message: MSG.shared_rx(),
        unexpected_budget_is_shared_by_endpoints: MSG.shared_rx(),
        posts_report_to_the_shared_context_cq: MSG.shared_rx(),
        multi_recv_takes_from_all_endpoints: MULTI_RECV.shared_rx(),
        probes_and_claims_cover_all_endpoints: MSG_TAGGED.shared_rx(),
        loans_arrive_through_any_endpoint: MSG.shared_rx(),
        acks_reach_senders_through_any_endpoint: MSG.shared_rx().levels(),
    }
    shared_rx_lifecycle {
        endpoints_of_shared_context_refuse_receives: MULTI_RECV_DIRECTED.shared_rx(),
        invalid_bindings_are_refused: MSG.shared_rx(),
        results_of_closed_context_reach_no_other_context: MSG.shared_rx(),
        shared_context_outlives_its_endpoints: MULTI_RECV_DIRECTED.shared_rx(),
        endpoint_close_mid_message_fails_no_receive: MSG.shared_rx(),
        message_sources_survive_endpoint_close: DIRECTED.shared_rx(),
        auto_inserted_peer_is_released_after_last_message: DIRECTED.shared_rx(),
    }
    fences {
        fenced_op_starts_after_prior_ops_complete: FENCE,
        fence_does_not_delay_other_peers: FENCE,
        every_kind_of_operation_can_be_fenced: FENCE_ATOMIC,
        canceled_fence_releases_later_ops: FENCE,
        dropped_fenced_send_is_delivered: FENCE,
        fenced_send_behind_batched_sends_completes: FENCE,
        close_fails_pending_fenced_ops: FENCE,
        fence_requires_fi_fence: FENCE,
    }
    completion_levels {
        unexpected_send_completes_when_received: MSG_TAGGED.levels(),
        send_completes_with_a_posted_receive: MSG_TAGGED.levels(),
        send_completions_follow_receive_order: MSG_TAGGED.levels(),
        every_send_kind_supports_levels: MSG_TAGGED.levels(),
        endpoint_op_flags_set_the_default_level: MSG_TAGGED.levels(),
        discarded_message_completes_its_send: MSG_TAGGED.levels(),
        dropped_claim_sends_no_ack: MSG_TAGGED.levels(),
        requeued_message_is_acknowledged_once: MSG_TAGGED.levels(),
        receives_dropped_mid_message_lose_no_ack: MSG.levels(),
        dropped_send_returns_its_credit_on_ack: MSG_TAGGED.levels(),
        cancel_waits_for_the_ack: MSG_TAGGED.levels(),
        truncated_receive_sends_ack: MSG_TAGGED.levels(),
        multi_recv_acknowledges_each_message: MULTI_RECV.levels(),
        directed_receive_after_av_insert_sends_ack: DIRECTED.levels(),
        endpoints_flooding_each_other_make_progress: MSG_TAGGED.levels(),
        fence_waits_for_the_ack: FENCE.levels(),
        close_fails_unacknowledged_sends: MSG_TAGGED.levels(),
        loopback_sends_support_levels: MSG_TAGGED.levels(),
        rma_and_atomics_complete_after_delivery: ATOMIC.levels(),
        unsupported_level_is_refused: MSG.lacks_a_level(),
        delivery_complete_means_the_peer_has_the_message: MSG_TAGGED.delivery_complete(),
    }
    single_copy {
        threshold_selects_the_copy_path: MSG,
        lone_and_streamed_messages_arrive_in_order: MSG,
        both_peers_can_send_before_receiving: MSG,
        unreceived_single_copy_messages_block_nothing: MSG_TAGGED.single_copy(),
        dropped_and_truncated_receives_lose_no_message: MSG,
        close_returns_unreceived_messages: MSG_TAGGED,
        custom_buffers_are_not_single_copied: MSG,
    }
    statistics {
        messages_are_counted_on_both_sides: MSG,
        each_message_is_counted_once: MSG_TAGGED,
        each_multi_recv_message_is_counted_once: MULTI_RECV,
        each_shared_rx_message_is_counted_once: MSG.shared_rx(),
        each_write_with_data_is_counted_once: RMA_SOURCE,
        one_sided_operations_are_counted: ATOMIC,
        domain_stats_report_ops_in_progress: ANY_EP_TYPE,
    }
    rma {
        window_accesses_region_directly: ATOMIC.shared_memory(),
        closed_window_reports_the_reason: RMA.shared_memory(),
        window_on_counted_region_is_refused: RMA_EVENT.shared_memory(),
        every_length_is_written_and_read: RMA,
        ops_queue_until_their_key_is_resolved: RMA,
        bad_key_or_range_fails_only_its_op: RMA,
        key_is_valid_until_its_region_closes: RMA,
        close_returns_the_registered_buffer: RMA,
        write_with_data_completes_at_target_cq: RMA_SOURCE,
        full_cq_stalls_writes_with_data: RMA,
        message_arrives_after_earlier_write: RMA,
        posted_rma_reports_to_transmit_cq: RMA,
        initiator_and_target_count_rma: RMA_EVENT,
        ops_without_requested_caps_are_refused: ATOMIC,
        endpoint_without_fi_rma_exposes_no_memory: ATOMIC,
        dropped_rma_ops_complete: RMA,
        canceled_op_keeps_later_ops_in_order: RMA,
        region_close_ends_op_in_progress: RMA,
        drained_cq_admits_pending_writes: RMA,
    }
    rma_iov {
        every_length_reaches_its_segments: RMA.rma_iov(),
        local_and_remote_vectors_combine: RMA.rma_iov(),
        invalid_segment_leaves_memory_unchanged: RMA.rma_iov(),
        invalid_segment_lists_are_refused: RMA.rma_iov(),
        multi_range_op_has_one_completion: RMA.rma_iov(),
        write_data_reports_once_after_all_bytes: RMA.rma_iov(),
        target_counts_each_segment: RMA_EVENT.rma_iov(),
        multi_segment_ops_use_virtual_addresses_with_fi_mr_virt_addr: RMA.rma_iov(),
        multi_segment_ops_fail_as_single_segment_ops: RMA.rma_iov(),
    }
    async_registration {
        posted_registration_has_no_key_before_its_event: RMA.other_threads(),
        peers_access_posted_regions_after_their_events: RMA.other_threads(),
        awaited_registration_yields_no_event: RMA.other_threads(),
        failed_registration_is_an_error_event: RMA.other_threads(),
        region_closed_while_pending_has_no_event: RMA.other_threads(),
        closed_region_leaves_no_event: RMA.other_threads(),
        posted_registrations_are_limited_to_the_entries: RMA.other_threads(),
        domain_registers_as_it_is_bound: RMA.other_threads(),
    }
    mr_mode {
        domain_requires_the_bits_of_its_name: ATOMIC.chosen_mr_mode(),
        requested_key_is_refused_if_the_provider_selects_keys: RMA,
        asynchronous_registrations_have_the_same_duties: RMA.chosen_mr_mode().other_threads(),
        fi_mr_endpoint_region_is_enabled_for_its_endpoint: ATOMIC_RMA_EVENT.chosen_mr_mode(),
        fi_mr_rma_event_region_is_enabled_after_its_counter: RMA_EVENT.chosen_mr_mode(),
        enabled_region_accepts_no_further_bindings: RMA_EVENT,
        fi_mr_mmu_notify_pages_are_refreshed_before_access: ATOMIC.chosen_mr_mode(),
    }
    local_mr {
        fi_mr_local_refuses_unregistered_buffers: ATOMIC.chosen_mr_mode(),
        fi_mr_local_accepts_registered_buffers: ATOMIC.chosen_mr_mode(),
        registered_local_buffers_work_in_every_domain: MSG,
    }
    regions {
        fi_mr_virt_addr_regions_are_addressed_by_virtual_address: ATOMIC,
        remote_accesses_are_counted_per_region: ATOMIC_RMA_EVENT,
        region_counters_require_fi_rma_event: RMA,
        region_without_remote_read_is_written_and_not_read: ATOMIC,
    }
    device_memory {
        fi_hmem_message_goes_from_device_to_device: HMEM,
        fi_hmem_buffers_are_posted_in_every_way: RMA_HMEM,
        fi_hmem_buffers_of_writes_and_reads: RMA_HMEM,
        fi_hmem_failed_copies_fail_their_operation: RMA_HMEM,
        fi_hmem_truncated_and_canceled_receives: RMA_HMEM,
        fi_set_ops_is_called_before_objects_are_opened: HMEM,
    }
    raw_keys {
        fi_mr_raw_keys_are_mapped_before_use: ATOMIC.chosen_mr_mode(),
        changed_raw_keys_are_not_mapped: RMA.chosen_mr_mode(),
        unmapping_does_not_end_posted_operations: RMA.chosen_mr_mode(),
        raw_keys_are_keys_in_domains_that_do_not_require_them: RMA,
        resource_domains_share_mapped_keys: RMA.chosen_mr_mode(),
    }
    memfds {
        memory_is_accessed_in_place: ATOMIC,
        registrations_of_one_memory_are_independent: RMA,
        peers_get_only_the_rights_of_the_region: RMA,
        memory_is_registered_asynchronously: RMA.other_threads(),
        huge_pages_are_registered_in_place: RMA.shared_memory(),
    }
    region_segments {
        operations_cross_borders_of_segments: ATOMIC,
        segments_are_limited_by_mr_iov_limit: RMA,
        segments_are_registered_asynchronously: ATOMIC.other_threads(),
        virtual_addresses_continue_behind_the_first_segment: RMA,
    }
    custom_buffers {
        drop_of_registered_buffer_drops_its_memory: RMA,
        registered_buffer_that_shrinks_is_closed_to_peers: ATOMIC,
        buffer_that_shrinks_during_an_access_ends_the_access: ATOMIC,
        fi_mr_allocated_memory_is_backed_by_pages: RMA.chosen_mr_mode(),
        fi_mr_mmu_notify_moved_memory_is_refreshed: RMA.chosen_mr_mode(),
        segment_that_shrinks_closes_its_region: ATOMIC,
        pages_and_moves_of_every_segment_are_checked: RMA.chosen_mr_mode(),
    }
    registered_buffers {
        every_length_is_written_and_read_in_place: RMA,
        concurrent_atomic_adds_are_not_lost: ATOMIC,
        bad_key_or_range_fails_only_its_op: ATOMIC,
        owner_lock_excludes_peers: RMA,
        key_is_valid_until_its_buffer_closes: RMA,
        close_ends_op_in_progress: RMA,
        write_with_data_completes_at_target_cq: RMA_SOURCE,
        owner_counts_remote_accesses: ATOMIC_RMA_EVENT,
        response_wakes_sleeping_initiator: RMA,
    }
    atomics {
        every_operation_works_on_every_type: ATOMIC,
        concurrent_adds_are_not_lost: ATOMIC,
        compare_and_swap_implements_a_lock: ATOMIC,
        atomics_operate_on_arrays: ATOMIC,
        query_agrees_with_operations: ATOMIC,
        misaligned_atomic_fails_only_its_op: ATOMIC,
        failed_atomic_executes_at_most_once: ATOMIC_RMA_EVENT,
        posted_atomics_report_fetched_values: ATOMIC,
        canceled_atomic_returns_operands_without_effect: ATOMIC,
    }
    objects {
        offers_state_the_documented_attributes: ANY_EP_TYPE,
        infos_beyond_the_offers_are_refused: ANY_EP_TYPE,
        busy_domain_reports_open_children: ANY_EP_TYPE,
        objects_beyond_the_counts_are_refused: ANY_EP_TYPE,
        domain_states_what_it_was_opened_with: ANY_EP_TYPE,
        children_use_the_attributes_of_their_domain: ANY_EP_TYPE,
        discovery_finds_open_domains: ANY_EP_TYPE,
        queues_and_avs_are_busy_while_bound: ANY_EP_TYPE,
        closing_an_endpoint_closes_all_clones: ANY_EP_TYPE,
        close_releases_bindings_despite_clones: ANY_EP_TYPE,
        second_close_is_refused_as_closed: ANY_EP_TYPE,
        operations_on_closed_endpoint_are_refused: MSG_TAGGED,
        closed_domain_accepts_no_children: ANY_EP_TYPE,
        endpoint_name_is_in_use_until_close: ANY_EP_TYPE,
        objects_of_another_domain_cannot_be_bound: ANY_EP_TYPE,
        invalid_bindings_are_refused: ANY_EP_TYPE,
        endpoint_needs_an_address_vector: ANY_EP_TYPE,
        dropped_handles_close_their_objects: MSG,
        closing_an_av_closes_all_clones: ANY_EP_TYPE,
        dropped_cq_loses_no_message: ANY_EP_TYPE,
    }
    handles {
        receives_end_with_the_last_handle: ANY_EP_TYPE,
        claimed_messages_end_with_the_last_handle: ANY_EP_TYPE,
        waiting_futures_end_when_the_endpoint_closes: MSG,
        unreceived_sends_end_with_the_last_handle: MSG_TAGGED.levels(),
        streams_end_with_the_last_handle: MULTI_RECV,
        one_sided_operations_end_with_the_last_handle: ATOMIC,
        operation_does_not_keep_objects_open: ANY_EP_TYPE,
        shared_receives_end_with_the_last_handle: MSG.shared_rx(),
        connected_operations_end_with_the_last_handle: CONNECTED,
        multicast_group_does_not_keep_its_endpoint_open: MULTICAST,
    }
    sockets {
        messages_arrive_with_all_socket_options_set: ANY_EP_TYPE,
        exhausted_port_range_is_address_in_use: ANY_EP_TYPE.sockets(),
        host_name_is_resolved: ANY_EP_TYPE.sockets(),
    }
    zero_copy {
        returned_buffers_can_be_overwritten: MSG,
        dropped_send_keeps_buffer_until_transmitted: MSG,
        endpoint_close_returns_buffers: MSG,
        peer_close_returns_buffers: MSG,
        rma_writes_use_zero_copy: RMA,
        short_and_zero_copy_messages_keep_order: MSG,
        zero_copy_is_disabled_when_the_kernel_copies: MSG,
    }
    waiters {
        eight_tasks_wait_on_one_endpoint: TAGGED,
        tasks_wake_after_last_poller_is_aborted: TAGGED,
        unpolled_operation_does_not_block_other_tasks: TAGGED,
        operation_can_move_between_tasks: ANY_EP_TYPE,
        messages_wake_sleeping_tasks: ANY_EP_TYPE,
        many_simultaneous_peer_closes_are_all_reported: MSG,
    }
    passive_targets {
        automatic_progress_needs_no_calls_of_the_target: RMA.auto_progress(),
        manual_progress_serves_within_calls_of_the_target: RMA.event_loop(),
    }
    event_loops {
        event_loops_drive_their_domains: ANY_EP_TYPE.other_threads(),
        registrations_wake_event_loops: RMA.event_loop(),
        threads_in_event_loops_share_a_domain: ANY_EP_TYPE.other_threads(),
        descriptors_wake_threads_beside_a_driver: ANY_EP_TYPE.other_threads(),
        eq_and_counter_descriptors_wake_a_thread: MSG.other_threads(),
        futures_complete_in_an_event_loop: ANY_EP_TYPE.event_loop(),
        passes_of_another_thread_leave_the_descriptor_armed: ANY_EP_TYPE.event_loop(),
        domain_with_a_driver_has_no_descriptor: ANY_EP_TYPE.auto_progress(),
    }
    loopback {
        endpoint_sends_messages_to_itself: DIRECTED,
        endpoint_sends_long_messages_to_itself: MSG,
        endpoints_of_one_domain_exchange_messages: SOURCE,
        messages_circulate_among_endpoints_of_one_domain: MSG,
        idle_endpoints_receive_held_and_new_messages: MSG,
    }
};
