//! Event queues and batches under races, and with invalid requests.

use std::time::Duration;

use fabric_async::{Access, CqBind, EventKind, Fabric, Hints, discover};

/// A reader that waits is woken by the last event, although other events are removed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn waiting_reader_gets_the_last_event_while_others_are_removed() {
    for peeks in [true, false] {
        let info = discover(&Hints::new().provider("shm"))
            .unwrap()
            .swap_remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let domain = fabric.domain(&info).unwrap();
        let mut eq = fabric.event_queue(4).unwrap();
        domain.bind_eq(&eq).unwrap();
        let writer = eq.writer();
        let reader = tokio::spawn(async move {
            let mut count = 0_u64;
            loop {
                if peeks {
                    let event = eq.peek().await;
                    tokio::task::yield_now().await;
                    if matches!(event.kind, EventKind::User { .. }) {
                        // The event is still the first one.
                        assert_eq!(eq.try_read(), Some(event.clone()));
                        if event.context == u64::MAX {
                            return count;
                        }
                        count += 1;
                    }
                    continue;
                }
                let event = eq.read().await;
                if event.context == u64::MAX && matches!(event.kind, EventKind::User { .. }) {
                    return count;
                }
                count += u64::from(matches!(event.kind, EventKind::User { .. }));
            }
        });
        let other = fabric_async::Endpoint::bind("shm://").await.unwrap();
        let mut written = 0;
        for round in 0..60_u64 {
            let cq = domain.completion_queue(16).unwrap();
            let av = domain.address_vector().unwrap();
            let ep = domain.endpoint(&info).unwrap().context(round);
            let ep = ep.bind_av(&av).unwrap();
            let ep = ep.bind_cq(&cq, CqBind::TRANSMIT | CqBind::RECV).unwrap();
            let ep = ep.enable().unwrap();
            let to_ep = other.add_peer(ep.name()).await.unwrap();
            other.send(to_ep, "x").await.unwrap();
            ep.recv().await.unwrap();
            // The queue may be full of written events.
            while writer.write(round, vec![1]).is_err() {
                tokio::task::yield_now().await;
            }
            written += 1;
            let _ = other.disconnect(ep.name());
            if round % 3 == 0 {
                tokio::task::yield_now().await;
            }
            drop(ep);
            // Events of the endpoint are removed: only written ones stay in front of a reader that
            // peeks.
        }
        while writer.write(u64::MAX, vec![2]).is_err() {
            tokio::task::yield_now().await;
        }
        let read = tokio::time::timeout(Duration::from_secs(20), reader).await;
        assert_eq!(read.expect("the reader is woken").unwrap(), written);
    }
}

/// A peer that knows the requested key of a region before the region exists reads no zeros from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn region_has_the_bytes_of_its_buffer_when_peers_can_read_it() {
    const LEN: usize = 1 << 20;
    let target = fabric_async::Endpoint::bind("shm://").await.unwrap();
    let reader = fabric_async::Endpoint::bind("shm://").await.unwrap();
    let peer = reader.add_peer(target.name()).await.unwrap();
    let alloc = || {
        let buf = vec![7u8; LEN];
        let region = target
            .domain()
            .alloc_from(buf, Access::REMOTE_READ, Some(77));
        region.unwrap()
    };
    let remote = alloc().remote();
    let reading = tokio::spawn(async move {
        let mut count = 0;
        while count < 20 {
            if let Ok(last) = reader.read(peer, remote.slice(LEN as u64 - 8..)).await {
                assert_eq!(last[..], [7; 8]);
                count += 1;
            }
        }
    });
    while !reading.is_finished() {
        drop(alloc());
        tokio::task::yield_now().await;
    }
    reading.await.unwrap();
}

/// Of a batch of writes, those before the first invalid one are executed, and no bytes outside of
/// the granted ranges change.
#[tokio::test]
async fn batches_of_writes_keep_to_the_granted_ranges() {
    let a = fabric_async::Endpoint::bind("shm://").await.unwrap();
    let b = fabric_async::Endpoint::bind("shm://").await.unwrap();
    let mut cq = a.take_completions().unwrap();
    let to_b = a.add_peer(b.name()).await.unwrap();
    let domain = b.domain().clone();
    let progress = domain.clone();
    tokio::spawn(async move {
        loop {
            progress.progress();
            tokio::task::yield_now().await;
        }
    });
    let region = domain.alloc(64, Access::REMOTE_WRITE).unwrap();
    let readable = domain.alloc(64, Access::REMOTE_READ).unwrap();
    let closed = domain.alloc(64, Access::REMOTE_WRITE).unwrap();
    let closed_remote = closed.remote();
    for remote in [region.remote(), closed_remote] {
        a.write(to_b, remote.at(0), vec![9; 1]).await.unwrap();
    }
    a.write(to_b, readable.remote().at(0), vec![9; 1])
        .await
        .unwrap_err();
    drop(closed);
    for invalid in 0..5 {
        for at in [0_usize, 1, 31, 32, 33] {
            let requests = (0..70_usize).map(|number| {
                let remote = if number != at {
                    region.remote().at((number % 60) as u64)
                } else {
                    match invalid {
                        0 => region.remote().at(64),
                        1 => region.remote().at(u64::MAX),
                        2 => readable.remote().at(0),
                        3 => closed_remote.at(0),
                        _ => region.remote().at(63),
                    }
                };
                a.write(to_b, remote, vec![number as u8; 4])
                    .context(number as u64)
            });
            let mut before = [0; 64];
            region.write(0, &[0xee; 64]).unwrap();
            // Only the right is known at the post.
            let expected = match a.post_all(requests) {
                Ok(posted) => posted,
                Err(stopped) => {
                    assert_eq!(stopped.posted, at, "{stopped}");
                    assert_eq!(stopped.unposted.len(), (70 - at).min(32 - at % 32));
                    stopped.posted
                }
            };
            let mut done = Vec::new();
            while done.len() < expected {
                cq.read_batch(&mut done, expected).await;
            }
            for (number, entry) in done.iter().enumerate() {
                assert_eq!(entry.context, number as u64);
                assert_eq!(entry.error.is_some(), number == at, "{invalid} {at}");
            }
            region.read(0, &mut before).unwrap();
            assert_eq!(before[63], 0xee, "no partial write behind the end");
            let mut other = [1; 64];
            readable.read(0, &mut other).unwrap();
            assert_eq!(other, [0; 64]);
        }
    }
}
