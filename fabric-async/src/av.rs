//! Address vectors.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use fabric_core::host::HostName;
use fabric_core::tree::{Class, ObjectNode};
use fabric_core::{Address, Error, FiAddr, Result, Scheme};
use fabric_reactor::AvId;

use crate::close::CloseError;
use crate::domain::{Domain, DomainInner};
use crate::thread_model::{Shared, ThreadModel};

/// An address vector (`fid_av`): peers by number (`FI_AV_TABLE`).
///
/// Cheap to clone. Endpoints that are bound to it send to its numbers, and report its numbers as
/// sources.
#[doc(alias = "fid_av")]
pub struct AddressVector<M: ThreadModel = Shared> {
    pub(crate) inner: Arc<AvInner>,
    model: PhantomData<M>,
}

pub(crate) struct AvInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) id: AvId,
    pub(crate) domain: Arc<DomainInner>,
    /// It holds the one peer of a connected endpoint, or nobody, and stays as it is.
    is_read_only: bool,
}

/// What names an endpoint: an [`Address`], or text like `shm://echo`.
/// [`Endpoint::bind`](crate::Endpoint::bind) and [`Endpoint::add_peer`](crate::Endpoint::add_peer) also
/// take the name of a host, as `tcp://localhost:7000`; for all other calls
/// [`resolve`](crate::resolve()) looks it up first.
pub trait ToAddress {
    /// The address.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when the text does not parse.
    fn to_address(&self) -> Result<Address>;

    /// The address where one of this kind is expected: as [`Address::parse_for`].
    ///
    /// # Errors
    /// As [`ToAddress::to_address`].
    fn to_address_for(&self, expected: Scheme) -> Result<Address> {
        let _ = expected;
        self.to_address()
    }

    /// The name of a host that is to be [looked up](crate::resolve) before there is an address;
    /// nothing where this is one.
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
    /// One with this peer in it, for an endpoint that is connected with it. It is part of the
    /// endpoint, and not counted.
    pub(crate) fn with_peer(domain: &Arc<DomainInner>, peer: &Address) -> (Arc<Self>, FiAddr) {
        let node = ObjectNode::new(Class::AddressVector, Some(domain.node.clone()));
        let (id, number) = domain.core.open_single_peer_av(peer);
        (
            Arc::new(Self {
                node,
                id,
                domain: domain.clone(),
                is_read_only: true,
            }),
            number,
        )
    }

    /// One with nobody in it, for a receive context of endpoints that are connected, each with a
    /// peer of its own. It is part of the context, and not counted.
    pub(crate) fn empty(domain: &Arc<DomainInner>) -> Arc<Self> {
        let node = ObjectNode::new(Class::AddressVector, Some(domain.node.clone()));
        let id = domain.core.open_av(false);
        Arc::new(Self {
            node,
            id,
            domain: domain.clone(),
            is_read_only: true,
        })
    }

    fn check_writable(&self) -> Result<()> {
        self.node.check_open()?;
        if self.is_read_only {
            return Err(Error::NotSupported(
                "addresses of connected endpoints, which have one peer each",
            ));
        }
        Ok(())
    }
}

impl<M: ThreadModel> AddressVector<M> {
    pub(crate) fn open(domain: &Domain<M>, welcoming: bool) -> Result<Self> {
        domain.inner.node.check_open()?;
        let node = ObjectNode::new(Class::AddressVector, Some(domain.inner.node.clone()));
        let id = domain.inner.core.open_av(welcoming);
        let inner = AvInner {
            node,
            id,
            domain: domain.inner.clone(),
            is_read_only: false,
        };
        inner.node.publish()?;
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

    /// Gives a peer a number (`fi_av_insert`). A peer that has one keeps it; that of a guest
    /// becomes permanent. Nothing is sent: whether the peer exists shows with the first operation.
    ///
    /// # Errors
    /// [`Error::BadAddress`]; [`Error::WrongScheme`] when the address is of another provider;
    /// [`Error::Invalid`] for an address without a name, or with port 0; [`Error::NotSupported`]
    /// where it is that of a connected endpoint; [`Error::Closed`].
    #[doc(alias = "fi_av_insert")]
    pub fn insert(&self, peer: impl ToAddress) -> Result<FiAddr> {
        self.inner.check_writable()?;
        let address = self.inner.domain.address(peer)?;
        let provider = self.inner.domain.fabric.inner.transport.name();
        if address.scheme().provider() != provider {
            return Err(Error::WrongScheme { provider, address });
        }
        address.check_peer()?;
        self.inner
            .domain
            .core
            .insert_address(self.inner.id, &address)
    }

    /// Takes a number out of use (`fi_av_remove`): it becomes an error, also when the position is
    /// used again. Operations to it that wait, and receives directed at it, end with
    /// [`Error::StaleAddress`]. Messages from the peer still arrive, from a stranger.
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    #[doc(alias = "fi_av_remove")]
    pub fn remove(&self, peer: FiAddr) -> Result<Address> {
        if self.inner.is_read_only {
            self.inner.check_writable()?;
        }
        self.inner.domain.core.remove_address(self.inner.id, peer)
    }

    /// The address behind a number (`fi_av_lookup`).
    ///
    /// # Errors
    /// [`Error::StaleAddress`], [`Error::Closed`].
    #[doc(alias = "fi_av_lookup")]
    pub fn lookup(&self, peer: FiAddr) -> Result<Address> {
        self.inner.domain.core.address_of(self.inner.id, peer)
    }

    /// Every peer with its number: those that were inserted or looked up, there or not, and the
    /// guests. Where to begin again after [`EventKind::Overrun`](crate::EventKind::Overrun).
    #[must_use]
    pub fn peers(&self) -> Vec<(FiAddr, Address)> {
        self.inner.domain.core.addresses(self.inner.id)
    }

    /// Closes the vector, for all its clones: their calls are refused with [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::Busy`] while endpoints are bound to it.
    #[doc(alias = "fi_close")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let closed = match self.inner.is_read_only {
            true => self.inner.check_writable(),
            false => self.inner.node.close(),
        };
        if let Err(error) = closed {
            return Err(CloseError {
                error,
                handle: self,
            });
        }
        self.inner.domain.core.close_av(self.inner.id);
        Ok(())
    }
}

impl<M: ThreadModel> Clone for AddressVector<M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            model: PhantomData,
        }
    }
}

impl Drop for AvInner {
    fn drop(&mut self) {
        self.domain.core.close_av(self.id);
        self.node.uncount();
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
