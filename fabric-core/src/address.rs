//! Addresses of endpoints as text, and handles of addresses in an address vector.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU64};
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The largest length of the name in an address, in bytes.
pub const MAX_NAME: usize = 80;

/// The address of an endpoint: `fi_shm://NAME`, `fi_tcp://IP:PORT`, `fi_udp://IP:PORT`,
/// `fi_sim://NAME`.
///
/// Parses from and prints as text (`FI_ADDR_STR`). Text to be parsed may omit the `fi_` prefix and
/// write the scheme in upper case; printed text has the prefix and lower case: an endpoint that is
/// bound to `shm://echo` prints its name as `fi_shm://echo`, and both texts are the same address.
/// An endpoint that is bound to an address with an empty name gets a generated name. The address of
/// a peer has a name.
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

/// The address format of an address, and with it the provider that serves the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// Shared memory between processes of one machine.
    Shm,
    /// TCP, with the wire protocols of libfabric's provider `tcp`.
    Tcp,
    /// UDP, with the wire protocol of libfabric's provider `udp`.
    Udp,
    /// The simulated network inside one process.
    Sim,
}

impl Scheme {
    /// All schemes, in the order of preference of their providers.
    pub const ALL: [Self; 4] = [Self::Shm, Self::Tcp, Self::Udp, Self::Sim];

