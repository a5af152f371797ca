//! Posting of multi-receives (`state/multi_recv`), and streams of their messages.

use std::task::{Context, Poll};

use bytes::BytesMut;
use fabric_core::completion::Failed;
use fabric_core::matching::RecvSpec;
use fabric_core::transport::{EpId, OpKey};

use super::domain::DomainHandle;
use super::post::refused;
use super::progress::EngineState;
use super::state::multi_recv::{MultiRecvItem, MultiRecvTarget};

impl EngineState {
    /// Closes a multi-receive to further messages. Messages that have arrived are still reported.
    /// Returns false if it took no more messages before.
    pub(crate) fn cancel_multi_recv(&mut self, key: OpKey) -> bool {
        let Some((id, ep, newly_closed)) = self.domain.close_multi_recv(key) else {
            return false;
        };
        let canceled = newly_closed && self.cancel(ep, key);
        if canceled {
            self.domain.end_canceled_multi_recv(id);
        }
        canceled
    }

    /// Detaches a multi-receive whose stream was dropped: messages that have arrived and were not
    /// taken go to other receives, in order.
    pub(crate) fn detach_multi_recv(&mut self, key: OpKey) -> BytesMut {
        let Some((id, ep, _)) = self.domain.close_multi_recv(key) else {
            return BytesMut::new();
        };
        // These messages arrived before those that still wait for the multi-receive, which `cancel`
        // passes on.
        for part in self.domain.multi_recvs.take_messages(id) {
            self.detach(part);
        }
        self.cancel(ep, key);
        self.domain.remove_multi_recv(id, key)
    }
}

impl DomainHandle {
    /// Posts a receive that takes several messages into the spare capacity of this empty buffer
    /// (`FI_MULTI_RECV`), until fewer than `min_free` bytes are left or a message does not fit.
    ///
    /// # Errors
    /// As [`DomainHandle::recv`], with the buffer; [`Error::Invalid`](fabric_core::Error::Invalid)
    /// for a completion queue of one entry.
    #[allow(clippy::result_large_err)] // as of every post
    pub fn multi_recv(
        &self,
        ep: EpId,
        spec: RecvSpec,
        buf: BytesMut,
        min_free: usize,
        sink: MultiRecvTarget,
    ) -> Result<OpKey, Failed<BytesMut>> {
        let Some(mut locked) = self.engine().lock_or_refuse() else {
            return Err(refused(buf));
        };
        let inserted = locked
            .domain
            .insert_multi_recv(ep, spec, buf, min_free, sink);
        if let Ok(key) = inserted {
            locked.endpoints.add_multi_recv_queue(ep);
            locked.post_to_rx(ep, key, |rx, domain| rx.post_multi(domain, key, spec));
        }
        locked.finish();
        inserted
    }

    /// Drives the domain until a multi-receive has a message for its stream, or has ended: it must
    /// not be polled again after the end.
    pub fn poll_multi_recv(&self, key: OpKey, cx: &mut Context<'_>) -> Poll<MultiRecvItem> {
        self.engine().poll(
            cx.waker(),
            |domain| domain.take_multi_recv_item(key),
            |domain, waker| domain.register_op_waker(key, waker),
        )
    }

    /// Closes a multi-receive to further messages; messages that have arrived are still reported,
    /// and then the end.
    pub fn cancel_multi_recv(&self, key: OpKey) {
        self.with_engine(|locked| {
            locked.cancel_multi_recv(key);
        });
    }

    /// Detaches a multi-receive whose stream was dropped: messages that were not taken go to other
    /// receives. Returns the rest of the buffer.
    pub fn detach_multi_recv(&self, key: OpKey) -> BytesMut {
        self.with_engine(|locked| locked.detach_multi_recv(key))
    }
}
