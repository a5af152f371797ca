//! Memory of a connected peer: atomic operations, what is refused, and what is said to strangers.

use std::future::IntoFuture;
use std::io::Write;
use std::net::TcpStream;

use fabric_async::{
    Access, AtomicCall, AtomicOp, Caps, CounterBind, DownReason, Endpoint, Error, EventKind,
    OpKind, RemoteAddr, RemoteRegion,
};
use fabric_core::atomic::{AtomicSpec, Datatype};
use fabric_core::buf::Payload;
use fabric_core::provider::Remote;
use fabric_core::tcp::{Frame, Order, Outbox, Rows, Takes};
use futures_util::StreamExt;

use crate::connected::keep_moving;
use crate::meeting::{Room, Side, pair};
use crate::payload::pattern;
use crate::raw::{NOTHING, hears, mark, rest_of, stranger};
use crate::setup::Setup;

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const ATOMICS: u32 = 2;

pub(crate) async fn every_operation_goes_both_ways(setup: Setup) {
    let (a, b) = pair(&setup).await;
    for (from, to) in [(&a, &b), (&b, &a)] {
        let _moving = keep_moving(to);
        let (region, peer) = (
            to.room.domain.alloc(64, BOTH).unwrap(),
            from.ep.peer().unwrap(),
        );
        let mut own = to
            .room
            .domain
            .register_buffer(vec![0u8; 64], BOTH, None)
            .unwrap();
        for &op in AtomicOp::ALL {
            let (value, operand, comparand) = (1000i32, -7, 1000);
            for call in [AtomicCall::Base, AtomicCall::Fetch, AtomicCall::Compare] {
                if !op.is_valid(Datatype::I32, call) {
                    continue;
                }
                let computed = op.compute(
                    Datatype::I32,
                    value as u64,
                    operand as u64,
                    comparand as u64,
                ) as i32;
                for is_own in [false, true] {
                    region.atomic(8, AtomicOp::Write, value).unwrap();
                    own.look()[8..12].copy_from_slice(&value.to_ne_bytes());
                    let at = if is_own {
                        own.remote().at(8)
                    } else {
                        region.remote().at(8)
                    };
                    let fetched = match call {
                        AtomicCall::Base => {
                            from.ep.atomic(peer, at, op, operand).await.map(|()| value)
                        }
                        AtomicCall::Fetch => from.ep.fetch_atomic(peer, at, op, operand).await,
                        AtomicCall::Compare => {
                            from.ep
                                .compare_atomic(peer, at, op, operand, comparand)
                                .await
                        }
                    };
                    assert_eq!(fetched, Ok(value), "{op:?} {call:?}");
                    let left = match is_own {
                        true => i32::from_ne_bytes(own.look()[8..12].try_into().unwrap()),
                        false => region.load(8).unwrap(),
                    };
                    assert_eq!(left, computed, "{op:?} {call:?}");
                }
            }
        }
    }
}

/// Over several connections at once, and from here.
pub(crate) async fn concurrent_additions_add_up(setup: Setup) {
    let (here, there) = (Room::open(&setup).await, Room::open(&setup).await);
    let mut door = there.door(&setup);
    let region = there.domain.alloc(64, BOTH).unwrap();
    let (mut tasks, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (ep, end) = here.meet(&there, &mut door).await;
        ends.push(end);
        let remote = region.remote();
        tasks.push(tokio::spawn(async move {
            let peer = ep.peer().unwrap();
            for _ in 0..500 {
                ep.atomic(peer, remote.at(0), AtomicOp::Sum, [1u64, 2, 3])
                    .await
                    .unwrap();
                ep.fetch_add(peer, remote.at(32), 0.5f64).await.unwrap();
            }
            // Behind all that was asked before, as seen by reads.
            ep.read(peer, remote.slice(0..8)).await.unwrap();
        }));
    }
    for _ in 0..500 {
        region.atomic(0, AtomicOp::Sum, 1u64).unwrap();
        there.domain.progress();
        tokio::task::yield_now().await;
    }
    let never = there.domain.counter().unwrap();
    let moving = tokio::spawn(async move { drop(never.wait(u64::MAX).await) });
    for task in tasks {
        task.await.unwrap();
    }
    moving.abort();
    assert_eq!(
        (region.load(0), region.load(8), region.load(16)),
        (Ok(2000u64), Ok(3000u64), Ok(4500u64))
    );
    assert_eq!(region.load(32), Ok(750.0f64));
}

