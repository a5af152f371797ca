//! The ordinary connection on which the two programs agree on what comes next.
//!
//! | what | bytes |
//! |---|---|
//! | the name of an endpoint | length (4), format (4), a `sockaddr_in` or `sockaddr_in6` as it lies in memory |
//! | is the server ready? | `q` and a zero; the server answers `a` and a zero |
//! | how many messages there were | 10 bytes: decimal digits, then zeros; the server answers `cnt ok` and a zero |
//!
//! The length is in the order of the network, the format in that of the machine: 2 for IPv4, 3 for
//! IPv6.
//!
//! The other program reads each of these with one call and does not read on, so each is written
//! with one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

use crate::Result;
use crate::options::Options;

/// How a `sockaddr` says which family it is of, and how long it is.
const SOCKADDR_IN: (u16, usize) = (2, 16);
const SOCKADDR_IN6: (u16, usize) = (10, 28);
/// The names that libfabric has for the two formats.
const FI_SOCKADDR_IN: u32 = 2;
const FI_SOCKADDR_IN6: u32 = 3;

const READY_REQUEST: &[u8; 2] = b"q\0";
const READY_REPLY: &[u8; 2] = b"a\0";
const COUNT_REPLY: &[u8; 7] = b"cnt ok\0";

/// The connection, and which side of it this is.
pub(crate) struct Control {
    stream: TcpStream,
    is_client: bool,
}

impl Control {
    /// Calls a server.
    pub(crate) async fn connect(server: &str, options: &Options) -> Result<Self> {
        let mut addresses = lookup_host((server, options.destination_port)).await?;
        let to = addresses
            .find(|at| at.is_ipv6() == options.is_ipv6)
            .ok_or_else(|| format!("{server} has no address of the family that is asked for"))?;
        let socket = new_socket(options)?;
        if let Some(port) = options.source_port {
            socket.bind(any_address(options, port))?;
        }
        let called = socket.connect(to).await;
        Self::new(
            called.map_err(|error| format!("nobody serves at {to}: {error}"))?,
            true,
        )
    }

    /// Waits for a client.
    pub(crate) async fn accept(options: &Options) -> Result<Self> {
        let socket = new_socket(options)?;
        socket.bind(any_address(
            options,
            options.source_port.unwrap_or(options.destination_port),
        ))?;
        let (stream, _) = socket.listen(1)?.accept().await?;
        Self::new(stream, false)
    }

    fn new(stream: TcpStream, is_client: bool) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, is_client })
    }

    pub(crate) fn is_client(&self) -> bool {
        self.is_client
    }

    /// The address at which the other has reached this side.
    pub(crate) fn local_ip(&self) -> Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip())
    }

    pub(crate) async fn send_address(&mut self, name: SocketAddr) -> Result<()> {
        Ok(self.stream.write_all(&encode_address(name)).await?)
    }

    pub(crate) async fn recv_address(&mut self) -> Result<SocketAddr> {
        let (len, _format) = (
            self.stream.read_u32().await?,
            self.stream.read_u32_le().await?,
        );
        // Nothing but a length that is known makes for memory.
        let mut name = match len as usize {
            len if len == SOCKADDR_IN.1 || len == SOCKADDR_IN6.1 => vec![0; len],
            len => return Err(format!("a name of {len} bytes is no address of a socket").into()),
        };
        self.stream.read_exact(&mut name).await?;
        decode_address(&name).ok_or_else(|| "the name of the peer is no address of a socket".into())
    }

    /// Both are ready.
    pub(crate) async fn sync(&mut self) -> Result<()> {
        if self.is_client {
            self.stream.write_all(READY_REQUEST).await?;
            self.expect_bytes(READY_REPLY).await
        } else {
            self.expect_bytes(READY_REQUEST).await?;
            Ok(self.stream.write_all(READY_REPLY).await?)
        }
    }

    /// The client says how many messages there were. Returns how many that is.
    pub(crate) async fn exchange_count(&mut self, count: usize) -> Result<usize> {
        let mut digits = [0; 10];
        if self.is_client {
            let text = count.to_string();
            digits[..text.len()].copy_from_slice(text.as_bytes());
            self.stream.write_all(&digits).await?;
            self.expect_bytes(COUNT_REPLY).await?;
            return Ok(count);
        }
        self.stream.read_exact(&mut digits).await?;
        self.stream.write_all(COUNT_REPLY).await?;
        let text = std::str::from_utf8(&digits)?.trim_end_matches('\0');
        Ok(text
            .parse()
            .map_err(|_| format!("{text:?} is not a number of messages"))?)
    }

    async fn expect_bytes<const LEN: usize>(&mut self, what: &[u8; LEN]) -> Result<()> {
        let mut got = [0; LEN];
        self.stream.read_exact(&mut got).await?;
        if got == *what {
            return Ok(());
        }
        Err(format!(
            "the peer says {:?}, where {:?} was expected",
            ascii(&got),
            ascii(what)
        )
        .into())
    }
}

fn ascii(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn new_socket(options: &Options) -> io::Result<TcpSocket> {
    let socket = if options.is_ipv6 {
        TcpSocket::new_v6()
    } else {
        TcpSocket::new_v4()
    }?;
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

fn any_address(options: &Options, port: u16) -> SocketAddr {
    let any = if options.is_ipv6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    SocketAddr::new(any, port)
}

/// The address of this machine that the route to another has. Nothing is sent.
pub(crate) fn local_ip_for(peer: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = if peer.is_ipv6() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// A name as it is said. What C leaves to fill up with is zero: peers compare whole names.
fn encode_address(name: SocketAddr) -> Vec<u8> {
    let ((family, len), format) = match name {
        SocketAddr::V4(_) => (SOCKADDR_IN, FI_SOCKADDR_IN),
        SocketAddr::V6(_) => (SOCKADDR_IN6, FI_SOCKADDR_IN6),
    };
    let mut bytes = Vec::with_capacity(8 + len);
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend(format.to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(name.port().to_be_bytes());
    match name.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => {
            bytes.extend([0; 4]);
            bytes.extend(ip.octets());
        }
    }
    bytes.resize(8 + len, 0);
    bytes
}

/// The address in a `sockaddr`.
fn decode_address(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    let ip = match (family, name.len()) {
        SOCKADDR_IN => IpAddr::from(*name.get(4..)?.first_chunk::<4>()?),
        SOCKADDR_IN6 => IpAddr::from(*name.get(8..)?.first_chunk::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
