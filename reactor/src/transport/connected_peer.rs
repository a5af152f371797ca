//! A connected peer, as the receive queue and the engine know it.

use fabric_core::matching::PeerKey;
use fabric_core::transport::{EndpointContext, EngineContext, Incarnation};
use fabric_core::{Address, FiAddr};

/// A connected peer: its key in the receive queue, and its address handles.
#[derive(Debug, Default)]
pub(crate) struct ConnectedPeer {
    key: PeerKey,
    /// The address handle now; `None` if the peer is not in the address vector. A connected
    /// endpoint has none: the messages of its peer have no source.
    source: Option<FiAddr>,
    /// The address handle when the peer connected, which auto-insertion may have created.
    addr_at_connect: Option<FiAddr>,
}

impl ConnectedPeer {
    /// Adds a peer with this name to the receive queue: under `key`, or under the key that a shared
    /// queue assigns.
    pub(crate) fn connect(
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        key: PeerKey,
        name: &Address,
    ) -> Self {
        Self {
            key: ctx.connect_peer(key, name),
            source: None,
            addr_at_connect: None,
        }
    }

    /// Reports the peer of a connectionless endpoint to the engine, and gets its address handle.
    pub(crate) fn report_connected(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        name: &Address,
        incarnation: Option<Incarnation>,
    ) {
        self.addr_at_connect = ctx.peer_connected(name, incarnation);
        self.source = self.addr_at_connect;
    }

    /// Reports the peer to the engine as disconnected.
    pub(crate) fn report_disconnected(&self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        ctx.peer_disconnected(self.addr_at_connect);
    }

    /// Returns the key of the peer in the receive queue.
    pub(crate) fn key(&self) -> PeerKey {
        self.key
    }

    /// Returns the address handle of the peer, which completions and events report as source.
    #[inline]
    pub(crate) fn source(&self) -> Option<FiAddr> {
        self.source
    }

    /// Returns the key and the address handle, which identify the peer as the sender of messages.
    #[inline]
    pub(crate) fn sender(&self) -> (PeerKey, Option<FiAddr>) {
        (self.key, self.source)
    }

    /// Returns whether the peer had this address handle when it connected.
    pub(crate) fn had_at_connect(&self, addr: FiAddr) -> bool {
        self.addr_at_connect == Some(addr)
    }

    /// Assigns an address handle that was inserted to the peer and its unconsumed messages, unless
    /// the peer has a handle.
    pub(crate) fn assign_source(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        addr: FiAddr,
    ) {
        if self.source.is_none() {
            self.source = Some(addr);
            ctx.assign_source(self.key, addr);
        }
    }

    /// Removes an address handle that is no longer valid.
    pub(crate) fn on_address_removed(&mut self, addr: FiAddr) {
        self.source = self.source.filter(|source| *source != addr);
    }
}