pub(crate) async fn posted_and_counted(setup: Setup) {
    let (here, there) = (Room::open(&setup).await, Room::open(&setup).await);
    let mut door = there.door(&setup);
    let (writes, reads) = (
        there.domain.counter().unwrap(),
        there.domain.counter().unwrap(),
    );
    let calling = here.connect(&door).into_future();
    let accepting = async {
        let ep = there
            .endpoint()
            .bind_counter(&writes, CounterBind::REMOTE_WRITE)
            .unwrap();
        let ep = ep.bind_counter(&reads, CounterBind::REMOTE_READ).unwrap();
        ep.accept(door.next().await.unwrap(), b"").await.unwrap()
    };
    let (a, _b) = tokio::join!(calling, accepting);
    let (a, region) = (a.unwrap(), there.domain.alloc(64, BOTH).unwrap());
    let (mut a, remote) = (Side { ep: a, room: here }, region.remote());
    let peer = a.ep.peer().unwrap();
    region.atomic(8, AtomicOp::Write, 40i32).unwrap();
    a.ep.atomic(peer, remote.at(0), AtomicOp::Sum, 2i32)
        .context(1)
        .post()
        .unwrap();
    a.ep.fetch_atomic(peer, remote.at(8), AtomicOp::Sum, [2i32, 3])
        .context(2)
        .post()
        .unwrap();
    let (written, read, first) = tokio::join!(writes.wait(1), reads.wait(1), a.room.cq.next());
    assert_eq!((written, read), (Ok(1), Ok(1)));
    let (first, second) = (first.unwrap(), a.room.cq.next().await.unwrap());
    assert_eq!(
        (first.context, first.kind, first.error),
        (1, OpKind::Atomic, None)
    );
    assert_eq!((second.context, second.kind), (2, OpKind::FetchAtomic));
    assert_eq!(second.values::<i32>().collect::<Vec<_>>(), [40, 0]);
}

/// Endpoints of this library tell each other why: the operation fails, and the connection goes on.
pub(crate) async fn what_is_out_of_reach_fails_alone(setup: Setup) {
    let (a, b) = pair(&setup).await;
    let _moving = keep_moving(&b);
    let region = b.room.domain.alloc(100, BOTH).unwrap();
    let readable = b.room.domain.alloc(100, Access::REMOTE_READ).unwrap();
    let (remote, to_b) = (region.remote(), a.ep.peer().unwrap());
    for _ in 0..2 {
        let nobody = RemoteRegion::new(remote.key ^ 1 << 40, 100, BOTH);
        let failed = a.ep.write(to_b, nobody.at(0), "x").await.unwrap_err();
        assert_eq!(
            (failed.error, failed.buf),
            (
                Error::Key {
                    key: nobody.key,
                    why: "is unknown"
                },
                "x"
            )
        );
        let failed = a.ep.read(to_b, nobody.slice(0..9)).await.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: nobody.key,
                why: "is unknown"
            }
        );
        let failed =
            a.ep.write(to_b, readable.remote().at(0), "x")
                .await
                .unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: readable.key(),
                why: "does not grant this access"
            }
        );
        let beyond = RemoteRegion::new(remote.key, 1000, BOTH);
        let failed = a.ep.read(to_b, beyond.slice(500..600)).await.unwrap_err();
        assert!(
            matches!(failed.error, Error::TooLong { limit: 100, .. }),
            "{}",
            failed.error
        );
        a.ep.write(to_b, remote.at(0), pattern(100, 3))
            .await
            .unwrap();
        assert_eq!(
            a.ep.read(to_b, remote.slice(..)).await.unwrap()[..],
            *pattern(100, 3)
        );
        a.ep.send(to_b, "all the same").await.unwrap();
        assert_eq!(&b.ep.recv().await.unwrap()[..], b"all the same");
    }
}

