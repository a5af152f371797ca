//! Address vectors: numbers, the guests of a welcoming vector, and who has to hear of a change.
//!
//! A guest is a peer that got its number by connecting. The number stands for that one endpoint, and
//! not for its name: an endpoint that is opened under the name later gets another number, while
//! messages of the first still carry theirs. A guest is *leaving* when its last connection
//! has ended; the number is taken back as soon as no message of it waits at an endpoint, and none
//! lies in a receive nobody has looked at. So whoever receives a message learns whose it is, also
//! from a peer that is gone.

use std::collections::HashMap;

use fabric_core::av::AddressTable;
use fabric_core::transport::{EpId, Incarnation};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::domain::DomainHandle;
use crate::domain_state::{AvId, DomainState, FollowUp};
use crate::engine::EngineState;

#[derive(Debug)]
pub(crate) struct Av {
    pub(crate) table: AddressTable,
    /// Takes in peers that connect, and forgets them when they go.
    auto_insert: bool,
    /// Those it took in.
    auto_inserted: HashMap<FiAddr, Guest>,
    /// Guests so far of which the transport did not know the incarnation.
    unknown: u64,
}

/// A peer that an auto-insert vector took in.
#[derive(Clone, Copy, Debug)]
struct Guest {
    incarnation: Incarnation,
    connections: usize,
}

impl Guest {
    /// Whether a peer that connects under the same name is this one.
    fn is(&self, incarnation: Option<Incarnation>) -> bool {
        match incarnation {
            Some(incarnation) => incarnation == self.incarnation,
            // A name has one endpoint at a time.
            None => self.connections > 0,
        }
    }
}

impl Av {
    pub(crate) fn new(auto_insert: bool) -> Self {
        Self {
            table: AddressTable::new(),
            auto_insert,
            auto_inserted: HashMap::new(),
            unknown: 0,
        }
    }

    /// Which endpoint this number stands for, if it is that of a guest.
    pub(crate) fn incarnation_of(&self, addr: FiAddr) -> Option<Incarnation> {
        self.auto_inserted.get(&addr).map(|guest| guest.incarnation)
    }

    /// The address to reach the peer of this number at.
    ///
    /// # Errors
    /// [`Error::StaleAddress`]; [`Error::PeerGone`] of a guest that has left, when another endpoint
    /// has its name.
    pub(crate) fn reach(&self, addr: FiAddr) -> Result<&Address> {
        let address = self.table.get(addr)?;
        let has_left = |guest: &Guest| guest.connections == 0;
        if self.auto_inserted.get(&addr).is_some_and(has_left)
            && self.table.find(address).is_some_and(|now| now != addr)
        {
            return Err(Error::PeerGone(address.clone()));
        }
        Ok(address)
    }

    /// The number that this peer has, which connects now.
    fn known_as(&mut self, address: &Address, incarnation: Option<Incarnation>) -> Option<FiAddr> {
        let addr = self.table.find(address)?;
        let Some(guest) = self.auto_inserted.get_mut(&addr) else {
            return Some(addr);
        };
        if guest.is(incarnation) {
            guest.connections += 1;
            return Some(addr);
        }
        // Its connections may be met in another order than they were made.
        let table = &self.table;
        let mut guests = self.auto_inserted.iter_mut();
        let earlier = guests.find(|(addr, guest)| {
            Some(guest.incarnation) == incarnation && table.get(**addr) == Ok(address)
        });
        if let Some((&addr, guest)) = earlier {
            guest.connections += 1;
            return Some(addr);
        }
        let detached = self.table.detach(addr);
        debug_assert!(detached.is_ok(), "it was found");
        None
    }

    /// Takes in a peer that is not known.
    fn take_in(&mut self, address: &Address, incarnation: Option<Incarnation>) -> FiAddr {
        let incarnation = incarnation.unwrap_or_else(|| {
            self.unknown += 1;
            Incarnation(u128::MAX - u128::from(self.unknown))
        });
        let addr = self.table.insert(address.clone());
        let guest = Guest {
            incarnation,
            connections: 1,
        };
        self.auto_inserted.insert(addr, guest);
        addr
    }
}

impl DomainState {
    pub(crate) fn av(&mut self, av: AvId) -> Result<&mut Av> {
        self.avs
            .get_mut(av.0)
            .ok_or_else(|| Error::Closed(Class::AddressVector))
    }

    fn av_of(&mut self, ep: EpId) -> Option<(AvId, &mut Av)> {
        let av = self.endpoints.get(ep.0)?.bindings.av;
        Some((av, self.avs.get_mut(av.0)?))
    }

    /// A peer connected to an endpoint: its number, if it has or gets one.
    pub(crate) fn on_peer_connect(
        &mut self,
        ep: EpId,
        address: &Address,
        incarnation: Option<Incarnation>,
    ) -> Option<FiAddr> {
        let (av, vector) = self.av_of(ep)?;
        if let Some(addr) = vector.known_as(address, incarnation) {
            self.departing_addrs.remove(&addr);
            return Some(addr);
        }
        if !vector.auto_insert {
            return None;
        }
        let addr = vector.take_in(address, incarnation);
        self.follow_ups.push(FollowUp::PublishAddr(av, addr));
        Some(addr)
    }

