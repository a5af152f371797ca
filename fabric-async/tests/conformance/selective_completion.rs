//! Selective completion: queues that report successes only with `FI_COMPLETION`, and failures
//! always.

use fabric_async::atomic::AtomicOp;
use fabric_async::{Access, Completion, Error, OpFlags, OpKind, Resource};

use crate::endpoint_fixture::{
    EndpointConfig, EndpointFixture, WINDOW_OF_A_SEGMENT, endpoint_pair_with, flush,
};
use crate::payload::{pattern, yield_times};
use crate::setup::Setup;

fn selective_config() -> EndpointConfig {
    EndpointConfig {
        selective_completion: true,
        ..EndpointConfig::default()
    }
}

async fn next_entries(fixture: &mut EndpointFixture, count: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.len() < count {
        fixture.cq.read_batch(&mut out, count).await;
    }
    assert_eq!(
        fixture.cq.try_read_batch(&mut out, 1),
        0,
        "more entries than expected"
    );
    out
}

pub(crate) async fn success_is_reported_only_with_fi_completion(setup: Setup) {
    let (mut a, mut b, to_b) =
        endpoint_pair_with(&setup, selective_config(), selective_config()).await;
    // No task awaits the last receive, so a task makes the receiver's progress.
    let _progress = b.spawn_progress();
    for round in 0..3u64 {
        for len in [8, 9000, 300_000] {
            for number in 0..4 {
                let receive = b.ep.recv().tag(1).context(number);
                if number == 2 {
                    receive.completion().post()
                } else {
                    receive.post()
                }
                .unwrap();
                let send = a.ep.send(to_b, pattern(len, 1)).tag(1).context(number);
                if number == 3 {
                    send.completion().post()
                } else {
                    send.post()
                }
                .unwrap();
            }
            let (sent, got) = tokio::join!(next_entries(&mut a, 1), next_entries(&mut b, 1));
            assert_eq!(
                (sent[0].context, sent[0].transfer.len, sent[0].kind),
                (3, len, OpKind::Send)
            );
            assert_eq!(
                (got[0].context, got[0].bytes().len(), got[0].kind),
                (2, len, OpKind::Recv)
            );
        }
        // Counters count operations that are not reported, and the message of the flush. A long
        // send ends when its sender has seen the acknowledgement, which may be after the flush.
        flush(&a, &b, to_b).await;
        let expected = 13 * (round + 1);
        a.send_counter.wait(expected).await.unwrap();
        assert_eq!(
            (a.send_counter.value(), b.recv_counter.value()),
            (expected, expected)
        );
    }
    a.ep.send(to_b, "a future reports to no queue")
        .await
        .unwrap();
    b.ep.recv().await.unwrap();
    assert_eq!(
        a.cq.try_read_batch(&mut Vec::new(), 1) + b.cq.try_read_batch(&mut Vec::new(), 1),
        0
    );
}

pub(crate) async fn failure_is_always_reported(setup: Setup) {
    let (mut a, mut b, to_b) =
        endpoint_pair_with(&setup, selective_config(), selective_config()).await;
    b.ep.recv_into(Vec::with_capacity(3))
        .context(1)
        .post()
        .unwrap();
    a.ep.send(to_b, "longer").post().unwrap();
    let got = next_entries(&mut b, 1).await.remove(0);
    assert_eq!(
        (got.context, got.error.as_deref()),
        (1, Some(&Error::Truncated { len: 3, lost: 3 }))
    );
    assert_eq!(got.into_result::<Vec<u8>>().unwrap_err().buf, b"lon");
    b.ep.recv().tag(9).context(2).post().unwrap();
    // Longer than any peer buffers: without a receive the sends stay pending.
    let long = || vec![7u8; 17 << 20];
    a.ep.send(to_b, long()).context(3).post().unwrap();
    a.ep.send(to_b, long()).context(4).post().unwrap();
    // The endpoint that closes first reads what still arrives, so that a long send may complete
    // after all.
    a.ep.clone().close().unwrap();
    b.ep.clone().close().unwrap();
    let mut failed = next_entries(&mut a, 2).await;
    failed.sort_by_key(|entry| entry.context);
    assert!(failed.iter().map(|entry| entry.context).eq([3, 4]));
    assert!(failed.iter().all(|entry| entry.error.is_some()));
    let canceled = next_entries(&mut b, 1).await;
    assert_eq!(
        (canceled[0].context, canceled[0].error.as_deref()),
        (2, Some(&Error::Canceled))
    );
}

