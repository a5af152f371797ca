//! What scenarios require of a provider.
//!
//! The constants combine an endpoint type with the capabilities that scenarios use; a name without
//! `CONNECTED`, `DATAGRAMS` or `ANY_EP_TYPE` means endpoints of type `FI_EP_RDM`. The methods add
//! requirements that capabilities do not express.

use fabric_async::{Caps, EpType, OpFlags};

/// The completion levels above `FI_TRANSMIT_COMPLETE`.
pub(crate) const LEVELS: [OpFlags; 2] = [OpFlags::MATCH_COMPLETE, OpFlags::DELIVERY_COMPLETE];

/// What a scenario requires of a provider.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Requirements {
    pub(crate) caps: Caps,
    /// The endpoint type; `None` where the scenario works with any.
    pub(crate) ep_type: Option<EpType>,
    /// Default flags of transmit operations that the provider offers.
    pub(crate) tx_op_flags: OpFlags,
    /// The lowest sufficient `rma_iov_limit`.
    pub(crate) rma_iov_limit: usize,
    /// Endpoints can bind a shared receive context.
    pub(crate) shared_rx: bool,
    /// Peers map each other's memory, and a peer's close is known at once.
    pub(crate) shared_memory: bool,
    /// Addresses are socket addresses.
    pub(crate) sockets: bool,
    /// Domains can require the bits of `mr_mode` that their name has.
    pub(crate) chosen_mr_mode: bool,
    /// The domain progresses automatically.
    pub(crate) auto_progress: bool,
    /// An event loop can drive the domain and block: manual progress, and not policy spin.
    pub(crate) event_loop: bool,
    /// Several threads may use a domain at the same time.
    pub(crate) other_threads: bool,
    /// Long messages can be copied once, by cross-memory attach.
    pub(crate) single_copy: bool,
    /// Loans are not copied.
    pub(crate) loans: bool,
    /// The provider refuses at least one of [`LEVELS`].
    pub(crate) lacks_a_level: bool,
}

impl Requirements {
    const fn new(ep_type: Option<EpType>, caps: Caps) -> Self {
        Self {
            caps,
            ep_type,
            tx_op_flags: OpFlags::empty(),
            rma_iov_limit: 0,
            shared_rx: false,
            shared_memory: false,
            sockets: false,
            chosen_mr_mode: false,
            auto_progress: false,
            event_loop: false,
            other_threads: false,
            single_copy: false,
            loans: false,
            lacks_a_level: false,
        }
    }

    /// Returns the requirements of scenarios of reliable datagram endpoints (`FI_EP_RDM`).
    const fn rdm(caps: Caps) -> Self {
        Self::new(Some(EpType::Rdm), caps)
    }

    /// Returns the requirements of scenarios of datagram endpoints (`FI_EP_DGRAM`).
    const fn datagrams(caps: Caps) -> Self {
        Self::new(Some(EpType::Dgram), caps)
    }

    /// Returns the requirements of scenarios of connected endpoints (`FI_EP_MSG`).
    const fn connected(caps: Caps) -> Self {
        Self::new(Some(EpType::Msg), caps)
    }

    /// Returns the requirements of scenarios of any endpoint type: their messages are few and
    /// short, so that datagrams inside one machine all arrive, in order.
    const fn any_type(caps: Caps) -> Self {
        Self::new(None, caps)
    }

    /// Requires more capabilities.
    const fn and(self, caps: Caps) -> Self {
        let caps = self.caps.union(caps);
        Self { caps, ..self }
    }

    /// Requires shared receive contexts.
    pub(crate) const fn shared_rx(self) -> Self {
        Self {
            shared_rx: true,
            ..self
        }
    }

    /// Requires `FI_MATCH_COMPLETE` and `FI_DELIVERY_COMPLETE`.
    pub(crate) const fn levels(self) -> Self {
        Self {
            tx_op_flags: LEVELS[0].union(LEVELS[1]),
            ..self
        }
    }

    /// Requires `FI_DELIVERY_COMPLETE`.
    pub(crate) const fn delivery_complete(self) -> Self {
        Self {
            tx_op_flags: OpFlags::DELIVERY_COMPLETE,
            ..self
        }
    }

    /// Requires that the provider refuses one of [`LEVELS`].
    pub(crate) const fn lacks_a_level(self) -> Self {
        Self {
            lacks_a_level: true,
            ..self
        }
    }

    /// Requires RMA operations with four remote segments.
    pub(crate) const fn rma_iov(self) -> Self {
        Self {
            rma_iov_limit: 4,
            ..self
        }
    }

    /// Requires that peers map each other's memory.
    pub(crate) const fn shared_memory(self) -> Self {
        Self {
            shared_memory: true,
            ..self
        }
    }

