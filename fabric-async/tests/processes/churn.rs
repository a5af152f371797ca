//! A thousand connections that are opened and closed: neither process leaks memory or descriptors.

use fabric_async::Endpoint;

use crate::leak_check::{ResourceUsage, heap_bytes, run_in_own_process};
use crate::run;
use crate::test_peer::TestPeer;

const CONNECTIONS: usize = 1000;
/// Connections after which everything that is allocated only once exists.
const WARM_UP: usize = 200;
/// The most bytes by which the heap may grow over the remaining 800 connections: 655 bytes
/// for each.
const MAX_GROWTH: usize = 512 * 1024;

/// Opens an endpoint, exchanges one message with the test and closes the endpoint, again and again.
pub(crate) async fn connect_repeatedly(name: &str) {
    let mut before = None;
    for round in 0..CONNECTIONS {
        if round == WARM_UP {
            before = Some((ResourceUsage::wait_stable().await, heap_bytes()));
        }
        let ep = Endpoint::bind("shm://").await.unwrap();
        let host = ep.add_peer(name).await.unwrap();
        ep.send(host, round.to_le_bytes().to_vec())
            .tag(1)
            .await
            .unwrap();
        assert_eq!(ep.recv().from(host).await.unwrap()[..], round.to_le_bytes());
    }
    let (usage, bytes) = before.expect("more connections than WARM_UP");
    usage.wait_restored().await;
    assert!(
        heap_bytes() < bytes + MAX_GROWTH,
        "the heap grew from {} to {} bytes",
        bytes,
        heap_bytes()
    );
}

#[test]
fn thousand_short_connections_leak_nothing() {
    run_in_own_process("churn::thousand_short_connections_leak_nothing", || {
        run(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let mut connector = TestPeer::start("connect_repeatedly", &ep.name().to_string());
            let mut before = None;
            for round in 0..CONNECTIONS {
                let message = ep.recv().tag(1).await.unwrap();
                assert_eq!(message[..], round.to_le_bytes());
                if round == WARM_UP {
                    before = Some((ResourceUsage::current(), heap_bytes()));
                }
                ep.send(message.source().unwrap(), message.into_bytes())
                    .await
                    .unwrap();
            }
            while connector.0.try_wait().unwrap().is_none() || ep.stats().peers > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert!(
                connector.0.wait().unwrap().success(),
                "the connecting process leaked"
            );
            let (usage, bytes) = before.expect("more connections than WARM_UP");
            // When the usage was measured, one peer was connected, and the previous connection may
            // not have been closed yet.
            let now = ResourceUsage::wait_stable().await;
            assert!(now.is_within(&usage), "{now:?} is more than {usage:?}");
            assert!(
                heap_bytes() < bytes + MAX_GROWTH,
                "the heap grew from {} to {} bytes",
                bytes,
                heap_bytes()
            );
            assert!(ep.address_vector().peers().is_empty());
        });
    });
}