pub(crate) async fn misplaced_atomics_fail_alone(setup: Setup) {
    let (a, b) = pair(&setup).await;
    let _moving = keep_moving(&b);
    let region = b.room.domain.alloc(64, BOTH).unwrap();
    let readable = b.room.domain.alloc(64, Access::REMOTE_READ).unwrap();
    let (remote, to_b) = (region.remote(), a.ep.peer().unwrap());
    for _ in 0..2 {
        let across = a.ep.fetch_add(to_b, remote.at(4), 1u64).await;
        assert!(
            matches!(&across, Err(Error::Invalid { what, .. }) if what.contains("atomic")),
            "{across:?}"
        );
        assert!(matches!(
            a.ep.fetch_add(to_b, remote.at(64), 1u8).await,
            Err(Error::TooLong { .. })
        ));
        let sum =
            a.ep.atomic(to_b, readable.remote().at(0), AtomicOp::Sum, 1u64)
                .await;
        assert!(matches!(sum, Err(Error::Key { why, .. }) if why.contains("grant")));
        a.ep.fetch_add(to_b, remote.at(56), 1u64).await.unwrap();
    }
    assert_eq!(region.load(56), Ok(2u64));
}

async fn has_no_atomics(ep: &Endpoint, at: RemoteAddr) {
    let peer = ep.peer().unwrap();
    for refused in [
        ep.fetch_add(peer, at, 1u64).await.map(drop),
        ep.atomic(peer, at, AtomicOp::Sum, 1u64).await,
        ep.compare_atomic(peer, at, AtomicOp::Cswap, 1u64, 0)
            .await
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error, Error::NotSupported(why) if why.contains("not known to have")),
            "{error}"
        );
    }
}

pub(crate) async fn who_has_no_atomics_is_asked_for_none(setup: Setup) {
    let plain = setup.only(Caps::MSG | Caps::RMA);
    let (here, there) = (Room::open(&setup).await, Room::open(&plain).await);
    let mut door = there.door(&plain);
    let (ep, end) = here.meet(&there, &mut door).await;
    let (a, b) = (
        Side { ep, room: here },
        Side {
            ep: end,
            room: there,
        },
    );
    let _moving = keep_moving(&b);
    let region = b.room.domain.alloc(64, BOTH).unwrap();
    has_no_atomics(&a.ep, region.remote().at(0)).await;
    let peer = a.ep.peer().unwrap();
    a.ep.write(peer, region.remote().at(0), "but writes")
        .await
        .unwrap();
    assert_eq!(
        &a.ep.read(peer, region.remote().slice(0..10)).await.unwrap()[..],
        b"but writes"
    );
}

/// An endpoint that was opened for messages serves no memory of its domain.
pub(crate) async fn who_is_no_target_says_so(setup: Setup) {
    let plain = setup.only(Caps::MSG);
    let (here, there) = (Room::open(&setup).await, Room::open(&plain).await);
    let mut door = there.door(&plain);
    let (ep, end) = here.meet(&there, &mut door).await;
    let (a, b) = (
        Side { ep, room: here },
        Side {
            ep: end,
            room: there,
        },
    );
    let _moving = keep_moving(&b);
    let region = b.room.domain.alloc(64, BOTH).unwrap();
    let (remote, peer) = (region.remote(), a.ep.peer().unwrap());
    let unknown = Error::Key {
        key: remote.key,
        why: "is unknown",
    };
    assert_eq!(
        a.ep.write(peer, remote.at(0), "x").await.unwrap_err().error,
        unknown
    );
    assert_eq!(
        a.ep.read(peer, remote.slice(..)).await.unwrap_err().error,
        unknown
    );
    a.ep.send(peer, "all the same").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"all the same");
}

pub(crate) async fn strangers_are_asked_for_nothing_they_do_not_know(setup: Setup) {
    let room = Room::open(&setup).await;
    for calls in [false, true] {
        for says in [
            NOTHING,
            [0xff; 20],
            mark(calls, !ATOMICS),
            mark(!calls, ATOMICS),
        ] {
            let (ep, mut socket, _) = stranger((&room, &setup), calls, says, false).await;
            has_no_atomics(&ep, RemoteAddr { key: 1, offset: 0 }).await;
            ep.inject(ep.peer().unwrap(), b"good").unwrap();
            // Nothing has been said before it.
            assert_eq!(hears(&mut socket, 20).await[16..], *b"good");
        }
    }
}

