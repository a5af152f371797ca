//! RMA over TCP with targets that are killed, and with peers that violate the protocol.

use std::time::Duration;

use fabric_async::{
    Access, DownReason, Endpoint, Error, FiAddr, RemoteAddr, RemoteRegion, RemoteSlice,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::hostile::{connect_accepted, encode_header, read_until_closed};
use super::{assert_still_works, bind_with_events, next_down_reason};
use crate::domain_mode::DomainMode;
use crate::health::kill_within_two_ms;
use crate::run;
use crate::test_peer::TestPeer;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const REGION_LEN: usize = 16 << 20;

/// Announces a region and a registered buffer, and waits to be killed.
pub(crate) async fn rma_target(name: &str) {
    let ep = Endpoint::bind("tcp://").await.expect("bind");
    let region = ep
        .domain()
        .alloc(REGION_LEN, READ_WRITE)
        .expect("allocate a region");
    let own = ep
        .domain()
        .register(vec![3u8; REGION_LEN], READ_WRITE, None)
        .expect("allocate a region");
    let peer = ep.add_peer(name).await.expect("add_peer");
    for remote in [region.remote(), own.remote()] {
        ep.send(peer, remote.to_bytes().to_vec())
            .await
            .expect("send");
    }
    while ep.recv().from(peer).await.is_ok() {}
}

/// Starts a peer with a region and a registered buffer, and returns both.
async fn start_rma_target(ep: &Endpoint) -> (TestPeer, FiAddr, [RemoteRegion; 2]) {
    let peer = TestPeer::start("tcp rma_target", &ep.name().to_string());
    let announcement = ep.recv().await.unwrap();
    let (number, first) = (
        announcement.source().unwrap(),
        RemoteRegion::from_bytes(&announcement).unwrap(),
    );
    let second = RemoteRegion::from_bytes(&ep.recv().from(number).await.unwrap()).unwrap();
    (peer, number, [first, second])
}

#[test]
fn rma_to_another_process_works() {
    for mode in DomainMode::ALL {
        run(async {
            let ep = mode.options().bind("tcp://").await.unwrap();
            let (_peer, to, regions) = start_rma_target(&ep).await;
            for (which, remote) in regions.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..REGION_LEN).map(|at| (at / 7 + which) as u8).collect();
                let done = ep.write(to, remote.at(0), bytes).await.unwrap();
                let got = ep.read(to, remote.slice(..)).await.unwrap();
                assert!(got[..] == done.buf[..]);
                let places = [
                    remote.slice(5..10),
                    remote.slice(1_000_000..9_000_000),
                    remote.slice(..3),
                ];
                let all = ep.read(to, places).await.unwrap();
                assert!(
                    all[..5] == done.buf[5..10]
                        && all[5..8_000_005] == done.buf[1_000_000..9_000_000]
                );
                ep.fetch_add(to, remote.at(REGION_LEN as u64 - 8), 5u64)
                    .await
                    .unwrap();
                let refused = ep
                    .read(
                        to,
                        RemoteSlice {
                            key: remote.key ^ 1,
                            offset: 0,
                            len: 1,
                        },
                    )
                    .await
                    .unwrap_err();
                assert!(
                    matches!(
                        refused.error,
                        Error::Key {
                            why: "is unknown",
                            ..
                        }
                    ),
                    "{}",
                    refused.error
                );
            }
        });
    }
}

/// RMA operations fail once each when the target process is killed.
#[test]
fn rma_ops_fail_when_target_is_killed() {
    for mode in DomainMode::ALL {
        run(async {
            let ep = mode.options().bind("tcp://").await.unwrap();
            for round in 0..12 {
                let (victim, to, [remote, own]) = start_rma_target(&ep).await;
                let killer = kill_within_two_ms(victim, round);
                let error = loop {
                    let (one, two, short, long, added) = tokio::join!(
                        ep.read(to, remote.slice(..)),
                        ep.read(to, own.slice(..)),
                        ep.write(to, own.at(0), vec![1; 8]),
                        ep.write(to, remote.at(0), vec![2; REGION_LEN]),
                        ep.fetch_add(to, own.at(8), 1u64),
                    );
                    let reads = one.err().or(two.err()).map(|failed| failed.error);
                    let writes = short.err().or(long.err()).map(|failed| failed.error);
                    let ended = reads.or(writes).or(added.err());
                    if let Some(error) = ended {
                        break error;
                    }
                };
                // The handle may already be stale.
                let is_over = error.is_peer_unavailable() || error == Error::StaleAddress(to);
                assert!(is_over, "round {round}: {error}");
                killer.join().unwrap();
                assert_eq!(ep.domain().stats().operations, 0);
            }
            assert_still_works(&ep).await;
        });
    }
}

/// Encodes the header of an RMA request with its RMA iov.
fn encode_rma_request(code: u8, flags: u16, rma_iov: &[[u64; 3]], payload: u64) -> Vec<u8> {
    let len = 16 + 24 * rma_iov.len();
    let mut bytes = encode_header(code, flags, 0, len as u8, len as u64 + payload);
    bytes[5] = rma_iov.len() as u8;
    bytes.extend(rma_iov.iter().flatten().flat_map(|word| word.to_le_bytes()));
    bytes
}

