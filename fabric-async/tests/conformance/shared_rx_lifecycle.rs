//! Shared receive contexts: refused calls and bindings, and the order of closing.

use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{Class, CounterBind, CqBind, Error, Hints, SharedRxContext, discover};

use crate::endpoint_fixture::EndpointConfig;
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, yield_times,
};
use crate::setup::Setup;
use crate::shared_rx_fixture::SharedRxFixture;

/// Receives are posted to the context; its endpoints refuse them, and lose no message.
pub(crate) async fn endpoints_of_shared_context_refuse_receives(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let to = a.add_peers(&fixture.endpoints).await[0];
    let ep = &fixture.endpoints[0];
    a.ep.send(to, "for the context").await.unwrap();
    let refused = ep.recv_into(vec![1; 3]).start().unwrap_err();
    assert!(
        matches!(refused.error, Error::NotSupported(why) if why.contains("shared receive context"))
    );
    assert_eq!((refused.error.errno(), refused.buf), (95, vec![1; 3]));
    assert!(matches!(
        ep.recv().await.unwrap_err().error,
        Error::NotSupported(_)
    ));
    assert!(matches!(
        ep.recv().post().unwrap_err().error,
        Error::NotSupported(_)
    ));
    assert!(matches!(
        ep.post_all([ep.recv()]).unwrap_err().error,
        Error::NotSupported(_)
    ));
    assert!(matches!(
        ep.probe().try_probe(),
        Err(Error::NotSupported(_))
    ));
    assert!(matches!(
        ep.probe().claim().await.map(drop),
        Err(Error::NotSupported(_))
    ));
    let buf = bytes::BytesMut::with_capacity(100);
    assert!(matches!(
        ep.recv_multi(buf).start().map(drop).unwrap_err().error,
        Error::NotSupported(_)
    ));
    assert_eq!(
        &fixture.shared_rx.recv().await.unwrap()[..],
        b"for the context"
    );
    // Sends use the endpoint's own transmit context.
    let back = fixture.endpoints[1].add_peer(a.ep.name()).await.unwrap();
    fixture.endpoints[1]
        .send(back, "by the second endpoint")
        .await
        .unwrap();
    assert_eq!(&a.ep.recv().await.unwrap()[..], b"by the second endpoint");
}

