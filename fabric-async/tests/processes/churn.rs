//! Peers that come and go, a thousand times: neither side grows.

use fabric_async::Endpoint;

use crate::leak_check::{ResourceUsage, private_bytes, run_in_own_process};
use crate::run;
use crate::test_peer::TestPeer;

const CONNECTIONS: usize = 1000;
/// Visits after which everything that is made once is there.
const WARM_UP: usize = 200;
/// What the rest may leave in all: much less than a hundred bytes for a visit would be.
const MAX_GROWTH: usize = 512 * 1024;

/// Comes with an endpoint of its own, talks, and goes; again and again.
pub(crate) async fn connect_repeatedly(name: &str) {
    let mut before = None;
    for visit in 0..CONNECTIONS {
        if visit == WARM_UP {
            before = Some((ResourceUsage::wait_stable().await, private_bytes()));
        }
        let ep = Endpoint::bind("shm://").await.unwrap();
        let host = ep.add_peer(name).await.unwrap();
        ep.send(host, visit.to_le_bytes().to_vec())
            .tag(1)
            .await
            .unwrap();
        assert_eq!(ep.recv().from(host).await.unwrap()[..], visit.to_le_bytes());
    }
    let (census, bytes) = before.expect("taken");
    census.wait_restored().await;
    assert!(
        private_bytes() < bytes + MAX_GROWTH,
        "{} bytes became {}",
        bytes,
        private_bytes()
    );
}

#[test]
fn thousand_short_connections_leak_nothing() {
    run_in_own_process("churn::thousand_short_connections_leak_nothing", || {
        run(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let mut visitor = TestPeer::start("connect_repeatedly", &ep.name().to_string());
            let mut before = None;
            for visit in 0..CONNECTIONS {
                let message = ep.recv().tag(1).await.unwrap();
                assert_eq!(message[..], visit.to_le_bytes());
                if visit == WARM_UP {
                    before = Some((ResourceUsage::current(), private_bytes()));
                }
                ep.send(message.source().unwrap(), message.into_bytes())
                    .await
                    .unwrap();
            }
            while visitor.0.try_wait().unwrap().is_none() || ep.stats().peers > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert!(visitor.0.wait().unwrap().success(), "the visitor grew");
            let (census, bytes) = before.expect("taken");
            // In the middle of a visit there was one peer more, and perhaps one less that was not
            // closed yet.
            let left = ResourceUsage::wait_stable().await;
            assert!(left.is_within(&census), "{left:?} left of {census:?}");
            assert!(
                private_bytes() < bytes + MAX_GROWTH,
                "{} bytes became {}",
                bytes,
                private_bytes()
            );
            assert!(ep.address_vector().peers().is_empty());
        });
    });
}
