//! What a connection receives: read, and shown to its inbox.

use fabric_core::event::DownReason;
use fabric_core::provider::Host;
use fabric_core::rx::RxContext;
use fabric_core::tcp::Patience;

use super::super::socket::Received;
use super::Link;
use super::sending::COLLECTED;

/// Looks at a connection that another one replaces: enough for all that a socket keeps.
const LAST_LOOKS: u32 = 64;

/// Bytes that were read and not taken. They are not moved while they are taken a few at a time.
#[derive(Debug)]
pub(super) struct Rest {
    bytes: Vec<u8>,
    /// So many of them were taken.
    taken: usize,
}

impl Rest {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, taken: 0 }
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// The first of them were taken.
    fn take(&mut self, count: usize) {
        self.taken += count;
        if self.is_empty() {
            self.replace(&[]);
        }
    }

    fn replace(&mut self, bytes: &[u8]) {
        self.taken = 0;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }
}

impl Link {
    /// Takes in what has come. Returns whether anything has.
    pub(crate) fn pump(
        &mut self,
        scratch: &mut [u8],
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> bool {
        let who = (self.key, self.source);
        if self.held && !self.inbox.is_wanted(self.rest.left(), who, rx, host) {
            return false;
        }
        let is_aside = self.inbox.has_aside() && self.inbox.is_aside_wanted(who, rx);
        if self.is_clogged() || self.ended.is_some() && self.rest.is_empty() && !is_aside {
            self.rest_from_reading();
            return false;
        }
        let was_put_off = std::mem::take(&mut self.is_put_off);
        let mut have = self.rest.left().len();
        let mut news = self.held | is_aside | was_put_off | std::mem::take(&mut self.is_fresh);
        if !was_put_off {
            scratch[..have].copy_from_slice(self.rest.left());
        }
        if !self.held && !was_put_off && self.ended.is_none() {
            match self.read(&mut scratch[have..]) {
                Received::Nothing => {}
                Received::Bytes(count) => {
                    have += count;
                    news = true;
                }
                Received::End => {
                    let is_whole = self.rest.is_empty() && !self.inbox.is_arriving();
                    self.end(if is_whole {
                        DownReason::Closed
                    } else {
                        DownReason::Died
                    });
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
        self.inbox.be_patient(match (self.ended, was_put_off) {
            (Some(_), _) => Patience::None,
            (None, true) => Patience::Spent,
            (None, false) => Patience::Left,
        });
        let bytes = if was_put_off {
            self.rest.left()
        } else {
            &scratch[..have]
        };
        let (used, held) = match self.inbox.take(bytes, who, rx, host) {
            Ok(taken) => {
                (self.is_fresh, self.is_put_off) = (taken.is_full, taken.is_put_off);
                if self.is_deaf || self.is_cut {
                    // Nobody is answered any more, however much is asked.
                    self.inbox.replies.give_up();
                } else {
                    taken
                        .owed
                        .into_iter()
                        .for_each(|owed| self.outbox.acknowledge(owed));
                    taken
                        .fetched
                        .into_iter()
                        .for_each(|message| self.outbox.fetched(message));
                }
                (taken.bytes, taken.held)
            }
            Err(broken) => {
                self.end(DownReason::Protocol(broken.0));
                (have, false)
            }
        };
        if was_put_off {
            self.rest.take(used);
        } else {
            self.rest.replace(&scratch[used..have]);
        }
        self.held = held;
        self.rest_or_watch();
        true
    }

    /// Takes in what has come so far, because the connection is to end from here: within a bound,
    /// and as far as there is room.
    pub(crate) fn take_rest(
        &mut self,
        scratch: &mut [u8],
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) {
        if self.is_read() {
            self.read_at_once();
        }
        for _ in 0..LAST_LOOKS {
            if self.ended.is_some() || !self.pump(scratch, rx, host) {
                break;
            }
        }
    }

    /// Takes in what was left for another look, because there will be none.
    pub(crate) fn look_again(&mut self, rx: &mut RxContext, host: &mut dyn Host) {
        if std::mem::take(&mut self.is_put_off) {
            self.inbox.be_patient(Patience::None);
            // What is wrong with it, or has no room, ends with the connection.
            let _ = self
                .inbox
                .take(self.rest.left(), (self.key, self.source), rx, host);
        }
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
