//! Counters and the description of an endpoint.

use fabric_core::stats::TransportStats;

use super::super::rx_connection::RxConnection;
use super::ShmEndpoint;

impl ShmEndpoint {
    pub(crate) fn stats(&self) -> TransportStats {
        let mut done = self.counters;
        self.for_each_tx(|tx| done += tx.counters());
        let peers = || self.rx_connections.peers();
        TransportStats {
            sent: done.sent,
            written: done.written,
            atomics: done.atomics,
            doorbells: done.doorbells + peers().map(|peer| peer.doorbells).sum::<u64>(),
            loaned: done.loaned,
            segmented: done.segmented,
            single_copy_tx: done.single_copy_tx,
            single_copy_rx: peers().filter_map(RxConnection::cma_stats).fold(
                done.single_copy_rx,
                |mut sum, stats| {
                    sum += stats;
                    sum
                },
            ),
            peers: peers().count(),
            ..TransportStats::default()
        }
    }

    pub(crate) fn describe(&self) -> String {
        let cma_peers = self
            .rx_connections
            .peers()
            .filter(|peer| peer.cma_stats().is_some())
            .count();
        let mut cma_connections = 0;
        self.for_each_tx(|tx| cma_connections += usize::from(tx.uses_cma()));
        format!(
            "{} ({} incoming connections, {} active, {} outgoing, single copy: {}, \
             from {cma_peers} and to {cma_connections} peers)",
            self.name,
            self.rx_connections.len(),
            self.rx_connections.active_count(),
            self.tx_indices.len(),
            self.tx_settings.single_copy,
        )
    }
}
