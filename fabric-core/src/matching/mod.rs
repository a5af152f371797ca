//! Which receive gets which message: posted receives on one side, waiting (unexpected) messages on
//! the other.
//!
//! | file | subject |
//! |---|---|
//! | `envelope` | what a message shows and what a receive asks for: [`Envelope`], [`AckRequest`], [`RecvSpec`], [`TagMatch`] |
//! | `matcher` | the two sides together: [`Matcher`], [`Posted`] |
//! | `posted` | receives in posting order |
//! | `waiting` | messages in arrival order |
//! | `list` | the linked chains both sides are made of |
//!
//! # Rules
//!
//! * A message goes to the *earliest posted* receive that accepts it (`fi_recv` in `fi_msg(3)`,
//!   `fi_trecv` in `fi_tagged(3)`); a late receive takes the *earliest arrived* message it accepts.
//!   Posting order decides, never the order in which anything is polled.
//! * Tagged and untagged traffic never meet. Tags match when `(sent ^ wanted) & !ignore == 0`
//!   (`fi_tagged(3)`).
//! * Receives from one source (`FI_DIRECTED_RECV` in `fi_getinfo(3)`) and receives from anybody
//!   compete by posting time, in one queue.
//! * A message from a sender without an address reaches only receives from anybody. When the
//!   address is inserted, what waits is looked at again, as libfabric's own providers do:
//!   [`Matcher::assign_source_and_match`].
//! * A message that was matched and then not delivered returns to its old place, by its arrival
//!   number.
//!
//! # Cost
//!
//! When the first entry of a queue fits, a match reads that entry and unlinks it: no hashing, and
//! no allocation once the tables have grown to the largest number of entries ever held at a time
//! (they do not shrink). Withdrawing a receive and taking a message by key are O(1) at any length.
//!
//! Everything else is a scan. `arrive` and `would_match` are linear in the posted receives in front
//! of the one that fits, `post` and `peek` in the waiting messages in front of it, and a search
//! without a result reads the whole queue of its kind. A program that keeps thousands of receives
//! posted and gets its messages in another order pays for that on each message. A scan reads one
//! compact entry per step and touches no message body.

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
