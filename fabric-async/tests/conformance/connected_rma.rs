//! RMA and atomics over connected endpoints: operations, refusals, and the behaviour towards peers
//! without the vendor extension.

use std::future::IntoFuture;
use std::io::Write;
use std::net::TcpStream;

use fabric_async::atomic::{AtomicCall, AtomicOp, AtomicType, query_atomic};
use fabric_async::{
    Access, Caps, ConnectedEndpoint, CounterBind, DownReason, Error, EventKind, OpKind, RemoteAddr,
    RemoteRegion,
};
use fabric_core::atomic::{AtomicSpec, Datatype};
use fabric_core::buf::Payload;
use fabric_core::tcp::{ByteOrder, Frame, FrameWriter, PeerCaps, RmaIovList};
use fabric_core::transport::RmaIov;
use futures_util::StreamExt;

use crate::connected::spawn_progress;
use crate::connected_pair::{MsgDomainFixture, MsgEndpointFixture, connected_pair};
use crate::payload::pattern;
use crate::raw_peer::{NO_EXTENSION, connect_raw_peer, read_exact, read_to_end, vendor_extension};
use crate::setup::Setup;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const ATOMIC_BIT: u32 = 2;

pub(crate) async fn every_atomic_op_works_in_both_directions(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    for (from, to) in [(&a, &b), (&b, &a)] {
        let _progress = spawn_progress(to);
        let region = to.domain_fixture.domain.alloc(64, READ_WRITE).unwrap();
        let mut own = to
            .domain_fixture
            .domain
            .register(vec![0u8; 64], READ_WRITE, None)
            .unwrap();
        for &op in AtomicOp::ALL {
            let (value, operand, comparand) = (1000i32, -7, 1000);
            for call in [AtomicCall::Base, AtomicCall::Fetch, AtomicCall::Compare] {
                if !op.is_valid(Datatype::I32, call) {
                    continue;
                }
                let computed = op.compute(
                    Datatype::I32,
                    value.bits(),
                    operand.bits(),
                    comparand.bits(),
                );
                let computed = i32::from_bits(computed);
                for is_own in [false, true] {
                    region.atomic(8, AtomicOp::Write, value).unwrap();
                    own.lock()[8..12].copy_from_slice(&value.to_ne_bytes());
                    let at = if is_own {
                        own.remote().at(8)
                    } else {
                        region.remote().at(8)
                    };
                    let fetched = match call {
                        AtomicCall::Base => from.ep.atomic(at, op, operand).await.map(|()| value),
                        AtomicCall::Fetch => from.ep.fetch_atomic(at, op, operand).await,
                        AtomicCall::Compare => {
                            from.ep.compare_atomic(at, op, operand, comparand).await
                        }
                    };
                    assert_eq!(fetched, Ok(value), "{op:?} {call:?}");
                    let left = match is_own {
                        true => i32::from_ne_bytes(own.lock()[8..12].try_into().unwrap()),
                        false => region.load(8).unwrap(),
                    };
                    assert_eq!(left, computed, "{op:?} {call:?}");
                }
            }
        }
    }
}

/// Several connections and the owner add at the same time.
pub(crate) async fn concurrent_atomic_adds_are_not_lost(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let region = there.domain.alloc(64, READ_WRITE).unwrap();
    let (mut tasks, mut passive_eps) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (ep, passive) = here.connect_to(&there, &mut pep).await;
        passive_eps.push(passive);
        let remote = region.remote();
        tasks.push(tokio::spawn(async move {
            for _ in 0..500 {
                ep.atomic(remote.at(0), AtomicOp::Sum, [1u64, 2, 3])
                    .await
                    .unwrap();
                ep.fetch_add(remote.at(32), 0.5f64).await.unwrap();
            }
            // The read completes after all earlier operations of the connection.
            ep.read(remote.slice(0..8)).await.unwrap();
        }));
    }
    for _ in 0..500 {
        region.atomic(0, AtomicOp::Sum, 1u64).unwrap();
        there.domain.progress();
        tokio::task::yield_now().await;
    }
    let never = there.domain.counter().unwrap();
    let progress_task = tokio::spawn(async move { drop(never.wait(u64::MAX).await) });
    for task in tasks {
        task.await.unwrap();
    }
    progress_task.abort();
    assert_eq!(
        (region.load(0), region.load(8), region.load(16)),
        (Ok(2000u64), Ok(3000u64), Ok(4500u64))
    );
    assert_eq!(region.load(32), Ok(750.0f64));
}