    /// Requires socket addresses.
    pub(crate) const fn sockets(self) -> Self {
        Self {
            sockets: true,
            ..self
        }
    }

    /// Requires domains that require bits of `mr_mode`.
    pub(crate) const fn chosen_mr_mode(self) -> Self {
        Self {
            chosen_mr_mode: true,
            ..self
        }
    }

    /// Requires automatic progress.
    pub(crate) const fn auto_progress(self) -> Self {
        Self {
            auto_progress: true,
            ..self
        }
    }

    /// Requires that several threads may use a domain at the same time.
    pub(crate) const fn other_threads(self) -> Self {
        Self {
            other_threads: true,
            ..self
        }
    }

    /// Requires that an event loop on another thread can drive the domain and block.
    pub(crate) const fn event_loop(self) -> Self {
        Self {
            event_loop: true,
            other_threads: true,
            ..self
        }
    }

    /// Requires that loans are not copied.
    pub(crate) const fn loans(self) -> Self {
        Self {
            loans: true,
            ..self
        }
    }

    /// Requires cross-memory attach.
    pub(crate) const fn single_copy(self) -> Self {
        Self {
            single_copy: true,
            ..self
        }
    }
}

pub(crate) const MSG: Requirements = Requirements::rdm(Caps::MSG);
pub(crate) const TAGGED: Requirements = Requirements::rdm(Caps::TAGGED);
pub(crate) const MSG_TAGGED: Requirements = MSG.and(Caps::TAGGED);
pub(crate) const SOURCE: Requirements = MSG.and(Caps::SOURCE);
pub(crate) const SOURCE_ERR: Requirements = ANY_EP_TYPE.and(Caps::SOURCE.union(Caps::SOURCE_ERR));
pub(crate) const SOURCE_ERR_RMA: Requirements = SOURCE_ERR.and(Caps::RMA);
pub(crate) const MULTI_RECV_SOURCE_ERR: Requirements =
    MULTI_RECV.and(Caps::SOURCE.union(Caps::SOURCE_ERR));
pub(crate) const DIRECTED: Requirements = MSG_TAGGED.and(Caps::SOURCE).and(Caps::DIRECTED_RECV);
pub(crate) const MULTI_RECV: Requirements = MSG_TAGGED
    .and(Caps::MULTI_RECV)
    .and(Caps::TAGGED_MULTI_RECV);
pub(crate) const MULTI_RECV_DIRECTED: Requirements =
    MULTI_RECV.and(Caps::SOURCE).and(Caps::DIRECTED_RECV);
pub(crate) const RMA: Requirements = MSG_TAGGED.and(Caps::RMA);
pub(crate) const RMA_SOURCE: Requirements = RMA.and(Caps::SOURCE);
pub(crate) const RMA_EVENT: Requirements = RMA.and(Caps::RMA_EVENT);
pub(crate) const ATOMIC: Requirements = RMA.and(Caps::ATOMIC);
pub(crate) const ATOMIC_RMA_EVENT: Requirements = ATOMIC.and(Caps::RMA_EVENT);
pub(crate) const FENCE: Requirements = MSG_TAGGED.and(Caps::FENCE);
pub(crate) const FENCE_ATOMIC: Requirements = ATOMIC.and(Caps::FENCE);

pub(crate) const ANY_EP_TYPE: Requirements = Requirements::any_type(Caps::MSG);
pub(crate) const HMEM: Requirements = ANY_EP_TYPE.and(Caps::HMEM);
pub(crate) const RMA_HMEM: Requirements = RMA.and(Caps::HMEM);

pub(crate) const DATAGRAMS: Requirements = Requirements::datagrams(Caps::MSG.union(Caps::SOURCE));
pub(crate) const MULTICAST: Requirements = DATAGRAMS.and(Caps::MULTICAST);

pub(crate) const CONNECTED: Requirements = Requirements::connected(Caps::MSG);
pub(crate) const CONNECTED_TAGGED: Requirements =
    CONNECTED.and(Caps::TAGGED).and(Caps::TAGGED_MULTI_RECV);
pub(crate) const CONNECTED_MULTI_RECV: Requirements = CONNECTED.and(Caps::MULTI_RECV);
pub(crate) const CONNECTED_FENCE: Requirements = CONNECTED.and(Caps::FENCE);
pub(crate) const CONNECTED_RMA: Requirements = CONNECTED.and(Caps::RMA);
pub(crate) const CONNECTED_RMA_EVENT: Requirements = CONNECTED_RMA.and(Caps::RMA_EVENT);
pub(crate) const CONNECTED_ATOMIC: Requirements = CONNECTED_RMA.and(Caps::ATOMIC);
pub(crate) const CONNECTED_ATOMIC_RMA_EVENT: Requirements = CONNECTED_ATOMIC.and(Caps::RMA_EVENT);
