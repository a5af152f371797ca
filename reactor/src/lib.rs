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

mod batch;
mod claim;
mod connecting;
pub mod domain;
mod driver;
mod endpoints;
mod engine;
mod entrusted;
mod flush;
mod groups;
mod host;
mod hub;
mod later;
#[cfg(all(test, loom))]
mod models;
mod multi;
mod notes;
mod onesided;
mod ops;
mod post;
pub mod provider;
mod queue;
mod regions;
mod reports;
mod shared;
mod sync;
mod table;
mod transmit;
mod uring;
mod vectors;
mod wait;
mod withdraw;
#[cfg(all(feature = "work", not(loom)))]
#[doc(hidden)]
pub mod work;

#[cfg(all(feature = "fuzz", not(loom)))]
#[doc(hidden)]
pub use provider::shm::fuzz;

pub use batch::{Batch, CHUNK, CHUNK_BYTES};
pub use domain::{Domain, Finished};
pub use driver::{Doorbell, TaskDriver};
pub use hub::{AvId, Bindings, CounterId, Counters, CqId};
pub use multi::{MultiSink, Part};
pub use onesided::check_atomic;
pub use ops::{Credit, Ended, Posted, Route};
pub use queue::EventRing;
pub use wait::WaitPolicy;
