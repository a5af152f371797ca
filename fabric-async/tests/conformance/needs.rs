//! What scenarios need of a provider.

use fabric_async::{Caps, EpType};

/// What a scenario needs of a provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) caps: Caps,
    pub(crate) ep_type: Option<EpType>,
}

impl Needs {
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
impl From<Caps> for Needs {
    fn from(caps: Caps) -> Self {
        Self {
            caps,
            ep_type: Some(EpType::Rdm),
        }
    }
}

pub(crate) const MSG: Caps = Caps::MSG;
pub(crate) const ANY: Needs = Needs::any_type(MSG);
pub(crate) const DATAGRAMS: Needs = Needs::datagrams(SOURCE);
pub(crate) const GROUPS: Needs = Needs::datagrams(SOURCE.union(Caps::MULTICAST));
pub(crate) const CONNECTED: Needs = Needs::connected(MSG);
pub(crate) const CONNECTED_TAGGED: Needs = Needs::connected(BOTH.union(Caps::TAGGED_MULTI_RECV));
pub(crate) const CONNECTED_MULTI: Needs = Needs::connected(MSG.union(Caps::MULTI_RECV));
pub(crate) const CONNECTED_ATOMIC: Needs =
    Needs::connected(MSG.union(Caps::RMA).union(Caps::ATOMIC));
pub(crate) const CONNECTED_ATOMIC_EVENT: Needs = Needs::connected(
    MSG.union(Caps::RMA)
        .union(Caps::ATOMIC)
        .union(Caps::RMA_EVENT),
);
pub(crate) const CONNECTED_RMA: Needs = Needs::connected(MSG.union(Caps::RMA));
pub(crate) const CONNECTED_EVENT: Needs =
    Needs::connected(MSG.union(Caps::RMA).union(Caps::RMA_EVENT));
pub(crate) const TAGGED: Caps = Caps::TAGGED;
pub(crate) const BOTH: Caps = Caps::MSG.union(Caps::TAGGED);
pub(crate) const MULTI: Caps = BOTH.union(Caps::MULTI_RECV).union(Caps::TAGGED_MULTI_RECV);
pub(crate) const MULTI_DIRECTED: Caps = MULTI.union(Caps::SOURCE).union(Caps::DIRECTED_RECV);
pub(crate) const SOURCE: Caps = Caps::MSG.union(Caps::SOURCE);
pub(crate) const RMA: Caps = BOTH.union(Caps::RMA);
pub(crate) const RMA_SOURCE: Caps = RMA.union(Caps::SOURCE);
pub(crate) const RMA_EVENT: Caps = RMA.union(Caps::RMA_EVENT);
pub(crate) const ATOMIC: Caps = RMA.union(Caps::ATOMIC);
pub(crate) const FENCED: Caps = BOTH.union(Caps::FENCE);
pub(crate) const FENCED_ATOMIC: Caps = ATOMIC.union(Caps::FENCE);
pub(crate) const ATOMIC_EVENT: Caps = ATOMIC.union(Caps::RMA_EVENT);
pub(crate) const DIRECTED: Caps = BOTH.union(Caps::SOURCE).union(Caps::DIRECTED_RECV);
