//! Socket options of listeners and connections.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use fabric_core::info::{Info, TrafficClass};
use fabric_core::{Error, SocketOptions};
use rustix::net::sockopt::{
    ip_tos, ipv6_tclass, socket_recv_buffer_size, socket_send_buffer_size, tcp_congestion,
    tcp_keepcnt, tcp_keepidle, tcp_keepintvl,
};

use super::{Listener, TcpListener, TcpSocket};
use crate::transport::net::SocketConfig;

fn socket_config(options: SocketOptions, class: Option<TrafficClass>) -> SocketConfig {
    let mut info = Info::template("tcp", "tcp", "tcp");
    info.domain.tclass = class;
    SocketConfig::from_info(&options, &info).unwrap()
}

/// Returns the initiating and the accepting end of a connection, with the same options, between two
/// sockets of one address.
fn connected_pair(at: &str, config: &SocketConfig) -> [TcpSocket; 2] {
    let (listener, at) = TcpListener::open(at.parse().unwrap(), config).unwrap();
    let from = SocketAddr::new(at.ip(), 0);
    let initiating = TcpSocket::open(from, at, config).unwrap();
    initiating.connect(at).unwrap();
    loop {
        if let Some((accepted, _)) = listener.accept(at, config).unwrap() {
            return [initiating, accepted];
        }
        std::thread::yield_now();
    }
}

#[test]
fn socket_options_apply_to_both_ends() {
    let options = SocketOptions::new()
        .send_buffer(40_000)
        .receive_buffer(50_000);
    for at in ["127.0.0.1:0", "[::1]:0"] {
        for end in connected_pair(
            at,
            &socket_config(options.clone(), Some(TrafficClass::Dscp(46))),
        ) {
            assert_eq!(
                socket_send_buffer_size(end.as_fd()).unwrap(),
                80_000,
                "Linux doubles SO_SNDBUF"
            );
            assert_eq!(socket_recv_buffer_size(end.as_fd()).unwrap(), 100_000);
            let class = if at.contains("::") {
                ipv6_tclass(end.as_fd()).unwrap()
            } else {
                ip_tos(end.as_fd()).unwrap().into()
            };
            assert_eq!(class, 46 << 2);
        }
    }
}

#[test]
fn tx_traffic_class_overrides_domain_traffic_class() {
    let mut info = Info::template("tcp", "tcp", "tcp");
    (info.domain.tclass, info.tx.tclass) =
        (Some(TrafficClass::BulkData), Some(TrafficClass::LowLatency));
    let [initiating, _] = connected_pair(
        "127.0.0.1:0",
        &SocketConfig::from_info(&SocketOptions::new(), &info).unwrap(),
    );
    assert_eq!(ip_tos(initiating.as_fd()).unwrap(), 18 << 2);
    info.tx.tclass = Some(TrafficClass::Dscp(64));
    let message = SocketConfig::from_info(&SocketOptions::new(), &info)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("traffic class") && message.contains("64"),
        "{message}"
    );
}

#[test]
fn local_connections_use_reno_unless_configured() {
    let default_config = socket_config(SocketOptions::new(), None);
    for at in ["127.0.0.1:0", "[::1]:0"] {
        for end in connected_pair(at, &default_config) {
            assert_eq!(tcp_congestion(end.as_fd()).unwrap(), "reno");
        }
    }
    // The machine's default algorithm may be requested by its name.
    let default_algorithm =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let configured = socket_config(
        SocketOptions::new().congestion_control(default_algorithm.trim()),
        None,
    );
    for end in connected_pair("127.0.0.1:0", &configured) {
        assert_eq!(
            tcp_congestion(end.as_fd()).unwrap(),
            default_algorithm.trim()
        );
    }
}

#[test]
fn idle_timeout_sets_keepalive_idle_and_interval() {
    for (seconds, idle, interval) in [
        (None, 15, 5),
        (Some(4), 1, 1),
        (Some(7), 4, 1),
        (Some(32_000), 16_001, 5333),
    ] {
        let idle_timeout = seconds.map(Duration::from_secs);
        let mut options = SocketOptions::new();
        options.idle_timeout = idle_timeout;
        for end in connected_pair("127.0.0.1:0", &socket_config(options.clone(), None)) {
            assert_eq!(
                tcp_keepidle(end.as_fd()).unwrap(),
                Duration::from_secs(idle)
            );
            assert_eq!(
                tcp_keepintvl(end.as_fd()).unwrap(),
                Duration::from_secs(interval)
            );
            assert_eq!(tcp_keepcnt(end.as_fd()).unwrap(), 3);
        }
    }
}

#[test]
fn port_range_is_used_to_the_last_port() {
    let at = SocketAddr::from(([127, 0, 0, 77], 0));
    let ports = socket_config(SocketOptions::new().port_range(23_000..=23_003), None);
    let mut open: Vec<_> = (0..4)
        .map(|_| TcpListener::open(at, &ports).unwrap())
        .collect();
    let mut taken: Vec<_> = open.iter().map(|(_, at)| at.port()).collect();
    taken.sort_unstable();
    assert_eq!(taken, [23_000, 23_001, 23_002, 23_003]);
    assert!(matches!(
        TcpListener::open(at, &ports),
        Err(Error::AddressInUse(_))
    ));
    let (_, freed) = open.swap_remove(1);
    assert_eq!(TcpListener::open(at, &ports).unwrap().1, freed);
}
