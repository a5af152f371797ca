//! Resolution of host and service names.

use std::net::SocketAddr;
use std::{fs, io};

use fabric_core::host::{HostName, Port};
use fabric_core::{Address, Error, Result, Scheme};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::av::ToAddress;

/// Resolves a host name, as in `tcp://localhost:7000`, to its addresses, in the order in which the
/// system prefers them. The port may be the name of a service of this protocol in `/etc/services`,
/// as in `tcp://localhost:http`. An address resolves to itself. So this is the lookup of
/// `fi_getinfo(node, service)`: pass an address to [`Hints::dest_addr`](crate::Hints::dest_addr),
/// or with `FI_SOURCE` to [`Hints::src_addr`](crate::Hints::src_addr).
///
/// [`Endpoint::bind`](crate::Endpoint::bind), [`Endpoint::add_peer`](crate::Endpoint::add_peer),
/// [`ConnectedEndpoint::connect`](crate::ConnectedEndpoint::connect) and
/// [`PassiveEndpoint::bind`](crate::PassiveEndpoint::bind) resolve names themselves. They try the
/// addresses in this order until one succeeds, or the program at one of them rejects the
/// connection. If every address fails, they return the error of the last address, as
/// `tokio::net::TcpStream::connect` does. Synchronous calls such as
/// [`AddressVector::insert`](crate::AddressVector::insert) take addresses only: resolve the name
/// first and choose an address.
///
/// The lookup (`getaddrinfo`, and the read of the file) runs on Tokio's blocking threads. Results
/// are not cached.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// let found = fabric_async::resolve("tcp://localhost:7000").await?;
/// assert!(found.iter().all(|at| at.socket_addr().unwrap().ip().is_loopback()));
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NoSuchHost`], with the name, when the host has no address, or the service no port;
/// [`Error::BadAddress`] for text that is neither an address nor a name; [`Error::Runtime`] outside
/// of a Tokio runtime.
///
/// # Cancel safety
/// Dropping the future drops the result; the blocking thread finishes the lookup.
#[doc(alias = "getaddrinfo")]
#[doc(alias = "fi_av_insertsvc")]
pub async fn resolve(of: impl ToAddress) -> Result<Vec<Address>> {
    resolve_filtered(&of, Scheme::Tcp, |_| true).await
}

/// Resolves an address or a host name to at least one address. `expected` is the scheme of text
/// that names none. Of the addresses of a host, returns those that `is_useful` accepts.
pub(crate) async fn resolve_filtered(
    of: &impl ToAddress,
    expected: Scheme,
    is_useful: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<Address>> {
    AddressOrHost::parse(of, expected)?.resolve(is_useful).await
}

/// The target of a bind or connect: an address, or the name of a host, which may have several
/// addresses.
#[derive(Clone, Debug)]
pub(crate) enum AddressOrHost {
    Address(Address),
    Host(HostName),
}

impl AddressOrHost {
    /// Parses an address or a host name. `expected` is the scheme of text that names none.
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

    /// Returns at least one address; of a host, those that `is_useful` accepts.
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

/// Calls `attempt` with each address, in order, until one call succeeds or the program at an
/// address rejects the connection. If every call fails, returns the error of the last one, as
/// `tokio::net::TcpStream::connect` does, and a `tracing` event states the number of addresses.
///
/// # Panics
/// If `addresses` is empty; [`AddressOrHost::resolve`] returns at least one address.
pub(crate) async fn try_addresses<T, F: Future<Output = Result<T>>>(
    addresses: Vec<Address>,
    mut attempt: impl FnMut(Address) -> F,
) -> Result<T> {
    let (tried, mut last_error) = (addresses.len(), None);
    for address in addresses {
        match attempt(address).await {
            Ok(opened) => return Ok(opened),
            // The program that was meant has decided; its other addresses lead to the same program.
            Err(error @ Error::RejectedByPeer { .. }) => return Err(error),
            Err(error) => last_error = Some(error),
        }
    }
    if tried > 1 {
        tracing::debug!(target: "fabric::connection", tried, "every address of the host failed");
    }
    Err(last_error.expect("resolution returns at least one address"))
}

/// Looks up a host name, and returns the addresses that `is_useful` accepts, each once.
async fn resolve_host(
    name: &HostName,
    is_useful: impl Fn(SocketAddr) -> bool,
) -> Result<Vec<Address>> {
    let no_address = |why: String| Error::NoSuchHost {
        host: name.host().into(),
        why,
    };
    if Handle::try_current().is_err() {
        return Err(Error::Runtime(
            "host names are resolved on a Tokio runtime, and none is running on this thread",
        ));
    }
    let port = match name.port() {
        Port::Number(number) => *number,
        Port::Service(service) => {
            let services = spawn_blocking(|| fs::read("/etc/services")).await;
            let port = services
                .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
                .map_err(|error| format!("/etc/services, with the ports of services: {error}"))
                .and_then(|services| {
                    let services = String::from_utf8_lossy(&services);
                    let protocol = name.scheme().provider();
                    find_service(&services, service, protocol)
                        .ok_or_else(|| format!("/etc/services has no {protocol} service {service}"))
                });
            port.map_err(no_address)?
        }
    };
    let found = tokio::net::lookup_host((name.host(), port)).await;
    let found = found.map_err(|error| no_address(error.to_string()))?;
    let mut addresses = Vec::new();
    for at in found.filter(|at| is_useful(*at)) {
        match name.to_address(at) {
            Ok(address) if !addresses.contains(&address) => addresses.push(address),
            _ => {}
        }
    }
    if addresses.is_empty() {
        return Err(no_address(
            "it has no address of the address family of the endpoint".into(),
        ));
    }
    Ok(addresses)
}

/// Returns the port of a service in the text of `/etc/services` (`services(5)`): lines of a name,
/// `PORT/PROTOCOL`, and other names.
fn find_service(services: &str, name: &str, protocol: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let line = line.split('#').next()?;
        let mut words = line.split_whitespace();
        let (first, at) = (words.next()?, words.next()?);
        let (port, of) = at.split_once('/')?;
        let is_named = first == name || words.any(|alias| alias == name);
        (is_named && of == protocol).then(|| port.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_name_alias_and_protocol() {
        let services = "# comment\n\nhttp\t80/tcp\t\twww # WorldWideWeb\ndomain 53/tcp\n\
                        domain 53/udp\nbad x/tcp\nbad 70000/tcp\nlate 7/tcp #echo\n";
        for (name, protocol, port) in [
            ("http", "tcp", Some(80)),
            ("www", "tcp", Some(80)),
            ("WorldWideWeb", "tcp", None),
            ("http", "udp", None),
            ("domain", "udp", Some(53)),
            ("bad", "tcp", None),
            ("echo", "tcp", None),
            ("comment", "tcp", None),
        ] {
            assert_eq!(find_service(services, name, protocol), port, "{name}");
        }
    }

    /// Tries three addresses. The one at the port `decisive` yields what `outcome` makes of it, the
    /// others fail. Returns the result and the ports of the addresses that were tried.
    async fn try_three(
        decisive: u16,
        outcome: impl Fn(Address) -> Result<Address>,
    ) -> (Result<Address>, Vec<u16>) {
        let addresses = (1..=3).map(|port| {
            let at = SocketAddr::from(([127, 0, 0, 1], port));
            Address::from_socket_addr(Scheme::Tcp, at).unwrap()
        });
        let mut tried = Vec::new();
        let result = try_addresses(addresses.collect(), |address| {
            let port = address.socket_addr().unwrap().port();
            tried.push(port);
            std::future::ready(if port == decisive {
                outcome(address)
            } else {
                Err(Error::NoSuchPeer(address))
            })
        });
        (result.await, tried)
    }

    #[tokio::test]
    async fn first_usable_address_ends_the_attempts() {
        let (result, tried) = try_three(2, Ok).await;
        assert_eq!(result.unwrap().socket_addr().unwrap().port(), 2);
        assert_eq!(tried, [1, 2], "address 3 is not tried");
    }

    #[tokio::test]
    async fn last_error_is_returned_after_every_address_was_tried() {
        let (result, tried) = try_three(0, Ok).await;
        let Err(Error::NoSuchPeer(last)) = &result else {
            panic!("{result:?}");
        };
        assert_eq!(last.socket_addr().unwrap().port(), 3);
        assert_eq!(tried, [1, 2, 3]);
    }

    #[tokio::test]
    async fn rejection_by_the_program_ends_the_attempts() {
        let reject = |peer| {
            Err(Error::RejectedByPeer {
                peer,
                data: b"busy".to_vec(),
            })
        };
        let (result, tried) = try_three(2, reject).await;
        assert!(
            matches!(&result, Err(Error::RejectedByPeer { data, .. }) if data == b"busy"),
            "{result:?}"
        );
        assert_eq!(tried, [1, 2], "address 3 leads to the same program");
    }
}
