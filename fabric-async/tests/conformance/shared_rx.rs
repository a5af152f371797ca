//! Endpoints with a shared receive context: matching, completions and sources across endpoints.

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

/// A server with many endpoints posts few receives for all of them. The endpoint at which a request
/// arrived sends the reply.
pub(crate) async fn many_endpoints_share_few_posted_receives(setup: Setup) {
    const ENDPOINTS: usize = 64;
    const CLIENTS: usize = 4;
    const REQUESTS: u64 = 6;
    const RECEIVES: u64 = 16;
    let config = EndpointConfig {
        rx_size: Some(RECEIVES as usize),
        ..EndpointConfig::default()
    };
    let mut fixture = SharedRxFixture::open(&setup, ENDPOINTS, config).await;
    for context in 0..RECEIVES {
        fixture
            .shared_rx
            .recv_into(Vec::with_capacity(40_000))
            .context(context)
            .post()
            .unwrap();
    }
    let refused = fixture.shared_rx.recv_into(vec![0; 8]).post().unwrap_err();
    assert_eq!(
        refused.error,
        Error::WouldBlock(Resource::ReceiveEntry {
            limit: RECEIVES as usize
        }),
        "all receive entries are in use"
    );
    let mut clients = Vec::new();
    for which in 0..CLIENTS {
        let client = setup.open_endpoint().await;
        let addrs = client
            .add_peers(&fixture.endpoints[which * ENDPOINTS / CLIENTS..][..ENDPOINTS / CLIENTS])
            .await;
        clients.push(tokio::spawn(async move {
            for (at, addr) in addrs.iter().enumerate() {
                for request in 0..REQUESTS {
                    let number = ((which * addrs.len() + at) as u64) << 8 | request;
                    let len = if number.is_multiple_of(7) { 40_000 } else { 20 };
                    client
                        .ep
                        .send(*addr, numbered_message(number, len))
                        .await
                        .unwrap();
                }
            }
            for _ in 0..addrs.len() as u64 * REQUESTS {
                let reply = client.ep.recv().await.unwrap();
                let is_from_server = addrs.iter().any(|addr| Ok(*addr) == reply.source());
                assert!(is_from_server, "a reply of another endpoint");
            }
        }));
    }
    let ids: HashMap<_, _> = fixture
        .endpoints
        .iter()
        .enumerate()
        .map(|(at, endpoint)| (endpoint.id(), at))
        .collect();
    let mut next = vec![0; ENDPOINTS];
    for _ in 0..ENDPOINTS as u64 * REQUESTS {
        let request = fixture.cq.next().await.unwrap();
        assert!(request.kind == OpKind::Recv && request.context < RECEIVES);
        let (context, endpoint) = (
            request.context,
            ids[&fixture.shared_rx.received_by(&request.transfer).unwrap()],
        );
        let request = request.into_result::<Vec<u8>>().unwrap();
        let number = message_number(&request);
        assert_eq!(
            (number >> 8) as usize,
            endpoint,
            "the message arrived at the endpoint it was sent to"
        );
        assert_eq!(number & 0xff, next[endpoint], "in order");
        next[endpoint] += 1;
        let client = request.source().unwrap();
        fixture.endpoints[endpoint]
            .send(client, b"done")
            .await
            .unwrap();
        fixture
            .shared_rx
            .recv_into(request.into_buf())
            .context(context)
            .post()
            .unwrap();
    }
    for client in clients {
        client.await.unwrap();
    }
    let total = ENDPOINTS as u64 * REQUESTS;
    assert_eq!(
        (
            fixture.recv_counter.value(),
            fixture.shared_rx.stats().received.count
        ),
        (total, total)
    );
    assert_eq!(
        (
            fixture.first_recv_counter.value(),
            fixture.endpoints[5].stats().received.count
        ),
        (REQUESTS, REQUESTS)
    );
}

