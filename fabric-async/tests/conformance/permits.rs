//! Permits: transmit credits reserved ahead of a send.

use std::task::Poll;

use fabric_async::{Error, FiAddr, Permit};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair_with};
use crate::payload::{assert_bytes, pattern, poll_once};
use crate::setup::Setup;

/// Reserves all credits that are available for a peer.
async fn reserve_all(a: &EndpointFixture, peer: FiAddr) -> Vec<Permit> {
    let mut permits = Vec::new();
    loop {
        match poll_once(&mut a.ep.reserve(peer).into_future()).await {
            Poll::Ready(permit) => permits.push(permit.unwrap()),
            Poll::Pending => return permits,
        }
        assert!(
            permits.len() <= a.info.tx.size,
            "more permits than the endpoint has credits"
        );
    }
}

fn few_credits() -> EndpointConfig {
    EndpointConfig {
        tx_size: Some(8),
        ..EndpointConfig::default()
    }
}

pub(crate) async fn permit_holds_one_credit(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let mut permits = reserve_all(&a, to_b).await;
    assert!(!permits.is_empty() && permits.len() <= 8);
    let mut next = a.ep.reserve(to_b).into_future();
    assert!(poll_once(&mut next).await.is_pending());
    for len in [10, 100_000] {
        // The send uses the permit's credit, which returns when the send completes.
        let permit = permits.pop().expect("two credits at least");
        let (sent, got) = tokio::join!(permit.send(&a.ep, pattern(len, 1)), b.ep.recv());
        sent.unwrap();
        assert_bytes(&got.unwrap(), pattern(len, 1));
        let again = next.await.unwrap();
        next = a.ep.reserve(to_b).into_future();
        assert!(
            poll_once(&mut next).await.is_pending(),
            "one credit was returned, one is reserved"
        );
        permits.insert(0, again);
    }
}

pub(crate) async fn dropped_permit_returns_its_credit(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let mut permits = reserve_all(&a, to_b).await;
    let all = permits.len();
    let mut next = a.ep.reserve(to_b).into_future();
    assert!(poll_once(&mut next).await.is_pending());
    let mut send = a.ep.send(to_b, pattern(100_000, 2)).into_future();
    assert!(
        poll_once(&mut send).await.is_pending(),
        "the send waits behind the reservation"
    );
    permits.pop();
    let permit = next.await.unwrap();
    assert!(poll_once(&mut send).await.is_pending());
    drop(permit);
    let (sent, got) = tokio::join!(send, b.ep.recv());
    sent.unwrap();
    assert_bytes(&got.unwrap(), pattern(100_000, 2));
    drop(permits);
    assert_eq!(reserve_all(&a, to_b).await.len(), all);
}

pub(crate) async fn dropped_reservation_passes_its_credit_on(setup: Setup) {
    let (a, _b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let mut permits = reserve_all(&a, to_b).await;
    let all = permits.len();
    let mut first = a.ep.reserve(to_b).into_future();
    let mut second = a.ep.reserve(to_b).into_future();
    assert!(poll_once(&mut first).await.is_pending());
    assert!(poll_once(&mut second).await.is_pending());
    drop(first);
    permits.pop();
    permits.push(second.await.unwrap());
    // This reservation is granted and dropped before it is polled.
    let granted = a.ep.reserve(to_b).into_future();
    permits.pop();
    drop(granted);
    drop(permits);
    assert_eq!(reserve_all(&a, to_b).await.len(), all);
}

pub(crate) async fn used_permit_returns_its_credit_once(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let all = reserve_all(&a, to_b).await.len();
    for (which, len) in [8, 60, 100_000, 8, 300_000].into_iter().enumerate() {
        let permit = a.ep.reserve(to_b).await.unwrap();
        if which % 2 == 0 {
            let (sent, got) = tokio::join!(permit.send(&a.ep, pattern(len, which)), b.ep.recv());
            sent.unwrap();
            assert_bytes(&got.unwrap(), pattern(len, which));
        } else {
            drop(permit.send(&a.ep, pattern(len, which)).start().unwrap());
            assert_bytes(&b.ep.recv().await.unwrap(), pattern(len, which));
        }
        assert_eq!(
            reserve_all(&a, to_b).await.len(),
            all,
            "after message {which}"
        );
    }
}

/// No endpoint has the address: the send fails.
pub(crate) async fn failed_permit_send_returns_its_credit_once(setup: Setup) {
    let a = setup.open_endpoint_with(few_credits()).await;
    let absent: Vec<_> = (0..12)
        .map(|_| {
            a.av.insert(setup.unique_address("absent").as_str())
                .unwrap()
        })
        .collect();
    let reserve_from_all = async || {
        let mut held = Vec::new();
        for &peer in &absent {
            held.extend(reserve_all(&a, peer).await);
        }
        held.len()
    };
    let all = reserve_from_all().await;
    assert_eq!(all, 8, "as many permits as the endpoint has credits");
    for len in [8, 100_000] {
        let permit = a.ep.reserve(absent[0]).await.unwrap();
        let refused = permit.send(&a.ep, vec![0; len]).await.unwrap_err();
        assert!(
            matches!(refused.error, Error::NoSuchPeer(_)),
            "{}",
            refused.error
        );
        assert_eq!(refused.buf.len(), len);
        assert_eq!(
            reserve_from_all().await,
            all,
            "neither more nor fewer credits than before"
        );
    }
}

pub(crate) async fn permit_for_stale_address_is_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let permit = a.ep.reserve(to_b).await.unwrap();
    a.av.remove(to_b).unwrap();
    let refused = permit.send(&a.ep, vec![1]).await.unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::StaleAddress(to_b), vec![1])
    );
    assert_eq!(
        a.ep.reserve(to_b).await.map(drop),
        Err(Error::StaleAddress(to_b))
    );
    let to_b = a.add_peer(&b).await;
    let (sent, got) = tokio::join!(
        a.ep.reserve(to_b).await.unwrap().send(&a.ep, "new"),
        b.ep.recv()
    );
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"new");
}

pub(crate) async fn close_cancels_pending_reservation(setup: Setup) {
    let (a, _b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let permits = reserve_all(&a, to_b).await;
    let mut waiting = a.ep.reserve(to_b).into_future();
    assert!(poll_once(&mut waiting).await.is_pending());
    a.ep.clone().close().unwrap();
    assert_eq!(waiting.await.map(drop), Err(Error::Canceled));
    assert!(matches!(
        a.ep.reserve(to_b).await.map(drop),
        Err(Error::Closed(_))
    ));
    drop(permits);
}

pub(crate) async fn permit_send_does_not_overtake_queued_send(setup: Setup) {
    let (a, b, to_b) = endpoint_pair_with(&setup, few_credits(), EndpointConfig::default()).await;
    let mut permits = reserve_all(&a, to_b).await;
    let permit = permits.pop().expect("one credit at least");
    let mut first = a.ep.send(to_b, pattern(1_000_000, 1)).into_future();
    assert!(
        poll_once(&mut first).await.is_pending(),
        "the send waits for a credit"
    );
    let second = permit.send(&a.ep, pattern(1_000_001, 2)).into_future();
    let receive = async { (b.ep.recv().await.unwrap(), b.ep.recv().await.unwrap()) };
    let (first, second, (one, two)) = tokio::join!(first, second, receive);
    first.unwrap();
    second.unwrap();
    assert_bytes(&one, pattern(1_000_000, 1));
    assert_bytes(&two, pattern(1_000_001, 2));
    drop(permits);
}