pub(crate) async fn posted_atomics_report_and_count_at_target(setup: Setup) {
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&setup).await,
    );
    let mut pep = there.listen(&setup);
    let (writes, reads) = (
        there.domain.counter().unwrap(),
        there.domain.counter().unwrap(),
    );
    let initiating = here.connect(&pep).into_future();
    let accepting = async {
        let ep = there
            .endpoint()
            .bind_counter(&writes, CounterBind::REMOTE_WRITE)
            .unwrap();
        let ep = ep.bind_counter(&reads, CounterBind::REMOTE_READ).unwrap();
        ep.accept(pep.accept().await.unwrap(), b"").unwrap()
    };
    let (a, _b) = tokio::join!(initiating, accepting);
    let (a, region) = (a.unwrap(), there.domain.alloc(64, READ_WRITE).unwrap());
    let (mut a, remote) = (
        MsgEndpointFixture {
            ep: a,
            domain_fixture: here,
        },
        region.remote(),
    );
    region.atomic(8, AtomicOp::Write, 40i32).unwrap();
    a.ep.atomic(remote.at(0), AtomicOp::Sum, 2i32)
        .context(1)
        .post()
        .unwrap();
    a.ep.fetch_atomic(remote.at(8), AtomicOp::Sum, [2i32, 3])
        .context(2)
        .post()
        .unwrap();
    let (written, read, first) =
        tokio::join!(writes.wait(1), reads.wait(1), a.domain_fixture.cq.next());
    assert_eq!((written, read), (Ok(1), Ok(1)));
    let (first, second) = (first.unwrap(), a.domain_fixture.cq.next().await.unwrap());
    assert_eq!(
        (first.context, first.kind, first.error),
        (1, OpKind::Atomic, None)
    );
    assert_eq!((second.context, second.kind), (2, OpKind::FetchAtomic));
    assert_eq!(second.values::<i32>().collect::<Vec<_>>(), [40, 0]);
}

/// Peers of this implementation send a NACK with the reason: the operation fails, and the
/// connection stays established.
pub(crate) async fn bad_key_or_range_fails_only_its_op(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let _progress = spawn_progress(&b);
    let region = b.domain_fixture.domain.alloc(100, READ_WRITE).unwrap();
    let readable = b
        .domain_fixture
        .domain
        .alloc(100, Access::REMOTE_READ)
        .unwrap();
    let remote = region.remote();
    for _ in 0..2 {
        let absent = RemoteRegion::new(remote.key ^ 1 << 40, 100, READ_WRITE);
        let failed = a.ep.write(absent.at(0), "x").await.unwrap_err();
        assert_eq!(
            (failed.error, failed.buf),
            (
                Error::Key {
                    key: absent.key,
                    why: "is unknown"
                },
                "x"
            )
        );
        let failed = a.ep.read(absent.slice(0..9)).await.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: absent.key,
                why: "is unknown"
            }
        );
        let failed = a.ep.write(readable.remote().at(0), "x").await.unwrap_err();
        assert_eq!(
            failed.error,
            Error::Key {
                key: readable.key(),
                why: "does not grant REMOTE_WRITE"
            }
        );
        let beyond = RemoteRegion::new(remote.key, 1000, READ_WRITE);
        let failed = a.ep.read(beyond.slice(500..600)).await.unwrap_err();
        assert!(
            matches!(failed.error, Error::OutOfBounds { limit: 100, .. }),
            "{}",
            failed.error
        );
        a.ep.write(remote.at(0), pattern(100, 3)).await.unwrap();
        assert_eq!(
            a.ep.read(remote.slice(..)).await.unwrap()[..],
            *pattern(100, 3)
        );
        a.ep.send("still works").await.unwrap();
        assert_eq!(&b.ep.recv().await.unwrap()[..], b"still works");
    }
}

pub(crate) async fn misaligned_atomic_fails_only_its_op(setup: Setup) {
    let (a, b) = connected_pair(&setup).await;
    let _progress = spawn_progress(&b);
    let region = b.domain_fixture.domain.alloc(64, READ_WRITE).unwrap();
    let readable = b
        .domain_fixture
        .domain
        .alloc(64, Access::REMOTE_READ)
        .unwrap();
    let remote = region.remote();
    for _ in 0..2 {
        let misaligned = a.ep.fetch_add(remote.at(4), 1u64).await;
        assert!(
            matches!(&misaligned, Err(Error::Invalid { what, .. }) if what.contains("atomic")),
            "{misaligned:?}"
        );
        assert!(matches!(
            a.ep.fetch_add(remote.at(64), 1u8).await,
            Err(Error::OutOfBounds { .. })
        ));
        let sum =
            a.ep.atomic(readable.remote().at(0), AtomicOp::Sum, 1u64)
                .await;
        assert!(matches!(sum, Err(Error::Key { why, .. }) if why.contains("grant")));
        a.ep.fetch_add(remote.at(56), 1u64).await.unwrap();
    }
    assert_eq!(region.load(56), Ok(2u64));
}