#[test]
fn invalid_rma_requests_end_only_that_connection() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let region = ep.domain().alloc_with_key(100, READ_WRITE, 7).unwrap();
        let _readable = ep
            .domain()
            .alloc_with_key(100, Access::REMOTE_READ, 8)
            .unwrap();
        let long = [[0, 10, 7]; 5];
        let cases: Vec<(&str, Vec<u8>)> = vec![
            (
                "number of remote ranges is not 1 to 4",
                encode_rma_request(2, 0, &long[..4], 0)
                    .into_iter()
                    .enumerate()
                    .map(|(at, b)| if at == 5 { 5 } else { b })
                    .collect(),
            ),
            (
                "do not add up to its payload",
                encode_rma_request(4, 4, &[[0, 10, 7]], 11),
            ),
            (
                "do not add up to its payload",
                encode_rma_request(4, 4, &[[0, u64::MAX, 7], [0, 12, 7]], 11),
            ),
            ("with a payload", encode_rma_request(2, 0, &[[0, 10, 7]], 1)),
            // A denied request that wants no response ends the connection.
            (
                "may not access",
                encode_rma_request(4, 0, &[[0, 10, 9]], 10),
            ),
            (
                "may not access",
                encode_rma_request(4, 0, &[[91, 10, 7]], 10),
            ),
            (
                "may not access",
                encode_rma_request(4, 0, &[[0, 10, 8]], 10),
            ),
            (
                "unsolicited acknowledgement",
                [
                    &encode_header(0xf2, 0, 0, 32, 32)[..],
                    &[1, 0, 0, 0, 0, 0, 0, 0],
                    &[0; 8],
                ]
                .concat(),
            ),
            (
                "unsolicited read response",
                encode_header(0xf3, 0, 0, 16, 32),
            ),
            (
                "unknown atomic operation",
                [&encode_header(0xf1, 0, 0, 48, 52)[..], &[0xff; 32]].concat(),
            ),
        ];
        for (reason, bytes) in cases {
            let mut socket = connect_accepted(&ep, 9).await;
            socket.write_all(&bytes).await.unwrap();
            let end = next_down_reason(&mut events).await;
            assert!(
                matches!(end, DownReason::Protocol(what) if what.contains(reason)),
                "{reason}: {end:?}"
            );
            drop(socket);
        }
        let mut all = [0; 100];
        region.read(0, &mut all).unwrap();
        assert_eq!(all, [0; 100], "nothing was written");
        assert_still_works(&ep).await;
    });
}

/// An incomplete write and an incomplete read request do not affect later operations.
#[test]
fn partial_rma_requests_do_not_affect_others() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let region = ep.domain().alloc_with_key(100_000, READ_WRITE, 7).unwrap();
        for half in [
            [
                encode_rma_request(4, 4, &[[0, 100_000, 7]], 100_000),
                vec![5; 50_000],
            ]
            .concat(),
            encode_rma_request(2, 0, &[[0, 100_000, 7]], 0)[..30].to_vec(),
        ] {
            let mut socket = connect_accepted(&ep, 9).await;
            socket.write_all(&half).await.unwrap();
            drop(socket);
            next_down_reason(&mut events).await;
        }
        assert_eq!(region.load::<u8>(99_999), Ok(0));
        let bystander = Endpoint::bind("tcp://").await.unwrap();
        let to = bystander.add_peer(ep.name()).await.unwrap();
        let serving = tokio::spawn({
            let ep = ep.clone();
            async move { drop(ep.recv().tag(1).await) }
        });
        bystander
            .write(to, region.remote().at(0), vec![6; 100_000])
            .await
            .unwrap();
        assert_eq!(
            bystander.read(to, region.remote().slice(..)).await.unwrap()[..],
            vec![6; 100_000][..]
        );
        bystander
            .write(to, region.remote().at(0), "x")
            .data(3)
            .await
            .unwrap();
        bystander.send(to, "done").tag(1).await.unwrap();
        serving.await.unwrap();
        assert_eq!(ep.stats().remote_ops.count, 1);
        assert_still_works(&ep).await;
    });
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        << 10
}

