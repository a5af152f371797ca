//! The networks this machine is in, asked of the kernel.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Kinds of messages of rtnetlink(7).
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDR: u16 = 20;
const GET_ADDR: u16 = 22;
/// A request, for everything.
const REQUEST_ALL: u16 = 0x301;
/// Bytes before the body, of messages and of attributes.
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// What the kernel puts into one datagram at most.
const ROOM: usize = 32 << 10;

const LINK_NAME: u16 = 3;
const ADDR_ADDRESS: u16 = 1;
/// Differs from the above where a link has but two ends.
const ADDR_LOCAL: u16 = 2;
const IS_UP: u32 = 1;
const IS_LOOPBACK: u32 = 8;
/// An address that may turn out to be somebody else's, or has.
const IS_UNSURE: u8 = 0x40 | 0x08;

/// An address of this machine, and the network it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) ip: IpAddr,
    pub(crate) interface: String,
    /// Leading bits that all in the network have in common.
    prefix: u8,
    is_loopback: bool,
}

/// As libfabric calls it: `192.0.2.0/24`; the network inside the machine goes by the address alone.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, prefix) = (self.ip, u32::from(self.prefix));
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
pub(crate) fn all() -> Vec<Network> {
    let Ok(socket) = socket() else {
        return Vec::new();
    };
    let mut interfaces = HashMap::new();
    ask(&socket, GET_LINK, 16, |kind, body| {
        if let Some((index, found)) = interface(body).filter(|_| kind == NEW_LINK) {
            interfaces.insert(index, found);
        }
    });
    let mut networks = Vec::new();
    ask(&socket, GET_ADDR, 8, |kind, body| {
        networks.extend(address(body, &interfaces).filter(|_| kind == NEW_ADDR));
    });
    networks.sort_by_key(|(index, network)| (network.is_loopback, *index));
    networks.into_iter().map(|(_, network)| network).collect()
}

fn socket() -> rustix::io::Result<OwnedFd> {
    // Protocol 0 is routing. What is asked for is there when the call that asks returns.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
}

/// Asks for everything of a kind, and shows each message's kind and body.
fn ask(socket: impl AsFd, kind: u16, body: usize, mut each: impl FnMut(u16, &[u8])) {
    let mut request = vec![0; HEADER + body];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    if rustix::net::send(&socket, &request, SendFlags::empty()).is_err() {
        return;
    }
    let mut room = vec![0; ROOM];
    while let Ok((count, _)) = rustix::net::recv(&socket, &mut room[..], RecvFlags::empty()) {
        let mut rest = &room[..count];
        while let Some(len) = u32_at(rest, 0)
            && let Some(kind) = u16_at(rest, 4)
            && let Some(body) = take(&mut rest, HEADER, len as usize)
        {
            if kind == DONE {
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
fn take<'a>(rest: &mut &'a [u8], header: usize, len: usize) -> Option<&'a [u8]> {
    let body = rest.get(header..len)?;
    *rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some(body)
}

/// The attributes of a message, behind so many bytes of its body: kinds and values.
fn attributes(body: &[u8], behind: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(behind..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (len, kind) = (u16_at(rest, 0)?, u16_at(rest, 2)?);
        Some((kind, take(&mut rest, ATTRIBUTE_HEADER, usize::from(len))?))
    })
}

/// What is known of an interface.
struct Interface {
    name: String,
    flags: u32,
}

/// The number of an interface, and the interface.
fn interface(body: &[u8]) -> Option<(u32, Interface)> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let (_, name) = attributes(body, 16).find(|(kind, _)| *kind == LINK_NAME)?;
    let name = String::from_utf8(name.split(|byte| *byte == 0).next()?.to_vec()).ok()?;
    Some((index, Interface { name, flags }))
}

/// The number of an interface, and a network it leads to.
fn address(body: &[u8], interfaces: &HashMap<u32, Interface>) -> Option<(u32, Network)> {
    let (prefix, flags, index) = (*body.get(1)?, *body.get(2)?, u32_at(body, 4)?);
    let interface = interfaces
        .get(&index)
        .filter(|found| found.flags & IS_UP != 0 && flags & IS_UNSURE == 0)?;
    let find = |wanted| {
        attributes(body, 8)
            .find(|(kind, _)| *kind == wanted)
            .and_then(|(_, ip)| ip_of(ip))
    };
    let ip = find(ADDR_LOCAL).or_else(|| find(ADDR_ADDRESS))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let is_everywhere = !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let is_loopback = interface.flags & IS_LOOPBACK != 0;
    let network = Network {
        ip,
        interface: interface.name.clone(),
        prefix,
        is_loopback,
    };
    (is_everywhere && prefix <= most).then_some((index, network))
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
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
    fn networks_are_called_as_in_libfabric() {
        let network = |ip: &str, prefix, is_loopback| {
            let (ip, interface) = (ip.parse().unwrap(), "if0".to_owned());
            Network {
                ip,
                interface,
                prefix,
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
    fn an_interface(name: &str, flags: u32) -> (u32, Interface) {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&3u32.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        body.extend((4 + name.len() as u16 + 1).to_ne_bytes());
        body.extend(LINK_NAME.to_ne_bytes());
        body.extend(name.bytes());
        body.push(0);
        interface(&body).expect("a whole one")
    }

    fn an_address(flags: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
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
    fn addresses_count_that_peers_could_be_told() {
        let up = HashMap::from([an_interface("eth7", IS_UP)]);
        let ip = |body: &[u8], interfaces: &HashMap<u32, Interface>| {
            address(body, interfaces).map(|(_, found)| (found.ip.to_string(), found.interface))
        };
        let plain = an_address(0, &[(ADDR_ADDRESS, &[192, 0, 2, 7])]);
        let found = ("192.0.2.7".to_owned(), "eth7".to_owned());
        assert_eq!(ip(&plain, &up), Some(found.clone()));
        let two_ends = an_address(
            0,
            &[
                (ADDR_ADDRESS, &[192, 0, 2, 8]),
                (ADDR_LOCAL, &[192, 0, 2, 7]),
            ],
        );
        assert_eq!(ip(&two_ends, &up), Some(found));

        let (down, none) = (HashMap::from([an_interface("eth7", 0)]), HashMap::new());
        assert_eq!((ip(&plain, &down), ip(&plain, &none)), (None, None));
        assert_eq!(
            ip(&an_address(0x40, &[(ADDR_ADDRESS, &[192, 0, 2, 7])]), &up),
            None
        );
        let mut on_link = [0; 16];
        on_link[..2].copy_from_slice(&[0xfe, 0x80]);
        assert_eq!(ip(&an_address(0, &[(ADDR_ADDRESS, &on_link)]), &up), None);
        assert_eq!(ip(&an_address(0, &[(ADDR_ADDRESS, &[1, 2, 3])]), &up), None);
        for len in 0..plain.len() {
            assert_eq!(ip(&plain[..len], &up), None, "{len} bytes");
        }
    }
}