    /// A connection has ended that was made under this number. Numbers never come again, so that
    /// one which has become the user's own since, or was taken back, is not counted down.
    pub(crate) fn on_peer_disconnect(&mut self, ep: EpId, addr: FiAddr) {
        let Some((av, vector)) = self.av_of(ep) else {
            return;
        };
        let Some(guest) = vector.auto_inserted.get_mut(&addr) else {
            return;
        };
        guest.connections = guest.connections.saturating_sub(1);
        if guest.connections == 0 {
            self.departing_addrs.insert(addr, av);
            self.follow_ups.push(FollowUp::ReleaseAddr(av, addr));
        }
    }

    /// From now on this number is the user's own business: inserted by hand, or removed.
    pub(crate) fn forget_auto_inserted(&mut self, av: AvId, addr: FiAddr) {
        self.departing_addrs.remove(&addr);
        if let Some(vector) = self.avs.get_mut(av.0) {
            vector.auto_inserted.remove(&addr);
        }
    }

    /// Somebody has looked at a message of this source, or given it back: it may have been the last
    /// of a leaving guest.
    #[inline]
    pub(crate) fn on_message_consumed(&mut self, source: Option<FiAddr>) {
        if !self.departing_addrs.is_empty()
            && let Some(addr) = source
            && let Some(&av) = self.departing_addrs.get(&addr)
        {
            self.follow_ups.push(FollowUp::ReleaseAddr(av, addr));
        }
    }

    /// An endpoint of this vector has closed: messages that waited there wait no more.
    pub(crate) fn recheck_departing_addrs(&mut self, av: AvId) {
        let leaving = self.departing_addrs.iter().filter(|(_, of)| **of == av);
        self.follow_ups
            .extend(leaving.map(|(&addr, _)| FollowUp::ReleaseAddr(av, addr)));
    }
}

impl EngineState {
    /// Tells the endpoints of a vector that an address has a number now.
    pub(crate) fn publish_addr(&mut self, av: AvId, addr: FiAddr) {
        let address = self
            .domain
            .av(av)
            .and_then(|vector| vector.table.get(addr).cloned());
        let Ok(address) = address else { return };
        for ep in self.endpoints_of(av) {
            self.address_inserted(ep, addr, &address);
        }
    }

    /// Takes a number out of use.
    pub(crate) fn remove_address(&mut self, av: AvId, addr: FiAddr) -> Result<Address> {
        let address = self.domain.av(av)?.table.remove(addr)?;
        self.domain.forget_auto_inserted(av, addr);
        for ep in self.endpoints_of(av) {
            self.address_removed(ep, addr);
        }
        Ok(address)
    }

    /// Takes the number of a leaving guest back, unless a message of it is still to be looked at.
    pub(crate) fn release_addr(&mut self, av: AvId, addr: FiAddr) {
        let endpoints = self.endpoints_of(av);
        let is_due = self.domain.departing_addrs.contains_key(&addr)
            && !self.domain.ops.has_unconsumed(&endpoints, addr)
            && !endpoints
                .iter()
                .any(|&ep| self.holds_messages_from(ep, addr));
        if is_due {
            // Nobody else can have removed it: it would not be leaving any more.
            let _ = self.remove_address(av, addr);
        }
    }

    fn endpoints_of(&self, av: AvId) -> Vec<EpId> {
        let bound = self
            .domain
            .endpoints
            .iter()
            .filter(|(_, ep)| ep.bindings.av == av);
        bound.map(|(index, _)| EpId(index)).collect()
    }
}

impl DomainHandle {
    /// Opens an address vector; a welcoming one takes in peers that connect, and forgets them when
    /// they go.
    #[must_use]
    pub fn open_av(&self, welcoming: bool) -> AvId {
        AvId(self.engine().lock().domain.avs.insert(Av::new(welcoming)))
    }

    /// Closes an address vector.
    pub fn close_av(&self, id: AvId) {
        let mut locked = self.engine().lock();
        locked.domain.avs.remove(id.0);
        locked.domain.departing_addrs.retain(|_, of| *of != id);
    }

    /// Gives an address a number.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn insert_address(&self, av: AvId, address: &Address) -> Result<FiAddr> {
        self.with_engine(|state| {
            let addr = state.domain.av(av)?.table.insert(address.clone());
            state.domain.forget_auto_inserted(av, addr);
            state.publish_addr(av, addr);
            Ok(addr)
        })
    }

    /// Takes a number out of use.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    pub fn remove_address(&self, av: AvId, addr: FiAddr) -> Result<Address> {
        self.with_engine(|state| state.remove_address(av, addr))
    }

    /// The address behind a number.
    ///
    /// # Errors
    /// [`Error::StaleAddress`].
    pub fn address_of(&self, av: AvId, addr: FiAddr) -> Result<Address> {
        self.engine().lock().domain.av(av)?.table.get(addr).cloned()
    }

    /// Every address of a vector with its number.
    #[must_use]
    pub fn addresses(&self, av: AvId) -> Vec<(FiAddr, Address)> {
        let locked = self.engine().lock();
        let vector = locked.domain.avs.get(av.0);
        vector.map_or_else(Vec::new, |v| {
            v.table.iter().map(|(n, a)| (n, a.clone())).collect()
        })
    }
}
