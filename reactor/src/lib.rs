//! The progress engine and the transports. Knows wakers and file descriptors, not Tokio.
//!
//! | module | subject |
//! |---|---|
//! | `domain` | a domain as fabric-async sees it |
//! | `engine`, `driver` | the domain's lock and progress passes; progress when no task polls |
//! | `domain_state`, `engine_context` | state of a domain apart from its transport; the part that a transport sees |
//! | `post`, `inline_recv`, `batch`, `cancel`, `flush`, `ops`, `tx_credits`, `deferred` | operations, their buffers and credits; actions after unlocking |
//! | `rx_queues`, `shared_rx` | receive queues; shared receive contexts |
//! | `multi_recv`, `claim`, `onesided` | multi-receives; probes and claims; RMA and atomics |
//! | `completions`, `queues` | completion queues, event queues and counters |
//! | `endpoints`, `av`, `regions`, `multicast` | endpoints, address vectors, memory regions, multicast groups |
//! | `cm` | passive and connected endpoints |
//! | `loans` | memory of loans, and waiting for it |
//! | `in_flight` | buffers that the kernel still reads |
//! | `event_loop` | event loops of the program: wait descriptors |
//! | `wait` | wait policies, and epoll |
//! | `uring` | io_uring operations |
//! | `transport` | the registry, and the transports: shm, tcp, udp |
//! | `id_map`, `sync`, `trace` | objects by id; locks and fences; `tracing` events |
//! | `models`, `microbench` | loom models; functions for the microbenchmarks |

#![warn(missing_debug_implementations)]

mod av;
mod batch;
mod cancel;
mod claim;
mod cm;
mod completions;
mod deferred;
pub mod domain;
mod domain_state;
mod driver;
mod endpoints;
mod engine;
mod engine_context;
mod event_loop;
mod flush;
mod id_map;
mod in_flight;
mod inline_recv;
mod loans;
#[cfg(all(feature = "microbench", not(loom)))]
#[doc(hidden)]
pub mod microbench;
#[cfg(all(test, loom))]
mod models;
mod multi_recv;
mod multicast;
mod onesided;
mod ops;
mod post;
mod queues;
mod regions;
mod rx_queues;
mod shared_rx;
mod sync;
mod trace;
pub mod transport;
mod tx_credits;
mod uring;
mod wait;

#[cfg(all(feature = "fuzz", not(loom)))]
#[doc(hidden)]
pub use transport::shm::fuzz;

pub use batch::{MAX_BATCH_BYTES, MAX_BATCH_POSTS, PostBatch};
pub use domain::{CompletedOp, DomainHandle};
pub use domain_state::{AvId, Bindings, CounterBindings, CounterId, CqId};
pub use driver::TaskDriver;
pub use engine::EngineTransport;
pub use event_loop::{WaitFd, WaitObject};
pub use multi_recv::{MultiRecvItem, MultiRecvTarget};
pub use onesided::check_atomic;
pub use ops::{CompletionTarget, CreditMode, OpResult, PostResult};
pub use queues::EqState;
pub use wait::WaitPolicy;