/// The receive posted first gets the first message, whichever endpoint it arrives at.
pub(crate) async fn posting_order_holds_across_endpoints(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 4, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let (addrs, b_addrs) = (
        a.add_peers(&fixture.endpoints).await,
        b.add_peers(&fixture.endpoints).await,
    );
    let receives: Vec<_> = (0..8)
        .map(|_| fixture.shared_rx.recv().start().unwrap())
        .collect();
    let tagged = fixture.shared_rx.recv().tag(9).start().unwrap();
    for (number, mut receive) in receives.into_iter().enumerate() {
        assert!(
            poll_once(&mut receive).await.is_pending(),
            "receive {number} is pending"
        );
        let (client, addr) = if number % 3 == 0 {
            (&a, addrs[number % 4])
        } else {
            (&b, b_addrs[(number * 3) % 4])
        };
        client
            .ep
            .send(addr, numbered_message(number as u64, 50))
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
            fixture.shared_rx.received_by(&got.transfer),
            Some(fixture.endpoints[at].id())
        );
    }
    b.ep.send(b_addrs[1], "tagged").tag(9).await.unwrap();
    assert_eq!(&tagged.await.unwrap()[..], b"tagged");
}

/// Unexpected messages match in arrival order, whichever endpoint they arrived at.
pub(crate) async fn unexpected_messages_match_in_arrival_order(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let (addrs, b_addrs) = (
        a.add_peers(&fixture.endpoints).await,
        b.add_peers(&fixture.endpoints).await,
    );
    for number in 0..12 {
        let (client, addr) = if number % 2 == 0 {
            (&a, addrs[number % 3])
        } else {
            (&b, b_addrs[number % 3])
        };
        client
            .ep
            .send(addr, numbered_message(number as u64, 30 + 500 * number))
            .tag(number as u64 % 4)
            .await
            .unwrap();
        fixture.wait_for_unexpected(number + 1).await;
    }
    let mut numbers = Vec::new();
    numbers.push(message_number(
        &fixture.shared_rx.recv().tag(2).await.unwrap(),
    ));
    numbers.push(message_number(
        &fixture
            .shared_rx
            .recv_into(Vec::with_capacity(10_000))
            .tag(3)
            .await
            .unwrap(),
    ));
    for _ in 2..12 {
        numbers.push(message_number(
            &fixture.shared_rx.recv().tag_ignoring(0, !0).await.unwrap(),
        ));
    }
    assert_eq!(numbers, [2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(fixture.shared_rx.stats().unexpected, 0);
}

/// A directed receive takes messages of its source at any endpoint, and fails when the source has
/// disconnected from all of them.
pub(crate) async fn directed_receive_matches_on_every_endpoint(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let from_a = fixture.av.insert(a.ep.name()).unwrap();
    let (addrs, b_addrs) = (
        a.add_peers(&fixture.endpoints).await,
        b.add_peers(&fixture.endpoints).await,
    );
    let mut directed: Vec<_> = (0..5)
        .map(|_| fixture.shared_rx.recv().from(from_a).start().unwrap())
        .collect();
    let any = fixture.shared_rx.recv().start().unwrap();
    b.ep.send(b_addrs[0], "from b").await.unwrap();
    assert_eq!(&any.await.unwrap()[..], b"from b");
    for (number, endpoint) in [0, 1, 1, 0].into_iter().enumerate() {
        a.ep.send(addrs[endpoint], numbered_message(number as u64, 3000))
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
    // The order of two endpoints that have messages at the same time is not defined.
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3]);
    let failed = directed.remove(0).await.unwrap_err();
    assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}");
}

