//! Counters.

use std::pin::pin;

use fabric_async::{Class, Error};

use crate::payload::{poll_once, yields};
use crate::setup::Setup;
use crate::station::pair;

pub(crate) async fn sends_and_receives_are_counted(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    assert_eq!(
        (a.sends.value(), b.recvs.value()),
        (0, 0),
        "a connection is not a send"
    );
    for (count, len) in [0, 60, 9000, 200_000].into_iter().enumerate() {
        let (sent, got) = tokio::join!(a.ep.send(to_b, vec![0; len]), b.ep.recv());
        sent.unwrap();
        got.unwrap();
        assert_eq!(
            (a.sends.value(), b.recvs.value()),
            (count as u64 + 1, count as u64 + 1)
        );
    }
    assert_eq!(
        (
            a.recvs.value(),
            b.sends.value(),
            a.sends.errors(),
            b.recvs.errors()
        ),
        (0, 0, 0, 0)
    );
}

/// Awaited, posted, injected, dropped: who hears of it makes no difference.
pub(crate) async fn every_ending_is_counted(setup: Setup) {
    let (a, mut b, to_b) = pair(&setup).await;
    for context in 0..2 {
        b.ep.recv_into(vec![0; 8]).context(context).post().unwrap();
    }
    a.ep.send(to_b, "awaited").await.unwrap();
    a.ep.send(to_b, "posted").post().unwrap();
    a.ep.inject(to_b, b"injected").unwrap();
    drop(a.ep.send(to_b, "dropped").start().unwrap());
    assert_eq!(a.sends.wait(4).await, Ok(4));
    let mut out = Vec::new();
    while out.len() < 2 {
        b.cq.next_batch(&mut out, 2).await;
    }
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"injected");
    assert_eq!(&b.ep.recv().start().unwrap().await.unwrap()[..], b"dropped");
    assert_eq!(b.recvs.wait(4).await, Ok(4));
}

pub(crate) async fn waiting_ends_at_the_threshold(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    assert_eq!(b.recvs.wait(0).await, Ok(0));
    let tasks: Vec<_> = [5, 1, 10]
        .into_iter()
        .map(|threshold| {
            let recvs = b.recvs.clone();
            tokio::spawn(async move { recvs.wait(threshold).await.map(|value| value >= threshold) })
        })
        .collect();
    yields(10).await;
    for _ in 0..9 {
        let (sent, got) = tokio::join!(a.ep.send(to_b, "x"), b.ep.recv());
        sent.unwrap();
        got.unwrap();
    }
    let mut tasks = tasks.into_iter();
    for _ in 0..2 {
        assert_eq!(tasks.next().unwrap().await.unwrap(), Ok(true));
    }
    let last = tasks.next().unwrap();
    assert!(!last.is_finished(), "nine are not ten");
    // Nobody polls the operations themselves: the counter is enough to make progress.
    let _posted = b.ep.recv().start().unwrap();
    a.ep.inject(to_b, b"x").unwrap();
    assert_eq!(last.await.unwrap(), Ok(true));
}

pub(crate) async fn a_failure_wakes_who_waits(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let mut waiting = pin!(b.recvs.wait(3));
    assert!(poll_once(&mut waiting).await.is_pending());
    let cut =
        b.ep.recv_into(vec![0; 2].into_boxed_slice())
            .start()
            .unwrap();
    a.ep.send(to_b, "too long").await.unwrap();
    let error = waiting.await.unwrap_err();
    assert_eq!(
        error,
        Error::CountedError {
            value: 0,
            threshold: 3,
            errors: 1
        }
    );
    assert_eq!((b.recvs.value(), b.recvs.errors()), (0, 1));
    assert!(cut.await.is_err());
    // Errors of the past do not end later waits.
    let (reached, sent, got) = tokio::join!(b.recvs.wait(1), a.ep.send(to_b, "fine"), b.ep.recv());
    sent.unwrap();
    got.unwrap();
    assert_eq!(reached, Ok(1));
}

pub(crate) async fn counting_by_hand_wakes_who_waits(setup: Setup) {
    let a = setup.station().await;
    let mut waiting = pin!(a.sends.wait(10));
    assert!(poll_once(&mut waiting).await.is_pending());
    a.sends.add(9);
    assert!(poll_once(&mut waiting).await.is_pending());
    a.sends.add(2);
    assert_eq!(waiting.await, Ok(11));
    let mut waiting = pin!(a.sends.wait(100));
    assert!(poll_once(&mut waiting).await.is_pending());
    a.sends.add_errors(1);
    assert!(waiting.await.is_err());
    assert_eq!((a.sends.value(), a.sends.errors()), (11, 1));
}

pub(crate) async fn a_wait_that_is_dropped_leaves_others_alone(setup: Setup) {
    let a = setup.station().await;
    let tasks: Vec<_> = (0..8)
        .map(|which| {
            let sends = a.sends.clone();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    reached = sends.wait(5) => reached.is_ok(),
                    () = yields(3), if which % 2 == 0 => false,
                }
            })
        })
        .collect();
    yields(50).await;
    a.sends.add(5);
    for (which, task) in tasks.into_iter().enumerate() {
        let reached = task.await.unwrap();
        assert!(reached || which % 2 == 0);
    }
}

pub(crate) async fn closing_ends_who_waits(setup: Setup) {
    let a = setup.station().await;
    let counter = a.domain.counter().unwrap();
    let (clone, late) = (counter.clone(), counter.clone());
    let waiting = tokio::spawn(async move { clone.wait(1).await });
    yields(20).await;
    counter.close().unwrap();
    assert_eq!(waiting.await.unwrap(), Err(Error::Closed(Class::Counter)));
    late.add(1);
    assert_eq!(late.wait(1).await, Err(Error::Closed(Class::Counter)));
    assert_eq!(
        late.close().unwrap_err().error,
        Error::Closed(Class::Counter)
    );
}
