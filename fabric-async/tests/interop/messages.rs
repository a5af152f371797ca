//! Messages: CQ data, acknowledgements, truncation.

use fabric_async::Error;

use crate::{pattern, run_against_peer};

const LENGTHS: [usize; 4] = [0, 100, 20_000, 1 << 20];
const FI_REMOTE_CQ_DATA: u64 = 1 << 17;

#[test]
fn cq_data_is_carried_in_both_directions() {
    run_against_peer(|local, libfabric| async move {
        let peer = local.fi_addr_of(&libfabric);
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let (data, tag) = (u64::MAX - number as u64, number as u64 + 5);
            libfabric
                .expect_reply(format!("recv 1 {len} t {tag}"), "posted")
                .await;
            local
                .ep
                .send(peer, pattern(len, 3))
                .tag(tag)
                .data(data)
                .delivery_complete()
                .await
                .unwrap();
            let (got, received_data, cq_flags) = libfabric.expect_done(1).await;
            assert_eq!(
                (got, received_data, cq_flags & FI_REMOTE_CQ_DATA),
                (len, data, FI_REMOTE_CQ_DATA)
            );
            libfabric
                .expect_reply(format!("check_rx {len} 3"), "same")
                .await;
            libfabric
                .expect_reply(format!("recv 2 {len} -"), "posted")
                .await;
            local.ep.send(peer, pattern(len, 4)).await.unwrap();
            assert_eq!(libfabric.expect_done(2).await.2 & FI_REMOTE_CQ_DATA, 0);
            for (flags, tag) in [
                ("da", None),
                ("dt", Some(tag)),
                ("-", None),
                ("ta", Some(tag)),
            ] {
                libfabric
                    .expect_reply(
                        format!("send 3 {len} 9 {flags} {data} {}", tag.unwrap_or(0)),
                        "posted",
                    )
                    .await;
                let received = local.ep.recv_into(Vec::with_capacity(len));
                let got = match tag {
                    None => received.await,
                    Some(tag) => received.tag(tag).await,
                };
                let got = got.unwrap();
                assert_eq!(got.data(), flags.contains('d').then_some(data), "{flags}");
                assert!(got[..] == pattern(len, 9)[..]);
                libfabric.expect_done(3).await;
            }
        }
    });
}

/// Completions arrive in posting order, and each message completes once.
#[test]
fn delivery_complete_sends_complete_in_order() {
    run_against_peer(|mut local, libfabric| async move {
        let peer = local.fi_addr_of(&libfabric);
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        for number in 0..50u64 {
            libfabric
                .expect_reply(format!("recv {number} 100 t {number}"), "posted")
                .await;
        }
        for number in 0..50u64 {
            let send = local
                .ep
                .send(peer, pattern(40, 1))
                .tag(number)
                .context(number);
            if number % 3 == 0 {
                send.post()
            } else {
                send.delivery_complete().post()
            }
            .unwrap();
        }
        let mut completions = Vec::new();
        while completions.len() < 50 {
            local.cq.read_batch(&mut completions, 50).await;
        }
        assert!(completions.iter().all(|entry| entry.error.is_none()));
        let acked = completions
            .iter()
            .map(|entry| entry.context)
            .filter(|number| number % 3 != 0);
        assert!(acked.eq((0..50).filter(|number| number % 3 != 0)));
        for number in 0..50 {
            libfabric.expect_done(number).await;
        }
        for number in 0..50 {
            libfabric
                .expect_reply(
                    format!(
                        "send {number} 10 1 {} 0 0",
                        if number % 2 == 0 { "a" } else { "-" }
                    ),
                    "posted",
                )
                .await;
        }
        for _ in 0..50 {
            local.ep.recv().await.unwrap();
        }
        for _ in 0..50 {
            assert!(libfabric.request("cq").await.starts_with("done "));
        }
    });
}

/// The local receive is truncated and the connection stays. libfabric of these versions
/// disconnects, and is connected again.
#[test]
fn message_longer_than_receive_is_truncated() {
    run_against_peer(|local, libfabric| async move {
        let peer = local.fi_addr_of(&libfabric);
        libfabric
            .expect_reply(format!("dest 127.0.0.1 {}", local.port()), "dest")
            .await;
        for _ in 0..2 {
            libfabric
                .expect_reply("send 1 1000 5 - 0 0", "posted")
                .await;
            let failed = local
                .ep
                .recv_into(Vec::with_capacity(10))
                .await
                .unwrap_err();
            assert_eq!(failed.error, Error::Truncated { len: 10, lost: 990 });
            assert_eq!(failed.buf, pattern(10, 5));
            libfabric.expect_done(1).await;
        }
        libfabric.expect_reply("recv 2 10 -", "posted").await;
        local.ep.send(peer, pattern(1000, 6)).await.unwrap();
        libfabric.expect_failed(2).await;
        libfabric.expect_reply("recv 3 1000 -", "posted").await;
        // A disconnect may be detected only by sending.
        while local
            .ep
            .send(peer, pattern(1000, 7))
            .delivery_complete()
            .await
            .is_err()
        {}
        libfabric.expect_done(3).await;
        libfabric.expect_reply("check_rx 1000 7", "same").await;
    });
}
