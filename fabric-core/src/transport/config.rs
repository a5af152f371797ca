//! The settings of a domain.

use std::time::Duration;

use super::{MessageModel, SocketIo};
use crate::sockets::SocketOptions;

/// The settings of a domain, beside its info. The defaults are those of the providers.
#[derive(Clone, Debug, Default)]
pub struct DomainConfig {
    /// How the program wants the domain to wait. The engine decides, also by the message model.
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
    /// Which threads use the domain. Transports get the mode of their locks from the engine.
    pub thread_mode: ThreadMode,
    /// Whether latency or bandwidth matters more.
    pub message_model: MessageModel,
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
