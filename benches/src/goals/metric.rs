//! Metrics of goals, and how two of them have to relate.

use crate::options::{Bench, BenchOp, ProgressMode, WaitMode};
use crate::peers::{FabricUdp, FiPingpong, MeasuredLibrary, TokioSocket, UcxPerftest};

use Bench::{Bw, Lat, Rate};
use GoalBound::{MaxExcessNs, MaxRatio, MinRatio};
use Metric::{
    BytesPerIdleConnection, CacheLine, Constant, Fabric as Us, FabricAsSockets,
    FabricAsSocketsBatch, FabricAwaited, FabricBatch, FabricDatagram, FabricIdlePeers,
    FabricMapped, FabricWithModes, Memcpy, Peer, PeerPingPong, TcpSendRate, TcpSpinPingPong,
};

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Metric {
    /// The fabric in the standard configuration.
    Fabric(Bench, BenchOp, usize),
    /// The fabric, with completions taken from a queue in batches.
    FabricBatch(BenchOp, usize),
    /// Messages of the fabric that are awaited one by one, with 64 in flight.
    FabricAwaited(usize),
    /// The fabric, by loads and stores on a mapped region instead of operations.
    FabricMapped(Bench, BenchOp, usize),
    /// Half a round trip of the fabric, with this wait policy and progress model.
    FabricWithModes(WaitMode, ProgressMode, usize),
    /// The fabric with the window of the goals for sockets, and the machine's default congestion
    /// control, which the peers have.
    FabricAsSockets(Bench, BenchOp, usize),
    /// The same, with completions taken from a queue in batches.
    FabricAsSocketsBatch(BenchOp, usize),
    /// Half a round trip of the fabric while so many other peers are connected and idle.
    FabricIdlePeers(usize, usize),
    /// Memory of this process for each of so many idle connections, in bytes.
    BytesPerIdleConnection(usize),
    /// Half a round trip of the fabric's datagrams.
    FabricDatagram(usize),
    /// Another program.
    Peer(PeerProgram, Bench, BenchOp, usize),
    /// The bandwidth that such a program prints: the bytes of both directions of a ping-pong,
    /// divided by its time.
    PeerPingPong(PeerProgram, usize),
    /// Half a round trip of eight bytes over loopback TCP with non-blocking calls.
    TcpSpinPingPong,
    /// Eight-byte messages per second over loopback TCP, one call each.
    TcpSendRate,
    /// A fixed number of bytes.
    Constant(usize),
    /// A cache line from core to core.
    CacheLine,
    /// Copying memory on one core.
    Memcpy(usize),
}

/// A peer program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PeerProgram {
    Libfabric,
    LibfabricTcp,
    LibfabricUdp,
    Tokio,
    Ucx,
    UcxAm,
    UcxPosix,
}

/// How the two metrics have to relate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GoalBound {
    /// The fabric's value is at most this many times the other.
    MaxRatio(f64),
    /// The fabric's value is at least this many times the other.
    MinRatio(f64),
    /// The fabric's value is at most this many nanoseconds more.
    MaxExcessNs(f64),
}

/// A goal: title, the fabric's metric, the metric it is compared with, and the bound.
pub(super) type Goal = (&'static str, Metric, Metric, GoalBound);

impl GoalBound {
    pub(super) fn is_met(self, fabric: f64, other: f64) -> bool {
        match self {
            MaxRatio(times) => fabric <= other * times,
            MinRatio(times) => fabric >= other * times,
            MaxExcessNs(ns) => fabric <= other + ns,
        }
    }
}

impl PeerProgram {
    pub(super) fn peer(self) -> &'static dyn MeasuredLibrary {
        match self {
            Self::Libfabric => &FiPingpong::SHM,
            Self::LibfabricTcp => &FiPingpong::TCP,
            Self::LibfabricUdp => &FiPingpong::UDP,
            Self::Tokio => &TokioSocket::Tcp,
            Self::Ucx => &UcxPerftest::TAG,
            Self::UcxAm => &UcxPerftest::AM,
            Self::UcxPosix => &UcxPerftest::POSIX,
        }
    }

    /// Whether it reports only the mean of latencies.
    pub(super) fn reports_only_means(self) -> bool {
        matches!(
            self,
            Self::Libfabric | Self::LibfabricTcp | Self::LibfabricUdp
        )
    }
}

impl Metric {
    pub(super) fn size(self) -> usize {
        match self {
            Us(_, _, size)
            | FabricBatch(_, size)
            | FabricAwaited(size)
            | FabricMapped(_, _, size)
            | FabricAsSocketsBatch(_, size)
            | FabricWithModes(_, _, size)
            | Peer(_, _, _, size)
            | FabricAsSockets(_, _, size)
            | FabricIdlePeers(_, size)
            | FabricDatagram(size)
            | PeerPingPong(_, size)
            | Memcpy(size) => size,
            CacheLine | TcpSpinPingPong | TcpSendRate | BytesPerIdleConnection(_) | Constant(_) => {
                8
            }
        }
    }

    pub(super) fn name(self, provider: &str) -> String {
        match self {
            Us(..)
            | FabricBatch(..)
            | FabricAwaited(_)
            | FabricMapped(..)
            | FabricWithModes(..)
            | FabricAsSockets(..)
            | FabricAsSocketsBatch(..)
            | FabricIdlePeers(..)
            | BytesPerIdleConnection(_) => format!("fabric {provider}"),
            FabricDatagram(_) => FabricUdp.name().into(),
            Peer(program, ..) => program.peer().name().into(),
            PeerPingPong(program, _) => format!("{} MB/s", program.peer().name()),
            TcpSpinPingPong => "tcp socket, spin".into(),
            TcpSendRate => "one call each".into(),
            Constant(_) => "limit".into(),
            CacheLine => "cache line".into(),
            Memcpy(_) => "memcpy".into(),
        }
    }

    /// Formats a value of this metric with its unit.
    pub(super) fn format_value(self, value: f64) -> String {
        match self {
            Us(Lat, ..)
            | Peer(_, Lat, ..)
            | FabricWithModes(..)
            | CacheLine
            | FabricIdlePeers(..)
            | FabricDatagram(_)
            | TcpSpinPingPong => {
                format!("{:.3} us", value / 1e3)
            }
            Us(Bw, ..) | Memcpy(_) | PeerPingPong(..) => format!("{:.2} GB/s", value / 1e9),
            Us(Rate, ..)
            | FabricBatch(..)
            | FabricAwaited(_)
            | FabricAsSocketsBatch(..)
            | TcpSendRate => format!("{:.2} M/s", value / 1e6),
            BytesPerIdleConnection(_) | Constant(_) => format!("{:.1} KiB", value / 1024.0),
            Peer(_, bench, op, size)
            | FabricAsSockets(bench, op, size)
            | FabricMapped(bench, op, size) => Us(bench, op, size).format_value(value),
        }
    }
}
