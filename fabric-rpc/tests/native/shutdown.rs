//! Graceful shutdown.

use fabric_rpc::native::{Client, Code, Request, Server};
use tokio::sync::oneshot;

use crate::common::{Probe, take};
use crate::run;
use crate::service::{ECHO, WAIT, check_echo, handle};

#[test]
fn shutdown_drains_requests_and_refuses_later_ones() {
    run(async |address| {
        let server = Server::bind(address).await.unwrap();
        let name = server.name().to_string();
        let probe = Probe::new();
        let handler = probe.clone();
        let service = tower::service_fn(move |request| handle(handler.clone(), request));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving =
            tokio::spawn(server.serve_with_shutdown(service, async { drop(stopped.await) }));
        let client = Client::connect(&name).await.unwrap();
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.call(Request::new(WAIT, vec![7; 100_000])).await })
            })
            .collect();
        for _ in 0..3 {
            take(&probe.waiting).await;
        }
        check_echo(&client).await;
        drop(stop);
        // The server reads the signal before its next message, or after a few more.
        let status = loop {
            match client.call(Request::new(ECHO, "")).await {
                Ok(_) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.is_retry_safe(), "{status}");
        assert!(!serving.is_finished());
        probe.go_on.add_permits(3);
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().body.len(), 100_000);
        }
        serving.await.unwrap().unwrap();
        // When the client has noticed that its server has left, calls wait for another one.
        let timeout = std::time::Duration::from_millis(20);
        loop {
            let request = Request::new(ECHO, "").timeout(timeout);
            match client.call(request).await.unwrap_err().code() {
                Code::DeadlineExceeded => break,
                code => assert!(matches!(code, Code::Unavailable), "{code}"),
            }
        }
        // The name is free again.
        let server = Server::bind(&*name).await.unwrap();
        drop(server);
    });
}
