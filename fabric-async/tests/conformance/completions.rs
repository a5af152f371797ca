//! Completion queues.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric_async::{Class, Completion, Error, OpKind, Resource};
use futures_util::StreamExt;

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with};
use crate::payload::{assert_bytes, pattern, poll_once};
use crate::setup::Setup;

fn config_with_cq_capacity(entries: usize) -> EndpointConfig {
    EndpointConfig {
        cq_capacity: entries,
        ..EndpointConfig::default()
    }
}

async fn next_completion(fixture: &mut EndpointFixture) -> Completion {
    fixture.cq.next().await.expect("the queue is open")
}

pub(crate) async fn posted_ops_complete_with_their_context(setup: Setup) {
    let (mut a, mut b, to_b) = endpoint_pair(&setup).await;
    for (context, len) in [0, 50, 5000, 200_000].into_iter().enumerate() {
        let context = context as u64;
        b.ep.recv_into(Vec::with_capacity(len))
            .context(100 + context)
            .post()
            .unwrap();
        a.ep.send(to_b, pattern(len, 1).to_vec())
            .data(9)
            .context(context)
            .post()
            .unwrap();
        let (mut sent, got) = tokio::join!(next_completion(&mut a), next_completion(&mut b));
        assert_eq!(
            (sent.context, sent.kind, sent.transfer.len),
            (context, OpKind::Send, len)
        );
        assert_eq!(
            (got.context, got.kind, got.transfer.len),
            (100 + context, OpKind::Recv, len)
        );
        assert!(sent.error.is_none() && got.error.is_none());
        assert_bytes(got.bytes(), pattern(len, 1));
        let got = got.into_result::<Vec<u8>>().unwrap();
        assert_eq!(got.data(), Some(9));
        assert!(
            sent.take_buf::<String>().is_none(),
            "the buffer is a vector"
        );
        assert_bytes(&sent.take_buf::<Vec<u8>>().unwrap(), pattern(len, 1));
        assert!(
            sent.take_buf::<Vec<u8>>().is_none(),
            "the buffer is taken once"
        );
    }
    let mut none = Vec::new();
    assert_eq!(
        (
            a.cq.try_read_batch(&mut none, 10),
            b.cq.try_read_batch(&mut none, 10)
        ),
        (0, 0),
        "each operation completes once"
    );
}

/// No task waits, so only the reads make progress.
pub(crate) async fn queue_reads_make_progress(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    b.ep.recv_into(vec![0; 8]).context(1).post().unwrap();
    a.ep.send(to_b, "read").await.unwrap();
    let mut entries = Vec::new();
    while b.cq.try_read_batch(&mut entries, 1) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((entries[0].context, entries[0].bytes()), (1, &b"read"[..]));
}

pub(crate) async fn full_cq_refuses_posts(setup: Setup) {
    let (mut a, mut b, to_b) = endpoint_pair_with(
        &setup,
        config_with_cq_capacity(4),
        config_with_cq_capacity(4),
    )
    .await;
    for round in 0..3 {
        for context in 0..4 {
            b.ep.recv_into(vec![0; 8]).context(context).post().unwrap();
        }
        let refused = b.ep.recv_into(vec![7; 8]).post().unwrap_err();
        assert_eq!(
            (refused.error, refused.buf),
            (
                Error::WouldBlock(Resource::CompletionEntry { capacity: 4 }),
                vec![7; 8]
            )
        );
        for context in 0..4 {
            a.ep.send(to_b, vec![round])
                .context(context)
                .post()
                .unwrap();
        }
        let refused = a.ep.send(to_b, vec![8]).post().unwrap_err();
        assert_eq!(
            (refused.error, refused.buf),
            (
                Error::WouldBlock(Resource::CompletionEntry { capacity: 4 }),
                vec![8]
            )
        );
        // Futures need no completion queue entry.
        for context in 0..4 {
            let (sent, got) = tokio::join!(next_completion(&mut a), next_completion(&mut b));
            assert_eq!(
                (sent.context, got.context, got.bytes()),
                (context, context, &[round][..])
            );
        }
    }
    let (sent, got) = tokio::join!(a.ep.send(to_b, "x"), b.ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"x", "no refused message was sent");
}

