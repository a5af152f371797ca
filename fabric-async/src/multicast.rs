//! Multicast groups.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use fabric_core::flags::Caps;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::av::ToAddress;
use crate::endpoint::Endpoint;
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::{Shared, ThreadModel};

/// A multicast group that an endpoint has joined (`fid_mc`): the endpoint receives the messages
/// sent to the group.
///
/// Created by [`Endpoint::join_multicast`]. A `MulticastGroup` does not keep the endpoint open. The
/// endpoint leaves the group when the `MulticastGroup` is dropped; an endpoint that joined a group
/// several times leaves the group with the last one.
#[doc(alias = "fid_mc")]
#[must_use = "the endpoint leaves the group when the `MulticastGroup` is dropped"]
pub struct MulticastGroup<M: ThreadModel = Shared> {
    ep: Arc<EndpointInner>,
    address: Address,
    fi_addr: FiAddr,
    /// The id of the join in the engine.
    group_id: u32,
    model: PhantomData<M>,
}

impl<M: ThreadModel> Endpoint<M> {
    /// Joins a multicast group (`fi_join`), given by its address, such as `udp://239.1.2.3:5000`.
    /// Messages to the group arrive at this endpoint like any others, with their sender as source.
    /// Needs `FI_MULTICAST`, which the `udp` provider offers, for IPv4 groups.
    ///
    /// The group is joined on the interface that has the endpoint's own address, and left when the
    /// [`MulticastGroup`] is dropped. The group gets an address handle in the address vector,
    /// [`MulticastGroup::fi_addr`], which stays valid after the drop. Sending to a group does not
    /// need a join: [insert](crate::AddressVector::insert) the group's address. An endpoint that
    /// has joined a group receives its own messages to it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let (a, b) = (Endpoint::bind("udp://").await?, Endpoint::bind("udp://").await?);
    /// # let group = format!("udp://239.77.{}.1:7700", std::process::id() % 250);
    /// # let group = &group[..]; /*
    /// let group = "udp://239.77.0.1:7700";
    /// # */
    /// let joined = a.join_multicast(group)?;
    /// let to_all = b.address_vector().insert(group)?;
    /// b.send(to_all, "hello, group").await?;
    /// let got = a.recv().await?;
    /// assert_eq!(&got[..], b"hello, group");
    /// assert_eq!(a.address_vector().lookup(got.source()?)?, *b.name());
    /// drop(joined);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSupported`] without `FI_MULTICAST`, and for IPv6 groups; [`Error::Invalid`] when
    /// the address is not a multicast address; [`Error::AddressInUse`] when a program that does not
    /// share the port is bound to it; [`Error::BadAddress`], [`Error::WrongScheme`],
    /// [`Error::Closed`], [`Error::Os`].
    #[doc(alias = "fi_join")]
    #[doc(alias = "FI_MULTICAST")]
    pub fn join_multicast(&self, group: impl ToAddress) -> Result<MulticastGroup<M>> {
        self.inner.node.check_open()?;
        let caps = self.info().caps;
        if !caps.contains(Caps::MULTICAST) {
            return Err(Error::NotSupported(
                "multicast groups (the endpoint has no FI_MULTICAST)",
            ));
        }
        if !caps.contains(Caps::RECV) {
            return Err(Error::NotSupported(
                "joining multicast groups (the endpoint has no FI_RECV)",
            ));
        }
        let address = self.inner.domain.address(group)?;
        let ep = self.inner.clone();
        let group_id = ep.domain.engine.join_group(ep.id, &address)?;
        match self.address_vector().insert(&address) {
            Ok(fi_addr) => Ok(MulticastGroup {
                ep,
                address,
                fi_addr,
                group_id,
                model: PhantomData,
            }),
            Err(error) => {
                ep.domain.engine.leave_group(ep.id, group_id);
                Err(error)
            }
        }
    }
}

impl<M: ThreadModel> MulticastGroup<M> {
    /// Returns the address handle of the group, to send to (`fi_mc_addr`).
    #[doc(alias = "fi_mc_addr")]
    #[must_use]
    pub fn fi_addr(&self) -> FiAddr {
        self.fi_addr
    }

    /// Returns the address of the group.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl<M: ThreadModel> Drop for MulticastGroup<M> {
    fn drop(&mut self) {
        self.ep.domain.engine.leave_group(self.ep.id, self.group_id);
    }
}

impl<M: ThreadModel> fmt::Debug for MulticastGroup<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MulticastGroup")
            .field("address", &self.address)
            .field("fi_addr", &self.fi_addr)
            .finish()
    }
}
