//! Sizes and numbers beyond the limits.

use fabric_rpc::native::{Client, Code, Metadata, Request, Server};

use crate::common::take;
use crate::run;
use crate::service::{ECHO, LEN, TestServer, WAIT, check_echo, spawn_calls};

const LIMIT: usize = 100_000;

fn len_request(len: usize) -> Request {
    Request::new(LEN, (len as u64).to_le_bytes().to_vec())
}

#[test]
fn server_refuses_bodies_beyond_its_limit() {
    run(async |address| {
        let server = TestServer::start_with(address, Server::builder().max_body_len(LIMIT)).await;
        let client = server.client().await;
        // Beyond the limit of the body, and beyond that of the endpoint.
        for len in [LIMIT + 1, LIMIT + 17_000, 40 * LIMIT] {
            let status = client
                .call(Request::new(ECHO, vec![0; len]))
                .await
                .unwrap_err();
            assert_eq!(status.code(), Code::TooLarge, "{status}");
            let status = client.call(len_request(len)).await.unwrap_err();
            assert_eq!(status.code(), Code::TooLarge, "{status}");
            check_echo(&client).await;
        }
        let reply = client
            .call(Request::new(ECHO, vec![0; LIMIT]))
            .await
            .unwrap();
        assert_eq!(reply.body.len(), LIMIT);
    });
}

#[test]
fn client_refuses_bodies_beyond_its_limit() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server
            .client_with(|builder| builder.max_body_len(LIMIT))
            .await;
        for len in [LIMIT + 1, LIMIT + 17_000, 40 * LIMIT] {
            let status = client
                .call(Request::new(ECHO, vec![0; len]))
                .await
                .unwrap_err();
            assert_eq!(status.code(), Code::TooLarge, "{status}");
            let status = client.call(len_request(len)).await.unwrap_err();
            assert_eq!(status.code(), Code::TooLarge, "{status}");
            check_echo(&client).await;
        }
        let reply = client.call(len_request(LIMIT)).await.unwrap();
        assert_eq!(reply.body.len(), LIMIT);
    });
}

#[test]
fn metadata_have_a_limit() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let room = (16 << 10) - 6 - 8;
        let request = Request::new(ECHO, "").metadata("", vec![7; room]);
        let reply = client.call(request).await.unwrap();
        assert_eq!(reply.metadata.get("").unwrap().len(), room);
        let request = Request::new(ECHO, "").metadata("", vec![7; room + 1]);
        let status = client.call(request).await.unwrap_err();
        assert_eq!(status.code(), Code::TooLarge);

        let lent = |len| {
            let client = client.clone();
            async move {
                let mut request = Request::new(ECHO, client.lend(10).await.unwrap());
                let mut metadata = Metadata::new();
                metadata.push("k", vec![7; len]);
                request.metadata = metadata;
                client.call(request).await
            }
        };
        let room = 1024 - 6 - 9;
        let reply = lent(room).await.unwrap();
        assert_eq!(
            (reply.metadata.get("k").unwrap().len(), reply.body.len()),
            (room, 10)
        );
        assert_eq!(lent(room + 1).await.unwrap_err().code(), Code::TooLarge);
        check_echo(&client).await;
    });
}

/// A handler that passes on the status of another call may have been started: no retry is safe.
#[test]
fn status_of_a_handler_is_not_safe_to_retry() {
    run(async |address| {
        let upstream = Server::builder().max_in_flight(0);
        let upstream = TestServer::start_with(address, upstream).await;
        let upstream = upstream.client().await;
        let server = Server::bind(address).await.unwrap();
        let client = Client::builder(server.name()).connect_lazy();
        let proxy = tower::service_fn(move |request| {
            let upstream = upstream.clone();
            async move { upstream.call(request).await }
        });
        let serving = tokio::spawn(server.serve(proxy));
        let status = client.call(Request::new(ECHO, "")).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(!status.is_retry_safe(), "{status}");
        serving.abort();
    });
}

