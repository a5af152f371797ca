//! The conformance suite: what every provider owes to the public interface.
//!
//! A scenario is a function of a [`Setup`](setup::Setup), written once. The table of scenarios
//! names the capabilities and attributes that each requires; the table of combinations lists
//! providers with progress modes, runtimes, wait policies and more. The product of both is computed
//! at run time from what discovery offers: a failure reads
//! `shm::auto_multi_thread::cancellation::...`. A scenario whose requirements a provider does not
//! offer is not registered for it; one that this machine cannot run is ignored, unless
//! `FABRIC_REQUIRE` says that the machine must be able to. A provider is added by one more row of
//! [`combinations::combinations`]. The command line is that of libtest.
//!
//! | module | subject |
//! |---|---|
//! | `scenarios` | the table of scenarios |
//! | `requirements` | what scenarios require of a provider |
//! | `combinations` | providers, progress modes, runtimes |
//! | `harness` | registration, execution, summary |
//! | `skip` | what the machine may lack; shared with other test programs |
//! | `setup` | what a scenario runs on, and how it is run |
//! | `endpoint_fixture` | an endpoint with a fabric, domain and queues of its own |
//! | `shared_rx_fixture` | several endpoints with one shared receive context |
//! | `connected_pair` | two connected endpoints (`FI_EP_MSG`) |
//! | `raw_peer` | peers that are plain TCP sockets |
//! | `payload` | contents that identify themselves, and small helpers |
//! | the others | scenarios |

mod addresses;
mod async_registration;
mod atomics;
mod backpressure;
mod batches;
mod cancellation;
mod combinations;
mod completion_levels;
mod completions;
mod connect;
mod connected;
mod connected_batches;
mod connected_local;
mod connected_pair;
mod connected_rma;
mod connected_tagged;
mod counters;
mod custom_buffers;
mod datagrams;
mod device_memory;
mod endpoint_fixture;
mod event_loops;
mod events;
mod extensions;
mod fences;
mod handles;
mod harness;
mod loans;
mod local_mr;
mod loopback;
mod matching;
mod memfds;
mod message_metadata;
mod messages;
mod mr_mode;
mod multi_recv;
mod multicast;
mod objects;
mod ordering;
mod passive_targets;
mod payload;
mod permits;
mod posting;
mod probes;
mod raw_keys;
mod raw_peer;
mod region_segments;
mod regions;
mod registered_buffers;
mod requirements;
mod rma;
mod rma_iov;
mod scenarios;
mod select_races;
mod selective_completion;
mod setup;
mod shared_rx;
mod shared_rx_connected;
mod shared_rx_fixture;
mod shared_rx_lifecycle;
mod single_copy;
#[allow(dead_code, reason = "the harness reports skips, and no scenario does")]
#[path = "../common/skip.rs"]
mod skip;
mod sockets;
mod statistics;
mod truncation;
mod unknown_senders;
mod user_events;
mod vectors;
mod waiters;
mod zero_copy;

fn main() {
    harness::run_suite(libtest_mimic::Arguments::from_args()).exit();
}
