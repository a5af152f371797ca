//! Messages that are held back, since the budget for unexpected messages has no room for them.

use std::time::Duration;

use fabric_rpc::native::{Client, Request, Response, Server, Status};
use tokio::runtime::Builder;

use crate::run_on_two_threads;
use crate::service::{ECHO, TestServer};

/// Handlers that take long in their first poll hold up the receive loop, and many clients share one
/// budget: requests that are held back meanwhile are those of honest clients.
#[test]
fn requests_beyond_the_budget_of_their_client_are_held_back() {
    run_on_two_threads(async |address| {
        const CALLS: usize = 64;
        let server = Server::bind(address).await.unwrap();
        let client = Client::connect(server.name()).await.unwrap();
        let slow = tower::service_fn(|request: Request| async move {
            std::thread::sleep(Duration::from_millis(2));
            Ok::<_, Status>(Response::new(request.body.len().to_string()))
        });
        let serving = tokio::spawn(server.serve(slow));
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.call(Request::new(1, vec![7; 1 << 20])).await })
            })
            .collect();
        for call in calls {
            let response = call.await.unwrap().unwrap();
            assert_eq!(response.body.into_bytes(), (1 << 20).to_string());
        }
        serving.abort();
    });
}

/// A client that is busy receives its answers later.
#[test]
fn answers_beyond_the_budget_of_the_server_are_held_back() {
    run_on_two_threads(async |address| {
        const CALLS: usize = 64;
        let server = TestServer::start(address).await;
        let name = server.name.clone();
        let calls = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Client::connect(name).await.unwrap();
                let call = || {
                    let client = client.clone();
                    async move {
                        let response = client.call(Request::new(ECHO, vec![7; 1 << 20])).await;
                        std::thread::sleep(Duration::from_millis(2));
                        response
                    }
                };
                let calls: Vec<_> = (0..CALLS).map(|_| tokio::spawn(call())).collect();
                let mut lens = Vec::new();
                for call in calls {
                    lens.push(call.await.unwrap().map(|response| response.body.len()));
                }
                lens
            })
        });
        let calls = tokio::task::spawn_blocking(|| calls.join().unwrap());
        for len in calls.await.unwrap() {
            assert_eq!(len.unwrap(), 1 << 20);
        }
    });
}