    /// Returns the name of the provider that serves addresses of this scheme.
    #[must_use]
    pub fn provider(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sim => "sim",
        }
    }

    /// Returns the scheme that a provider serves.
    #[must_use]
    pub fn from_provider(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.provider() == name)
    }

    /// Parses the text before `://`. `expected` resolves the schemes `sockaddr_in` and
    /// `sockaddr_in6`, which name no provider. Upper and lower case are equal (RFC 3986).
    pub(crate) fn parse_for(text: &str, expected: Self) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        match text.strip_prefix("fi_").unwrap_or(&text) {
            "sockaddr_in" | "sockaddr_in6" if expected.is_socket_addr() => Some(expected),
            "sockaddr_in" | "sockaddr_in6" => Some(Self::Tcp),
            scheme => Self::from_provider(scheme),
        }
    }

    /// Returns what is wrong with text that has no scheme.
    fn missing_scheme_reason(self) -> &'static str {
        match self {
            Self::Shm => "the scheme is missing, as in shm://echo",
            Self::Tcp => "the scheme is missing, as in tcp://127.0.0.1:7000",
            Self::Udp => "the scheme is missing, as in udp://127.0.0.1:7000",
            Self::Sim => "the scheme is missing, as in sim://echo",
        }
    }

    /// Returns what is wrong with a name that has a port and no host.
    fn missing_host_reason(self) -> &'static str {
        match self {
            Self::Udp => "the host is missing before the port, as in udp://127.0.0.1:7000",
            _ => "the host is missing before the port, as in tcp://127.0.0.1:7000",
        }
    }

    /// Returns what is wrong with a name that has no port.
    fn missing_port_reason(self) -> &'static str {
        match self {
            Self::Udp => "the port is missing, as in udp://127.0.0.1:7000 or udp://[::1]:7000",
            _ => "the port is missing, as in tcp://127.0.0.1:7000 or tcp://[::1]:7000",
        }
    }

    /// Returns whether the name of such an address is a socket's IP address and port.
    pub(crate) fn is_socket_addr(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

impl Address {
    /// Creates an address from a scheme and a name.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when the name is longer than 80 bytes, or holds anything but ASCII
    /// letters, digits and `._-:@+`. With [`Scheme::Tcp`] and [`Scheme::Udp`], when the name is not
    /// the IP address and port of one machine, as in `127.0.0.1:5000` or `[::1]:5000`; with `Udp` a
    /// multicast group is valid too, as in `239.1.2.3:5000`.
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
            let Ok(socket_addr) = name.parse::<SocketAddr>() else {
                let ip = name
                    .strip_prefix('[')
                    .and_then(|name| name.strip_suffix(']'));
                let port = name.rsplit_once(':').map(|(_, port)| port);
                return bad(match port {
                    _ if ip.unwrap_or(name).parse::<IpAddr>().is_ok() => {
                        scheme.missing_port_reason()
                    }
                    None | Some("") => scheme.missing_port_reason(),
                    Some(port) if name.len() == port.len() + 1 => scheme.missing_host_reason(),
                    Some(port) if port.bytes().any(|byte| byte.is_ascii_alphabetic()) => {
                        "the port is not a number, nor a service name that this call resolves: \
                         see `resolve`"
                    }
                    Some(port) if port.parse::<u16>().is_err() => {
                        "the port, after the last colon, is not a number from 0 to 65535"
                    }
                    _ => {
                        "the part before the port is not an IP address ([::1] for IPv6), nor a \
                         host name that this call resolves: see `resolve`"
                    }
                });
            };
            if socket_addr.ip().is_unspecified() {
                return bad(
                    "peers cannot reach an unspecified address; name one address of the machine",
                );
            }
            if socket_addr.ip().is_multicast() && scheme != Scheme::Udp {
                return bad("a multicast group is not the address of one machine");
            }
            return Self::from_socket_addr(scheme, socket_addr);
        }
        if !name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-:@+".contains(&b))
        {
            return bad("a name holds only ASCII letters, digits and any of . _ - : @ +");
        }
        Ok(Self {
            scheme,
            name: name.into(),
        })
    }

    /// Creates the address of a socket.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when the names of this scheme are not socket addresses.
    #[doc(hidden)]
    pub fn from_socket_addr(scheme: Scheme, socket_addr: SocketAddr) -> Result<Self> {
        let text = match socket_addr {
            SocketAddr::V4(v4) => v4.to_string(),
            // Flow label and scope id are meaningful on this machine only.
            SocketAddr::V6(v6) => format!("[{}]:{}", v6.ip(), v6.port()),
        };
        if scheme.is_socket_addr() {
            return Ok(Self {
                scheme,
                name: text.into(),
            });
        }
        Err(Error::BadAddress {
            text,
            why: "addresses of this scheme hold a name, not an IP address and port",
        })
    }

    /// Returns the IP address and port in the name; `None` for an empty name, and for a scheme
    /// whose names are not socket addresses.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        self.scheme
            .is_socket_addr()
            .then(|| self.name.parse().ok())
            .flatten()
    }

    /// Checks that the provider of scheme `served` serves the address.
    ///
    /// # Errors
    /// [`Error::WrongScheme`] when the address has another scheme.
    #[doc(hidden)]
    pub fn check_scheme(&self, served: Scheme) -> Result<()> {
        if self.scheme == served {
            return Ok(());
        }
        Err(Error::WrongScheme {
            provider: served.provider(),
            address: self.clone(),
        })
    }

    /// Returns the socket address of a peer for the transport of scheme `served`.
    ///
    /// # Errors
    /// [`Error::WrongScheme`] when the address has another scheme; [`Error::BadAddress`] when the
    /// address holds no socket address.
    #[doc(hidden)]
    pub fn peer_socket_addr(&self, served: Scheme) -> Result<SocketAddr> {
        self.check_scheme(served)?;
        self.socket_addr().ok_or_else(|| Error::BadAddress {
            text: self.to_string(),
            why: "the address of a peer must hold an IP address and a port",
        })
    }

    /// Checks that the address can be the address of a peer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the name is empty or the port is 0.
    #[doc(hidden)]
    pub fn check_peer(&self) -> Result<()> {
        let why = if self.name.is_empty() {
            format!("{self} has no name")
        } else if self.socket_addr().is_some_and(|at| at.port() == 0) {
            format!(
                "{self} has port 0, which requests a free port when an endpoint is bound; \
                 `Endpoint::name` returns the port that was assigned"
            )
        } else {
            return Ok(());
        };
        Err(Error::Invalid {
            what: "peer address",
            why,
        })
    }

    /// Returns the scheme of the address.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the name, the part after `://`; empty in an address that requests a generated name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Parses the text of an address.
    ///
    /// `fi_sockaddr_in://…` and `fi_sockaddr_in6://…` name a socket but no provider: such an
    /// address gets the scheme `expected` if names of that scheme are socket addresses, else
    /// [`Scheme::Tcp`].
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
    /// [`Error::BadAddress`] when the text has no known scheme, or as [`Address::new`].
    pub fn parse_for(text: &str, expected: Scheme) -> Result<Self> {
        let bad = |why| {
            Err(Error::BadAddress {
                text: text.chars().take(200).collect(),
                why,
            })
        };
        let Some((scheme, name)) = text.split_once("://") else {
            return bad(expected.missing_scheme_reason());
        };
        let Some(scheme) = Scheme::parse_for(scheme, expected) else {
            return bad("the scheme is unknown; known: shm, tcp, udp, sim");
        };
        Self::new(scheme, name).or_else(|error| match error {
            Error::BadAddress { why, .. } => bad(why),
            other => Err(other),
        })
    }
}

impl TryFrom<SocketAddr> for Address {
    type Error = Error;

