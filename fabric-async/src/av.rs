//! Address vectors: peers of endpoints, by `FiAddr`. The engine has the table.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(doc)]
use fabric_core::Error;
use fabric_core::host::HostName;
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Address, FiAddr, Result, Scheme};
use fabric_reactor::{AvId, DomainUpdates};

use crate::close::{CloseError, close_object};
use crate::domain::Domain;
use crate::domain_inner::DomainInner;
use crate::thread_model::{Shared, ThreadModel};

/// An address vector (`fid_av`): a table of peers (`FI_AV_TABLE`), each with an [`FiAddr`].
///
/// Cheap to clone. Endpoints bound to an address vector send to its handles and report them as
/// sources.
#[derive(Clone)]
#[doc(alias = "fid_av")]
pub struct AddressVector<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<AvInner>,
    model: PhantomData<M>,
}

pub(crate) struct AvInner {
    pub(crate) node: Arc<ObjectNode>,
    id: AvId,
    domain: Arc<DomainInner>,
    /// The copies in resource domains of the vector's domain. Locked while the vector changes, so
    /// that the changes reach the copies in their order.
    copies: Mutex<Vec<AvCopy>>,
}

/// A copy of a vector in a resource domain.
struct AvCopy {
    /// The id of the resource domain in the object tree.
    domain_id: u64,
    id: AvId,
    updates: DomainUpdates,
}

/// An endpoint address or the text of one: an [`Address`], a string like `shm://echo`, or a
/// [`SocketAddr`]. A `SocketAddr` gets the scheme of the domain that it is passed to, and that of
/// `tcp` where there is none.
///
/// [`Endpoint::bind`](crate::Endpoint::bind), [`Endpoint::add_peer`](crate::Endpoint::add_peer),
/// [`ConnectedEndpoint::connect`](crate::ConnectedEndpoint::connect) and
/// [`PassiveEndpoint::bind`](crate::PassiveEndpoint::bind) also accept a host name, as in
/// `tcp://localhost:7000`. For all other calls, [`resolve`](crate::resolve()) translates host names
/// first.
pub trait ToAddress {
    /// Returns the address.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when the text does not parse.
    fn to_address(&self) -> Result<Address>;

    /// Returns the address, as [`Address::parse_for`]. `expected` is the scheme of text that names
    /// none.
    ///
    /// # Errors
    /// As [`ToAddress::to_address`].
    fn to_address_for(&self, expected: Scheme) -> Result<Address> {
        let _ = expected;
        self.to_address()
    }

    /// Returns the host name that must be [resolved](crate::resolve()) to get an address; `None`
    /// when the value is an address already.
    #[doc(hidden)]
    fn to_host_for(&self, expected: Scheme) -> Option<HostName> {
        let _ = expected;
        None
    }
}

impl ToAddress for Address {
    fn to_address(&self) -> Result<Address> {
        Ok(self.clone())
    }
}

impl ToAddress for SocketAddr {
    fn to_address(&self) -> Result<Address> {
        self.to_address_for(Scheme::Tcp)
    }

    fn to_address_for(&self, expected: Scheme) -> Result<Address> {
        Address::parse_for(&format!("fi_sockaddr_in://{self}"), expected)
    }
}

impl ToAddress for str {
    fn to_address(&self) -> Result<Address> {
        self.parse()
    }

    fn to_address_for(&self, expected: Scheme) -> Result<Address> {
        Address::parse_for(self, expected)
    }

    fn to_host_for(&self, expected: Scheme) -> Option<HostName> {
        HostName::parse_for(self, expected)
    }
}

impl ToAddress for String {
    fn to_address(&self) -> Result<Address> {
        self.as_str().to_address()
    }

    fn to_address_for(&self, expected: Scheme) -> Result<Address> {
        self.as_str().to_address_for(expected)
    }

    fn to_host_for(&self, expected: Scheme) -> Option<HostName> {
        self.as_str().to_host_for(expected)
    }
}

impl<T: ToAddress + ?Sized> ToAddress for &T {
    fn to_address(&self) -> Result<Address> {
        (**self).to_address()
    }

    fn to_address_for(&self, expected: Scheme) -> Result<Address> {
        (**self).to_address_for(expected)
    }

    fn to_host_for(&self, expected: Scheme) -> Option<HostName> {
        (**self).to_host_for(expected)
    }
}

impl AvInner {
    /// Creates the object of a vector that the engine has opened.
    fn new(domain: &Arc<DomainInner>, id: AvId) -> Self {
        Self {
            node: ObjectNode::new(Class::AddressVector, Some(domain.node.clone())),
            id,
            domain: domain.clone(),
            copies: Mutex::default(),
        }
    }

