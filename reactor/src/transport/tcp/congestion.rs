//! Congestion control.
//!
//! Where the default is `bbr`, the kernel paces the bytes that a connection sends. Over the
//! loopback interface pacing halves the bandwidth, and there is no other traffic to be fair to. So
//! connections inside the machine use `reno`, which is compiled into every Linux and may be chosen
//! without privileges; `cubic` may not. Without losses the two behave alike.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use fabric_core::{Error, Result, SocketOptions};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::net::sockopt::set_tcp_congestion;

use crate::sys::os_error::os_error;
use crate::transport::net::{SocketConfig, open_socket};

/// Checks on a temporary socket that the configured algorithm can be set, before there is a
/// connection.
///
/// # Errors
/// [`Error::Invalid`] if the kernel does not have the algorithm or the process may not choose it.
pub(super) fn validate(options: &SocketOptions) -> Result<()> {
    let Some(name) = &options.congestion_control else {
        return Ok(());
    };
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let socket = open_socket(loopback, SocketType::STREAM).map_err(os_error("socket"))?;
    set_tcp_congestion(&socket, name).map_err(|errno| {
        let why = match errno {
            Errno::NOENT => format!("the kernel does not have {name:?}"),
            Errno::PERM => {
                format!(
                    "{name:?} needs CAP_NET_ADMIN, or an entry in \
                     net.ipv4.tcp_allowed_congestion_control"
                )
            }
            errno => format!("{name:?}: {errno}"),
        };
        Error::Invalid {
            what: "congestion control",
            why,
        }
    })
}

/// Sets the algorithm of a connection from `local` to `remote`: the configured one, or for a
/// connection inside this machine [`SocketOptions::LOCAL_CONGESTION_CONTROL`].
pub(super) fn set_algorithm(
    socket: impl AsFd,
    (local, remote): (SocketAddr, SocketAddr),
    config: &SocketConfig,
) -> Result<(), Errno> {
    match &config.options.congestion_control {
        Some(name) => set_tcp_congestion(socket, name),
        None => {
            if remote.ip().is_loopback() || local.ip() == remote.ip() {
                // With the kernel's default algorithm the connection is slower, but works.
                let _ = set_tcp_congestion(socket, SocketOptions::LOCAL_CONGESTION_CONTROL);
            }
            Ok(())
        }
    }
}
