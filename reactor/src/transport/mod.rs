//! The registry of providers. Adding one touches its folder, this list, and the names of schemes
//! and protocols in `fabric-core` (`address.rs`, `info/level.rs`).

pub(crate) mod fork_guard;
mod info_templates;
mod net;
pub mod shm;
pub mod tcp;
mod token;
pub mod udp;

use fabric_core::sim::SimTransport;
use fabric_core::transport::Transport;
use fabric_core::{Error, Result};

static TRANSPORTS: [&dyn Transport; 4] = [
    &shm::ShmTransport,
    &tcp::TcpTransport,
    &udp::UdpTransport,
    &SimTransport,
];

/// Every provider, best first.
#[must_use]
pub fn all() -> &'static [&'static dyn Transport] {
    &TRANSPORTS
}

/// The provider of this name.
///
/// # Errors
/// [`Error::UnknownProvider`], which names those that exist.
pub fn by_name(name: &str) -> Result<&'static dyn Transport> {
    TRANSPORTS
        .into_iter()
        .find(|provider| provider.name() == name)
        .ok_or_else(|| Error::UnknownProvider {
            asked: name.into(),
            known: TRANSPORTS.iter().map(|provider| provider.name()).collect(),
        })
}
