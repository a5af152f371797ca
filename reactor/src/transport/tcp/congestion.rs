//! How connections decide how fast they may send.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use fabric_core::{Error, Result, SocketOptions};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::net::sockopt::set_tcp_congestion;

use crate::transport::net::{SocketConfig, open_socket};

/// Whether options can be set here, which is known before there is a connection.
pub(super) fn validate(options: &SocketOptions) -> Result<()> {
    let Some(name) = &options.congestion_control else {
        return Ok(());
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let socket = open_socket(any, SocketType::STREAM)
        .map_err(|errno| Error::os("socket", errno.raw_os_error()))?;
    set_tcp_congestion(&socket, name).map_err(|errno| {
        let why = match errno {
            Errno::NOENT => format!("this kernel has no {name:?}"),
            Errno::PERM => {
                format!("{name:?} takes a right, or a place among tcp_allowed_congestion_control")
            }
            errno => format!("{name:?}: {errno}"),
        };
        Error::Invalid {
            what: "congestion control",
            why,
        }
    })
}

/// Chooses for a connection between these two.
pub(super) fn set_algorithm(
    socket: impl AsFd,
    (here, there): (SocketAddr, SocketAddr),
    tuning: &SocketConfig,
) -> Result<(), Errno> {
    match &tuning.options.congestion_control {
        Some(name) => set_tcp_congestion(socket, name),
        None => {
            if there.ip().is_loopback() || here.ip() == there.ip() {
                // Without it the connection is slower, and no worse.
                let _ = set_tcp_congestion(socket, SocketOptions::LOCAL_CONGESTION_CONTROL);
            }
            Ok(())
        }
    }
}
