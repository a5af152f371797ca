//! Endpoints that send to themselves and to other endpoints of their domain.

use fabric_async::{CqBind, Progress};
use futures_util::StreamExt;

use crate::payload::{
    LONG_LEN, assert_bytes, message_number, numbered_message, pattern, yield_times,
};
use crate::setup::Setup;

pub(crate) async fn endpoint_sends_messages_to_itself(setup: Setup) {
    let a = setup.open_endpoint().await;
    let me = a.add_peer(&a).await;
    for len in [0, 8, 5000, 100_000] {
        let (sent, got) = tokio::join!(
            a.ep.send(me, pattern(len, 1)).tag(1).data(2),
            a.ep.recv().tag(1)
        );
        sent.unwrap();
        let got = got.unwrap();
        assert_bytes(&got, pattern(len, 1));
        assert_eq!((got.source(), got.data()), (Ok(me), Some(2)));
        let early = a.ep.recv().from(me).start().unwrap();
        let (sent, got) = tokio::join!(a.ep.send(me, pattern(len, 2)), early);
        sent.unwrap();
        assert_bytes(&got.unwrap(), pattern(len, 2));
    }
}

pub(crate) async fn endpoint_sends_long_messages_to_itself(setup: Setup) {
    let a = setup.open_endpoint().await;
    let me = a.add_peer(&a).await;
    for which in 0..4 {
        let (pooled, own) = (a.ep.recv(), a.ep.recv_into(Vec::with_capacity(LONG_LEN)));
        let (first_sent, second_sent, first_got, second_got) = tokio::join!(
            a.ep.send(me, pattern(LONG_LEN, which)),
            a.ep.send(me, pattern(LONG_LEN, which + 10)),
            pooled,
            own
        );
        first_sent.unwrap();
        second_sent.unwrap();
        assert_bytes(&first_got.unwrap(), pattern(LONG_LEN, which));
        assert_bytes(&second_got.unwrap(), pattern(LONG_LEN, which + 10));
    }
}

pub(crate) async fn endpoints_of_one_domain_exchange_messages(setup: Setup) {
    let mut a = setup.open_endpoint().await;
    let second = a.domain.endpoint(&a.info).unwrap().bind_av(&a.av).unwrap();
    let second = second
        .bind_cq(&a.cq, CqBind::RECV)
        .unwrap()
        .enable()
        .unwrap();
    let (to_second, to_first) = (
        a.ep.add_peer(second.name()).await.unwrap(),
        second.add_peer(a.ep.name()).await.unwrap(),
    );
    for which in 0..200 {
        let len = if which % 20 == 0 { 100_000 } else { which };
        let (there, got) = tokio::join!(a.ep.send(to_second, pattern(len, which)), second.recv());
        there.unwrap();
        let got = got.unwrap();
        assert_bytes(&got, pattern(len, which));
        assert_eq!(got.source(), Ok(to_first), "one address vector, one handle");
        let (back, got) = tokio::join!(second.send(to_first, got.into_buf()), a.ep.recv());
        back.unwrap();
        assert_bytes(&got.unwrap(), pattern(len, which));
    }
    // Both endpoints report to one completion queue.
    second.recv_into(vec![0; 8]).context(20).post().unwrap();
    a.ep.recv_into(vec![0; 8]).context(10).post().unwrap();
    second.send(to_first, "to a").await.unwrap();
    a.ep.send(to_second, "to b").await.unwrap();
    let mut got = Vec::new();
    while got.len() < 2 {
        let completion = a.cq.next().await.unwrap();
        got.push((completion.context, completion.bytes().to_vec()));
    }
    got.sort();
    assert_eq!(got, [(10, b"to a".to_vec()), (20, b"to b".to_vec())]);
}

pub(crate) async fn messages_circulate_among_endpoints_of_one_domain(setup: Setup) {
    const ENDPOINTS: usize = 6;
    const ROUNDS: u64 = 50;
    let fixture = setup.open_endpoint().await;
    let mut endpoints = Vec::new();
    for _ in 0..ENDPOINTS {
        let ep = fixture
            .domain
            .endpoint(&fixture.info)
            .unwrap()
            .bind_av(&fixture.av)
            .unwrap();
        endpoints.push(ep.enable().unwrap());
    }
    let mut tasks = Vec::new();
    for (at, ep) in endpoints.iter().enumerate() {
        let (ep, next) = (
            ep.clone(),
            ep.add_peer(endpoints[(at + 1) % ENDPOINTS].name())
                .await
                .unwrap(),
        );
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                if at == 0 {
                    ep.send(
                        next,
                        numbered_message(round, 10 + (round % 3) as usize * 9000),
                    )
                    .await
                    .unwrap();
                    assert_eq!(message_number(&ep.recv().await.unwrap()), round);
                } else {
                    let got = ep.recv().await.unwrap();
                    ep.send(next, got.into_buf()).await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// With more endpoints than every pass polls, those without traffic become idle. Posting a receive
/// or a message from a peer makes an endpoint active again, also if the endpoint holds a message
/// back because its budget for unexpected messages is used up.
pub(crate) async fn idle_endpoints_receive_held_and_new_messages(setup: Setup) {
    const ENDPOINTS: usize = 12;
    const IDLE_PASSES: usize = 2500;
    let (a, b) = (setup.open_endpoint().await, setup.open_endpoint().await);
    let mut endpoints = Vec::new();
    for _ in 0..ENDPOINTS {
        let ep = a.domain.endpoint(&a.info).unwrap().bind_av(&a.av).unwrap();
        let ep = ep.bind_cq(&a.cq, CqBind::RECV).unwrap().enable().unwrap();
        let to_ep = b.ep.add_peer(ep.name()).await.unwrap();
        endpoints.push((ep, to_ep));
    }
    let make_passes = async || {
        for pass in 0..IDLE_PASSES {
            a.domain.progress();
            b.domain.progress();
            if pass % 500 == 0 {
                yield_times(1).await;
            }
        }
    };
    // More than the budget: some of the messages are held.
    let held = 20;
    let (holding, to_holding) = &endpoints[0];
    let sends: Vec<_> = (0..held)
        .map(|which| {
            b.ep.send(*to_holding, pattern(LONG_LEN, which))
                .start()
                .unwrap()
        })
        .collect();
    for round in 0..3 {
        make_passes().await;
        for (which, (ep, to_ep)) in endpoints.iter().enumerate().skip(1) {
            let posted = (which % 2 == 0).then(|| ep.recv().start().unwrap());
            drop(ep.recv().start().unwrap());
            if round == 1 && which % 3 == 1 {
                make_passes().await;
            }
            b.ep.send(*to_ep, numbered_message(which as u64, 40))
                .await
                .unwrap();
            let got = match posted {
                Some(posted) => posted.await,
                None => ep.recv().await,
            };
            assert_eq!(message_number(&got.unwrap()), which as u64);
        }
    }
    make_passes().await;
    let receives: Vec<_> = (0..held)
        .map(|_| {
            holding
                .recv_into(Vec::with_capacity(LONG_LEN))
                .start()
                .unwrap()
        })
        .collect();
    // With automatic progress the posts alone continue the messages that are held.
    if setup.progress == Progress::Auto {
        for send in sends {
            send.await.unwrap();
        }
    }
    for (which, receive) in receives.into_iter().enumerate() {
        assert_bytes(&receive.await.unwrap(), pattern(LONG_LEN, which));
    }
}
