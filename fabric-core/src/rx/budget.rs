//! Bytes that unexpected messages use.

use crate::matching::PeerKey;

/// Bytes that each unexpected message uses in addition to its length.
pub(super) const UNEXPECTED_OVERHEAD: usize = 128;

/// The bytes that unexpected and claimed messages use, and their limit.
///
/// Each charge names the peer that has sent the message. Today all peers share one limit.
#[derive(Debug)]
pub(super) struct UnexpectedBudget {
    limit: usize,
    /// A probed message may exceed the limit.
    used: usize,
}

impl UnexpectedBudget {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0 }
    }

    /// Raises the limit to `limit` bytes, if it is smaller.
    pub(super) fn raise(&mut self, limit: usize) {
        self.limit = self.limit.max(limit);
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns whether there is room for a message of `len` bytes of this peer.
    pub(super) fn fits(&self, _: PeerKey, len: usize) -> bool {
        self.could_fit(len) && self.used + len + UNEXPECTED_OVERHEAD <= self.limit
    }

    /// Returns whether an unused budget has room for a message of `len` bytes.
    pub(super) fn could_fit(&self, len: usize) -> bool {
        len.saturating_add(UNEXPECTED_OVERHEAD) <= self.limit
    }

    /// Charges a message of this peer.
    pub(super) fn charge(&mut self, _: PeerKey, bytes: usize) {
        self.used += bytes;
    }

    /// Gives back what a message of this peer was charged.
    pub(super) fn release(&mut self, _: PeerKey, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Gives back everything.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}
