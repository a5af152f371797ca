//! What is measured for goals, and how two such figures have to relate.

use crate::options::{Bench, BenchOp, ProgressMode, WaitMode};
use crate::peers::{BenchPeer, FabricUdp, FiPingpong, TokioSocket, UcxPerftest};

use Bench::{Bw, Lat, Rate};
use GoalBound::{AtLeast, AtMost, AtMostPlusNs};
use Metric::{
    BytesPerIdleConnection, CacheLine, Constant, Fabric as Us, FabricAsSockets,
    FabricAsSocketsBatch, FabricBatch, FabricDatagram, FabricIdlePeers, FabricWithModes, Memcpy,
    Peer, PeerPingPong, TcpSendRate, TcpSpinPingPong, Window,
};

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Metric {
    /// The fabric, in the way that is compared everywhere.
    Fabric(Bench, BenchOp, usize),
    /// The fabric, its completions taken from a queue, as many at a time as there are.
    FabricBatch(BenchOp, usize),
    /// The fabric, by calls on a window instead of operations.
    Window(Bench, BenchOp, usize),
    /// Half a round trip of the fabric, waiting and moved on like this.
    FabricWithModes(WaitMode, ProgressMode, usize),
    /// The fabric with as many messages under way as in the goals of sockets, and the congestion
    /// control of the machine, which others have.
    FabricAsSockets(Bench, BenchOp, usize),
    /// Likewise, and completions taken from a queue, as many at a time as there are.
    FabricAsSocketsBatch(BenchOp, usize),
    /// Half a round trip of the fabric while so many other peers are connected and silent.
    FabricIdlePeers(usize, usize),
    /// Bytes of this process for one of so many silent connections.
    BytesPerIdleConnection(usize),
    /// Half a round trip of the fabric's datagrams.
    FabricDatagram(usize),
    /// Somebody else's program.
    Peer(PeerProgram, Bench, BenchOp, usize),
    /// What such a program calls its bandwidth: the bytes of both directions of a ping-pong, by its
    /// time.
    PeerPingPong(PeerProgram, usize),
    /// Half a round trip of eight bytes over loopback TCP by plain calls that never sleep.
    TcpSpinPingPong,
    /// Messages of eight bytes over loopback TCP, one call each.
    TcpSendRate,
    /// So many bytes, and no more.
    Constant(usize),
    /// A cache line from core to core.
    CacheLine,
    /// One core that copies memory.
    Memcpy(usize),
}

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PeerProgram {
    Libfabric,
    LibfabricTcp,
    LibfabricUdp,
    Tokio,
    Ucx,
    UcxAm,
}

/// How the two figures have to relate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GoalBound {
    /// Ours is at most so many times the other.
    AtMost(f64),
    /// Ours is at least so many times the other.
    AtLeast(f64),
    /// Ours is at most so many nanoseconds more.
    AtMostPlusNs(f64),
}

/// A goal: what, which figure of ours, what it is held against, and how.
pub(super) type Goal = (&'static str, Metric, Metric, GoalBound);

impl GoalBound {
    pub(super) fn is_met(self, ours: f64, other: f64) -> bool {
        match self {
            AtMost(times) => ours <= other * times,
            AtLeast(times) => ours >= other * times,
            AtMostPlusNs(ns) => ours <= other + ns,
        }
    }
}

impl PeerProgram {
    pub(super) fn peer(self) -> &'static dyn BenchPeer {
        match self {
            Self::Libfabric => &FiPingpong::SHM,
            Self::LibfabricTcp => &FiPingpong::TCP,
            Self::LibfabricUdp => &FiPingpong::UDP,
            Self::Tokio => &TokioSocket::Tcp,
            Self::Ucx => &UcxPerftest::TAG,
            Self::UcxAm => &UcxPerftest::AM,
        }
    }

    /// Whether it says no more of latencies than their mean.
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
            | Window(_, _, size)
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
            | Window(..)
            | FabricWithModes(..)
            | FabricAsSockets(..)
            | FabricAsSocketsBatch(..)
            | FabricIdlePeers(..)
            | BytesPerIdleConnection(_) => format!("fabric {provider}"),
            FabricDatagram(_) => FabricUdp.name().into(),
            Peer(whose, ..) => whose.peer().name().into(),
            PeerPingPong(whose, _) => format!("{} MB/s", whose.peer().name()),
            TcpSpinPingPong => "tcp socket, spin".into(),
            TcpSendRate => "a call each".into(),
            Constant(_) => "limit".into(),
            CacheLine => "cache line".into(),
            Memcpy(_) => "memcpy".into(),
        }
    }

    /// A value of this figure with its unit.
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
            Us(Rate, ..) | FabricBatch(..) | FabricAsSocketsBatch(..) | TcpSendRate => {
                format!("{:.2} M/s", value / 1e6)
            }
            BytesPerIdleConnection(_) | Constant(_) => format!("{:.1} KiB", value / 1024.0),
            Peer(_, bench, op, size)
            | FabricAsSockets(bench, op, size)
            | Window(bench, op, size) => Us(bench, op, size).format_value(value),
        }
    }
}
