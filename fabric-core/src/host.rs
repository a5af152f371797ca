//! Addresses with a host name or a service name that is not resolved yet.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::address::{Address, Scheme};
use crate::error::Result;

/// The largest length of a host name, in bytes.
const MAX_HOST_NAME: usize = 253;

/// The largest length of a service name, in bytes (RFC 6335: 15; older names are longer).
const MAX_SERVICE_NAME: usize = 32;

/// A host and a port of which at least one is a name: `tcp://localhost:7000`, `tcp://[::1]:http`.
/// The names must be resolved before an endpoint can connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName {
    scheme: Scheme,
    /// A name, or an IP address.
    host: String,
    port: Port,
}

/// The port of a [`HostName`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// Its number.
    Number(u16),
    /// The name of a service, as in `services(5)`.
    Service(String),
}

impl Port {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return Some(Self::Number(number));
        }
        let is_name = text.len() <= MAX_SERVICE_NAME
            && text.bytes().any(|byte| byte.is_ascii_alphabetic())
            && (text.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"-_+.".contains(&byte));
        is_name.then(|| Self::Service(text.into()))
    }
}

impl HostName {
    /// Parses a host and a port with a name, with the scheme rules of [`Address::parse_for`].
    /// Returns `None` when the text has no name: the text is an address or malformed.
    ///
    /// ```
    /// use fabric_core::{Scheme, host::{HostName, Port}};
    /// let name = HostName::parse_for("tcp://localhost:7000", Scheme::Tcp).unwrap();
    /// assert_eq!((name.host(), name.port()), ("localhost", &Port::Number(7000)));
    /// let name = HostName::parse_for("tcp://127.0.0.1:http", Scheme::Tcp).unwrap();
    /// assert_eq!(name.port(), &Port::Service("http".into()));
    /// assert_eq!(HostName::parse_for("tcp://127.0.0.1:7000", Scheme::Tcp), None);
    /// ```
    #[must_use]
    pub fn parse_for(text: &str, expected: Scheme) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme =
            Scheme::parse_for(scheme, expected).filter(|scheme| scheme.is_socket_addr())?;
        let (host, port) = rest.rsplit_once(':')?;
        let port = Port::parse(port)?;
        let in_brackets = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_ip = in_brackets.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
            || host.parse::<Ipv4Addr>().is_ok();
        if is_ip {
            let host = in_brackets.unwrap_or(host).into();
            let is_service = matches!(port, Port::Service(_));
            return is_service.then_some(Self { scheme, host, port });
        }
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

    /// Returns the host name, or the IP address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
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

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Service(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fi_{}://", self.scheme.provider())?;
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
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
            "fi_tcp://localhost:http",
            "fi_tcp://127.0.0.1:iso-tsap",
            "fi_tcp://[::1]:x11-1",
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
            "tcp://127.0.0.1:70000",
            "tcp://127.0.0.1:-1",
            "tcp://::1:http",
            "tcp://[host]:http",
            "tcp://10.0.0.300:http",
            "tcp://host:a/b",
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
