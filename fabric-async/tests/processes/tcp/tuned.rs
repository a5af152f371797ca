//! What is set on the sockets of connected endpoints, and of those that take requests.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fabric_async::{
    CqBind, Endpoint, EpType, Error, Fabric, Hints, Info, PassiveEndpoint, SocketOptions,
    TrafficClass, discover,
};
use rustix::net::sockopt::{
    ip_tos, socket_acceptconn, socket_recv_buffer_size, socket_send_buffer_size, tcp_congestion,
    tcp_keepidle,
};

use crate::role::{NO_MOUNT, Peer};
use crate::run;
use crate::sockets::socket_of;

const PORTS: std::ops::RangeInclusive<u16> = 22_000..=22_999;
const BUFFER: usize = 1 << 17;

/// What the machine takes for ways to elsewhere, which is not what connections inside it have.
fn congestion() -> String {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    name.trim().into()
}

/// Those of the listener: all there are.
fn options() -> SocketOptions {
    let silence = Duration::from_secs(40);
    let options = SocketOptions::new()
        .congestion_control(congestion())
        .ports(PORTS)
        .silence(silence);
    options.send_buffer(BUFFER).receive_buffer(BUFFER)
}

async fn info() -> Info {
    discover(&Hints::new().provider("tcp").ep_type(EpType::Msg))
        .await
        .unwrap()
        .swap_remove(0)
}

fn at(name: &fabric_async::Address) -> SocketAddr {
    name.socket().unwrap()
}

fn connection(ep: &Endpoint) -> OwnedFd {
    socket_of("tcp", at(ep.name()), Some(at(ep.peer_name().unwrap())))
}

/// Two that meet at this door: the one that has called, and the one that was accepted in this
/// domain.
async fn meet(
    door: &mut PassiveEndpoint,
    domain: &fabric_async::Domain,
    info: &Info,
) -> (Endpoint, Endpoint) {
    let cq = domain.completion_queue(16).unwrap();
    let calling = Endpoint::connect(door.name());
    let accepting = async {
        let request = door.next().await.unwrap();
        let ep = domain
            .endpoint(info)
            .unwrap()
            .bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV)
            .unwrap();
        ep.accept(request, "").await.unwrap()
    };
    let (caller, accepted) = tokio::join!(calling, accepting);
    (caller.unwrap(), accepted)
}

#[test]
fn a_passive_endpoint_has_options_and_so_has_what_it_accepts() {
    run(async {
        let mut info = info().await;
        let fabric = Fabric::open(&info).unwrap();
        let mut door = fabric
            .passive_endpoint(&info)
            .unwrap()
            .socket_options(options())
            .listen()
            .unwrap();
        assert!(PORTS.contains(&at(door.name()).port()), "{}", door.name());
        let listener = socket_of("tcp", at(door.name()), None);
        assert!(socket_acceptconn(&listener).unwrap());
        assert_eq!(socket_recv_buffer_size(&listener).unwrap(), 2 * BUFFER);

        // A domain that says nothing of its own.
        let plain = fabric.domain(&info).unwrap();
        let (caller, accepted) = meet(&mut door, &plain, &info).await;
        let socket = connection(&accepted);
        assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 2 * BUFFER);
        assert_eq!(socket_send_buffer_size(&socket).unwrap(), 2 * BUFFER);
        assert_eq!(tcp_congestion(&socket).unwrap(), congestion());
        assert_eq!(
            (tcp_keepidle(&socket).unwrap(), ip_tos(&socket).unwrap()),
            (Duration::from_secs(22), 0)
        );
        // Who calls has options of its own.
        let socket = connection(&caller);
        assert_eq!(tcp_congestion(&socket).unwrap(), SocketOptions::INSIDE);
        assert_eq!(tcp_keepidle(&socket).unwrap(), Duration::from_secs(15));

        // One that does; what it does not say stays.
        let own = SocketOptions::new()
            .congestion_control(SocketOptions::INSIDE)
            .receive_buffer(2 * BUFFER);
        let own = fabric
            .domain_builder(&info)
            .socket_options(own.silence(Duration::from_secs(4)))
            .open()
            .unwrap();
        info.tx.tclass = Some(TrafficClass::LowLatency);
        let (_caller, accepted) = meet(&mut door, &own, &info).await;
        let socket = connection(&accepted);
        assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 4 * BUFFER);
        assert_eq!(socket_send_buffer_size(&socket).unwrap(), 2 * BUFFER);
        assert_eq!(tcp_congestion(&socket).unwrap(), SocketOptions::INSIDE);
        assert_eq!(
            (tcp_keepidle(&socket).unwrap(), ip_tos(&socket).unwrap()),
            (Duration::from_secs(1), 18 << 2)
        );
    });
}

#[test]
fn options_hold_on_both_sides_of_the_front_door() {
    run(async {
        let mut door = Endpoint::options()
            .socket_options(options())
            .listen("tcp://")
            .await
            .unwrap();
        assert!(PORTS.contains(&at(door.name()).port()), "{}", door.name());
        let calling = Endpoint::options()
            .socket_options(options())
            .connect(door.name());
        let accepting = async { door.next().await.unwrap().accept("").await };
        let (caller, accepted) = tokio::join!(calling, accepting);
        for ep in [caller.unwrap(), accepted.unwrap()] {
            let socket = connection(&ep);
            assert_eq!(socket_recv_buffer_size(&socket).unwrap(), 2 * BUFFER);
            assert_eq!(tcp_congestion(&socket).unwrap(), congestion());
            assert_eq!(tcp_keepidle(&socket).unwrap(), Duration::from_secs(22));
        }
        let port = at(door.name()).port();
        let taken = Endpoint::options()
            .socket_options(SocketOptions::new().ports(port..=port))
            .listen("tcp://");
        assert_eq!(
            taken.await.unwrap_err(),
            Error::AddressInUse(door.name().clone())
        );
        let wrong = SocketOptions::new().send_buffer(usize::MAX);
        let refused = Endpoint::options()
            .socket_options(wrong)
            .listen("tcp://")
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("send buffer"), "{refused}");
    });
}

