//! The goals of each provider.

use super::metric::GoalBound::{MaxExcessNs, MaxRatio, MinRatio};
use super::metric::Metric::{
    BytesPerIdleConnection, CacheLine, Constant, Fabric as Us, FabricDatagram, Memcpy, Peer,
    PeerPingPong, TcpSendRate, TcpSpinPingPong,
};
use super::metric::PeerProgram::{
    Libfabric, LibfabricTcp, LibfabricUdp, Tokio, Ucx, UcxAm, UcxPosix,
};
use super::metric::{FabricCase, Goal, Metric};
use crate::options::Bench::{self, Bw, Lat, Rate};
use crate::options::{Api, BenchOp, MessageModelKind, WaitMode};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Connected, idle peers.
const IDLE_PEERS: usize = 1000;

const fn case(bench: Bench, op: BenchOp, size: usize) -> FabricCase {
    FabricCase::new(bench, op, size)
}

/// The rate of small messages with this message model, whose sides spin a while before they sleep.
const fn rate_with(model: MessageModelKind, api: Api) -> Metric {
    let rate = case(Rate, BenchOp::Send, 8).model(model);
    Us(rate.api(api).wait(WaitMode::Adaptive))
}

/// A half round trip with this message model, while another endpoint of the domain streams.
const fn beside_stream(model: MessageModelKind) -> Metric {
    Us(case(Lat, BenchOp::Send, 8).model(model).beside_stream())
}

/// Returns the goals of this provider in the order of printing; empty if there are none.
pub(super) fn for_provider(provider: &str) -> Vec<Goal> {
    let goals: &[Goal] = match provider {
        "shm" => SHM,
        "tcp" => TCP,
        "udp" => UDP,
        _ => &[],
    };
    #[cfg(feature = "rpc")]
    let goals = &[goals, super::calls::for_provider(provider)].concat();
    goals.to_vec()
}

/// The length of a half round trip is compared with the cache line, which no program undercuts, and
/// with what other libraries need on the same machine.
const SHM: &[Goal] = &[
    (
        "send",
        Us(case(Lat, BenchOp::Send, 8)),
        CacheLine,
        MaxExcessNs(45.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 8)),
        Peer(Ucx, Lat, BenchOp::Send, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 8)),
        Peer(Libfabric, Lat, BenchOp::Send, 8),
        MaxRatio(0.45),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 64)),
        Peer(Ucx, Lat, BenchOp::Send, 64),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 64)),
        Peer(Libfabric, Lat, BenchOp::Send, 64),
        MaxRatio(0.45),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 4 * KIB)),
        Peer(Ucx, Lat, BenchOp::Send, 4 * KIB),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 4 * KIB)),
        Peer(Libfabric, Lat, BenchOp::Send, 4 * KIB),
        MaxRatio(0.4),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 4 * KIB)),
        Peer(UcxAm, Lat, BenchOp::Send, 4 * KIB),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 64 * KIB)),
        Peer(Libfabric, Lat, BenchOp::Send, 64 * KIB),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, MIB)),
        Peer(Libfabric, Lat, BenchOp::Send, MIB),
        MaxRatio(1.0),
    ),
    (
        "send, batches",
        Us(case(Rate, BenchOp::Send, 8).api(Api::Batch)),
        Peer(Ucx, Bw, BenchOp::Send, 8),
        MinRatio(0.8),
    ),
    (
        "send, awaited",
        Us(case(Rate, BenchOp::Send, 8).with_window()),
        Peer(Ucx, Bw, BenchOp::Send, 8),
        MinRatio(0.35),
    ),
    (
        "stream",
        Us(case(Bw, BenchOp::Send, 4 * KIB)),
        Peer(UcxPosix, Bw, BenchOp::Send, 4 * KIB),
        MinRatio(1.1),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Send, 64 * KIB)),
        Peer(UcxPosix, Bw, BenchOp::Send, 64 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Send, MIB)),
        Peer(UcxPosix, Bw, BenchOp::Send, MIB),
        MinRatio(1.0),
    ),
    (
        "loan",
        Us(case(Lat, BenchOp::Loan, 64 * KIB)),
        Peer(Libfabric, Lat, BenchOp::Send, 64 * KIB),
        MaxRatio(0.6),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Loan, MIB)),
        Peer(Libfabric, Lat, BenchOp::Send, MIB),
        MaxRatio(0.7),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Loan, MIB)),
        Us(case(Lat, BenchOp::Send, 8)),
        MaxRatio(3.0),
    ),
    (
        "write",
        Us(case(Lat, BenchOp::Write, 8)),
        CacheLine,
        MaxRatio(1.3),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Write, 8)),
        Peer(Ucx, Lat, BenchOp::Write, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Rate, BenchOp::Write, 8)),
        Peer(Ucx, Bw, BenchOp::Write, 8),
        MinRatio(0.3),
    ),
    (
        "write, batches",
        Us(case(Rate, BenchOp::Write, 8).api(Api::Batch)),
        Peer(Ucx, Bw, BenchOp::Write, 8),
        MinRatio(0.5),
    ),
    (
        "write",
        Us(case(Bw, BenchOp::Write, 4 * KIB)),
        Memcpy(4 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, 64 * KIB)),
        Memcpy(64 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, MIB)),
        Memcpy(MIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, 4 * KIB)),
        Peer(Ucx, Bw, BenchOp::Write, 4 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, 64 * KIB)),
        Peer(Ucx, Bw, BenchOp::Write, 64 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, MIB)),
        Peer(Ucx, Bw, BenchOp::Write, MIB),
        MinRatio(1.0),
    ),
    (
        "write, mapped",
        Us(case(Lat, BenchOp::Write, 8).api(Api::Mapped)),
        CacheLine,
        MaxRatio(1.3),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Write, 8).api(Api::Mapped)),
        Peer(Ucx, Lat, BenchOp::Write, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Rate, BenchOp::Write, 8).api(Api::Mapped)),
        Peer(Ucx, Bw, BenchOp::Write, 8),
        MinRatio(1.0),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, 4 * KIB).api(Api::Mapped)),
        Memcpy(4 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, 4 * KIB).api(Api::Mapped)),
        Peer(Ucx, Bw, BenchOp::Write, 4 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Write, 64 * KIB).api(Api::Mapped)),
        Memcpy(64 * KIB),
        MinRatio(0.9),
    ),
    (
        "read",
        Us(case(Bw, BenchOp::Read, 4 * KIB)),
        Memcpy(4 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Read, 64 * KIB)),
        Memcpy(64 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Read, MIB)),
        Memcpy(MIB),
        MinRatio(0.9),
    ),
    (
        "fetch-add",
        Us(case(Lat, BenchOp::Atomic, 8)),
        CacheLine,
        MaxExcessNs(50.0),
    ),
    (
        "send, adaptive",
        Us(case(Lat, BenchOp::Send, 8).wait(WaitMode::Adaptive)),
        Us(case(Lat, BenchOp::Send, 8)),
        MaxRatio(1.3),
    ),
    (
        "send, auto",
        Us(case(Lat, BenchOp::Send, 8).auto()),
        Us(case(Lat, BenchOp::Send, 8)),
        MaxRatio(1.3),
    ),
    (
        "send, pinned",
        Us(case(Lat, BenchOp::Send, 8).pinned()),
        CacheLine,
        MaxExcessNs(30.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 8).pinned()),
        Peer(Ucx, Lat, BenchOp::Send, 8),
        MaxRatio(0.9),
    ),
    (
        "batches, pinned",
        Us(case(Rate, BenchOp::Send, 8).api(Api::Batch).pinned()),
        Peer(Ucx, Bw, BenchOp::Send, 8),
        MinRatio(1.0),
    ),
    (
        "awaited, pinned",
        Us(case(Rate, BenchOp::Send, 8).with_window().pinned()),
        Peer(Ucx, Bw, BenchOp::Send, 8),
        MinRatio(0.5),
    ),
    (
        "model, batches",
        rate_with(MessageModelKind::HighBandwidth, Api::Batch),
        rate_with(MessageModelKind::LowLatency, Api::Batch),
        MinRatio(1.2),
    ),
];

