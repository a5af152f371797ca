//! Connected endpoints with a shared receive context.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::pin::pin;

use bytes::BytesMut;
use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{
    Class, ConnectedEndpoint, DownReason, EpType, Error, EventKind, OpKind, discover,
};
use futures_util::{FutureExt, StreamExt};

use crate::connected_pair::MsgDomainFixture;
use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, poll_once,
};
use crate::setup::Setup;

async fn send_to_peer(ep: &ConnectedEndpoint, bytes: impl fabric_async::buf::IoBuf) {
    ep.send(bytes)
        .await
        .map(drop)
        .map_err(|failed| failed.error)
        .unwrap();
}

/// Opens a domain with a shared receive context and `count` connections to it from another domain.
/// Returns both domains, the endpoints that share the context, and their peers.
async fn open_connections(
    setup: &Setup,
    count: usize,
) -> (
    MsgDomainFixture,
    MsgDomainFixture,
    Vec<ConnectedEndpoint>,
    Vec<ConnectedEndpoint>,
) {
    let (there, here) = (
        MsgDomainFixture::open_shared_rx(setup).await,
        MsgDomainFixture::open(setup).await,
    );
    let mut pep = there.listen(setup);
    let (mut endpoints, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (active, passive) = here.connect_to(&there, &mut pep).await;
        peers.push(active);
        endpoints.push(passive);
    }
    (there, here, endpoints, peers)
}

/// A server with many clients posts few receives for all of them. It replies over the connection of
/// the request.
pub(crate) async fn many_connections_share_few_posted_receives(setup: Setup) {
    const CLIENTS: usize = 40;
    const REQUESTS: u64 = 5;
    const RECEIVES: u64 = 8;
    let (mut there, here, endpoints, clients) = open_connections(&setup, CLIENTS).await;
    for context in 0..RECEIVES {
        there
            .shared_rx()
            .recv_into(Vec::with_capacity(40_000))
            .context(context)
            .post()
            .unwrap();
    }
    let client_tasks: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(which, client)| {
            tokio::spawn(async move {
                for request in 0..REQUESTS {
                    let number = (which as u64) << 8 | request;
                    let len = if number.is_multiple_of(7) { 40_000 } else { 20 };
                    send_to_peer(&client, numbered_message(number, len)).await;
                    assert_eq!(message_number(&client.recv().await.unwrap()), number);
                }
                client
            })
        })
        .collect();
    let which: HashMap<_, _> = endpoints
        .iter()
        .enumerate()
        .map(|(at, ep)| (ep.id(), at))
        .collect();
    let mut next = vec![0; CLIENTS];
    for _ in 0..CLIENTS as u64 * REQUESTS {
        let request = there.cq.next().await.unwrap();
        assert!(request.kind == OpKind::Recv && request.context < RECEIVES);
        let at = which[&there.shared_rx().received_by(&request.transfer).unwrap()];
        let context = request.context;
        let request = request.into_result::<Vec<u8>>().unwrap();
        let number = message_number(&request);
        assert_eq!(
            number,
            (at as u64) << 8 | next[at],
            "in order, at the endpoint of its connection"
        );
        next[at] += 1;
        assert_eq!(request.source(), Err(Error::UnknownSource));
        endpoints[at].send(&number.to_le_bytes()).inject().unwrap();
        there
            .shared_rx()
            .recv_into(request.into_buf())
            .context(context)
            .post()
            .unwrap();
    }
    for task in client_tasks {
        task.await.unwrap();
    }
    assert_eq!(
        there.shared_rx().stats().received.count,
        CLIENTS as u64 * REQUESTS
    );
    assert_eq!(endpoints[3].stats().received.count, REQUESTS);
    drop(here);
}

