//! Endpoints that share a receive context: who gets which message, and who hears of it.

use std::collections::HashMap;
use std::future::IntoFuture;

use bytes::{Bytes, BytesMut};
use fabric_async::{Error, OpKind, Scarce};
use futures_util::{FutureExt, StreamExt};

use crate::hall::Hall;
use crate::payload::{LONG, assert_bytes, number_of, numbered, pattern, poll_once, yields};
use crate::setup::Setup;
use crate::station::Plan;

/// A server with many endpoints, and a few receives for all of them. Every request is answered by
/// the door it came to.
pub(crate) async fn many_endpoints_live_on_one_pool_of_receives(setup: Setup) {
    const DOORS: usize = 64;
    const CLIENTS: usize = 4;
    const REQUESTS: u64 = 6;
    const POOL: u64 = 16;
    let plan = Plan {
        rx_size: Some(POOL as usize),
        ..Plan::default()
    };
    let Some(mut hall) = Hall::open(&setup, DOORS, plan).await else {
        return;
    };
    for context in 0..POOL {
        hall.shared
            .recv_into(Vec::with_capacity(40_000))
            .context(context)
            .post()
            .unwrap();
    }
    let refused = hall.shared.recv_into(vec![0; 8]).post().unwrap_err();
    assert_eq!(
        refused.error,
        Error::Again(Scarce::ReceiveEntry),
        "the pool is all there is"
    );
    let mut clients = Vec::new();
    for which in 0..CLIENTS {
        let client = setup.station().await;
        let doors = client
            .knock(&hall.doors[which * DOORS / CLIENTS..][..DOORS / CLIENTS])
            .await;
        clients.push(tokio::spawn(async move {
            for (at, door) in doors.iter().enumerate() {
                for request in 0..REQUESTS {
                    let number = ((which * doors.len() + at) as u64) << 8 | request;
                    let len = if number.is_multiple_of(7) { 40_000 } else { 20 };
                    client.ep.send(*door, numbered(number, len)).await.unwrap();
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
        .doors
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
            ids[&hall.shared.received_by(&request.transfer).unwrap()],
        );
        let request = request.into_result::<Vec<u8>>().unwrap();
        let number = number_of(&request);
        assert_eq!(
            (number >> 8) as usize,
            door,
            "it came to the door it was sent to"
        );
        assert_eq!(number & 0xff, next[door], "in order");
        next[door] += 1;
        let client = request.source().unwrap();
        hall.doors[door].send(client, b"done").await.unwrap();
        hall.shared
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
        (hall.received.value(), hall.shared.stats().received.count),
        (total, total)
    );
    assert_eq!(
        (hall.at_first.value(), hall.doors[5].stats().received.count),
        (REQUESTS, REQUESTS)
    );
}

/// The receive posted first gets the message that comes first, whoever brings it.
pub(crate) async fn posting_order_counts_at_every_door(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 4, Plan::default()).await else {
        return;
    };
    let (a, b) = (setup.station().await, setup.station().await);
    let (doors, also) = (a.knock(&hall.doors).await, b.knock(&hall.doors).await);
    let receives: Vec<_> = (0..8)
        .map(|_| hall.shared.recv().start().unwrap())
        .collect();
    let tagged = hall.shared.recv().tag(9).start().unwrap();
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
            .send(door, numbered(number as u64, 50))
            .await
            .unwrap();
        let got = receive.await.unwrap();
        assert_eq!(number_of(&got), number as u64);
        let at = if number % 3 == 0 {
            number % 4
        } else {
            (number * 3) % 4
        };
        assert_eq!(
            hall.shared.received_by(&got.transfer),
            Some(hall.doors[at].id())
        );
    }
    b.ep.send(also[1], "tagged").tag(9).await.unwrap();
    assert_eq!(&tagged.await.unwrap()[..], b"tagged");
}

/// Messages that wait are taken in the order they came, whichever door they came to.
pub(crate) async fn what_waits_is_taken_in_order_of_arrival(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 3, Plan::default()).await else {
        return;
    };
    let (a, b) = (setup.station().await, setup.station().await);
    let (doors, also) = (a.knock(&hall.doors).await, b.knock(&hall.doors).await);
    for number in 0..12 {
        let (client, door) = if number % 2 == 0 {
            (&a, doors[number % 3])
        } else {
            (&b, also[number % 3])
        };
        client
            .ep
            .send(door, numbered(number as u64, 30 + 500 * number))
            .tag(number as u64 % 4)
            .await
            .unwrap();
        hall.waiting(number + 1).await;
    }
    let mut took = Vec::new();
    took.push(number_of(&hall.shared.recv().tag(2).await.unwrap()));
    took.push(number_of(
        &hall
            .shared
            .recv_into(Vec::with_capacity(10_000))
            .tag(3)
            .await
            .unwrap(),
    ));
    for _ in 2..12 {
        took.push(number_of(
            &hall.shared.recv().tag_mask(0, !0).await.unwrap(),
        ));
    }
    assert_eq!(took, [2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(hall.shared.stats().unexpected, 0);
}

/// A directed receive takes what its sender sends to any door, and fails when the sender has left
/// all of them.
pub(crate) async fn directed_receives_hear_one_peer_at_all_doors(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 2, Plan::default()).await else {
        return;
    };
    let (a, b) = (setup.station().await, setup.station().await);
    let from_a = hall.av.insert(a.ep.name()).unwrap();
    let (doors, also) = (a.knock(&hall.doors).await, b.knock(&hall.doors).await);
    let mut directed: Vec<_> = (0..5)
        .map(|_| hall.shared.recv().from(from_a).start().unwrap())
        .collect();
    let any = hall.shared.recv().start().unwrap();
    b.ep.send(also[0], "from b").await.unwrap();
    assert_eq!(&any.await.unwrap()[..], b"from b");
    for (number, door) in [0, 1, 1, 0].into_iter().enumerate() {
        a.ep.send(doors[door], numbered(number as u64, 3000))
            .await
            .unwrap();
    }
    drop(a);
    let mut numbers = Vec::new();
    for receive in directed.drain(..4) {
        let got = receive.await.unwrap();
        assert_eq!(got.source(), Ok(from_a));
        numbers.push(number_of(&got));
    }
    // Of two doors nobody knows which is looked at first.
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let failed = directed.remove(0).await.unwrap_err();
    assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}");
}

/// The messages of a stranger get their source when it is inserted, those of all doors in the order
/// they came.
pub(crate) async fn a_stranger_at_several_doors_is_one(setup: Setup) {
    let plan = Plan {
        welcoming: false,
        ..Plan::default()
    };
    let Some(hall) = Hall::open(&setup, 3, plan).await else {
        return;
    };
    let a = setup.station().await;
    let doors = a.knock(&hall.doors).await;
    for (number, door) in [2, 0, 1, 0, 2].into_iter().enumerate() {
        a.ep.send(doors[door], numbered(number as u64, 20))
            .await
            .unwrap();
        hall.waiting(number + 1).await;
    }
    assert_eq!(
        hall.shared.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
    let from_a = hall.av.insert(a.ep.name()).unwrap();
    for number in 1..5 {
        let got = hall.shared.recv().from(from_a).await.unwrap();
        assert_eq!((number_of(&got), got.source()), (number, Ok(from_a)));
    }
    hall.av.remove(from_a).unwrap();
    assert_eq!(
        hall.shared.recv().from(from_a).await.unwrap_err().error,
        Error::StaleAddress(from_a)
    );
    a.ep.send(doors[1], "a stranger again").await.unwrap();
    assert_eq!(
        hall.shared.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
}

/// Dropped receives give their messages back, in order; also in the middle of one.
pub(crate) async fn dropping_receives_loses_nothing(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 3, Plan::default()).await else {
        return;
    };
    let a = setup.station().await;
    let doors = a.knock(&hall.doors).await;
    drop(hall.shared.recv().start().unwrap());
    let receives: Vec<_> = (0..3)
        .map(|_| hall.shared.recv_into(vec![0; 100]).start().unwrap())
        .collect();
    for number in 0..6 {
        a.ep.send(doors[number % 3], numbered(number as u64, 60))
            .await
            .unwrap();
        // Seen by the receive, or among those that wait.
        while hall.received.value() < number.min(2) as u64 + 1
            || hall.shared.stats().unexpected + 3 < number + 1
        {
            hall.domain.progress();
            yields(1).await;
        }
    }
    drop(receives);
    for number in 0..6 {
        assert_eq!(number_of(&hall.shared.recv().await.unwrap()), number);
    }
    for (which, polls) in [0, 1, 2, 5, 20].into_iter().enumerate() {
        let sending =
            a.ep.send(doors[which % 3], pattern(LONG, which))
                .start()
                .unwrap();
        let after =
            a.ep.send(doors[which % 3], numbered(which as u64, 30))
                .start()
                .unwrap();
        let sending = tokio::spawn(async move { (sending.await.unwrap(), after.await.unwrap()) });
        let mut early = hall
            .shared
            .recv_into(Vec::with_capacity(LONG))
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
            None => hall.shared.recv().await.unwrap().into_buf().into_vec(),
        };
        assert_bytes(&got, pattern(LONG, which));
        assert_eq!(number_of(&hall.shared.recv().await.unwrap()), which as u64);
        sending.await.unwrap();
    }
}

/// One budget for all: what is beyond it stays with its senders, and comes when there are receives.
pub(crate) async fn one_budget_serves_all_doors(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 3, Plan::default()).await else {
        return;
    };
    let mut sending = Vec::new();
    for which in 0..3u64 {
        let client = setup.station().await;
        let doors = client.knock(&hall.doors).await;
        sending.push(tokio::spawn(async move {
            for number in 0..4 {
                let message = numbered(which << 8 | number, LONG);
                client
                    .ep
                    .send(doors[which as usize], message)
                    .await
                    .unwrap();
            }
            client
        }));
    }
    crate::payload::settled(|| hall.shared.stats().unexpected_bytes as u64).await;
    assert!(
        hall.shared.stats().unexpected_bytes <= 16 << 20,
        "{:?}",
        hall.shared.stats()
    );
    let mut next = [0; 3];
    for round in 0..12 {
        let number = if round % 2 == 0 {
            number_of(
                &hall
                    .shared
                    .recv_into(Vec::with_capacity(LONG))
                    .await
                    .unwrap(),
            )
        } else {
            number_of(&hall.shared.recv().await.unwrap())
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
pub(crate) async fn posts_report_to_the_queue_of_the_context(setup: Setup) {
    let plan = Plan {
        entries: 4,
        selective: true,
        ..Plan::default()
    };
    let Some(mut hall) = Hall::open(&setup, 2, plan).await else {
        return;
    };
    let a = setup.station().await;
    let doors = a.knock(&hall.doors).await;
    let rows = (0..4).map(|context| {
        hall.shared
            .recv_into(vec![0; 16])
            .context(context)
            .completion()
    });
    let posted = hall.shared.post_all(rows).unwrap();
    assert_eq!(posted, 4);
    let refused = hall
        .shared
        .recv_into(vec![7; 3])
        .context(9)
        .post()
        .unwrap_err();
    assert_eq!(
        (refused.error, &refused.buf[..]),
        (Error::Again(Scarce::CompletionEntry), &[7; 3][..])
    );
    for number in 0..4u64 {
        a.ep.send(doors[number as usize % 2], numbered(number, 10))
            .await
            .unwrap();
        let entry = hall.cq.next().await.unwrap();
        let door = hall.shared.received_by(&entry.transfer);
        assert_eq!(
            (entry.context, door),
            (number, Some(hall.doors[number as usize % 2].id()))
        );
        assert_eq!(number_of(&entry.into_result::<Vec<u8>>().unwrap()), number);
    }
    // Of success nobody hears who has not asked; of failure everybody does.
    hall.shared
        .recv_into(vec![0; 100])
        .context(10)
        .post()
        .unwrap();
    hall.shared
        .recv_into(vec![0; 5])
        .context(11)
        .post()
        .unwrap();
    for number in 0..2 {
        a.ep.send(doors[0], numbered(number, 50)).await.unwrap();
    }
    let entry = hall.cq.next().await.unwrap();
    assert_eq!(
        (entry.context, entry.error.as_deref()),
        (11, Some(&Error::Truncated { len: 5, lost: 45 }))
    );
    assert_eq!((hall.received.value(), hall.received.errors()), (5, 1));
    assert_eq!(
        (hall.at_first.value(), hall.at_first.errors()),
        (3, 1),
        "the door counts it too"
    );
}

/// A buffer for several messages takes them from all doors.
pub(crate) async fn one_buffer_takes_messages_of_all_doors(setup: Setup) {
    let plan = Plan {
        entries: 4,
        ..Plan::default()
    };
    let Some(mut hall) = Hall::open(&setup, 3, plan).await else {
        return;
    };
    let a = setup.station().await;
    let doors = a.knock(&hall.doors).await;
    let mut messages = hall
        .shared
        .recv_multi(BytesMut::with_capacity(1000))
        .min_free(100)
        .start()
        .unwrap();
    let mut got = Vec::new();
    for number in 0..9usize {
        a.ep.send(doors[number % 3], numbered(number as u64, 100))
            .await
            .unwrap();
        got.push(messages.next().await.unwrap().unwrap());
    }
    for (number, message) in got.iter().enumerate() {
        assert_eq!(number_of(message), number as u64);
        assert_eq!(
            hall.shared.received_by(&message.transfer),
            Some(hall.doors[number % 3].id())
        );
    }
    a.ep.send(doors[0], numbered(9, 50)).await.unwrap();
    assert_eq!(number_of(&messages.next().await.unwrap().unwrap()), 9);
    assert!(
        messages.next().await.is_none(),
        "fewer bytes are left than it wants"
    );
    // In the queue, which has not an entry for each: what is beyond stays with its sender.
    let posted = hall
        .shared
        .recv_multi(BytesMut::with_capacity(2000))
        .context(5)
        .post()
        .unwrap();
    let sending = tokio::spawn(async move {
        for number in 0..12usize {
            a.ep.send(doors[number % 3], numbered(number as u64, 100))
                .await
                .unwrap();
        }
        a
    });
    let (mut count, mut next) = (0, [0, 1, 2]);
    while count < 12 {
        let entry = hall.cq.next().await.unwrap();
        assert_eq!((entry.context, entry.kind), (5, OpKind::Recv));
        let number = number_of(&entry.into_result::<Bytes>().unwrap());
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
        (OpKind::Release, Some(&Error::Canceled))
    );
}

/// Probes find what waits at any door, and claims keep it.
pub(crate) async fn probes_and_claims_see_all_doors(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 2, Plan::default()).await else {
        return;
    };
    let a = setup.station().await;
    let doors = a.knock(&hall.doors).await;
    assert_eq!(hall.shared.probe().now(), Ok(None));
    let (found, sent) = tokio::join!(
        hall.shared.probe().tag(7),
        a.ep.send(doors[1], pattern(5000, 1)).tag(7)
    );
    sent.unwrap();
    let found = found.unwrap();
    assert_eq!(
        (found.len, hall.shared.received_by(&found)),
        (5000, Some(hall.doors[1].id()))
    );
    let claimed = hall.shared.probe().tag(7).claim().await.unwrap();
    a.ep.send(doors[0], pattern(30, 2)).tag(7).await.unwrap();
    hall.waiting(1).await;
    let second = hall
        .shared
        .probe()
        .tag(7)
        .claim()
        .now()
        .unwrap()
        .expect("it waits");
    assert!(
        hall.shared.probe().tag(7).now().unwrap().is_none(),
        "both are somebody's"
    );
    let late = hall.shared.recv().tag(7).start().unwrap();
    drop(second);
    assert_bytes(&late.await.unwrap(), pattern(30, 2));
    assert_bytes(&claimed.recv().await.unwrap(), pattern(5000, 1));
    a.ep.send(doors[0], "unwanted").await.unwrap();
    hall.shared.probe().claim().await.unwrap().discard();
    assert_eq!(hall.shared.stats().unexpected, 0);
}

/// Memory that was lent is received where it lies, and goes back whichever door it came to.
#[allow(unsafe_code)] // receiving where it lies: the sender here does not write what it has lent
pub(crate) async fn lent_messages_come_by_any_door(setup: Setup) {
    let Some(hall) = Hall::open(&setup, 2, Plan::default()).await else {
        return;
    };
    let a = setup.station().await;
    let doors = a.knock(&hall.doors).await;
    for which in 0..20 {
        let len = [100, 5000, 1 << 20][which % 3];
        let mut loan = a.ep.loan(len).unwrap();
        loan.copy_from_slice(pattern(len, which));
        let lend = a.ep.lend(doors[which % 2], loan);
        if which % 4 == 3 {
            let copied = hall.shared.recv_into(Vec::with_capacity(len));
            let (lent, copied) = tokio::join!(lend, copied);
            lent.unwrap();
            assert_bytes(&copied.unwrap(), pattern(len, which));
            continue;
        }
        // SAFETY: see above.
        let (lent, held) = tokio::join!(lend, unsafe { hall.shared.recv_lent() });
        lent.unwrap();
        assert_bytes(&held.unwrap(), pattern(len, which));
    }
}

/// Senders that wait to hear of their messages hear it by the door they sent to, posted before or
/// after.
pub(crate) async fn senders_hear_what_was_received(setup: Setup) {
    if !crate::levels::has_levels(&setup).await {
        return;
    }
    let Some(hall) = Hall::open(&setup, 3, Plan::default()).await else {
        return;
    };
    let (a, b) = (setup.station().await, setup.station().await);
    let (doors, also) = (a.knock(&hall.doors).await, b.knock(&hall.doors).await);
    for (which, len) in [8, 60, 40_000, 1 << 20].into_iter().enumerate() {
        for (client, door) in [(&a, doors[which % 3]), (&b, also[(which + 1) % 3])] {
            let receive = hall.shared.recv().start().unwrap();
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
            hall.waiting(1).await;
            yields(5).await;
            assert!(
                poll_once(&mut delivered).await.is_pending(),
                "nobody has received it"
            );
            assert!(
                poll_once(&mut matched).await.is_pending(),
                "nobody has received it"
            );
            for sent in [delivered, matched] {
                let (got, sent) = tokio::join!(hall.shared.recv(), sent);
                assert_bytes(&got.unwrap(), pattern(len, which));
                sent.unwrap();
            }
        }
    }
}
