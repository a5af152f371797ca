//! Rendezvous messages of this side, which stay in their buffers until the peer has read them.

use crate::completion::{Outcome, Transfer};
use crate::error::Error;
use crate::transport::{EndpointContext, EngineContext, OpKey};

use super::frame::ACCESS_VIOLATION;
use super::{ProtocolViolation, RmaIovList, WireRmaIov};

/// First key of rendezvous messages: far from the keys that programs usually choose.
const RENDEZVOUS_KEY_BASE: u64 = 0xfab1_0000_0000_0000;

/// The messages that the peer may read.
#[derive(Debug, Default)]
pub struct RendezvousSends {
    sends: Vec<RendezvousSend>,
    /// Offset of the next key from [`RENDEZVOUS_KEY_BASE`].
    next_key: u64,
}

#[derive(Debug)]
struct RendezvousSend {
    key: u64,
    op: OpKey,
    tag: Option<u64>,
    len: usize,
}

/// A range of the message of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageRange {
    pub(super) op: OpKey,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl RendezvousSends {
    /// Adds the message of this operation; returns its remote range, whose key is the id of the
    /// message.
    pub fn add(
        &mut self,
        op: OpKey,
        tag: Option<u64>,
        len: usize,
        ctx: &EndpointContext<'_, impl EngineContext>,
    ) -> WireRmaIov {
        // Keys of the domain's regions are skipped, so that reads of these regions still work.
        let key = loop {
            let key = RENDEZVOUS_KEY_BASE + self.next_key;
            self.next_key += 1;
            if ctx.region(key).is_none() {
                break key;
            }
        };
        self.sends.push(RendezvousSend { key, op, tag, len });
        WireRmaIov {
            addr: 0,
            len: len as u64,
            key,
        }
    }

    /// Returns whether no message waits to be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Returns the message ranges of a read request; `None` if the first remote range of the
    /// request is not a rendezvous message.
    pub(super) fn message_ranges(
        &self,
        iovs: &RmaIovList,
    ) -> Option<Result<Vec<MessageRange>, ProtocolViolation>> {
        let find = |iov: &WireRmaIov| self.sends.iter().find(|send| send.key == iov.key);
        find(iovs.first()?)?;
        Some(
            iovs.iter()
                .map(|iov| message_range(find(iov)?, iov))
                .collect::<Option<_>>()
                .ok_or(ACCESS_VIOLATION),
        )
    }

    /// Removes the message with this id, which the peer reports as read.
    ///
    /// # Errors
    /// [`ProtocolViolation`] when there is no such message.
    pub(super) fn take_completed(
        &mut self,
        id: u64,
    ) -> Result<CompletedRendezvous, ProtocolViolation> {
        let at = self.sends.iter().position(|send| send.key == id);
        let at = at.ok_or(ProtocolViolation(
            "acknowledgement of an unknown rendezvous message",
        ))?;
        Ok(CompletedRendezvous(self.sends.remove(at)))
    }

    /// Fails all messages: the peer will not read them any more.
    pub(super) fn fail(
        &mut self,
        ctx: &mut EndpointContext<'_, impl EngineContext>,
        error: &Error,
    ) {
        for send in self.sends.drain(..) {
            let transfer = Transfer::sent(0, send.tag);
            ctx.complete(send.op, Outcome::partial(transfer, error.clone()));
        }
    }
}

/// Converts a remote range of a read request to a range of the message; `None` when it exceeds the
/// message.
fn message_range(send: &RendezvousSend, iov: &WireRmaIov) -> Option<MessageRange> {
    let end = iov.addr.checked_add(iov.len)?;
    let is_within = end <= send.len as u64;
    is_within.then_some(MessageRange {
        op: send.op,
        at: iov.addr as usize,
        len: iov.len as usize,
    })
}

/// A message that the peer has read.
#[derive(Debug)]
pub(super) struct CompletedRendezvous(RendezvousSend);

impl CompletedRendezvous {
    pub(super) fn op(&self) -> OpKey {
        self.0.op
    }

    pub(super) fn complete(self, ctx: &mut EndpointContext<'_, impl EngineContext>) {
        ctx.complete(
            self.0.op,
            Outcome::ok(Transfer::sent(self.0.len, self.0.tag)),
        );
    }
}
