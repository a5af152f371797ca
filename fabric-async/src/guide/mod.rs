//! The manual: what the calls promise, what they cost, and why they are as they are.
//!
//! The documentation of a type or a method says what it does. These chapters say what holds across
//! all of them. There is no code here; every example is compiled and run.
//!
//! | chapter | question |
//! |---|---|
//! | [`progress`] | Who moves the bytes, and when does nobody? |
//! | [`wait_policy`] | Spin or sleep, and what does each cost? |
//! | [`cancellation`] | What happens when a future is dropped? |
//! | [`memory`] | Who owns a buffer, how much is buffered, and what can a peer do to it? |
//! | [`one_sided`] | How do processes share memory, and who helps whom? |
//! | [`ordering`] | What comes before what? What does "sent" mean? |
//! | [`batching`] | How are many messages sent at once, and who hears of what? |
//! | [`backpressure`] | What happens when the receiver is slower than the sender? |
//! | [`client_server`] | How do a server and its clients find each other, and what if one is gone? |
//! | [`connected_endpoints`] | How does an endpoint have one peer, and how does that begin and end? |
//! | [`tcp`] | What is different with peers on other machines? |
//! | [`udp`] | What is different with datagrams, and with groups? |
//! | [`errors`] | Where do failures go, and what are their numbers in libfabric? |
//! | [`from_libfabric`] | Which call is which, for those who come from C? |
//! | [`defaults`] | Which values are chosen when none is given, and why? |
//!
//! Read [`cancellation`] before using `select!` or timeouts, [`progress`] before blocking a thread,
//! and [`client_server`] before writing a server.

pub mod backpressure;
pub mod batching;
pub mod cancellation;
pub mod client_server;
pub mod connected_endpoints;
pub mod defaults;
pub mod errors;
pub mod from_libfabric;
pub mod memory;
pub mod one_sided;
pub mod ordering;
pub mod progress;
pub mod tcp;
pub mod udp;
pub mod wait_policy;
