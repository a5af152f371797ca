//! Socket options, and addresses that only providers over sockets have.

use fabric_async::info::TrafficClass;
use fabric_async::{CqBind, Error, SocketOptions};

use crate::endpoint_fixture::{EndpointConfig, endpoint_pair_with};
use crate::payload::{message_number, numbered_message};
use crate::setup::Setup;

const PORT_RANGE: std::ops::RangeInclusive<u16> = 21_000..=21_999;

/// Providers without sockets ignore the options.
pub(crate) async fn messages_arrive_with_all_socket_options_set(setup: Setup) {
    let options = SocketOptions::new()
        .congestion_control("reno")
        .send_buffer(1 << 18)
        .receive_buffer(1 << 18)
        .port_range(PORT_RANGE);
    for class in [
        TrafficClass::LowLatency,
        TrafficClass::Dscp(63),
        TrafficClass::BestEffort,
    ] {
        let config = EndpointConfig {
            socket_options: options.clone(),
            tclass: Some(class),
            ..EndpointConfig::default()
        };
        let (a, b, to_b) = endpoint_pair_with(&setup, config.clone(), config).await;
        for number in 0..20 {
            let (sent, got) = tokio::join!(
                a.ep.send(to_b, numbered_message(number, 8 + 60 * number as usize)),
                b.ep.recv()
            );
            sent.unwrap();
            assert_eq!(message_number(&got.unwrap()), number);
        }
        for at in [&a, &b]
            .into_iter()
            .filter_map(|fixture| fixture.ep.name().socket_addr())
        {
            assert!(PORT_RANGE.contains(&at.port()), "{at}");
        }
    }
}

/// A port of the range is used once; an address with an explicit port need not be in the range.
pub(crate) async fn exhausted_port_range_is_address_in_use(setup: Setup) {
    let first = setup
        .open_endpoint_with(EndpointConfig {
            socket_options: SocketOptions::new().port_range(PORT_RANGE),
            ..EndpointConfig::default()
        })
        .await;
    let taken = first.ep.name().socket_addr().unwrap();
    let one_port = SocketOptions::new().port_range(taken.port()..=taken.port());
    let domain = first
        .fabric
        .domain_builder(&first.info)
        .socket_options(one_port)
        .open()
        .unwrap();
    let av = domain.address_vector().unwrap();
    let queue = domain.completion_queue(4).unwrap();
    let endpoint = || {
        let builder = domain.endpoint(&first.info).unwrap().bind_av(&av).unwrap();
        builder
            .bind_cq(&queue, CqBind::TRANSMIT | CqBind::RECV)
            .unwrap()
    };
    let refused = endpoint().enable().unwrap_err();
    assert_eq!(refused, Error::AddressInUse(first.ep.name().clone()));
    let other_ip = format!("{}://127.9.9.9:{}", setup.provider, taken.port());
    let other_ip = endpoint().name(&other_ip[..]).unwrap().enable().unwrap();
    assert_eq!(
        other_ip.name().socket_addr().unwrap().port(),
        taken.port(),
        "the port is free at another address"
    );
}

/// Both endpoints are on this machine, so `localhost` resolves to the peer.
pub(crate) async fn host_name_is_resolved(setup: Setup) {
    let a = setup.open_endpoint().await;
    let b = setup.open_endpoint().await;
    let at = b.ep.name().socket_addr().unwrap();
    let name = format!("{}://localhost:{}", setup.provider, at.port());
    let to_b = a.ep.add_peer(&name[..]).await.unwrap();
    assert_eq!(
        a.av.lookup(to_b).unwrap(),
        b.ep.name().clone(),
        "a handle stands for a resolved address"
    );
    a.ep.send(to_b, "hello").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"hello");
    // Calls that do not wait cannot resolve host names.
    assert!(matches!(
        a.av.insert(&name[..]),
        Err(Error::BadAddress { .. })
    ));
    // A label of 64 letters is invalid, so that no name server is asked.
    let absent = format!(
        "{}://{}.invalid:{}",
        setup.provider,
        "x".repeat(64),
        at.port()
    );
    let error = a.ep.add_peer(&absent[..]).await.unwrap_err();
    assert!(
        matches!(&error, Error::NoSuchHost { host, .. } if absent.contains(host)),
        "{error}"
    );
    assert!(
        error.to_string().contains("xxx.invalid") && error.errno() == 99,
        "{error}"
    );
}
