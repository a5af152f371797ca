//! Address vectors: address handles and auto-inserted peers.

use std::collections::HashMap;

use fabric_core::av::AddressTable;
use fabric_core::transport::Incarnation;
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use super::bindings::AvId;
use super::domain_state::DomainState;
use super::id_map::IdMap;
use super::pending_work::FollowUp;

#[derive(Debug)]
pub(crate) struct Av {
    table: AddressTable,
    /// Whether a peer that connects is inserted, and removed after its last connection has ended.
    auto_insert: bool,
    /// The peers that were inserted because they connected.
    auto_inserted: HashMap<FiAddr, AutoInsertedPeer>,
    /// The same peers by incarnation and address.
    by_incarnation: HashMap<(Incarnation, Address), FiAddr>,
    /// The number of auto-inserted peers so far whose incarnation the transport did not know.
    unknown_incarnations: u64,
}

/// A peer that an auto-insert address vector inserted when it connected.
#[derive(Clone, Copy, Debug)]
struct AutoInsertedPeer {
    /// Assigned by this vector if the transport does not know the peer's incarnation.
    incarnation: Incarnation,
    is_incarnation_known: bool,
    connections: usize,
}

impl AutoInsertedPeer {
    /// Returns whether a peer that connects under the same name is this one.
    fn matches(&self, incarnation: Option<Incarnation>) -> bool {
        match incarnation {
            Some(incarnation) => incarnation == self.incarnation,
            // A name belongs to one endpoint at a time. An endpoint whose incarnation is known
            // sends its incarnation with every connection.
            None => !self.is_incarnation_known && self.connections > 0,
        }
    }
}

impl Av {
    pub(crate) fn new(auto_insert: bool) -> Self {
        Self::from_table(AddressTable::new(), auto_insert)
    }

    fn from_table(table: AddressTable, auto_insert: bool) -> Self {
        Self {
            table,
            auto_insert,
            auto_inserted: HashMap::new(),
            by_incarnation: HashMap::new(),
            unknown_incarnations: 0,
        }
    }

    #[inline]
    pub(crate) fn table(&self) -> &AddressTable {
        &self.table
    }

    /// Returns the endpoint incarnation behind a handle, if the handle is of an auto-inserted peer.
    pub(crate) fn incarnation_of(&self, addr: FiAddr) -> Option<Incarnation> {
        self.auto_inserted.get(&addr).map(|peer| peer.incarnation)
    }

    /// Returns the address at which the peer of a handle is reached.
    ///
    /// # Errors
    /// [`Error::StaleAddress`]; [`Error::PeerGone`] for a disconnected auto-inserted peer whose
    /// name now belongs to another endpoint.
    pub(crate) fn peer_address(&self, addr: FiAddr) -> Result<&Address> {
        let address = self.table.get(addr)?;
        let is_disconnected = |peer: &AutoInsertedPeer| peer.connections == 0;
        if self.auto_inserted.get(&addr).is_some_and(is_disconnected)
            && self
                .table
                .find(address)
                .is_some_and(|current| current != addr)
        {
            return Err(Error::PeerGone(address.clone()));
        }
        Ok(address)
    }

