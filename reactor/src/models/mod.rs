//! Loom models: every schedule of a few threads over the real code, with the memory model of the
//! language.
//!
//! | file | invariant |
//! |---|---|
//! | `ring` | a ring delivers every record once, in order, unspoilt |
//! | `doorbell` | neither end of a ring sleeps through its news |
//! | `slots` | an operation ends once, for its own future, and wakes it without the lock |
//! | `progress` | while a task waits, somebody drives or every peer will ring |
//! | `overtaking` | what is sent beside the domain overtakes nothing that waits there |
//!
//! `memory`, `wire` and `poll_set` stand in for what loom cannot see: shared memory, a provider and
//! the kernel.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p fabric-reactor --release --lib models
//! ```

mod doorbell;
mod epoll_set;
mod fast_path_order;
mod mock_transport;
mod op_slots;
mod progress;
mod ring;
mod ring_memory;

pub(crate) use epoll_set::EpollSet;