#[test]
fn hosts_are_called_by_their_names() {
    run(async {
        let mut door = PassiveEndpoint::bind("tcp://localhost:0").await.unwrap();
        assert!(at(door.name()).ip().is_loopback(), "{}", door.name());
        let name = format!("tcp://localhost:{}", at(door.name()).port());
        let (caller, accepted) = tokio::join!(Endpoint::connect(&name), async {
            door.next().await.unwrap().accept("").await.unwrap()
        });
        let caller = caller.unwrap();
        assert_eq!(
            caller.peer_name(),
            Ok(door.name()),
            "an address, whatever was asked for"
        );
        caller.send(caller.peer().unwrap(), "hello").await.unwrap();
        assert_eq!(&accepted.recv().await.unwrap()[..], b"hello");

        // Somebody is there, and does not want to: nobody else is asked.
        let (refused, ()) = tokio::join!(Endpoint::connect(&name), async {
            door.next().await.unwrap().reject("no").unwrap();
        });
        assert!(
            matches!(refused, Err(Error::Rejected { .. })),
            "{refused:?}"
        );
        assert!(door.try_next().is_none());

        // At each of its addresses there is nobody any more.
        drop(door);
        let nobody = Endpoint::connect(&name).await.map(drop).unwrap_err();
        assert!(matches!(nobody, Error::NoSuchPeer(_)), "{nobody}");
        // A label of 64 letters is none, so no server is asked.
        let text = format!("tcp://{}.invalid:7", "x".repeat(64));
        for error in [
            Endpoint::connect(&text).await.map(drop).unwrap_err(),
            PassiveEndpoint::bind(&text).await.map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::NoSuchHost { .. }), "{error}");
        }
    });
}

const HOSTS: &str = "\
127.0.0.1 localhost twin
127.0.0.2 twin
203.0.113.7 lodge
127.0.0.1 lodge
";

/// Calls `twin`, who is at home at this one of two addresses, and takes the address of `lodge` that
/// is this machine's.
pub(crate) async fn visitor(home: &str) {
    let mut door = PassiveEndpoint::bind(home)
        .await
        .expect("a loopback address");
    let name = format!("tcp://twin:{}", at(door.name()).port());
    let (caller, accepted) = tokio::join!(Endpoint::connect(&name), async {
        door.next()
            .await
            .expect("it is open")
            .accept("welcome")
            .await
    });
    let caller = caller.expect("somebody is at one of the addresses");
    assert_eq!(
        (caller.peer_name(), caller.private_data()),
        (Ok(door.name()), &b"welcome"[..])
    );
    accepted.expect("it waits");
    let lodge = PassiveEndpoint::bind("tcp://lodge:0")
        .await
        .expect("one of the addresses is ours");
    assert_eq!(at(lodge.name()).ip(), std::net::Ipv4Addr::LOCALHOST);
}

/// Whichever of its addresses comes first: where nobody is, the next one is tried.
#[test]
fn a_host_with_several_addresses_is_found_at_one_of_them() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root, to say which hosts there are");
    }
    let hosts = std::env::temp_dir().join(format!("fabric-hosts-{}", std::process::id()));
    std::fs::write(&hosts, HOSTS).unwrap();
    for home in ["tcp://127.0.0.1:0", "tcp://127.0.0.2:0"] {
        let ended =
            Peer::start_among(&hosts, "tcp visitor", home).and_then(|mut visitor| visitor.0.wait());
        match ended.map(|status| status.code()) {
            Ok(Some(0)) => {}
            Ok(Some(NO_MOUNT)) => eprintln!("skipped, nothing can be mounted here"),
            Ok(code) => panic!("{home}: {code:?}"),
            Err(error) => eprintln!("skipped, there is no unshare: {error}"),
        }
    }
    std::fs::remove_file(&hosts).unwrap();
}

/// Addresses of the other family than that to call from are passed over; in the object model a host
/// has a name, too.
#[test]
fn hosts_are_called_from_addresses_of_their_family() {
    run(async {
        let info = info().await;
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric.domain(&info).unwrap();
        let cq = domain.completion_queue(16).unwrap();
        let mut door = fabric
            .passive_endpoint(&info)
            .unwrap()
            .name("tcp://127.0.0.1:0")
            .unwrap()
            .listen()
            .unwrap();
        let name = format!("tcp://localhost:{}", at(door.name()).port());
        let from = |name: &str| {
            let ep = domain.endpoint(&info).unwrap().name(name).unwrap();
            ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap()
        };
        let (caller, accepted) = tokio::join!(from("tcp://127.0.0.1:0").connect(&name), async {
            let accepting = from("tcp://127.0.0.1:0");
            accepting.accept(door.next().await.unwrap(), "").await
        });
        assert_eq!(
            caller.unwrap().name(),
            accepted.unwrap().peer_name().unwrap()
        );
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