    /// Finds the handle of a peer that connects, and counts the connection.
    fn find_connecting(
        &mut self,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr> {
        let found = self.table.find(address);
        if let Some(addr) = found {
            let Some(peer) = self.auto_inserted.get_mut(&addr) else {
                return Some(addr);
            };
            if peer.matches(incarnation) {
                peer.connections += 1;
                return Some(addr);
            }
        }
        // Connections can be accepted in another order than they were made, so this one may come
        // from an endpoint that held the name earlier.
        let earlier = incarnation
            .and_then(|incarnation| self.by_incarnation.get(&(incarnation, address.clone())));
        if let Some(&addr) = earlier
            && let Some(peer) = self.auto_inserted.get_mut(&addr)
        {
            peer.connections += 1;
            return Some(addr);
        }
        let detached = found.map_or(Ok(()), |addr| self.table.detach(addr).map(drop));
        debug_assert!(detached.is_ok(), "handle was found under the same lock");
        None
    }

    /// Inserts a peer that has no handle yet.
    fn auto_insert_peer(&mut self, address: &Address, incarnation: Option<Incarnation>) -> FiAddr {
        let is_incarnation_known = incarnation.is_some();
        let incarnation = incarnation.unwrap_or_else(|| {
            self.unknown_incarnations += 1;
            Incarnation(u128::MAX - u128::from(self.unknown_incarnations))
        });
        let addr = self.table.insert(address.clone());
        let peer = AutoInsertedPeer {
            incarnation,
            is_incarnation_known,
            connections: 1,
        };
        self.auto_inserted.insert(addr, peer);
        self.by_incarnation
            .insert((incarnation, address.clone()), addr);
        addr
    }

    /// Removes an address; its handle becomes stale.
    pub(crate) fn remove(&mut self, addr: FiAddr) -> Result<Address> {
        self.forget_auto_inserted(addr);
        self.table.remove(addr)
    }

    /// Stops treating a handle as auto-inserted. The handle must still be in the table.
    fn forget_auto_inserted(&mut self, addr: FiAddr) {
        if let Ok(address) = self.table.get(addr)
            && let Some(peer) = self.auto_inserted.remove(&addr)
        {
            self.by_incarnation
                .remove(&(peer.incarnation, address.clone()));
        }
    }
}

/// The address vectors of a domain, and the *departing* addresses: auto-inserted ones without a
/// connection whose messages have still to be consumed.
#[derive(Debug)]
pub(crate) struct AddressVectors {
    vectors: IdMap<Av>,
    departing: HashMap<FiAddr, AvId>,
}

impl AddressVectors {
    pub(crate) fn new() -> Self {
        Self {
            vectors: IdMap::new(),
            departing: HashMap::new(),
        }
    }

    /// Opens a vector. With `auto_insert`, peers that connect are inserted.
    pub(crate) fn open(&mut self, auto_insert: bool) -> AvId {
        AvId(self.vectors.insert(Av::new(auto_insert)))
    }

    /// Opens a copy of a vector of another engine.
    pub(crate) fn open_copy(&mut self, table: AddressTable) -> AvId {
        AvId(self.vectors.insert(Av::from_table(table, false)))
    }

    /// Returns a copy of the addresses and handles of a vector.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Invalid`] for a vector with auto-inserted peers, whose handles
    /// come and go with the connections of one engine.
    pub(crate) fn copy(&self, av: AvId) -> Result<AddressTable> {
        let vector = self.get(av)?;
        if vector.auto_insert {
            return Err(Error::Invalid {
                what: "address vector",
                why: "it inserts peers that connect to endpoints of one domain or resource \
                      domain; open one in this resource domain"
                    .into(),
            });
        }
        Ok(vector.table.clone())
    }

    pub(crate) fn close(&mut self, av: AvId) {
        self.vectors.remove(av.0);
        self.departing.retain(|_, of| *of != av);
    }

    pub(crate) fn get(&self, av: AvId) -> Result<&Av> {
        let vector = self.vectors.get(av.0);
        vector.ok_or_else(|| Error::Closed(Class::AddressVector))
    }

    fn get_mut(&mut self, av: AvId) -> Result<&mut Av> {
        let vector = self.vectors.get_mut(av.0);
        vector.ok_or_else(|| Error::Closed(Class::AddressVector))
    }

    /// Checks that an address handle is one of this vector.
    #[inline]
    pub(crate) fn check(&self, av: AvId, addr: FiAddr) -> Result<()> {
        self.get(av)?.table.get(addr).map(drop)
    }

    /// Inserts an address for the program. Returns its handle, and whether the address is new.
    pub(crate) fn insert(&mut self, av: AvId, address: &Address) -> Result<(FiAddr, bool)> {
        let vector = self.get_mut(av)?;
        let is_new = vector.table.find(address).is_none();
        let addr = vector.table.insert(address.clone());
        vector.forget_auto_inserted(addr);
        self.departing.remove(&addr);
        Ok((addr, is_new))
    }

    /// Removes an address; its handle becomes stale.
    pub(crate) fn remove(&mut self, av: AvId, addr: FiAddr) -> Result<Address> {
        let address = self.get_mut(av)?.remove(addr)?;
        self.departing.remove(&addr);
        Ok(address)
    }

