//! Matching: which posted receive gets which message. The matcher holds posted receives without a
//! message, and unexpected messages, which no receive has matched yet.
//!
//! | file | subject |
//! |---|---|
//! | `envelope` | what is compared: [`Envelope`], [`AckRequest`], [`RecvSpec`], [`TagMatch`] |
//! | `matcher` | both queues together: [`Matcher`], [`RecvPostResult`] |
//! | `posted` | the queue of receives, in posting order |
//! | `unexpected` | the queue of messages, in arrival order |
//! | `list` | the linked lists of unexpected messages |
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
//!   providers: [`Matcher::assign_source`].
//! * A message that was matched and then not delivered returns to its old place, by its arrival
//!   number.
//!
//! # Cost
//!
//! When the first entry of a queue matches, a match reads that entry and removes it: no hashing,
//! and no allocation once the tables have grown to the largest number of entries ever held at a
//! time (they do not shrink). Taking a message by key is O(1) at any length; canceling a receive is
//! logarithmic, amortized.
//!
//! All other lookups are scans. `match_message` and `would_match` are linear in the posted receives
//! in front of the match, `post` and `peek` in the unexpected messages in front of it, and a search
//! without a result reads the whole queue of its kind. A program that keeps thousands of receives
//! posted and gets its messages in another order pays a scan for each message. A scan reads one
//! compact entry per step and no message body.

mod envelope;
mod list;
mod matcher;
mod posted;
mod unexpected;

pub use envelope::{AckRequest, Envelope, PeerKey, RecvSpec, TagMatch};
pub use matcher::{Matcher, RecvPostResult};
pub use posted::{PostKey, PostPlace};
pub use unexpected::UnexpectedKey;

#[cfg(test)]
mod tests;
