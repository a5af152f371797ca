//! Address formats (`fi_info.addr_format`) and socket addresses.

#[allow(dead_code, reason = "other test programs use more of it")]
#[path = "common/skip.rs"]
mod skip;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fabric_async::info::AddrFormat::{self, Sockaddr, SockaddrIn, SockaddrIn6, SockaddrIp, Str};
use fabric_async::{
    Address, CqBind, Domain, EpType, Error, Fabric, Hints, Info, Scheme, discover, resolve,
};
use skip::{Facility, skip};

const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7000);
const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 7000);

fn first(provider: &str, format: Option<AddrFormat>) -> Result<Info, Error> {
    let mut hints = Hints::new().provider(provider);
    hints.addr_format = format;
    Ok(discover(&hints)?.swap_remove(0))
}

fn domain(provider: &str, format: AddrFormat) -> (Info, Domain) {
    let info = first(provider, Some(format)).unwrap();
    let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
    (info, domain)
}

#[test]
fn requested_format_is_granted_or_refused() {
    for (provider, by_default) in [("shm", Str), ("sim", Str), ("tcp", SockaddrIp)] {
        assert_eq!(first(provider, None).unwrap().addr_format, by_default);
        assert_eq!(first(provider, Some(Str)).unwrap().addr_format, Str);
    }
    for format in [Sockaddr, SockaddrIp, SockaddrIn, SockaddrIn6] {
        for provider in ["shm", "sim"] {
            let Err(Error::NoMatch(why)) = first(provider, Some(format)) else {
                panic!("{provider} has no {format:?}")
            };
            assert_eq!(why.mismatches[0].attribute, "addr_format");
        }
        // The more special one of the requested format and the offered one.
        let granted = if format == Sockaddr {
            SockaddrIp
        } else {
            format
        };
        for provider in ["tcp", "udp"] {
            assert_eq!(first(provider, Some(format)).unwrap().addr_format, granted);
        }
    }
    // Offers for a network have the format of its address.
    for info in discover(&Hints::new().provider("tcp")).unwrap() {
        if let Some(at) = info.src_addr.as_ref().and_then(Address::socket_addr) {
            let format = if at.is_ipv4() {
                SockaddrIn
            } else {
                SockaddrIn6
            };
            assert_eq!(info.addr_format, format, "{at}");
        }
    }
}

#[test]
fn addresses_of_the_other_ip_version_match_no_offer() {
    let address = |at| Address::try_from(at).unwrap();
    for (format, at, is_offered) in [
        (SockaddrIn, V4, true),
        (SockaddrIn, V6, false),
        (SockaddrIn6, V4, false),
        (SockaddrIn6, V6, true),
        (Str, V6, true),
    ] {
        let hints = Hints::new().provider("tcp").addr_format(format);
        for hints in [
            hints.clone().dest_addr(address(at)),
            hints.src_addr(address(at)),
        ] {
            assert_eq!(discover(&hints).is_ok(), is_offered, "{hints:?}");
        }
    }
}

#[tokio::test]
async fn objects_have_addresses_of_the_granted_ip_version() {
    for provider in ["tcp", "udp"] {
        for (format, valid, other) in [(SockaddrIn, V4, V6), (SockaddrIn6, V6, V4)] {
            if format == SockaddrIn6 && std::net::UdpSocket::bind("[::1]:0").is_err() {
                skip(Facility::Ipv6, "this machine has no IPv6");
                continue;
            }
            let (info, domain) = domain(provider, format);
            let av = domain.address_vector().unwrap();
            let is_refused = |error: Option<Error>| matches!(error, Some(Error::BadAddress { .. }));
            assert!(is_refused(av.insert(other).err()));
            let peer = av.insert(valid).unwrap();
            // A socket address is one of the domain's provider.
            let scheme = Scheme::from_provider(provider).unwrap();
            assert_eq!(av.lookup(peer).unwrap().scheme(), scheme);
            assert!(is_refused(
                domain.endpoint(&info).unwrap().name(other).err()
            ));
            // The default address is of this version too.
            let cq = domain.completion_queue(8).unwrap();
            let ep = domain.endpoint(&info).unwrap();
            let directions = CqBind::TRANSMIT | CqBind::RECV;
            let ep = ep.bind_cq(&cq, directions).unwrap().bind_av(&av).unwrap();
            let ep = ep.enable().unwrap();
            let name = ep.name().socket_addr().unwrap();
            assert_eq!(name.is_ipv4(), valid.is_ipv4(), "{name}");
            // An endpoint whose info admits only the other version is none of this domain.
            let of_other = if format == SockaddrIn {
                SockaddrIn6
            } else {
                SockaddrIn
            };
            let refused = domain.endpoint(&first(provider, Some(of_other)).unwrap());
            let why = refused.err().unwrap().to_string();
            assert!(why.contains("addr_format"), "{why}");
        }
    }
}

#[tokio::test]
async fn connected_endpoints_have_addresses_of_the_granted_ip_version() {
    let hints = Hints::new().provider("tcp").ep_type(EpType::Msg);
    let info = discover(&hints.addr_format(SockaddrIn))
        .unwrap()
        .swap_remove(0);
    let fabric = Fabric::open(&info).unwrap();
    let listener = fabric.passive_endpoint(&info).unwrap();
    assert!(matches!(
        listener.name(V6).err(),
        Some(Error::BadAddress { .. })
    ));
    let domain = fabric.domain(&info).unwrap();
    let refused = domain.endpoint(&info).unwrap().connect(V6).await;
    assert!(matches!(refused.err(), Some(Error::BadAddress { .. })));
}

#[test]
fn socket_addresses_become_addresses() {
    let converted = |text: &str| Address::try_from(text.parse::<SocketAddr>().unwrap());
    assert_eq!(
        converted("[::1]:5").unwrap().to_string(),
        "fi_tcp://[::1]:5"
    );
    assert_eq!(
        converted("127.0.0.1:5").unwrap().socket_addr(),
        "127.0.0.1:5".parse().ok()
    );
    for text in ["0.0.0.0:5", "[::]:5", "239.1.2.3:5"] {
        assert!(
            matches!(converted(text), Err(Error::BadAddress { .. })),
            "{text}"
        );
    }
}

#[tokio::test]
async fn service_names_resolve_to_ports() {
    let services = std::fs::read_to_string("/etc/services").unwrap_or_default();
    let has_http = services.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("http") && words.next() == Some("80/tcp")
    });
    for host in ["127.0.0.1", "[::1]"] {
        let found = resolve(&format!("tcp://{host}:http")).await;
        if has_http {
            let expected: Address = format!("tcp://{host}:80").parse().unwrap();
            assert_eq!(found.unwrap(), [expected]);
        } else {
            assert!(matches!(found, Err(Error::NoSuchHost { .. })), "{found:?}");
        }
    }
    let why = resolve("udp://127.0.0.1:no-such-service")
        .await
        .unwrap_err();
    assert!(matches!(why, Error::NoSuchHost { .. }), "{why}");
    assert!(why.to_string().contains("/etc/services"), "{why}");
    // Calls that do not resolve name the call that does.
    let why = "tcp://127.0.0.1:http"
        .parse::<Address>()
        .unwrap_err()
        .to_string();
    assert!(why.contains("`resolve`"), "{why}");
}
