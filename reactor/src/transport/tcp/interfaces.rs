//! The networks this machine is in, asked of the kernel.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Kinds of messages of rtnetlink(7).
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// A request, for everything.
const REQUEST_DUMP: u16 = 0x301;
/// Bytes before the body, of messages and of attributes.
const NLMSG_HEADER_LEN: usize = 16;
const RTA_HEADER_LEN: usize = 4;
/// What the kernel puts into one datagram at most.
const RECV_BUFFER_LEN: usize = 32 << 10;

const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
/// Differs from the above where a link has but two ends.
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
/// An address that may turn out to be somebody else's, or has.
const TENTATIVE_OR_DADFAILED: u8 = 0x40 | 0x08;

/// An address of this machine, and the network it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) ip: IpAddr,
    pub(crate) interface: String,
    /// Leading bits that all in the network have in common.
    prefix_len: u8,
    is_loopback: bool,
}

/// As libfabric calls it: `192.0.2.0/24`; the network inside the machine goes by the address alone.
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

/// The networks of interfaces that are up, that inside the machine last; none where the kernel does
/// not say.
///
/// Addresses that mean something on one link only (`fe80::`) are left out: endpoints could not tell
/// them to peers.
pub(crate) fn list() -> Vec<InterfaceAddress> {
    let Ok(socket) = netlink_socket() else {
        return Vec::new();
    };
    let mut interfaces = HashMap::new();
    dump(&socket, RTM_GETLINK, 16, |kind, body| {
        if let Some((index, found)) = parse_link(body).filter(|_| kind == RTM_NEWLINK) {
            interfaces.insert(index, found);
        }
    });
    let mut networks = Vec::new();
    dump(&socket, RTM_GETADDR, 8, |kind, body| {
        networks.extend(parse_address(body, &interfaces).filter(|_| kind == RTM_NEWADDR));
    });
    networks.sort_by_key(|(index, network)| (network.is_loopback, *index));
    networks.into_iter().map(|(_, network)| network).collect()
}

fn netlink_socket() -> rustix::io::Result<OwnedFd> {
    // Protocol 0 is routing. What is asked for is there when the call that asks returns.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
}

/// Asks for everything of a kind, and shows each message's kind and body.
fn dump(socket: impl AsFd, kind: u16, body: usize, mut each: impl FnMut(u16, &[u8])) {
    let mut request = vec![0; NLMSG_HEADER_LEN + body];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    if rustix::net::send(&socket, &request, SendFlags::empty()).is_err() {
        return;
    }
    let mut room = vec![0; RECV_BUFFER_LEN];
    while let Ok((count, _)) = rustix::net::recv(&socket, &mut room[..], RecvFlags::empty()) {
        let mut rest = &room[..count];
        while let Some(len) = u32_at(rest, 0)
            && let Some(kind) = u16_at(rest, 4)
            && let Some(body) = take_body(&mut rest, NLMSG_HEADER_LEN, len as usize)
        {
            if kind == NLMSG_DONE {
                return;
            }
            each(kind, body);
        }
        if count == 0 {
            return;
        }
    }
}

/// Takes the body of what has a header and this length, header included; what follows begins at a
/// multiple of four bytes.
fn take_body<'a>(rest: &mut &'a [u8], header: usize, len: usize) -> Option<&'a [u8]> {
    let body = rest.get(header..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some(body)
}

/// The attributes of a message, behind so many bytes of its body: kinds and values.
fn attributes(body: &[u8], behind: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(behind..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (len, kind) = (u16_at(rest, 0)?, u16_at(rest, 2)?);
        Some((
            kind,
            take_body(&mut rest, RTA_HEADER_LEN, usize::from(len))?,
        ))
    })
}

/// What is known of an interface.
struct Interface {
    name: String,
    flags: u32,
}

/// The number of an interface, and the interface.
fn parse_link(body: &[u8]) -> Option<(u32, Interface)> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let (_, name) = attributes(body, 16).find(|(kind, _)| *kind == IFLA_IFNAME)?;
    let name = String::from_utf8(name.split(|byte| *byte == 0).next()?.to_vec()).ok()?;
    Some((index, Interface { name, flags }))
}

/// The number of an interface, and a network it leads to.
fn parse_address(
    body: &[u8],
    interfaces: &HashMap<u32, Interface>,
) -> Option<(u32, InterfaceAddress)> {
    let (prefix, flags, index) = (*body.get(1)?, *body.get(2)?, u32_at(body, 4)?);
    let interface = interfaces
        .get(&index)
        .filter(|found| found.flags & IFF_UP != 0 && flags & TENTATIVE_OR_DADFAILED == 0)?;
    let find = |wanted| {
        attributes(body, 8)
            .find(|(kind, _)| *kind == wanted)
            .and_then(|(_, ip)| parse_ip(ip))
    };
    let ip = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let is_everywhere = !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let is_loopback = interface.flags & IFF_LOOPBACK != 0;
    let network = InterfaceAddress {
        ip,
        interface: interface.name.clone(),
        prefix_len: prefix,
        is_loopback,
    };
    (is_everywhere && prefix <= most).then_some((index, network))
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

    /// Interface 3, with this name and these flags.
    fn parsed_interface(name: &str, flags: u32) -> (u32, Interface) {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&3u32.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        body.extend((4 + name.len() as u16 + 1).to_ne_bytes());
        body.extend(IFLA_IFNAME.to_ne_bytes());
        body.extend(name.bytes());
        body.push(0);
        parse_link(&body).expect("a whole one")
    }

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
