//! Several tasks that wait in one domain: nobody depends on who happened to poll last.

use std::time::Duration;

use fabric_async::EventKind;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::payload::{Draw, number_of, numbered, poll_once, settled, yields};
use crate::setup::Setup;
use crate::station::{Station, pair};

const TASKS: u64 = 8;

fn waiting(b: &Station, tag: u64) -> JoinHandle<u64> {
    let ep = b.ep.clone();
    tokio::spawn(async move { number_of(&ep.recv().tag(tag).await.unwrap()) })
}

fn shuffled(seed: u64) -> Vec<u64> {
    let mut tags: Vec<u64> = (0..TASKS).collect();
    Draw::new(seed).shuffle(&mut tags);
    tags
}

pub(crate) async fn eight_tasks_wait_on_one_endpoint(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for round in 0..20 {
        let tasks: Vec<_> = (0..TASKS).map(|tag| waiting(&b, tag)).collect();
        yields(round % 5).await;
        for tag in shuffled(round) {
            let len = if tag == 3 { 100_000 } else { 8 + tag as usize };
            a.ep.send(to_b, numbered(tag, len)).tag(tag).await.unwrap();
        }
        for (tag, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), tag as u64);
        }
    }
}

/// Each time, everybody is asleep, the task that polled last is ended, and then the messages come.
pub(crate) async fn the_last_to_poll_may_go(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for round in 0..4 {
        let tasks: Vec<_> = (0..TASKS).map(|tag| waiting(&b, tag)).collect();
        settled(|| 0).await;
        let last = b.ep.clone();
        let last = tokio::spawn(async move { last.recv().tag(99).await.map(drop) });
        if round % 2 == 0 {
            settled(|| 0).await;
        } else {
            yields(5).await;
        }
        last.abort();
        assert!(last.await.unwrap_err().is_cancelled());
        for tag in shuffled(round) {
            a.ep.send(to_b, numbered(tag, 20)).tag(tag).await.unwrap();
        }
        for (tag, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), tag as u64);
        }
    }
}

/// An operation was polled once, which made its task the one that drives; then the task waits for
/// something else.
pub(crate) async fn a_busy_holder_of_a_ticket_stops_nobody(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let tasks: Vec<_> = (0..TASKS).map(|tag| waiting(&b, tag)).collect();
    settled(|| 0).await;
    let (free, until) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let holder = tokio::spawn({
        let ep = b.ep.clone();
        async move {
            let mut ticket = ep.recv().tag(99).start().unwrap();
            assert!(poll_once(&mut ticket).await.is_pending());
            ready.send(()).unwrap();
            until.await.unwrap();
            number_of(&ticket.await.unwrap())
        }
    });
    is_ready.await.unwrap();
    for tag in shuffled(7) {
        a.ep.send(to_b, numbered(tag, 20)).tag(tag).await.unwrap();
    }
    a.ep.send(to_b, numbered(99, 20)).tag(99).await.unwrap();
    for (tag, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), tag as u64);
    }
    assert!(!holder.is_finished());
    free.send(()).unwrap();
    assert_eq!(holder.await.unwrap(), 99);
}

/// Who polls last is who is woken.
pub(crate) async fn one_operation_moves_between_tasks(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for round in 0..20 {
        let mut op = b.ep.recv().start().unwrap();
        for _ in 0..3 {
            let moved = tokio::spawn(async move {
                assert!(poll_once(&mut op).await.is_pending());
                (op,)
            });
            (op,) = moved.await.unwrap();
        }
        let last = tokio::spawn(op);
        yields(round % 4).await;
        a.ep.send(to_b, numbered(round, 30)).await.unwrap();
        assert_eq!(number_of(&last.await.unwrap().unwrap()), round);
    }
}

/// Pauses long enough for everybody to fall asleep, in both directions.
pub(crate) async fn messages_wake_sleepers(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let to_a = b.meet(&a).await;
    let echo = tokio::spawn(async move {
        for _ in 0..30 {
            let got = b.ep.recv().await.unwrap();
            b.ep.send(to_a, got.into_buf()).await.unwrap();
        }
        b
    });
    for number in 0..30 {
        tokio::time::sleep(Duration::from_millis(number % 8)).await;
        a.ep.send(to_b, numbered(number, 20)).await.unwrap();
        assert_eq!(number_of(&a.ep.recv().await.unwrap()), number);
    }
    echo.await.unwrap();
}

/// More is ready at once than one look takes, and at that time nobody waits; then somebody does.
pub(crate) async fn many_peers_that_end_at_once_are_all_noticed(setup: Setup) {
    const PEERS: usize = 100;
    let (mut r, host) = (setup.station().await, setup.station().await);
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let builder = host
            .domain
            .endpoint(&host.info)
            .unwrap()
            .bind_av(&host.av)
            .unwrap();
        let peer = builder.enable().await.unwrap();
        peer.lookup(r.ep.name()).await.unwrap();
        peers.push(peer);
    }
    settled(|| 0).await;
    drop(peers);
    settled(|| 0).await;
    let mut ended = 0;
    while ended < PEERS {
        ended += usize::from(matches!(r.eq.next().await.kind, EventKind::PeerDown { .. }));
    }
}
