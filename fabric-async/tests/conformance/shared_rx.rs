//! Endpoints that share a receive context: who gets which message, and who hears of it.

use std::collections::HashMap;
use std::future::IntoFuture;

use bytes::{Bytes, BytesMut};
use fabric_async::{Error, OpKind, Resource};
use futures_util::{FutureExt, StreamExt};

use crate::endpoint_fixture::EndpointConfig;
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, poll_once, yield_times,
};
use crate::setup::Setup;
use crate::shared_rx_fixture::SharedRxFixture;

/// A server with many endpoints, and a few receives for all of them. Every request is answered by
/// the door it came to.
pub(crate) async fn many_endpoints_share_few_posted_receives(setup: Setup) {
    const DOORS: usize = 64;
    const CLIENTS: usize = 4;
    const REQUESTS: u64 = 6;
    const POOL: u64 = 16;
    let plan = EndpointConfig {
        rx_size: Some(POOL as usize),
        ..EndpointConfig::default()
    };
    let mut hall = SharedRxFixture::open(&setup, DOORS, plan).await;
    for context in 0..POOL {
        hall.shared_rx
            .recv_into(Vec::with_capacity(40_000))
            .context(context)
            .post()
            .unwrap();
    }
    let refused = hall.shared_rx.recv_into(vec![0; 8]).post().unwrap_err();
    assert_eq!(
        refused.error,
        Error::WouldBlock(Resource::ReceiveEntry),
        "the pool is all there is"
    );
    let mut clients = Vec::new();
    for which in 0..CLIENTS {
        let client = setup.open_endpoint().await;
        let doors = client
            .add_peers(&hall.endpoints[which * DOORS / CLIENTS..][..DOORS / CLIENTS])
            .await;
        clients.push(tokio::spawn(async move {
            for (at, door) in doors.iter().enumerate() {
                for request in 0..REQUESTS {
                    let number = ((which * doors.len() + at) as u64) << 8 | request;
                    let len = if number.is_multiple_of(7) { 40_000 } else { 20 };
                    client
                        .ep
                        .send(*door, numbered_message(number, len))
                        .await
                        .unwrap();
                }
            }
            for _ in 0..doors.len() as u64 * REQUESTS {
                let answer = client.ep.recv().await.unwrap();
                let asked = doors.iter().any(|door| Ok(*door) == answer.source());
                assert!(asked, "answered by a door it has never heard of");
            }
        }));
    }
    let ids: HashMap<_, _> = hall
        .endpoints
        .iter()
        .enumerate()
        .map(|(at, door)| (door.id(), at))
        .collect();
    let mut next = vec![0; DOORS];
    for _ in 0..DOORS as u64 * REQUESTS {
        let request = hall.cq.next().await.unwrap();
        assert!(request.kind == OpKind::Recv && request.context < POOL);
        let (context, door) = (
            request.context,
            ids[&hall.shared_rx.received_by(&request.transfer).unwrap()],
        );
        let request = request.into_result::<Vec<u8>>().unwrap();
        let number = message_number(&request);
        assert_eq!(
            (number >> 8) as usize,
            door,
            "it came to the door it was sent to"
        );
        assert_eq!(number & 0xff, next[door], "in order");
        next[door] += 1;
        let client = request.source().unwrap();
        hall.endpoints[door].send(client, b"done").await.unwrap();
        hall.shared_rx
            .recv_into(request.into_buf())
            .context(context)
            .post()
            .unwrap();
    }
    for client in clients {
        client.await.unwrap();
    }
    let total = DOORS as u64 * REQUESTS;
    assert_eq!(
        (
            hall.recv_counter.value(),
            hall.shared_rx.stats().received.count
        ),
        (total, total)
    );
    assert_eq!(
        (
            hall.first_recv_counter.value(),
            hall.endpoints[5].stats().received.count
        ),
        (REQUESTS, REQUESTS)
    );
}

