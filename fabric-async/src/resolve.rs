//! Names of hosts.

use std::net::SocketAddr;

use fabric_core::host::HostName;
use fabric_core::{Address, Error, Result, Scheme};
use tokio::runtime::Handle;

use crate::av::ToAddress;

/// Looks up the name of a host, as in `tcp://localhost:7000`, and gives the addresses that it has,
/// in the order in which the system wants them tried. What is an address already is the only one.
///
/// [`Endpoint::bind`](crate::Endpoint::bind), [`Endpoint::add_peer`](crate::Endpoint::add_peer),
/// [`Endpoint::connect`](crate::Endpoint::connect) and
/// [`PassiveEndpoint::bind`](crate::PassiveEndpoint::bind) do this by themselves, and try one after
/// the other. Calls that do not wait, as [`AddressVector::insert`](crate::AddressVector::insert),
/// take addresses only: look up first, and choose.
///
/// The system is asked (`getaddrinfo`) on a thread of Tokio's for blocking calls, so the runtime
/// goes on meanwhile. Nothing is remembered: a later call asks again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// let found = fabric_async::resolve("tcp://localhost:7000").await?;
/// assert!(found.iter().all(|at| at.socket().unwrap().ip().is_loopback()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NoSuchHost`], with the name, when it has no address; [`Error::BadAddress`] for what is
/// neither; [`Error::Runtime`] outside of a Tokio runtime.
///
/// # Cancel safety
/// Dropping the future drops the answer; the thread goes on until the system has given it.
#[doc(alias = "getaddrinfo")]
#[doc(alias = "fi_av_insertsvc")]
pub async fn resolve(of: impl ToAddress) -> Result<Vec<Address>> {
    resolve_filtered(&of, Scheme::Tcp, |_| true).await
}

/// The same where addresses of this kind are expected, and only those of hosts that can be used
/// here.
pub(crate) async fn resolve_filtered(
    of: &impl ToAddress,
    expected: Scheme,
    is_useful: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<Address>> {
    AddressOrHost::parse(of, expected)?.resolve(is_useful).await
}

/// Where somebody is to be found: at an address, or at one of those that a host has.
#[derive(Clone, Debug)]
pub(crate) enum AddressOrHost {
    Address(Address),
    Host(HostName),
}

impl AddressOrHost {
    pub(crate) fn parse(text: &impl ToAddress, expected: Scheme) -> Result<Self> {
        Ok(match text.to_host_for(expected) {
            Some(host) => Self::Host(host),
            None => Self::Address(text.to_address_for(expected)?),
        })
    }

    pub(crate) fn scheme(&self) -> Scheme {
        match self {
            Self::Address(address) => address.scheme(),
            Self::Host(host) => host.scheme(),
        }
    }

    /// Its addresses, one at least, but of a host only those that can be used here.
    pub(crate) async fn resolve(
        self,
        is_useful: impl Fn(SocketAddr) -> bool,
    ) -> Result<Vec<Address>> {
        match self {
            Self::Address(address) => Ok(vec![address]),
            Self::Host(name) => resolve_host(&name, is_useful).await,
        }
    }
}

async fn resolve_host(
    name: &HostName,
    is_useful: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<Address>> {
    let none = |why: String| Error::NoSuchHost {
        host: name.host().into(),
        why,
    };
    if Handle::try_current().is_err() {
        return Err(Error::Runtime(
            "names of hosts are looked up within a Tokio runtime",
        ));
    }
    let found = tokio::net::lookup_host((name.host(), name.port())).await;
    let found = found.map_err(|error| none(error.to_string()))?;
    let mut addresses = Vec::new();
    for at in found.filter(|at| is_useful(*at)) {
        match name.to_address(at) {
            Ok(address) if !addresses.contains(&address) => addresses.push(address),
            _ => {}
        }
    }
    if addresses.is_empty() {
        return Err(none(
            "it has none that can be used here, of the family of the endpoint's own address".into(),
        ));
    }
    Ok(addresses)
}
