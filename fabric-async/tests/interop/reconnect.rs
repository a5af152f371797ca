//! Restarted peers and simultaneous connects.

use fabric_async::{Access, RemoteAddr, RemoteSlice};

use crate::libfabric_peer::LibfabricPeer;
use crate::{pattern, run_against_peer};

/// The peer is killed while reads are pending. A new process at the same address is another peer,
/// and is reached.
#[test]
fn restarted_peer_is_reached_again() {
    run_against_peer(|local, libfabric| async move {
        let mut libfabric = libfabric;
        let peer = local.fi_addr_of(&libfabric);
        let _region = local
            .domain
            .alloc_with_key(1000, Access::REMOTE_READ | Access::REMOTE_WRITE, 11)
            .unwrap();
        for round in 0..3 {
            libfabric
                .expect_reply(format!("region 7 {}", 8 << 20), "region")
                .await;
            local
                .ep
                .write(peer, RemoteAddr { key: 7, offset: 0 }, pattern(10, round))
                .await
                .unwrap();
            libfabric
                .expect_reply(format!("check 0 10 {round}"), "same")
                .await;
            let reads: Vec<_> = (0..20)
                .map(|_| {
                    local
                        .ep
                        .read(
                            peer,
                            RemoteSlice {
                                key: 7,
                                offset: 0,
                                len: 8 << 20,
                            },
                        )
                        .start()
                        .unwrap()
                })
                .collect();
            let port = libfabric.kill();
            let mut failed = 0;
            for read in reads {
                match read.await {
                    Ok(done) => assert_eq!(done.len(), 8 << 20),
                    Err(error) => {
                        assert!(error.error.is_peer_unavailable(), "{}", error.error);
                        failed += 1;
                    }
                }
            }
            assert!(failed > 0, "a pending read fails when the peer is killed");
            libfabric = LibfabricPeer::start(port).expect("the peer starts");
            libfabric
                .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
                .await;
            libfabric
                .expect_reply("write 1 3 a 0 11:0:100", "posted")
                .await;
            libfabric.expect_done(1).await;
        }
    });
}

/// Both sides know each other's address and send at once: one connection remains, and no message is
/// lost.
#[test]
fn simultaneous_connects_leave_one_connection() {
    run_against_peer(|local, libfabric| async move {
        let mut libfabric = libfabric;
        for round in 0..10u8 {
            let peer = local.fi_addr_of(&libfabric);
            libfabric.expect_reply("region 7 100", "region").await;
            libfabric
                .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
                .await;
            libfabric.expect_reply("recv 1 100 -", "posted").await;
            let libfabric_send = libfabric.request(format!("send 2 50 {round} - 0 0"));
            let local_send = local.ep.send(peer, pattern(60, round));
            let (libfabric_send, local_send) = tokio::join!(libfabric_send, local_send);
            assert_eq!(libfabric_send, "posted");
            local_send.unwrap();
            assert_eq!(local.ep.recv().await.unwrap()[..], pattern(50, round));
            let mut contexts = Vec::new();
            for _ in 0..2 {
                let entry = libfabric.request("cq").await;
                contexts.push(entry.split(' ').take(2).collect::<Vec<_>>().join(" "));
            }
            contexts.sort();
            assert_eq!(contexts, ["done 1", "done 2"]);
            libfabric
                .expect_reply(format!("check_rx 60 {round}"), "same")
                .await;
            local
                .ep
                .write(peer, RemoteAddr { key: 7, offset: 0 }, pattern(100, round))
                .await
                .unwrap();
            libfabric
                .expect_reply(format!("check 0 100 {round}"), "same")
                .await;
            libfabric.kill();
            libfabric = LibfabricPeer::start(0).expect("the peer starts");
        }
    });
}