    /// Locks the list of copies that exist.
    fn lock_copies(&self) -> MutexGuard<'_, Vec<AvCopy>> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.retain(|copy| copy.updates.is_open());
        copies
    }

    /// Returns the id of the vector in the engine of its domain or of a resource domain of it. The
    /// vector is copied to the resource domain at the first call.
    pub(crate) fn id_in(&self, domain: &DomainInner) -> Result<AvId> {
        if domain.node.id() == self.domain.node.id() {
            return Ok(self.id);
        }
        let mut copies = self.lock_copies();
        let domain_id = domain.node.id();
        if let Some(copy) = copies.iter().find(|copy| copy.domain_id == domain_id) {
            return Ok(copy.id);
        }
        let table = self.domain.engine.copy_av(self.id)?;
        let (id, end) = domain.engine.open_av_copy(table);
        copies.push(AvCopy {
            domain_id,
            id,
            updates: domain.engine.updates(),
        });
        drop(copies);
        drop(end);
        Ok(id)
    }

    /// Inserts addresses into the vector and its copies, and returns the handle of each and whether
    /// it is new.
    fn insert_addresses(&self, addresses: Vec<Result<Address>>) -> Vec<Result<(FiAddr, bool)>> {
        let copies = self.lock_copies();
        let (inserted, mut ends) = self.domain.engine.insert_addresses(self.id, &addresses);
        for copy in &*copies {
            for (address, inserted) in addresses.iter().zip(&inserted) {
                if let (Ok(address), Ok((addr, true))) = (address, inserted) {
                    ends.push(copy.updates.insert_address(copy.id, *addr, address));
                }
            }
        }
        // Tasks are woken without the lock.
        drop(copies);
        drop(ends);
        inserted
    }

    /// Removes a peer from the vector and its copies.
    fn remove(&self, peer: FiAddr) -> Result<Address> {
        let copies = self.lock_copies();
        let (removed, end) = self.domain.engine.remove_address(self.id, peer);
        let mut ends = vec![end];
        if removed.is_ok() {
            let updates = copies.iter();
            ends.extend(updates.map(|copy| copy.updates.remove_address(copy.id, peer)));
        }
        // Tasks are woken without the lock.
        drop(copies);
        drop(ends);
        removed
    }

    /// Closes the vector and its copies.
    fn close(&self) {
        let copies = std::mem::take(&mut *self.lock_copies());
        for copy in copies {
            drop(copy.updates.close_av(copy.id));
        }
        self.domain.engine.close_av(self.id);
    }

    /// Creates the vector of a connected endpoint, with its one peer. The vector is part of the
    /// endpoint: not counted as a child of the domain, and not accessible to the application.
    pub(crate) fn with_peer(
        domain: &Arc<DomainInner>,
        peer: &Address,
    ) -> Result<(Arc<Self>, FiAddr)> {
        let (id, fi_addr) = domain.engine.open_single_peer_av(peer)?;
        Ok((Arc::new(Self::new(domain, id)), fi_addr))
    }

    /// Creates the empty vector of a shared receive context for connected endpoints. The vector is
    /// part of the context: not counted as a child of the domain, and not accessible to the
    /// application.
    pub(crate) fn empty(domain: &Arc<DomainInner>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self::new(domain, domain.engine.open_av(false)?)))
    }

    /// Inserts a peer, and returns its handle and whether the peer is new to the vector.
    pub(crate) fn insert(&self, peer: impl ToAddress) -> Result<(FiAddr, bool)> {
        let address = self.peer_address(peer)?;
        let mut inserted = self.insert_addresses(vec![Ok(address)]);
        inserted.pop().expect("one address gives one result")
    }

    /// Returns the address of a peer that is to be inserted.
    fn peer_address(&self, peer: impl ToAddress) -> Result<Address> {
        self.node.check_open()?;
        let address = self.domain.address(peer)?;
        address.check_scheme(self.domain.scheme())?;
        self.domain.info.addr_format.check(&address)?;
        address.check_peer()?;
        Ok(address)
    }
}

impl<M: ThreadModel> AddressVector<M> {
    /// Opens a vector; with `auto_insert`, one that inserts peers which connect.
    pub(crate) fn open(domain: &Domain<M>, auto_insert: bool) -> Result<Self> {
        domain.inner.node.check_open()?;
        let id = domain.inner.engine.open_av(auto_insert)?;
        let inner = AvInner::new(&domain.inner, id);
        inner.node.attach_to_parent()?;
        Ok(Self {
            inner: Arc::new(inner),
            model: PhantomData,
        })
    }

    pub(crate) fn from_inner(inner: Arc<AvInner>) -> Self {
        Self {
            inner,
            model: PhantomData,
        }
    }

