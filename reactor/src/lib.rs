//! The progress engine and the transports. Knows wakers and file descriptors, not Tokio.
//!
//! | module | subject |
//! |---|---|
//! | `engine` | the state of a domain: endpoints, operations, queues, progress |
//! | `transport` | the transports: shm, tcp, udp, sim |
//! | `registry` | transports by name |
//! | `parameters` | the environment |
//! | `sys` | system calls, and the unsafe code around them |
//! | `models`, `microbench` | loom models; functions for the microbenchmarks |
//!
//! `engine` and `transport` do not import each other: they meet in the traits of
//! `fabric_core::transport`. Both import `sys`.

#![warn(missing_debug_implementations)]

mod engine;
#[cfg(all(feature = "microbench", not(loom)))]
#[doc(hidden)]
pub mod microbench;
#[cfg(all(test, loom))]
mod models;
pub mod parameters;
pub mod registry;
mod sys;
pub mod transport;

#[cfg(all(feature = "fuzz", not(loom)))]
#[doc(hidden)]
pub use transport::shm::fuzz;

pub use engine::{
    AvId, Bindings, CallEnd, CompletedOp, CompletionTarget, CounterBindings, CounterId, CqId,
    CreditMode, DomainEq, DomainHandle, DomainUpdates, DomainWaker, DriverKind, EngineTransport,
    EqState, MAX_BATCH_BYTES, MAX_BATCH_POSTS, MultiRecvItem, MultiRecvTarget, OpResult, PostBatch,
    PostResult, ReservedEvent, TaskDriver, WaitFd, WaitObject, check_atomic,
};
pub use sys::background::run_in_background;
pub use transport::shm::{Memfd, memfd_region};
