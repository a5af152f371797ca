//! Receive contexts that several endpoints share (`fi_srx_context`).
//!
//! A shared context has an id among the endpoints and the bindings of one, but no transport
//! endpoint. A receive posted to it is an operation of that id, with its queue entries, counters
//! and limits. An endpoint that shares the context is called a *sharer*: the transport delivers the
//! messages of its peers to the context's receive queue (`endpoint_table`).
//!
//! The engine records at which endpoint each peer is connected, and assigns each peer a key in the
//! context. So peers are distinguished, and the completion can say which endpoint received.
//!
//! Decision: the context has a completion queue of its own. libfabric reports a receive at the
//! endpoint where the message arrives. Here a queue entry is reserved when the receive is posted,
//! so that no queue can overrun, and the endpoint is unknown then. With an entry reserved in the
//! queue of each endpoint, a shared receive would cost as many entries as there are endpoints. The
//! endpoints' counters count their own messages.
//!
//! The endpoints share one address vector, so that an address handle means the same peer at each of
//! them. Connected endpoints are the exception: each has an address vector with its peer, and the
//! context has an empty one. A message that is requeued in the context keeps its source if the
//! endpoint where the message arrived knows the handle.

use fabric_core::Result;
use fabric_core::completion::Transfer;
use fabric_core::rx::RxQueue;
use fabric_core::transport::EpId;

use super::domain::DomainHandle;
use super::endpoint_table::RxSource;
use super::progress::EngineState;
use super::state::bindings::Bindings;
use super::state::pending_work::FollowUp;

impl EngineState {
    /// Requests the progress that follows from a change of a shared context's queue.
    pub(crate) fn after_shared_rx_change(&mut self, context: EpId) {
        let changes = self.with_rx(context, |rx, _| (rx.has_work(), rx.take_declined()));
        let (has_work, declined) = changes.unwrap_or_default();
        if has_work {
            // The sender of a partial message waits, whether or not a task waits here.
            self.domain.pending_work.request_pass();
            self.domain.pending_work.request_rearm();
        }
        if declined {
            // A declined message may be accepted now.
            self.domain.pending_work.push(FollowUp::MakePass);
        }
    }

    /// Makes a pass over the shared contexts and the endpoints.
    #[cold]
    pub(crate) fn progress_with_shared_rx(&mut self) -> bool {
        let mut moved = self.poll_endpoints();
        // After the transport, so that a message that has just arrived is copied in this pass: the
        // program may not make another one.
        for index in 0..self.endpoints.shared_contexts().len() {
            let copied = self.copy_next_chunk(self.endpoints.shared_contexts()[index]);
            self.moved_connections += u64::from(copied);
            moved |= copied;
        }
        moved
    }

    /// Copies a chunk of a message of a shared context that is still in its sender's memory.
    fn copy_next_chunk(&mut self, context: EpId) -> bool {
        let sharers = self.domain.endpoints.sharing(context);
        let copied = self.with_rx(context, |rx, domain| {
            if !rx.has_work() {
                return None;
            }
            let copied = rx.copy_next_chunk(domain);
            if rx.has_work() {
                domain.pending_work.request_pass();
            }
            if sharers.is_empty() {
                rx.clear_acks();
            }
            Some(copied)
        });
        let Some(copied) = copied.flatten() else {
            return false;
        };
        for ep in sharers {
            // The endpoints send the acks to their peers.
            let _ = self.with_transport(ep, |transport, ctx| transport.on_rx_queue_changed(ctx));
        }
        copied
    }

    /// Returns whether a shared context has work to do before the driver sleeps.
    #[inline]
    pub(crate) fn shared_rx_has_work(&self) -> bool {
        let mut queues = self
            .endpoints
            .shared_contexts()
            .iter()
            .filter_map(|context| self.endpoints.own_rx(*context));
        queues.any(RxQueue::has_work)
    }
}

impl DomainHandle {
    /// Opens a receive context that endpoints can share (`fi_srx_context`). Its id is among theirs.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`](fabric_core::Error::ConcurrentUse).
    pub fn open_shared_rx(&self, bindings: Bindings) -> Result<EpId> {
        let mut locked = self.lock_or_refuse()?;
        let state = &mut *locked;
        let id = state.domain.endpoints.insert(bindings);
        let queue = RxQueue::shared(id);
        state.endpoints.insert(id, RxSource::Own(Box::new(queue)));
        Ok(id)
    }

    /// Returns the object id of the endpoint at which the message of a receive of this context
    /// arrived; `None` when that endpoint is closed.
    #[must_use]
    pub fn received_by(&self, context: EpId, transfer: &Transfer) -> Option<u64> {
        let locked = self.engine().lock();
        let endpoints = &locked.domain.endpoints;
        let sharer = endpoints.arrival_endpoint(context, transfer.peer())?;
        Some(endpoints.get(sharer)?.bindings().object_id)
    }
}
