//! The network of the provider `tcp`: the Internet protocols of the kernel.

use std::net::SocketAddr;

use fabric_core::info::Info;
use fabric_core::{Address, Result, Scheme};
use rustix::io::Errno;

use super::network::{Listener, Network};
use super::socket::{TcpListener, TcpSocket};
use crate::transport::net::SocketConfig;

/// The Internet protocols of the kernel.
pub(super) struct IpNetwork;

impl Network for IpNetwork {
    fn address(&self, at: SocketAddr) -> Result<Address> {
        Address::from_socket_addr(Scheme::Tcp, at)
    }

    fn socket_addr(&self, peer: &Address) -> Result<SocketAddr> {
        peer.peer_socket_addr(Scheme::Tcp)
    }

    fn listen(
        &self,
        info: &Info,
        at: Option<&Address>,
        config: &SocketConfig,
    ) -> Result<(Box<dyn Listener>, Address)> {
        let (listener, at) = TcpListener::open(listen_address(info, at)?, config)?;
        Ok((Box::new(listener), self.address(at)?))
    }

    fn open_socket(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        config: &SocketConfig,
    ) -> Result<TcpSocket, Errno> {
        TcpSocket::open(from, to, config)
    }
}

/// Returns the address to listen at: `at`, or else any port of the offer's source address, or else
/// any port of the loopback address of the info's address format.
///
/// # Errors
/// `at` has another scheme than `tcp`.
fn listen_address(info: &Info, at: Option<&Address>) -> Result<SocketAddr> {
    if let Some(at) = at {
        at.check_scheme(Scheme::Tcp)?;
    }
    let offered = info.src_addr.as_ref().and_then(Address::socket_addr);
    let any_port = SocketAddr::new(
        offered.map_or(info.addr_format.loopback(), |offered| offered.ip()),
        0,
    );
    Ok(at.and_then(Address::socket_addr).unwrap_or(any_port))
}