/// Receives match in posting order at connecting and at accepting endpoints.
pub(crate) async fn connecting_and_accepting_endpoints_share_receives_in_order(setup: Setup) {
    let shared = MsgDomainFixture::open_shared_rx(&setup).await;
    let (other, mut pep) = (MsgDomainFixture::open(&setup).await, shared.listen(&setup));
    let mut other_pep = other.listen(&setup);
    let (other_active, shared_passive) = other.connect_to(&shared, &mut pep).await;
    let (shared_active, other_passive) = shared.connect_to(&other, &mut other_pep).await;
    let receives: Vec<_> = (0..10)
        .map(|_| shared.shared_rx().recv().start().unwrap())
        .collect();
    for (number, mut receive) in receives.into_iter().enumerate() {
        assert!(
            poll_once(&mut receive).await.is_pending(),
            "receive {number} is pending"
        );
        let (from, to) = if number % 3 == 0 {
            (&other_active, &shared_passive)
        } else {
            (&other_passive, &shared_active)
        };
        // Both are awaited: under the policy spin a domain makes progress only while an operation
        // of the domain is awaited.
        let sent = from
            .send(numbered_message(number as u64, 50))
            .data(7)
            .delivery_complete();
        let (sent, got) = tokio::join!(sent.into_future(), receive);
        sent.unwrap();
        let got = got.unwrap();
        assert_eq!((message_number(&got), got.data()), (number as u64, Some(7)));
        assert_eq!(shared.shared_rx().received_by(&got.transfer), Some(to.id()));
        send_to_peer(to, pattern(30, number)).await;
        assert_bytes(&from.recv().await.unwrap(), pattern(30, number));
    }
    let refused = shared_passive.recv().await.unwrap_err().error;
    assert!(
        matches!(refused, Error::NotSupported(why) if why.contains("shared receive context")),
        "{refused}"
    );
    assert!(shared.shared_rx().address_vector().is_none());
}

pub(crate) async fn every_receive_kind_takes_from_all_connections(setup: Setup) {
    let (there, _here, endpoints, peers) = open_connections(&setup, 3).await;
    let shared = there.shared_rx();
    let mut messages = shared
        .recv_multi(BytesMut::with_capacity(1000))
        .min_free(100)
        .start()
        .unwrap();
    for number in 0..9usize {
        send_to_peer(&peers[number % 3], numbered_message(number as u64, 100)).await;
        let message = messages.next().await.unwrap().unwrap();
        assert_eq!(message_number(&message), number as u64);
        assert_eq!(
            shared.received_by(&message.transfer),
            Some(endpoints[number % 3].id())
        );
    }
    drop(messages);
    let (found, ()) = tokio::join!(shared.probe(), send_to_peer(&peers[1], pattern(5000, 1)));
    let found = found.unwrap();
    assert_eq!(
        (found.len, shared.received_by(&found)),
        (5000, Some(endpoints[1].id()))
    );
    let claimed = shared.probe().claim().await.unwrap();
    send_to_peer(&peers[2], pattern(60, 2)).await;
    assert_bytes(&shared.recv().await.unwrap(), pattern(60, 2));
    assert_bytes(&claimed.recv().await.unwrap(), pattern(5000, 1));
}

/// The end of a connection ends no receive, and messages that have arrived stay available.
pub(crate) async fn buffered_messages_survive_their_connection(setup: Setup) {
    let (mut there, _here, mut endpoints, mut peers) = open_connections(&setup, 3).await;
    let sender = peers.remove(0);
    send_to_peer(&sender, pattern(3000, 1)).await;
    send_to_peer(&sender, pattern(10, 2)).await;
    sender.close().unwrap();
    let down = EventKind::Shutdown {
        peer: endpoints[0].peer().clone(),
        reason: DownReason::Closed,
    };
    assert_eq!(there.next_other_event().await, down);
    let got = there.shared_rx().recv().await.unwrap();
    assert_bytes(&got, pattern(3000, 1));
    assert_eq!(
        there.shared_rx().received_by(&got.transfer),
        Some(endpoints[0].id())
    );
    assert!(
        endpoints[0]
            .send("x")
            .await
            .unwrap_err()
            .error
            .is_peer_unavailable()
    );
    // The local endpoint is closed as well, and another one is shut down.
    endpoints.remove(0).close().unwrap();
    let receive = there.shared_rx().recv().start().unwrap();
    assert_bytes(&receive.await.unwrap(), pattern(10, 2));
    let mut receive = there.shared_rx().recv().start().unwrap();
    endpoints[0].shutdown().unwrap();
    assert!(poll_once(&mut receive).await.is_pending());
    send_to_peer(&peers[1], "from the last peer").await;
    assert_eq!(&receive.await.unwrap()[..], b"from the last peer");
    let busy = there.shared_rx().clone().close().unwrap_err();
    assert_eq!(
        busy.error.to_string(),
        "cannot close (FI_EBUSY): still open: 2 endpoints"
    );
    endpoints.clear();
    there.shared_rx.take().unwrap().close().unwrap();
}

