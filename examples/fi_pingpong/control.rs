//! The control connection of the two programs: an ordinary TCP connection.
//!
//! | message | bytes |
//! |---|---|
//! | endpoint address | length (4), format (4), a `sockaddr_in` or `sockaddr_in6` as it lies in memory |
//! | ready request | `q` and a zero; the server answers `a` and a zero |
//! | number of messages | 10 bytes: decimal digits, then zeros; the server answers `cnt ok` and a zero |
//!
//! The length is in network byte order, the format in host byte order: 2 for IPv4, 3 for IPv6.
//!
//! The other program reads each message with one call and does not read on, so each is written with
//! one call.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

use crate::Result;
use crate::options::Options;

/// Address family and size of a `sockaddr`.
const SOCKADDR_IN: (u16, usize) = (2, 16);
const SOCKADDR_IN6: (u16, usize) = (10, 28);
/// libfabric's numbers of the two address formats.
const FI_SOCKADDR_IN: u32 = 2;
const FI_SOCKADDR_IN6: u32 = 3;

const READY_REQUEST: &[u8; 2] = b"q\0";
const READY_REPLY: &[u8; 2] = b"a\0";
const COUNT_REPLY: &[u8; 7] = b"cnt ok\0";

/// The control connection, and the role of this side.
pub(crate) struct Control {
    stream: TcpStream,
    is_client: bool,
}

impl Control {
    /// Connects to a server.
    pub(crate) async fn connect(server: &str, options: &Options) -> Result<Self> {
        let mut addresses = lookup_host((server, options.destination_port)).await?;
        let to = addresses
            .find(|at| at.is_ipv6() == options.is_ipv6)
            .ok_or_else(|| {
                format!("{server} has no address of the selected family (-6 selects IPv6)")
            })?;
        let socket = new_socket(options)?;
        if let Some(port) = options.source_port {
            socket.bind(any_address(options, port))?;
        }
        let stream = socket.connect(to).await;
        Self::new(
            stream.map_err(|error| format!("cannot connect to the server at {to}: {error}"))?,
            true,
        )
    }

    /// Waits for a client to connect.
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

    /// Returns the local address of the connection.
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
        // Only known lengths are allocated.
        let mut name = match len as usize {
            len if len == SOCKADDR_IN.1 || len == SOCKADDR_IN6.1 => vec![0; len],
            len => {
                return Err(
                    format!("an endpoint address of {len} bytes is not a socket address").into(),
                );
            }
        };
        self.stream.read_exact(&mut name).await?;
        decode_address(&name)
            .ok_or_else(|| "the peer's endpoint address is not a socket address".into())
    }

    /// Synchronises both sides.
    pub(crate) async fn sync(&mut self) -> Result<()> {
        if self.is_client {
            self.stream.write_all(READY_REQUEST).await?;
            self.expect_bytes(READY_REPLY).await
        } else {
            self.expect_bytes(READY_REQUEST).await?;
            Ok(self.stream.write_all(READY_REPLY).await?)
        }
    }

    /// Sends or receives the number of messages, and returns it.
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
            .map_err(|_| format!("{text:?} is not a message count"))?)
    }

    async fn expect_bytes<const LEN: usize>(&mut self, what: &[u8; LEN]) -> Result<()> {
        let mut got = [0; LEN];
        self.stream.read_exact(&mut got).await?;
        if got == *what {
            return Ok(());
        }
        Err(format!(
            "the peer sent {:?}, expected {:?}",
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

/// Returns this machine's address on the route to a peer. Nothing is sent.
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

/// Encodes an address for the control connection. Padding is zero, because peers compare whole
/// addresses.
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

/// Decodes a `sockaddr`.
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
