//! Defaults: values, limits and their reasons.
//!
//! After this chapter you know every value that applies when you set none, why it was chosen, and
//! how to change it.
//!
//! # Chosen by `Endpoint::bind`
//!
//! | what | value | why | to change it |
//! |---|---|---|---|
//! | progress | manual | no extra thread; waiting tasks drive anyway | [`BindOptions::progress`] |
//! | wait policy | adaptive | fast under traffic, asleep without | [`BindOptions::wait_policy`] |
//! | single copy | messages of 64 KiB and more to a peer with an empty queue, where the kernel copies fast | one copy takes half the time; in a stream two overlapping copies are faster | [`BindOptions::single_copy_threshold`] |
//! | capabilities | untagged and tagged messages, multi-receive, directed receives, sources, fences, one-sided and atomic operations, remote events (`FI_RMA_EVENT`), local and, over `tcp`, remote communication; over `udp` untagged messages, sources and multicast | what a service needs, and what costs nothing until used | [`Hints::caps`] |
//! | completion queue | 1024 entries, for both directions, and for [writes with data](super::one_sided#what-the-target-is-told) | as many as transmit credits | [`Domain::completion_queue`] |
//! | progress timeout | 30 seconds | longer than a lossy network needs; a peer that stops in the middle of a message does not hold a receive for ever | [`BindOptions::progress_timeout`] |
//! | event queue | 256 events, and 16 refusals of connections | events are rare; beyond it they are counted | [`Fabric::event_queue`] |
//! | address vector | auto-inserting | a server can reply to every client | [`Domain::address_vector`] inserts nothing by itself, as in libfabric |
//! | name | process id and a number | unique, and removed with the process | `shm://name` |
//!
//! Objects that are opened one by one have manual progress and adaptive waiting too.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::info::Threading;
//! use fabric_async::{Endpoint, Progress};
//! let ep = Endpoint::bind("shm://").await?;
//! let info = ep.info();
//! assert_eq!((info.tx.size, info.rx.size), (1024, 1024));
//! assert_eq!((info.tx.inject_size, info.ep.max_msg_size), (4096, 1 << 40));
//! assert_eq!(info.domain.data_progress, Progress::Manual);
//! assert_eq!(info.domain.threading, Threading::Safe);
//! # Ok(()) }
//! ```
//!
//! # Offered by `shm`
//!
//! | what | value | why |
//! |---|---|---|
//! | transmit credits | 1024 per endpoint | held by operations that the post does not complete: until there is room in the ring, or the peer has copied or acknowledged the message |
//! | of these for one peer | a quarter, at least 1 | three slow peers leave some for the rest |
//! | posted receives | 1024 per endpoint | rarely reached; awaited receives are not refused |
//! | [`min_free`](Request::min_free) | 64 bytes | a cache line |
//! | inject size | 4096 bytes | a page: moving a larger buffer into the operation is cheaper than the copy |
//! | longest message | 2^40 bytes | a longer length from a peer is a protocol violation |
//! | order | `FI_ORDER_SAS`, `SAW`, `SAR`, `RAR`, `RAW`, `WAR`, `WAW` | follows from one ring per direction |
//! | region, loan | up to 2^40 bytes, up to 4 GiB | beyond what a machine has |
//! | loans | 256 to one peer, 4 GiB per domain ([`DomainBuilder::loan_limit`]) | a peer that returns no loans must not use up the machine's memory |
//! | descriptors of received loans | 256 per endpoint; per process a quarter of its limit | to send loans on without a copy |
//! | values of one atomic operation | 4096 bytes | a page |
//! | completion data | 8 bytes | the size of the field in a record |
//! | tag bits | all 64 | a tag is compared as one word |
//!
//! A hint for the transmit credits, the posted receives or the inject size becomes the value if it
//! is not above the offer. A hint for the longest message is a minimum; to lower the limit, set
//! `info.ep.max_msg_size` before the endpoint is opened. A longer message then fails with
//! [`Error::TooLong`] where it is sent and [`Error::Truncated`] where it arrives.
//!
//! # Inside `shm`
//!
//! These values cannot be changed. They explain measurements.
//!
//! | what | value | why |
//! |---|---|---|
//! | ring | 2048 lines of 64 bytes, 128 KiB per direction and peer; 512 KiB for later messages once the ring was full | room for bursts, small enough for the caches |
//! | line | 64 bytes, 8 of them header | a message of up to 56 bytes, without tag and data, takes one cache line |
//! | fragment | 8 KiB of a longer message | the receiver copies one while the sender writes the next |
//! | room returned | every eighth of the ring | the sender is notified in batches |
//! | loans and single-copy messages | 256 per peer | further ones go through the ring |
//! | unexpected messages | 16 MiB per endpoint, each with 320 bytes on top; 7 MiB for one peer alone, less [beside others](super::memory#unexpected-messages) | bounds what peers make an endpoint hold, and leaves room for each of them |
//! | pass | 64 KiB, at most 64 records, per peer | no peer delays the others, and no poll takes long |
//! | pending connections | 1024 to be accepted, 64 in the handshake | the oldest handshake is evicted |
//! | connections of other users | two refused in a poll | they can come without end |
//! | clients of a passive endpoint | 256 without a request, for 10 seconds; 128 requests | as over `tcp` |
//! | closing threads | 8 for descriptors and 1 for memory; 64 items that wait for one | a peer's descriptor or memory may take long to close |
//! | mappings of shared memory | a quarter of `vm.max_map_count` per process, with those of peers | a process without mappings cannot allocate memory |
//! | mappings of received loans | half of these per process; of one peer an eighth of that half, at most 768 | further loans are copied by their senders |
//! | free pooled buffers | powers of two from 256 bytes to 1 MiB, of each 4 MiB per process and 256 KiB per thread | reuse within bounded memory, without a lock where one thread receives and drops |
//! | memory of a long message | reserved once, at the announced length | nothing is copied again; pages are used as bytes arrive |
//!
//! # Inbound connections of `tcp` and `shm`
//!
//! | what | value | why |
//! |---|---|---|
//! | connections of peers that the program has not inserted | 4096 per endpoint ([`SocketOptions::max_inbound`]); per process three quarters of `RLIMIT_NOFILE`, of which one over `shm` takes two descriptors | descriptors are left for the program and for inserted peers |
//! | of these from one source | half of the smaller limit ([`SocketOptions::max_inbound_per_source`]) | one machine, or one process over `shm`, cannot keep out all others; local peers share one source over `tcp` |
//! | pending handshakes over `tcp` | 64 of one source, 256 in all, for 10 seconds; passive endpoints 256 and 512 | a source evicts its own |
//!
//! # Waiting
//!
//! [`wait_policy`](super::wait_policy) says how these work together.
//!
//! | what | value | why |
//! |---|---|---|
//! | passes within a poll | 1, and up to 96 more (10 in debug builds); only 2 more after four polls in a row without success; waiting tasks share them | a few microseconds; a poll must not delay the runtime |
//! | all passes again | in every 16th poll without success, and after a success | traffic may have resumed |
//! | spin budget of the driver | 5 to 200 microseconds | about as long as two wake-ups take |
//! | drivers that spin at the same time | the number of cores | a further one would take the core of another |
//! | check of the thread of a domain with automatic progress | every millisecond | whether tasks still poll; if none does, the thread makes the passes |
//! | poll of the sockets (`epoll_wait`) | every 16 passes of the driver, 2048 passes of any thread, 64 operations | finds new connections and dead peers, without a system call in each pass |
//! | batch of a queue's stream | 32 completions | one lock for many |
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | [`Domain::completion_queue`] | 1 to 2^20 entries |
//! | [`Fabric::event_queue`] | from 1 |
//! | `info.tx.size`, `info.rx.size` at `enable` | 1 to 2^16 |
//! | name of an endpoint | 80 bytes of ASCII letters, digits and `._-:@+` |
//!
//! # Environment
//!
//! No configuration file is read and no Cargo feature changes a behaviour. The crates read these
//! environment variables, which [`parameters`] lists (`fi_getparams`). A
//! variable that is set to nothing has no value. [`discover`](crate::discover()) refuses any other
//! value that is not valid with [`Error::Invalid`], which names the variable. All other parameters
//! are set by calls, in the tables above.
//!
//! | variable | value | default | what for |
//! |---|---|---|---|
//! | `FI_PROVIDER` | list of providers | all but `sim` | the providers that `discover` offers, or after `^` those that it does not offer |
//! | `FABRIC_SOCKET_IO` | `epoll`, `io_uring`, `auto` | `auto`, which is `epoll` | how domains over `tcp` wait for sockets, unless the program chooses |
//!
//! In lists of providers `ofi_rxm` is the [RXM protocol](super::tcp#the-rxm-protocol) of `tcp`,
//! which only a list after `^` affects. [`DomainBuilder::socket_io`] and
//! [`BindOptions::socket_io`] choose the socket I/O; see [`tcp`](super::tcp#epoll-and-io_uring).
//!
//! Other `FI_*` variables of libfabric have no effect. Variables of the tests, such as
//! `FABRIC_REQUIRE`, are not read by the crates.

#[cfg(doc)]
#[allow(unused_imports)]
use crate::{atomic::*, buf::*, info::*, ops::*, stats::*, *};
