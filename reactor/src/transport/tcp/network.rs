//! The network below the endpoints: how they listen, connect and name each other.
//!
//! The provider `tcp` uses [`IpNetwork`](super::ip_network::IpNetwork). A transport that carries
//! the same wire protocol over other streams implements [`Network`].

use std::net::SocketAddr;

use fabric_core::info::Info;
use fabric_core::transport::WaitSet;
use fabric_core::{Address, Result};
use rustix::io::Errno;

use super::socket::TcpSocket;
use crate::transport::net::SocketConfig;

/// A network. A socket address identifies an endpoint in the network.
pub(crate) trait Network: Send + Sync {
    /// Returns the address of the endpoint at a socket address.
    fn address(&self, at: SocketAddr) -> Result<Address>;

    /// Returns the socket address of a peer.
    fn socket_addr(&self, peer: &Address) -> Result<SocketAddr>;

    /// Listens at an address, or at one that the network chooses. Returns also the address.
    fn listen(
        &self,
        info: &Info,
        at: Option<&Address>,
        config: &SocketConfig,
    ) -> Result<(Box<dyn Listener>, Address)>;

    /// Opens a socket of the endpoint at `from`, to connect to `to`.
    fn open_socket(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        config: &SocketConfig,
    ) -> Result<TcpSocket, Errno>;
}

/// A listening endpoint of a network.
pub(crate) trait Listener: Send {
    /// Watches the listener: the token is reported while connections wait to be accepted.
    fn watch(&self, wait_set: &dyn WaitSet, token: u64) -> Result<()>;

    fn unwatch(&self, wait_set: &dyn WaitSet);

    /// Accepts a connection to the address `local`; `None` when none waits. Returns also the socket
    /// address of the peer.
    fn accept(
        &self,
        local: SocketAddr,
        config: &SocketConfig,
    ) -> Result<Option<(TcpSocket, SocketAddr)>, Errno>;
}

/// When the bytes that have arrived at a socket may be read, for a network that delays them.
pub(crate) trait ReadSchedule: Send + Sync {
    /// Returns the maximum length of a read of bytes that have arrived; 0 if they are delayed
    /// further. Each call may bring the read nearer.
    fn max_read(&mut self) -> usize;

    /// Ends the delays, for good.
    fn end_delays(&mut self);
}
