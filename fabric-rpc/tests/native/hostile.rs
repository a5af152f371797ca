//! Messages that are no calls, and peers that take no answers.

use fabric_async::{Endpoint, Error, Event, EventKind};
use fabric_rpc::native::{Client, Code, Request, Server};

use crate::cancellation::{REQUEST, RESPONSE, receive_raw};
use crate::run;
use crate::service::{ECHO, TestServer, WAIT, check_echo, take};

/// Tags that are not of this protocol, or whose flags do not fit together.
const BAD_TAGS: [u64; 8] = [
    0,
    7,
    4 << 60,
    15 << 60,
    0x18 << 56,
    0x14 << 56,
    0x13 << 56,
    u64::MAX,
];

/// Malformed metadata: a length that is not there, one that is too long, pairs that are not there.
fn bad_prefixes() -> Vec<Vec<u8>> {
    let prefix = |len: u32, content: &[u8]| [&len.to_le_bytes()[..], content].concat();
    vec![
        vec![],
        vec![1, 0],
        prefix(1, &[]),
        prefix(u32::MAX, &[7; 100]),
        prefix(6, &[0, 0, 0, 0, 1, 0]),
        prefix(
            14,
            &[0, 0, 0, 0, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255],
        ),
        prefix(7, &[1, 0, 0, 0, 0xff, 0, 0]),
        prefix(7, &[0, 0, 0, 0, 0, 0, 9]),
    ]
}

#[test]
fn server_survives_messages_that_are_no_calls() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let ep = Endpoint::bind(address).await.unwrap();
        let to_server = ep.add_peer(&server.name).await.unwrap();
        for tag in BAD_TAGS.into_iter().chain([RESPONSE | 1]) {
            for len in [0, 3, 2000] {
                ep.send(to_server, vec![0xff; len])
                    .tag(tag)
                    .data(u64::MAX)
                    .await
                    .unwrap();
                ep.send(to_server, vec![0xff; len]).tag(tag).await.unwrap();
            }
        }
        check_echo(&client).await;

        // Requests whose metadata are malformed are answered.
        for (id, prefix) in (1..).zip(bad_prefixes()) {
            let tag = REQUEST | 1 << 56 | id;
            ep.send(to_server, prefix)
                .tag(tag)
                .data(u64::from(ECHO) << 32)
                .await
                .unwrap();
            let answer = ep.recv().tag(RESPONSE | 1 << 56 | id).await.unwrap();
            assert_eq!(answer.transfer.data, Some(8 << 32), "malformed");
        }
        // So is a trailer that is not there.
        let tag = REQUEST | 2 << 56 | 99;
        ep.send(to_server, vec![0; 1000])
            .tag(tag)
            .data(0)
            .await
            .unwrap();
        let answer = ep.recv().tag(RESPONSE | 1 << 56 | 99).await.unwrap();
        assert_eq!(answer.transfer.data, Some(8 << 32));

        // An id that is under way is refused; the request that has it goes on.
        let wait = u64::from(WAIT) << 32;
        ep.send(to_server, "first")
            .tag(REQUEST | 5)
            .data(wait)
            .await
            .unwrap();
        take(&server.probe.waiting).await;
        ep.send(to_server, "second")
            .tag(REQUEST | 5)
            .data(wait)
            .await
            .unwrap();
        let answer = ep.recv().tag(RESPONSE | 1 << 56 | 5).await.unwrap();
        assert_eq!(answer.transfer.data, Some(8 << 32));
        server.probe.go_on.add_permits(1);
        assert_eq!(&ep.recv().tag(RESPONSE | 5).await.unwrap()[..], b"first");
        check_echo(&client).await;
    });
}

