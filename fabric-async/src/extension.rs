//! Extensions of providers: calls that only one provider has (`fi_open_ops`).
//!
//! [`Domain::extension`] returns the extension of a type:
//!
//! | type | provider | subject |
//! |---|---|---|
//! | [`TcpExtension`] | `tcp` | what the kernel knows about connections (`TCP_INFO`) |
//! | [`ShmExtension`] | `shm` | the memory that is mapped for peers |

use std::sync::Arc;

pub use fabric_core::extension::{ShmInfo, TcpInfo};
use fabric_core::transport::EpId;
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::DomainHandle;

use crate::domain::Domain;
use crate::endpoint::{ConnectedEndpoint, Endpoint};
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::ThreadModel;

mod sealed {
    use std::fmt;
    use std::sync::Arc;

    use crate::domain_inner::DomainCore;

    /// A domain of the extension's provider.
    pub struct ExtensionDomain(pub(crate) Arc<DomainCore>);

    pub trait Open {
        /// Creates the extension of this domain.
        fn open(domain: ExtensionDomain) -> Self;
    }

    impl fmt::Debug for ExtensionDomain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_tuple("ExtensionDomain")
                .field(&self.0.node.id())
                .finish()
        }
    }
}

use sealed::ExtensionDomain;

/// An extension of one provider, which [`Domain::extension`] returns.
pub trait Extension: sealed::Open {
    /// The name of the extension.
    const NAME: &'static str;
    /// The provider that has the extension.
    const PROVIDER: &'static str;
}

impl<M: ThreadModel> Domain<M> {
    /// Returns an extension of the domain's provider (`fi_open_ops`). The extension does not keep
    /// the domain open.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::extension::{ShmExtension, TcpExtension};
    /// use fabric_async::{Endpoint, Error};
    /// let ep = Endpoint::bind("tcp://").await?;
    /// assert!(ep.domain().extension::<TcpExtension>().is_ok());
    /// let missing = ep.domain().extension::<ShmExtension>().unwrap_err();
    /// assert!(matches!(missing, Error::NoExtension { extension: "shm_info", .. }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoExtension`] in a domain of another provider; [`Error::Closed`].
    #[doc(alias = "fi_open_ops")]
    pub fn extension<T: Extension>(&self) -> Result<T> {
        self.inner.node.check_open()?;
        let provider = self.inner.fabric.inner.transport.name();
        if provider != T::PROVIDER {
            return Err(Error::NoExtension {
                provider,
                extension: T::NAME,
            });
        }
        Ok(T::open(ExtensionDomain(self.inner.state().clone())))
    }
}

/// The connections of a domain of provider `tcp`, also with the RXM protocol, as the kernel sees
/// them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::Endpoint;
/// use fabric_async::extension::TcpExtension;
/// let (a, b) = (Endpoint::bind("tcp://").await?, Endpoint::bind("tcp://").await?);
/// let to_b = a.add_peer(b.name()).await?;
/// a.send(to_b, vec![7; 1000]).await?;
/// b.recv().await?;
///
/// let tcp: TcpExtension = a.domain().extension()?;
/// let info = tcp.info(&a, to_b)?.expect("connected");
/// assert!(info.congestion_window > 0 && info.bytes_sent > 1000);
/// println!("{:?}, {} segments retransmitted", info.rtt, info.total_retransmits);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TcpExtension {
    domain: ExtensionDomain,
}

impl TcpExtension {
    /// Returns what the kernel knows about the connection with a peer (`TCP_INFO`), with one system
    /// call; `None` if the endpoint is not connected with the peer.
    ///
    /// # Errors
    /// [`Error::StaleAddress`]; [`Error::WrongParent`] when the endpoint is of another domain;
    /// [`Error::Closed`], [`Error::Os`].
    #[doc(alias = "TCP_INFO")]
    pub fn info<M: ThreadModel>(&self, ep: &Endpoint<M>, peer: FiAddr) -> Result<Option<TcpInfo>> {
        self.domain
            .query(&ep.inner, |engine, id| engine.tcp_info(id, peer))
    }

    /// Returns what the kernel knows about the connection of a connected endpoint, as
    /// [`info`](Self::info).
    ///
    /// # Errors
    /// As [`info`](Self::info).
    #[doc(alias = "TCP_INFO")]
    pub fn connected_info<M: ThreadModel>(
        &self,
        ep: &ConnectedEndpoint<M>,
    ) -> Result<Option<TcpInfo>> {
        let (ep, peer) = ep.endpoint_and_peer();
        self.info(ep, peer)
    }
}

/// The memory that a domain of provider `shm` has mapped for peers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::Endpoint;
/// use fabric_async::extension::ShmExtension;
/// let (a, b) = (Endpoint::bind("shm://").await?, Endpoint::bind("shm://").await?);
/// let to_b = a.add_peer(b.name()).await?;
///
/// let shm: ShmExtension = a.domain().extension()?;
/// let info = shm.info(&a, to_b)?.expect("connected");
/// assert_eq!((info.segments, info.regions), (1, 0));
/// assert!(info.total_bytes() >= 128 << 10);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ShmExtension {
    domain: ExtensionDomain,
}

impl ShmExtension {
    /// Returns the memory that is mapped for a peer, of one moment; `None` if the endpoint is not
    /// connected with the peer.
    ///
    /// # Errors
    /// [`Error::StaleAddress`]; [`Error::WrongParent`] when the endpoint is of another domain;
    /// [`Error::Closed`].
    pub fn info<M: ThreadModel>(&self, ep: &Endpoint<M>, peer: FiAddr) -> Result<Option<ShmInfo>> {
        self.domain
            .query(&ep.inner, |engine, id| engine.shm_info(id, peer))
    }

    /// Returns the memory that is mapped for the peer of a connected endpoint, as
    /// [`info`](Self::info).
    ///
    /// # Errors
    /// As [`info`](Self::info).
    pub fn connected_info<M: ThreadModel>(
        &self,
        ep: &ConnectedEndpoint<M>,
    ) -> Result<Option<ShmInfo>> {
        let (ep, peer) = ep.endpoint_and_peer();
        self.info(ep, peer)
    }
}

impl ExtensionDomain {
    /// Asks the engine about an endpoint, which must be of this domain.
    fn query<T>(
        &self,
        ep: &EndpointInner,
        ask: impl FnOnce(&DomainHandle, EpId) -> Result<T>,
    ) -> Result<T> {
        ep.node.check_open()?;
        if !Arc::ptr_eq(&self.0, &ep.domain) {
            return Err(Error::WrongParent {
                object: Class::Endpoint,
                parent: Class::Domain,
            });
        }
        ask(&self.0.engine, ep.id)
    }
}

impl Extension for TcpExtension {
    const NAME: &'static str = "tcp_info";
    const PROVIDER: &'static str = "tcp";
}

impl sealed::Open for TcpExtension {
    fn open(domain: ExtensionDomain) -> Self {
        Self { domain }
    }
}

impl Extension for ShmExtension {
    const NAME: &'static str = "shm_info";
    const PROVIDER: &'static str = "shm";
}

impl sealed::Open for ShmExtension {
    fn open(domain: ExtensionDomain) -> Self {
        Self { domain }
    }
}
