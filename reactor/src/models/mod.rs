//! Loom models: every schedule of a few threads over the real code, under the memory model of the
//! language.
//!
//! | file | invariant |
//! |---|---|
//! | `ring` | a ring delivers every record once, in order and intact |
//! | `doorbell` | neither end of a ring sleeps while it could make progress |
//! | `op_slots` | an operation completes once, for its own future, and wakes it without the lock |
//! | `progress` | while a task waits, the driver is awake or every peer rings its doorbell |
//! | `event_loop` | while an event loop blocks, it is woken for every arrival and completion |
//! | `thread_lock` | at most one thread has the value of a lock; a refused thread touches nothing |
//! | `pinned_domain` | the driver of a domain applies the updates of other threads, and is woken for each |
//! | `inline_recv` | each message completes the oldest receive, inline or in a pass, once |
//! | `fast_path_order` | a send over the fast path overtakes no operation that waits in the domain |
//!
//! `ring_memory`, `mock_transport` and `epoll_set` stand in for what loom cannot see: shared
//! memory, a transport and the kernel.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 \
//!   cargo test -p fabric-reactor --release --lib models
//! ```

mod doorbell;
mod epoll_set;
mod event_loop;
mod fast_path_order;
mod inline_recv;
mod mock_transport;
mod op_slots;
mod pinned_domain;
mod progress;
mod ring;
mod ring_memory;
mod thread_lock;

pub(crate) use epoll_set::EpollSet;