async fn expect_atomics_refused(ep: &ConnectedEndpoint, at: RemoteAddr) {
    for refused in [
        ep.fetch_add(at, 1u64).await.map(drop),
        ep.atomic(at, AtomicOp::Sum, 1u64).await,
        ep.compare_atomic(at, AtomicOp::Cswap, 1u64, 0)
            .await
            .map(drop),
        query_atomic(ep, AtomicOp::Sum, Datatype::U64, AtomicCall::Base).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error, Error::NotSupported(why) if why.contains("not known to support them")),
            "{error}"
        );
    }
}

pub(crate) async fn atomics_to_peer_without_support_are_refused(setup: Setup) {
    let plain = setup.with_caps(Caps::MSG | Caps::RMA);
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&plain).await,
    );
    let mut pep = there.listen(&plain);
    let (ep, passive) = here.connect_to(&there, &mut pep).await;
    let (a, b) = (
        MsgEndpointFixture {
            ep,
            domain_fixture: here,
        },
        MsgEndpointFixture {
            ep: passive,
            domain_fixture: there,
        },
    );
    let _progress = spawn_progress(&b);
    let region = b.domain_fixture.domain.alloc(64, READ_WRITE).unwrap();
    expect_atomics_refused(&a.ep, region.remote().at(0)).await;
    a.ep.write(region.remote().at(0), "writing ok")
        .await
        .unwrap();
    assert_eq!(
        &a.ep.read(region.remote().slice(0..10)).await.unwrap()[..],
        b"writing ok"
    );
}

/// An endpoint without `FI_RMA` exposes no memory of its domain.
pub(crate) async fn rma_to_msg_only_endpoint_fails_with_unknown_key(setup: Setup) {
    let plain = setup.with_caps(Caps::MSG);
    let (here, there) = (
        MsgDomainFixture::open(&setup).await,
        MsgDomainFixture::open(&plain).await,
    );
    let mut pep = there.listen(&plain);
    let (ep, passive) = here.connect_to(&there, &mut pep).await;
    let (a, b) = (
        MsgEndpointFixture {
            ep,
            domain_fixture: here,
        },
        MsgEndpointFixture {
            ep: passive,
            domain_fixture: there,
        },
    );
    let _progress = spawn_progress(&b);
    let region = b.domain_fixture.domain.alloc(64, READ_WRITE).unwrap();
    let remote = region.remote();
    let unknown = Error::Key {
        key: remote.key,
        why: "is unknown",
    };
    assert_eq!(
        a.ep.write(remote.at(0), "x").await.unwrap_err().error,
        unknown
    );
    assert_eq!(
        a.ep.read(remote.slice(..)).await.unwrap_err().error,
        unknown
    );
    a.ep.send("still works").await.unwrap();
    assert_eq!(&b.ep.recv().await.unwrap()[..], b"still works");
}

pub(crate) async fn atomics_to_unannounced_peer_are_refused(setup: Setup) {
    let fixture = MsgDomainFixture::open(&setup).await;
    for is_initiator in [false, true] {
        for extension in [
            NO_EXTENSION,
            [0xff; 20],
            vendor_extension(is_initiator, !ATOMIC_BIT),
            vendor_extension(!is_initiator, ATOMIC_BIT),
        ] {
            let (ep, mut socket, _) =
                connect_raw_peer((&fixture, &setup), is_initiator, extension, false).await;
            expect_atomics_refused(&ep, RemoteAddr { key: 1, offset: 0 }).await;
            ep.send(b"good").inject().unwrap();
            // Nothing was sent before the message.
            assert_eq!(read_exact(&mut socket, 20).await[16..], *b"good");
        }
    }
}

/// Encodes a frame of an RMA operation on local segments.
fn encode_frame(frame: &Frame, segments: &[RmaIov], bytes: &[u8]) -> Vec<u8> {
    let mut outbox = FrameWriter::new(ByteOrder::NATIVE);
    assert!(outbox.push_frame(
        frame,
        &RmaIovList::from_rma_iovs(segments).unwrap(),
        Payload::Contiguous(bytes)
    ));
    outbox.pending().to_vec()
}

