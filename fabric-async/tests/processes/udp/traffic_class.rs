//! The traffic class of datagrams.

use std::net::{SocketAddr, UdpSocket};

use fabric_async::info::TrafficClass;
use fabric_async::{EpType, Fabric, Hints, SocketOptions, discover};
use rustix::io::Errno;
use rustix::net::sockopt::{ip_tos, ipv6_tclass, socket_recv_buffer_size};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};

use crate::run;
use crate::skip::{Facility, skip};
use crate::sockets::find_socket;

const CLASSES: [(Option<TrafficClass>, u8); 4] = [
    (None, 0),
    (Some(TrafficClass::LowLatency), 18),
    (Some(TrafficClass::DedicatedAccess), 46),
    (Some(TrafficClass::Dscp(63)), 63),
];

/// Opens an endpoint of this class at this address, in a domain of its own.
fn open_endpoint(
    at: &str,
    class: Option<TrafficClass>,
) -> fabric_async::Result<fabric_async::Endpoint> {
    let mut info = discover(&Hints::new().provider("udp").ep_type(EpType::Dgram))?.swap_remove(0);
    info.tx.tclass = class;
    let options = SocketOptions::new().receive_buffer(1 << 17);
    let domain = Fabric::open(&info)?
        .domain_builder(&info)
        .socket_options(options)
        .open()?;
    let av = domain.auto_insert_address_vector()?;
    domain.endpoint(&info)?.name(at)?.bind_av(&av)?.enable()
}

#[test]
fn traffic_class_is_set_on_the_socket() {
    run(async {
        for (class, dscp) in CLASSES {
            let ep = open_endpoint("udp://127.0.0.1:0", class).unwrap();
            let socket = find_socket("udp", ep.name().socket_addr().unwrap(), None);
            assert_eq!(ip_tos(&socket).unwrap(), dscp << 2);
            assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 2 << 17);
            let Ok(ep) = open_endpoint("udp://[::1]:0", class) else {
                skip(Facility::Ipv6, "this machine has no IPv6");
                continue;
            };
            let socket = find_socket("udp", ep.name().socket_addr().unwrap(), None);
            assert_eq!(ipv6_tclass(&socket).unwrap(), u32::from(dscp) << 2);
        }
    });
}

/// Reads the class from the IP headers of the packets, with a raw socket, which takes root.
#[test]
fn traffic_class_is_set_on_every_packet() {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let raw = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        flags,
        Some(ipproto::UDP),
    );
    let raw = match raw {
        Ok(raw) => raw,
        Err(errno) => return skip(Facility::Root, format!("raw socket: {errno}")),
    };
    // An address of this process alone, so that the raw socket gets no other packets.
    let [.., high, low] = std::process::id().to_be_bytes();
    let local = SocketAddr::from(([127, high, low, 251], 0));
    rustix::net::bind(&raw, &local).unwrap();
    // Before `bind` the socket received the UDP packets of all programs.
    while rustix::net::recv(&raw, &mut [0; 100], RecvFlags::empty()).is_ok() {}
    run(async {
        for (class, dscp) in CLASSES {
            let ep = open_endpoint("udp://127.0.0.1:0", class).unwrap();
            let plain = UdpSocket::bind(local).unwrap();
            let name = format!("udp://{}", plain.local_addr().unwrap());
            let peer = ep.address_vector().insert(&name[..]).unwrap();
            // A single send, and a batch.
            ep.send(peer, "one").await.unwrap();
            assert_eq!(ep.inject_all(peer, [&b"many"[..]; 8]), (8, Ok(())));
            for _ in 0..9 {
                plain.recv(&mut [0; 8]).unwrap();
            }
            // The raw socket has received the same packets as the plain socket.
            let mut packet = [0; 100];
            for _ in 0..9 {
                let (len, _) = rustix::net::recv(&raw, &mut packet, RecvFlags::empty()).unwrap();
                assert!(len > 28 && packet[0] >> 4 == 4);
                assert_eq!(packet[1], dscp << 2);
            }
            let more = rustix::net::recv(&raw, &mut packet, RecvFlags::empty());
            assert_eq!(more.map(|(len, _)| len), Err(Errno::AGAIN));
        }
    });
}
