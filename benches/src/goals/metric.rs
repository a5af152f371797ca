//! Metrics of goals, and how two of them have to relate.

use crate::congestion;
use crate::measure::Plan;
use crate::options::{
    Api, Bench, BenchOp, MessageModelKind, ProgressMode, RuntimeKind, ThreadModelKind, WaitMode,
};
#[cfg(feature = "rpc")]
use crate::peers::CallService;
use crate::peers::{ByteStream, FabricUdp, FiPingpong, MeasuredLibrary, UcxPerftest};

use Bench::{Bw, Lat, Rate};
use GoalBound::{MaxExcessNs, MaxRatio, MinRatio};

/// Messages in flight in streams over sockets, and in streams of small messages that are awaited
/// one by one.
const WINDOW: usize = 64;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Metric {
    /// The fabric.
    Fabric(FabricCase),
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

/// A measurement of the fabric: the standard configuration, and what differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FabricCase {
    pub(super) bench: Bench,
    pub(super) op: BenchOp,
    pub(super) size: usize,
    api: Api,
    wait: WaitMode,
    progress: ProgressMode,
    threading: ThreadModelKind,
    msg_model: MessageModelKind,
    window: Option<usize>,
    has_system_congestion: bool,
    idle: usize,
    streams: usize,
    runtime: RuntimeKind,
}

impl FabricCase {
    /// The standard configuration: operations are awaited, both sides spin.
    pub(super) const fn new(bench: Bench, op: BenchOp, size: usize) -> Self {
        Self {
            bench,
            op,
            size,
            api: Api::Await,
            wait: WaitMode::Spin,
            progress: ProgressMode::Manual,
            threading: ThreadModelKind::Shared,
            msg_model: MessageModelKind::Default,
            window: None,
            has_system_congestion: false,
            idle: 0,
            streams: 0,
            runtime: RuntimeKind::Current,
        }
    }

    /// How completions are taken.
    pub(super) const fn api(self, api: Api) -> Self {
        Self { api, ..self }
    }

    /// The wait policy.
    pub(super) const fn wait(self, wait: WaitMode) -> Self {
        Self { wait, ..self }
    }

    /// Automatic progress.
    pub(super) const fn auto(self) -> Self {
        Self {
            progress: ProgressMode::Auto,
            ..self
        }
    }

    /// Domains of one thread.
    pub(super) const fn pinned(self) -> Self {
        Self {
            threading: ThreadModelKind::Pinned,
            ..self
        }
    }

    /// The message model.
    pub(super) const fn model(self, msg_model: MessageModelKind) -> Self {
        Self { msg_model, ..self }
    }

    /// A stream with 64 messages in flight.
    pub(super) const fn with_window(self) -> Self {
        Self {
            window: Some(WINDOW),
            ..self
        }
    }

    /// A stream with 64 messages in flight and the machine's default congestion control, which the
    /// peers have.
    pub(super) const fn as_sockets(self) -> Self {
        Self {
            has_system_congestion: true,
            ..self.with_window()
        }
    }

    /// While so many other peers are connected and idle.
    pub(super) const fn idle(self, idle: usize) -> Self {
        Self { idle, ..self }
    }

    /// While another endpoint of the domain streams messages, in a runtime of several threads,
    /// which use any core.
    pub(super) const fn beside_stream(self) -> Self {
        Self {
            streams: 1,
            runtime: RuntimeKind::Multi,
            ..self
        }
    }

    /// Changes a plan of the standard configuration to this measurement.
    pub(super) fn apply_to(self, plan: &mut Plan) {
        (plan.api, plan.wait, plan.progress) = (self.api, self.wait, self.progress);
        (plan.threading, plan.msg_model) = (self.threading, self.msg_model);
        (plan.idle, plan.streams) = (self.idle, self.streams);
        if self.runtime != plan.runtime {
            plan.runtime = self.runtime;
            plan.cores.fill((None, None));
        }
        plan.window = self.window.unwrap_or(plan.window);
        if self.has_system_congestion {
            plan.congestion = congestion::system_default();
        }
    }

    /// Returns what the message model adds to the name of the measurement.
    fn model_name(self) -> &'static str {
        match self.msg_model {
            MessageModelKind::Default => "",
            MessageModelKind::LowLatency => " low lat",
            MessageModelKind::HighBandwidth => " high bw",
            MessageModelKind::ForceLowLatency => " force",
        }
    }
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
    /// A service of calls.
    #[cfg(feature = "rpc")]
    Calls(CallService),
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
            Self::Tokio => &ByteStream::Tcp,
            Self::Ucx => &UcxPerftest::TAG,
            Self::UcxAm => &UcxPerftest::AM,
            Self::UcxPosix => &UcxPerftest::POSIX,
            #[cfg(feature = "rpc")]
            Self::Calls(service) => service.as_static(),
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
            Self::Fabric(case) => case.size,
            Self::Peer(_, _, _, size)
            | Self::FabricDatagram(size)
            | Self::PeerPingPong(_, size)
            | Self::Memcpy(size) => size,
            Self::CacheLine
            | Self::TcpSpinPingPong
            | Self::TcpSendRate
            | Self::BytesPerIdleConnection(_)
            | Self::Constant(_) => 8,
        }
    }

    pub(super) fn name(self, provider: &str) -> String {
        match self {
            Self::Fabric(case) => format!("fabric {provider}{}", case.model_name()),
            Self::BytesPerIdleConnection(_) => format!("fabric {provider}"),
            Self::FabricDatagram(_) => FabricUdp.name().into(),
            Self::Peer(program, ..) => program.peer().name().into(),
            Self::PeerPingPong(program, _) => format!("{} MB/s", program.peer().name()),
            Self::TcpSpinPingPong => "tcp socket, spin".into(),
            Self::TcpSendRate => "one call each".into(),
            Self::Constant(_) => "limit".into(),
            Self::CacheLine => "cache line".into(),
            Self::Memcpy(_) => "memcpy".into(),
        }
    }

    /// Formats a value of this metric with its unit.
    pub(super) fn format_value(self, value: f64) -> String {
        let of_bench = |bench| match bench {
            Lat => format!("{:.3} us", value / 1e3),
            Bw => format!("{:.2} GB/s", value / 1e9),
            Rate => format!("{:.2} M/s", value / 1e6),
        };
        match self {
            Self::Fabric(FabricCase { bench, .. }) | Self::Peer(_, bench, ..) => of_bench(bench),
            Self::CacheLine | Self::FabricDatagram(_) | Self::TcpSpinPingPong => of_bench(Lat),
            Self::Memcpy(_) | Self::PeerPingPong(..) => of_bench(Bw),
            Self::TcpSendRate => of_bench(Rate),
            Self::BytesPerIdleConnection(_) | Self::Constant(_) => {
                format!("{:.1} KiB", value / 1024.0)
            }
        }
    }
}
