//! Connection management of `FI_EP_MSG` endpoints.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::address::{Address, FiAddr};
use crate::flags::Caps;

/// Maximum length of the private data of a connection request or its reply, in bytes.
#[doc(alias = "FI_OPT_CM_DATA_SIZE")]
pub const MAX_PRIVATE_DATA: usize = 256;

/// A connection request at a passive endpoint.
pub struct ConnReq {
    /// Address of the initiator.
    pub peer: Address,
    /// Private data of the request.
    pub data: Vec<u8>,
    /// The pending connection, until an endpoint accepts it.
    pub handle: Box<dyn ConnReqHandle>,
}

/// The connection behind a connection request. It belongs to no domain yet. Dropping it rejects the
/// request without private data.
pub trait ConnReqHandle: Any + Send + Sync {
    /// Rejects the request with this private data.
    fn reject(self: Box<Self>, data: &[u8]);
}

impl fmt::Debug for ConnReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnReq")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// Parameters for connecting an `FI_EP_MSG` endpoint.
pub struct ConnectParams<'a> {
    /// Address handle of the peer in the address vector of the endpoint.
    pub fi_addr: FiAddr,
    /// Address of the peer.
    pub peer: &'a Address,
    /// Private data for the peer, at most [`MAX_PRIVATE_DATA`] bytes.
    pub data: &'a [u8],
    /// The program asserts that the peer supports tagged messages. The assertion counts only if the
    /// peer does not announce its capabilities.
    pub peer_supports_tags: bool,
    /// Which side initiates the connection.
    pub mode: ConnectMode<'a>,
}

/// Which side initiates a connection.
pub enum ConnectMode<'a> {
    /// This side sends a request to the listener at the address of the peer and waits for the
    /// reply.
    Connect {
        /// Local address to connect from; `None` lets the kernel choose.
        from: Option<&'a Address>,
        /// Time limit for the reply.
        timeout: Duration,
    },
    /// This side accepts this request.
    Accept(Box<dyn ConnReqHandle>),
}

/// Credentials of the peer's process, as the kernel reported them when the connection was
/// established (`SO_PEERCRED`, `unix(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "SO_PEERCRED")]
#[doc(alias = "ucred")]
pub struct ProcessCredentials {
    /// The user id, in the user namespace of this process.
    pub uid: u32,
    /// The group id, in the user namespace of this process.
    pub gid: u32,
    /// The process id; `None` if the process is not visible in the PID namespace of this process.
    pub pid: Option<i32>,
}

impl ProcessCredentials {
    /// Creates the credentials that a transport got from the kernel.
    #[doc(hidden)]
    #[must_use]
    pub fn new(uid: u32, gid: u32, pid: Option<i32>) -> Self {
        Self { uid, gid, pid }
    }
}

/// Attributes of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Local address of the endpoint.
    pub name: Address,
    /// Private data of the peer's reply; empty on the accepting side.
    pub data: Vec<u8>,
    /// The capabilities among [`Caps::TAGGED`] and [`Caps::ATOMIC`] that the peer supports.
    pub tx_caps: Caps,
    /// Credentials of the peer's process; `None` if the transport does not know them.
    pub credentials: Option<ProcessCredentials>,
}

impl fmt::Debug for ConnectParams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectParams")
            .field("peer", &self.peer)
            .field("data_len", &self.data.len())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnectMode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { from, timeout } => f
                .debug_struct("Connect")
                .field("from", from)
                .field("timeout", timeout)
                .finish(),
            Self::Accept(_) => f.write_str("Accept"),
        }
    }
}
