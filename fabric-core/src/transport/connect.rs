//! How endpoints that are connected with one peer come by it.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::address::{Address, FiAddr};

/// The most private data that a request to be connected, or its answer, carries, in bytes.
#[doc(alias = "FI_OPT_CM_DATA_SIZE")]
pub const MAX_PRIVATE_DATA: usize = 256;

/// Somebody who wants to be connected with a passive endpoint.
pub struct ConnReq {
    /// Where it calls from.
    pub peer: Address,
    /// Its private data.
    pub data: Vec<u8>,
    /// Its connection, until an endpoint has it.
    pub handle: Box<dyn ConnReqHandle>,
}

/// The connection of somebody who wants to be connected. It belongs to no domain yet. Who drops it
/// refuses, without data.
pub trait ConnReqHandle: Any + Send {
    /// Refuses, with this private data.
    fn reject(self: Box<Self>, data: &[u8]);
}

impl fmt::Debug for ConnReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// How an endpoint that is connected comes by its peer.
pub struct ConnectParams<'a> {
    /// The number of the peer in the address vector of the endpoint.
    pub fi_addr: FiAddr,
    /// Its address.
    pub peer: &'a Address,
    /// What it is told, up to [`MAX_PRIVATE_DATA`] bytes.
    pub data: &'a [u8],
    /// The program knows that it takes tagged messages, whether it says so or not.
    pub peer_supports_tags: bool,
    /// Who asks whom.
    pub mode: ConnectMode<'a>,
}

/// Who asks whom to be connected.
pub enum ConnectMode<'a> {
    /// This side asks whoever listens at the address of the peer, and waits so long for the answer.
    Connect {
        /// From which address here; any, unless said.
        from: Option<&'a Address>,
        /// How long.
        timeout: Duration,
    },
    /// It accepts this request.
    Accept(Box<dyn ConnReqHandle>),
}

/// What an endpoint knows once it is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Its own address.
    pub name: Address,
    /// The private data the peer has answered with; none of one that was accepted.
    pub data: Vec<u8>,
}
