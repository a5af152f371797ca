//! Extensions of providers: calls that only one provider has (`fi_open_ops`).
//!
//! [`Domain::extension`] returns the extension of a type:
//!
//! | type | provider | subject |
//! |---|---|---|
//! | [`TcpExtension`] | `tcp` | what the kernel knows about connections (`TCP_INFO`) |
//! | [`ShmExtension`] | `shm` | the memory that is mapped for peers |

mod shm;
mod tcp;

use std::sync::Arc;

use fabric_core::extension::ConnectionInfo;
pub use fabric_core::extension::{ShmInfo, TcpInfo};
use fabric_core::tree::Class;
use fabric_core::{Error, FiAddr, Result};

use crate::domain::Domain;
use crate::endpoint_inner::EndpointInner;
use crate::thread_model::ThreadModel;

pub use shm::ShmExtension;
pub use tcp::TcpExtension;

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

impl ExtensionDomain {
    /// Returns what the provider knows about the connections of an endpoint, which must be of this
    /// domain, with a peer.
    fn connection_info(&self, ep: &EndpointInner, peer: FiAddr) -> Result<Option<ConnectionInfo>> {
        ep.node.check_open()?;
        if !Arc::ptr_eq(&self.0, &ep.domain) {
            return Err(Error::WrongParent {
                object: Class::Endpoint,
                parent: Class::Domain,
            });
        }
        self.0.engine.connection_info(ep.id, peer)
    }
}
