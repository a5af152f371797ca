//! The registry of providers. Adding one touches its folder, this list, and the names of schemes
//! and protocols in `fabric-core` (`address.rs`, `info/level.rs`).

mod net;
mod offers;
pub(crate) mod origin;
pub mod shm;
pub mod tcp;
mod token;
pub mod udp;

use fabric_core::provider::Provider;
use fabric_core::sim::SimProvider;
use fabric_core::{Error, Result};

static PROVIDERS: [&dyn Provider; 4] = [
    &shm::ShmProvider,
    &tcp::TcpProvider,
    &udp::UdpProvider,
    &SimProvider,
];

/// Every provider, best first.
#[must_use]
pub fn all() -> &'static [&'static dyn Provider] {
    &PROVIDERS
}

/// The provider of this name.
///
/// # Errors
/// [`Error::UnknownProvider`], which names those that exist.
pub fn by_name(name: &str) -> Result<&'static dyn Provider> {
    PROVIDERS
        .into_iter()
        .find(|provider| provider.name() == name)
        .ok_or_else(|| Error::UnknownProvider {
            asked: name.into(),
            known: PROVIDERS.iter().map(|provider| provider.name()).collect(),
        })
}
