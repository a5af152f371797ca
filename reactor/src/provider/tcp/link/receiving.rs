//! What a connection receives: read, and shown to its inbox.

use fabric_core::event::DownReason;
use fabric_core::provider::Host;
use fabric_core::rx::RxContext;

use super::super::socket::Received;
use super::Link;
use super::sending::COLLECTED;

impl Link {
    /// Takes in what has come. Returns whether anything has.
    pub(crate) fn pump(&mut self, scratch: &mut [u8], rx: &mut RxContext, host: &mut dyn Host) -> bool {
        let who = (self.key, self.source);
        if self.held && !self.inbox.is_wanted(&self.rest, who, rx, host) {
            return false;
        }
        let is_aside = self.inbox.has_aside() && self.inbox.is_aside_wanted(who, rx);
        if self.is_clogged() || self.ended.is_some() && self.rest.is_empty() && !is_aside {
            self.rest_from_reading();
            return false;
        }
        let mut have = self.rest.len();
        scratch[..have].copy_from_slice(&self.rest);
        let mut news = self.held | is_aside | std::mem::take(&mut self.is_fresh);
        if !self.held && self.ended.is_none() {
            match self.read(&mut scratch[have..]) {
                Received::Nothing => {}
                Received::Bytes(count) => {
                    have += count;
                    news = true;
                }
                Received::End => {
                    let is_whole = self.rest.is_empty() && !self.inbox.is_arriving();
                    self.end(if is_whole { DownReason::Closed } else { DownReason::Died });
                }
                Received::Broken => self.end(DownReason::Died),
            }
        }
        if !news {
            self.quiet_passes = self.quiet_passes.saturating_add(1);
            self.looked();
            return self.ended.is_some();
        }
        self.quiet_passes = 0;
        let (used, held) = match self.inbox.take(&scratch[..have], who, rx, host) {
            Ok(taken) => {
                self.is_fresh = taken.is_full;
                if self.is_deaf || self.is_cut {
                    // Nobody is answered any more, however much is asked.
                    self.inbox.replies.give_up();
                } else {
                    taken.owed.into_iter().for_each(|owed| self.outbox.acknowledge(owed));
                    taken.fetched.into_iter().for_each(|message| self.outbox.fetched(message));
                }
                (taken.bytes, taken.held)
            }
            Err(broken) => {
                self.end(DownReason::Protocol(broken.0));
                (have, false)
            }
        };
        self.rest.clear();
        self.rest.extend_from_slice(&scratch[used..have]);
        self.held = held;
        self.rest_or_watch();
        true
    }

    /// Whoever lets answers pile up is not read from.
    pub(super) fn is_clogged(&self) -> bool {
        self.outbox.backlog() > 2 * COLLECTED || self.inbox.replies.is_full()
    }

    /// Whether what comes is read.
    pub(super) fn is_read(&self) -> bool {
        !self.held && !self.is_clogged() && self.ended.is_none()
    }
}