/// Unexpected messages of an unknown source, at all endpoints, get their source when its address is
/// inserted; they match in arrival order.
pub(crate) async fn av_insert_assigns_source_across_endpoints(setup: Setup) {
    let config = EndpointConfig {
        auto_insert: false,
        ..EndpointConfig::default()
    };
    let fixture = SharedRxFixture::open(&setup, 3, config).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    for (number, endpoint) in [2, 0, 1, 0, 2].into_iter().enumerate() {
        a.ep.send(addrs[endpoint], numbered_message(number as u64, 20))
            .await
            .unwrap();
        fixture.wait_for_unexpected(number + 1).await;
    }
    assert_eq!(
        fixture.shared_rx.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
    let from_a = fixture.av.insert(a.ep.name()).unwrap();
    for number in 1..5 {
        let got = fixture.shared_rx.recv().from(from_a).await.unwrap();
        assert_eq!((message_number(&got), got.source()), (number, Ok(from_a)));
    }
    fixture.av.remove(from_a).unwrap();
    assert_eq!(
        fixture
            .shared_rx
            .recv()
            .from(from_a)
            .await
            .unwrap_err()
            .error,
        Error::StaleAddress(from_a)
    );
    a.ep.send(addrs[1], "unknown source again").await.unwrap();
    assert_eq!(
        fixture.shared_rx.recv().await.unwrap().source(),
        Err(Error::UnknownSource)
    );
}

/// Dropped receives requeue their messages in order, also in the middle of a message.
pub(crate) async fn dropped_receives_lose_no_message(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    drop(fixture.shared_rx.recv().start().unwrap());
    let receives: Vec<_> = (0..3)
        .map(|_| fixture.shared_rx.recv_into(vec![0; 100]).start().unwrap())
        .collect();
    for number in 0..6 {
        a.ep.send(addrs[number % 3], numbered_message(number as u64, 60))
            .await
            .unwrap();
        // Matched by a posted receive, or unexpected.
        while fixture.recv_counter.value() < number.min(2) as u64 + 1
            || fixture.shared_rx.stats().unexpected + 3 < number + 1
        {
            fixture.domain.progress();
            yield_times(1).await;
        }
    }
    drop(receives);
    for number in 0..6 {
        assert_eq!(
            message_number(&fixture.shared_rx.recv().await.unwrap()),
            number
        );
    }
    for (which, polls) in [0, 1, 2, 5, 20].into_iter().enumerate() {
        let sending =
            a.ep.send(addrs[which % 3], pattern(LONG_LEN, which))
                .start()
                .unwrap();
        let after =
            a.ep.send(addrs[which % 3], numbered_message(which as u64, 30))
                .start()
                .unwrap();
        let sending = tokio::spawn(async move { (sending.await.unwrap(), after.await.unwrap()) });
        let mut early = fixture
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
            None => fixture
                .shared_rx
                .recv()
                .await
                .unwrap()
                .into_buf()
                .into_vec(),
        };
        assert_bytes(&got, pattern(LONG_LEN, which));
        assert_eq!(
            message_number(&fixture.shared_rx.recv().await.unwrap()),
            which as u64
        );
        sending.await.unwrap();
    }
}

/// All endpoints share one budget: messages beyond it stay with their senders, and arrive when
/// receives are posted.
pub(crate) async fn unexpected_budget_is_shared_by_endpoints(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let mut sending = Vec::new();
    for which in 0..3u64 {
        let client = setup.open_endpoint().await;
        let addrs = client.add_peers(&fixture.endpoints).await;
        sending.push(tokio::spawn(async move {
            for number in 0..4 {
                let message = numbered_message(which << 8 | number, LONG_LEN);
                client
                    .ep
                    .send(addrs[which as usize], message)
                    .await
                    .unwrap();
            }
            client
        }));
    }
    crate::payload::wait_until_stable(|| fixture.shared_rx.stats().unexpected_bytes as u64).await;
    assert!(
        fixture.shared_rx.stats().unexpected_bytes <= 16 << 20,
        "{:?}",
        fixture.shared_rx.stats()
    );
    let mut next = [0; 3];
    for round in 0..12 {
        let number = if round % 2 == 0 {
            message_number(
                &fixture
                    .shared_rx
                    .recv_into(Vec::with_capacity(LONG_LEN))
                    .await
                    .unwrap(),
            )
        } else {
            message_number(&fixture.shared_rx.recv().await.unwrap())
        };
        let client = (number >> 8) as usize;
        assert_eq!(number & 0xff, next[client]);
        next[client] += 1;
    }
    for sending in sending {
        sending.await.unwrap();
    }
}

