//! What a message shows before its bytes, what a receive asks for, and the one place where the two
//! are compared.

use crate::address::FiAddr;
use crate::completion::CompletionLevel;

use super::list::QueueKind;

/// Which sender a message came from, in the provider's own numbering.
///
/// Unlike a [`FiAddr`] it exists for senders nobody has inserted into the address vector. It means
/// whatever the provider says, for as long as the provider says so; matching only compares it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u32);

/// What is known of a message before its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender, as the provider numbers it.
    pub peer: PeerKey,
    /// The sender's address, or `None` while it is not in the address vector.
    pub source: Option<FiAddr>,
    /// The tag; `None` for an untagged message, which only untagged receives can take.
    pub tag: Option<u64>,
    /// Length of the message in bytes.
    pub len: usize,
    /// Remote completion data, when the sender gave some.
    pub data: Option<u64>,
    /// The message's place in arrival order, from
    /// [`Matcher::next_arrival`](super::Matcher::next_arrival).
    pub arrival: u64,
    /// What the sender waits for, if it does.
    pub ack: Option<AckRequest>,
}

/// The sender waits for word of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRequest {
    /// Which word, by the sender's numbering. It is said once.
    pub number: u32,
    /// What it says.
    pub level: CompletionLevel,
}

/// What a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvSpec {
    /// Only messages of this source (`FI_DIRECTED_RECV`); `None` takes them from anybody, known or
    /// not.
    pub from: Option<FiAddr>,
    /// The tags to take; `None` for a receive on the untagged queue.
    pub tag: Option<TagMatch>,
}

/// The tags a receive accepts: `t` is accepted when `(t ^ tag) & !ignore == 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMatch {
    /// The wanted tag.
    pub tag: u64,
    /// Bits of the tag that do not count. 0 asks for exactly `tag`, all ones takes any tag.
    pub ignore: u64,
}

/// The part of an envelope that a scan compares.
#[derive(Clone, Copy)]
pub(super) struct EnvelopeKey {
    pub(super) tag: u64,
    pub(super) source: Option<FiAddr>,
}

/// The part of a receive that a scan compares.
///
/// The untagged queue holds untagged entries only, so an untagged receive is written as one that
/// ignores every bit: one comparison serves both queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvKey {
    tag: u64,
    ignore: u64,
    pub(super) from: Option<FiAddr>,
}

impl RecvKey {
    /// Whether this receive takes this message, given that both are of one kind.
    #[inline]
    pub(super) fn accepts(&self, shown: EnvelopeKey) -> bool {
        // A message of unknown source equals no `Some`, which keeps it from directed receives.
        (shown.tag ^ self.tag) & !self.ignore == 0
            && (self.from.is_none() || self.from == shown.source)
    }
}

impl Envelope {
    pub(super) fn kind(&self) -> QueueKind {
        if self.tag.is_some() {
            QueueKind::Tagged
        } else {
            QueueKind::Untagged
        }
    }

    pub(super) fn key(&self) -> EnvelopeKey {
        EnvelopeKey {
            tag: self.tag.unwrap_or(0),
            source: self.source,
        }
    }
}

impl RecvSpec {
    /// Whether a receive like this takes this message.
    #[must_use]
    pub fn accepts(&self, envelope: &Envelope) -> bool {
        self.tag.is_some() == envelope.tag.is_some() && self.key().accepts(envelope.key())
    }

    pub(super) fn kind(&self) -> QueueKind {
        if self.tag.is_some() {
            QueueKind::Tagged
        } else {
            QueueKind::Untagged
        }
    }

    pub(super) fn key(&self) -> RecvKey {
        let TagMatch { tag, ignore } = self.tag.unwrap_or(TagMatch {
            tag: 0,
            ignore: u64::MAX,
        });
        RecvKey {
            tag,
            ignore,
            from: self.from,
        }
    }
}
