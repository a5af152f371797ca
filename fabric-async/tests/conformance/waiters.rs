//! Several tasks that wait in one domain: progress does not depend on the task that polled last.

use std::time::Duration;

use fabric_async::EventKind;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::endpoint_fixture::{EndpointFixture, endpoint_pair};
use crate::payload::{
    TestRng, let_other_tasks_run, message_number, numbered_message, poll_once, yield_times,
};
use crate::setup::Setup;

const TASKS: u64 = 8;

fn spawn_receive(b: &EndpointFixture, tag: u64) -> JoinHandle<u64> {
    let ep = b.ep.clone();
    tokio::spawn(async move { message_number(&ep.recv().tag(tag).await.unwrap()) })
}

fn shuffled_tags(seed: u64) -> Vec<u64> {
    let mut tags: Vec<u64> = (0..TASKS).collect();
    TestRng::new(seed).shuffle(&mut tags);
    tags
}

pub(crate) async fn eight_tasks_wait_on_one_endpoint(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for round in 0..20 {
        let tasks: Vec<_> = (0..TASKS).map(|tag| spawn_receive(&b, tag)).collect();
        yield_times(round % 5).await;
        for tag in shuffled_tags(round) {
            let len = if tag == 3 { 100_000 } else { 8 + tag as usize };
            a.ep.send(to_b, numbered_message(tag, len))
                .tag(tag)
                .await
                .unwrap();
        }
        for (tag, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), tag as u64);
        }
    }
}

/// In each round all tasks sleep, the task that polled last is aborted, and then the messages
/// arrive.
pub(crate) async fn tasks_wake_after_last_poller_is_aborted(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for round in 0..4 {
        let tasks: Vec<_> = (0..TASKS).map(|tag| spawn_receive(&b, tag)).collect();
        let_other_tasks_run().await;
        let last = b.ep.clone();
        let last = tokio::spawn(async move { last.recv().tag(99).await.map(drop) });
        if round % 2 == 0 {
            let_other_tasks_run().await;
        } else {
            yield_times(5).await;
        }
        last.abort();
        assert!(last.await.unwrap_err().is_cancelled());
        for tag in shuffled_tags(round) {
            a.ep.send(to_b, numbered_message(tag, 20))
                .tag(tag)
                .await
                .unwrap();
        }
        for (tag, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), tag as u64);
        }
    }
}

/// A task polls an operation once and then awaits a channel; other tasks still receive.
pub(crate) async fn unpolled_operation_does_not_block_other_tasks(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let tasks: Vec<_> = (0..TASKS).map(|tag| spawn_receive(&b, tag)).collect();
    let_other_tasks_run().await;
    let (release, released) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let holder = tokio::spawn({
        let ep = b.ep.clone();
        async move {
            let mut receive = ep.recv().tag(99).start().unwrap();
            assert!(poll_once(&mut receive).await.is_pending());
            ready.send(()).unwrap();
            released.await.unwrap();
            message_number(&receive.await.unwrap())
        }
    });
    is_ready.await.unwrap();
    for tag in shuffled_tags(7) {
        a.ep.send(to_b, numbered_message(tag, 20))
            .tag(tag)
            .await
            .unwrap();
    }
    a.ep.send(to_b, numbered_message(99, 20))
        .tag(99)
        .await
        .unwrap();
    for (tag, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), tag as u64);
    }
    assert!(!holder.is_finished());
    release.send(()).unwrap();
    assert_eq!(holder.await.unwrap(), 99);
}

/// Only the task that polled an operation last is woken.
pub(crate) async fn operation_can_move_between_tasks(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
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
        yield_times(round % 4).await;
        a.ep.send(to_b, numbered_message(round, 30)).await.unwrap();
        assert_eq!(message_number(&last.await.unwrap().unwrap()), round);
    }
}

/// Between messages all tasks sleep.
pub(crate) async fn messages_wake_sleeping_tasks(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let to_a = b.add_peer(&a).await;
    let echo = tokio::spawn(async move {
        for _ in 0..30 {
            let got = b.ep.recv().await.unwrap();
            b.ep.send(to_a, got.into_buf()).await.unwrap();
        }
        b
    });
    for number in 0..30 {
        tokio::time::sleep(Duration::from_millis(number % 8)).await;
        a.ep.send(to_b, numbered_message(number, 20)).await.unwrap();
        assert_eq!(message_number(&a.ep.recv().await.unwrap()), number);
    }
    echo.await.unwrap();
}

/// More connections close at once than one `epoll_wait` reports; a task that waits later gets all
/// events.
pub(crate) async fn many_simultaneous_peer_closes_are_all_reported(setup: Setup) {
    const PEERS: usize = 100;
    let (mut r, host) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let builder = host
            .domain
            .endpoint(&host.info)
            .unwrap()
            .bind_av(&host.av)
            .unwrap();
        let peer = builder.enable().unwrap();
        peer.add_peer(r.ep.name()).await.unwrap();
        peers.push(peer);
    }
    let_other_tasks_run().await;
    drop(peers);
    let_other_tasks_run().await;
    let mut ended = 0;
    while ended < PEERS {
        ended += usize::from(matches!(r.eq.read().await.kind, EventKind::PeerDown { .. }));
    }
}