/// The receive posted first gets the message that comes first, whoever brings it.
pub(crate) async fn posting_order_holds_across_endpoints(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 4, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let (doors, also) = (
        a.add_peers(&hall.endpoints).await,
        b.add_peers(&hall.endpoints).await,
    );
    let receives: Vec<_> = (0..8)
        .map(|_| hall.shared_rx.recv().start().unwrap())
        .collect();
    let tagged = hall.shared_rx.recv().tag(9).start().unwrap();
    for (number, mut receive) in receives.into_iter().enumerate() {
        assert!(
            poll_once(&mut receive).await.is_pending(),
            "receive {number} has nothing yet"
        );
        let (client, door) = if number % 3 == 0 {
            (&a, doors[number % 4])
        } else {
            (&b, also[(number * 3) % 4])
        };
        client
            .ep
            .send(door, numbered_message(number as u64, 50))
            .await
            .unwrap();
        let got = receive.await.unwrap();
        assert_eq!(message_number(&got), number as u64);
        let at = if number % 3 == 0 {
            number % 4
        } else {
            (number * 3) % 4
        };
        assert_eq!(
            hall.shared_rx.received_by(&got.transfer),
            Some(hall.endpoints[at].id())
        );
    }
    b.ep.send(also[1], "tagged").tag(9).await.unwrap();
    assert_eq!(&tagged.await.unwrap()[..], b"tagged");
}

