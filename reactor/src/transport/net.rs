//! Opening, configuring and binding Internet sockets, for the transports tcp and udp.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use fabric_core::info::Info;
use fabric_core::{Address, Error, Result, Scheme, SocketOptions};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_ip_tos, set_ipv6_tclass, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::sys::os_error::os_error;

/// The socket options of an endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct SocketConfig {
    pub(super) options: SocketOptions,
    /// The DSCP of the info's traffic class (`FI_TC_*`); `None` leaves the kernel's default.
    dscp: Option<u8>,
}

impl SocketConfig {
    /// Returns the configuration of an endpoint with this info.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the DSCP of the traffic class is above 63.
    pub(super) fn from_info(options: &SocketOptions, info: &Info) -> Result<Self> {
        let class = info.tx.tclass.or(info.domain.tclass);
        Ok(Self {
            options: options.clone(),
            dscp: class.map(|class| class.dscp()).transpose()?,
        })
    }

    /// Sets the options that must be set before a socket is bound or connected; accepted sockets
    /// inherit those of the listener.
    pub(super) fn apply(&self, socket: impl AsFd, at: SocketAddr) -> Result<(), Errno> {
        let socket = socket.as_fd();
        if let Some(bytes) = self.options.send_buffer {
            set_socket_send_buffer_size(socket, bytes)?;
        }
        if let Some(bytes) = self.options.receive_buffer {
            set_socket_recv_buffer_size(socket, bytes)?;
        }
        match self.dscp {
            // The two lower bits are ECN, which the kernel sets.
            Some(dscp) if at.is_ipv4() => set_ip_tos(socket, dscp << 2),
            Some(dscp) => set_ipv6_tclass(socket, u32::from(dscp) << 2),
            None => Ok(()),
        }
    }

    /// Calls `open` with this address. With port 0 and a configured port range, calls `open` with
    /// the ports of the range, from a random port on, until a port is not in use.
    pub(super) fn bind_in_port_range<T>(
        &self,
        at: SocketAddr,
        mut open: impl FnMut(SocketAddr) -> Result<T>,
    ) -> Result<T> {
        let Some(ports) = self.options.port_range.clone().filter(|_| at.port() == 0) else {
            return open(at);
        };
        // `SocketOptions::check` rejects an empty range.
        let count = u32::from(ports.end().saturating_sub(*ports.start())) + 1;
        let first = (RandomState::new().hash_one(at) % u64::from(count)) as u32;
        let mut tried = 0;
        loop {
            let port = ports.start() + ((first + tried) % count) as u16;
            let opened = open(SocketAddr::new(at.ip(), port));
            tried += 1;
            if tried == count || !matches!(opened, Err(Error::AddressInUse(_))) {
                return opened;
            }
        }
    }
}

/// Opens a non-blocking socket of the address family of `at`.
pub(super) fn open_socket(at: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    rustix::net::socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Binds a socket to an address.
pub(super) fn bind(socket: impl AsFd, scheme: Scheme, at: SocketAddr) -> Result<()> {
    rustix::net::bind(socket, &at).map_err(addr_error("bind", scheme, at))
}

/// Returns the address to which a socket is bound, with the port that the kernel chose for port 0.
pub(super) fn local_addr(socket: impl AsFd) -> Result<SocketAddr> {
    let name = rustix::net::getsockname(socket).and_then(SocketAddr::try_from);
    name.map_err(os_error("getsockname"))
}

/// Returns the conversion of an errno of `call`, a system call with the address `at`, into an
/// [`Error`].
pub(super) fn addr_error(
    call: &'static str,
    scheme: Scheme,
    at: SocketAddr,
) -> impl Fn(Errno) -> Error {
    move |errno| match (errno, Address::from_socket_addr(scheme, at)) {
        (Errno::ADDRINUSE, Ok(at)) => Error::AddressInUse(at),
        (Errno::ADDRNOTAVAIL, Ok(at)) => Error::AddressNotLocal(at),
        (errno, _) => Error::os(call, errno.raw_os_error()),
    }
}