    /// Returns the handle of a peer that connects, and whether the peer was inserted now. `None` if
    /// the peer is not in the vector.
    pub(crate) fn connect(
        &mut self,
        av: AvId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<(FiAddr, bool)> {
        let vector = self.vectors.get_mut(av.0)?;
        if let Some(addr) = vector.find_connecting(address, incarnation) {
            self.departing.remove(&addr);
            return Some((addr, false));
        }
        let inserts = vector.auto_insert;
        inserts.then(|| (vector.auto_insert_peer(address, incarnation), true))
    }

    /// Notes that a connection under this handle has ended. Returns whether the handle is departing
    /// now.
    pub(crate) fn disconnect(&mut self, av: AvId, addr: FiAddr) -> bool {
        // Handles are never reused, so a handle that was removed, or that the program has inserted
        // since, is not counted down.
        let vector = self.vectors.get_mut(av.0);
        let peer = vector.and_then(|vector| vector.auto_inserted.get_mut(&addr));
        let Some(peer) = peer else {
            return false;
        };
        peer.connections = peer.connections.saturating_sub(1);
        let is_departing = peer.connections == 0;
        if is_departing {
            self.departing.insert(addr, av);
        }
        is_departing
    }

    /// Returns the number of departing addresses.
    #[inline]
    pub(crate) fn departing_count(&self) -> usize {
        self.departing.len()
    }

    /// Returns the vector of a departing address.
    #[inline]
    pub(crate) fn vector_of_departing(&self, addr: FiAddr) -> Option<AvId> {
        self.departing.get(&addr).copied()
    }

    /// Returns the name of a departing address.
    pub(crate) fn departing_address(&self, addr: FiAddr) -> Option<Address> {
        let vector = self.get(self.vector_of_departing(addr)?).ok()?;
        vector.table.get(addr).ok().cloned()
    }
}

impl DomainState {
    /// Checks the departing handle of a source whose message was consumed or requeued: it may have
    /// been the peer's last message.
    #[inline]
    pub(crate) fn on_message_consumed(&mut self, source: Option<FiAddr>) {
        if self.avs.departing_count() > 0
            && let Some(addr) = source
            && let Some(av) = self.avs.vector_of_departing(addr)
        {
            self.pending_work.push(FollowUp::ReleaseAddr(av, addr));
        }
    }

    /// Checks all departing handles of a vector after one of its endpoints has closed and dropped
    /// its waiting messages.
    pub(crate) fn check_departing(&mut self, av: AvId) {
        for (&addr, &of) in &self.avs.departing {
            if of == av {
                self.pending_work.push(FollowUp::ReleaseAddr(av, addr));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        "tcp://127.0.0.1:7000"
            .parse()
            .expect("the address is valid")
    }

    fn connect(av: &mut Av, incarnation: Option<Incarnation>) -> FiAddr {
        av.find_connecting(&address(), incarnation)
            .unwrap_or_else(|| av.auto_insert_peer(&address(), incarnation))
    }

    #[test]
    fn peers_of_different_incarnations_get_different_handles() {
        let known = Some(Incarnation(1));
        for (first, second) in [(known, None), (None, known), (known, Some(Incarnation(2)))] {
            let mut av = Av::new(true);
            assert_ne!(connect(&mut av, first), connect(&mut av, second));
        }
    }

    #[test]
    fn connected_peer_keeps_its_handle_after_its_successor_left() {
        let mut av = Av::new(true);
        let first = connect(&mut av, Some(Incarnation(1)));
        let second = connect(&mut av, Some(Incarnation(2)));
        av.remove(second).expect("the handle was inserted");
        assert_eq!(connect(&mut av, Some(Incarnation(1))), first);
    }

    #[test]
    fn removed_auto_inserted_peer_leaves_no_entry() {
        let mut av = Av::new(true);
        for incarnation in [Some(Incarnation(1)), None] {
            let addr = connect(&mut av, incarnation);
            av.remove(addr).expect("the handle was inserted");
            assert!(av.auto_inserted.is_empty() && av.by_incarnation.is_empty());
        }
    }
}
