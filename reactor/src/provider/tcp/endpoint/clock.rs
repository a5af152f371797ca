//! What has its time: attempts, answers, pauses.

use std::time::Instant;

use fabric_core::provider::Host;

use super::super::greeting::Greeting;
use super::{Endpoint, PATIENCE, Peer, Stage};

impl Endpoint {
    /// Wakes when something is due.
    pub(super) fn set_clock(&self) {
        let stages = self.stages.iter().filter_map(|(_, stage)| stage.until());
        let again = self
            .peers
            .iter()
            .filter_map(|(_, peer)| peer.again.map(|(at, _)| at));
        let next = stages.chain(again).chain(self.accept_again).min();
        let Some(clock) = &self.clock else { return };
        clock.set(next.map(|next| next.saturating_duration_since(Instant::now())));
    }

    pub(super) fn tick(&mut self, host: &mut dyn Host) {
        let now = Instant::now();
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_on(host);
        }
        self.end_late(host, now);
        self.ask_again(host, now);
        self.set_clock();
    }

    /// Ends what has waited for too long.
    fn end_late(&mut self, host: &mut dyn Host, now: Instant) {
        let is_late = |stage: &Stage| stage.until().is_some_and(|until| until <= now);
        let late: Vec<_> = self
            .stages
            .iter()
            .filter(|(_, stage)| is_late(stage))
            .map(|(at, _)| at)
            .collect();
        for at in late {
            match self.stages.get(at) {
                Some(Stage::Asked(_)) => self.greeted(host, at, Greeting::Late),
                Some(Stage::Caller(caller)) => {
                    let error = caller.strange("it has not said who it is");
                    self.caller_over(host, at, error);
                }
                _ => {}
            }
        }
    }

    /// Asks those again that have refused.
    fn ask_again(&mut self, host: &mut dyn Host, now: Instant) {
        let due: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_due(now))
            .map(|(at, _)| at)
            .collect();
        for at in due {
            let again = self.peers[at].again;
            if self.peers[at].link.is_some() {
                self.peers[at].again = None;
            } else if let Err(error) = self.dial(at) {
                self.fail_sends(host, at, &error);
            } else {
                // The pause grows from where it was.
                self.peers[at].again = again.map(|(_, pause)| (now + PATIENCE, pause));
            }
        }
    }
}

impl Stage {
    /// When it has had its time, and is to be ended from here.
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Caller(caller) => Some(caller.until),
            Self::Asked(asked) => asked.ends(),
            Self::Up(_) => None,
        }
    }
}

impl Peer {
    fn is_due(&self, now: Instant) -> bool {
        self.again.is_some_and(|(at, _)| at <= now)
    }
}