    /// Converts as `fi_sockaddr_in://` does: to an address of [`Scheme::Tcp`]. Calls of a `udp`
    /// domain that take a `SocketAddr` itself use its scheme.
    ///
    /// ```
    /// # use fabric_core as fabric_async;
    /// use std::net::SocketAddr;
    /// let address = fabric_async::Address::try_from(SocketAddr::from(([127, 0, 0, 1], 7000)))?;
    /// assert_eq!(address.to_string(), "fi_tcp://127.0.0.1:7000");
    /// # Ok::<(), fabric_async::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Address::new`] with `Scheme::Tcp`.
    fn try_from(at: SocketAddr) -> Result<Self> {
        let Self { scheme, name } = Self::from_socket_addr(Scheme::Tcp, at)?;
        Self::new(scheme, &name)
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

/// A peer's handle in an address vector (`fi_addr_t`).
///
/// Valid only with endpoints that are bound to the address vector that issued the handle. A handle
/// holds an index and a generation: the generation makes the handle of a removed peer an error,
/// where libfabric would address the next peer at the same index. It prints as `3 of vector 1`, or,
/// if the index was used before, as `3 of vector 1, generation 2`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "fi_addr_t")]
pub struct FiAddr(
    /// The index in bits 32 to 63, the generation in 16 to 31, the id of the vector in 0 to 15: one
    /// word, so that messages copy and compare their source in one step.
    NonZeroU64,
);

impl FiAddr {
    /// Returns the handle of this position (`FI_AV_TABLE`) of the vector with this id.
    /// `generation` is the number of times that the position was reused.
    pub(crate) const fn new(index: u32, generation: u16, vector: NonZeroU16) -> Self {
        let bits = (index as u64) << 32 | (generation as u64) << 16 | vector.get() as u64;
        match NonZeroU64::new(bits) {
            Some(bits) => Self(bits),
            None => unreachable!(),
        }
    }

    /// Returns the position in the address vector's table, counted from 0.
    #[must_use]
    #[inline]
    pub fn index(self) -> usize {
        (self.0.get() >> 32) as usize
    }

    /// Returns index, generation and id of the vector as one number, whose lowest 16 bits are the
    /// id and not 0.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for FiAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of vector {}", self.index(), self.bits() as u16)?;
        match (self.bits() >> 16) as u16 {
            0 => Ok(()),
            generation => write!(f, ", generation {generation}"),
        }
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
    fn handles_of_other_vectors_and_generations_print_differently() {
        let text = |generation, vector| {
            let vector = NonZeroU16::new(vector).unwrap();
            FiAddr::new(3, generation, vector).to_string()
        };
        assert_eq!(text(0, 1), "3 of vector 1");
        assert_eq!(text(0, 2), "3 of vector 2");
        assert_eq!(text(2, 1), "3 of vector 1, generation 2");
    }

    #[test]
    fn scheme_is_case_insensitive() {
        for (text, parsed) in [
            ("SHM://Echo", "fi_shm://Echo"),
            ("Tcp://127.0.0.1:5", "fi_tcp://127.0.0.1:5"),
            ("FI_SOCKADDR_IN://127.0.0.1:5", "fi_tcp://127.0.0.1:5"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), parsed);
        }
    }

    #[test]
    fn parse_error_names_reason_and_text() {
        for (text, part) in [
            ("echo", "scheme is missing"),
            ("tcq://x", "scheme is unknown"),
            ("udp://0.0.0.0:5000", "unspecified address"),
            ("tcp://[::]:0", "unspecified address"),
            ("udp://localhost:5000", "not an IP address"),
            ("udp://localhost", "as in udp://127.0.0.1:7000"),
            ("tcp://127.0.0.1", "port is missing"),
            ("tcp://127.0.0.1:", "port is missing"),
            ("tcp://localhost:99999", "the port"),
            ("tcp://127.0.0.1:99999", "the port"),
            ("tcp://[::1]", "port is missing"),
            ("tcp://::1", "port is missing"),
            ("tcp://localhost", "port is missing"),
            (
                "tcp://:7000",
                "host is missing before the port, as in tcp://",
            ),
            (
                "udp://:7000",
                "host is missing before the port, as in udp://",
            ),
            ("tcp://:", "port is missing"),
            ("tcp://:99999", "host is missing"),
            ("tcp://239.1.2.3:5000", "one machine"),
            ("shm://a/b", "ASCII letters"),
            ("shm://a\0b", "ASCII letters"),
            ("", "scheme is missing"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
        for (scheme, part) in [
            (Scheme::Shm, "as in shm://echo"),
            (Scheme::Tcp, "as in tcp://127.0.0.1:7000"),
            (Scheme::Udp, "as in udp://127.0.0.1:7000"),
            (Scheme::Sim, "as in sim://echo"),
        ] {
            let error = Address::parse_for("kv", scheme).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
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
