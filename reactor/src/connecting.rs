//! Passive endpoints, and endpoints that are connected with one peer.
//!
//! What waits at a door waits with the provider; the hub knows how many there are, and who waits
//! for them. An endpoint that is connected has an address vector of its own with its peer in it, so
//! everything else is as with any other.

use std::task::{Context, Poll, Waker};

use fabric_core::event::EventKind;
use fabric_core::info::Info;
use fabric_core::provider::{EpId, Host, Joined, MAX_PRIVATE_DATA, Meeting, Request};
use fabric_core::tree::Class;
use fabric_core::{Address, Error, FiAddr, Result};

use crate::domain::Domain;
use crate::endpoints::heeded;
use crate::engine::State;
use crate::hub::{AvId, Bindings, Hub};
use crate::notes::Note;
use crate::shared::receiving;
use crate::vectors::Vector;

/// What is going on at the door of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Door {
    /// Requests that wait at a passive endpoint.
    requests: usize,
    /// What has become of an endpoint that was to be connected.
    outcome: Option<Result<Joined>>,
    waker: Option<Waker>,
}

impl Door {
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }
}

impl Hub {
    fn door(&mut self, ep: EpId) -> Option<&mut Door> {
        self.eps.get_mut(ep.0)?.door.as_deref_mut()
    }

    /// Somebody waits at a passive endpoint.
    pub(crate) fn knocked(&mut self, ep: EpId, peer: &Address, data: &[u8]) {
        let Some(door) = self.door(ep) else { return };
        door.requests += 1;
        self.answer_door(ep);
        self.event(
            ep,
            EventKind::ConnectionRequest {
                peer: peer.clone(),
                data: data.to_vec(),
            },
        );
    }

    /// An endpoint is connected, or will not be.
    pub(crate) fn has_joined(&mut self, ep: EpId, peer: &Address, joined: Result<Joined>) {
        let Some(row) = self.eps.get_mut(ep.0) else {
            return;
        };
        let Some(door) = row.door.as_deref_mut() else {
            return;
        };
        let kind = match &joined {
            Ok(joined) => {
                // It had no name before.
                self.later
                    .note(Note::Opened(row.bound.object, joined.name.clone()));
                EventKind::Connected {
                    peer: peer.clone(),
                    data: joined.data.clone(),
                }
            }
            Err(error) => EventKind::ConnectFailed {
                error: error.clone(),
            },
        };
        door.outcome = Some(joined);
        self.answer_door(ep);
        self.event(ep, kind);
    }

    /// Whoever waits at a door is to look.
    fn answer_door(&mut self, ep: EpId) {
        let waiter = self.door(ep).and_then(Door::take_waker);
        self.wake_waiter(waiter);
    }

    /// Nobody waits at this door any more.
    pub(crate) fn leave_door(&mut self, ep: EpId) {
        let waiter = self.door(ep).and_then(Door::take_waker);
        self.drop_waiter(waiter);
    }

    fn register_door(&mut self, ep: EpId, waker: &Waker) {
        let Some(door) = self.door(ep) else { return };
        let before = door.waker.replace(waker.clone());
        self.add_waiter(before);
    }
}

impl State {
    /// The request that has waited longest.
    fn take_request(&mut self, ep: EpId) -> Option<Request> {
        let request = self.provider.take_request(&mut self.hub, ep)?;
        if let Some(door) = self.hub.door(ep) {
            door.requests -= 1;
        }
        Some(request)
    }

    fn open_door(&mut self, bound: Bindings) -> EpId {
        let mut ep = Hub::new_ep(bound);
        ep.door = Some(Box::default());
        EpId(self.hub.eps.insert(ep))
    }
}

