//! Deadlines, dropped calls, clients that leave, late answers.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use fabric_async::{Endpoint, FiAddr};
use fabric_rpc::native::{Client, Code, Request};
use futures_util::FutureExt;
use tokio::sync::mpsc;

use crate::common::take;
use crate::run;
use crate::service::{ECHO, TestServer, WAIT, check_echo, spawn_calls};

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(50);

#[test]
fn expired_call_drops_the_handler() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client().await;
        let limit = Duration::from_millis(100);
        let status = client
            .call(Request::new(WAIT, "").timeout(limit))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        take(&server.probe.waiting).await;
        take(&server.probe.dropped).await;
        check_echo(&client).await;
    });
}

#[test]
fn server_limits_the_time_of_handlers() {
    run(async |address| {
        let builder = fabric_rpc::native::Server::builder();
        let server = TestServer::start_with(address, builder.max_handler_time(Some(SHORT))).await;
        let client = server.client().await;
        let status = client.call(Request::new(WAIT, "")).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        take(&server.probe.dropped).await;
    });
}

#[test]
fn dropped_call_drops_the_handler_and_returns_its_credit() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let client = server.client_with(|builder| builder.max_in_flight(3)).await;
        for round in 0..20 {
            tokio::select! {
                biased;
                result = client.call(Request::new(WAIT, "")) => panic!("{result:?}"),
                () = take(&server.probe.waiting) => {}
            }
            take(&server.probe.dropped).await;
            if round % 4 == 0 {
                check_echo(&client).await;
            }
        }
        while client.available_credits() < 3 {
            check_echo(&client).await;
        }
    });
}

#[test]
fn client_that_leaves_drops_its_handlers() {
    run(async |address| {
        let server = TestServer::start(address).await;
        let other = server.client().await;
        for _ in 0..3 {
            let client = server.client().await;
            let calls = spawn_calls(&client, WAIT, 4);
            for _ in 0..4 {
                take(&server.probe.waiting).await;
            }
            drop(client);
            calls.iter().for_each(|call| call.abort());
            for _ in 0..4 {
                take(&server.probe.dropped).await;
            }
            check_echo(&other).await;
        }
    });
}

/// A request as a server without this crate's server sees it.
pub(crate) struct RawRequest {
    pub(crate) client: FiAddr,
    /// The id of the call: the tag without kind and flags.
    pub(crate) id: u64,
    pub(crate) method: u32,
}

pub(crate) const REQUEST: u64 = 1 << 60;
pub(crate) const RESPONSE: u64 = 2 << 60;
pub(crate) const CANCEL: u64 = 3 << 60;

/// Receives requests, and nothing else.
pub(crate) fn receive_raw(ep: &Endpoint) -> mpsc::UnboundedReceiver<RawRequest> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let ep = ep.clone();
    tokio::spawn(async move {
        while let Ok(message) = ep.recv().tag_ignoring(0, u64::MAX).await {
            let tag = message.tag().expect("a tagged message");
            let request = RawRequest {
                client: message.source().expect("a known client"),
                id: tag & ((1 << 56) - 1),
                method: (message.transfer.data.expect("completion data") >> 32) as u32,
            };
            if tag >> 60 == 1 && sender.send(request).is_err() {
                return;
            }
        }
    });
    receiver
}

/// 200 answers of 1 MiB are many times the budget of unexpected messages.
#[test]
fn late_answers_are_discarded() {
    run(async |address| {
        const CALLS: usize = 200;
        let ep = Endpoint::bind(address).await.unwrap();
        let mut requests = receive_raw(&ep);
        let builder = Client::builder(ep.name()).max_in_flight(CALLS + 1);
        let client = builder.connect().await.unwrap();
        let mut late = Vec::new();
        for _ in 0..CALLS {
            let call = client.call(Request::new(WAIT, "").timeout(SHORT)).await;
            assert_eq!(call.unwrap_err().code(), Code::DeadlineExceeded);
            late.push(requests.recv().await.expect("a request"));
        }
        assert_eq!(client.available_credits(), 1);
        let serving = tokio::spawn(async move {
            let megabyte = Bytes::from(vec![7; 1 << 20]);
            for RawRequest { client, id, .. } in late {
                let answer = ep.send(client, megabyte.clone()).tag(RESPONSE | id).data(0);
                answer.await.unwrap();
            }
            while let Some(RawRequest { client, id, method }) = requests.recv().await {
                assert_eq!(method, ECHO);
                let answer = ep.send(client, "echo").tag(RESPONSE | id).data(0);
                answer.await.unwrap();
            }
        });
        for _ in 0..3 {
            check_echo(&client).await;
        }
        assert_eq!(client.available_credits(), CALLS + 1);
        let stats = client.endpoint_stats().expect("a connection");
        assert_eq!(stats.received.count as usize, CALLS + 3);
        assert_eq!((stats.unexpected, stats.unexpected_bytes), (0, 0));
        assert_eq!(stats.held_connections, 0);
        serving.abort();
    });
}

/// A server that receives nothing takes all transmit credits of the client. When it receives again,
/// it is told of each call that was dropped meanwhile.
#[test]
fn server_is_told_of_calls_dropped_without_a_transmit_credit() {
    run(async |address| {
        const CALLS: usize = 3000;
        let ep = Endpoint::bind(address).await.unwrap();
        let builder = Client::builder(ep.name()).max_in_flight(CALLS);
        let client = builder.connect().await.unwrap();
        let calls: Vec<_> = (0..CALLS)
            .map(|_| client.call(Request::new(WAIT, vec![7; 4000])))
            .collect();
        let mut calls = futures_util::future::join_all(calls);
        assert!((&mut calls).now_or_never().is_none());
        drop(calls);
        let mut in_flight = HashSet::new();
        let mut sent = 0;
        // The first request is sent before, and the last one after, those that are dropped.
        let last = tokio::spawn({
            let client = client.clone();
            async move { client.call(Request::new(ECHO, "").timeout(LONG)).await }
        });
        loop {
            let message = ep.recv().tag_ignoring(0, u64::MAX).await.unwrap();
            let tag = message.tag().expect("a tagged message");
            let id = tag & ((1 << 56) - 1);
            if tag & CANCEL == CANCEL {
                assert!(in_flight.remove(&id), "{tag:x}");
                if in_flight.is_empty() {
                    break;
                }
            } else if message.transfer.data.expect("completion data") >> 32 == u64::from(WAIT) {
                in_flight.insert(id);
                sent += 1;
            } else {
                let answer = ep.send(message.source().unwrap(), "").tag(RESPONSE | id);
                answer.data(0).await.unwrap();
            }
        }
        assert!(sent > 100 && sent < CALLS, "{sent} requests were sent");
        last.await.unwrap().unwrap();
    });
}
