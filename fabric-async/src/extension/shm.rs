//! The extension of provider `shm`.

#[cfg(doc)]
use fabric_core::Error;
use fabric_core::extension::{ConnectionInfo, ShmInfo};
use fabric_core::{FiAddr, Result};

use super::Extension;
use super::sealed::{ExtensionDomain, Open};
use crate::endpoint::{ConnectedEndpoint, Endpoint};
use crate::thread_model::ThreadModel;

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
        Ok(match self.domain.connection_info(&ep.inner, peer)? {
            Some(ConnectionInfo::Shm(info)) => Some(info),
            _ => None,
        })
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

impl Extension for ShmExtension {
    const NAME: &'static str = "shm_info";
    const PROVIDER: &'static str = "shm";
}

impl Open for ShmExtension {
    fn open(domain: ExtensionDomain) -> Self {
        Self { domain }
    }
}
