//! Messages longer than the room they are received into.

use fabric_async::Error;

use crate::payload::{LONG, assert_bytes, pattern, yields};
use crate::setup::Setup;
use crate::station::{Plan, fence, pair, pair_of};

/// Length and room: in one piece, in several, cut in the first, cut later, cut on a border.
const CASES: [(usize, usize); 9] = [
    (1, 0),
    (100, 10),
    (8000, 7999),
    (20_000, 0),
    (100_000, 100),
    (100_000, 8192),
    (100_000, 99_999),
    (300_000, 16_384),
    (1 << 20, 200_000),
];

pub(crate) async fn expected_messages_are_cut_to_the_room(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for (len, room) in CASES {
        let recv =
            b.ep.recv_into(vec![0; room + 1].into_boxed_slice())
                .tag(1)
                .start()
                .unwrap();
        let cut =
            b.ep.recv_into(vec![0xee; room].into_boxed_slice())
                .tag(2)
                .start()
                .unwrap();
        let send = a.ep.send(to_b, pattern(len, 1)).tag(2);
        let other = a.ep.send(to_b, pattern(room + 1, 2)).tag(1);
        let (sent, also, cut, whole) = tokio::join!(send, other, cut, recv);
        assert_eq!(sent.expect("the sender does not see it").len(), len);
        also.unwrap();
        let failed = cut.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Truncated {
                len: room,
                lost: len - room
            }
        );
        assert_eq!((failed.transfer.len, failed.buf.len()), (room, room));
        assert_bytes(&failed.buf, &pattern(len, 1)[..room]);
        assert_bytes(&whole.expect("room enough"), pattern(room + 1, 2));
    }
}

pub(crate) async fn unexpected_messages_are_cut_to_the_room(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for (len, room) in CASES {
        let (sent, ()) = tokio::join!(a.ep.send(to_b, pattern(len, 1)), fence_behind(&a, &b, to_b));
        sent.unwrap();
        let failed =
            b.ep.recv_into(vec![0xee; room].into_boxed_slice())
                .await
                .unwrap_err();
        assert_eq!(
            failed.error,
            Error::Truncated {
                len: room,
                lost: len - room
            }
        );
        assert_eq!((failed.transfer.len, failed.buf.len()), (room, room));
        assert_bytes(&failed.buf, &pattern(len, 1)[..room]);
    }
}

/// A fence that is posted when it is first polled, behind what was posted before.
async fn fence_behind(
    a: &crate::station::Station,
    b: &crate::station::Station,
    to_b: fabric_async::FiAddr,
) {
    fence(a, b, to_b).await;
}

pub(crate) async fn the_rest_of_a_long_message_is_lost_and_the_next_is_whole(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    for early in [true, false] {
        let start = |room: usize| b.ep.recv_into(Vec::with_capacity(room)).start().unwrap();
        let early = early.then(|| (start(1000), start(300_000)));
        let sends = async {
            a.ep.send(to_b, pattern(300_000, 3)).await.unwrap();
            a.ep.send(to_b, pattern(300_000, 4)).await.unwrap();
        };
        let receives = async {
            let (cut, whole) = early.unwrap_or_else(|| (start(1000), start(300_000)));
            let failed = cut.await.unwrap_err();
            let room = failed.buf.capacity();
            assert_eq!(
                failed.error,
                Error::Truncated {
                    len: room,
                    lost: 300_000 - room
                }
            );
            assert_bytes(&failed.buf, &pattern(300_000, 3)[..room]);
            assert_bytes(&whole.await.unwrap(), pattern(300_000, 4));
        };
        tokio::join!(sends, receives);
    }
}

pub(crate) async fn details_survive_truncation(setup: Setup) {
    let (a, b, to_b) = pair(&setup).await;
    let from_a = b.av.insert(a.ep.name()).unwrap();
    for len in [50, 50_000] {
        let send = a.ep.send(to_b, pattern(len, 0)).tag(5).data(6);
        let room = vec![0; 4].into_boxed_slice();
        let (sent, got) = tokio::join!(send, b.ep.recv_into(room).tag(5));
        sent.unwrap();
        let transfer = got.unwrap_err().transfer;
        let details = (transfer.len, transfer.tag, transfer.data, transfer.source);
        assert_eq!(details, (4, Some(5), Some(6), Some(from_a)));
    }
}

/// Expected or not, whole or in pieces: an endpoint receives no more than it agreed to.
pub(crate) async fn an_endpoint_receives_no_more_than_its_limit(setup: Setup) {
    const LIMIT: usize = 3000;
    let limited = Plan {
        max_msg_size: Some(LIMIT),
        ..Plan::default()
    };
    let (a, b, to_b) = pair_of(&setup, Plan::default(), limited).await;
    for len in [LIMIT, LIMIT + 1, LONG] {
        for expected in [true, false] {
            let receive = expected.then(|| b.ep.recv().start().unwrap());
            let sent = async {
                a.ep.send(to_b, pattern(len, 1)).await.unwrap();
            };
            let received = async {
                match receive {
                    Some(operation) => operation.await,
                    None => {
                        yields(20).await;
                        b.ep.recv().await
                    }
                }
            };
            match tokio::join!(sent, received).1 {
                Ok(message) => assert_bytes(&message, pattern(LIMIT, 1)),
                Err(failed) => {
                    assert_eq!(
                        failed.error,
                        Error::Truncated {
                            len: LIMIT,
                            lost: len - LIMIT
                        }
                    );
                    assert_bytes(&failed.buf, pattern(LIMIT, 1));
                }
            }
        }
    }
    assert!(b.ep.try_send(to_b, vec![0; LIMIT + 1]).is_err());
}
