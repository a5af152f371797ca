//! The engine of a domain: the state of its objects under one lock, and what makes progress.
//!
//! | module | subject |
//! |---|---|
//! | `domain` | a domain as fabric-async sees it |
//! | `progress`, `driver`, `driver_phase` | the domain's lock and progress; progress when no task polls |
//! | `endpoint_table`, `passes` | the transport's endpoints with their queues; calls of them, and passes over the active ones |
//! | `state` | the state of a domain and its endpoints |
//! | `post`, `fast_path`, `inline_recv`, `batch`, `cancel`, `flush` | posting, singly and in batches; canceling; flushing |
//! | `rx_queues`, `shared_rx` | receive queues; shared receive contexts |
//! | `multi_recv`, `claim`, `onesided` | multi-receives; probes and claims; RMA and atomics |
//! | `endpoints`, `av`, `regions`, `loans`, `multicast`, `cm`, `completions` | the calls of the objects |
//! | `updates` | the engines of a domain and its resource domains; what they share |
//! | `event_loop`, `wait_fd` | event loops of the program; wait descriptors |
//! | `wait_policy` | how a domain waits: policy, spinning |

mod av;
mod batch;
mod cancel;
mod claim;
mod cm;
mod completions;
pub(crate) mod domain;
pub(crate) mod driver;
pub(crate) mod driver_phase;
pub(crate) mod endpoint_table;
mod endpoints;
mod event_loop;
mod fast_path;
mod flush;
mod inline_recv;
mod loans;
mod multi_recv;
mod multicast;
mod onesided;
pub(crate) mod passes;
mod post;
pub(crate) mod progress;
mod regions;
mod rx_queues;
mod shared_rx;
pub(crate) mod state;
mod updates;
mod wait_fd;
pub(crate) mod wait_policy;

pub use batch::{MAX_BATCH_BYTES, MAX_BATCH_POSTS, PostBatch};
pub use domain::{CompletedOp, DomainHandle};
pub use driver::{DomainWaker, TaskDriver};
pub use driver_phase::DriverKind;
pub use event_loop::WaitObject;
pub use onesided::check_atomic;
pub use progress::{CallEnd, EngineTransport};
pub use state::bindings::{AvId, Bindings, CounterBindings, CounterId, CqId};
pub use state::eq::{DomainEq, EqState, ReservedEvent};
pub use state::multi_recv::{MultiRecvItem, MultiRecvTarget};
pub use state::ops::{CompletionTarget, CreditMode, OpResult, PostResult};
pub use updates::DomainUpdates;
pub use wait_fd::WaitFd;