/// Posted receives report to the context's queue, and are refused when no entry is free.
pub(crate) async fn posts_report_to_the_shared_context_cq(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 4,
        selective_completion: true,
        ..EndpointConfig::default()
    };
    let mut fixture = SharedRxFixture::open(&setup, 2, config).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    let receives = (0..4).map(|context| {
        fixture
            .shared_rx
            .recv_into(vec![0; 16])
            .context(context)
            .completion()
    });
    let posted = fixture.shared_rx.post_all(receives).unwrap();
    assert_eq!(posted, 4);
    let refused = fixture
        .shared_rx
        .recv_into(vec![7; 3])
        .context(9)
        .post()
        .unwrap_err();
    assert_eq!(
        (refused.error, &refused.buf[..]),
        (
            Error::WouldBlock(Resource::CompletionEntry { capacity: 4 }),
            &[7; 3][..]
        )
    );
    for number in 0..4u64 {
        a.ep.send(addrs[number as usize % 2], numbered_message(number, 10))
            .await
            .unwrap();
        let entry = fixture.cq.next().await.unwrap();
        let endpoint = fixture.shared_rx.received_by(&entry.transfer);
        assert_eq!(
            (entry.context, endpoint),
            (number, Some(fixture.endpoints[number as usize % 2].id()))
        );
        assert_eq!(
            message_number(&entry.into_result::<Vec<u8>>().unwrap()),
            number
        );
    }
    // With selective completion, success is reported only on request, and failure always.
    fixture
        .shared_rx
        .recv_into(vec![0; 100])
        .context(10)
        .post()
        .unwrap();
    fixture
        .shared_rx
        .recv_into(vec![0; 5])
        .context(11)
        .post()
        .unwrap();
    for number in 0..2 {
        a.ep.send(addrs[0], numbered_message(number, 50))
            .await
            .unwrap();
    }
    let entry = fixture.cq.next().await.unwrap();
    assert_eq!(
        (entry.context, entry.error.as_deref()),
        (11, Some(&Error::Truncated { len: 5, lost: 45 }))
    );
    assert_eq!(
        (fixture.recv_counter.value(), fixture.recv_counter.errors()),
        (5, 1)
    );
    assert_eq!(
        (
            fixture.first_recv_counter.value(),
            fixture.first_recv_counter.errors()
        ),
        (3, 1),
        "the endpoint counts the message too"
    );
}

/// A multi-receive takes messages of all endpoints.
pub(crate) async fn multi_recv_takes_from_all_endpoints(setup: Setup) {
    let config = EndpointConfig {
        cq_capacity: 4,
        ..EndpointConfig::default()
    };
    let mut fixture = SharedRxFixture::open(&setup, 3, config).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    let mut messages = fixture
        .shared_rx
        .recv_multi(BytesMut::with_capacity(1000))
        .min_free(100)
        .start()
        .unwrap();
    let mut got = Vec::new();
    for number in 0..9usize {
        a.ep.send(addrs[number % 3], numbered_message(number as u64, 100))
            .await
            .unwrap();
        got.push(messages.next().await.unwrap().unwrap());
    }
    for (number, message) in got.iter().enumerate() {
        assert_eq!(message_number(message), number as u64);
        assert_eq!(
            fixture.shared_rx.received_by(&message.transfer),
            Some(fixture.endpoints[number % 3].id())
        );
    }
    a.ep.send(addrs[0], numbered_message(9, 50)).await.unwrap();
    assert_eq!(message_number(&messages.next().await.unwrap().unwrap()), 9);
    assert!(
        messages.next().await.is_none(),
        "fewer bytes are left than the minimum"
    );
    // With a queue that has fewer entries than messages: the messages beyond it stay with their
    // senders.
    let posted = fixture
        .shared_rx
        .recv_multi(BytesMut::with_capacity(2000))
        .context(5)
        .post()
        .unwrap();
    let sending = tokio::spawn(async move {
        for number in 0..12usize {
            a.ep.send(addrs[number % 3], numbered_message(number as u64, 100))
                .await
                .unwrap();
        }
        a
    });
    let (mut count, mut next) = (0, [0, 1, 2]);
    while count < 12 {
        let entry = fixture.cq.next().await.unwrap();
        assert_eq!((entry.context, entry.kind), (5, OpKind::Recv));
        let number = message_number(&entry.into_result::<Bytes>().unwrap());
        let endpoint = number as usize % 3;
        assert_eq!(number, next[endpoint], "in order at each endpoint");
        next[endpoint] += 3;
        count += 1;
    }
    sending.await.unwrap();
    posted.cancel();
    let release = fixture.cq.next().await.unwrap();
    assert_eq!(
        (release.kind, release.error.as_deref()),
        (OpKind::MultiRecvRelease, Some(&Error::Canceled))
    );
}

