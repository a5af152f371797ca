//! The registry of transports. A new transport needs a folder in `transport`, an entry in
//! `TRANSPORTS`, and its scheme and protocol names in `fabric-core` (`address.rs`,
//! `info/level.rs`).

use fabric_core::info::FabricAttr;
use fabric_core::{Error, Result};

use crate::engine::EngineTransport;
use crate::transport::info_templates::PROVIDER_VERSION;
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

/// Returns the name and version of every provider, in order of preference (`fi_getinfo` with
/// `FI_PROV_ATTR_ONLY`). The system is not asked what is usable, and `FI_PROVIDER` has no effect.
/// The other attributes have their defaults.
///
/// ```
/// # mod fabric_async { pub use fabric_reactor::registry as info; }
/// use fabric_async::info::providers;
/// let names: Vec<_> = providers().into_iter().map(|attr| attr.provider).collect();
/// assert_eq!(names, ["shm", "tcp", "udp", "sim"]);
/// ```
#[doc(alias = "FI_PROV_ATTR_ONLY")]
#[must_use]
pub fn providers() -> Vec<FabricAttr> {
    let attr_of = |transport: &&EngineTransport| {
        let mut attr = FabricAttr::default();
        attr.provider = transport.name().into();
        attr.provider_version = PROVIDER_VERSION;
        attr
    };
    TRANSPORTS.iter().map(attr_of).collect()
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
