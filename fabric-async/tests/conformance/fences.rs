//! Fenced operations (`FI_FENCE`), which start after all earlier operations to the peer have
//! completed.

use std::future::IntoFuture;

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, CancelOutcome, Caps, Error, OpKind, Operation, Resource};
use futures_util::FutureExt;

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{LONG_LEN, assert_bytes, pattern, poll_once, yield_times};
use crate::setup::Setup;

/// Long messages without a receive, more than the peer and the socket buffers hold: the last one
/// stays in progress.
const LONG_SENDS: usize = 12;

fn start_long_sends(
    a: &EndpointFixture,
    peer: fabric_async::FiAddr,
) -> Vec<Operation<&'static [u8]>> {
    (0..LONG_SENDS)
        .map(|_| a.ep.send(peer, pattern(LONG_LEN, 1)).start().unwrap())
        .collect()
}

async fn expect_received(b: &EndpointFixture, expected: &[&[u8]]) {
    for message in expected {
        assert_bytes(&b.ep.recv().await.unwrap(), message);
    }
}

/// A send behind a fenced send is refused or waits; without the fence it is accepted at once.
pub(crate) async fn fenced_op_starts_after_prior_ops_complete(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for fenced in [false, true] {
        let before = start_long_sends(&a, to_b);
        let request = a.ep.send(to_b, vec![1]);
        let request = if fenced { request.fence() } else { request };
        let request = request.start().unwrap();
        let behind = a.ep.send(to_b, vec![2]).start();
        assert_eq!(behind.is_err(), fenced, "no operation overtakes a fence");
        let mut behind = match behind {
            Ok(operation) => operation.left_future(),
            Err(refused) => {
                assert!(
                    matches!(
                        refused.error,
                        Error::WouldBlock(Resource::TransmitCredit { .. })
                    ),
                    "{refused}"
                );
                let inject_error = a.ep.send(to_b, b"x").inject().unwrap_err();
                assert!(matches!(
                    inject_error,
                    Error::WouldBlock(Resource::TransmitCredit { .. })
                ));
                a.ep.send(to_b, refused.buf).into_future().right_future()
            }
        };
        // Without a fence, a short message may complete before a long one.
        assert!(!fenced || poll_once(&mut behind).await.is_pending());
        let long = [pattern(LONG_LEN, 1); LONG_SENDS];
        let order = async {
            for operation in before {
                operation.await.unwrap();
            }
            request.await.unwrap();
            behind.await.unwrap();
        };
        tokio::join!(order, async {
            expect_received(&b, &long).await;
            expect_received(&b, &[&[1], &[2]]).await;
        });
    }
    // With no earlier operation in progress, a fenced send completes like a send without a fence.
    a.ep.send(to_b, "free").fence().await.unwrap();
    expect_received(&b, &[b"free"]).await;
}

pub(crate) async fn fence_does_not_delay_other_peers(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let c = setup.open_endpoint().await;
    let to_c = a.add_peer(&c).await;
    let _progress = b.spawn_progress();
    let before = start_long_sends(&a, to_b);
    let fenced = a.ep.send(to_b, "fenced").fence().start().unwrap();
    let (sent, ()) = tokio::join!(
        a.ep.send(to_c, "to another").fence(),
        expect_received(&c, &[b"to another"])
    );
    sent.unwrap();
    drop((before, fenced));
    expect_received(&b, &[pattern(LONG_LEN, 1); LONG_SENDS]).await;
    expect_received(&b, &[b"fenced"]).await;
}

/// Completions are reported in order, and a fenced message arrives after the effects of the
/// operations before it.
pub(crate) async fn every_kind_of_operation_can_be_fenced(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let at = |offset| region.remote().at(offset);
    for round in 1..=3u64 {
        drop(start_long_sends(&a, to_b));
        a.ep.write(to_b, at(0), round.to_le_bytes().to_vec())
            .fence()
            .context(1)
            .post()
            .unwrap();
        let behind = async {
            a.ep.read(to_b, region.remote().slice(..8))
                .fence()
                .await
                .unwrap();
            a.ep.fetch_atomic(to_b, at(8), AtomicOp::Sum, 1u64)
                .fence()
                .await
                .unwrap();
            a.ep.send(to_b, a.ep.domain().try_loan(100).unwrap())
                .fence()
                .await
                .map_err(|failed| failed.error)
                .unwrap();
            a.ep.send(to_b, "there").fence().tag(1).await.unwrap();
        };
        let taking = async {
            expect_received(&b, &[pattern(LONG_LEN, 1); LONG_SENDS]).await;
            assert_eq!(b.ep.recv().await.unwrap().len(), 100);
            b.ep.recv().tag(1).await.unwrap();
            assert_eq!(
                (region.load::<u64>(0), region.load::<u64>(8)),
                (Ok(round), Ok(round))
            );
        };
        tokio::join!(behind, taking);
        let mut out = Vec::new();
        a.cq.read_batch(&mut out, 2).await;
        assert_eq!(
            (out.len(), out[0].kind, &out[0].error),
            (1, OpKind::Write, &None)
        );
    }
}

