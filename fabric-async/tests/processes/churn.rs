//! Peers that come and go, a thousand times: neither side grows.

use fabric_async::Endpoint;

use crate::census::{Census, alone, private_bytes};
use crate::role::Peer;
use crate::run;

const VISITS: usize = 1000;
/// Visits after which everything that is made once is there.
const FIRST: usize = 200;
/// What the rest may leave in all: much less than a hundred bytes for a visit would be.
const GROWTH: usize = 512 * 1024;

/// Comes with an endpoint of its own, talks, and goes; again and again.
pub(crate) async fn visits(name: &str) {
    let mut before = None;
    for visit in 0..VISITS {
        if visit == FIRST {
            before = Some((Census::settled().await, private_bytes()));
        }
        let ep = Endpoint::bind("shm://").await.unwrap();
        let host = ep.lookup(name).await.unwrap();
        ep.send(host, visit.to_le_bytes().to_vec())
            .tag(1)
            .await
            .unwrap();
        assert_eq!(ep.recv().from(host).await.unwrap()[..], visit.to_le_bytes());
    }
    let (census, bytes) = before.expect("taken");
    census.returns().await;
    assert!(
        private_bytes() < bytes + GROWTH,
        "{} bytes became {}",
        bytes,
        private_bytes()
    );
}

#[test]
fn a_thousand_visits_leave_nothing() {
    alone("churn::a_thousand_visits_leave_nothing", || {
        run(async {
            let ep = Endpoint::bind("shm://").await.unwrap();
            let mut visitor = Peer::start("visitor", &ep.name().to_string());
            let mut before = None;
            for visit in 0..VISITS {
                let message = ep.recv().tag(1).await.unwrap();
                assert_eq!(message[..], visit.to_le_bytes());
                if visit == FIRST {
                    before = Some((Census::take(), private_bytes()));
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
            let left = Census::settled().await;
            assert!(left.is_within(&census), "{left:?} left of {census:?}");
            assert!(
                private_bytes() < bytes + GROWTH,
                "{} bytes became {}",
                bytes,
                private_bytes()
            );
            assert!(ep.address_vector().peers().is_empty());
        });
    });
}