pub(crate) async fn requeued_message_keeps_its_endpoint(setup: Setup) {
    let (there, _here, endpoints, peers) = open_connections(&setup, 2).await;
    for round in 0..10u64 {
        let at = round as usize % 2;
        let dropped = there.shared_rx().recv().start().unwrap();
        let message = numbered_message(round, 40);
        let delivered = peers[at].send(message).delivery_complete();
        let mut delivered = pin!(delivered.into_future());
        while (&mut delivered).now_or_never().is_none() {
            there.domain.progress();
            tokio::task::yield_now().await;
        }
        drop(dropped);
        let got = there.shared_rx().recv().await.unwrap();
        assert_eq!(
            (
                message_number(&got),
                there.shared_rx().received_by(&got.transfer)
            ),
            (round, Some(endpoints[at].id()))
        );
    }
}

/// Messages beyond the budget stay with their senders, and arrive when receives are posted.
pub(crate) async fn unexpected_budget_is_shared_by_connections(setup: Setup) {
    let (there, _here, _ends, peers) = open_connections(&setup, 3).await;
    let sending: Vec<_> = peers
        .into_iter()
        .zip(0u64..)
        .map(|(other, which)| {
            tokio::spawn(async move {
                for number in 0..4 {
                    send_to_peer(&other, numbered_message(which << 8 | number, LONG_LEN)).await;
                }
                other
            })
        })
        .collect();
    crate::payload::wait_until_stable(|| there.shared_rx().stats().unexpected_bytes as u64).await;
    assert!(
        there.shared_rx().stats().unexpected_bytes <= 16 << 20,
        "{:?}",
        there.shared_rx().stats()
    );
    let mut next = [0; 3];
    for _ in 0..12 {
        let number = message_number(&there.shared_rx().recv().await.unwrap());
        let client = (number >> 8) as usize;
        assert_eq!(number & 0xff, next[client]);
        next[client] += 1;
    }
    for sending in sending {
        sending.await.unwrap();
    }
}

/// A receive that a closing endpoint had begun to fill has the whole message, or stays posted and
/// takes a message of another connection.
pub(crate) async fn endpoint_close_mid_message_fails_no_receive(setup: Setup) {
    let (there, here, mut endpoints, mut peers) = open_connections(&setup, 6).await;
    let last = peers.remove(5);
    for (which, (passes, other)) in [0, 1, 2, 3, 8].into_iter().zip(peers).enumerate() {
        let receive = there
            .shared_rx()
            .recv_into(Vec::with_capacity(LONG_LEN))
            .start()
            .unwrap();
        let sending = other.send(pattern(LONG_LEN, which)).start().unwrap();
        for _ in 0..passes {
            here.domain.progress();
            there.domain.progress();
        }
        endpoints.remove(0).close().unwrap();
        // The send succeeds if the peer had the whole message, and fails otherwise.
        let _ = sending.await;
        send_to_peer(&last, numbered_message(which as u64, 100)).await;
        match receive.await {
            Ok(got) if got.len() == LONG_LEN => {
                assert_bytes(&got, pattern(LONG_LEN, which));
                assert_eq!(
                    message_number(&there.shared_rx().recv().await.unwrap()),
                    which as u64
                );
            }
            // The transfer had not begun: the receive was left for the other connection.
            Ok(got) => assert_eq!(message_number(&got), which as u64),
            Err(failed) => panic!("{failed}"),
        }
    }
    assert_eq!(there.shared_rx().stats().unexpected, 0);
}

