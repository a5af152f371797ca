//! Matching: which posted receive gets which message. The matcher holds posted receives without a
//! message, and unexpected messages, which no receive has matched yet.
//!
//! | file | subject |
//! |---|---|
//! | `envelope` | what is compared: [`Envelope`], [`AckRequest`], [`RecvSpec`], [`TagMatch`] |
//! | `matcher` | what concerns both queues: [`Matcher`], [`RecvPostResult`] |
//! | `posted` | the queue of receives, in posting order: [`PostedQueue`] |
//! | `receive_index` | the index of a long list of receives |
//! | `unexpected` | the queue of messages, in arrival order: [`UnexpectedQueue`] |
//! | `message_list` | what is compared of the messages, and the searches |
//! | `message_index` | the index of a long list of messages |
//! | `list` | the linked lists of unexpected messages |
//! | `comparisons` | counts comparisons in tests |
//!
//! # Rules
//!
//! * A message goes to the *earliest posted* receive that accepts it (`fi_recv` in `fi_msg(3)`,
//!   `fi_trecv` in `fi_tagged(3)`); a late receive takes the *earliest arrived* message it accepts.
//!   Posting order decides, never the order in which futures or queues are polled.
//! * Tagged and untagged traffic never match each other. Tags match when `(sent ^ wanted) & !ignore
//!   == 0` (`fi_tagged(3)`).
//! * Receives directed to one source (`FI_DIRECTED_RECV` in `fi_getinfo(3)`) and receives from any
//!   source compete in posting order.
//! * A message from a sender without an address handle matches only receives from any source. When
//!   the address is inserted, unexpected messages are offered again, as in libfabric's own
//!   providers: [`UnexpectedQueue::assign_source`].
//! * A message that was matched and then not delivered returns to its old place, by its arrival
//!   number.
//!
//! # Cost
//!
//! When the first entry of a queue matches, a match reads that entry and removes it: no look-up,
//! and no allocation once the tables have grown to the largest number of entries ever held at a
//! time. A queue of more than 4,096 messages that becomes empty frees its tables. Taking a message
//! by key is O(1) while the queue is short; canceling a receive is logarithmic, amortized.
//!
//! A list of up to 16 entries is searched entry by entry. A longer one has an index, and a search
//! is logarithmic in the number of entries, amortized: a search that finds more than 16 entries
//! outside of the index adds them to it, each once.
//!
//! * Receives that ignore the same bits of the tag are in a hash table by source and tag, those of
//!   equal source and tag in an ordered set (a B-tree). A message is looked up once in each of up
//!   to 16 tables. Receives that ignore other bits are searched one by one. The hash has random
//!   factors, so a peer that chooses its tags cannot make a search longer.
//! * Messages are in ordered sets: *views* for the bits that a receive ignores, and for receives
//!   from one source or from any source. The searches of a queue share the views. There are up to
//!   12 views of each list; receives that ignore bits for which there is no view are compared with
//!   each message.
//!
//! The index of receives has at most two items for each receive, and 64 more; the index of messages
//! has one item for each message and view. An index is dropped or reused after its list has become
//! short.

mod comparisons;
mod envelope;
mod list;
mod matcher;
mod message_index;
mod message_list;
mod posted;
mod receive_index;
mod unexpected;

pub use envelope::{AckRequest, Envelope, PeerKey, RecvSpec, TagMatch};
pub use matcher::{Matcher, RecvPostResult};
pub use posted::{PostKey, PostPlace, PostedQueue};
pub use unexpected::{UnexpectedKey, UnexpectedQueue};

/// A list of at most so many entries is searched entry by entry.
const MAX_SCANNED: usize = 16;

#[cfg(test)]
mod scaling_tests;
#[cfg(test)]
mod tests;
