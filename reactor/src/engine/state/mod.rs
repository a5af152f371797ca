//! The state of a domain and its endpoints, under the domain's lock.
//!
//! | module | subject |
//! |---|---|
//! | `domain_state` | the state: what needs several of the parts below |
//! | `endpoints`, `bindings` | endpoints; ids, and objects that endpoints are bound to |
//! | `shared_peers` | the endpoints at which peers of shared receive contexts connect |
//! | `engine_context`, `rx_engine` | the part that a transport sees; deliveries of received messages |
//! | `ops`, `tx_credits`, `in_flight` | operations, transmit credits, buffers that the kernel still reads |
//! | `cq`, `counter`, `eq`; `reporting` | completion queues, counters, event queues; reporting of operations |
//! | `av`, `regions`, `cm` | address vectors; memory regions; connection management |
//! | `sender_names` | the senders of endpoints with `FI_SOURCE_ERR` |
//! | `multi_recv`, `flush`, `loans` | multi-receives; flushes; tasks that wait for memory of loans |
//! | `pending_work`, `access_changes` | work that calls leave behind; retries of what transports hold |
//! | `arrival_timer` | messages that stop arriving |
//! | `update_queue` | updates from other threads |
//! | `deferred`, `trace` | actions after unlocking; `tracing` events |
//! | `id_map` | objects by id |

mod access_changes;
pub(crate) mod arrival_timer;
pub(crate) mod av;
pub(crate) mod bindings;
pub(crate) mod cm;
pub(crate) mod counter;
pub(crate) mod cq;
pub(crate) mod deferred;
pub(crate) mod domain_state;
pub(crate) mod endpoints;
mod engine_context;
pub(crate) mod eq;
pub(crate) mod flush;
pub(crate) mod id_map;
pub(crate) mod in_flight;
pub(crate) mod loans;
pub(crate) mod multi_recv;
pub(crate) mod ops;
pub(crate) mod pending_work;
pub(crate) mod regions;
mod reporting;
mod rx_engine;
mod sender_names;
mod shared_peers;
pub(crate) mod trace;
pub(crate) mod tx_credits;
pub(crate) mod update_queue;
