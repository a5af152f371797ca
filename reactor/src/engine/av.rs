//! Address vectors: address handles, auto-inserted peers, and announcing changes to endpoints.
//!
//! An address handle carries a generation and the id of its vector, so a stale or foreign handle is
//! an error and never another peer.
//!
//! An auto-inserted peer gets its handle when it connects. The handle belongs to that one endpoint,
//! not to its name: a restarted client that opens an endpoint under the name gets another handle,
//! while messages of the first endpoint keep theirs. When the last connection of the peer has
//! ended, the handle is *departing*; it is released when no message of the peer waits at an
//! endpoint and none is in a completed receive that was not taken. So the source of a received
//! message never dangles, even if the peer is gone.

use fabric_core::av::AddressTable;
use fabric_core::transport::EpId;
use fabric_core::{Address, FiAddr, Result};

use super::domain::DomainHandle;
use super::progress::{CallEnd, EngineState};
use super::state::bindings::AvId;

/// The addresses that are inserted before the lock is released: a long list delays no other task
/// for long.
const INSERTS_PER_LOCK: usize = 64;

impl EngineState {
    /// Inserts an address for the program, and announces its handle.
    pub(crate) fn insert_address(&mut self, av: AvId, address: &Address) -> Result<(FiAddr, bool)> {
        let (addr, is_new) = self.domain.avs.insert(av, address)?;
        self.publish_addr(av, addr);
        Ok((addr, is_new))
    }

    /// Announces a new handle to the endpoints bound to a vector.
    pub(crate) fn publish_addr(&mut self, av: AvId, addr: FiAddr) {
        let vector = self.domain.avs.get(av);
        let address = vector.and_then(|vector| vector.table().get(addr).cloned());
        let Ok(address) = address else { return };
        for ep in self.domain.endpoints.bound_to_av(av) {
            self.address_inserted(ep, addr, &address);
        }
    }

    /// Removes a handle from its vector and from the endpoints bound to it.
    pub(crate) fn remove_address(&mut self, av: AvId, addr: FiAddr) -> Result<Address> {
        let address = self.domain.avs.remove(av, addr)?;
        for ep in self.domain.endpoints.bound_to_av(av) {
            self.address_removed(ep, addr);
        }
        Ok(address)
    }

    /// Removes a departing handle unless a message of its peer has still to be consumed.
    pub(crate) fn release_addr(&mut self, av: AvId, addr: FiAddr) {
        let endpoints = self.domain.endpoints.bound_to_av(av);
        let is_due = self.domain.avs.vector_of_departing(addr).is_some()
            && !self.domain.ops.has_unconsumed(&endpoints, addr)
            && !endpoints
                .iter()
                .any(|&ep| self.holds_messages_from(ep, addr));
        if is_due {
            // The handle was departing a moment ago under the same lock, so it exists.
            let _ = self.remove_address(av, addr);
        }
    }

    /// Reports a new handle to an endpoint or shared context.
    fn address_inserted(&mut self, ep: EpId, addr: FiAddr, address: &Address) {
        if !self.endpoints.is_shared_context(ep) {
            let _ = self.with_transport(ep, |transport, ctx| {
                transport.address_inserted(ctx, addr, address);
            });
        }
        if let Some(rx) = self.endpoints.own_rx_mut(ep)
            && rx.address_inserted(&mut self.domain, addr, address)
        {
            let _ = self.after_rx_change(ep);
        }
    }

    /// Reports to an endpoint or shared context that a handle is no longer valid.
    fn address_removed(&mut self, ep: EpId, addr: FiAddr) {
        // An endpoint that shares a queue has none of its own.
        if let Some(rx) = self.endpoints.own_rx_mut(ep) {
            rx.clear_source(&mut self.domain, addr);
        }
        if !self.endpoints.is_shared_context(ep) {
            let _ = self.with_transport(ep, |transport, ctx| {
                transport.address_removed(ctx, addr);
            });
        }
        // A receive that fails makes room for messages that were held for it.
        let _ = self.after_rx_change(ep);
    }

