//! What is said of sockets, and names of hosts.

use fabric_async::{Endpoint, Error, SocketOptions};

use super::still_works;
use crate::run;

#[test]
fn what_the_kernel_does_not_have_is_refused_by_name() {
    run(async {
        for (options, part) in [
            (
                SocketOptions::new().congestion_control("nonesuch"),
                "kernel has no \"nonesuch\"",
            ),
            (SocketOptions::new().ports(0..=7), "port range"),
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
fn an_endpoint_is_bound_by_the_name_of_its_host() {
    run(async {
        let ep = Endpoint::bind("tcp://localhost:0").await.unwrap();
        assert!(
            ep.name().socket().unwrap().ip().is_loopback(),
            "{}",
            ep.name()
        );
        let friend = Endpoint::bind("tcp://localhost:0").await.unwrap();
        let peer = friend.lookup(ep.name()).await.unwrap();
        friend.send(peer, "hello").await.unwrap();
        assert_eq!(&ep.recv().await.unwrap()[..], b"hello");
        let udp = Endpoint::bind("udp://localhost:0").await.unwrap();
        assert!(udp.name().socket().unwrap().ip().is_loopback());
    });
}

#[test]
fn a_host_that_nobody_knows_is_named() {
    run(async {
        let ep = Endpoint::bind("tcp://").await.unwrap();
        // Labels of more than 63 letters are none, so no server is asked.
        let host = format!("{}.invalid", "x".repeat(64));
        let text = format!("tcp://{host}:7");
        for error in [
            Endpoint::bind(&text).await.unwrap_err(),
            ep.lookup(&text).await.unwrap_err(),
            fabric_async::resolve(&text).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::NoSuchHost { host: named, .. } if *named == host),
                "{error}"
            );
        }
        still_works(&ep).await;
    });
}

/// IPv4 and IPv6 do not meet: what has the other family is passed over, and there may be nothing
/// left.
#[test]
fn addresses_of_the_other_family_are_not_tried() {
    run(async {
        let found = fabric_async::resolve("tcp://localhost:7").await.unwrap();
        let is_ipv4 = |at: &fabric_async::Address| at.socket().unwrap().is_ipv4();
        let Ok(ep) = Endpoint::bind("tcp://[::1]:0").await else {
            return eprintln!("skipped, this machine has no IPv6");
        };
        let port = ep.name().socket().unwrap().port();
        let friend = Endpoint::bind("tcp://[::1]:0").await.unwrap();
        let met = friend.lookup(&format!("tcp://localhost:{port}")).await;
        if found.iter().all(is_ipv4) {
            assert!(matches!(met, Err(Error::NoSuchHost { .. })), "{met:?}");
        } else {
            assert_eq!(
                friend.address_vector().lookup(met.unwrap()).unwrap(),
                ep.name().clone()
            );
        }
    });
}
