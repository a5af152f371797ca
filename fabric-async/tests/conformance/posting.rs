//! When requests are posted: by the first poll of their future, and not before.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use bytes::BytesMut;
use fabric_async::atomic::AtomicOp;
use fabric_async::stats::EndpointStats;
use fabric_async::{Access, Error};
use tokio::task::coop;
use tokio::time::{Duration, timeout};

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with, flush,
};
use crate::payload::{message_number, numbered_message, poll_once, wait_until_stable};
use crate::setup::Setup;

/// Returns the counters that a post changes: those of the endpoint, and the operations of its
/// domain.
fn post_counters(fixture: &EndpointFixture) -> (EndpointStats, usize) {
    (fixture.ep.stats(), fixture.domain.stats().operations)
}

/// Drops a request, its future, and a timeout around it, all without a poll.
fn drop_unpolled<R: IntoFuture>(request: impl Fn() -> R) {
    drop(request());
    drop(request().into_future());
    drop(timeout(Duration::from_secs(1), request().into_future()));
}

pub(crate) async fn unpolled_requests_post_nothing(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    a.ep.send(to_b, "kept").await.unwrap();
    flush(&a, &b, to_b).await;
    let before = (post_counters(&a), post_counters(&b));
    drop_unpolled(|| a.ep.send(to_b, "not sent"));
    drop_unpolled(|| a.ep.send(to_b, vec![0; 100_000]).tag(1).data(2));
    drop_unpolled(|| a.ep.send(to_b, a.ep.domain().try_loan(100).unwrap()));
    drop_unpolled(|| a.ep.reserve(to_b));
    drop_unpolled(|| b.ep.recv());
    drop_unpolled(|| b.ep.recv_into(vec![0; 8]).tag(1));
    drop_unpolled(|| b.ep.probe());
    drop_unpolled(|| b.ep.probe().claim());
    drop(b.ep.recv_multi(BytesMut::with_capacity(100)));
    assert_eq!((post_counters(&a), post_counters(&b)), before);
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"kept");
    a.ep.send(to_b, "next").await.unwrap();
    assert_eq!(
        &b.ep.recv().await.unwrap()[..],
        b"next",
        "no dropped request was sent in between"
    );
}

pub(crate) async fn unpolled_one_sided_requests_post_nothing(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    a.ep.write(to_b, remote.at(0), vec![1; 64]).await.unwrap();
    let before = post_counters(&a);
    drop_unpolled(|| a.ep.write(to_b, remote.at(0), vec![2; 64]));
    drop_unpolled(|| a.ep.write(to_b, [remote.slice(0..8)], vec![2; 8]));
    drop_unpolled(|| a.ep.read(to_b, remote.slice(..)));
    drop_unpolled(|| a.ep.read_into(to_b, remote.slice(..), vec![0; 64]));
    drop_unpolled(|| a.ep.atomic(to_b, remote.at(0), AtomicOp::Write, 2u64));
    drop_unpolled(|| a.ep.fetch_add(to_b, remote.at(0), 2u64));
    assert_eq!(post_counters(&a), before);
    assert_eq!(
        a.ep.read(to_b, remote.slice(..)).await.unwrap()[..],
        [1; 64]
    );
}

pub(crate) async fn disabled_select_branch_posts_nothing(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let before = (post_counters(&a), post_counters(&b));
    let enabled = std::hint::black_box(false);
    tokio::select! {
        _ = a.ep.send(to_b, "not sent"), if enabled => unreachable!("the branch is disabled"),
        _ = b.ep.recv(), if enabled => unreachable!("the branch is disabled"),
        () = std::future::ready(()) => {}
    }
    assert_eq!((post_counters(&a), post_counters(&b)), before);
    let (sent, got) = tokio::join!(a.ep.send(to_b, "sent"), b.ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"sent");
}

pub(crate) async fn requests_are_posted_in_order_of_first_polls(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut first = b.ep.recv().into_future();
    let mut second = b.ep.recv().into_future();
    assert!(poll_once(&mut second).await.is_pending());
    assert!(poll_once(&mut first).await.is_pending());
    // `join!` polls its futures in the order in which they are written.
    let (one, two) = (a.ep.send(to_b, "one"), a.ep.send(to_b, "two"));
    let (two, one) = tokio::join!(two, one);
    two.unwrap();
    one.unwrap();
    assert_eq!(&second.await.unwrap()[..], b"two");
    assert_eq!(&first.await.unwrap()[..], b"one");
}

/// Polls a future when the task has used up its cooperative budget.
async fn poll_without_budget<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    tokio::task::yield_now().await;
    poll_fn(|cx| {
        while coop::has_budget_remaining() {
            if let Poll::Ready(budget) = coop::poll_proceed(cx) {
                budget.made_progress();
            }
        }
        Poll::Ready(Pin::new(&mut *future).poll(cx))
    })
    .await
}

