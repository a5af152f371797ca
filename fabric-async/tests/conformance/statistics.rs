//! Statistics: what was done is counted once, and what is under way is seen.

use fabric_async::{Access, AtomicOp, Error, Moved};

use crate::payload::settled;
use crate::setup::Setup;
use crate::station::pair;

fn moved(count: u64, bytes: u64) -> Moved {
    Moved { count, bytes }
}

pub(crate) async fn messages_are_counted_on_both_sides(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    assert_eq!(
        (a.ep.stats().sent, b.ep.stats().received),
        (moved(0, 0), moved(0, 0))
    );
    for len in [10, 20, 300_000] {
        let (sent, got) = tokio::join!(a.ep.send(to_b, vec![7; len]), b.ep.recv());
        sent.unwrap();
        got.unwrap();
    }
    a.ep.inject(to_b, b"four").unwrap();
    a.ep.send(to_b, "posted").post().unwrap();
    let mut loan = a.ep.loan(5000).unwrap();
    loan.fill(1);
    a.ep.lend(to_b, loan).await.unwrap();
    for _ in 0..3 {
        b.ep.recv().await.unwrap();
    }
    let (sender, receiver) = (a.ep.stats(), b.ep.stats());
    assert_eq!(sender.sent, moved(6, 10 + 20 + 300_000 + 4 + 6 + 5000));
    assert_eq!(receiver.received, sender.sent);
    assert_eq!(
        (sender.failed, receiver.failed, sender.received),
        (0, 0, moved(0, 0))
    );
    assert!(sender.at_once >= 2 && sender.at_once <= 6, "{sender:?}");
    assert!(
        sender.lent <= 1 && receiver.peers == 1,
        "{sender:?} {receiver:?}"
    );
    let failed =
        b.ep.recv_into(vec![0; 2].into_boxed_slice())
            .start()
            .unwrap();
    a.ep.send(to_b, "too long").await.unwrap();
    assert!(matches!(
        failed.await.unwrap_err().error,
        Error::Truncated { .. }
    ));
    assert_eq!((b.ep.stats().failed, b.ep.stats().received.count), (1, 6));
    a.ep.send(to_b, vec![0; 100]).await.unwrap();
    a.ep.send(to_b, vec![0; 100]).await.unwrap();
    settled(|| b.ep.stats().unexpected as u64).await;
    while b.ep.stats().unexpected < 2 {
        b.domain.progress();
        tokio::task::yield_now().await;
    }
    assert!(b.ep.stats().unexpected_bytes >= 200);
    b.ep.recv().await.unwrap();
    b.ep.recv().await.unwrap();
    assert_eq!(
        (b.ep.stats().unexpected, b.ep.stats().unexpected_bytes),
        (0, 0)
    );
}

pub(crate) async fn one_sided_operations_are_counted(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let _moving = b.keep_moving();
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let remote = region.remote();
    assert_eq!(b.domain.stats().regions, 1);
    a.ep.write(to_b, remote.at(0), vec![1; 9]).await.unwrap();
    a.ep.inject_write(to_b, remote.at(0), &[1; 3]).unwrap();
    a.ep.read(to_b, remote.slice(..)).await.unwrap();
    a.ep.atomic(to_b, remote.at(0), AtomicOp::Sum, 1u64)
        .await
        .unwrap();
    a.ep.fetch_add(to_b, remote.at(0), 1u32).await.unwrap();
    a.ep.write(to_b, remote.at(64), "beyond").await.unwrap_err();
    a.ep.write(to_b, remote.at(0), "data")
        .data(1)
        .await
        .unwrap();
    let stats = a.ep.stats();
    assert_eq!(
        (stats.written, stats.read, stats.atomics),
        (moved(3, 16), moved(1, 64), moved(2, 12))
    );
    while b.ep.stats().heard.count == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(b.ep.stats().heard, moved(1, 4), "what came with data");
}

pub(crate) async fn a_domain_tells_what_is_under_way(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let receives: Vec<_> = (0..3).map(|_| b.ep.recv().start().unwrap()).collect();
    assert_eq!(b.domain.stats().operations, 3);
    let before = b.domain.stats();
    for (number, receive) in receives.into_iter().enumerate() {
        a.ep.send(to_b, vec![0; number]).await.unwrap();
        assert_eq!(receive.await.unwrap().len(), number);
    }
    let after = b.domain.stats();
    assert!(
        after.polls >= before.polls && after.passes > before.passes,
        "{before:?} {after:?}"
    );
    assert!(after.spins_paid >= before.spins_paid && after.parks >= before.parks);
    assert_eq!((after.operations, after.regions), (0, 0));
    let ep = b.ep.clone();
    b.ep.close().unwrap();
    assert_eq!(
        ep.stats(),
        Default::default(),
        "nothing of a closed endpoint"
    );
}
