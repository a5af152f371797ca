//! Socket options of connected endpoints and of passive endpoints.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fabric_async::info::TrafficClass;
use fabric_async::{
    ConnectedEndpoint, CqBind, Endpoint, EpType, Error, Fabric, Hints, Info, PassiveEndpoint,
    Protocol, SocketOptions, discover,
};
use rustix::net::sockopt::{
    ip_tos, socket_acceptconn, socket_recv_buffer_size, socket_send_buffer_size, tcp_congestion,
    tcp_keepidle,
};

use crate::run;
use crate::skip::{Facility, skip};
use crate::sockets::find_socket;
use crate::test_peer::{EXIT_NO_MOUNT, TestPeer};

/// Connected endpoints support only the native protocol of the provider.
#[test]
fn protocol_that_connected_endpoints_lack_is_refused() {
    run(async {
        let options = || Endpoint::options().protocol(Protocol::Rxm);
        let refused = options().listen("tcp://127.0.0.1:0").await.unwrap_err();
        assert!(matches!(refused, Error::NoMatch(_)), "{refused}");
        let refused = options().connect("tcp://127.0.0.1:1").await.unwrap_err();
        assert!(matches!(refused, Error::NoMatch(_)), "{refused}");
    });
}

const PORT_RANGE: std::ops::RangeInclusive<u16> = 22_000..=22_999;
const BUFFER_LEN: usize = 1 << 17;

/// Returns the system's default congestion control, which differs from that of local connections.
fn system_congestion_control() -> String {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    name.trim().into()
}

/// Returns socket options with every option set.
fn all_socket_options() -> SocketOptions {
    let idle_timeout = Duration::from_secs(40);
    let options = SocketOptions::new()
        .congestion_control(system_congestion_control())
        .port_range(PORT_RANGE)
        .idle_timeout(idle_timeout);
    options.send_buffer(BUFFER_LEN).receive_buffer(BUFFER_LEN)
}

fn discover_msg_info() -> Info {
    discover(&Hints::new().provider("tcp").ep_type(EpType::Msg))
        .unwrap()
        .swap_remove(0)
}

fn socket_addr(name: &fabric_async::Address) -> SocketAddr {
    name.socket_addr().unwrap()
}

fn connected_socket(ep: &ConnectedEndpoint) -> OwnedFd {
    find_socket("tcp", socket_addr(ep.name()), Some(socket_addr(ep.peer())))
}

/// Connects an endpoint to this passive endpoint, and accepts it in this domain.
async fn connect_and_accept(
    listener: &mut PassiveEndpoint,
    domain: &fabric_async::Domain,
    info: &Info,
) -> (ConnectedEndpoint, ConnectedEndpoint) {
    let cq = domain.completion_queue(16).unwrap();
    let connecting = ConnectedEndpoint::connect(listener.name());
    let accepting = async {
        let request = listener.accept().await.unwrap();
        let ep = domain
            .endpoint(info)
            .unwrap()
            .bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)
            .unwrap();
        ep.accept(request, "").unwrap()
    };
    let (connector, accepted) = tokio::join!(connecting, accepting);
    (connector.unwrap(), accepted)
}

