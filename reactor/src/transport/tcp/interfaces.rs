//! The networks of this machine. Each call of [`list`] queries the kernel (rtnetlink), because
//! interfaces may be added and removed at any time.
//!
//! Decision: an endpoint without an address listens at the loopback address. libfabric offers other
//! networks first, so other machines can reach an endpoint to which the program gave no address.
//! Here other machines reach an endpoint only if the program names its address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Message types of rtnetlink(7).
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;
/// Header lengths of messages and of attributes, in bytes.
const NLMSG_HEADER_LEN: usize = 16;
const RTA_HEADER_LEN: usize = 4;
/// The kernel's largest netlink datagram, in bytes.
const RECV_BUFFER_LEN: usize = 32 << 10;

const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
/// Differs from `IFA_ADDRESS` on point-to-point links.
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
/// `IFA_F_TENTATIVE | IFA_F_DADFAILED`: duplicate address detection is pending or has failed.
const TENTATIVE_OR_DADFAILED: u8 = 0x40 | 0x08;

/// An address of this machine, and the network it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) ip: IpAddr,
    pub(crate) interface: String,
    /// Length of the network prefix, in bits.
    prefix_len: u8,
    is_loopback: bool,
}

/// libfabric's name of the network: `192.0.2.0/24`; a loopback network is named by the address
/// alone.
impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, prefix) = (self.ip, u32::from(self.prefix_len));
        match ip {
            IpAddr::V4(_) if self.is_loopback => write!(f, "{ip}/32"),
            IpAddr::V6(_) if self.is_loopback => write!(f, "{ip}/128"),
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                write!(f, "{}/{prefix}", Ipv4Addr::from_bits(ip.to_bits() & mask))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                write!(f, "{}/{prefix}", Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        }
    }
}

/// Returns the networks of interfaces that are up, loopback networks last; none if the kernel does
/// not answer.
///
/// Link-local addresses (`fe80::`) are left out: they have no meaning on another link, so endpoints
/// could not tell them to peers.
pub(crate) fn list() -> Vec<InterfaceAddress> {
    let Ok(socket) = netlink_socket() else {
        return Vec::new();
    };
    let mut interfaces = HashMap::new();
    dump(&socket, RTM_GETLINK, 16, |message_type, body| {
        if let Some((index, found)) = parse_link(body).filter(|_| message_type == RTM_NEWLINK) {
            interfaces.insert(index, found);
        }
    });
    let mut networks = Vec::new();
    dump(&socket, RTM_GETADDR, 8, |message_type, body| {
        networks.extend(parse_address(body, &interfaces).filter(|_| message_type == RTM_NEWADDR));
    });
    networks.sort_by_key(|(index, network)| (network.is_loopback, *index));
    networks.into_iter().map(|(_, network)| network).collect()
}

fn netlink_socket() -> rustix::io::Result<OwnedFd> {
    // `None` is protocol 0, NETLINK_ROUTE. The reply to a request is queued when `send` returns, so
    // the socket need not block.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
}

/// Sends a request of this type, whose body is `body_len` zero bytes, and calls `on_message` with
/// type and body of each message of the reply.
fn dump(
    socket: impl AsFd,
    request_type: u16,
    body_len: usize,
    mut on_message: impl FnMut(u16, &[u8]),
) {
    let mut request = vec![0; NLMSG_HEADER_LEN + body_len];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&request_type.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    if rustix::net::send(&socket, &request, SendFlags::empty()).is_err() {
        return;
    }
    let mut buffer = vec![0; RECV_BUFFER_LEN];
    while let Ok((count, _)) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()) {
        let mut rest = &buffer[..count];
        while let Some(len) = u32_at(rest, 0)
            && let Some(message_type) = u16_at(rest, 4)
            && let Some(body) = take_body(&mut rest, NLMSG_HEADER_LEN, len as usize)
        {
            if message_type == NLMSG_DONE {
                return;
            }
            on_message(message_type, body);
        }
        if count == 0 {
            return;
        }
    }
}

/// Takes a message or attribute of length `len`, header included, and its padding to a multiple of
/// four bytes. Returns its body; `None` if the bytes end before the body does.
fn take_body<'a>(rest: &mut &'a [u8], header_len: usize, len: usize) -> Option<&'a [u8]> {
    let body = rest.get(header_len..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some(body)
}

/// Iterates over types and values of the attributes, which follow the first `skipped` bytes of a
/// body.
fn attributes(body: &[u8], skipped: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(skipped..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (len, kind) = (u16_at(rest, 0)?, u16_at(rest, 2)?);
        Some((
            kind,
            take_body(&mut rest, RTA_HEADER_LEN, usize::from(len))?,
        ))
    })
}

/// A network interface.
struct Interface {
    name: String,
    flags: u32,
}

