//! The settings of a domain.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::SocketIo;
use crate::sockets::SocketOptions;

/// The settings of a domain, beside its info. The defaults are those of the providers.
#[derive(Clone, Debug, Default)]
pub struct DomainConfig {
    /// How the domain waits.
    pub wait_policy: WaitPolicy,
    /// The minimum length in bytes of messages that are copied once, directly between the
    /// processes, where possible; `usize::MAX` turns single copy off in both directions.
    pub single_copy_threshold: Option<usize>,
    /// How many bytes of loans may exist at a time.
    pub loan_limit: Option<usize>,
    /// How sockets are waited for.
    pub socket_io: SocketIo,
    /// The options of sockets.
    pub socket_options: SocketOptions,
    /// The time after which the connection of a message that has begun and makes no progress ends;
    /// `Some(None)` for never.
    pub progress_timeout: Option<Option<Duration>>,
    /// Which threads use the domain.
    pub thread_mode: ThreadMode,
    /// What the locks of a transport share with the lock of the domain, set by the engine. The
    /// crate that has the locks knows the type.
    pub exclusion: Option<Arc<dyn Any + Send + Sync>>,
    /// Whether latency or bandwidth matters more.
    pub message_model: MessageModel,
}

/// What a domain or resource domain is optimized for (`enum ibv_exp_msg_model`).
///
/// | | [`Default`](Self::Default) | [`LowLatency`](Self::LowLatency) | [`HighBandwidth`](Self::HighBandwidth) | [`ForceLowLatency`](Self::ForceLowLatency) |
/// |---|---|---|---|---|
/// | messages of `post_all`, `inject_all` | one doorbell, or one write, for up to 32 | each at once | as `Default` | each at once |
/// | messages posted one by one, over `tcp` | the first after a pass at once, others with the next pass | each at once | all with the next pass | each at once |
/// | the same over `udp` | each at once | each at once | all with the next pass | each at once |
/// | connections over `shm` that every pass polls | active ones, and 8 idle ones | active ones, and 64 idle ones | as `Default` | all |
/// | longest spinning of a driver before it sleeps | 100 microseconds | 1 millisecond | 20 microseconds | 1 millisecond |
/// | connected endpoints over `tcp` that every pass polls | active ones | active ones | active ones | all |
/// | a task's poll spins | if spinning has recently found work | always | as `Default` | always |
/// | sockets over `tcp` | as configured | as configured | as configured | io_uring |
/// | counts as one of the cores that the process may use | no | no | no | yes |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_exp_msg_model")]
pub enum MessageModel {
    /// A message that is sent alone leaves at once; messages that are sent together share a
    /// doorbell or a system call.
    #[default]
    #[doc(alias = "IBV_EXP_MSG_DEFAULT")]
    Default,
    /// Each message leaves at once, and threads spin longer.
    #[doc(alias = "IBV_EXP_MSG_LOW_LATENCY")]
    LowLatency,
    /// Messages leave together. A message that is posted or started leaves with the next pass: when
    /// a task polls an operation or a queue of the domain, or the driver runs. A message that is
    /// awaited leaves at once.
    #[doc(alias = "IBV_EXP_MSG_HIGH_BW")]
    HighBandwidth,
    /// As `LowLatency`, and waiting tasks always spin: the wait policy is [`WaitPolicy::Spin`]
    /// instead of [`WaitPolicy::Adaptive`]. A domain counts as one of the cores that the process
    /// may use; no thread is bound to a core. Opening fails with
    /// [`Error::NotReserved`](crate::Error::NotReserved) in these cases:
    ///
    /// * As many domains and resource domains of this model are open as the process may use cores.
    /// * The wait policy is [`WaitPolicy::Park`].
    /// * Over `tcp`, sockets are configured for epoll, or the kernel refuses an io_uring instance.
    #[doc(alias = "IBV_EXP_MSG_FORCE_LOW_LATENCY")]
    ForceLowLatency,
}

impl MessageModel {
    /// Returns whether each message leaves at once.
    #[must_use]
    pub fn sends_at_once(self) -> bool {
        matches!(self, Self::LowLatency | Self::ForceLowLatency)
    }
}

/// Which threads use a domain (`enum fi_threading`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadMode {
    /// Any thread, at any time.
    #[default]
    Shared,
    /// Only the thread that opens the domain.
    Pinned,
    /// One thread at a time; a second one is refused or waits.
    Serial,
}

/// How a domain waits (`FI_WAIT_NONE`, `FI_WAIT_UNSPEC`, `FI_WAIT_FD`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "fi_wait_obj")]
#[doc(alias = "FI_WAIT_NONE")]
#[doc(alias = "FI_WAIT_UNSPEC")]
#[doc(alias = "FI_WAIT_FD")]
pub enum WaitPolicy {
    /// Never sleeps: a pending operation keeps its task runnable. Lowest latency, one busy core.
    /// Other tasks of the same executor run in between.
    Spin,
    /// Spins for a while, longer if messages came soon lately, then sleeps until the peer rings the
    /// doorbell.
    #[default]
    Adaptive,
    /// Sleeps without spinning. Lowest CPU use; every message to a sleeping receiver costs a kernel
    /// wake-up.
    Park,
}