pub(crate) async fn invalid_bindings_are_refused(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 1, EndpointConfig::default()).await;
    let (domain, info, other) = (&fixture.domain, &fixture.info, setup.open_endpoint().await);
    assert!(info.domain.max_ep_srx_ctx > 1 && info.ep.rx_ctx_cnt == SHARED_CONTEXT);
    // An endpoint shares receives only if the hints ask for it, and then it must.
    let own = setup.info().await;
    let refused = domain
        .shared_rx_context(&own)
        .unwrap()
        .bind_av(&fixture.av)
        .unwrap()
        .open();
    assert!(matches!(
        refused.unwrap_err(),
        Error::Invalid { what: "info", .. }
    ));
    let refused = domain
        .endpoint(&own)
        .unwrap()
        .bind_shared_rx(&fixture.shared_rx);
    assert!(matches!(
        refused.map(drop).unwrap_err(),
        Error::Invalid { what: "info", .. }
    ));
    let without_context = domain
        .endpoint(info)
        .unwrap()
        .bind_av(&fixture.av)
        .unwrap()
        .enable();
    assert_eq!(
        without_context.unwrap_err(),
        Error::Unbound(Class::SharedReceive)
    );
    let hints = Hints::new()
        .provider(setup.provider)
        .ep_tx_ctx_cnt(SHARED_CONTEXT);
    assert!(
        matches!(discover(&hints), Err(Error::NoMatch(_))),
        "sends are not shared"
    );
    // One binding of each kind, all of one domain, with one address vector.
    assert_eq!(
        domain.shared_rx_context(info).unwrap().open().unwrap_err(),
        Error::Unbound(Class::AddressVector)
    );
    let builder = || domain.shared_rx_context(info).unwrap();
    for directions in [
        CqBind::TRANSMIT,
        CqBind::TRANSMIT | CqBind::RECV,
        CqBind::SELECTIVE_COMPLETION,
    ] {
        assert!(matches!(
            builder().bind_cq(&fixture.cq, directions).map(drop),
            Err(Error::BadFlags { .. })
        ));
    }
    for what in [
        CounterBind::SEND,
        CounterBind::RECV | CounterBind::READ,
        CounterBind::empty(),
    ] {
        assert!(matches!(
            builder()
                .bind_counter(&fixture.recv_counter, what)
                .map(drop),
            Err(Error::BadFlags { .. })
        ));
    }
    let twice = builder().bind_av(&fixture.av).unwrap().bind_av(&fixture.av);
    assert!(matches!(
        twice.map(drop),
        Err(Error::Invalid {
            what: "address vector",
            ..
        })
    ));
    let foreign = builder().bind_av(&other.av);
    assert_eq!(
        foreign.map(drop),
        Err(Error::WrongParent {
            object: Class::AddressVector,
            parent: Class::Domain
        })
    );
    let mut large = info.clone();
    large.rx.size = 0;
    let none = domain
        .shared_rx_context(&large)
        .unwrap()
        .bind_av(&fixture.av)
        .unwrap()
        .open();
    assert!(matches!(
        none.unwrap_err(),
        Error::Invalid {
            what: "receive size",
            ..
        }
    ));
    let av = domain.address_vector().unwrap();
    let other_av = domain
        .endpoint(info)
        .unwrap()
        .bind_av(&av)
        .unwrap()
        .bind_shared_rx(&fixture.shared_rx)
        .unwrap();
    assert!(matches!(
        other_av.enable().unwrap_err(),
        Error::Invalid {
            what: "address vector",
            ..
        }
    ));
    let twice = domain
        .endpoint(info)
        .unwrap()
        .bind_shared_rx(&fixture.shared_rx)
        .unwrap()
        .bind_shared_rx(&fixture.shared_rx);
    assert!(matches!(
        twice.map(drop),
        Err(Error::Invalid {
            what: "shared receive context",
            ..
        })
    ));
    let other_fixture = SharedRxFixture::open(&setup, 0, EndpointConfig::default()).await;
    let foreign = domain
        .endpoint(info)
        .unwrap()
        .bind_shared_rx(&other_fixture.shared_rx);
    assert_eq!(
        foreign.map(drop),
        Err(Error::WrongParent {
            object: Class::SharedReceive,
            parent: Class::Domain
        })
    );
    // Posts need a queue, and futures do not.
    let without_cq = builder().bind_av(&fixture.av).unwrap().open().unwrap();
    assert_eq!(
        without_cq.recv().post().unwrap_err().error,
        Error::Unbound(Class::CompletionQueue)
    );
    drop(without_cq.recv().start().unwrap());
}

