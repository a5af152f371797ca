//! Addresses of endpoints, as people write them and as an address vector numbers them.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The longest name inside an address, in bytes.
pub const MAX_NAME: usize = 80;

/// Where an endpoint can be reached: `fi_shm://NAME`, `fi_tcp://IP:PORT`, `fi_udp://IP:PORT`,
/// `fi_sim://NAME`.
///
/// Parses from and prints as text (`FI_ADDR_STR`); the `fi_` prefix may be left out when parsing.
/// An address with an empty name asks for a fresh one where it is bound, and names nobody as a
/// peer.
///
/// ```
/// # use fabric_core as fabric_async;
/// use fabric_async::{Address, Scheme};
/// let address: Address = "shm://echo".parse()?;
/// assert_eq!((address.scheme(), address.name()), (Scheme::Shm, "echo"));
/// assert_eq!(address.to_string(), "fi_shm://echo");
/// # Ok::<(), fabric_async::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "fi_av_straddr")]
pub struct Address {
    scheme: Scheme,
    name: Arc<str>,
}

/// The kind of an address, which is also the provider that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// Shared memory between processes of one machine.
    Shm,
    /// TCP, on the wire of libfabric's provider of that name.
    Tcp,
    /// UDP, on the wire of libfabric's provider of that name.
    Udp,
    /// The simulated network inside one process.
    Sim,
}

impl Scheme {
    const ALL: [Self; 4] = [Self::Shm, Self::Tcp, Self::Udp, Self::Sim];

    /// The name of the provider that serves addresses of this kind.
    #[must_use]
    pub fn provider(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sim => "sim",
        }
    }

    /// The kind of address that this provider serves.
    #[must_use]
    pub fn from_provider(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.provider() == name)
    }

    /// The kind that text means before the `://`, where this one is expected.
    pub(crate) fn parse_for(text: &str, expected: Self) -> Option<Self> {
        match text.strip_prefix("fi_").unwrap_or(text) {
            "sockaddr_in" | "sockaddr_in6" if expected.is_socket_addr() => Some(expected),
            "sockaddr_in" | "sockaddr_in6" => Some(Self::Tcp),
            scheme => Self::from_provider(scheme),
        }
    }

    /// Whether a name is the IP address and port of a socket.
    pub(crate) fn is_socket_addr(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

impl Address {
    /// An address of this kind and name.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when the name is longer than 80 bytes, or holds anything but ASCII
    /// letters, digits and `._-:@+`. With [`Scheme::Tcp`] and [`Scheme::Udp`], when it is not the
    /// IP address and port of one machine, as in `127.0.0.1:5000` or `[::1]:5000`; with `Udp` it
    /// may also be that of a group of them, as in `239.1.2.3:5000`.
    pub fn new(scheme: Scheme, name: &str) -> Result<Self> {
        let bad = |why| {
            Err(Error::BadAddress {
                text: format!("fi_{}://{name}", scheme.provider()),
                why,
            })
        };
        if name.len() > MAX_NAME {
            return bad("the name is longer than 80 bytes");
        }
        if scheme.is_socket_addr() && !name.is_empty() {
            let Ok(at) = name.parse::<SocketAddr>() else {
                return bad(
                    "it takes an IP address and a port, as in tcp://127.0.0.1:5000 or tcp://[::1]:5000; `resolve` looks up the name of a host",
                );
            };
            if at.ip().is_unspecified() || (at.ip().is_multicast() && scheme != Scheme::Udp) {
                return bad(
                    "it takes an address by which peers reach this one machine, and 0.0.0.0 or a group is none",
                );
            }
            return Self::from_socket_addr(scheme, at);
        }
        if !name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-:@+".contains(&b))
        {
            return bad("a name holds ASCII letters, digits and any of . _ - : @ +");
        }
        Ok(Self {
            scheme,
            name: name.into(),
        })
    }

    /// The address of a socket.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when addresses of this kind name no sockets.
    #[doc(hidden)]
    pub fn from_socket_addr(scheme: Scheme, at: SocketAddr) -> Result<Self> {
        let text = match at {
            SocketAddr::V4(at) => at.to_string(),
            // Neither the flow nor the scope of an address means anything elsewhere.
            SocketAddr::V6(at) => format!("[{}]:{}", at.ip(), at.port()),
        };
        if scheme.is_socket_addr() {
            return Ok(Self {
                scheme,
                name: text.into(),
            });
        }
        Err(Error::BadAddress {
            text,
            why: "addresses of this kind are names",
        })
    }

    /// The address of the socket behind this, if it names one.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        self.scheme
            .is_socket_addr()
            .then(|| self.name.parse().ok())
            .flatten()
    }

    /// Whether it names somebody, as the address of a peer does.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a name, and with port 0.
    #[doc(hidden)]
    pub fn check_peer(&self) -> Result<()> {
        let why = if self.name.is_empty() {
            format!("{self} has no name")
        } else if self.socket_addr().is_some_and(|at| at.port() == 0) {
            format!(
                "{self} has port 0, which asks for one where it is bound; `name` tells which it got"
            )
        } else {
            return Ok(());
        };
        Err(Error::Invalid {
            what: "peer address",
            why,
        })
    }

    /// The kind of this address.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The name behind the scheme; empty for "any".
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Address {
    /// Parses text where addresses of this kind are expected: `fi_sockaddr_in://…` and
    /// `fi_sockaddr_in6://…`, which name a socket and no provider, are of that kind then, if its
    /// addresses are sockets. In general they are taken for [`Scheme::Tcp`].
    ///
    /// ```
    /// # use fabric_core as fabric_async;
    /// use fabric_async::{Address, Scheme};
    /// let text = "fi_sockaddr_in://127.0.0.1:5000";
    /// assert_eq!(Address::parse_for(text, Scheme::Udp)?.to_string(), "fi_udp://127.0.0.1:5000");
    /// assert_eq!(text.parse::<Address>()?.to_string(), "fi_tcp://127.0.0.1:5000");
    /// # Ok::<(), fabric_async::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub fn parse_for(text: &str, expected: Scheme) -> Result<Self> {
        let bad = |why| {
            Err(Error::BadAddress {
                text: text.chars().take(200).collect(),
                why,
            })
        };
        let Some((scheme, name)) = text.split_once("://") else {
            return bad("an address reads SCHEME://NAME, as in shm://echo");
        };
        let Some(scheme) = Scheme::parse_for(scheme, expected) else {
            return bad("unknown scheme; known: shm, tcp, udp, sim");
        };
        Self::new(scheme, name).or_else(|error| match error {
            Error::BadAddress { why, .. } => bad(why),
            other => Err(other),
        })
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse_for(text, Scheme::Tcp)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fi_{}://{}", self.scheme.provider(), self.name)
    }
}

