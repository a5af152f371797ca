//! Changes after which transports try again what they hold: remote accesses, and messages for
//! multi-receives.

/// Counts the changes after which a held access or message may be accepted.
#[derive(Debug, Default)]
pub(crate) struct AccessChanges {
    count: u64,
    /// Whether something is held because a completion queue was full.
    blocked_on_cq: bool,
}

impl AccessChanges {
    /// Returns a number that grows with each change.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Notes that a region was unlocked or closed, for which accesses may wait. The caller makes a
    /// pass.
    pub(crate) fn on_region_changed(&mut self) {
        self.count += 1;
    }

    /// Notes that something is held because a completion queue is full: a remote access by a
    /// peer, or a message for a multi-receive.
    pub(crate) fn block_on_cq(&mut self) {
        self.blocked_on_cq = true;
    }

    /// Notes that a completion queue has room or is closed. Returns whether something was held
    /// for that; a pass must follow then.
    #[inline]
    pub(crate) fn on_cq_space(&mut self) -> bool {
        let blocked = std::mem::take(&mut self.blocked_on_cq);
        self.count += u64::from(blocked);
        blocked
    }
}
