//! Tasks that wait in `Domain::loan` until loans are returned.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use fabric_async::{Class, Endpoint, Error, Fabric, FiAddr, Hints, Progress, WaitPolicy, discover};

use crate::health::assert_still_works;
use crate::run;
use crate::test_peer::TestPeer;

const LEN: usize = 4096;

async fn bind_with_limit(limit: usize) -> Endpoint {
    let options = Endpoint::options().loan_limit(limit);
    options.bind("shm://").await.unwrap()
}

/// Polls a future 20 times, and panics if it is ready.
async fn assert_pending<F: Future>(mut future: std::pin::Pin<&mut F>) {
    for _ in 0..20 {
        let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
        tokio::task::yield_now().await;
    }
}

/// Short loans that are requested later, also by `try_loan`, do not overtake a long loan.
#[test]
fn loans_are_granted_in_the_order_of_requests() {
    run(async {
        let ep = bind_with_limit(2 * LEN).await;
        let (first, second) = (
            ep.domain().loan(LEN).await.unwrap(),
            ep.domain().loan(LEN).await.unwrap(),
        );
        let order = RefCell::new(Vec::new());
        let wait = |len| {
            let (ep, order) = (&ep, &order);
            async move {
                drop(ep.domain().loan(len).await.unwrap());
                order.borrow_mut().push(len);
            }
        };
        let (mut long, mut short, mut third) =
            (pin!(wait(2 * LEN)), pin!(wait(LEN)), pin!(wait(1)));
        assert_pending(long.as_mut()).await;
        assert_pending(short.as_mut()).await;
        assert_pending(third.as_mut()).await;
        drop(first);
        assert_pending(short.as_mut()).await;
        let refused = ep.domain().try_loan(1).unwrap_err();
        assert!(matches!(refused, Error::WouldBlock(_)), "{refused}");
        drop(second);
        tokio::join!(third, short, long);
        assert_eq!(*order.borrow(), [2 * LEN, LEN, 1]);
        ep.domain().try_loan(2 * LEN).unwrap();
    });
}

/// When a waiting request is dropped, also after its wake-up, the next request gets the memory.
#[test]
fn dropped_loan_request_passes_its_turn_on() {
    run(async {
        let ep = bind_with_limit(LEN).await;
        for woken in [false, true] {
            let held = ep.domain().loan(LEN).await.unwrap();
            let mut next = Box::pin(ep.domain().loan(LEN));
            let mut first = Box::pin(ep.domain().loan(LEN));
            assert_pending(first.as_mut()).await;
            assert_pending(next.as_mut()).await;
            if woken {
                drop(held);
                ep.domain().progress();
                drop(first);
            } else {
                drop(first);
                drop(held);
            }
            drop(next.await.unwrap());
            ep.domain().try_loan(LEN).unwrap();
        }
    });
}

#[test]
fn loan_longer_than_the_limit_fails_at_once() {
    run(async {
        let ep = bind_with_limit(10_000).await;
        let held = ep.domain().loan(10_000).await.unwrap();
        for len in [10_001, usize::MAX] {
            let error = ep.domain().loan(len).await.unwrap_err();
            assert!(
                matches!(error, Error::TooLong { limit: 10_000, .. }),
                "{error}"
            );
        }
        assert!(matches!(ep.domain().try_loan(1), Err(Error::WouldBlock(_))));
        drop(held);
        // A limit that is no power of two can be used whole.
        assert_eq!(ep.domain().try_loan(9_000).unwrap().len(), 9_000);
    });
}

/// The return of loans wakes a waiting task under every wait policy and progress mode. One loan is
/// sent before the task waits, and one while it waits.
#[test]
fn returned_loan_wakes_waiting_task() {
    for (policy, progress) in [
        (WaitPolicy::Adaptive, Progress::Manual),
        (WaitPolicy::Park, Progress::Manual),
        (WaitPolicy::Spin, Progress::Manual),
        (WaitPolicy::Park, Progress::Auto),
        (WaitPolicy::Adaptive, Progress::Auto),
    ] {
        run(async {
            let options = Endpoint::options().loan_limit(2 * LEN);
            let options = options.wait_policy(policy).progress(progress);
            let ep = options.bind("shm://").await.unwrap();
            let peer = Endpoint::bind("shm://").await.unwrap();
            let to_peer = ep.add_peer(peer.name()).await.unwrap();
            for round in 0..50 {
                ep.send(to_peer, ep.domain().loan(LEN).await.unwrap())
                    .await
                    .unwrap();
                let early = peer.recv_loan().await.unwrap();
                let late = ep.domain().loan(LEN).await.unwrap();
                let mut waiting = Box::pin(ep.domain().loan(2 * LEN));
                assert_pending(waiting.as_mut()).await;
                ep.send(to_peer, late).await.unwrap();
                let late = peer.recv_loan().await.unwrap();
                let returned = std::thread::spawn(move || {
                    if round % 2 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    drop(early);
                    drop(late);
                });
                waiting.await.unwrap();
                returned.join().unwrap();
            }
        });
    }
}

/// The death of a process that holds loans wakes the task that waits for them.
#[test]
fn death_of_loan_holder_wakes_waiting_task() {
    run(async {
        let ep = bind_with_limit(2 * LEN).await;
        for _ in 0..10 {
            let mut holder = TestPeer::start("loan_holder", &ep.name().to_string());
            let peer = ep.recv().tag(1).await.unwrap().source().unwrap();
            lend_all(&ep, peer).await;
            let mut waiting = Box::pin(ep.domain().loan(LEN));
            assert_pending(waiting.as_mut()).await;
            holder.0.kill().unwrap();
            waiting.await.unwrap();
            holder.0.wait().unwrap();
        }
        assert_still_works(&ep).await;
    });
}

async fn lend_all(ep: &Endpoint, peer: FiAddr) {
    for _ in 0..2 {
        ep.send(peer, ep.domain().loan(LEN).await.unwrap())
            .await
            .unwrap();
        ep.recv().tag(2).from(peer).await.unwrap();
    }
}

/// Holds every loan that it receives, and acknowledges it.
pub(crate) async fn hold_loans(name: &str) {
    let ep = Endpoint::bind("shm://").await.expect("bind");
    let peer = ep.add_peer(name).await.expect("add_peer");
    ep.send(peer, "ready").tag(1).await.expect("send");
    let mut held = Vec::new();
    while let Ok(frame) = ep.recv_loan().from(peer).await {
        held.push(frame);
        ep.send(peer, "held").tag(2).await.expect("send");
    }
}

#[test]
fn closing_the_domain_ends_waits_for_loans() {
    run(async {
        let info = discover(&Hints::new().provider("shm"))
            .unwrap()
            .swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric.domain_builder(&info).loan_limit(LEN).open().unwrap();
        let held = domain.loan(LEN).await.unwrap();
        let other = domain.clone();
        let (mut first, mut second) = (pin!(other.loan(LEN)), pin!(other.loan(1)));
        assert_pending(first.as_mut()).await;
        assert_pending(second.as_mut()).await;
        domain.close().unwrap();
        let closed = Err(Error::Closed(Class::Domain));
        assert_eq!(first.await.map(drop), closed);
        assert_eq!(second.await.map(drop), closed);
        assert_eq!(other.try_loan(1).map(drop), closed);
        drop(held);
    });
}