#[test]
fn accepted_sockets_inherit_passive_endpoint_options() {
    run(async {
        let mut info = discover_msg_info();
        let fabric = Fabric::open(&info).unwrap();
        let mut listener = fabric
            .passive_endpoint(&info)
            .unwrap()
            .socket_options(all_socket_options())
            .listen()
            .unwrap();
        assert!(
            PORT_RANGE.contains(&socket_addr(listener.name()).port()),
            "{}",
            listener.name()
        );
        let listening_socket = find_socket("tcp", socket_addr(listener.name()), None);
        assert!(socket_acceptconn(&listening_socket).unwrap());
        assert_eq!(
            socket_recv_buffer_size(&listening_socket).unwrap(),
            2 * BUFFER_LEN
        );

        // A domain without socket options.
        let plain = fabric.domain(&info).unwrap();
        let (connector, accepted) = connect_and_accept(&mut listener, &plain, &info).await;
        let socket = connected_socket(&accepted);
        assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 2 * BUFFER_LEN);
        assert_eq!(socket_send_buffer_size(&socket).unwrap(), 2 * BUFFER_LEN);
        assert_eq!(
            tcp_congestion(&socket).unwrap(),
            system_congestion_control()
        );
        assert_eq!(
            (tcp_keepidle(&socket).unwrap(), ip_tos(&socket).unwrap()),
            (Duration::from_secs(22), 0)
        );
        // The connecting endpoint has options of its own.
        let socket = connected_socket(&connector);
        assert_eq!(
            tcp_congestion(&socket).unwrap(),
            SocketOptions::LOCAL_CONGESTION_CONTROL
        );
        assert_eq!(tcp_keepidle(&socket).unwrap(), Duration::from_secs(15));

        // A domain with socket options; those that it does not set are inherited.
        let own = SocketOptions::new()
            .congestion_control(SocketOptions::LOCAL_CONGESTION_CONTROL)
            .receive_buffer(2 * BUFFER_LEN);
        let own = fabric
            .domain_builder(&info)
            .socket_options(own.idle_timeout(Duration::from_secs(4)))
            .open()
            .unwrap();
        info.tx.tclass = Some(TrafficClass::LowLatency);
        let (_connector, accepted) = connect_and_accept(&mut listener, &own, &info).await;
        let socket = connected_socket(&accepted);
        assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 4 * BUFFER_LEN);
        assert_eq!(socket_send_buffer_size(&socket).unwrap(), 2 * BUFFER_LEN);
        assert_eq!(
            tcp_congestion(&socket).unwrap(),
            SocketOptions::LOCAL_CONGESTION_CONTROL
        );
        assert_eq!(
            (tcp_keepidle(&socket).unwrap(), ip_tos(&socket).unwrap()),
            (Duration::from_secs(1), 18 << 2)
        );
    });
}

#[test]
fn bind_options_apply_to_listener_and_connections() {
    run(async {
        let mut listener = Endpoint::options()
            .socket_options(all_socket_options())
            .listen("tcp://")
            .await
            .unwrap();
        assert!(
            PORT_RANGE.contains(&socket_addr(listener.name()).port()),
            "{}",
            listener.name()
        );
        let connecting = Endpoint::options()
            .socket_options(all_socket_options())
            .connect(listener.name());
        let accepting = async { listener.accept().await.unwrap().accept("") };
        let (connector, accepted) = tokio::join!(connecting, accepting);
        for ep in [connector.unwrap(), accepted.unwrap()] {
            let socket = connected_socket(&ep);
            assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 2 * BUFFER_LEN);
            assert_eq!(
                tcp_congestion(&socket).unwrap(),
                system_congestion_control()
            );
            assert_eq!(tcp_keepidle(&socket).unwrap(), Duration::from_secs(22));
        }
        let port = socket_addr(listener.name()).port();
        let taken = Endpoint::options()
            .socket_options(SocketOptions::new().port_range(port..=port))
            .listen("tcp://");
        assert_eq!(
            taken.await.unwrap_err(),
            Error::AddressInUse(listener.name().clone())
        );
        let invalid = SocketOptions::new().send_buffer(usize::MAX);
        let refused = Endpoint::options()
            .socket_options(invalid)
            .listen("tcp://")
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("send buffer"), "{refused}");
    });
}

#[test]
fn connect_resolves_host_names() {
    run(async {
        let mut listener = PassiveEndpoint::bind("tcp://localhost:0").await.unwrap();
        assert!(
            socket_addr(listener.name()).ip().is_loopback(),
            "{}",
            listener.name()
        );
        let name = format!("tcp://localhost:{}", socket_addr(listener.name()).port());
        let (connector, accepted) = tokio::join!(ConnectedEndpoint::connect(&name), async {
            listener.accept().await.unwrap().accept("").unwrap()
        });
        let connector = connector.unwrap();
        assert_eq!(
            connector.peer(),
            listener.name(),
            "the peer's name is an address"
        );
        connector.send("hello").await.unwrap();
        assert_eq!(&accepted.recv().await.unwrap()[..], b"hello");

        // A rejection by one address ends the connect; no other address is tried.
        let (refused, ()) = tokio::join!(ConnectedEndpoint::connect(&name), async {
            listener.accept().await.unwrap().reject("no").unwrap();
        });
        assert!(
            matches!(refused, Err(Error::RejectedByPeer { .. })),
            "{refused:?}"
        );
        assert!(listener.try_accept().is_none());

        // No address of the host has a listener any more.
        drop(listener);
        let no_listener = ConnectedEndpoint::connect(&name)
            .await
            .map(drop)
            .unwrap_err();
        assert!(matches!(no_listener, Error::NoSuchPeer(_)), "{no_listener}");
        // A label of 64 letters is invalid, so no name server is queried.
        let text = format!("tcp://{}.invalid:7", "x".repeat(64));
        for error in [
            ConnectedEndpoint::connect(&text)
                .await
                .map(drop)
                .unwrap_err(),
            PassiveEndpoint::bind(&text).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::NoSuchHost { .. }), "{error}");
        }
    });
}