/// The bytes of an operation on memory here.
fn said(frame: &Frame, places: &[Remote], bytes: &[u8]) -> Vec<u8> {
    let mut outbox = Outbox::new(Order::NATIVE);
    assert!(outbox.push_frame(frame, &Rows::of(places).unwrap(), Payload::Whole(bytes)));
    outbox.pending().to_vec()
}

fn sum(key: u64, operand: u64) -> Vec<u8> {
    let spec = AtomicSpec {
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        call: AtomicCall::Fetch,
    };
    let frame = Frame::atomic(Takes::of_many(true).atomic(spec).unwrap(), true, 8);
    said(
        &frame,
        &[Remote {
            key,
            offset: 8,
            len: 8,
            atomic: None,
        }],
        &operand.to_ne_bytes(),
    )
}

async fn is_thrown_out(mut ep: Side, socket: TcpStream) {
    let EventKind::Shutdown { reason, .. } = ep.room.next_event().await else {
        panic!("an end")
    };
    assert!(matches!(reason, DownReason::Protocol(_)), "{reason:?}");
    let failed = ep
        .ep
        .send(ep.ep.peer().unwrap(), "anything")
        .await
        .unwrap_err();
    assert!(
        matches!(failed.error, Error::Protocol { .. }),
        "{}",
        failed.error
    );
    rest_of(socket).await;
}

/// To them there is no answer that says no, and what only this library says is none of theirs.
pub(crate) async fn what_strangers_reach_for_ends_their_connection(setup: Setup) {
    for calls in [false, true] {
        for wrong in 0..5 {
            let room = Room::open(&setup).await;
            let region = room.domain.alloc(100, Access::REMOTE_WRITE).unwrap();
            let key = region.key();
            let place = |key, len| Remote {
                key,
                offset: 0,
                len,
                atomic: None,
            };
            let read = |at: Remote| said(&Frame::read(&Rows::of(&[at]).unwrap()), &[at], b"");
            let bytes = match wrong {
                0 => read(place(key, 10)),
                1 => read(place(key ^ 1 << 40, 10)),
                2 => said(
                    &Frame::write(&Rows::of(&[place(key, 200)]).unwrap(), None, 200),
                    &[place(key, 200)],
                    &[1; 200],
                ),
                3 => sum(key, 1),
                // A refusal of nothing.
                _ => [
                    &crate::raw::frame(0xf2, 0, 0, 32, 32)[..16],
                    &1u64.to_ne_bytes(),
                    &[0; 8],
                ]
                .concat(),
            };
            let (ep, mut socket, _) = stranger((&room, &setup), calls, NOTHING, false).await;
            socket.write_all(&bytes).unwrap();
            is_thrown_out(Side { ep, room }, socket).await;
            assert_eq!(region.load(8), Ok(0u64));
        }
    }
}

pub(crate) async fn strangers_that_say_they_are_kin_are_served(setup: Setup) {
    for calls in [false, true] {
        let room = Room::open(&setup).await;
        let region = room.domain.alloc(100, BOTH).unwrap();
        let (ep, mut socket, _) = stranger((&room, &setup), calls, mark(calls, 0), false).await;
        let side = Side { ep, room };
        let moving = keep_moving(&side);
        for number in 0..3u64 {
            let bytes = sum(region.key(), 5);
            let split = 1 + number as usize * 20;
            socket.write_all(&bytes[..split]).unwrap();
            socket.write_all(&bytes[split..]).unwrap();
            let answer = hears(&mut socket, 16 + 8 + 16).await;
            assert_eq!(
                (answer[1], &answer[16..24]),
                (0xf3, &(5 * number).to_ne_bytes()[..])
            );
            // Of what is out of reach it is told.
            socket.write_all(&sum(region.key() ^ 1 << 40, 5)).unwrap();
            assert_eq!(hears(&mut socket, 32).await[1], 0xf2);
        }
        assert_eq!(region.load(8), Ok(15u64));
        moving.abort();
    }
}
