//! The network interfaces of this machine, and both address families.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, TcpListener};
use std::process::Command;

use fabric_async::{CqBind, Endpoint, EpType, Fabric, Hints, Info, Progress, discover};

use crate::run;
use crate::skip::{Facility, skip};
use crate::test_peer::TestPeer;

/// Returns the offered infos that have a source address.
fn discover_interfaces(hints: Hints) -> Vec<Info> {
    let found = discover(&hints.provider("tcp").ep_type(EpType::Rdm)).unwrap();
    found
        .into_iter()
        .filter(|info| info.src_addr.is_some())
        .collect()
}

/// Opens an endpoint without a name in the domain of an info.
fn open_endpoint_in(info: &Info) -> Endpoint {
    let domain = Fabric::open(info).unwrap().domain(info).unwrap();
    let cq = domain.completion_queue(16).unwrap();
    let ep = domain.endpoint(info).unwrap();
    let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
    ep.bind_av(&domain.address_vector().unwrap())
        .unwrap()
        .enable()
        .unwrap()
}

#[test]
fn endpoints_use_the_chosen_network() {
    run(async {
        for progress in [Progress::Manual, Progress::Auto] {
            let found = discover_interfaces(Hints::new().progress(progress));
            assert!(
                found
                    .iter()
                    .any(|info| info.fabric.name == "127.0.0.1/32" && info.domain.name == "lo")
            );
            for info in &found {
                let (a, b) = (open_endpoint_in(info), open_endpoint_in(info));
                let addr = a.name().socket_addr().unwrap();
                assert_eq!(
                    addr.ip(),
                    info.src_addr.as_ref().unwrap().socket_addr().unwrap().ip()
                );
                assert!(addr.port() != 0);
                let (to_b, to_a) = (
                    a.add_peer(b.name()).await.unwrap(),
                    b.add_peer(a.name()).await.unwrap(),
                );
                a.send(to_b, info.fabric.name.clone().into_bytes())
                    .await
                    .unwrap();
                assert_eq!(
                    b.recv().from(to_a).await.unwrap()[..],
                    *info.fabric.name.as_bytes()
                );
            }
        }
    });
}

#[test]
fn network_is_chosen_by_fabric_domain_or_source_hint() {
    run(async {
        let all = discover_interfaces(Hints::new());
        for info in &all {
            let address = info.src_addr.clone().unwrap();
            for hints in [
                Hints::new().fabric_name(&*info.fabric.name),
                Hints::new().source(address.clone()),
            ] {
                let found = discover_interfaces(hints.domain_name(&*info.domain.name));
                assert!(
                    found.iter().any(|found| found.src_addr == info.src_addr),
                    "{}",
                    info.fabric.name
                );
                assert!(
                    found
                        .iter()
                        .all(|found| found.fabric.name == info.fabric.name)
                );
            }
            let found =
                discover_interfaces(Hints::new().dest("tcp://198.51.100.7:7".parse().unwrap()));
            assert!(found.iter().all(|found| {
                found
                    .src_addr
                    .as_ref()
                    .unwrap()
                    .socket_addr()
                    .unwrap()
                    .is_ipv4()
            }));
        }
    });
}

/// Discovery and fi_info list the same networks and interfaces, in any order.
#[test]
fn discovered_networks_match_fi_info() {
    let outputs = ["net", "tcp"].map(|provider| {
        Command::new("fi_info")
            .args(["-p", provider, "-t", "FI_EP_RDM"])
            .env("FI_LOG_LEVEL", "none")
            .output()
    });
    let Some(output) = outputs
        .into_iter()
        .flatten()
        .find(|output| output.status.success())
    else {
        return skip(
            Facility::Interop,
            "fi_info is not installed (Debian: libfabric-bin)",
        );
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let values = |key: &str| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix(key))
            .map(|value| value.trim().into())
            .collect()
    };
    let theirs = values("fabric:").into_iter().zip(values("domain:"));
    // Discovery does not offer link-local addresses.
    let theirs: BTreeSet<_> = theirs
        .filter(|(fabric, _)| !fabric.starts_with("fe80:"))
        .collect();
    let ours: BTreeSet<_> = run(async {
        let found = discover_interfaces(Hints::new());
        found
            .into_iter()
            .map(|info| (info.fabric.name, info.domain.name))
            .collect()
    });
    assert!(!theirs.is_empty());
    assert_eq!(ours, theirs);
}

/// Messages of all lengths to another process and back, over IPv6.
#[test]
fn messages_round_trip_over_ipv6() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return skip(Facility::Ipv6, "this machine has no IPv6");
    }
    for progress in [Progress::Manual, Progress::Auto] {
        run(async {
            let ep = Endpoint::options()
                .progress(progress)
                .bind("tcp://[::1]:0")
                .await
                .unwrap();
            assert!(ep.name().to_string().starts_with("fi_tcp://[::1]:"));
            let _peer = TestPeer::start("tcp echo", &format!("tcp://[::1]:0 {}", ep.name()));
            let peer = ep.recv().tag(3).await.unwrap().source().unwrap();
            for len in [0, 8, 5000, 3_000_000] {
                ep.send(peer, vec![len as u8; len]).await.unwrap();
                assert_eq!(
                    ep.recv().tag(4).from(peer).await.unwrap()[..],
                    vec![len as u8; len]
                );
            }
        });
    }
}

/// As `simultaneous_connects_leave_one_connection`, over IPv6.
#[test]
fn simultaneous_connects_over_ipv6_leave_one_connection() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return skip(Facility::Ipv6, "this machine has no IPv6");
    }
    run(async {
        for round in 0..30u8 {
            let (a, b) = tokio::join!(
                Endpoint::bind("tcp://[::1]:0"),
                Endpoint::bind("tcp://[::1]:0")
            );
            let (a, b) = (a.unwrap(), b.unwrap());
            let (to_b, to_a) = tokio::join!(a.add_peer(b.name()), b.add_peer(a.name()));
            let (ab, ba) = (
                a.send(to_b.unwrap(), vec![round; 9]),
                b.send(to_a.unwrap(), vec![round; 9]),
            );
            let (ab, ba, at_a, at_b) = tokio::join!(ab, ba, a.recv(), b.recv());
            ab.unwrap();
            ba.unwrap();
            assert!(at_a.unwrap()[..] == [round; 9] && at_b.unwrap()[..] == [round; 9]);
            assert_eq!((a.stats().peers, b.stats().peers), (1, 1), "round {round}");
        }
    });
}