#[test]
fn bytes_beyond_the_limit_of_all_clients_are_refused() {
    run(async |address| {
        let builder = Server::builder().max_bytes_in_flight(LIMIT);
        let server = TestServer::start_with(address, builder).await;
        let clients = [server.client().await, server.client().await];
        let call = |client: usize, len: usize| {
            let client = clients[client].clone();
            tokio::spawn(async move { client.call(Request::new(WAIT, vec![0; len])).await })
        };
        let accepted = call(0, LIMIT);
        take(&server.probe.waiting).await;
        let status = call(1, 1).await.unwrap().unwrap_err();
        assert_eq!(status.message(), "too many bytes of requests are in flight");
        server.probe.go_on.add_permits(1);
        accepted.await.unwrap().unwrap();
        check_echo(&clients[1]).await;
    });
}

#[test]
fn bytes_beyond_the_limit_of_a_client_are_refused() {
    run(async |address| {
        let builder = Server::builder().max_bytes_in_flight_per_client(LIMIT);
        let server = TestServer::start_with(address, builder).await;
        let clients = [server.client().await, server.client().await];
        let call = |client: usize, len: usize| {
            let client = clients[client].clone();
            tokio::spawn(async move { client.call(Request::new(WAIT, vec![0; len])).await })
        };
        // One body may be longer than the limit.
        for (first, second) in [(LIMIT - 10, 11), (2 * LIMIT, 1)] {
            let accepted = call(0, first);
            take(&server.probe.waiting).await;
            let status = call(0, second).await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(status.is_retry_safe());
            assert_eq!(
                status.message(),
                "too many bytes of requests of this client are in flight"
            );
            let other = call(1, LIMIT);
            take(&server.probe.waiting).await;
            server.probe.go_on.add_permits(2);
            for call in [accepted, other] {
                call.await.unwrap().unwrap();
            }
            check_echo(&clients[0]).await;
        }
    });
}

#[test]
fn requests_beyond_the_limit_of_a_client_are_refused() {
    run(async |address| {
        let builder = Server::builder()
            .max_in_flight_per_client(3)
            .max_in_flight(5);
        let server = TestServer::start_with(address, builder).await;
        let clients = [server.client().await, server.client().await];
        let call = |client: usize| {
            let client = clients[client].clone();
            tokio::spawn(async move { client.call(Request::new(WAIT, "")).await })
        };
        let mut accepted: Vec<_> = (0..3).map(|_| call(0)).collect();
        for _ in 0..3 {
            take(&server.probe.waiting).await;
        }
        let status = call(0).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.is_retry_safe());
        assert_eq!(
            status.message(),
            "too many requests of this client are in flight"
        );

        accepted.extend((0..2).map(|_| call(1)));
        for _ in 0..2 {
            take(&server.probe.waiting).await;
        }
        let status = call(1).await.unwrap().unwrap_err();
        assert_eq!(status.message(), "too many requests are in flight");

        server.probe.go_on.add_permits(5);
        for call in accepted {
            call.await.unwrap().unwrap();
        }
        for client in &clients {
            check_echo(client).await;
        }
    });
}

/// A client that takes its answers is refused, and not disconnected, however many calls it makes.
#[test]
fn client_with_many_refused_calls_stays_connected() {
    run(async |address| {
        const CALLS: usize = 5000;
        let server = TestServer::start(address).await;
        let client = server
            .client_with(|builder| builder.max_in_flight(CALLS))
            .await;
        let calls = spawn_calls(&client, WAIT, CALLS);
        take(&server.probe.waiting).await;
        server.probe.go_on.add_permits(CALLS);
        for call in calls {
            if let Err(status) = call.await.unwrap() {
                assert_eq!(status.code(), Code::ResourceExhausted);
            }
        }
        check_echo(&client).await;
    });
}