pub(crate) async fn canceled_fence_releases_later_ops(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let before = start_long_sends(&a, to_b);
    let fenced = a.ep.send(to_b, vec![7]).fence().start().unwrap();
    let mut behind = a.ep.send(to_b, "behind").into_future();
    assert!(poll_once(&mut behind).await.is_pending());
    match fenced.cancel().await {
        CancelOutcome::Canceled(buf) => assert_eq!(buf, [7]),
        CancelOutcome::Completed(ended) => panic!("the send had begun: {ended:?}"),
    }
    // The next send is accepted again, because no operation is queued before it.
    let last = a.ep.send(to_b, "last").start().unwrap();
    drop(before);
    expect_received(&b, &[pattern(LONG_LEN, 1); LONG_SENDS]).await;
    expect_received(&b, &[b"behind", b"last"]).await;
    behind.await.unwrap();
    last.await.unwrap();
    flush(&a, &b, to_b).await;
    assert_eq!(a.ep.stats().failed, 0);
}

pub(crate) async fn dropped_fenced_send_is_delivered(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    drop(start_long_sends(&a, to_b));
    drop(a.ep.send(to_b, "dropped").fence().start().unwrap());
    expect_received(&b, &[pattern(LONG_LEN, 1); LONG_SENDS]).await;
    expect_received(&b, &[b"dropped"]).await;
}

pub(crate) async fn close_fails_pending_fenced_ops(setup: Setup) {
    let config = EndpointConfig {
        tx_size: Some(64),
        ..EndpointConfig::default()
    };
    for sender_closes in [false, true] {
        let (mut a, b, to_b) =
            endpoint_pair_with(&setup, config.clone(), EndpointConfig::default()).await;
        let progress_task = b.spawn_progress();
        drop(start_long_sends(&a, to_b));
        a.ep.send(to_b, "first").fence().context(1).post().unwrap();
        yield_times(10).await;
        progress_task.abort();
        if sender_closes {
            a.ep.clone().close().unwrap()
        } else {
            b.ep.clone().close().unwrap()
        }
        let mut out = Vec::new();
        a.cq.read_batch(&mut out, 1).await;
        assert_eq!((out.len(), out[0].context), (1, 1));
        match out[0].error.as_deref() {
            Some(Error::Canceled) if sender_closes => {}
            Some(Error::PeerGone(_) | Error::NoSuchPeer(_)) if !sender_closes => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Providers offer `FI_FENCE` by default; an endpoint without it refuses fenced operations.
pub(crate) async fn fence_requires_fi_fence(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert!(a.info.caps.contains(Caps::FENCE));
    let mut info = a.info.clone();
    info.caps -= Caps::FENCE;
    let plain = a
        .domain
        .endpoint(&info)
        .unwrap()
        .bind_av(&a.av)
        .unwrap()
        .enable()
        .unwrap();
    let refused = plain.send(to_b, "x").fence().await.unwrap_err();
    assert_eq!(
        refused.error,
        Error::NotSupported("fenced operations (the endpoint has no FI_FENCE)")
    );
    let (sent, ()) = tokio::join!(plain.send(to_b, "y"), expect_received(&b, &[b"y"]));
    sent.unwrap();
}

/// Over tcp, short sends after the first are batched and hold no transmit credit.
pub(crate) async fn fenced_send_behind_batched_sends_completes(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let sends = [b"a", b"b"].map(|message| a.ep.send(to_b, message.to_vec()).start().unwrap());
    let fenced = a.ep.send(to_b, b"c".to_vec()).fence().start().unwrap();
    for send in sends {
        send.await.unwrap();
    }
    fenced.await.unwrap();
    a.ep.send(to_b, b"d").inject().unwrap();
    a.ep.send(to_b, b"e").inject().unwrap();
    a.ep.send(to_b, b"f".to_vec()).fence().await.unwrap();
    a.ep.send(to_b, b"g".to_vec()).await.unwrap();
    expect_received(&b, &[b"a", b"b", b"c", b"d", b"e", b"f", b"g"]).await;
}
