//! Defaults: which values are chosen when none is given, and why?
//!
//! # Chosen by `Endpoint::bind`
//!
//! | what | value | why | to change it |
//! |---|---|---|---|
//! | progress | manual | no thread nobody asked for; tasks that wait drive anyway | [`BindOptions::progress`] |
//! | copied once | messages of 64 KiB and more that are by themselves, where the kernel copies quickly | one copy takes half of the time; in a stream two copies that overlap are quicker | [`BindOptions::single_copy_from`] |
//! | waiting | adaptive | fast while there is traffic, asleep when there is none | [`BindOptions::wait_policy`] |
//! | capabilities | untagged and tagged messages, receives of several, directed ones, sources; one-sided and atomic operations | what a service needs to answer, and what costs nothing until it is used | the object model |
//! | completion queue | 1024 entries, for both directions | as many as there are credits to send; costs its memory once | [`Domain::completion_queue`] |
//! | event queue | 256 events | events are rare; beyond it they are counted | [`Fabric::event_queue`] |
//! | address vector | welcoming | a server can answer whoever writes to it | [`Domain::address_vector`] is not |
//! | name | process id and a number | never taken, and gone with the process | `shm://name` |
//!
//! Whoever opens the objects one by one gets manual progress and adaptive waiting as well, but
//! chooses the queues, and [`Domain::address_vector`] takes in nobody unasked: libfabric's has no
//! guests either.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
//! use fabric_async::{Endpoint, Progress, Threading};
//! let ep = Endpoint::bind("shm://").await?;
//! let info = ep.info();
//! assert_eq!((info.tx.size, info.rx.size), (1024, 1024));
//! assert_eq!((info.tx.inject_size, info.ep.max_msg_size), (4096, 1 << 40));
//! assert_eq!((info.domain.data_progress, info.domain.threading), (Progress::Manual, Threading::Safe));
//! # Ok(()) }
//! ```
//!
//! # Offered by `shm`
//!
//! | what | value | why |
//! |---|---|---|
//! | transmit credits | 1024 per endpoint; hints may ask for fewer | sends that queue behind full rings, not those in the rings |
//! | of which to one peer | a quarter, at least 1 | three slow peers leave something for the rest |
//! | posted receives | 1024 per endpoint; hints may ask for fewer | a bound that is seldom felt; awaited receives are not refused |
//! | [`min_free`](crate::MultiRecvRequest::min_free) | 64 bytes | a cache line: what is smaller is not worth another message |
//! | inject size | 4096 bytes | a page: larger copies are better given away |
//! | longest message | 2^40 bytes | a length beyond it is taken for an attack, not for a message |
//! | order | send after send, behind one-sided operations, and those among each other (`FI_ORDER_SAS`, `SAW`, `SAR`, `RAR`, `RAW`, `WAR`, `WAW`) | follows from a ring per direction, at no cost |
//! | region, loan | up to 2^40 bytes, up to 4 GiB | beyond what a machine has; what it has not got is refused |
//! | loans | 256 with one peer, 4 GiB in all | a reader that never returns any must not take everything; what is more is copied, then refused |
//! | row of atomics | 4096 bytes | a page |
//! | remote completion data | 8 bytes | all a completion entry has room for |
//! | tag bits | all 64 | a tag is compared as a whole anyway |
//!
//! With `sim` there are 256 credits and messages up to 2^30 bytes.
//!
//! Hints for the first, the third and the inject size become the value, and the endpoint has no
//! more than that; a hint for more than is offered is refused. A hint for the longest message only
//! asks that so much is possible. To lower that limit, set `info.ep.max_msg_size` before the
//! endpoint is opened. It holds in both directions: a longer message is
//! [`Error::TooLong`](crate::Error::TooLong) where it is sent, and
//! [`Error::Truncated`](crate::Error::Truncated) where it arrives.
//!
//! # Inside `shm`
//!
//! These cannot be changed. They are here because they explain what is measured.
//!
//! | what | value | why |
//! |---|---|---|
//! | ring | 2048 lines of 64 bytes, 128 KiB per direction and peer | room for bursts, and small enough for the caches; a peer costs twice that |
//! | line | 64 bytes, of which 8 are the header | a message up to 56 bytes costs one cache line, without tag and data |
//! | slots | 256 messages with one peer, lent or to be copied by it | what is more goes through the ring |
//! | piece | 8 KiB of a longer message | the receiver copies one piece while the sender writes the next |
//! | given back | every eighth of the ring | the sender is told of room in batches |
//! | unexpected messages | 16 MiB per endpoint, each with 128 bytes on top | bounds what peers can make an endpoint hold |
//! | bytes per pass | 64 KiB, at most 64 records, per peer | a long message holds up nobody else, and no poll takes long |
//! | connections that wait | 1024 to be accepted, 64 to say hello | whoever connects and says nothing is dropped when others come |
//! | pool | powers of two from 256 bytes to 1 MiB, 4 MiB of each | what was used is used again, and memory stays bounded |
//! | memory on a peer's word | 1 MiB | beyond it, a buffer grows as bytes arrive |
//!
//! # Waiting
//!
//! | what | value | why |
//! |---|---|---|
//! | looks within a poll | 96, or 2 after four vain polls in a row | a few microseconds; a poll must not hold up the runtime |
//! | tried again | every 16th poll | traffic may have come back |
//! | window of the driver | 5 to 100 microseconds | longer than a wake-up takes is waste; shorter finds nothing |
//! | drivers that look at once | as many as cores | a spinner without a core takes one from its peer |
//! | watch of the automatic thread | 1 millisecond | how long a passive target may lag after its last poll |
//! | look at descriptors | every 16 turns of the driver, every 2048 passes of polls, every 64 posts | new peers and dead ones, without a system call each time |
//! | batch of a queue's stream | 32 completions | one lock for many |
//!
//! [`waiting`](super::wait_policy) says what they mean together.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | [`Domain::completion_queue`] | 1 to 2^20 entries |
//! | [`Fabric::event_queue`] | from 1 |
//! | `info.tx.size`, `info.rx.size` at `enable` | 1 to 2^16 |
//! | name of an endpoint | 80 bytes |
//!
//! # Not a default
//!
//! Nothing is read from files, no cargo feature changes a behaviour, and of the environment only
//! `FABRIC_SOCKET_IO` ([`tcp`](super::tcp)), where the code leaves that open. What the code says is
//! what runs.
//!
//! [`BindOptions::progress`]: crate::BindOptions::progress
//! [`BindOptions::single_copy_from`]: crate::BindOptions::single_copy_from
//! [`BindOptions::wait_policy`]: crate::BindOptions::wait_policy
//! [`Domain::completion_queue`]: crate::Domain::completion_queue
//! [`Domain::address_vector`]: crate::Domain::address_vector
//! [`Fabric::event_queue`]: crate::Fabric::event_queue
