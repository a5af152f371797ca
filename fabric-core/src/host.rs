//! Addresses with a host name that is not resolved yet.

use std::fmt;
use std::net::SocketAddr;

use crate::address::{Address, Scheme};
use crate::error::Result;

/// The largest length of a host name, in bytes.
const MAX_HOST_NAME: usize = 253;

/// A host name and a port: `tcp://localhost:7000`. The name must be resolved before an endpoint can
/// connect to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl HostName {
    /// Parses a host name and port, with the scheme rules of [`Address::parse_for`]. Returns `None`
    /// when the text names no host: the text is an address or malformed.
    ///
    /// ```
    /// use fabric_core::{Scheme, host::HostName};
    /// let name = HostName::parse_for("tcp://localhost:7000", Scheme::Tcp).unwrap();
    /// assert_eq!((name.host(), name.port()), ("localhost", 7000));
    /// assert_eq!(HostName::parse_for("tcp://127.0.0.1:7000", Scheme::Tcp), None);
    /// ```
    #[must_use]
    pub fn parse_for(text: &str, expected: Scheme) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme =
            Scheme::parse_for(scheme, expected).filter(|scheme| scheme.is_socket_addr())?;
        let (host, port) = rest.rsplit_once(':')?;
        let port = port.parse().ok()?;
        // A last label without a letter is meant to be an IP address, but is malformed.
        let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next()?;
        let is_name = host.len() <= MAX_HOST_NAME
            && last.bytes().any(|byte| byte.is_ascii_alphabetic())
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        is_name.then(|| Self {
            scheme,
            host: host.into(),
            port,
        })
    }

    /// Returns the scheme of the addresses that the name resolves to.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Converts a socket address that the name was resolved to.
    ///
    /// # Errors
    /// [`Error::BadAddress`](crate::Error::BadAddress) when the address is not that of one machine.
    pub fn to_address(&self, resolved: SocketAddr) -> Result<Address> {
        Address::new(
            self.scheme,
            Address::from_socket_addr(self.scheme, resolved)?.name(),
        )
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fi_{}://{}:{}",
            self.scheme.provider(),
            self.host,
            self.port
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_distinguished_from_addresses() {
        let parse = |text| HostName::parse_for(text, Scheme::Udp);
        for text in [
            "fi_tcp://localhost:0",
            "fi_udp://a-b.example.org.:65535",
            "fi_tcp://x_1:7",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            parse("TCP://localhost:1").unwrap().to_string(),
            "fi_tcp://localhost:1"
        );
        assert_eq!(
            parse("sockaddr_in://host:1").unwrap().to_string(),
            "fi_udp://host:1"
        );
        for text in [
            "tcp://127.0.0.1:5",
            "tcp://[::1]:5",
            "tcp://10.0.0.300:5",
            "tcp://1:5",
            "tcp://host",
            "tcp://host:70000",
            "tcp://:5",
            "tcp://a/b:5",
            "tcp://",
            "shm://host:5",
            "host:5",
            "tcp://a b:5",
            "x://host:5",
            "tcp://fe80::1:5",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&format!("tcp://{}:5", "x".repeat(254))), None);
    }

    #[test]
    fn resolved_socket_addr_becomes_an_address() {
        let name = HostName::parse_for("tcp://localhost:5", Scheme::Tcp).unwrap();
        assert_eq!(
            name.to_address(([127, 0, 0, 1], 5).into())
                .unwrap()
                .to_string(),
            "fi_tcp://127.0.0.1:5"
        );
        assert!(
            name.to_address(([0, 0, 0, 0], 5).into()).is_err(),
            "0.0.0.0 is no peer address"
        );
    }
}
