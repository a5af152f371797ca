//! The guide: what the calls promise across all types, what they cost, and why.
//!
//! After this page you know which chapter answers your question. The documentation of a type or a
//! method says what that item does; the chapters say what holds for all of them. Every example is
//! compiled and run.
//!
//! | chapter | subject |
//! |---|---|
//! | [`overview`] | a summary: posting, dropping, memory limits, the death of a peer |
//! | [`progress`] | which thread moves the bytes, and when none does |
//! | [`wait_policy`] | spinning, parking, and what each costs |
//! | [`threads`] | thread models: messages without locks, one domain for each core; resource domains |
//! | [`event_loops`] | waiting with epoll, without Tokio; several objects at once |
//! | [`batching`] | batches, selective completion |
//! | [`cancellation`] | what happens when a future is dropped |
//! | [`memory`] | buffers, pools, loans, buffering limits, trust in peers |
//! | [`ordering`] | order of messages, matching, fences, completion levels |
//! | [`one_sided`] | memory regions, reads, writes, atomic operations |
//! | [`backpressure`] | credits, queue entries, limits of receives |
//! | [`client_server`] | a server and its clients, address handles, restarts, shared receives, tracing |
//! | [`connected_endpoints`] | endpoints of type `FI_EP_MSG` |
//! | [`streams`] | byte streams and frames in place of Tokio's sockets |
//! | [`tcp`] | the `tcp` provider, libfabric peers, io_uring, sockets |
//! | [`udp`] | the `udp` provider, datagrams, multicast |
//! | [`errors`] | where failures are reported, `fi_errno` numbers, close, fork |
//! | [`from_libfabric`] | the C call for each call here; what is not there |
//! | [`defaults`] | default values, limits and their reasons |
//!
//! Read [`overview`] first, [`cancellation`] before using `select!` or timeouts, [`progress`]
//! before blocking a thread, and [`client_server`] before writing a server.

pub mod backpressure;
pub mod batching;
pub mod cancellation;
pub mod client_server;
pub mod connected_endpoints;
pub mod defaults;
pub mod errors;
pub mod event_loops;
pub mod from_libfabric;
pub mod memory;
pub mod one_sided;
pub mod ordering;
pub mod overview;
pub mod progress;
pub mod streams;
pub mod tcp;
pub mod threads;
pub mod udp;
pub mod wait_policy;
