//! Batches: many posts by one call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fabric_async::buf::IoBuf;
use fabric_async::ops::BatchOp;
use fabric_async::{Access, Class, CompletionQueue, Error, OpKind, Request, Resource};

use crate::endpoint_fixture::{EndpointConfig, EndpointFixture, endpoint_pair, endpoint_pair_with};
use crate::payload::{assert_bytes, message_number, numbered_message, pattern, wait_until_stable};
use crate::setup::Setup;

/// Batch lengths around the borders of a chunk of 32.
const BATCH_SIZES: [u64; 8] = [0, 1, 2, 31, 32, 33, 64, 500];

async fn completed_contexts(cq: &mut CompletionQueue, count: usize) -> Vec<u64> {
    let mut out = Vec::new();
    while out.len() < count {
        cq.read_batch(&mut out, count).await;
    }
    assert!(
        out.iter()
            .all(|entry| entry.error.is_none() && entry.kind == OpKind::Send)
    );
    out.iter().map(|entry| entry.context).collect()
}

async fn expect_numbers(fixture: &EndpointFixture, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        assert_eq!(message_number(&fixture.ep.recv().await.unwrap()), number);
    }
}

/// Posts all requests, and retries the rest each time the credits run out.
async fn post_all_retrying<'a, O: BatchOp<B>, B: IoBuf>(
    a: &'a EndpointFixture,
    requests: impl Iterator<Item = Request<'a, O, B>>,
) {
    let mut requests = requests;
    let mut rest = Vec::new();
    loop {
        match a.ep.post_all(
            std::mem::take(&mut rest)
                .into_iter()
                .chain(requests.by_ref()),
        ) {
            Ok(_) => return,
            Err(stopped) => {
                assert!(
                    matches!(
                        stopped.error,
                        Error::WouldBlock(Resource::TransmitCredit { .. })
                    ),
                    "{stopped}"
                );
                rest = stopped.unposted;
                tokio::task::yield_now().await;
            }
        }
    }
}