/// Messages that wait are taken in the order they came, whichever door they came to.
pub(crate) async fn unexpected_messages_match_in_arrival_order(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let (doors, also) = (
        a.add_peers(&hall.endpoints).await,
        b.add_peers(&hall.endpoints).await,
    );
    for number in 0..12 {
        let (client, door) = if number % 2 == 0 {
            (&a, doors[number % 3])
        } else {
            (&b, also[number % 3])
        };
        client
            .ep
            .send(door, numbered_message(number as u64, 30 + 500 * number))
            .tag(number as u64 % 4)
            .await
            .unwrap();
        hall.wait_for_unexpected(number + 1).await;
    }
    let mut took = Vec::new();
    took.push(message_number(&hall.shared_rx.recv().tag(2).await.unwrap()));
    took.push(message_number(
        &hall
            .shared_rx
            .recv_into(Vec::with_capacity(10_000))
            .tag(3)
            .await
            .unwrap(),
    ));
    for _ in 2..12 {
        took.push(message_number(
            &hall.shared_rx.recv().tag_mask(0, !0).await.unwrap(),
        ));
    }
    assert_eq!(took, [2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(hall.shared_rx.stats().unexpected, 0);
}

/// A directed receive takes what its sender sends to any door, and fails when the sender has left
/// all of them.
pub(crate) async fn directed_receive_matches_on_every_endpoint(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let from_a = hall.av.insert(a.ep.name()).unwrap();
    let (doors, also) = (
        a.add_peers(&hall.endpoints).await,
        b.add_peers(&hall.endpoints).await,
    );
    let mut directed: Vec<_> = (0..5)
        .map(|_| hall.shared_rx.recv().from(from_a).start().unwrap())
        .collect();
    let any = hall.shared_rx.recv().start().unwrap();
    b.ep.send(also[0], "from b").await.unwrap();
    assert_eq!(&any.await.unwrap()[..], b"from b");
    for (number, door) in [0, 1, 1, 0].into_iter().enumerate() {
        a.ep.send(doors[door], numbered_message(number as u64, 3000))
            .await
            .unwrap();
    }
    drop(a);
    let mut numbers = Vec::new();
    for receive in directed.drain(..4) {
        let got = receive.await.unwrap();
        assert_eq!(got.source(), Ok(from_a));
        numbers.push(message_number(&got));
    }
    // Of two doors nobody knows which is looked at first.
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let failed = directed.remove(0).await.unwrap_err();
    assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}");
}

/// The messages of a stranger get their source when it is inserted, those of all doors in the order
/// they came.
pub(crate) async fn av_insert_assigns_source_across_endpoints(setup: Setup) {
    let plan = EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    };
    let hall = SharedRxFixture::open(&setup, 3, plan).await;
    let a = setup.open_endpoint().await;
    let doors = a.add_peers(&hall.endpoints).await;
    for (number, door) in [2, 0, 1, 0, 2].into_iter().enumerate() {
        a.ep.send(doors[door], numbered_message(number as u64, 20))
            .await
            .unwrap();
        hall.wait_for_unexpected(number + 1).await;
    }
    assert_eq!(
        hall.shared_rx.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
    let from_a = hall.av.insert(a.ep.name()).unwrap();
    for number in 1..5 {
        let got = hall.shared_rx.recv().from(from_a).await.unwrap();
        assert_eq!((message_number(&got), got.source()), (number, Ok(from_a)));
    }
    hall.av.remove(from_a).unwrap();
    assert_eq!(
        hall.shared_rx.recv().from(from_a).await.unwrap_err().error,
        Error::StaleAddress(from_a)
    );
    a.ep.send(doors[1], "a stranger again").await.unwrap();
    assert_eq!(
        hall.shared_rx.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
}

/// Dropped receives give their messages back, in order; also in the middle of one.
pub(crate) async fn dropped_receives_lose_no_message(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let doors = a.add_peers(&hall.endpoints).await;
    drop(hall.shared_rx.recv().start().unwrap());
    let receives: Vec<_> = (0..3)
        .map(|_| hall.shared_rx.recv_into(vec![0; 100]).start().unwrap())
        .collect();
    for number in 0..6 {
        a.ep.send(doors[number % 3], numbered_message(number as u64, 60))
            .await
            .unwrap();
        // Seen by the receive, or among those that wait.
        while hall.recv_counter.value() < number.min(2) as u64 + 1
            || hall.shared_rx.stats().unexpected + 3 < number + 1
        {
            hall.domain.progress();
            yield_times(1).await;
        }
    }
    drop(receives);
    for number in 0..6 {
        assert_eq!(
            message_number(&hall.shared_rx.recv().await.unwrap()),
            number
        );
    }
    for (which, polls) in [0, 1, 2, 5, 20].into_iter().enumerate() {
        let sending =
            a.ep.send(doors[which % 3], pattern(LONG_LEN, which))
                .start()
                .unwrap();
        let after =
            a.ep.send(doors[which % 3], numbered_message(which as u64, 30))
                .start()
                .unwrap();
        let sending = tokio::spawn(async move { (sending.await.unwrap(), after.await.unwrap()) });
        let mut early = hall
            .shared_rx
            .recv_into(Vec::with_capacity(LONG_LEN))
            .start()
            .unwrap();
        let mut whole = None;
        for _ in 0..polls {
            whole = whole.or((&mut early).now_or_never());
            if whole.is_some() {
                break;
            }
        }
        drop(early);
        let got = match whole {
            Some(whole) => whole.unwrap().into_buf(),
            None => hall.shared_rx.recv().await.unwrap().into_buf().into_vec(),
        };
        assert_bytes(&got, pattern(LONG_LEN, which));
        assert_eq!(
            message_number(&hall.shared_rx.recv().await.unwrap()),
            which as u64
        );
        sending.await.unwrap();
    }
}

/// One budget for all: what is beyond it stays with its senders, and comes when there are receives.
pub(crate) async fn unexpected_budget_is_shared_by_endpoints(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let mut sending = Vec::new();
    for which in 0..3u64 {
        let client = setup.open_endpoint().await;
        let doors = client.add_peers(&hall.endpoints).await;
        sending.push(tokio::spawn(async move {
            for number in 0..4 {
                let message = numbered_message(which << 8 | number, LONG_LEN);
                client
                    .ep
                    .send(doors[which as usize], message)
                    .await
                    .unwrap();
            }
            client
        }));
    }
    crate::payload::wait_until_stable(|| hall.shared_rx.stats().unexpected_bytes as u64).await;
    assert!(
        hall.shared_rx.stats().unexpected_bytes <= 16 << 20,
        "{:?}",
        hall.shared_rx.stats()
    );
    let mut next = [0; 3];
    for round in 0..12 {
        let number = if round % 2 == 0 {
            message_number(
                &hall
                    .shared_rx
                    .recv_into(Vec::with_capacity(LONG_LEN))
                    .await
                    .unwrap(),
            )
        } else {
            message_number(&hall.shared_rx.recv().await.unwrap())
        };
        let client = (number >> 8) as usize;
        assert_eq!(number & 0xff, next[client]);
        next[client] += 1;
    }
    for sending in sending {
        sending.await.unwrap();
    }
}

/// What is posted to the queue reports there, and nothing is posted for which there is no entry.
pub(crate) async fn posts_report_to_the_shared_context_cq(setup: Setup) {
    let plan = EndpointConfig {
        cq_capacity: 4,
        selective_completion: true,
        ..EndpointConfig::default()
    };
    let mut hall = SharedRxFixture::open(&setup, 2, plan).await;
    let a = setup.open_endpoint().await;
    let doors = a.add_peers(&hall.endpoints).await;
    let rows = (0..4).map(|context| {
        hall.shared_rx
            .recv_into(vec![0; 16])
            .context(context)
            .completion()
    });
    let posted = hall.shared_rx.post_all(rows).unwrap();
    assert_eq!(posted, 4);
    let refused = hall
        .shared_rx
        .recv_into(vec![7; 3])
        .context(9)
        .post()
        .unwrap_err();
    assert_eq!(
        (refused.error, &refused.buf[..]),
        (Error::WouldBlock(Resource::CompletionEntry), &[7; 3][..])
    );
    for number in 0..4u64 {
        a.ep.send(doors[number as usize % 2], numbered_message(number, 10))
            .await
            .unwrap();
        let entry = hall.cq.next().await.unwrap();
        let door = hall.shared_rx.received_by(&entry.transfer);
        assert_eq!(
            (entry.context, door),
            (number, Some(hall.endpoints[number as usize % 2].id()))
        );
        assert_eq!(
            message_number(&entry.into_result::<Vec<u8>>().unwrap()),
            number
        );
    }
    // Of success nobody hears who has not asked; of failure everybody does.
    hall.shared_rx
        .recv_into(vec![0; 100])
        .context(10)
        .post()
        .unwrap();
    hall.shared_rx
        .recv_into(vec![0; 5])
        .context(11)
        .post()
        .unwrap();
    for number in 0..2 {
        a.ep.send(doors[0], numbered_message(number, 50))
            .await
            .unwrap();
    }
    let entry = hall.cq.next().await.unwrap();
    assert_eq!(
        (entry.context, entry.error.as_deref()),
        (11, Some(&Error::Truncated { len: 5, lost: 45 }))
    );
    assert_eq!(
        (hall.recv_counter.value(), hall.recv_counter.errors()),
        (5, 1)
    );
    assert_eq!(
        (
            hall.first_recv_counter.value(),
            hall.first_recv_counter.errors()
        ),
        (3, 1),
        "the door counts it too"
    );
}

/// A buffer for several messages takes them from all doors.
pub(crate) async fn multi_recv_takes_from_all_endpoints(setup: Setup) {
    let plan = EndpointConfig {
        cq_capacity: 4,
        ..EndpointConfig::default()
    };
    let mut hall = SharedRxFixture::open(&setup, 3, plan).await;
    let a = setup.open_endpoint().await;
    let doors = a.add_peers(&hall.endpoints).await;
    let mut messages = hall
        .shared_rx
        .recv_multi(BytesMut::with_capacity(1000))
        .min_free(100)
        .start()
        .unwrap();
    let mut got = Vec::new();
    for number in 0..9usize {
        a.ep.send(doors[number % 3], numbered_message(number as u64, 100))
            .await
            .unwrap();
        got.push(messages.next().await.unwrap().unwrap());
    }
    for (number, message) in got.iter().enumerate() {
        assert_eq!(message_number(message), number as u64);
        assert_eq!(
            hall.shared_rx.received_by(&message.transfer),
            Some(hall.endpoints[number % 3].id())
        );
    }
    a.ep.send(doors[0], numbered_message(9, 50)).await.unwrap();
    assert_eq!(message_number(&messages.next().await.unwrap().unwrap()), 9);
    assert!(
        messages.next().await.is_none(),
        "fewer bytes are left than it wants"
    );
    // In the queue, which has not an entry for each: what is beyond stays with its sender.
    let posted = hall
        .shared_rx
        .recv_multi(BytesMut::with_capacity(2000))
        .context(5)
        .post()
        .unwrap();
    let sending = tokio::spawn(async move {
        for number in 0..12usize {
            a.ep.send(doors[number % 3], numbered_message(number as u64, 100))
                .await
                .unwrap();
        }
        a
    });
    let (mut count, mut next) = (0, [0, 1, 2]);
    while count < 12 {
        let entry = hall.cq.next().await.unwrap();
        assert_eq!((entry.context, entry.kind), (5, OpKind::Recv));
        let number = message_number(&entry.into_result::<Bytes>().unwrap());
        let door = number as usize % 3;
        assert_eq!(number, next[door], "in order at each door");
        next[door] += 3;
        count += 1;
    }
    sending.await.unwrap();
    posted.cancel();
    let release = hall.cq.next().await.unwrap();
    assert_eq!(
        (release.kind, release.error.as_deref()),
        (OpKind::MultiRecvRelease, Some(&Error::Canceled))
    );
}

/// Probes find what waits at any door, and claims keep it.
pub(crate) async fn probes_and_claims_cover_all_endpoints(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let doors = a.add_peers(&hall.endpoints).await;
    assert_eq!(hall.shared_rx.probe().try_probe(), Ok(None));
    let (found, sent) = tokio::join!(
        hall.shared_rx.probe().tag(7),
        a.ep.send(doors[1], pattern(5000, 1)).tag(7)
    );
    sent.unwrap();
    let found = found.unwrap();
    assert_eq!(
        (found.len, hall.shared_rx.received_by(&found)),
        (5000, Some(hall.endpoints[1].id()))
    );
    let claimed = hall.shared_rx.probe().tag(7).claim().await.unwrap();
    a.ep.send(doors[0], pattern(30, 2)).tag(7).await.unwrap();
    hall.wait_for_unexpected(1).await;
    let second = hall
        .shared_rx
        .probe()
        .tag(7)
        .claim()
        .try_claim()
        .unwrap()
        .expect("it waits");
    assert!(
        hall.shared_rx.probe().tag(7).try_probe().unwrap().is_none(),
        "both are somebody's"
    );
    let late = hall.shared_rx.recv().tag(7).start().unwrap();
    drop(second);
    assert_bytes(&late.await.unwrap(), pattern(30, 2));
    assert_bytes(&claimed.recv().await.unwrap(), pattern(5000, 1));
    a.ep.send(doors[0], "unwanted").await.unwrap();
    hall.shared_rx.probe().claim().await.unwrap().discard();
    assert_eq!(hall.shared_rx.stats().unexpected, 0);
}

/// Memory that was lent is received where it lies, and goes back whichever door it came to.
#[allow(unsafe_code)] // receiving where it lies: the sender here does not write what it has lent
pub(crate) async fn loans_arrive_through_any_endpoint(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let doors = a.add_peers(&hall.endpoints).await;
    for which in 0..20 {
        let len = [100, 5000, 1 << 20][which % 3];
        let mut loan = a.ep.loan(len).unwrap();
        loan.copy_from_slice(pattern(len, which));
        let lend = a.ep.lend(doors[which % 2], loan);
        if which % 4 == 3 {
            let copied = hall.shared_rx.recv_into(Vec::with_capacity(len));
            let (lent, copied) = tokio::join!(lend, copied);
            lent.unwrap();
            assert_bytes(&copied.unwrap(), pattern(len, which));
            continue;
        }
        // SAFETY: see above.
        let (lent, held) = tokio::join!(lend, unsafe { hall.shared_rx.recv_loan() });
        lent.unwrap();
        assert_bytes(&held.unwrap(), pattern(len, which));
    }
}

/// Senders that wait to hear of their messages hear it by the door they sent to, posted before or
/// after.
pub(crate) async fn acks_reach_senders_through_any_endpoint(setup: Setup) {
    let hall = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let (doors, also) = (
        a.add_peers(&hall.endpoints).await,
        b.add_peers(&hall.endpoints).await,
    );
    for (which, len) in [8, 60, 40_000, 1 << 20].into_iter().enumerate() {
        for (client, door) in [(&a, doors[which % 3]), (&b, also[(which + 1) % 3])] {
            let receive = hall.shared_rx.recv().start().unwrap();
            let sent = client
                .ep
                .send(door, pattern(len, which))
                .delivery_complete();
            let (got, sent) = tokio::join!(receive, sent.into_future());
            assert_bytes(&got.unwrap(), pattern(len, which));
            sent.unwrap();

            let delivered = client
                .ep
                .send(door, pattern(len, which))
                .delivery_complete();
            let mut delivered = delivered.start().unwrap();
            let mut matched = client
                .ep
                .send(door, pattern(len, which))
                .match_complete()
                .start()
                .unwrap();
            hall.wait_for_unexpected(1).await;
            yield_times(5).await;
            assert!(
                poll_once(&mut delivered).await.is_pending(),
                "nobody has received it"
            );
            assert!(
                poll_once(&mut matched).await.is_pending(),
                "nobody has received it"
            );
            for sent in [delivered, matched] {
                let (got, sent) = tokio::join!(hall.shared_rx.recv(), sent);
                assert_bytes(&got.unwrap(), pattern(len, which));
                sent.unwrap();
            }
        }
    }
}
