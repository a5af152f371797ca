//! Work that calls of transports and receive queues leave behind.

use std::collections::VecDeque;

use fabric_core::FiAddr;
use fabric_core::transport::EpId;

use super::bindings::AvId;

/// Work that a call requested and that needs the transport again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowUp {
    /// Grant credits to waiting operations: the endpoint has got a credit back.
    GrantCredits(EpId),
    /// Announce an auto-inserted address to the endpoints of its vector.
    PublishAddr(AvId, FiAddr),
    /// Release an auto-inserted address if its peer has left and no message of it remains.
    ReleaseAddr(AvId, FiAddr),
    /// Start the timer that checks which arriving messages make progress.
    StartArrivalTimer,
    /// Make a pass: messages or accesses that were held may be accepted now.
    MakePass,
}

/// Work that calls leave for the end of the call, for the next pass, or for the driver.
#[derive(Debug, Default)]
pub(crate) struct PendingWork {
    follow_ups: VecDeque<FollowUp>,
    needs_pass: bool,
    needs_rearm: bool,
    /// Endpoints that may have batched messages which no pass has sent yet.
    batched: Vec<EpId>,
}

impl PendingWork {
    /// Adds work for the end of the call.
    pub(crate) fn push(&mut self, follow_up: FollowUp) {
        self.follow_ups.push_back(follow_up);
    }

    /// Takes the oldest work for the end of the call.
    pub(crate) fn pop(&mut self) -> Option<FollowUp> {
        self.follow_ups.pop_front()
    }

    /// Returns whether there is work for the end of the call.
    #[inline]
    pub(crate) fn has_follow_ups(&self) -> bool {
        !self.follow_ups.is_empty()
    }

    /// Requests a further pass, also if no task waits.
    pub(crate) fn request_pass(&mut self) {
        self.needs_pass = true;
    }

    /// Returns whether a further pass was requested since the last one began.
    #[inline]
    pub(crate) fn needs_pass(&self) -> bool {
        self.needs_pass
    }

    /// Notes that a pass begins, which also writes the batched messages.
    #[inline]
    pub(crate) fn begin_pass(&mut self) {
        self.needs_pass = false;
        self.batched.clear();
    }

    /// Notes that an endpoint has batched a message.
    pub(crate) fn add_batched(&mut self, ep: EpId) {
        if !self.batched.contains(&ep) {
            self.batched.push(ep);
        }
    }

    /// Returns whether an endpoint may have batched messages that no pass has sent yet.
    #[inline]
    pub(crate) fn has_batched(&self) -> bool {
        !self.batched.is_empty()
    }

    /// Takes the endpoints that may have batched messages.
    pub(crate) fn take_batched(&mut self) -> Vec<EpId> {
        std::mem::take(&mut self.batched)
    }

    /// Requests that the domain is armed again, or that its driver is woken if a pass has work.
    pub(crate) fn request_rearm(&mut self) {
        self.needs_rearm = true;
    }

    /// Returns whether the doorbells must be armed again, and forgets it.
    #[inline]
    pub(crate) fn take_rearm(&mut self) -> bool {
        std::mem::take(&mut self.needs_rearm)
    }
}