pub(crate) async fn refused_post_releases_its_cq_entry(setup: Setup) {
    let (mut a, _b, to_b) = endpoint_pair_with(
        &setup,
        config_with_cq_capacity(1),
        EndpointConfig::default(),
    )
    .await;
    let absent =
        a.av.insert(setup.unique_address("absent").as_str())
            .unwrap();
    for len in [8, 100_000] {
        for _ in 0..3 {
            let refused = a.ep.send(absent, vec![0; len]).post().unwrap_err();
            assert!(
                matches!(refused.error, Error::NoSuchPeer(_)),
                "{}",
                refused.error
            );
        }
    }
    a.ep.send(to_b, "x").context(5).post().unwrap();
    assert_eq!(next_completion(&mut a).await.context, 5);
}

pub(crate) async fn failed_ops_report_in_order(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    for context in 0..6 {
        let capacity = if context % 2 == 0 { 4 } else { 100 };
        b.ep.recv_into(vec![0; capacity].into_boxed_slice())
            .context(context)
            .post()
            .unwrap();
    }
    for _ in 0..6 {
        a.ep.send(to_b, "ten bytes.").await.unwrap();
    }
    for context in 0..6 {
        let got = next_completion(&mut b).await;
        assert_eq!(got.context, context);
        if context % 2 == 0 {
            assert_eq!(
                got.error.as_deref(),
                Some(&Error::Truncated { len: 4, lost: 6 })
            );
            assert_eq!(got.bytes(), b"ten ");
            assert_eq!(
                &got.into_result::<Box<[u8]>>().unwrap_err().buf[..],
                b"ten "
            );
        } else {
            assert_eq!(
                (got.error.as_ref(), got.bytes()),
                (None, &b"ten bytes."[..])
            );
        }
    }
}

pub(crate) async fn close_cancels_posted_receives(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    for context in 0..3 {
        b.ep.recv_into(vec![context as u8; 8])
            .context(context)
            .post()
            .unwrap();
    }
    a.ep.send(to_b, "one").await.unwrap();
    assert_eq!(next_completion(&mut b).await.context, 0);
    b.ep.close().unwrap();
    let mut contexts = BTreeSet::new();
    for _ in 0..2 {
        let canceled = b.cq.next().await.expect("the queue is open");
        assert_eq!(
            (canceled.error.as_deref(), canceled.kind),
            (Some(&Error::Canceled), OpKind::Recv)
        );
        contexts.insert(canceled.context);
        assert_eq!(
            canceled.into_result::<Vec<u8>>().unwrap_err().error,
            Error::Canceled
        );
    }
    assert_eq!(contexts, BTreeSet::from([1, 2]));
    assert!(
        poll_once(&mut b.cq.next()).await.is_pending(),
        "the stream continues"
    );
}

pub(crate) async fn close_cancels_futures(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let mut polled = b.ep.recv().start().unwrap();
    assert!(poll_once(&mut polled).await.is_pending());
    let task = tokio::spawn(b.ep.recv_into(vec![1, 2, 3]).tag(4).start().unwrap());
    crate::payload::yield_times(10).await;
    b.ep.close().unwrap();
    assert_eq!(polled.await.unwrap_err().error, Error::Canceled);
    let canceled = task.await.unwrap().unwrap_err();
    assert_eq!(canceled.error, Error::Canceled);
    assert_eq!(canceled.buf.capacity(), 3, "the buffer comes back");
    // Pending sends are canceled too.
    let mut sends = Vec::new();
    for _ in 0..400 {
        let mut send = a.ep.send(to_b, vec![0; 100_000]).into_future();
        if poll_once(&mut send).await.is_pending() {
            sends.push(send);
        }
    }
    a.ep.clone().close().unwrap();
    for sent in sends {
        if let Err(failed) = sent.await {
            let expected = matches!(
                failed.error,
                Error::Canceled | Error::PeerGone(_) | Error::NoSuchPeer(_)
            );
            assert!(expected, "{}", failed.error);
            assert_eq!(failed.buf.len(), 100_000);
        }
    }
}

