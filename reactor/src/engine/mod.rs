//! The engine of a domain: the state of its objects under one lock, and what makes progress.
//!
//! | module | subject |
//! |---|---|
//! | `domain` | a domain as fabric-async sees it |
//! | `progress`, `driver` | the domain's lock and progress; progress when no task polls |
//! | `passes` | calls of the transport's endpoints, and passes over them |
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
//! | `wait_policy` | how long to spin before sleeping |
//! | `id_map`, `trace` | objects by id; `tracing` events |

pub(crate) mod av;
mod batch;
mod cancel;
mod claim;
mod cm;
mod completions;
mod deferred;
pub(crate) mod domain;
pub(crate) mod domain_state;
pub(crate) mod driver;
mod endpoints;
mod engine_context;
mod event_loop;
mod flush;
mod id_map;
mod in_flight;
mod inline_recv;
mod loans;
mod multi_recv;
mod multicast;
mod onesided;
pub(crate) mod ops;
pub(crate) mod passes;
mod post;
pub(crate) mod progress;
mod queues;
mod regions;
mod rx_queues;
mod shared_rx;
mod trace;
mod tx_credits;
pub(crate) mod wait_policy;

pub use batch::{MAX_BATCH_BYTES, MAX_BATCH_POSTS, PostBatch};
pub use domain::{CompletedOp, DomainHandle};
pub use domain_state::{AvId, Bindings, CounterBindings, CounterId, CqId};
pub use driver::TaskDriver;
pub use event_loop::{WaitFd, WaitObject};
pub use multi_recv::{MultiRecvItem, MultiRecvTarget};
pub use onesided::check_atomic;
pub use ops::{CompletionTarget, CreditMode, OpResult, PostResult};
pub use progress::EngineTransport;
pub use queues::EqState;
pub use wait_policy::WaitPolicy;
