//! Who makes progress, and with what. Knows wakers and file descriptors, not Tokio.
//!
//! | room | subject |
//! |---|---|
//! | [`domain`] | a domain as the async face sees it |
//! | `engine`, `driver` | one lock, whoever polls drives, and who drives when nobody polls |
//! | `post`, `flush`, `withdraw`, `multi`, `claim`, `onesided`, `hub`, `host`, `ops`, `transmit` | operations and their buffers, credits |
//! | `reports`, `queue` | completion queues, event queues and counters |
//! | `endpoints`, `vectors`, `regions`, `groups` | endpoints, address vectors and their guests, memory that peers reach, multicast groups |
//! | `connecting` | passive endpoints, and endpoints that are connected with one peer |
//! | `shared` | receive contexts that several endpoints share |
//! | `wait` | how long to look before sleeping, and what to sleep on |
//! | `uring` | operations that the kernel carries on with while nobody looks |
//! | [`provider`] | the registry, and the providers: shared memory, tcp, udp |

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
mod flush;
mod id_map;
mod in_flight;
#[cfg(all(feature = "work", not(loom)))]
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
pub use domain_state::{AvId, Bindings, CounterId, Counters, CqId};
pub use driver::{TaskDriver, WaitFd};
pub use multi_recv::{MultiRecvItem, MultiRecvTarget};
pub use onesided::check_atomic;
pub use ops::{CompletionTarget, CreditMode, OpResult, PostResult};
pub use queues::EqState;
pub use wait::WaitPolicy;