    /// Inserts a peer and returns its address handle, an `FiAddr` (`fi_av_insert`). A peer that is
    /// in the vector already keeps its handle; the handle of an auto-inserted peer becomes
    /// permanent. Nothing is sent to the peer. If the peer does not exist, over `shm` and `tcp` the
    /// first send, read or write fails.
    ///
    /// # Errors
    /// [`Error::BadAddress`], also for an address of an IP version that the
    /// [address format](crate::info::AddrFormat) of the domain's info excludes;
    /// [`Error::WrongScheme`] when the address is of another provider; [`Error::Invalid`] for an
    /// address without a name, or with port 0; [`Error::Closed`].
    #[doc(alias = "fi_av_insert")]
    pub fn insert(&self, peer: impl ToAddress) -> Result<FiAddr> {
        self.inner.insert(peer).map(|(addr, _)| addr)
    }

    /// Inserts several peers, and returns the handle or the error of each, in their order
    /// (`fi_av_insert` with `FI_SYNC_ERR`, whose array of errors this is). An error of one entry
    /// does not affect the others. A peer that occurs twice has one handle.
    ///
    /// The number of inserted peers, which `fi_av_insert` returns, is that of the handles. The
    /// insertion is complete when the call returns, so there is no event (`FI_EVENT`,
    /// `FI_AV_COMPLETE`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::{Error, Fabric, Hints, Result, discover};
    /// let info = discover(&Hints::new().provider("shm"))?.swap_remove(0);
    /// let av = Fabric::open(&info)?.domain(&info)?.address_vector()?;
    /// let inserted = av.insert_all(["shm://a", "tcp://127.0.0.1:7000", "shm://b"]);
    /// let inserted_count = inserted.iter().flatten().count();
    /// assert_eq!(inserted_count, 2);
    /// assert!(matches!(inserted[1], Err(Error::WrongScheme { .. })));
    /// assert_eq!(av.lookup(inserted[2].clone()?)?, "shm://b".parse()?);
    /// // All, or the first error:
    /// let peers: Result<Vec<_>> = av.insert_all(["shm://c", "shm://d"]).into_iter().collect();
    /// assert_eq!(peers?.len(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Self::insert), for each entry; [`Error::Closed`] for all entries of a
    /// vector that is closed.
    #[doc(alias = "fi_av_insert")]
    #[doc(alias = "FI_SYNC_ERR")]
    #[must_use = "each entry may have failed"]
    pub fn insert_all(
        &self,
        peers: impl IntoIterator<Item = impl ToAddress>,
    ) -> Vec<Result<FiAddr>> {
        let addresses = peers.into_iter().map(|peer| self.inner.peer_address(peer));
        let inserted = self.inner.insert_addresses(addresses.collect());
        let handles = inserted.into_iter();
        handles
            .map(|inserted| inserted.map(|(addr, _)| addr))
            .collect()
    }

    /// Removes a peer and returns its address (`fi_av_remove`). From then on the use of its
    /// `FiAddr` fails with [`Error::StaleAddress`], also when the table entry is reused. Pending
    /// operations to the handle, and receives directed at it, end with [`Error::StaleAddress`].
    /// Messages from the peer still arrive, from an unknown source.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    #[doc(alias = "fi_av_remove")]
    pub fn remove(&self, peer: FiAddr) -> Result<Address> {
        self.inner.remove(peer)
    }

    /// Returns the address of a peer (`fi_av_lookup`).
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    #[doc(alias = "fi_av_lookup")]
    pub fn lookup(&self, peer: FiAddr) -> Result<Address> {
        self.inner.domain.engine.address_of(self.inner.id, peer)
    }

    /// Returns all peers with their handles: inserted ones, whether they exist or not, and
    /// auto-inserted ones. After
    /// [`EventKind::Overrun`](crate::EventKind::Overrun), this call returns the current peers.
    #[must_use]
    pub fn peers(&self) -> Vec<(FiAddr, Address)> {
        self.inner.domain.engine.addresses(self.inner.id)
    }

    /// Closes the vector, for all its clones (`fi_close`): their calls fail with [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::Busy`] while endpoints or shared receive contexts are bound to the vector;
    /// [`Error::Closed`] when the vector was closed before.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let av = close_object(self, |av| &av.inner.node)?;
        av.inner.close();
        Ok(())
    }
}

impl Drop for AvInner {
    fn drop(&mut self) {
        self.close();
        self.node.detach_from_parent();
    }
}

impl<M: ThreadModel> fmt::Debug for AddressVector<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressVector")
            .field("id", &self.inner.node.id())
            .field("peers", &self.peers())
            .finish()
    }
}
