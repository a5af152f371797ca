//! Counters and the description of an endpoint.

use fabric_core::stats::TransportStats;

use super::ShmEndpoint;

impl ShmEndpoint {
    pub(crate) fn stats(&self) -> TransportStats {
        let mut total = self.counters;
        self.for_each_tx(|tx| total += tx.counters());
        for peer in self.rx_connections.established() {
            total.doorbells += peer.doorbells;
            total.single_copy_rx += peer.cma_stats().unwrap_or_default();
        }
        TransportStats {
            sent: total.sent,
            written: total.written,
            atomics: total.atomics,
            doorbells: total.doorbells,
            loaned: total.loaned,
            segmented: total.segmented,
            single_copy_tx: total.single_copy_tx,
            single_copy_rx: total.single_copy_rx,
            peers: self.rx_connections.established().count(),
            ..TransportStats::default()
        }
    }

    pub(crate) fn describe(&self) -> String {
        let cma_peers = self
            .rx_connections
            .established()
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
