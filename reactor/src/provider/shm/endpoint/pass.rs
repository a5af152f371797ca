//! A pass over the callers: what they have sent goes to where the endpoint receives.

use fabric_core::event::DownReason;
use fabric_core::provider::Host;
use fabric_core::rx::RxContext;

use super::super::callers::Callers;
use super::super::incoming::Incoming;
use super::Endpoint;

/// What a pass over the callers has found.
#[derive(Default)]
struct Found {
    moved: bool,
    /// The oldest message of one of them waits for a receive.
    held: bool,
    /// Those that have ended, and what was wrong with what they wrote.
    over: Vec<(usize, Option<&'static str>)>,
}

impl Found {
    /// Takes what callers have sent: of the attended, and of one of those left alone.
    #[inline(always)] // on the way of a small message
    fn pass(&mut self, callers: &mut Callers, rx: &mut RxContext, host: &mut dyn Host) {
        let mut number = 0;
        let pass = callers.begin_pass();
        while let Some((at, peer)) = callers.attended_mut(number) {
            if self.pump(at, peer, rx, host) {
                peer.heard = pass;
            }
            number += 1;
        }
        if let Some(at) = callers.next_alone() {
            self.visit(at, callers, rx, host);
        }
    }

    #[cold]
    fn visit(&mut self, at: usize, callers: &mut Callers, rx: &mut RxContext, host: &mut dyn Host) {
        let Some(peer) = callers.get(at) else { return };
        let moved = self.pump(at, peer, rx, host);
        callers.visited(at, moved);
    }

    /// Takes what this caller has sent; true when there was something.
    #[inline(always)] // on the way of a small message
    fn pump(
        &mut self,
        at: usize,
        peer: &mut Incoming,
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> bool {
        let news = match peer.pump(rx, host) {
            Ok(news) => news,
            Err(broken) => {
                self.over.push((at, Some(broken.0)));
                false
            }
        };
        self.moved |= news;
        self.held |= peer.is_held();
        if peer.down().is_some() && peer.is_drained() {
            self.over.push((at, None));
        }
        news
    }
}

impl Endpoint {
    /// Takes what callers have sent.
    #[inline(always)] // on the way of a small message
    pub(super) fn pump_callers(&mut self, host: &mut dyn Host) -> bool {
        let mut found = Found::default();
        if self.rx.is_shared() {
            self.pump_to_others(&mut found, host);
        } else {
            found.pass(&mut self.callers, &mut self.rx.own, host);
        }
        self.held = found.held;
        self.confirm();
        if !found.over.is_empty() {
            self.end_callers(found.over, host);
            return true;
        }
        found.moved
    }

    /// Takes it to where others take theirs as well.
    #[cold]
    fn pump_to_others(&mut self, found: &mut Found, host: &mut dyn Host) {
        let callers = &mut self.callers;
        self.rx.with(|rx| found.pass(callers, rx, host));
    }

    #[cold]
    fn end_callers(&mut self, over: Vec<(usize, Option<&'static str>)>, host: &mut dyn Host) {
        for (at, broken) in over {
            if let Some(what) = broken {
                self.caller_ended(host, at, DownReason::Protocol(what));
            }
            self.end_caller(host, at);
        }
    }

    /// A message that waited for a receive may be taken now.
    #[cold]
    pub(super) fn pump_held(&mut self, host: &mut dyn Host) {
        self.pump_callers(host);
        host.unsettled();
    }
}
