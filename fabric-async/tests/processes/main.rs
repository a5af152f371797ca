//! Behaviour between processes: peers that die, peers that violate the protocol, and messages that
//! a receiver must not lose. A test starts this program again as its peer, with the peer's role in
//! the environment variable `FABRIC_ROLE`.

mod blocking_close;
mod budget_attacks;
mod churn;
mod completion_levels;
mod connect_floods;
mod connected_shm;
mod connected_shm_hostile;
mod domain_mode;
mod event_loops;
mod failed_openings;
mod failing_calls;
mod forks;
mod guide;
mod guide_sessions;
mod guide_transfer;
mod health;
mod hostile;
mod impostors;
mod inbound_attacks;
mod kill;
mod leak_check;
mod loan_relays;
mod loan_waits;
mod loans;
mod mapping_limit;
mod memory_corruption;
mod memory_corruptor;
mod multi_recv;
mod other_users;
mod peer_death;
mod probes;
mod registered_buffers;
mod reposted_receive;
mod resource_limits;
mod restart;
mod rma;
mod runtime;
mod scale;
mod select_loop;
mod sends_before_exit;
mod shared_rx;
mod shm_limits;
mod single_copy;
#[path = "../common/skip.rs"]
mod skip;
mod sockets;
mod stalled_messages;
mod stopped_peer;
mod streams;
mod tcp;
mod test_peer;
mod udp;
mod user_namespaces;
mod vectored_buffers;

use std::future::Future;
use std::time::Duration;

/// Runs a test on a current-thread runtime. The time limit detects hangs; it is no measurement.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("build a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(100), test)
            .await
            .expect("the test hangs")
    })
}

/// The entry point of peer processes; not a test.
#[test]
fn peer_entry_point() {
    test_peer::run_role();
}