fn encode_fetch_sum(key: u64, operand: u64) -> Vec<u8> {
    let spec = AtomicSpec {
        op: AtomicOp::Sum,
        datatype: Datatype::U64,
        call: AtomicCall::Fetch,
    };
    let frame = Frame::atomic(PeerCaps::rdm(true).atomic(spec).unwrap(), true, 8);
    encode_frame(
        &frame,
        &[RmaIov {
            key,
            offset: 8,
            len: 8,
            atomic: None,
        }],
        &operand.to_ne_bytes(),
    )
}

async fn expect_protocol_shutdown(mut ep: MsgEndpointFixture, socket: TcpStream) {
    let EventKind::Shutdown { reason, .. } = ep.domain_fixture.next_other_event().await else {
        panic!("not a shutdown event")
    };
    assert!(matches!(reason, DownReason::Protocol(_)), "{reason:?}");
    let failed = ep.ep.send("anything").await.unwrap_err();
    assert!(
        matches!(failed.error, Error::Protocol { .. }),
        "{}",
        failed.error
    );
    read_to_end(socket).await;
}

/// A peer without the vendor extension cannot receive a NACK: an invalid operation closes its
/// connection, and so does a frame that only this implementation sends.
pub(crate) async fn bad_rma_of_unannounced_peer_closes_connection(setup: Setup) {
    for is_initiator in [false, true] {
        for wrong in 0..5 {
            let fixture = MsgDomainFixture::open(&setup).await;
            let region = fixture.domain.alloc(100, Access::REMOTE_WRITE).unwrap();
            let key = region.key();
            let iov = |key, len| RmaIov {
                key,
                offset: 0,
                len,
                atomic: None,
            };
            let read = |at: RmaIov| {
                encode_frame(
                    &Frame::read(&RmaIovList::from_rma_iovs(&[at]).unwrap()),
                    &[at],
                    b"",
                )
            };
            let bytes = match wrong {
                0 => read(iov(key, 10)),
                1 => read(iov(key ^ 1 << 40, 10)),
                2 => encode_frame(
                    &Frame::write(
                        &RmaIovList::from_rma_iovs(&[iov(key, 200)]).unwrap(),
                        None,
                        200,
                    ),
                    &[iov(key, 200)],
                    &[1; 200],
                ),
                3 => encode_fetch_sum(key, 1),
                // A NACK that answers no request.
                _ => [
                    &crate::raw_peer::frame_header(0xf2, 0, 0, 32, 32)[..16],
                    &1u64.to_ne_bytes(),
                    &[0; 8],
                ]
                .concat(),
            };
            let (ep, mut socket, _) =
                connect_raw_peer((&fixture, &setup), is_initiator, NO_EXTENSION, false).await;
            socket.write_all(&bytes).unwrap();
            expect_protocol_shutdown(
                MsgEndpointFixture {
                    ep,
                    domain_fixture: fixture,
                },
                socket,
            )
            .await;
            assert_eq!(region.load(8), Ok(0u64));
        }
    }
}

pub(crate) async fn peer_with_vendor_extension_gets_atomics_and_nacks(setup: Setup) {
    for is_initiator in [false, true] {
        let fixture = MsgDomainFixture::open(&setup).await;
        let region = fixture.domain.alloc(100, READ_WRITE).unwrap();
        let (ep, mut socket, _) = connect_raw_peer(
            (&fixture, &setup),
            is_initiator,
            vendor_extension(is_initiator, 0),
            false,
        )
        .await;
        let side = MsgEndpointFixture {
            ep,
            domain_fixture: fixture,
        };
        let progress_task = spawn_progress(&side);
        for number in 0..3u64 {
            let bytes = encode_fetch_sum(region.key(), 5);
            let split = 1 + number as usize * 20;
            socket.write_all(&bytes[..split]).unwrap();
            socket.write_all(&bytes[split..]).unwrap();
            let response = read_exact(&mut socket, 16 + 8 + 16).await;
            assert_eq!(
                (response[1], &response[16..24]),
                (0xf3, &(5 * number).to_ne_bytes()[..])
            );
            // An access with an unknown key is answered with a NACK.
            socket
                .write_all(&encode_fetch_sum(region.key() ^ 1 << 40, 5))
                .unwrap();
            assert_eq!(read_exact(&mut socket, 32).await[1], 0xf2);
        }
        assert_eq!(region.load(8), Ok(15u64));
        progress_task.abort();
    }
}