    /// Returns whether a message with this source waits at an endpoint or shared context.
    fn holds_messages_from(&mut self, ep: EpId, source: FiAddr) -> bool {
        let queue = self.endpoints.rx_mut(ep);
        queue.is_some_and(|rx| rx.holds_messages_from(source))
    }
}

impl DomainHandle {
    /// Opens an address vector (`fi_av_open`). With `auto_insert`, a peer that connects gets a
    /// handle, which is removed after the peer has disconnected.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`](fabric_core::Error::ConcurrentUse).
    pub fn open_av(&self, auto_insert: bool) -> Result<AvId> {
        Ok(self.lock_or_refuse()?.domain.avs.open(auto_insert))
    }

    /// Opens a copy of a vector, with the same handles. The caller applies each later change of the
    /// vector to the copy, in the same order; then the copy assigns the same handles.
    pub fn open_av_copy(&self, table: AddressTable) -> (AvId, CallEnd) {
        let mut state = self.engine().lock();
        let id = state.domain.avs.open_copy(table);
        (id, state.finish_later())
    }

    /// Returns the addresses of a vector with their handles, for [`open_av_copy`] in another
    /// engine.
    ///
    /// [`open_av_copy`]: Self::open_av_copy
    ///
    /// # Errors
    /// [`Error::Closed`](fabric_core::Error::Closed);
    /// [`Error::Invalid`](fabric_core::Error::Invalid) when connections insert peers into the
    /// vector.
    pub fn copy_av(&self, av: AvId) -> Result<AddressTable> {
        self.engine().lock_for_progress().domain.avs.copy(av)
    }

    /// Closes an address vector.
    pub fn close_av(&self, id: AvId) {
        self.engine().lock().domain.avs.close(id);
    }

    /// Inserts the addresses, and returns for each, in their order, its handle and whether it is
    /// new to the vector (`fi_av_insert` with `FI_SYNC_ERR`). The error of an entry stays, and an
    /// address that cannot be inserted becomes an error. An insertion takes the same time whatever
    /// the number of addresses in the vector.
    pub fn insert_addresses(
        &self,
        av: AvId,
        addresses: &[Result<Address>],
    ) -> (Vec<Result<(FiAddr, bool)>>, Vec<CallEnd>) {
        let mut inserted = Vec::with_capacity(addresses.len());
        let mut ends = Vec::new();
        for chunk in addresses.chunks(INSERTS_PER_LOCK) {
            match self.lock_or_refuse() {
                Ok(mut state) => {
                    inserted.extend(chunk.iter().map(|address| {
                        let address = address.as_ref().map_err(Clone::clone)?;
                        state.insert_address(av, address)
                    }));
                    ends.push(state.finish_later());
                }
                Err(error) => inserted.extend(chunk.iter().map(|_| Err(error.clone()))),
            }
        }
        (inserted, ends)
    }

    /// Removes an address (`fi_av_remove`). Waits for another thread in the domain, as a close.
    ///
    /// # Errors
    /// [`Error::StaleAddress`](fabric_core::Error::StaleAddress).
    pub fn remove_address(&self, av: AvId, addr: FiAddr) -> (Result<Address>, CallEnd) {
        let mut locked = self.engine().lock();
        let removed = locked.remove_address(av, addr);
        (removed, locked.finish_later())
    }

    /// Returns the address behind a handle (`fi_av_lookup`).
    ///
    /// # Errors
    /// [`Error::StaleAddress`](fabric_core::Error::StaleAddress).
    pub fn address_of(&self, av: AvId, addr: FiAddr) -> Result<Address> {
        let locked = self.engine().lock();
        locked.domain.avs.get(av)?.table().get(addr).cloned()
    }

    /// Returns every address of a vector with its handle.
    #[must_use]
    pub fn addresses(&self, av: AvId) -> Vec<(FiAddr, Address)> {
        let locked = self.engine().lock();
        let vector = locked.domain.avs.get(av);
        let entries = vector.into_iter().flat_map(|vector| vector.table().iter());
        entries
            .map(|(addr, address)| (addr, address.clone()))
            .collect()
    }
}
