//! The message models, and what each of them means.
//!
//! A program names a [`MessageModel`]. Only this file tells one from another: the engine and the
//! transports read the [`ModelSettings`] of the model.

use std::time::Duration;

/// What a domain or resource domain is optimized for (`enum ibv_exp_msg_model`).
///
/// | | [`Default`](Self::Default) | [`LowLatency`](Self::LowLatency) | [`HighBandwidth`](Self::HighBandwidth) | [`ForceLowLatency`](Self::ForceLowLatency) |
/// |---|---|---|---|---|
/// | messages of `post_all`, `inject_all` | one doorbell, or one write, for up to 32 | each at once | as `Default` | each at once |
/// | messages posted one by one, over `tcp` | the first after a pass at once, others with the next pass | each at once | all with the next pass | each at once |
/// | the same over `udp` | each at once | each at once | all with the next pass | each at once |
/// | connections over `shm` that every pass polls | active ones, and 8 idle ones | active ones, and 64 idle ones | as `Default` | all |
/// | longest spinning of a driver before it sleeps | 200 microseconds | 1 millisecond | 20 microseconds | 1 millisecond |
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
    /// As `LowLatency`, and waiting tasks always spin: the wait policy is [`Spin`] instead of
    /// [`Adaptive`]. A domain counts as one of the cores that the process
    /// may use; no thread is bound to a core. Opening fails with
    /// [`Error::NotReserved`](crate::Error::NotReserved) in these cases:
    ///
    /// * As many domains and resource domains of this model are open as the process may use cores.
    /// * The wait policy is [`Park`].
    /// * Over `tcp`, sockets are configured for epoll, or the kernel refuses an io_uring instance.
    ///
    /// [`Spin`]: super::WaitPolicy::Spin
    /// [`Adaptive`]: super::WaitPolicy::Adaptive
    /// [`Park`]: super::WaitPolicy::Park
    #[doc(alias = "IBV_EXP_MSG_FORCE_LOW_LATENCY")]
    ForceLowLatency,
}

/// When messages are written that the program posts one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Each at once.
    Off,
    /// The first after a pass at once, the others with the next pass.
    AfterFirst,
    /// All with the next pass.
    Always,
}

/// What a [`MessageModel`] means. The columns of its table are the constants of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    sends_at_once: bool,
    stream_batching: Batching,
    batches_datagrams: bool,
    polled_idle_connections: usize,
    polled_idle_endpoints: usize,
    max_driver_spin: Duration,
    polls_always_spin: bool,
    reserves_core: bool,
    requires_uring: bool,
}

impl ModelSettings {
    const DEFAULT: Self = Self {
        sends_at_once: false,
        stream_batching: Batching::AfterFirst,
        batches_datagrams: false,
        polled_idle_connections: 8,
        polled_idle_endpoints: 0,
        max_driver_spin: Duration::from_micros(200),
        polls_always_spin: false,
        reserves_core: false,
        requires_uring: false,
    };
    const LOW_LATENCY: Self = Self {
        sends_at_once: true,
        stream_batching: Batching::Off,
        polled_idle_connections: 64,
        max_driver_spin: Duration::from_millis(1),
        polls_always_spin: true,
        ..Self::DEFAULT
    };
    const HIGH_BANDWIDTH: Self = Self {
        stream_batching: Batching::Always,
        batches_datagrams: true,
        max_driver_spin: Duration::from_micros(20),
        ..Self::DEFAULT
    };
    const FORCE_LOW_LATENCY: Self = Self {
        polled_idle_connections: usize::MAX,
        polled_idle_endpoints: usize::MAX,
        reserves_core: true,
        requires_uring: true,
        ..Self::LOW_LATENCY
    };

    /// Returns the settings of a model.
    #[must_use]
    pub const fn of(model: MessageModel) -> Self {
        match model {
            MessageModel::Default => Self::DEFAULT,
            MessageModel::LowLatency => Self::LOW_LATENCY,
            MessageModel::HighBandwidth => Self::HIGH_BANDWIDTH,
            MessageModel::ForceLowLatency => Self::FORCE_LOW_LATENCY,
        }
    }

    /// Returns the model that the resource domains of a domain with this model have by default. A
    /// reserved core is for the domain alone.
    #[must_use]
    pub fn resource_domain_default(model: MessageModel) -> MessageModel {
        match model {
            MessageModel::ForceLowLatency => MessageModel::LowLatency,
            model => model,
        }
    }

    /// Returns whether each message leaves at once, also of those that are posted together.
    #[inline]
    #[must_use]
    pub fn sends_at_once(&self) -> bool {
        self.sends_at_once
    }

    /// Returns when a connection over a byte stream writes messages that are posted one by one.
    #[must_use]
    pub fn stream_batching(&self) -> Batching {
        self.stream_batching
    }

    /// Returns whether datagrams that are posted one by one are sent with the next pass.
    #[must_use]
    pub fn batches_datagrams(&self) -> bool {
        self.batches_datagrams
    }

    /// Returns how many connections of an endpoint, and endpoints, every pass polls even if they
    /// are idle, over a transport whose connections are found by polling memory.
    #[must_use]
    pub fn polled_idle_connections(&self) -> usize {
        self.polled_idle_connections
    }

    /// Returns how many endpoints every pass polls even if they are idle, over a transport whose
    /// descriptors report what has arrived.
    #[must_use]
    pub fn polled_idle_endpoints(&self) -> usize {
        self.polled_idle_endpoints
    }

    /// Returns how long a driver spins at most before it sleeps.
    #[must_use]
    pub fn max_driver_spin(&self) -> Duration {
        self.max_driver_spin
    }

    /// Returns whether polls spin also after spinning did not succeed.
    #[must_use]
    pub fn polls_always_spin(&self) -> bool {
        self.polls_always_spin
    }

    /// Returns whether the domain counts as one of the cores that the process may use. Its driver
    /// spins however many others do, and its waiting tasks spin.
    #[must_use]
    pub fn reserves_core(&self) -> bool {
        self.reserves_core
    }

    /// Returns whether the domain is opened only with io_uring, over a transport that can use it.
    #[must_use]
    pub fn requires_uring(&self) -> bool {
        self.requires_uring
    }
}

impl MessageModel {
    /// Returns whether each message leaves at once.
    #[must_use]
    pub fn sends_at_once(self) -> bool {
        ModelSettings::of(self).sends_at_once
    }
}
