//! Operations that have several places in the peer's memory.
//!
//! The spec of such an operation says where it is now. It goes through its places twice: first each
//! is checked, and mapped or known to be served by then; then the bytes move. So what can be
//! refused is refused before anything has moved. An operation with one place goes through it once.

use fabric_core::provider::{Host, SendSpec};

use super::Queued;

/// How far an operation is among its places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stop {
    /// The place that its spec tells of, by number.
    place: usize,
    /// Bytes of the places before that.
    pub(super) before: usize,
    /// The places have been checked.
    checked: bool,
    /// Bytes of which the peer has been told.
    pub(super) told: usize,
}

/// The spec of an operation that begins: at the first of its places.
pub(crate) fn at_first(spec: &SendSpec, host: &dyn Host) -> SendSpec {
    let first = spec
        .spread
        .and_then(|spread| host.places(spread).first().copied());
    SendSpec {
        remote: first.or(spec.remote),
        ..*spec
    }
}

impl Stop {
    /// Whether the place is only to be checked.
    pub(super) fn is_check(&self, spec: &SendSpec) -> bool {
        spec.spread.is_some() && !self.checked
    }
}

impl Queued {
    /// What the peer is told at this place: data comes with the last.
    pub(super) fn told_of(&self, host: &dyn Host) -> SendSpec {
        let is_last =
            |spread| self.stop.checked && self.stop.place + 1 == host.places(spread).len();
        let data = self
            .spec
            .data
            .filter(|_| self.spec.spread.is_none_or(is_last));
        SendSpec { data, ..self.spec }
    }

    /// How many bytes the peer is told of at this place. What comes with data stands for all it was
    /// not told of before.
    pub(super) fn to_tell(&self, spec: &SendSpec) -> usize {
        let since = if spec.data.is_some() {
            self.stop.told
        } else {
            self.stop.before
        };
        self.sent - since
    }

    /// This place was dealt with: goes on to the next, or ends.
    pub(super) fn next_place(&mut self, host: &dyn Host) {
        let places = self
            .spec
            .spread
            .map_or(&[][..], |spread| host.places(spread));
        self.stop.before = self.sent;
        self.stop.place += 1;
        if self.stop.place >= places.len() {
            if self.stop.checked || places.is_empty() {
                self.total = Some(self.sent);
                return;
            }
            self.stop.checked = true;
            self.stop.place = 0;
        }
        self.spec.remote = Some(places[self.stop.place]);
    }
}
