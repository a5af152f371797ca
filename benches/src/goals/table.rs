//! The goals of each provider.

use super::metric::Goal;
use super::metric::GoalBound::{MaxExcessNs, MaxRatio, MinRatio};
use super::metric::Metric::{
    BytesPerIdleConnection, CacheLine, Constant, Fabric as Us, FabricAsSockets,
    FabricAsSocketsBatch, FabricAwaited, FabricBatch, FabricDatagram, FabricIdlePeers,
    FabricMapped, FabricWithModes, Memcpy, Peer, PeerPingPong, TcpSendRate, TcpSpinPingPong,
};
use super::metric::PeerProgram::{
    Libfabric, LibfabricTcp, LibfabricUdp, Tokio, Ucx, UcxAm, UcxPosix,
};
use crate::options::Bench::{Bw, Lat, Rate};
use crate::options::{BenchOp, ProgressMode, WaitMode};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Connected, idle peers.
const IDLE_PEERS: usize = 1000;

/// Returns the goals of this provider in the order of printing; empty if there are none.
pub(super) fn for_provider(provider: &str) -> &'static [Goal] {
    match provider {
        "shm" => SHM,
        "tcp" => TCP,
        "udp" => UDP,
        _ => &[],
    }
}

/// The length of a half round trip is compared with the cache line, which no program undercuts, and
/// with what other libraries need on the same machine.
const SHM: &[Goal] = &[
    (
        "send",
        Us(Lat, BenchOp::Send, 8),
        CacheLine,
        MaxExcessNs(45.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 8),
        Peer(Ucx, Lat, BenchOp::Send, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 8),
        Peer(Libfabric, Lat, BenchOp::Send, 8),
        MaxRatio(0.45),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 64),
        Peer(Ucx, Lat, BenchOp::Send, 64),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 64),
        Peer(Libfabric, Lat, BenchOp::Send, 64),
        MaxRatio(0.45),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 4 * KIB),
        Peer(Ucx, Lat, BenchOp::Send, 4 * KIB),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 4 * KIB),
        Peer(Libfabric, Lat, BenchOp::Send, 4 * KIB),
        MaxRatio(0.4),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 4 * KIB),
        Peer(UcxAm, Lat, BenchOp::Send, 4 * KIB),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 64 * KIB),
        Peer(Libfabric, Lat, BenchOp::Send, 64 * KIB),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, MIB),
        Peer(Libfabric, Lat, BenchOp::Send, MIB),
        MaxRatio(1.0),
    ),
    (
        "send, batches",
        FabricBatch(BenchOp::Send, 8),
        Peer(Ucx, Bw, BenchOp::Send, 8),
        MinRatio(0.8),
    ),
    (
        "send, awaited",
        FabricAwaited(8),
        Peer(Ucx, Bw, BenchOp::Send, 8),
        MinRatio(0.35),
    ),
    (
        "stream",
        Us(Bw, BenchOp::Send, 4 * KIB),
        Peer(UcxPosix, Bw, BenchOp::Send, 4 * KIB),
        MinRatio(1.1),
    ),
    (
        "",
        Us(Bw, BenchOp::Send, 64 * KIB),
        Peer(UcxPosix, Bw, BenchOp::Send, 64 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(Bw, BenchOp::Send, MIB),
        Peer(UcxPosix, Bw, BenchOp::Send, MIB),
        MinRatio(1.0),
    ),
    (
        "loan",
        Us(Lat, BenchOp::Loan, 64 * KIB),
        Peer(Libfabric, Lat, BenchOp::Send, 64 * KIB),
        MaxRatio(0.6),
    ),
    (
        "",
        Us(Lat, BenchOp::Loan, MIB),
        Peer(Libfabric, Lat, BenchOp::Send, MIB),
        MaxRatio(0.7),
    ),
    (
        "",
        Us(Lat, BenchOp::Loan, MIB),
        Us(Lat, BenchOp::Send, 8),
        MaxRatio(3.0),
    ),
    (
        "write",
        Us(Lat, BenchOp::Write, 8),
        CacheLine,
        MaxRatio(1.3),
    ),
    (
        "",
        Us(Lat, BenchOp::Write, 8),
        Peer(Ucx, Lat, BenchOp::Write, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Rate, BenchOp::Write, 8),
        Peer(Ucx, Bw, BenchOp::Write, 8),
        MinRatio(0.3),
    ),
    (
        "write, batches",
        FabricBatch(BenchOp::Write, 8),
        Peer(Ucx, Bw, BenchOp::Write, 8),
        MinRatio(0.5),
    ),
    (
        "write",
        Us(Bw, BenchOp::Write, 4 * KIB),
        Memcpy(4 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(Bw, BenchOp::Write, 64 * KIB),
        Memcpy(64 * KIB),
        MinRatio(0.9),
    ),
    ("", Us(Bw, BenchOp::Write, MIB), Memcpy(MIB), MinRatio(0.9)),
    (
        "",
        Us(Bw, BenchOp::Write, 4 * KIB),
        Peer(Ucx, Bw, BenchOp::Write, 4 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(Bw, BenchOp::Write, 64 * KIB),
        Peer(Ucx, Bw, BenchOp::Write, 64 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        Us(Bw, BenchOp::Write, MIB),
        Peer(Ucx, Bw, BenchOp::Write, MIB),
        MinRatio(1.0),
    ),
    (
        "write, mapped",
        FabricMapped(Lat, BenchOp::Write, 8),
        CacheLine,
        MaxRatio(1.3),
    ),
    (
        "",
        FabricMapped(Lat, BenchOp::Write, 8),
        Peer(Ucx, Lat, BenchOp::Write, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        FabricMapped(Rate, BenchOp::Write, 8),
        Peer(Ucx, Bw, BenchOp::Write, 8),
        MinRatio(1.0),
    ),
    (
        "",
        FabricMapped(Bw, BenchOp::Write, 4 * KIB),
        Memcpy(4 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        FabricMapped(Bw, BenchOp::Write, 4 * KIB),
        Peer(Ucx, Bw, BenchOp::Write, 4 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        FabricMapped(Bw, BenchOp::Write, 64 * KIB),
        Memcpy(64 * KIB),
        MinRatio(0.9),
    ),
    (
        "read",
        Us(Bw, BenchOp::Read, 4 * KIB),
        Memcpy(4 * KIB),
        MinRatio(0.9),
    ),
    (
        "",
        Us(Bw, BenchOp::Read, 64 * KIB),
        Memcpy(64 * KIB),
        MinRatio(0.9),
    ),
    ("", Us(Bw, BenchOp::Read, MIB), Memcpy(MIB), MinRatio(0.9)),
    (
        "fetch-add",
        Us(Lat, BenchOp::Atomic, 8),
        CacheLine,
        MaxExcessNs(50.0),
    ),
    (
        "send, adaptive",
        FabricWithModes(WaitMode::Adaptive, ProgressMode::Manual, 8),
        Us(Lat, BenchOp::Send, 8),
        MaxRatio(1.3),
    ),
    (
        "send, auto",
        FabricWithModes(WaitMode::Spin, ProgressMode::Auto, 8),
        Us(Lat, BenchOp::Send, 8),
        MaxRatio(1.3),
    ),
];

/// Streams are compared with a ping-pong, because libfabric has no program that streams over TCP;
/// both use the machine's default congestion control.
const TCP: &[Goal] = &[
    (
        "send",
        Us(Lat, BenchOp::Send, 8),
        Peer(LibfabricTcp, Lat, BenchOp::Send, 8),
        MaxRatio(1.0),
    ),
    (
        "",
        Us(Lat, BenchOp::Send, 8),
        TcpSpinPingPong,
        MaxRatio(1.15),
    ),
    (
        "send, parked",
        FabricWithModes(WaitMode::Park, ProgressMode::Manual, 8),
        Peer(Tokio, Lat, BenchOp::Send, 8),
        MaxRatio(1.05),
    ),
    (
        "stream",
        FabricAsSockets(Bw, BenchOp::Send, 64 * KIB),
        PeerPingPong(LibfabricTcp, 64 * KIB),
        MinRatio(1.2),
    ),
    (
        "",
        FabricAsSockets(Bw, BenchOp::Send, 64 * KIB),
        Peer(Tokio, Bw, BenchOp::Send, 64 * KIB),
        MinRatio(1.0),
    ),
    (
        "",
        FabricAsSockets(Bw, BenchOp::Send, MIB),
        PeerPingPong(LibfabricTcp, MIB),
        MinRatio(1.2),
    ),
    (
        "",
        FabricAsSockets(Bw, BenchOp::Send, MIB),
        Peer(Tokio, Bw, BenchOp::Send, MIB),
        MinRatio(1.0),
    ),
    (
        "rate",
        FabricAsSockets(Rate, BenchOp::Send, 8),
        TcpSendRate,
        MinRatio(5.0),
    ),
    (
        "rate, batches",
        FabricAsSocketsBatch(BenchOp::Send, 8),
        TcpSendRate,
        MinRatio(5.0),
    ),
    (
        "1000 idle",
        FabricIdlePeers(IDLE_PEERS, 8),
        Us(Lat, BenchOp::Send, 8),
        MaxRatio(1.2),
    ),
    (
        "memory per peer",
        BytesPerIdleConnection(IDLE_PEERS),
        Constant(32 * KIB),
        MaxRatio(1.0),
    ),
];

const UDP: &[Goal] = &[(
    "send",
    FabricDatagram(8),
    Peer(LibfabricUdp, Lat, BenchOp::Send, 8),
    MaxRatio(1.0),
)];