/// Sends messages with this tag until the server has disconnected the sender.
async fn send_until_disconnected(address: &str, server: &TestServer, tag: Option<u64>, len: usize) {
    let client = server.client().await;
    let ep = Endpoint::bind(address).await.unwrap();
    let mut events = ep.take_events().expect("the first call gets the queue");
    let to_server = ep.add_peer(&server.name).await.unwrap();
    for id in 0.. {
        let send = ep.send(to_server, vec![0; len]).data(u64::from(ECHO) << 32);
        let sent = match tag {
            Some(tag) => send.tag(tag | id).await,
            None => send.await,
        };
        if let Err(failed) = sent {
            assert!(
                matches!(failed.error, Error::PeerGone(_)),
                "{}",
                failed.error
            );
            break;
        }
        // The next send would connect again.
        let left = |event: Event| matches!(event.kind, EventKind::PeerDown { .. });
        if std::iter::from_fn(|| events.try_read()).any(left) {
            break;
        }
        if id % 100 == 0 {
            check_echo(&client).await;
        }
    }
    check_echo(&client).await;
}

/// The server receives only tagged messages, so untagged ones fill the share of their sender.
#[test]
fn server_disconnects_a_client_of_untagged_messages() {
    run(async |address| {
        let server = TestServer::start(address).await;
        send_until_disconnected(address, &server, None, 16 << 10).await;
    });
}

#[test]
fn server_disconnects_a_client_that_takes_no_answers() {
    run(async |address| {
        let builder = Server::builder().max_in_flight_per_client(8);
        let server = TestServer::start_with(address, builder).await;
        send_until_disconnected(address, &server, Some(REQUEST), 4000).await;
    });
}

/// Long answers that wait for their client count as requests under way.
#[test]
fn server_keeps_no_more_long_answers_than_its_limit() {
    run(async |address| {
        const LIMIT: u64 = 8;
        const REQUESTS: u64 = 100;
        let builder = Server::builder().max_in_flight_per_client(LIMIT as usize);
        let server = TestServer::start_with(address, builder).await;
        let client = server.client().await;
        let ep = Endpoint::bind(address).await.unwrap();
        let to_server = ep.add_peer(&server.name).await.unwrap();
        for id in 0..REQUESTS {
            let send = ep.send(to_server, vec![0; 1 << 20]).tag(REQUEST | id);
            send.data(u64::from(ECHO) << 32).await.unwrap();
        }
        check_echo(&client).await;
        let mut refused = 0;
        for _ in 0..REQUESTS {
            let answer = ep.recv().tag_ignoring(0, u64::MAX).await.unwrap();
            match answer.transfer.data {
                Some(0) => assert_eq!(answer.len(), 1 << 20),
                other => {
                    assert_eq!(other, Some(6 << 32), "resource exhausted");
                    refused += 1;
                }
            }
        }
        // What the connection has taken is not kept by the server.
        assert!(refused > 0, "the server has kept all answers");
        check_echo(&client).await;
    });
}

#[test]
fn client_survives_messages_that_answer_no_call() {
    run(async |address| {
        let ep = Endpoint::bind(address).await.unwrap();
        let mut requests = receive_raw(&ep);
        let client = Client::connect(ep.name()).await.unwrap();
        let caller = client.clone();
        let serving = tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let (client, id) = (request.client, request.id);
                let other_calls = [id + 1, id + (1 << 20), id + (7 << 20), (1 << 56) - 1];
                let unknown = other_calls.map(|id| RESPONSE | id);
                for tag in BAD_TAGS.into_iter().chain([REQUEST | id]).chain(unknown) {
                    ep.send(client, vec![0xff; 3000])
                        .tag(tag)
                        .data(1)
                        .await
                        .unwrap();
                }
                let answer = RESPONSE | id;
                match request.method {
                    // Malformed metadata.
                    2 => {
                        ep.send(client, vec![0xff; 30])
                            .tag(answer | 1 << 56)
                            .data(0)
                            .await
                            .unwrap();
                    }
                    // An unknown code.
                    3 => {
                        ep.send(client, "").tag(answer).data(77).await.unwrap();
                    }
                    // Two answers.
                    _ => {
                        ep.send(client, "echo").tag(answer).data(0).await.unwrap();
                        ep.send(client, "again").tag(answer).data(0).await.unwrap();
                    }
                }
            }
        });
        for _ in 0..3 {
            check_echo(&caller).await;
            for method in [2, 3] {
                let status = caller.call(Request::new(method, "")).await.unwrap_err();
                assert_eq!(status.code(), Code::Malformed);
            }
        }
        check_echo(&caller).await;
        assert_eq!(client.available_credits(), 256);
        serving.abort();
    });
}
