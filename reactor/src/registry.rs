//! The registry of transports. A new transport needs a folder in `transport`, an entry in
//! `TRANSPORTS`, and its scheme and protocol names in `fabric-core` (`address.rs`,
//! `info/level.rs`).

use fabric_core::{Error, Result};

use crate::engine::EngineTransport;
use crate::transport::{
    shm::ShmTransport, sim::SimTransport, tcp::TcpTransport, udp::UdpTransport,
};

static TRANSPORTS: [&EngineTransport; 4] =
    [&ShmTransport, &TcpTransport, &UdpTransport, &SimTransport];

/// Returns every transport, in order of preference.
#[must_use]
pub fn all() -> &'static [&'static EngineTransport] {
    &TRANSPORTS
}

/// Returns the transport of the provider with this name.
///
/// # Errors
/// [`Error::UnknownProvider`], which lists the names of all providers.
pub fn by_name(name: &str) -> Result<&'static EngineTransport> {
    TRANSPORTS
        .into_iter()
        .find(|transport| transport.name() == name)
        .ok_or_else(|| Error::UnknownProvider {
            requested: name.into(),
            known: TRANSPORTS
                .iter()
                .map(|transport| transport.name())
                .collect(),
        })
}
