//! What an endpoint has done, and how it stands.

use fabric_core::stats::ProviderStats;

use super::super::incoming::Incoming;
use super::Endpoint;

impl Endpoint {
    pub(crate) fn stats(&self) -> ProviderStats {
        let mut done = self.done;
        self.each(|outgoing| done += outgoing.done());
        let peers = || self.callers.peers();
        ProviderStats {
            sent: done.sent,
            written: done.written,
            atomics: done.atomics,
            doorbells: done.doorbells + peers().map(|peer| peer.doorbells).sum::<u64>(),
            lent: done.lent,
            pieces: done.pieces,
            single_copy: done.single_copy,
            fetched: peers().filter_map(Incoming::fetched).fold(
                done.fetched,
                |mut sum, fetched| {
                    sum += fetched;
                    sum
                },
            ),
            peers: peers().count(),
            unexpected: self.rx.own.unexpected(),
            ..ProviderStats::default()
        }
    }

    pub(crate) fn describe(&self) -> String {
        let (messages, bytes) = self.rx.own.unexpected();
        let read = self
            .callers
            .peers()
            .filter(|peer| peer.fetched().is_some())
            .count();
        let mut reading = 0;
        self.each(|outgoing| reading += usize::from(outgoing.is_reached()));
        format!(
            "{} ({} callers, {} attended, {} connections, {messages} unexpected messages of {bytes} bytes, \
             single copy {}, from {read} and to {reading} of them)",
            self.name,
            self.callers.len(),
            self.callers.attended(),
            self.dialled.len(),
            self.means.fetched,
        )
    }
}