pub(crate) async fn invalid_bindings_are_refused(setup: Setup) {
    let fixture = MsgDomainFixture::open_shared_rx(&setup).await;
    let mut pep = fixture.listen(&setup);
    let (other, domain) = (MsgDomainFixture::open(&setup).await, &fixture.domain);
    assert!(fixture.info.domain.max_ep_srx_ctx > 1 && fixture.info.ep.rx_ctx_cnt == SHARED_CONTEXT);
    // An endpoint shares receives only if the hints ask for it, and then it must.
    let apart = domain
        .endpoint(&other.info)
        .unwrap()
        .bind_shared_rx(fixture.shared_rx());
    assert!(matches!(
        apart.map(drop).unwrap_err(),
        Error::Invalid { what: "info", .. }
    ));
    let apart = domain.shared_rx_context(&other.info).unwrap().open();
    assert!(matches!(
        apart.unwrap_err(),
        Error::Invalid { what: "info", .. }
    ));
    let unbound = Error::Unbound(Class::SharedReceive);
    let alone = domain.endpoint(&fixture.info).unwrap();
    assert_eq!(alone.connect(pep.name()).await.unwrap_err(), unbound);
    let initiating = other.connect(&pep);
    let answering = async {
        let alone = domain.endpoint(&fixture.info).unwrap();
        alone.accept(pep.accept().await.unwrap(), b"").unwrap_err()
    };
    let (refused, answered) = tokio::join!(initiating.into_future(), answering);
    assert_eq!(answered, unbound);
    assert!(matches!(refused.unwrap_err(), Error::RejectedByPeer { .. }));
    // Connected endpoints have no address vectors.
    let rdm_info = setup.hints().provider(setup.provider).ep_type(EpType::Rdm);
    let rdm_info = discover(&rdm_info.ep_rx_ctx_cnt(SHARED_CONTEXT))
        .unwrap()
        .swap_remove(0);
    let av = domain.address_vector().unwrap();
    let vector = domain
        .shared_rx_context(&fixture.info)
        .unwrap()
        .bind_av(&av)
        .map(drop);
    assert!(matches!(vector, Err(Error::NotSupported(_))), "{vector:?}");
    // Endpoints of types `FI_EP_RDM` and `FI_EP_MSG` cannot share one context.
    let rdm_context = domain
        .shared_rx_context(&rdm_info)
        .unwrap()
        .bind_av(&av)
        .unwrap()
        .open()
        .unwrap();
    for mixed in [
        domain
            .endpoint(&fixture.info)
            .unwrap()
            .bind_shared_rx(&rdm_context),
        domain
            .endpoint(&rdm_info)
            .unwrap()
            .bind_shared_rx(fixture.shared_rx()),
    ] {
        let error = mixed.map(drop).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Invalid {
                    what: "shared receive context",
                    ..
                }
            ),
            "{error}"
        );
    }
    let other_fixture = MsgDomainFixture::open_shared_rx(&setup).await;
    let foreign = domain
        .endpoint(&fixture.info)
        .unwrap()
        .bind_shared_rx(other_fixture.shared_rx());
    assert_eq!(
        foreign.map(drop),
        Err(Error::WrongParent {
            object: Class::SharedReceive,
            parent: Class::Domain
        })
    );
    // A closed context cannot be bound.
    let closed = domain
        .shared_rx_context(&fixture.info)
        .unwrap()
        .open()
        .unwrap();
    let late = domain.endpoint(&fixture.info).unwrap();
    closed.clone().close().unwrap();
    assert_eq!(
        late.bind_shared_rx(&closed).map(drop),
        Err(Error::Closed(Class::SharedReceive))
    );
}
