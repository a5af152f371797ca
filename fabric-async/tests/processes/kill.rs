//! Processes that are killed: the peer gets the event and its buffers, and other peers are not
//! affected.

use std::time::Duration;

use fabric_async::info::SHARED_CONTEXT;
use fabric_async::{
    CancelOutcome, DownReason, Endpoint, Error, EventKind, EventQueue, Fabric, FiAddr, Hints,
    discover,
};
use futures_util::StreamExt;

use crate::run;
use crate::test_peer::TestPeer;

const KILLS: u64 = 100;

/// Echoes what the victim sends until an operation fails, and returns the error.
async fn echo_until_error(ep: &Endpoint, victim: FiAddr, mut first: Option<Vec<u8>>) -> Error {
    loop {
        let message = match first.take() {
            Some(message) => message,
            None => match ep.recv().tag(1).from(victim).await {
                Ok(message) => message.to_vec(),
                Err(failed) => return failed.error,
            },
        };
        if let Err(failed) = ep.send(victim, message).tag(2).await {
            return failed.error;
        }
    }
}

#[test]
fn killed_peers_are_reported_and_do_not_affect_others() {
    let names = run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut names = vec![ep.name().name().to_owned()];
        let mut events = ep.take_events().unwrap();
        let echo_process = TestPeer::start("echo", &ep.name().to_string());
        let ready = ep.recv().tag(3).await.unwrap();
        let bystander = ready.source().unwrap();
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for kill in 0..KILLS {
            let mut victim = TestPeer::start("ping_forever", &ep.name().to_string());
            let first = ep.recv().tag(1).await.unwrap();
            let addr = first.source().unwrap();
            let name = ep.address_vector().lookup(addr).unwrap();
            names.push(name.name().to_owned());
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let delay = Duration::from_micros(seed >> 33 & 0xfff);
            let killer = std::thread::spawn(move || {
                std::thread::sleep(delay);
                victim.0.kill().unwrap();
                victim.0.wait().unwrap();
            });
            let error = echo_until_error(&ep, addr, Some(first.to_vec())).await;
            assert!(
                matches!(&error, Error::PeerGone(peer) | Error::NoSuchPeer(peer) if *peer == name)
                    || matches!(error, Error::StaleAddress(stale) if stale == addr),
                "kill {kill}: {error}"
            );
            killer.join().unwrap();
            loop {
                match events.read().await.kind {
                    EventKind::PeerDown { peer, reason, .. } if peer == name => {
                        assert_eq!(reason, DownReason::Died, "kill {kill}");
                        break;
                    }
                    EventKind::PeerConnected { .. } | EventKind::PeerOverBudget { .. } => {}
                    other => panic!("kill {kill}: {other:?}"),
                }
            }
            // The echo peer is not affected.
            ep.send(bystander, kill.to_le_bytes().to_vec())
                .await
                .unwrap();
            let back = ep.recv().tag(4).from(bystander).await.unwrap();
            assert_eq!(&back[..], kill.to_le_bytes());
        }
        drop(echo_process);
        names
    });
    assert_eq!(names.len() as u64, 1 + KILLS);
    // Connections are closed in the background.
    let left = || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let ours = sockets
            .lines()
            .filter_map(|line| line.split_once("@fabric-async/shm/"));
        ours.map(|(_, name)| name.to_owned())
            .filter(|name| names.contains(name))
            .collect::<Vec<_>>()
    };
    for attempt in 0.. {
        let left = left();
        if left.is_empty() {
            break;
        }
        assert!(attempt < 1000, "sockets left behind: {left:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let files = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let left: Vec<_> = files
        .filter(|file| file.file_name().to_string_lossy().contains("fabric"))
        .collect();
    assert!(left.is_empty(), "files left behind: {left:?}");
}

#[test]
fn directed_receive_fails_when_its_peer_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let mut events = ep.take_events().unwrap();
        let name = format!("shm://silent-{}", std::process::id());
        let mut silent = TestPeer::start("silent_receiver", &name);
        let peer = loop {
            match ep.add_peer(&name).await {
                Ok(peer) => break peer,
                Err(Error::NoSuchPeer(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        };
        ep.send(peer, "hello").await.unwrap();
        let reply = ep.recv().from(peer).start().unwrap();
        silent.0.kill().unwrap();
        let failed = reply.await.unwrap_err();
        assert!(matches!(failed.error, Error::PeerGone(_)), "{failed}");
        let event = events.read().await.kind;
        assert!(
            matches!(
                event,
                EventKind::PeerDown {
                    reason: DownReason::Died,
                    ..
                }
            ),
            "{event:?}"
        );
    });
}

#[test]
fn closed_peer_is_reported_as_closed_not_died() {
    run(async {
        for _ in 0..50 {
            let (watcher, leaver) = (
                Endpoint::bind("shm://").await.unwrap(),
                Endpoint::bind("shm://").await.unwrap(),
            );
            let mut events = watcher.take_events().unwrap();
            let peer = watcher.add_peer(leaver.name()).await.unwrap();
            watcher.send(peer, "hello").await.unwrap();
            leaver.recv().await.unwrap();
            drop(leaver);
            let event = events.read().await.kind;
            assert!(
                matches!(
                    event,
                    EventKind::PeerDown {
                        reason: DownReason::Closed,
                        ..
                    }
                ),
                "{event:?}"
            );
            assert!(watcher.send(peer, "too late").await.is_err());
        }
    });
}

/// Starts a process that sends a short message and half of a long one, and kills the process when
/// the short message has been received and the long message has begun to arrive.
async fn kill_partial_sender(ep: &Endpoint, events: &mut EventQueue) {
    let mut victim = TestPeer::start("partial_sender", &ep.name().to_string());
    let half = ep.recv().tag(1).await.unwrap();
    assert_eq!(&half[..], b"half");
    kill_and_wait(&mut victim);
    loop {
        if let EventKind::PeerDown { reason, .. } = events.read().await.kind {
            return assert_eq!(reason, DownReason::Died);
        }
    }
}

fn kill_and_wait(victim: &mut TestPeer) {
    victim.0.kill().unwrap();
    victim.0.wait().unwrap();
}

/// Any-source receives stay posted when the sender of their partial message is killed, and get the
/// next message whole.
#[test]
fn any_source_receives_stay_posted_when_sender_is_killed() {
    run(async {
        let ep = Endpoint::bind("shm://").await.unwrap();
        let (mut events, mut queue) = (ep.take_events().unwrap(), ep.take_completions().unwrap());
        let bystander = Endpoint::bind("shm://").await.unwrap();
        let to_ep = bystander.add_peer(ep.name()).await.unwrap();

        let whole = ep.recv().start().unwrap();
        let pooled = ep.recv().start().unwrap();
        kill_partial_sender(&ep, &mut events).await;
        assert_eq!(&whole.await.unwrap()[..], b"whole");
        bystander.send(to_ep, "next").await.unwrap();
        assert_eq!(&pooled.await.unwrap()[..], b"next");

        let whole = ep.recv().start().unwrap();
        let own = ep.recv_into(Vec::with_capacity(2 << 20)).start().unwrap();
        kill_partial_sender(&ep, &mut events).await;
        whole.await.unwrap();
        bystander.send(to_ep, "next").await.unwrap();
        let own = own.await.unwrap();
        assert_eq!((&own[..], own.buf.capacity()), (&b"next"[..], 2 << 20));

        let whole = ep.recv().start().unwrap();
        let loan = ep.recv_loan().start().unwrap();
        kill_partial_sender(&ep, &mut events).await;
        whole.await.unwrap();
        bystander.send(to_ep, "next").await.unwrap();
        assert_eq!(loan.await.unwrap().to_vec(), b"next");

        let whole = ep.recv().start().unwrap();
        ep.recv_into(vec![1; 64]).context(5).post().unwrap();
        kill_partial_sender(&ep, &mut events).await;
        whole.await.unwrap();
        bystander.send(to_ep, "next").await.unwrap();
        let entry = queue.next().await.unwrap();
        assert_eq!((entry.context, entry.bytes()), (5, &b"next"[..]));

        // The receive can be canceled, and its buffer is empty.
        let whole = ep.recv().start().unwrap();
        let own = ep.recv_into(Vec::with_capacity(4096)).start().unwrap();
        kill_partial_sender(&ep, &mut events).await;
        whole.await.unwrap();
        match own.cancel().await {
            CancelOutcome::Canceled(buf) => assert_eq!((buf.len(), buf.capacity()), (0, 4096)),
            CancelOutcome::Completed(result) => panic!("{result:?}"),
        }

        // An unexpected message of another peer is matched when the partial message is discarded.
        let whole = ep.recv().start().unwrap();
        let own = ep.recv().start().unwrap();
        let mut victim = TestPeer::start("partial_sender", &ep.name().to_string());
        ep.recv().tag(1).await.unwrap();
        bystander.send(to_ep, "waits").await.unwrap();
        bystander.send(to_ep, "too").tag(9).await.unwrap();
        ep.recv().tag(9).await.unwrap();
        assert_eq!(ep.stats().unexpected, 1);
        kill_and_wait(&mut victim);
        whole.await.unwrap();
        assert_eq!(&own.await.unwrap()[..], b"waits");
        assert_eq!(ep.domain().stats().operations, 0);
    });
}

/// As `any_source_receives_stay_posted_when_sender_is_killed`, with a shared receive context.
#[test]
fn shared_rx_receives_stay_posted_when_sender_is_killed() {
    run(async {
        let hints = Hints::new().provider("shm").ep_rx_ctx_cnt(SHARED_CONTEXT);
        let info = discover(&hints).unwrap().swap_remove(0);
        let domain = Fabric::open(&info).unwrap().domain(&info).unwrap();
        let av = domain.auto_insert_address_vector().unwrap();
        let shared = domain.shared_rx_context(&info).unwrap();
        let shared = shared.bind_av(&av).unwrap().open().unwrap();
        let mut endpoints = Vec::new();
        for _ in 0..2 {
            let ep = domain.endpoint(&info).unwrap().bind_av(&av).unwrap();
            endpoints.push(ep.bind_shared_rx(&shared).unwrap().enable().unwrap());
        }
        let bystander = Endpoint::bind("shm://").await.unwrap();
        let to_other = bystander.add_peer(endpoints[1].name()).await.unwrap();
        let whole = shared.recv().start().unwrap();
        let (first, second) = (
            shared.recv().start().unwrap(),
            shared.recv().start().unwrap(),
        );
        let mut victim = TestPeer::start("partial_sender", &endpoints[0].name().to_string());
        shared.recv().tag(1).await.unwrap();
        kill_and_wait(&mut victim);
        assert_eq!(&whole.await.unwrap()[..], b"whole");
        bystander.send(to_other, "one").await.unwrap();
        bystander.send(to_other, "two").await.unwrap();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let mut got = [first.to_vec(), second.to_vec()];
        got.sort();
        assert_eq!(got, [b"one", b"two"]);
    });
}