/// A peer's number in an address vector (`fi_addr_t`).
///
/// Valid only with endpoints bound to the vector that gave it out. A generation beside the index
/// makes the number of a removed peer an error instead of somebody else's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "fi_addr_t")]
pub struct FiAddr {
    /// Position in the table (`FI_AV_TABLE`).
    pub(crate) index: u32,
    /// Which use of that position.
    pub(crate) generation: u16,
    /// Which vector.
    pub(crate) vector: u16,
}

impl FiAddr {
    /// The position in the table of the address vector, counted from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_parse_round_trip() {
        for text in [
            "fi_tcp://127.0.0.1:5000",
            "fi_tcp://[::1]:5000",
            "fi_tcp://",
            "fi_udp://127.0.0.1:5000",
            "fi_udp://[::1]:5000",
            "fi_udp://239.1.2.3:5000",
            "fi_shm://echo",
            "fi_shm://",
            "fi_sim://a.b-c_d:0@x+y",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            "shm://x".parse::<Address>().unwrap().to_string(),
            "fi_shm://x"
        );
    }

    #[test]
    fn parse_error_names_reason_and_text() {
        for (text, part) in [
            ("echo", "SCHEME://NAME"),
            ("tcq://x", "unknown scheme"),
            ("udp://0.0.0.0:5000", "one machine"),
            ("udp://localhost:5000", "IP address"),
            ("tcp://239.1.2.3:5000", "one machine"),
            ("shm://a/b", "ASCII letters"),
            ("shm://a\0b", "ASCII letters"),
            ("", "SCHEME://NAME"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
        assert!("x".repeat(81).parse::<Address>().is_err());
        assert!(
            format!("shm://{}", "x".repeat(81))
                .parse::<Address>()
                .is_err()
        );
        assert!(
            format!("shm://{}", "x".repeat(80))
                .parse::<Address>()
                .is_ok()
        );
    }
}