/// An operation that may fail reserves an entry, and releases it when it succeeds.
pub(crate) async fn unreported_op_reserves_a_cq_entry(setup: Setup) {
    let mut config = EndpointConfig {
        cq_capacity: 3,
        ..selective_config()
    }
    .with_small_socket_buffers();
    config.socket_options.receive_buffer = Some(WINDOW_OF_A_SEGMENT);
    let (mut a, mut b, to_b) = endpoint_pair_with(&setup, config.clone(), config).await;
    let full = Error::WouldBlock(Resource::CompletionEntry { capacity: 3 });
    for round in 0..4 {
        let receive = || b.ep.recv().tag(2).post().map_err(|failed| failed.error);
        // Longer than any peer buffers: without a receive the send stays pending.
        let long = || vec![7u8; 17 << 20];
        let send = || {
            a.ep.send(to_b, long())
                .tag(2)
                .post()
                .map_err(|failed| failed.error)
        };
        if round % 2 == 0 {
            (0..3).for_each(|_| receive().unwrap());
            assert_eq!(receive().unwrap_err(), full);
            (0..3).for_each(|_| send().unwrap());
        } else {
            (0..3).for_each(|_| send().unwrap());
            assert_eq!(send().unwrap_err(), full);
            (0..3).for_each(|_| receive().unwrap());
        }
        flush(&a, &b, to_b).await;
        // A long send may complete after those posted behind it.
        let ended = 14 * round + 4;
        let (sent, received) = tokio::join!(a.send_counter.wait(ended), b.recv_counter.wait(ended));
        assert!(sent.is_ok() && received.is_ok());
        // An operation that completes at once releases its entry at once.
        for _ in 0..10 {
            a.ep.send(to_b, "short").tag(3).post().unwrap();
            b.ep.recv().tag(3).await.unwrap();
        }
    }
    assert_eq!(
        a.cq.try_read_batch(&mut Vec::new(), 1) + b.cq.try_read_batch(&mut Vec::new(), 1),
        0
    );
}

/// A write with data that finds all entries reserved continues when an entry is released.
pub(crate) async fn released_cq_entry_admits_pending_write(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 2,
        ..selective_config()
    };
    let (a, mut b, to_b) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    let c = setup.open_endpoint().await;
    let c_to_b = c.add_peer(&b).await;
    let _progress = b.spawn_progress();
    let region = b.domain.alloc(8, Access::REMOTE_WRITE).unwrap();
    b.ep.recv().tag(1).post().unwrap();
    b.ep.recv().tag(1).post().unwrap();
    a.ep.write(to_b, region.remote().at(0), vec![1; 8])
        .data(77)
        .await
        .unwrap();
    yield_times(100).await;
    assert_eq!(
        b.cq.try_read_batch(&mut Vec::new(), 1),
        0,
        "no entry is free for the write"
    );
    c.ep.send(c_to_b, "frees one").tag(1).await.unwrap();
    let remote_entries = next_entries(&mut b, 1).await;
    assert_eq!(
        (remote_entries[0].kind, remote_entries[0].transfer.data),
        (OpKind::RemoteWrite, Some(77))
    );
}

pub(crate) async fn endpoint_op_flags_can_default_to_fi_completion(setup: Setup) {
    let flags = OpFlags::COMPLETION;
    let (mut a, mut b, to_b) = endpoint_pair_with(
        &setup,
        EndpointConfig {
            op_flags: flags,
            ..selective_config()
        },
        EndpointConfig {
            op_flags: flags,
            ..selective_config()
        },
    )
    .await;
    b.ep.recv().context(1).post().unwrap();
    a.ep.send(to_b, "x").context(2).post().unwrap();
    assert_eq!(
        (
            next_entries(&mut a, 1).await[0].context,
            next_entries(&mut b, 1).await[0].context
        ),
        (2, 1)
    );
}

pub(crate) async fn every_op_kind_supports_fi_completion(setup: Setup) {
    let (mut a, b, to_b) =
        endpoint_pair_with(&setup, selective_config(), EndpointConfig::default()).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(64, Access::REMOTE_READ | Access::REMOTE_WRITE)
        .unwrap();
    let at = |offset| region.remote().at(offset);
    for with_completion in [false, true] {
        let write = a.ep.write(to_b, at(0), vec![7; 8]).context(1);
        if with_completion {
            write.completion().post()
        } else {
            write.post()
        }
        .unwrap();
        let read = a.ep.read(to_b, region.remote().slice(..8)).context(2);
        if with_completion {
            read.completion().post()
        } else {
            read.post()
        }
        .unwrap();
        let add =
            a.ep.fetch_atomic(to_b, at(8), AtomicOp::Sum, 1u64)
                .context(3);
        if with_completion {
            add.completion().post()
        } else {
            add.post()
        }
        .unwrap();
        let loan =
            a.ep.send(to_b, a.ep.domain().try_loan(100).unwrap())
                .context(4);
        if with_completion {
            loan.completion().post()
        } else {
            loan.post()
        }
        .unwrap();
        b.ep.recv().await.unwrap();
        let sends = (5..10).map(|at| a.ep.send(to_b, vec![0; 8]).tag(at).context(at));
        let sends = sends.map(|send| {
            if with_completion {
                send.completion()
            } else {
                send
            }
        });
        assert_eq!(a.ep.post_all(sends).unwrap(), 5);
        for tag in 5..10 {
            b.ep.recv().tag(tag).await.unwrap();
        }
        if with_completion {
            let reported = next_entries(&mut a, 9).await;
            let mut contexts: Vec<_> = reported.iter().map(|entry| entry.context).collect();
            // An operation that waits for the peer may complete after operations that were posted
            // later.
            contexts.sort_unstable();
            assert!(contexts.into_iter().eq(1..10));
        }
    }
    assert_eq!(region.load::<u64>(8), Ok(2));
    assert_eq!(a.cq.try_read_batch(&mut Vec::new(), 1), 0);
}
