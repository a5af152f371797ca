//! System calls and the unsafe code around them. Knows neither engine nor transports.
//!
//! | file | subject |
//! |---|---|
//! | `sync` | mutexes, atomics, fences and cells: those of the standard library, or of loom |
//! | `raw_lock` | locks without a value: a mutex, a spin lock |
//! | `thread_lock` | locks that threads share or take in turn, or that one thread owns |
//! | `use_flag`, `thread_id` | who is in a domain that one thread at a time uses; ids of threads |
//! | `epoll` | the epoll set of a domain |
//! | `uring` | io_uring operations |
//! | `memfd` | memory that is passed to peers: creation, seals, checks |
//! | `mapping` | mappings of such memory, and access to them |
//! | `atomic_copy` | copies of memory that others access at the same time |
//! | `mapping_limit` | how many of these mappings the process has |
//! | `fd_limit` | the descriptor limit of the process |
//! | `fd_reserve` | the descriptor that makes room at the descriptor limit |
//! | `background` | threads for work that takes long |
//! | `closer` | threads that close descriptors of peers and unmap memory of peers |
//! | `process_memory` | copies from the memory of another process |
//! | `sockopt` | options of Unix sockets: credentials of the peer, descriptors |
//! | `datagrams` | many datagrams with one call |
//! | `watched_fd` | descriptors in an epoll set |
//! | `timer` | timers in an epoll set |
//! | `fork_guard` | whether the process is a forked child |
//! | `process_local` | a value of each process, which a forked child replaces |
//! | `os_error` | errors of system calls |
//! | `child_process` | child processes of tests |
//! | `microbench` | the type of microbenchmarks |

mod atomic_copy;
pub(crate) mod background;
#[cfg(all(test, not(loom)))]
pub(crate) mod child_process;
pub(crate) mod closer;
pub(crate) mod datagrams;
#[cfg(not(all(test, loom)))]
mod epoll;
pub(crate) mod fd_limit;
pub(crate) mod fd_reserve;
pub(crate) mod fork_guard;
pub(crate) mod mapping;
pub(crate) mod mapping_limit;
pub(crate) mod memfd;
#[cfg(all(feature = "microbench", not(loom)))]
pub(crate) mod microbench;
pub(crate) mod os_error;
pub(crate) mod process_local;
pub(crate) mod process_memory;
mod raw_lock;
pub(crate) mod sockopt;
pub(crate) mod sync;
pub(crate) mod thread_id;
pub(crate) mod thread_lock;
pub(crate) mod timer;
pub(crate) mod uring;
pub(crate) mod use_flag;
pub(crate) mod watched_fd;

#[cfg(all(test, loom))]
pub(crate) use crate::models::EpollSet;
#[cfg(not(all(test, loom)))]
pub(crate) use epoll::EpollSet;