/// Streams are compared with a ping-pong, because libfabric has no program that streams over TCP;
/// both use the machine's default congestion control.
const TCP: &[Goal] = &[
    (
        "send",
        Us(case(Lat, BenchOp::Send, 8)),
        Peer(LibfabricTcp, Lat, BenchOp::Send, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(case(Lat, BenchOp::Send, 8)),
        TcpSpinPingPong,
        MaxRatio(1.15),
    ),
    (
        "send, parked",
        Us(case(Lat, BenchOp::Send, 8).wait(WaitMode::Park)),
        Peer(Tokio, Lat, BenchOp::Send, 8),
        MaxRatio(1.05),
    ),
    (
        "stream",
        Us(case(Bw, BenchOp::Send, 64 * KIB).as_sockets()),
        PeerPingPong(LibfabricTcp, 64 * KIB),
        MinRatio(1.2),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Send, 64 * KIB).as_sockets()),
        Peer(Tokio, Bw, BenchOp::Send, 64 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Send, MIB).as_sockets()),
        PeerPingPong(LibfabricTcp, MIB),
        MinRatio(1.2),
    ),
    (
        "",
        Us(case(Bw, BenchOp::Send, MIB).as_sockets()),
        Peer(Tokio, Bw, BenchOp::Send, MIB),
        MinRatio(1.0),
    ),
    (
        "rate",
        Us(case(Rate, BenchOp::Send, 8).as_sockets()),
        TcpSendRate,
        MinRatio(5.0),
    ),
    (
        "rate, batches",
        Us(case(Rate, BenchOp::Send, 8).api(Api::Batch).as_sockets()),
        TcpSendRate,
        MinRatio(5.0),
    ),
    (
        "1000 idle",
        Us(case(Lat, BenchOp::Send, 8).idle(IDLE_PEERS)),
        Us(case(Lat, BenchOp::Send, 8)),
        MaxRatio(1.2),
    ),
    (
        "memory per peer",
        BytesPerIdleConnection(IDLE_PEERS),
        Constant(32 * KIB),
        MaxRatio(1.0),
    ),
    (
        "beside a stream",
        beside_stream(MessageModelKind::LowLatency),
        beside_stream(MessageModelKind::HighBandwidth),
        MaxRatio(0.9),
    ),
    (
        "model, batches",
        rate_with(MessageModelKind::HighBandwidth, Api::Batch),
        rate_with(MessageModelKind::LowLatency, Api::Batch),
        MinRatio(1.5),
    ),
    (
        "model, awaited",
        rate_with(MessageModelKind::HighBandwidth, Api::Await),
        rate_with(MessageModelKind::LowLatency, Api::Await),
        MinRatio(1.5),
    ),
];

const UDP: &[Goal] = &[(
    "send",
    FabricDatagram(8),
    Peer(LibfabricUdp, Lat, BenchOp::Send, 8),
    MaxRatio(1.0),
)];