pub(crate) async fn poll_without_coop_budget_posts_nothing(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let (sent, got) = tokio::join!(a.ep.send(to_b, "first"), b.ep.recv());
    sent.unwrap();
    got.unwrap();
    let before = (post_counters(&a), post_counters(&b));
    let mut send = a.ep.send(to_b, "posted later").into_future();
    assert!(poll_without_budget(&mut send).await.is_pending());
    let mut receive = b.ep.recv().into_future();
    assert!(poll_without_budget(&mut receive).await.is_pending());
    let mut reserve = a.ep.reserve(to_b);
    assert!(poll_without_budget(&mut reserve).await.is_pending());
    let mut probe = b.ep.probe().into_future();
    assert!(poll_without_budget(&mut probe).await.is_pending());
    assert_eq!((post_counters(&a), post_counters(&b)), before);
    drop((reserve, probe));
    let (sent, got) = tokio::join!(send, receive);
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"posted later");
}

pub(crate) async fn cancel_on_drop_cancels_ops_that_have_not_begun(setup: Setup) {
    // Short enough for no rendezvous, which would begin each send at once.
    const LEN: usize = 10_000;
    let without_single_copy = || EndpointConfig {
        single_copy_threshold: Some(usize::MAX),
        ..EndpointConfig::default()
    };
    let config = || without_single_copy().with_small_socket_buffers();
    let (a, b, to_b) = endpoint_pair_with(&setup, config(), config()).await;
    // More sends than the receiver, which makes no progress, and the transport buffer.
    let mut waiting = Vec::new();
    let mut next = 0;
    while waiting.len() < 10 {
        for _ in 0..20 {
            assert!(next < 5000, "sends never wait");
            let send = a.ep.send(to_b, numbered_message(next, LEN));
            let mut send = send.into_future();
            if poll_once(&mut send).await.is_pending() {
                waiting.push(send);
            }
            next += 1;
        }
        if !waiting.is_empty() {
            // Messages that the receiver and the transport can buffer are sent without a poll.
            wait_until_stable(|| b.ep.stats().unexpected as u64).await;
        }
        let mut still_waiting = Vec::new();
        for mut send in waiting {
            if poll_once(&mut send).await.is_pending() {
                still_waiting.push(send);
            }
        }
        waiting = still_waiting;
    }
    // These sends hold a credit, but none of their bytes has been sent.
    let cancelable_send = || {
        let message = numbered_message(next, LEN);
        a.ep.send(to_b, message).cancel_on_drop()
    };
    drop(cancelable_send().start().unwrap());
    let mut polled = cancelable_send().into_future();
    assert!(poll_once(&mut polled).await.is_pending());
    drop(polled);
    drop(a.ep.send(to_b, numbered_message(next, 8)).start().unwrap());
    let receives = async {
        for number in 0..=next {
            let message = b.ep.recv().await.unwrap();
            assert_eq!(message_number(&message), number);
            assert_eq!(message.len() == 8, number == next, "the last one is short");
        }
    };
    let sends = async {
        for send in waiting {
            send.await.unwrap();
        }
    };
    tokio::join!(sends, receives);
}

pub(crate) async fn permit_of_another_endpoint_is_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let permit = a.ep.reserve(to_b).await.unwrap();
    let refused = permit.send(&b.ep, "not sent").await.unwrap_err();
    assert!(
        matches!(refused.error, Error::Invalid { what: "permit", .. }),
        "{}",
        refused.error
    );
    assert_eq!(refused.buf, "not sent");
}

pub(crate) async fn unpolled_claimed_receive_releases_its_message(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    a.ep.send(to_b, "released").await.unwrap();
    let claimed = b.ep.probe().claim().await.unwrap();
    drop(claimed.recv().into_future());
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"released");
}

pub(crate) async fn invalid_injects_are_refused(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    let before = post_counters(&a);
    let injects = [
        a.ep.send(to_b, b"x").delivery_complete().inject(),
        a.ep.send(to_b, b"x").match_complete().inject(),
        a.ep.write(to_b, remote.at(0), b"x")
            .delivery_complete()
            .inject(),
        a.ep.write(to_b, [remote.slice(0..1)], b"x").inject(),
        a.ep.write(to_b, remote.slice(0..2), b"x").inject(),
    ];
    for refused in injects {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }
    let refused =
        a.ep.write(to_b, remote.slice(0..2), vec![1])
            .await
            .unwrap_err();
    assert!(
        matches!(refused.error, Error::Invalid { what: "write", .. }),
        "{}",
        refused.error
    );
    assert_eq!(refused.buf, [1]);
    assert_eq!(post_counters(&a), before);
}
