//! Credits: the limit of calls in flight, and `poll_ready`.

use std::future::poll_fn;
use std::time::Duration;

use fabric_rpc::native::{Code, Request, Server};
use futures_util::FutureExt;
use tower::{Service, ServiceExt};

use crate::common::take;
use crate::run;
use crate::service::{ECHO, TestServer, WAIT, check_echo, spawn_calls};

#[test]
fn clone_of_a_ready_client_is_not_ready() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.client_with(|builder| builder.max_in_flight(1)).await;
        client.ready().await.unwrap();
        assert_eq!(client.available_credits(), 0);
        let mut clone = client.clone();
        assert!(poll_fn(|cx| clone.poll_ready(cx)).now_or_never().is_none());
        let refused = Service::call(&mut client.clone(), Request::new(ECHO, ""));
        assert_eq!(refused.await.unwrap_err().code(), Code::ResourceExhausted);

        Service::call(&mut client, Request::new(ECHO, ""))
            .await
            .unwrap();
        poll_fn(|cx| clone.poll_ready(cx)).await.unwrap();
        assert_eq!(client.available_credits(), 0);
        drop(clone);
        assert_eq!(client.available_credits(), 1);
        check_echo(&client).await;
    });
}

#[test]
fn calls_beyond_the_credits_wait() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client_with(|builder| builder.max_in_flight(2)).await;
        let calls = spawn_calls(&client, WAIT, 5);
        for _ in 0..2 {
            take(&server.probe.waiting).await;
        }
        let request = Request::new(ECHO, "").timeout(Duration::from_millis(20));
        let status = client.call(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(
            server.probe.waiting.available_permits(),
            0,
            "a third call was sent"
        );
        server.probe.go_on.add_permits(5);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(client.available_credits(), 2);
    });
}

/// A call of a client that is ready takes no second credit.
#[test]
fn call_uses_the_reserved_credit() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let mut client = server.client_with(|builder| builder.max_in_flight(1)).await;
        for _ in 0..3 {
            client.ready().await.unwrap();
            assert_eq!(client.available_credits(), 0);
            check_echo(&client).await;
            assert_eq!(client.available_credits(), 1);
        }
    });
}

/// More calls than the endpoint has transmit credits: those that wait for one send with it.
#[test]
fn calls_beyond_the_transmit_credits_are_sent_in_turn() {
    run(async |address| {
        const CALLS: usize = 3000;
        let builder = Server::builder().max_in_flight_per_client(CALLS);
        let server = TestServer::start_with(address, builder).await;
        let client = server
            .client_with(|builder| builder.max_in_flight(CALLS))
            .await;
        let calls = spawn_calls(&client, WAIT, CALLS);
        for _ in 0..CALLS {
            take(&server.probe.waiting).await;
        }
        server.probe.go_on.add_permits(CALLS);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(client.available_credits(), CALLS);
    });
}