/// Messages that have arrived stay available after their endpoint has closed; the context cannot be
/// closed before the last endpoint.
pub(crate) async fn shared_context_outlives_its_endpoints(setup: Setup) {
    let mut fixture = SharedRxFixture::open(&setup, 3, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    a.ep.send(addrs[0], numbered_message(0, 3000))
        .tag(1)
        .await
        .unwrap();
    // When this message has begun to arrive, the one before is whole, and survives the close.
    let marker = numbered_message(9, 20);
    a.ep.send(addrs[0], marker).tag(9).await.unwrap();
    fixture.wait_for_unexpected(2).await;
    let receives: Vec<_> = (0..3)
        .map(|_| fixture.shared_rx.recv().start().unwrap())
        .collect();
    let first = fixture.endpoints.remove(0);
    let closed_id = first.id();
    first.close().unwrap();
    let got = fixture.shared_rx.recv().tag(1).await.unwrap();
    assert_eq!(
        (
            message_number(&got),
            fixture.shared_rx.received_by(&got.transfer)
        ),
        (0, None)
    );
    let from_a = got.source().unwrap();
    assert!(fixture.endpoints.iter().all(|ep| ep.id() != closed_id));
    for (number, receive) in (1..).zip(receives) {
        a.ep.send(addrs[1 + number as usize % 2], numbered_message(number, 20))
            .await
            .unwrap();
        let got = receive.await.unwrap();
        assert_eq!((message_number(&got), got.source()), (number, Ok(from_a)));
    }
    let refused = fixture.shared_rx.clone().close().unwrap_err();
    assert_eq!(
        refused.error.to_string(),
        "cannot close (FI_EBUSY): still open: 2 endpoints"
    );
    assert_eq!(fixture.domain.children().of(Class::SharedReceive), 1);
    fixture.endpoints.clear();
    let (future, queued) = (
        fixture.shared_rx.recv().start().unwrap(),
        fixture.shared_rx.recv().tag(3),
    );
    queued.context(5).post().unwrap();
    let multi_recv = fixture
        .shared_rx
        .recv_multi(bytes::BytesMut::with_capacity(100))
        .context(6)
        .post()
        .unwrap();
    let shared_rx = fixture.shared_rx.clone();
    let probe = tokio::spawn(async move { shared_rx.probe().tag(4).await });
    yield_times(3).await;
    fixture.shared_rx.clone().close().unwrap();
    drop(multi_recv);
    assert_eq!(future.await.unwrap_err().error, Error::Canceled);
    assert!(matches!(
        probe.await.unwrap().unwrap_err(),
        Error::Canceled | Error::Closed(Class::SharedReceive)
    ));
    let mut ended = Vec::new();
    while ended.len() < 2 {
        fixture.cq.read_batch(&mut ended, 2).await;
    }
    ended.sort_by_key(|entry| entry.context);
    let ended: Vec<_> = ended
        .into_iter()
        .map(|entry| (entry.context, entry.error.map(|error| *error)))
        .collect();
    assert_eq!(
        ended,
        [(5, Some(Error::Canceled)), (6, Some(Error::Canceled))]
    );
    assert_eq!(
        fixture.shared_rx.recv().await.unwrap_err().error,
        Error::Closed(Class::SharedReceive)
    );
    assert_eq!(fixture.domain.children().of(Class::SharedReceive), 0);
    let late = fixture
        .domain
        .endpoint(&fixture.info)
        .unwrap()
        .bind_shared_rx(&fixture.shared_rx);
    assert_eq!(late.map(drop), Err(Error::Closed(Class::SharedReceive)));
}

/// An endpoint closes in the middle of a message: the receive that had matched it has the whole
/// message, or stays posted and takes a message of another endpoint.
pub(crate) async fn endpoint_close_mid_message_fails_no_receive(setup: Setup) {
    let mut fixture = SharedRxFixture::open(&setup, 6, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    let last = addrs[5];
    for (which, passes) in [0, 1, 2, 3, 8].into_iter().enumerate() {
        let receive = fixture
            .shared_rx
            .recv_into(Vec::with_capacity(LONG_LEN))
            .start()
            .unwrap();
        let sending =
            a.ep.send(addrs[which], pattern(LONG_LEN, which))
                .start()
                .unwrap();
        for _ in 0..passes {
            a.domain.progress();
            fixture.domain.progress();
        }
        fixture.endpoints.remove(0).close().unwrap();
        // The send succeeds if the peer had the whole message, and fails otherwise.
        let _ = sending.await;
        a.ep.send(last, numbered_message(which as u64, 100))
            .await
            .unwrap();
        match receive.await {
            Ok(got) if got.len() == LONG_LEN => {
                assert_bytes(&got, pattern(LONG_LEN, which));
                assert_eq!(
                    message_number(&fixture.shared_rx.recv().await.unwrap()),
                    which as u64
                );
            }
            // The message was not complete: the receive was left for the other endpoint.
            Ok(got) => assert_eq!(message_number(&got), which as u64),
            Err(failed) => panic!("{failed}"),
        }
    }
    assert_eq!(fixture.shared_rx.stats().unexpected, 0);
}

/// A claimed message and a requeued one know their source after the endpoint has closed.
pub(crate) async fn message_sources_survive_endpoint_close(setup: Setup) {
    let mut fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let from_a = fixture.av.insert(a.ep.name()).unwrap();
    let addrs = a.add_peers(&fixture.endpoints).await;
    let receive = fixture.shared_rx.recv().start().unwrap();
    for number in 0..3 {
        a.ep.send(addrs[0], numbered_message(number, 200))
            .await
            .unwrap();
    }
    // Messages of one sender arrive in order: all of the second has arrived when the third begins.
    fixture.wait_for_unexpected(2).await;
    let claimed = fixture
        .shared_rx
        .probe()
        .claim()
        .try_claim()
        .unwrap()
        .expect("it waits");
    fixture.endpoints.remove(0).close().unwrap();
    drop(receive);
    drop(claimed);
    for number in 0..2 {
        let got = fixture.shared_rx.recv().from(from_a).await.unwrap();
        assert_eq!((message_number(&got), got.source()), (number, Ok(from_a)));
    }
}

/// The handle of an auto-inserted peer stays valid until its last message is received, whichever
/// endpoint it arrived at.
pub(crate) async fn auto_inserted_peer_is_released_after_last_message(setup: Setup) {
    let fixture = SharedRxFixture::open(&setup, 2, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let addrs = a.add_peers(&fixture.endpoints).await;
    for (number, addr) in addrs.iter().enumerate() {
        a.ep.send(*addr, numbered_message(number as u64, 20))
            .await
            .unwrap();
    }
    fixture.wait_for_unexpected(2).await;
    let auto_addr = fixture
        .shared_rx
        .probe()
        .try_probe()
        .unwrap()
        .expect("it waits")
        .source
        .unwrap();
    drop(a);
    for left in (0..2).rev() {
        let got = fixture.shared_rx.recv().await.unwrap();
        assert_eq!(got.source(), Ok(auto_addr));
        assert!(
            left == 0 || fixture.av.lookup(auto_addr).is_ok(),
            "a message of the peer is unexpected"
        );
    }
    while fixture.av.lookup(auto_addr).is_ok() {
        fixture.domain.progress();
        yield_times(1).await;
    }
}

/// A result of a closed context that is dropped goes to no other context, also if an endpoint that
/// was opened since has the closed context's index.
pub(crate) async fn results_of_closed_context_reach_no_other_context(setup: Setup) {
    let mut fixture = SharedRxFixture::open(&setup, 1, EndpointConfig::default()).await;
    let a = setup.open_endpoint().await;
    let open_context = |fixture: &SharedRxFixture| {
        let context = fixture.domain.shared_rx_context(&fixture.info).unwrap();
        context.bind_av(&fixture.av).unwrap().open().unwrap()
    };
    let open_sharer = |fixture: &SharedRxFixture, context: &SharedRxContext| {
        let ep = fixture.domain.endpoint(&fixture.info).unwrap();
        let ep = ep.bind_av(&fixture.av).unwrap();
        ep.bind_shared_rx(context).unwrap().enable().unwrap()
    };
    let closing = open_context(&fixture);
    let sharer = open_sharer(&fixture, &closing);
    let to_sharer = a.ep.add_peer(sharer.name()).await.unwrap();
    let receives: Vec<_> = (0..2).map(|_| closing.recv().start().unwrap()).collect();
    for message in ["first", "second", "third"] {
        a.ep.send(to_sharer, message).await.unwrap();
    }
    let claimed = closing.probe().claim().await.unwrap();
    // The two receives have ended, and their results are not taken.
    sharer.close().unwrap();
    closing.close().unwrap();
    for _ in 0..2 {
        fixture
            .endpoints
            .push(open_sharer(&fixture, &fixture.shared_rx));
    }
    drop(receives);
    drop(claimed);
    for _ in 0..10 {
        fixture.domain.progress();
        yield_times(1).await;
    }
    assert_eq!(fixture.shared_rx.stats().unexpected, 0);
    let to = a.add_peers(&fixture.endpoints).await;
    for (number, to) in to.into_iter().enumerate() {
        a.ep.send(to, numbered_message(number as u64, 40))
            .await
            .unwrap();
        let got = fixture.shared_rx.recv().await.unwrap();
        assert_eq!(message_number(&got), number as u64);
    }
}