impl Domain {
    /// Opens a passive endpoint.
    ///
    /// # Errors
    /// What the provider refuses; nothing is left behind.
    pub fn listen(
        &self,
        info: &Info,
        at: Option<&Address>,
        bound: Bindings,
    ) -> Result<(EpId, Address)> {
        let object = bound.object;
        // Under auto progress the thread has to learn of the new descriptors' owner.
        self.with(|locked| {
            let id = locked.open_door(bound);
            let opened = locked.provider.listen(id, info, at);
            let address = opened.inspect_err(|_| drop(locked.hub.eps.remove(id.0)))?;
            locked.hub.later.note(Note::Opened(object, address.clone()));
            Ok((id, address))
        })
    }

    /// The request that has waited longest, after a pass, without waiting for one.
    #[must_use]
    pub fn try_request(&self, ep: EpId) -> Option<Request> {
        self.with(|locked| {
            // Callers come by descriptors, which a pass alone does not look at.
            locked.wake_up();
            locked.look();
            locked.pass();
            locked.take_request(ep)
        })
    }

    /// Drives until a request waits, and takes it; nothing once the endpoint is closed.
    pub fn poll_request(&self, ep: EpId, cx: &mut Context<'_>) -> Poll<Option<Request>> {
        let is_ready = |hub: &mut Hub| hub.door(ep).is_none_or(|door| door.requests > 0);
        let driven = self.engine().drive(cx.waker(), is_ready, |hub, waker| {
            hub.register_door(ep, waker)
        });
        driven.map(|mut locked| {
            let request = locked.take_request(ep);
            locked.leave();
            request
        })
    }

    /// Opens an address vector with this peer in it and nobody else.
    #[must_use]
    pub fn open_av_of(&self, peer: &Address) -> (AvId, FiAddr) {
        let mut vector = Vector::new(false);
        let number = vector.table.insert(peer.clone());
        (
            AvId(self.engine().lock().hub.vectors.insert(vector)),
            number,
        )
    }

    /// Opens an endpoint that is connected with one peer. What becomes of it
    /// [`poll_joined`](Self::poll_joined) tells.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_PRIVATE_DATA`] bytes; what is known to be impossible at once.
    /// Nothing is left behind, and a request is refused.
    pub fn open_connected(
        &self,
        info: &Info,
        meeting: Meeting<'_>,
        bound: Bindings,
    ) -> Result<EpId> {
        let len = meeting.data.len();
        if len > MAX_PRIVATE_DATA {
            return Err(Error::TooLong {
                what: "private data",
                len,
                limit: MAX_PRIVATE_DATA,
            });
        }
        let info = heeded(info, &bound);
        self.with(|locked| {
            let state = &mut **locked;
            let shared = state.context_of(&bound)?;
            let id = state.open_door(bound);
            let receiving = receiving(shared.as_ref(), self);
            let opened =
                state
                    .provider
                    .open_connected(&mut state.hub, id, &info, meeting, receiving);
            opened.inspect_err(|_| drop(state.hub.eps.remove(id.0)))?;
            state.ask_express(id);
            Ok(id)
        })
    }

    /// Drives until the endpoint is connected, or will not be.
    pub fn poll_joined(&self, ep: EpId, cx: &mut Context<'_>) -> Poll<Result<Joined>> {
        let outcome = |hub: &mut Hub| match hub.door(ep) {
            Some(door) => door.outcome.take(),
            None => Some(Err(Error::Closed(Class::Endpoint))),
        };
        self.engine().poll(cx.waker(), outcome, |hub, waker| {
            hub.register_door(ep, waker)
        })
    }

    /// What has become of an endpoint that was to be connected, if that is known.
    #[must_use]
    pub fn joined(&self, ep: EpId) -> Option<Result<Joined>> {
        self.engine().lock().hub.door(ep)?.outcome.take()
    }

    /// Ends the connection of an endpoint.
    ///
    /// # Errors
    /// [`Error::NotSupported`] when it has none of its own; [`Error::Closed`].
    pub fn shutdown(&self, ep: EpId) -> Result<()> {
        self.with(|locked| {
            let state = &mut **locked;
            state.provider.shutdown(&mut state.hub, ep)
        })
    }
}
