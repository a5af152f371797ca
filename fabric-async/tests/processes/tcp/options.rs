//! Socket options, and host names in addresses.

use fabric_async::{Endpoint, Error, SocketOptions};

use super::assert_still_works;
use crate::run;
use crate::skip::{Facility, skip};

#[test]
fn unsupported_socket_options_are_refused_by_name() {
    run(async {
        for (options, part) in [
            (
                SocketOptions::new().congestion_control("nonesuch"),
                "kernel does not have \"nonesuch\"",
            ),
            (SocketOptions::new().port_range(0..=7), "port range"),
            (SocketOptions::new().send_buffer(usize::MAX), "send buffer"),
        ] {
            let refused = Endpoint::options()
                .socket_options(options)
                .bind("tcp://")
                .await
                .unwrap_err();
            assert!(refused.to_string().contains(part), "{refused}");
        }
    });
}

#[test]
fn bind_resolves_host_names() {
    run(async {
        let ep = Endpoint::bind("tcp://localhost:0").await.unwrap();
        assert!(
            ep.name().socket_addr().unwrap().ip().is_loopback(),
            "{}",
            ep.name()
        );
        let client = Endpoint::bind("tcp://localhost:0").await.unwrap();
        let peer = client.add_peer(ep.name()).await.unwrap();
        client.send(peer, "hello").await.unwrap();
        assert_eq!(&ep.recv().await.unwrap()[..], b"hello");
        let udp = Endpoint::bind("udp://localhost:0").await.unwrap();
        assert!(udp.name().socket_addr().unwrap().ip().is_loopback());
    });
}

#[test]
fn unknown_host_error_names_the_host() {
    run(async {
        let ep = Endpoint::bind("tcp://").await.unwrap();
        // Labels of more than 63 letters are invalid, so no name server is queried.
        let host = format!("{}.invalid", "x".repeat(64));
        let text = format!("tcp://{host}:7");
        for error in [
            Endpoint::bind(&text).await.unwrap_err(),
            ep.add_peer(&text).await.unwrap_err(),
            fabric_async::resolve(&text).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::NoSuchHost { host: named, .. } if *named == host),
                "{error}"
            );
        }
        assert_still_works(&ep).await;
    });
}

/// Endpoints skip addresses of the other family; a host without another address is unknown.
#[test]
fn add_peer_skips_addresses_of_another_family() {
    run(async {
        let found = fabric_async::resolve("tcp://localhost:7").await.unwrap();
        let is_ipv4 = |at: &fabric_async::Address| at.socket_addr().unwrap().is_ipv4();
        let Ok(ep) = Endpoint::bind("tcp://[::1]:0").await else {
            return skip(Facility::Ipv6, "this machine has no IPv6");
        };
        let port = ep.name().socket_addr().unwrap().port();
        let client = Endpoint::bind("tcp://[::1]:0").await.unwrap();
        let added = client.add_peer(&format!("tcp://localhost:{port}")).await;
        if found.iter().all(is_ipv4) {
            assert!(matches!(added, Err(Error::NoSuchHost { .. })), "{added:?}");
        } else {
            assert_eq!(
                client.address_vector().lookup(added.unwrap()).unwrap(),
                ep.name().clone()
            );
        }
    });
}
