//! Counters.

use std::pin::pin;

use fabric_async::{Class, Error};

use crate::endpoint_fixture::endpoint_pair;
use crate::payload::{poll_once, yield_times};
use crate::setup::Setup;

pub(crate) async fn sends_and_receives_are_counted(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert_eq!(
        (a.send_counter.value(), b.recv_counter.value()),
        (0, 0),
        "a connect is not counted as a send"
    );
    for (count, len) in [0, 60, 9000, 200_000].into_iter().enumerate() {
        let (sent, got) = tokio::join!(a.ep.send(to_b, vec![0; len]), b.ep.recv());
        sent.unwrap();
        got.unwrap();
        assert_eq!(
            (a.send_counter.value(), b.recv_counter.value()),
            (count as u64 + 1, count as u64 + 1)
        );
    }
    assert_eq!(
        (
            a.recv_counter.value(),
            b.send_counter.value(),
            a.send_counter.errors(),
            b.recv_counter.errors()
        ),
        (0, 0, 0, 0)
    );
}

/// Awaited, posted, injected and dropped operations are all counted.
pub(crate) async fn every_way_to_complete_is_counted(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    for context in 0..2 {
        b.ep.recv_into(vec![0; 8]).context(context).post().unwrap();
    }
    a.ep.send(to_b, "awaited").await.unwrap();
    a.ep.send(to_b, "posted").post().unwrap();
    a.ep.send(to_b, b"injected").inject().unwrap();
    drop(a.ep.send(to_b, "dropped").start().unwrap());
    assert_eq!(a.send_counter.wait(4).await, Ok(4));
    let mut out = Vec::new();
    while out.len() < 2 {
        b.cq.read_batch(&mut out, 2).await;
    }
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"injected");
    assert_eq!(&b.ep.recv().start().unwrap().await.unwrap()[..], b"dropped");
    assert_eq!(b.recv_counter.wait(4).await, Ok(4));
}

/// A program that reads counters only, and neither waits nor reads its completion queue.
pub(crate) async fn counter_reads_make_progress(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    b.ep.recv_into(vec![0; 8]).post().unwrap();
    a.ep.send(to_b, "counted").await.unwrap();
    while b.recv_counter.value() == 0 {
        tokio::task::yield_now().await;
    }
    b.ep.recv_into(vec![0; 8]).post().unwrap();
    a.ep.send(to_b, "too long for its receive").await.unwrap();
    while b.recv_counter.errors() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        (b.recv_counter.value(), b.recv_counter.errors()),
        (1, 1),
        "the second message is truncated"
    );
}

pub(crate) async fn wait_completes_at_the_threshold(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    assert_eq!(b.recv_counter.wait(0).await, Ok(0));
    let tasks: Vec<_> = [5, 1, 10]
        .into_iter()
        .map(|threshold| {
            let recvs = b.recv_counter.clone();
            tokio::spawn(async move { recvs.wait(threshold).await.map(|value| value >= threshold) })
        })
        .collect();
    yield_times(10).await;
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
    assert!(!last.is_finished(), "the wait ended at nine of ten");
    // No task polls the operations: the wait for the counter drives the domain.
    let _posted = b.ep.recv().start().unwrap();
    a.ep.send(to_b, b"x").inject().unwrap();
    assert_eq!(last.await.unwrap(), Ok(true));
}

pub(crate) async fn failed_op_ends_counter_wait(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut waiting = pin!(b.recv_counter.wait(3));
    assert!(poll_once(&mut waiting).await.is_pending());
    let truncated =
        b.ep.recv_into(vec![0; 2].into_boxed_slice())
            .start()
            .unwrap();
    a.ep.send(to_b, "too long").await.unwrap();
    let error = waiting.await.unwrap_err();
    assert_eq!(
        error,
        Error::CounterError {
            value: 0,
            threshold: 3,
            errors: 1
        }
    );
    assert_eq!((b.recv_counter.value(), b.recv_counter.errors()), (0, 1));
    assert!(truncated.await.is_err());
    // Earlier errors do not end later waits.
    let (reached, sent, got) =
        tokio::join!(b.recv_counter.wait(1), a.ep.send(to_b, "fine"), b.ep.recv());
    sent.unwrap();
    got.unwrap();
    assert_eq!(reached, Ok(1));
}

pub(crate) async fn manual_add_ends_counter_wait(setup: Setup) {
    let a = setup.open_endpoint().await;
    let mut waiting = pin!(a.send_counter.wait(10));
    assert!(poll_once(&mut waiting).await.is_pending());
    a.send_counter.add(9);
    assert!(poll_once(&mut waiting).await.is_pending());
    a.send_counter.add(2);
    assert_eq!(waiting.await, Ok(11));
    let mut waiting = pin!(a.send_counter.wait(100));
    assert!(poll_once(&mut waiting).await.is_pending());
    a.send_counter.add_errors(1);
    assert!(waiting.await.is_err());
    assert_eq!((a.send_counter.value(), a.send_counter.errors()), (11, 1));
}

pub(crate) async fn dropped_wait_does_not_affect_other_waits(setup: Setup) {
    let a = setup.open_endpoint().await;
    let tasks: Vec<_> = (0..8)
        .map(|which| {
            let sends = a.send_counter.clone();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    reached = sends.wait(5) => reached.is_ok(),
                    () = yield_times(3), if which % 2 == 0 => false,
                }
            })
        })
        .collect();
    yield_times(50).await;
    a.send_counter.add(5);
    for (which, task) in tasks.into_iter().enumerate() {
        let reached = task.await.unwrap();
        assert!(reached || which % 2 == 0);
    }
}

pub(crate) async fn close_fails_pending_waits(setup: Setup) {
    let a = setup.open_endpoint().await;
    let counter = a.domain.counter().unwrap();
    let (clone, late) = (counter.clone(), counter.clone());
    let waiting = tokio::spawn(async move { clone.wait(1).await });
    yield_times(20).await;
    counter.close().unwrap();
    assert_eq!(waiting.await.unwrap(), Err(Error::Closed(Class::Counter)));
    late.add(1);
    assert_eq!(late.wait(1).await, Err(Error::Closed(Class::Counter)));
    assert_eq!(
        late.close().unwrap_err().error,
        Error::Closed(Class::Counter)
    );
}