/// Parses the body of RTM_NEWLINK. Returns the index of the interface, and the interface.
fn parse_link(body: &[u8]) -> Option<(u32, Interface)> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let (_, name) = attributes(body, 16).find(|(kind, _)| *kind == IFLA_IFNAME)?;
    let name = String::from_utf8(name.split(|byte| *byte == 0).next()?.to_vec()).ok()?;
    Some((index, Interface { name, flags }))
}

/// Parses the body of RTM_NEWADDR. Returns the index of the interface, and the address with its
/// network; `None` if the interface is down, or the address is tentative or link-local.
fn parse_address(
    body: &[u8],
    interfaces: &HashMap<u32, Interface>,
) -> Option<(u32, InterfaceAddress)> {
    let (prefix, flags, index) = (*body.get(1)?, *body.get(2)?, u32_at(body, 4)?);
    let interface = interfaces
        .get(&index)
        .filter(|found| found.flags & IFF_UP != 0 && flags & TENTATIVE_OR_DADFAILED == 0)?;
    let find = |attribute| {
        attributes(body, 8)
            .find(|(kind, _)| *kind == attribute)
            .and_then(|(_, ip)| parse_ip(ip))
    };
    let ip = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?;
    let max_prefix = if ip.is_ipv4() { 32 } else { 128 };
    let is_routable = !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let is_loopback = interface.flags & IFF_LOOPBACK != 0;
    let network = InterfaceAddress {
        ip,
        interface: interface.name.clone(),
        prefix_len: prefix,
        is_loopback,
    };
    (is_routable && prefix <= max_prefix).then_some((index, network))
}

fn parse_ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        16 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_names_match_libfabric() {
        let network = |ip: &str, prefix, is_loopback| {
            let (ip, interface) = (ip.parse().unwrap(), "if0".to_owned());
            InterfaceAddress {
                ip,
                interface,
                prefix_len: prefix,
                is_loopback,
            }
            .to_string()
        };
        assert_eq!(network("192.0.2.77", 24, false), "192.0.2.0/24");
        assert_eq!(network("10.1.2.3", 12, false), "10.0.0.0/12");
        assert_eq!(network("10.1.2.3", 32, false), "10.1.2.3/32");
        assert_eq!(network("10.1.2.3", 0, false), "0.0.0.0/0");
        assert_eq!(network("2001:db8::7:8", 64, false), "2001:db8::/64");
        assert_eq!(network("fd00::1", 0, false), "::/0");
        assert_eq!(network("127.0.0.1", 8, true), "127.0.0.1/32");
        assert_eq!(network("::1", 128, true), "::1/128");
    }

    /// Encodes and parses interface 3, with this name and these flags.
    fn parsed_interface(name: &str, flags: u32) -> (u32, Interface) {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&3u32.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        body.extend((4 + name.len() as u16 + 1).to_ne_bytes());
        body.extend(IFLA_IFNAME.to_ne_bytes());
        body.extend(name.bytes());
        body.push(0);
        parse_link(&body).expect("a complete RTM_NEWLINK body")
    }

    /// Returns the body of RTM_NEWADDR for interface 3 and prefix length 24.
    fn encode_address(flags: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 24, flags, 0];
        body.extend(3u32.to_ne_bytes());
        for (kind, bytes) in attributes {
            body.extend((4 + bytes.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*bytes);
        }
        body
    }

    #[test]
    fn only_routable_addresses_of_up_interfaces_are_listed() {
        let up = HashMap::from([parsed_interface("eth7", IFF_UP)]);
        let ip = |body: &[u8], interfaces: &HashMap<u32, Interface>| {
            parse_address(body, interfaces)
                .map(|(_, found)| (found.ip.to_string(), found.interface))
        };
        let plain = encode_address(0, &[(IFA_ADDRESS, &[192, 0, 2, 7])]);
        let found = ("192.0.2.7".to_owned(), "eth7".to_owned());
        assert_eq!(ip(&plain, &up), Some(found.clone()));
        let two_ends = encode_address(
            0,
            &[(IFA_ADDRESS, &[192, 0, 2, 8]), (IFA_LOCAL, &[192, 0, 2, 7])],
        );
        assert_eq!(ip(&two_ends, &up), Some(found));

        let (down, none) = (HashMap::from([parsed_interface("eth7", 0)]), HashMap::new());
        assert_eq!((ip(&plain, &down), ip(&plain, &none)), (None, None));
        assert_eq!(
            ip(
                &encode_address(0x40, &[(IFA_ADDRESS, &[192, 0, 2, 7])]),
                &up
            ),
            None
        );
        let mut on_link = [0; 16];
        on_link[..2].copy_from_slice(&[0xfe, 0x80]);
        assert_eq!(
            ip(&encode_address(0, &[(IFA_ADDRESS, &on_link)]), &up),
            None
        );
        assert_eq!(
            ip(&encode_address(0, &[(IFA_ADDRESS, &[1, 2, 3])]), &up),
            None
        );
        for len in 0..plain.len() {
            assert_eq!(ip(&plain[..len], &up), None, "{len} bytes");
        }
    }
}