/// The queue of read responses is bounded: a peer that requests terabytes and does not read is not
/// read, blocks no other peer, and gets the responses once it reads.
#[test]
fn peer_that_does_not_read_responses_is_not_read() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let len = 32u64 << 20;
        let region = ep
            .domain()
            .alloc_with_key(len as usize, READ_WRITE, 7)
            .unwrap();
        region.write(0, &vec![9; len as usize]).unwrap();
        let mut socket = connect_accepted(&ep, 9).await;
        let request = encode_rma_request(2, 0, &[[0, len, 7]; 4], 0);
        let many = request.repeat(1000);
        let before = resident_bytes();
        let mut request_bytes = 0usize;
        loop {
            assert_still_works(&ep).await;
            match tokio::time::timeout(Duration::from_millis(500), socket.write_all(&many)).await {
                Ok(written) => written.unwrap(),
                Err(_) => break,
            }
            request_bytes += many.len();
            assert!(
                request_bytes < 1 << 30,
                "the endpoint still reads from the peer"
            );
        }
        // Other tests of this process use memory, too; the responses would take terabytes.
        assert!(resident_bytes().saturating_sub(before) < 1 << 30);
        let mut response = vec![0; 16 + (4 << 20)];
        let serving = ep.recv().tag(1).start().unwrap();
        let reading = async {
            socket.read_exact(&mut response).await.unwrap();
        };
        tokio::select! {
            _ = serving => unreachable!("no message has this tag"),
            () = reading => {}
        }
        assert!(response[1] == 0xf3 && response[16..].iter().all(|byte| *byte == 9));
        drop(socket);
        next_down_reason(&mut events).await;
        assert_still_works(&ep).await;
    });
}

/// A peer that sends an invalid response loses its connection, and the pending operation fails.
#[test]
fn invalid_rma_responses_fail_pending_requests() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        for response in [
            [&encode_header(3, 0, 0, 16, 16 + 9)[..], &[1; 9]].concat(),
            [&encode_header(3, 0, 0, 16, 16 + 7)[..], &[1; 7]].concat(),
            encode_header(0, 0, 2, 16, 16),
            [&encode_header(0xf3, 0, 0, 16, 16 + 8)[..], &[1; 8]].concat(),
            [&encode_header(0xf2, 0, 0, 32, 32)[..], &[0; 16]].concat(),
        ] {
            let mut socket = connect_accepted(&ep, 9).await;
            socket
                .write_all(&[&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
                .await
                .unwrap();
            let target = ep.recv().await.unwrap().source().unwrap();
            let read = ep
                .read(
                    target,
                    RemoteSlice {
                        key: 7,
                        offset: 0,
                        len: 8,
                    },
                )
                .start()
                .unwrap();
            let mut request = [0; 40];
            let (socket, read) = tokio::join!(
                async {
                    socket.read_exact(&mut request).await.unwrap();
                    socket.write_all(&response).await.unwrap();
                    socket
                },
                read
            );
            assert_eq!(request[1], 2);
            let error = read.unwrap_err().error;
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
            next_down_reason(&mut events).await;
            read_until_closed(socket).await;
        }
        // The end of the connection fails pending operations, too.
        let mut socket = connect_accepted(&ep, 9).await;
        socket
            .write_all(&[&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
            .await
            .unwrap();
        let silent = ep.recv().await.unwrap().source().unwrap();
        let write = ep
            .write(silent, RemoteAddr { key: 7, offset: 0 }, vec![1; 8])
            .start()
            .unwrap();
        drop(socket);
        assert!(write.await.unwrap_err().error.is_peer_unavailable());
        assert_still_works(&ep).await;
    });
}

/// Removing the peer's address fails pending RMA operations. Late responses are discarded, and the
/// connection goes on.
#[test]
fn av_remove_fails_pending_rma_requests() {
    run(async {
        let (ep, mut events) = bind_with_events().await;
        let mut socket = connect_accepted(&ep, 9).await;
        socket
            .write_all(&[&encode_header(0, 0, 0, 16, 17)[..], b"x"].concat())
            .await
            .unwrap();
        let silent = ep.recv().await.unwrap().source().unwrap();
        let slice = RemoteSlice {
            key: 1,
            offset: 0,
            len: 8,
        };
        let read = ep.read(silent, slice).start().unwrap();
        let write = ep
            .write(silent, RemoteAddr { key: 1, offset: 0 }, vec![7; 8])
            .start()
            .unwrap();
        let mut request_bytes = [0; 40 + 40 + 8];
        socket.read_exact(&mut request_bytes).await.unwrap();
        ep.address_vector().remove(silent).unwrap();
        assert_eq!(read.await.unwrap_err().error, Error::StaleAddress(silent));
        let failed = write.await.unwrap_err();
        assert_eq!(
            (failed.error, failed.buf),
            (Error::StaleAddress(silent), vec![7; 8])
        );
        // Late responses, then a message; after that a response without a request.
        let response = [
            &encode_header(3, 0, 0, 16, 16 + 8)[..],
            &[5; 8],
            &encode_header(0, 0, 2, 16, 16),
        ]
        .concat();
        let message = [&encode_header(0, 0, 0, 16, 17)[..], b"y"].concat();
        socket
            .write_all(&[response, message].concat())
            .await
            .unwrap();
        assert_eq!(&ep.recv().await.unwrap()[..], b"y");
        socket
            .write_all(&encode_header(3, 0, 0, 16, 16))
            .await
            .unwrap();
        let end = next_down_reason(&mut events).await;
        assert!(matches!(end, DownReason::Protocol(_)), "{end:?}");
        read_until_closed(socket).await;
        assert_still_works(&ep).await;
    });
}
