//! A killed client that is started again under its old name is a new peer.

use fabric_async::{Endpoint, Error, EventKind, Protocol};

use crate::peer_death::{kill_self, wait_exit};
use crate::run;
use crate::test_peer::{TestPeer, unassigned_port};

/// Returns the transports of these tests, each with a name that two processes bind in turn.
fn transports(which: &str) -> [(&'static str, String); 3] {
    [
        (
            "shm",
            format!("shm://restart-{which}-{}", std::process::id()),
        ),
        ("tcp", format!("tcp://127.0.0.1:{}", unassigned_port())),
        ("rxm", format!("tcp://127.0.0.1:{}", unassigned_port())),
    ]
}

/// Binds an endpoint over this transport to this name.
async fn bind_over(transport: &str, name: &str) -> Endpoint {
    let options = match transport {
        "rxm" => Endpoint::options().protocol(Protocol::Rxm),
        _ => Endpoint::options(),
    };
    loop {
        match options.clone().bind(name).await {
            Ok(ep) => return ep,
            Err(Error::AddressInUse(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

fn unnamed_address(transport: &str) -> &'static str {
    match transport {
        "shm" => "shm://",
        _ => "tcp://",
    }
}

/// Plays a client; `args` has the transport, the part to play, the client's name and the server's.
pub(crate) async fn client(args: &str) {
    let args: Vec<_> = args.split(' ').collect();
    let [transport, part, own, server] = args[..] else {
        panic!("expected four arguments, got {args:?}");
    };
    let ep = bind_over(transport, own).await;
    if part == "first" {
        let server = ep.add_peer(server).await.expect("add_peer");
        ep.send(server, "first").tag(1).await.expect("send");
        ep.send(server, "ask").tag(2).await.expect("send");
        ep.recv()
            .tag(3)
            .await
            .expect("the server has received both");
        kill_self();
    }
    // The server gets a message of this process before one of this endpoint.
    let other = bind_over(transport, unnamed_address(transport)).await;
    let to_server = other.add_peer(server).await.expect("add_peer");
    other.send(to_server, "bound").tag(4).await.expect("send");
    // Messages that arrive before the server's signal were sent to the killed process.
    let mut early = Vec::new();
    let signal = other.recv().tag(5).start().expect("post a receive");
    let mut signal = std::pin::pin!(signal);
    loop {
        tokio::select! {
            done = &mut signal => {
                done.expect("the server's signal");
                break;
            }
            got = ep.recv().tag_ignoring(0, !0) => {
                early.extend_from_slice(&got.expect("a message"));
            }
        }
    }
    let server = ep.add_peer(server).await.expect("add_peer");
    ep.send(server, "second").tag(1).await.expect("send");
    loop {
        let got = ep.recv().tag_ignoring(0, !0).await.expect("a message");
        early.extend_from_slice(&got);
        if got.tag() == Some(9) {
            break;
        }
    }
    ep.send(server, early).tag(6).await.expect("send");
    let _ = ep.recv().tag(7).await;
}

/// Replies to a killed client never reach a later process with the same name, connected or not, and
/// each message has the source handle of the process that sent it.
#[test]
fn restarted_client_gets_no_replies_for_its_predecessor() {
    run(async {
        for (transport, name) in transports("handle") {
            let ep = bind_over(transport, unnamed_address(transport)).await;
            let mut events = ep.take_events().unwrap();
            let start = |part: &str| {
                let args = format!("{transport} {part} {name} {}", ep.name());
                TestPeer::start("restarted client", &args)
            };
            let mut victim = start("first");
            let asked = ep.recv().tag(2).await.unwrap();
            let old = asked.source().unwrap();
            let directed = ep.recv().tag(8).from(old).start().unwrap();
            ep.send(old, "die").tag(3).await.unwrap();
            wait_exit(&mut victim).await;
            let successor = start("second");
            let bound = ep.recv().tag(4).await.unwrap();
            let other = bound.source().unwrap();
            // The successor has bound the name, and has not connected to this endpoint.
            for tag in 10..13 {
                let failed = ep
                    .send(old, "for the first process")
                    .tag(tag)
                    .await
                    .unwrap_err();
                assert!(failed.error.is_peer_unavailable(), "{transport}: {failed}");
            }
            let error = directed.await.unwrap_err().error;
            assert!(error.is_peer_unavailable(), "{transport}: {error}");
            ep.send(other, "go on").tag(5).await.unwrap();
            loop {
                let kind = events.read().await.kind;
                if let EventKind::PeerConnected { peer, source } = kind
                    && Ok(peer) == name.parse()
                    && source != Some(old)
                {
                    break;
                }
            }
            // The killed client's message is received only now.
            let first = ep.recv().tag(1).start().unwrap();
            let for_first_process = ep.send(old, "for the first process").tag(13).start();
            let first = first.await.unwrap();
            assert_eq!((&first[..], first.source()), (&b"first"[..], Ok(old)));
            let error = match for_first_process {
                Ok(sent) => sent.await.unwrap_err().error,
                Err(failed) => failed.error,
            };
            assert!(error.is_peer_unavailable(), "{transport}: {error}");
            let failed = ep
                .send(old, "for the first process")
                .tag(14)
                .await
                .unwrap_err();
            assert!(failed.error.is_peer_unavailable(), "{transport}: {failed}");
            let second = ep.recv().tag(1).await.unwrap();
            let new = second.source().unwrap();
            assert_eq!(&second[..], b"second");
            assert_ne!(old, new, "{transport}: another process has the handle");
            ep.send(new, "last").tag(9).await.unwrap();
            let got = ep.recv().tag(6).from(new).await.unwrap();
            assert_eq!(
                String::from_utf8_lossy(&got),
                "last",
                "{transport}: the successor received other messages"
            );
            drop(successor);
        }
    });
}

/// A handle inserted by name reaches the process that has bound the name.
#[test]
fn inserted_handle_reaches_the_restarted_client() {
    run(async {
        for (transport, name) in transports("named") {
            let ep = bind_over(transport, unnamed_address(transport)).await;
            let handle = ep.address_vector().insert(&name[..]).unwrap();
            let start = |part: &str| {
                let args = format!("{transport} {part} {name} {}", ep.name());
                TestPeer::start("restarted client", &args)
            };
            let mut victim = start("first");
            let asked = ep.recv().tag(2).await.unwrap();
            assert_eq!(asked.source(), Ok(handle), "{transport}");
            ep.send(handle, "die").tag(3).await.unwrap();
            wait_exit(&mut victim).await;
            let _successor = start("second");
            let other = ep.recv().tag(4).await.unwrap().source().unwrap();
            ep.send(other, "go on").tag(5).await.unwrap();
            for text in ["first", "second"] {
                let got = ep.recv().tag(1).from(handle).await.unwrap();
                assert_eq!((&got[..], got.source()), (text.as_bytes(), Ok(handle)));
            }
            ep.send(handle, "last").tag(9).await.unwrap();
            let got = ep.recv().tag(6).from(handle).await.unwrap();
            assert_eq!(&got[..], b"last", "{transport}");
        }
    });
}