/// Probes find unexpected messages of any endpoint, and claims keep them.
pub(crate) async fn probes_and_claims_cover_all_endpoints(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    assert_eq!(fixture.shared_rx.probe().try_probe(), Ok(None));
    let (found, sent) = tokio::join!(
        fixture.shared_rx.probe().tag(7),
        a.ep.send(addrs[1], pattern(5000, 1)).tag(7)
    );
    sent.unwrap();
    let found = found.unwrap();
    assert_eq!(
        (found.len, fixture.shared_rx.received_by(&found)),
        (5000, Some(fixture.endpoints[1].id()))
    );
    let claimed = fixture.shared_rx.probe().tag(7).claim().await.unwrap();
    a.ep.send(addrs[0], pattern(30, 2)).tag(7).await.unwrap();
    fixture.wait_for_unexpected(1).await;
    let second = fixture
        .shared_rx
        .probe()
        .tag(7)
        .claim()
        .try_claim()
        .unwrap()
        .expect("it waits");
    assert!(
        fixture
            .shared_rx
            .probe()
            .tag(7)
            .try_probe()
            .unwrap()
            .is_none(),
        "both messages are claimed"
    );
    let late = fixture.shared_rx.recv().tag(7).start().unwrap();
    drop(second);
    assert_bytes(&late.await.unwrap(), pattern(30, 2));
    assert_bytes(&claimed.recv().await.unwrap(), pattern(5000, 1));
    a.ep.send(addrs[0], "unwanted").await.unwrap();
    fixture.shared_rx.probe().claim().await.unwrap().discard();
    assert_eq!(fixture.shared_rx.stats().unexpected, 0);
}

/// A loan is received in place, and returned, whichever endpoint it arrived at.
pub(crate) async fn loans_arrive_through_any_endpoint(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    for which in 0..20 {
        let len = [100, 5000, 1 << 20][which % 3];
        let mut loan = a.ep.domain().try_loan(len).unwrap();
        loan.copy_from_slice(pattern(len, which));
        let send = a.ep.send(addrs[which % 2], loan);
        if which % 4 == 3 {
            let copied = fixture.shared_rx.recv_into(Vec::with_capacity(len));
            let (lent, copied) = tokio::join!(send, copied);
            lent.unwrap();
            assert_bytes(&copied.unwrap(), pattern(len, which));
            continue;
        }
        let (lent, held) = tokio::join!(send, fixture.shared_rx.recv_loan());
        lent.unwrap();
        assert_bytes(&held.unwrap().to_vec(), pattern(len, which));
    }
}

/// Senders get the acknowledgement from the endpoint that they sent to, for receives posted before
/// or after.
pub(crate) async fn acks_reach_senders_through_any_endpoint(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let (addrs, b_addrs) = (
        a.add_peers(&fixture.endpoints).await,
        b.add_peers(&fixture.endpoints).await,
    );
    for (which, len) in [8, 60, 40_000, 1 << 20].into_iter().enumerate() {
        for (client, addr) in [(&a, addrs[which % 3]), (&b, b_addrs[(which + 1) % 3])] {
            let receive = fixture.shared_rx.recv().start().unwrap();
            let sent = client
                .ep
                .send(addr, pattern(len, which))
                .delivery_complete();
            let (got, sent) = tokio::join!(receive, sent.into_future());
            assert_bytes(&got.unwrap(), pattern(len, which));
            sent.unwrap();

            let delivered = client
                .ep
                .send(addr, pattern(len, which))
                .delivery_complete();
            let mut delivered = delivered.start().unwrap();
            let mut matched = client
                .ep
                .send(addr, pattern(len, which))
                .match_complete()
                .start()
                .unwrap();
            fixture.wait_for_unexpected(1).await;
            yield_times(5).await;
            assert!(
                poll_once(&mut delivered).await.is_pending(),
                "the message has not been received"
            );
            assert!(
                poll_once(&mut matched).await.is_pending(),
                "the message has not been received"
            );
            for sent in [delivered, matched] {
                let (got, sent) = tokio::join!(fixture.shared_rx.recv(), sent);
                assert_bytes(&got.unwrap(), pattern(len, which));
                sent.unwrap();
            }
        }
    }
}
