//! Features of connected endpoints that only local providers offer: windows, both completion
//! levels, single copy, and chosen names.

use std::future::IntoFuture;
use std::time::Duration;

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Class, ConnectedEndpoint, Error};

use crate::connected::spawn_progress;
use crate::connected_pair::connected_pair;
use crate::payload::{LONG_LEN, assert_bytes, pattern, poll_once};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

pub(crate) async fn window_outlives_neither_region_nor_connection(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    for (from, to) in [(&a, &b), (&b, &a)] {
        let _progress = spawn_progress(to);
        let region = to.domain_fixture.domain.alloc(64, READ_WRITE).unwrap();
        let window = from.ep.window(region.remote()).await.unwrap();
        window.write(0, b"in place").unwrap();
        let mut bytes = [0; 8];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"in place");
        assert_eq!(window.atomic(8, AtomicOp::Sum, 5u64), Ok(0));
        assert_eq!(region.load(8), Ok(5u64));
        region.close().unwrap();
        assert!(!window.is_open());
    }
    let region = b.domain_fixture.domain.alloc(64, READ_WRITE).unwrap();
    let _progress = spawn_progress(&b);
    let window = a.ep.window(region.remote()).await.unwrap();
    a.ep.shutdown().unwrap();
    let closed = window.write(0, b"x").unwrap_err();
    assert_eq!(closed, Error::Closed(Class::Endpoint));
}

pub(crate) async fn both_completion_levels_wait_for_a_receive(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    for len in [0, 8, 9000, 1 << 20] {
        for until_match in [false, true] {
            let send = a.ep.send(pattern(len, 1)).fence();
            let send = if until_match {
                send.match_complete()
            } else {
                send.delivery_complete()
            };
            let mut sent = send.start().unwrap();
            while b.ep.stats().unexpected == 0 {
                b.domain_fixture.domain.progress();
                assert!(poll_once(&mut sent).await.is_pending(), "{len} bytes");
                tokio::task::yield_now().await;
            }
            let (sent, got) = tokio::join!(sent, b.ep.recv());
            sent.unwrap();
            assert_bytes(&got.unwrap(), pattern(len, 1));
        }
    }
    // The send of a message that is never received fails when the connection ends.
    let send = a.ep.send("unreceived").match_complete();
    let mut send = send.start().unwrap();
    assert!(poll_once(&mut send).await.is_pending());
    b.ep.close().unwrap();
    assert!(send.await.unwrap_err().error.is_peer_unavailable());
}

/// Both endpoints copy messages beyond the threshold of their domain once.
pub(crate) async fn long_messages_are_copied_once_in_both_directions(setup: Setup) {
    let setup = setup.single_copy_threshold(0);
    let (a, b) = connected_pair(&setup).await;
    for (from, to) in [(&a.ep, &b.ep), (&b.ep, &a.ep)] {
        for len in [100_000, LONG_LEN] {
            let send = from.send(pattern(len, 4));
            let (sent, got) = tokio::join!(send.into_future(), to.recv());
            sent.unwrap();
            assert_bytes(&got.unwrap(), pattern(len, 4));
        }
        let (sent, got) = (from.stats(), to.stats());
        assert_eq!(sent.single_copy_tx, got.single_copy_rx);
        // The kernel may forbid single copy, also within one process.
        assert!(matches!(sent.single_copy_tx.count, 0 | 2));
    }
}

/// A connecting endpoint can set its name. A name in use is refused, and is free again when the
/// connection has ended.
pub(crate) async fn connecting_endpoint_has_the_name_it_asks_for(setup: Setup) {
    let here = crate::connected_pair::MsgDomainFixture::open(&setup).await;
    let mut pep = here.listen(&setup);
    let own = setup.unique_address("connecting");
    for _ in 0..2 {
        let connect = |name: &str| here.endpoint().name(name).unwrap().connect(pep.name());
        let connecting = connect(&own).timeout(Duration::from_secs(20)).into_future();
        let second = connect(&own).into_future();
        let mut connecting = std::pin::pin!(connecting);
        assert!(poll_once(&mut connecting).await.is_pending());
        let refused: Error = second.await.map(drop).unwrap_err();
        assert_eq!(refused, Error::AddressInUse(own.parse().unwrap()));
        let accepting = async {
            let request = pep.accept().await.unwrap();
            assert_eq!(request.peer(), &own.parse().unwrap());
            here.accept(request, b"")
        };
        let (ep, accepted): (_, ConnectedEndpoint) = tokio::join!(connecting, accepting);
        let ep = ep.unwrap();
        assert_eq!(ep.name(), &own.parse().unwrap());
        ep.close().unwrap();
        assert!(
            accepted
                .recv()
                .await
                .unwrap_err()
                .error
                .is_peer_unavailable()
        );
    }
}
