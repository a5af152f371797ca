//! What is measured for goals, and how two such figures have to relate.

use crate::choice::{Bench, Drive, Op, Wait};
use crate::peers::{Datagrams, FiPingpong, Peer, Sockets, UcxPerftest};

use Bench::{Bw, Lat, Rate};
use Bound::{Above, AtLeast, AtMost};
use Figure::{
    Alike, AlikeBatch, Batch, Bounce, Crowd, Datagram, Driven, Limit, Line, Memcpy, Ours as Us,
    PerConnection, Pingpong, Sends, Theirs, Window,
};

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure {
    /// The fabric, in the way that is compared everywhere.
    Ours(Bench, Op, usize),
    /// The fabric, its completions taken from a queue, as many at a time as there are.
    Batch(Op, usize),
    /// The fabric, by calls on a window instead of operations.
    Window(Bench, Op, usize),
    /// Half a round trip of the fabric, waiting and moved on like this.
    Driven(Wait, Drive, usize),
    /// The fabric with as many messages under way as in the goals of sockets, and the congestion
    /// control of the machine, which others have.
    Alike(Bench, Op, usize),
    /// Likewise, and completions taken from a queue, as many at a time as there are.
    AlikeBatch(Op, usize),
    /// Half a round trip of the fabric while so many other peers are connected and silent.
    Crowd(usize, usize),
    /// Bytes of this process for one of so many silent connections.
    PerConnection(usize),
    /// Half a round trip of the fabric's datagrams.
    Datagram(usize),
    /// Somebody else's program.
    Theirs(Whose, Bench, Op, usize),
    /// What such a program calls its bandwidth: the bytes of both directions of a ping-pong, by its
    /// time.
    Pingpong(Whose, usize),
    /// Half a round trip of eight bytes over loopback TCP by plain calls that never sleep.
    Bounce,
    /// Messages of eight bytes over loopback TCP, one call each.
    Sends,
    /// So many bytes, and no more.
    Limit(usize),
    /// A cache line from core to core.
    Line,
    /// One core that copies memory.
    Memcpy(usize),
}

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Whose {
    Libfabric,
    LibfabricTcp,
    LibfabricUdp,
    Tokio,
    Ucx,
    UcxAm,
}

/// How the two figures have to relate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// Ours is at most so many times the other.
    AtMost(f64),
    /// Ours is at least so many times the other.
    AtLeast(f64),
    /// Ours is at most so many nanoseconds more.
    Above(f64),
}

/// A goal: what, which figure of ours, what it is held against, and how.
pub(super) type Goal = (&'static str, Figure, Figure, Bound);

impl Bound {
    pub(super) fn holds(self, ours: f64, other: f64) -> bool {
        match self {
            AtMost(times) => ours <= other * times,
            AtLeast(times) => ours >= other * times,
            Above(ns) => ours <= other + ns,
        }
    }
}

impl Whose {
    pub(super) fn peer(self) -> &'static dyn Peer {
        match self {
            Self::Libfabric => &FiPingpong::SHM,
            Self::LibfabricTcp => &FiPingpong::TCP,
            Self::LibfabricUdp => &FiPingpong::UDP,
            Self::Tokio => &Sockets::Tcp,
            Self::Ucx => &UcxPerftest::TAG,
            Self::UcxAm => &UcxPerftest::AM,
        }
    }

    /// Whether it says no more of latencies than their mean.
    pub(super) fn says_means(self) -> bool {
        matches!(
            self,
            Self::Libfabric | Self::LibfabricTcp | Self::LibfabricUdp
        )
    }
}

impl Figure {
    pub(super) fn size(self) -> usize {
        match self {
            Us(_, _, size)
            | Batch(_, size)
            | Window(_, _, size)
            | AlikeBatch(_, size)
            | Driven(_, _, size)
            | Theirs(_, _, _, size)
            | Alike(_, _, size)
            | Crowd(_, size)
            | Datagram(size)
            | Pingpong(_, size)
            | Memcpy(size) => size,
            Line | Bounce | Sends | PerConnection(_) | Limit(_) => 8,
        }
    }

    pub(super) fn name(self, provider: &str) -> String {
        match self {
            Us(..) | Batch(..) | Window(..) | Driven(..) | Alike(..) | AlikeBatch(..)
            | Crowd(..) | PerConnection(_) => format!("fabric {provider}"),
            Datagram(_) => Datagrams.name().into(),
            Theirs(whose, ..) => whose.peer().name().into(),
            Pingpong(whose, _) => format!("{} MB/s", whose.peer().name()),
            Bounce => "tcp socket, spin".into(),
            Sends => "a call each".into(),
            Limit(_) => "limit".into(),
            Line => "cache line".into(),
            Memcpy(_) => "memcpy".into(),
        }
    }

    /// A value of this figure with its unit.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Us(Lat, ..)
            | Theirs(_, Lat, ..)
            | Driven(..)
            | Line
            | Crowd(..)
            | Datagram(_)
            | Bounce => {
                format!("{:.3} us", value / 1e3)
            }
            Us(Bw, ..) | Memcpy(_) | Pingpong(..) => format!("{:.2} GB/s", value / 1e9),
            Us(Rate, ..) | Batch(..) | AlikeBatch(..) | Sends => format!("{:.2} M/s", value / 1e6),
            PerConnection(_) | Limit(_) => format!("{:.1} KiB", value / 1024.0),
            Theirs(_, bench, op, size) | Alike(bench, op, size) | Window(bench, op, size) => {
                Us(bench, op, size).show(value)
            }
        }
    }
}
