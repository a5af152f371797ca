//! The epoll tokens of an endpoint's descriptors.

use fabric_core::transport::{EpId, WaitToken};

/// A watched descriptor of an endpoint or passive endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShmToken {
    Listener,
    /// Socket of the incoming connection or pending handshake with this `rx_index`.
    Rx(u32),
    /// Socket of the connection to a peer with this `tx_index`.
    Tx(u32),
    /// Timer of a connection attempt or of a passive endpoint.
    Timer,
}

impl ShmToken {
    /// Packs the endpoint and the descriptor into an epoll token.
    pub(super) fn pack(self, ep: EpId) -> u64 {
        let (kind, id) = match self {
            Self::Listener => (0, 0),
            Self::Rx(id) => (1, id),
            Self::Tx(id) => (2, id),
            Self::Timer => (3, 0),
        };
        WaitToken { kind, ep, id }.pack()
    }
}

impl From<WaitToken> for ShmToken {
    fn from(token: WaitToken) -> Self {
        match token.kind {
            0 => Self::Listener,
            1 => Self::Rx(token.id),
            2 => Self::Tx(token.id),
            _ => Self::Timer,
        }
    }
}
