//! The parts of messages and receives that matching compares, and the comparison itself.

use crate::address::FiAddr;
use crate::completion::CompletionLevel;

use super::list::QueueKind;

/// The sender of a message, as its transport identifies peers.
///
/// A sender has a key even if it is not in the address vector and so has no [`FiAddr`]. The
/// transport defines the meaning and lifetime of keys; matching only compares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u32);

/// The fields of a message's header, which arrives before the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender, as the transport identifies it.
    pub peer: PeerKey,
    /// The sender's address handle, or `None` while the sender is not in the address vector.
    pub source: Option<FiAddr>,
    /// The tag; `None` for an untagged message, which only untagged receives accept.
    pub tag: Option<u64>,
    /// Length of the message in bytes.
    pub len: usize,
    /// CQ data of the sender (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// The message's place in arrival order, from
    /// [`Matcher::next_arrival`](super::Matcher::next_arrival).
    pub arrival: u64,
    /// The ack that the sender requests, if any.
    pub ack: Option<AckRequest>,
}

/// A request of the sender for an ack of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRequest {
    /// The id of the ack, which the sender chose. The receiver sends the ack once.
    pub ack_id: u32,
    /// The event to acknowledge.
    pub level: CompletionLevel,
}

/// The messages that a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvSpec {
    /// Accepts only messages of this source (`FI_DIRECTED_RECV`); `None` accepts any source, in the
    /// address vector or not.
    pub from: Option<FiAddr>,
    /// The accepted tags; `None` for a receive on the untagged queue.
    pub tag: Option<TagMatch>,
}

/// The tags that a receive accepts: `t` is accepted when `(t ^ tag) & !ignore == 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMatch {
    /// The wanted tag.
    pub tag: u64,
    /// Bits of the tag that are not compared. 0 accepts exactly `tag`, all ones accepts any tag.
    pub ignore: u64,
}

/// The fields of an envelope that matching compares.
#[derive(Clone, Copy)]
pub(super) struct EnvelopeKey {
    pub(super) tag: u64,
    pub(super) source: Option<FiAddr>,
}

/// The fields of a receive that matching compares.
///
/// Tagged and untagged receives are in separate queues. An untagged receive is stored as one that
/// ignores all bits of the tag, so that one comparison serves both queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvKey {
    pub(super) tag: TagMatch,
    pub(super) from: Option<FiAddr>,
}

impl TagMatch {
    /// Accepts any tag.
    pub(super) const ANY: Self = Self {
        tag: 0,
        ignore: u64::MAX,
    };

    /// Returns whether a message with this tag is accepted.
    #[must_use]
    #[inline]
    pub fn accepts(self, tag: u64) -> bool {
        (tag ^ self.tag) & !self.ignore == 0
    }
}

impl RecvKey {
    /// Returns whether this receive accepts the message, given that both are tagged or both
    /// untagged.
    #[inline]
    pub(super) fn accepts(&self, message: EnvelopeKey) -> bool {
        // A directed receive does not accept a message of unknown source: `Some` equals no `None`.
        self.tag.accepts(message.tag) && (self.from.is_none() || self.from == message.source)
    }
}

impl Envelope {
    /// Returns the queue of the message.
    pub(super) fn kind(&self) -> QueueKind {
        if self.tag.is_some() {
            QueueKind::Tagged
        } else {
            QueueKind::Untagged
        }
    }

    /// Returns the fields that matching compares.
    pub(super) fn key(&self) -> EnvelopeKey {
        EnvelopeKey {
            tag: self.tag.unwrap_or(0),
            source: self.source,
        }
    }
}

impl RecvSpec {
    /// Returns whether a receive with this spec accepts the message.
    #[must_use]
    pub fn accepts(&self, envelope: &Envelope) -> bool {
        self.tag.is_some() == envelope.tag.is_some() && self.key().accepts(envelope.key())
    }

    /// Returns the queue of the receive.
    pub(super) fn kind(&self) -> QueueKind {
        if self.tag.is_some() {
            QueueKind::Tagged
        } else {
            QueueKind::Untagged
        }
    }

    /// Returns the fields that matching compares.
    pub(super) fn key(&self) -> RecvKey {
        RecvKey {
            tag: self.tag.unwrap_or(TagMatch::ANY),
            from: self.from,
        }
    }
}