const HOSTS_FILE: &str = "\
127.0.0.1 localhost twin
127.0.0.2 twin
203.0.113.7 partly-local
127.0.0.1 partly-local
";

/// Connects to `twin`, which listens at only one of its two addresses, and binds `partly-local`,
/// one of whose two addresses is local.
pub(crate) async fn host_name_client(listen_name: &str) {
    let mut listener = PassiveEndpoint::bind(listen_name)
        .await
        .expect("a loopback address");
    let name = format!("tcp://twin:{}", socket_addr(listener.name()).port());
    let (connector, accepted) = tokio::join!(ConnectedEndpoint::connect(&name), async {
        listener
            .accept()
            .await
            .expect("the listener is open")
            .accept("welcome")
    });
    let connector = connector.expect("connect to one of the addresses");
    assert_eq!(
        (connector.peer(), connector.private_data()),
        (listener.name(), &b"welcome"[..])
    );
    accepted.expect("accept");
    let partly_local = PassiveEndpoint::bind("tcp://partly-local:0")
        .await
        .expect("one of the addresses is local");
    assert_eq!(
        socket_addr(partly_local.name()).ip(),
        std::net::Ipv4Addr::LOCALHOST
    );
}

/// A connect tries the addresses of a host in turn until one has a listener.
#[test]
fn connect_tries_every_address_of_a_host() {
    if !rustix::process::geteuid().is_root() {
        return skip(Facility::Netns, "root is needed to mount a hosts file");
    }
    let hosts = std::env::temp_dir().join(format!("fabric-hosts-{}", std::process::id()));
    std::fs::write(&hosts, HOSTS_FILE).unwrap();
    for listen_name in ["tcp://127.0.0.1:0", "tcp://127.0.0.2:0"] {
        let ended = TestPeer::start_with_hosts_file(&hosts, "tcp host_name_client", listen_name)
            .and_then(|mut client| client.0.wait());
        match ended.map(|status| status.code()) {
            Ok(Some(0)) => {}
            Ok(Some(EXIT_NO_MOUNT)) => skip(Facility::Netns, "no hosts file can be mounted"),
            Ok(code) => panic!("{listen_name}: {code:?}"),
            Err(error) => skip(Facility::Netns, format!("unshare: {error}")),
        }
    }
    std::fs::remove_file(&hosts).unwrap();
}

/// A connect with a source address skips addresses of another family. Objects that are opened one
/// by one can connect to host names, and cannot listen at them.
#[test]
fn connect_skips_addresses_of_another_family() {
    run(async {
        let info = discover_msg_info();
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric.domain(&info).unwrap();
        let cq = domain.completion_queue(16).unwrap();
        let mut listener = fabric
            .passive_endpoint(&info)
            .unwrap()
            .name("tcp://127.0.0.1:0")
            .unwrap()
            .listen()
            .unwrap();
        let name = format!("tcp://localhost:{}", socket_addr(listener.name()).port());
        let from = |name: &str| {
            let ep = domain.endpoint(&info).unwrap().name(name).unwrap();
            ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap()
        };
        let (connector, accepted) = tokio::join!(from("tcp://127.0.0.1:0").connect(&name), async {
            let accepting = from("tcp://127.0.0.1:0");
            accepting.accept(listener.accept().await.unwrap(), "")
        });
        assert_eq!(connector.unwrap().name(), accepted.unwrap().peer());
        let other = from("tcp://[::1]:0")
            .connect(&name)
            .await
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(other, Error::NoSuchHost { .. } | Error::NoSuchPeer(_)),
            "{other}"
        );
        let refused = fabric
            .passive_endpoint(&info)
            .unwrap()
            .name("tcp://localhost:0")
            .map(drop)
            .unwrap_err();
        assert!(matches!(refused, Error::BadAddress { .. }), "{refused}");
    });
}
