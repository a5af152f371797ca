//! The extension of provider `tcp`.

#[cfg(doc)]
use fabric_core::Error;
use fabric_core::extension::{ConnectionInfo, TcpInfo};
use fabric_core::{FiAddr, Result};

use super::Extension;
use super::sealed::{ExtensionDomain, Open};
use crate::endpoint::{ConnectedEndpoint, Endpoint};
use crate::thread_model::ThreadModel;

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
        Ok(match self.domain.connection_info(&ep.inner, peer)? {
            Some(ConnectionInfo::Tcp(info)) => Some(info),
            _ => None,
        })
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

impl Extension for TcpExtension {
    const NAME: &'static str = "tcp_info";
    const PROVIDER: &'static str = "tcp";
}

impl Open for TcpExtension {
    fn open(domain: ExtensionDomain) -> Self {
        Self { domain }
    }
}