pub(crate) async fn batch_reads_are_bounded_and_ordered(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let progress_task = b.spawn_progress();
    for context in 0..100 {
        b.ep.recv_into(vec![0; 8]).context(context).post().unwrap();
        a.ep.send(to_b, "x").await.unwrap();
    }
    progress_task.abort();
    let mut out = Vec::new();
    assert_eq!(b.cq.read_batch(&mut out, 0).await, 0);
    out.push(next_completion(&mut b).await);
    while out.len() < 100 {
        let before = out.len();
        let count = if before % 2 == 0 {
            b.cq.try_read_batch(&mut out, 7)
        } else {
            b.cq.read_batch(&mut out, 4).await
        };
        assert_eq!(out.len(), before + count);
        assert!(count <= 7 && (before % 2 == 0 || (1..=4).contains(&count)));
        if count == 0 {
            tokio::task::yield_now().await;
        }
    }
    let contexts: Vec<u64> = out.iter().map(|completion| completion.context).collect();
    assert_eq!(
        contexts,
        (0..100).collect::<Vec<_>>(),
        "in the order of completion, by every way to read the queue"
    );
}

pub(crate) async fn dropped_cq_next_loses_no_completion(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    for context in 0..50 {
        b.ep.recv_into(vec![0; 8]).context(context).post().unwrap();
    }
    let sender = tokio::spawn(async move {
        for _ in 0..50 {
            a.ep.send(to_b, "x").await.unwrap();
            tokio::task::yield_now().await;
        }
        a
    });
    let mut contexts = Vec::new();
    while contexts.len() < 50 {
        tokio::select! {
            biased;
            () = crate::payload::yield_times(1 + contexts.len() as u64 % 3) => {}
            Some(got) = b.cq.next() => contexts.push(got.context),
        }
    }
    assert_eq!(contexts, (0..50).collect::<Vec<_>>());
    sender.await.unwrap();
}

/// A task that finds a completion at every poll still yields to other tasks.
pub(crate) async fn busy_cq_yields_to_other_tasks(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair_with(
        &setup,
        config_with_cq_capacity(1 << 12),
        EndpointConfig::default(),
    )
    .await;
    let ran = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn({
        let ran = ran.clone();
        async move { ran.store(true, Ordering::SeqCst) }
    });
    let progress_task = b.spawn_progress();
    let mut rounds = 0;
    while !ran.load(Ordering::SeqCst) {
        a.ep.send(to_b, vec![0; 8]).context(rounds).post().unwrap();
        assert_eq!(next_completion(&mut a).await.context, rounds);
        rounds += 1;
        if setup.is_multi_thread() && rounds == 1000 {
            // The other task runs on a thread of its own, which the system may schedule late: not a
            // failure.
            break;
        }
        assert!(
            rounds <= 1000,
            "no other task ran while the queue was ready a thousand times"
        );
    }
    other.await.unwrap();
    progress_task.abort();
    for _ in 0..rounds {
        assert_eq!(b.ep.recv().await.unwrap().len(), 8);
    }
}

pub(crate) async fn posts_need_a_cq_and_futures_do_not(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let ep = a
        .domain
        .endpoint(&a.info)
        .unwrap()
        .bind_av(&a.av)
        .unwrap()
        .enable()
        .unwrap();
    let refused = ep.send(to_b, vec![1]).post().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::Unbound(Class::CompletionQueue), vec![1])
    );
    let refused = ep.recv_into(vec![2]).post().unwrap_err();
    assert_eq!(
        (refused.error, refused.buf),
        (Error::Unbound(Class::CompletionQueue), vec![2])
    );
    let (sent, got) = tokio::join!(ep.send(to_b, "x"), b.ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"x");
}
