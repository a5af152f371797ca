//! What scenarios need of a provider.

use fabric_async::{Caps, EpType};

/// What a scenario needs of a provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requirements {
    pub(crate) caps: Caps,
    pub(crate) ep_type: Option<EpType>,
}

impl Requirements {
    /// Datagrams.
    pub(crate) const fn datagrams(caps: Caps) -> Self {
        Self {
            caps,
            ep_type: Some(EpType::Dgram),
        }
    }

    /// Endpoints that are connected with one peer each.
    pub(crate) const fn connected(caps: Caps) -> Self {
        Self {
            caps,
            ep_type: Some(EpType::Msg),
        }
    }

    /// Endpoints of any type: the messages are few and short, so that datagrams inside this machine
    /// all arrive, in order.
    pub(crate) const fn any_type(caps: Caps) -> Self {
        Self {
            caps,
            ep_type: None,
        }
    }
}

/// Unless said otherwise, scenarios are about reliable endpoints without connections.
impl From<Caps> for Requirements {
    fn from(caps: Caps) -> Self {
        Self {
            caps,
            ep_type: Some(EpType::Rdm),
        }
    }
}

pub(crate) const MSG: Caps = Caps::MSG;
pub(crate) const ANY_EP_TYPE: Requirements = Requirements::any_type(MSG);
pub(crate) const DATAGRAMS: Requirements = Requirements::datagrams(SOURCE);
pub(crate) const MULTICAST: Requirements = Requirements::datagrams(SOURCE.union(Caps::MULTICAST));
pub(crate) const CONNECTED: Requirements = Requirements::connected(MSG);
pub(crate) const CONNECTED_TAGGED: Requirements =
    Requirements::connected(MSG_TAGGED.union(Caps::TAGGED_MULTI_RECV));
pub(crate) const CONNECTED_MULTI_RECV: Requirements =
    Requirements::connected(MSG.union(Caps::MULTI_RECV));
pub(crate) const CONNECTED_ATOMIC: Requirements =
    Requirements::connected(MSG.union(Caps::RMA).union(Caps::ATOMIC));
pub(crate) const CONNECTED_ATOMIC_RMA_EVENT: Requirements = Requirements::connected(
    MSG.union(Caps::RMA)
        .union(Caps::ATOMIC)
        .union(Caps::RMA_EVENT),
);
pub(crate) const CONNECTED_RMA: Requirements = Requirements::connected(MSG.union(Caps::RMA));
pub(crate) const CONNECTED_RMA_EVENT: Requirements =
    Requirements::connected(MSG.union(Caps::RMA).union(Caps::RMA_EVENT));
pub(crate) const TAGGED: Caps = Caps::TAGGED;
pub(crate) const MSG_TAGGED: Caps = Caps::MSG.union(Caps::TAGGED);
pub(crate) const MULTI_RECV: Caps = MSG_TAGGED
    .union(Caps::MULTI_RECV)
    .union(Caps::TAGGED_MULTI_RECV);
pub(crate) const MULTI_RECV_DIRECTED: Caps =
    MULTI_RECV.union(Caps::SOURCE).union(Caps::DIRECTED_RECV);
pub(crate) const SOURCE: Caps = Caps::MSG.union(Caps::SOURCE);
pub(crate) const RMA: Caps = MSG_TAGGED.union(Caps::RMA);
pub(crate) const RMA_SOURCE: Caps = RMA.union(Caps::SOURCE);
pub(crate) const RMA_EVENT: Caps = RMA.union(Caps::RMA_EVENT);
pub(crate) const ATOMIC: Caps = RMA.union(Caps::ATOMIC);
pub(crate) const FENCE: Caps = MSG_TAGGED.union(Caps::FENCE);
pub(crate) const FENCE_ATOMIC: Caps = ATOMIC.union(Caps::FENCE);
pub(crate) const ATOMIC_RMA_EVENT: Caps = ATOMIC.union(Caps::RMA_EVENT);
pub(crate) const DIRECTED: Caps = MSG_TAGGED.union(Caps::SOURCE).union(Caps::DIRECTED_RECV);
