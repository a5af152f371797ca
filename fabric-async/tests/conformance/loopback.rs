//! Endpoints that send to themselves and to other endpoints of their domain.

use fabric_async::CqBind;
use futures_util::StreamExt;

use crate::payload::{LONG_LEN, assert_bytes, message_number, numbered_message, pattern};
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