pub(crate) async fn inject_all_arrives_in_order(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    for count in BATCH_SIZES {
        let messages: Vec<_> = (0..count)
            .map(|number| numbered_message(number, 8 + number as usize))
            .collect();
        let sends = async {
            let mut rest = &messages[..];
            loop {
                let (accepted, ended) =
                    a.ep.inject_all(to_b, rest.iter().map(|message| &message[..]));
                rest = &rest[accepted..];
                match ended {
                    Ok(()) => break,
                    Err(Error::WouldBlock(Resource::TransmitCredit { .. })) => {
                        tokio::task::yield_now().await
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(rest.is_empty());
        };
        tokio::join!(sends, expect_numbers(&b, 0..count));
    }
}

pub(crate) async fn post_all_arrives_and_completes_in_order(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    for count in BATCH_SIZES.into_iter().filter(|count| *count <= 64) {
        for receives_come_first in [false, true] {
            let request = |number: u64| {
                a.ep.send(to_b, numbered_message(number, 8))
                    .tag(number)
                    .context(number)
            };
            let receives: Vec<_> = match receives_come_first {
                true => (0..count)
                    .map(|tag| b.ep.recv().tag(tag).start().unwrap())
                    .collect(),
                false => Vec::new(),
            };
            assert_eq!(
                a.ep.post_all((0..count).map(request)).unwrap() as u64,
                count
            );
            for receive in receives {
                message_number(&receive.await.unwrap());
            }
            for tag in (0..count).filter(|_| !receives_come_first) {
                assert_eq!(message_number(&b.ep.recv().tag(tag).await.unwrap()), tag);
            }
            assert_eq!(
                completed_contexts(&mut a.cq, count as usize).await,
                (0..count).collect::<Vec<_>>()
            );
        }
    }
}

/// Long and short messages of one batch keep their order, also while they wait for room.
/// A chunk of requests is on the stack, and these buffers are parts of their requests. Without
/// optimisation, a request is moved dozens of times.
pub(crate) async fn batch_of_long_arrays_takes_little_stack(setup: Setup) {
    const LEN: usize = 12 << 10;
    let (a, b, to_b) = endpoint_pair(&setup).await;
    let progress = a.spawn_progress();
    let sender = a.ep.clone();
    let post = move || {
        let requests = (0..4).map(|number| sender.send(to_b, [number; LEN]));
        sender.post_all(requests).map_err(Error::from)
    };
    let thread = std::thread::Builder::new()
        .stack_size(100 * LEN)
        .spawn(post);
    assert_eq!(thread.unwrap().join().unwrap(), Ok(4));
    for number in 0..4 {
        assert_bytes(&b.ep.recv().await.unwrap(), &[number; LEN]);
    }
    progress.abort();
}

pub(crate) async fn mixed_length_batch_keeps_order(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let lengths = [8, 9000, 60, 300_000, 8, 8192, 0, 200_000, 4096, 1];
    let posts = lengths
        .iter()
        .zip(0..)
        .map(|(&len, at)| a.ep.send(to_b, pattern(len, 2)).context(at));
    assert_eq!(a.ep.post_all(posts).unwrap(), lengths.len());
    for len in lengths {
        assert_bytes(&b.ep.recv().await.unwrap(), pattern(len, 2));
    }
    assert_eq!(
        completed_contexts(&mut a.cq, lengths.len()).await.len(),
        lengths.len()
    );
}

/// Sleeping peers are woken by one doorbell each; transports without doorbells count none.
pub(crate) async fn batch_rings_each_peer_doorbell_once(setup: Setup) {
    let a = setup.open_endpoint().await;
    let others = [
        setup.open_endpoint().await,
        setup.open_endpoint().await,
        setup.open_endpoint().await,
    ];
    let mut tasks = Vec::new();
    let mut peers = Vec::new();
    for fixture in others {
        peers.push(a.add_peer(&fixture).await);
        tasks.push(tokio::spawn(async move {
            expect_numbers(&fixture, 0..10).await;
            fixture
        }));
    }
    // The peers are most likely asleep when the counter no longer changes.
    wait_until_stable(|| a.ep.stats().doorbells).await;
    let before = a.ep.stats().doorbells;
    let posts = (0..10).flat_map(|number| peers.iter().map(move |&peer| (number, peer)));
    let posts = posts.map(|(number, peer)| a.ep.send(peer, numbered_message(number, 8)));
    assert_eq!(a.ep.post_all(posts).unwrap(), 30);
    let doorbell_count = a.ep.stats().doorbells - before;
    assert!(
        doorbell_count <= 3,
        "{doorbell_count} doorbells for three peers"
    );
    for task in tasks {
        task.await.unwrap();
    }
}

pub(crate) async fn failed_request_stops_batch_and_returns_the_rest(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let limit = a.info.tx.inject_size;
    let (short, long) = (numbered_message(0, 8), vec![0; limit + 1]);
    let messages = [&short[..], &short, &long, &short];
    let (accepted, refused) = a.ep.inject_all(to_b, messages);
    assert_eq!(accepted, 2);
    assert_eq!(
        refused,
        Err(Error::TooLong {
            what: "injected message",
            len: limit + 1,
            limit
        })
    );
    expect_numbers(&b, [0, 0].into_iter()).await;

    // The request in the second chunk belongs to another endpoint.
    let foreign = b.av.insert(a.ep.name()).unwrap();
    let request = |number: u64| match number {
        70 => b.ep.send(foreign, numbered_message(number, 8)),
        _ => a.ep.send(to_b, numbered_message(number, 8)).context(number),
    };
    let mut requests = (30..100).map(request);
    let stopped = a.ep.post_all(requests.by_ref()).unwrap_err();
    assert!(
        matches!(stopped.error, Error::Invalid { what: "batch", .. }),
        "{}",
        stopped.error
    );
    assert_eq!((stopped.posted, stopped.unposted.len()), (40, 1));
    let rest = stopped.unposted.into_iter().skip(1).chain(requests);
    let taking = expect_numbers(&b, (30..100).filter(|number| *number != 70));
    tokio::join!(post_all_retrying(&a, rest), taking);
    assert_eq!(completed_contexts(&mut a.cq, 69).await.len(), 69);
}

pub(crate) async fn full_cq_stops_batch_without_loss(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 50,
        ..EndpointConfig::default()
    };
    let (mut a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let mut requests =
        (0..300).map(|number| a.ep.send(to_b, numbered_message(number, 8)).context(number));
    let (mut rest, mut reported, mut arrived) = (Vec::new(), Vec::new(), 0);
    loop {
        let ended = a.ep.post_all(
            std::mem::take(&mut rest)
                .into_iter()
                .chain(requests.by_ref()),
        );
        let stopped = match ended {
            Ok(_) => break,
            Err(stopped) => stopped,
        };
        assert!(
            matches!(
                stopped.error,
                Error::WouldBlock(Resource::CompletionEntry { .. })
            ),
            "{stopped}"
        );
        rest = stopped.unposted;
        expect_numbers(&b, arrived..arrived + stopped.posted as u64).await;
        arrived += stopped.posted as u64;
        reported.extend(completed_contexts(&mut a.cq, stopped.posted).await);
    }
    expect_numbers(&b, arrived..300).await;
    reported.extend(completed_contexts(&mut a.cq, 300 - reported.len()).await);
    assert_eq!(reported, (0..300).collect::<Vec<_>>());
}

pub(crate) async fn missing_credit_stops_batch(setup: Setup) {
    let config = EndpointConfig {
        tx_size: Some(16),
        ..EndpointConfig::default()
    };
    let (mut a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let requests = (0..40).map(|number| {
        a.ep.send(to_b, numbered_message(number, 2_000_000))
            .context(number)
    });
    let stopped = a.ep.post_all(requests).unwrap_err();
    assert!(
        matches!(
            stopped.error,
            Error::WouldBlock(Resource::TransmitCredit { .. })
        ),
        "{stopped}"
    );
    let first = stopped.unposted.into_iter().next().unwrap();
    expect_numbers(&b, 0..stopped.posted as u64).await;
    assert_eq!(
        completed_contexts(&mut a.cq, stopped.posted).await.len(),
        stopped.posted
    );
    let (sent, ()) = tokio::join!(
        first,
        expect_numbers(&b, stopped.posted as u64..stopped.posted as u64 + 1)
    );
    sent.unwrap();
}

/// Receives are posted in order. Receives that match unexpected messages take them; for long
/// messages the lock is released in between.
pub(crate) async fn receives_are_posted_in_one_batch(setup: Setup) {
    let (a, mut b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    for (len, waiting) in [(8, 0), (8, 100), (9000, 40), (100_000, 3)] {
        for number in 0..waiting {
            a.ep.send(to_b, numbered_message(number, len))
                .await
                .unwrap();
        }
        let recv = |number: u64| b.ep.recv_into(Vec::with_capacity(len)).context(number);
        assert_eq!(b.ep.post_all((0..100).map(recv)).unwrap(), 100);
        let sends = async {
            for number in waiting..100 {
                a.ep.send(to_b, numbered_message(number, len))
                    .await
                    .unwrap();
            }
        };
        let mut got = Vec::new();
        let takes = async {
            while got.len() < 100 {
                b.cq.read_batch(&mut got, 100).await;
            }
        };
        tokio::join!(sends, takes);
        for (number, entry) in got.into_iter().enumerate() {
            assert_eq!(entry.context, number as u64);
            assert_eq!(
                message_number(&entry.into_result::<Vec<u8>>().unwrap()),
                number as u64
            );
        }
    }
    let foreign = a.av.insert(b.ep.name()).unwrap();
    let receives = [
        b.ep.recv().tag(1),
        b.ep.recv().tag(2).from(foreign),
        b.ep.recv().tag(3),
    ];
    let stopped = b.ep.post_all(receives).unwrap_err();
    assert_eq!(
        (stopped.posted, stopped.unposted.len()),
        (1, 2),
        "{}",
        stopped.error
    );
    let config = EndpointConfig {
        cq_capacity: 10,
        ..EndpointConfig::default()
    };
    let (d, mut c, to_c) = endpoint_pair_with(&setup, EndpointConfig::default(), config).await;
    let _progress = c.spawn_progress();
    let stopped =
        c.ep.post_all((0..50).map(|number| c.ep.recv().context(number)))
            .unwrap_err();
    assert!(
        matches!(
            stopped.error,
            Error::WouldBlock(Resource::CompletionEntry { .. })
        ),
        "{stopped}"
    );
    assert_eq!((stopped.posted, stopped.unposted.len()), (10, 22));
    d.ep.send(to_c, "first").await.unwrap();
    let mut got = Vec::new();
    c.cq.read_batch(&mut got, 1).await;
    assert_eq!((got[0].context, got[0].bytes()), (0, &b"first"[..]));
}

/// The requests before the panic are posted, and the domain keeps working.
pub(crate) async fn panicking_iterator_does_not_block_the_domain(setup: Setup) {
    let (mut a, b, to_b) = endpoint_pair(&setup).await;
    let request = |number: u64| {
        assert!(number < 40, "meant to panic");
        a.ep.send(to_b, numbered_message(number, 8)).context(number)
    };
    let posted = catch_unwind(AssertUnwindSafe(|| {
        a.ep.post_all((0..100).map(request)).map(drop).is_ok()
    }));
    assert!(posted.is_err());
    expect_numbers(&b, 0..32).await;
    assert_eq!(completed_contexts(&mut a.cq, 32).await.len(), 32);
    let (sent, got) = tokio::join!(a.ep.send(to_b, "after"), b.ep.recv());
    sent.unwrap();
    assert_eq!(&got.unwrap()[..], b"after");
}

pub(crate) async fn batched_writes_report_data_in_order(setup: Setup) {
    let (mut a, mut b, to_b) = endpoint_pair(&setup).await;
    let _progress = b.spawn_progress();
    let region = b
        .domain
        .alloc(800, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let remote = region.remote();
    for round in 0..2u64 {
        let write = |at: u64| {
            let value = (round * 1000 + at).to_le_bytes().to_vec();
            a.ep.write(to_b, remote.at(8 * at), value)
                .data(at)
                .context(at)
        };
        post_all_retrying(&a, (0..100).map(write)).await;
        let (mut written, mut remote_entries) = (Vec::new(), Vec::new());
        while written.len() < 100 {
            a.cq.read_batch(&mut written, 100).await;
        }
        while remote_entries.len() < 100 {
            b.cq.read_batch(&mut remote_entries, 100).await;
        }
        assert!(
            remote_entries
                .iter()
                .map(|entry| entry.transfer.data)
                .eq((0..100).map(Some))
        );
        assert!(
            (0..100).all(|at| region.load::<u64>(8 * at as usize).unwrap() == round * 1000 + at)
        );
    }
}

pub(crate) async fn closed_peer_stops_batch(setup: Setup) {
    let (a, b, to_b) = endpoint_pair(&setup).await;
    b.ep.close().unwrap();
    let (accepted, refused) = a.ep.inject_all(to_b, [&b"one"[..]; 40]);
    assert!(accepted < 40 && matches!(refused, Err(Error::PeerGone(_) | Error::NoSuchPeer(_))));
    a.ep.clone().close().unwrap();
    let (accepted, refused) = a.ep.inject_all(to_b, [&b"one"[..]; 40]);
    assert_eq!(
        (accepted, refused),
        (0, Err(Error::Closed(Class::Endpoint)))
    );
    let stopped = a.ep.post_all([a.ep.send(to_b, "x")]).unwrap_err();
    assert_eq!(
        (stopped.error, stopped.unposted.len()),
        (Error::Closed(Class::Endpoint), 1)
    );
}

/// A request that a batch returned unposted can be sent like any other, and wakes a sleeping
/// receiver.
pub(crate) async fn request_returned_by_batch_wakes_receiver_when_sent(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 8,
        ..EndpointConfig::default()
    };
    let (a, b, to_b) = endpoint_pair_with(&setup, config, EndpointConfig::default()).await;
    let sends = (0..).map(|number| a.ep.send(to_b, numbered_message(number, 8)));
    let stopped = a.ep.post_all(sends.take(9)).unwrap_err();
    assert!(
        matches!(
            stopped.error,
            Error::WouldBlock(Resource::CompletionEntry { .. })
        ),
        "{stopped}"
    );
    expect_numbers(&b, 0..stopped.posted as u64).await;
    let receive = tokio::spawn(b.ep.recv().start().unwrap());
    wait_until_stable(|| b.domain.stats().parks).await;
    let returned = stopped.unposted.into_iter().next().unwrap();
    returned.await.unwrap();
    assert_eq!(
        message_number(&receive.await.unwrap().unwrap()),
        stopped.posted as u64
    );
}
