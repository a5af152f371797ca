//! A stream of bytes becomes messages.

use crate::address::FiAddr;
use crate::matching::{Envelope, PeerKey};
use crate::provider::Host;
use crate::rx::{LandingId, RxContext};

use super::{Broken, Frame, FrameKind, Order, Owed};

/// The longest message that is taken: more than any memory, and far from where sums of lengths would end.
pub const MAX_MESSAGE: usize = 1 << 40;

/// The receiving half of a connection. Takes bytes as they come, split anywhere.
#[derive(Debug)]
pub struct Inbox {
    order: Order,
    /// The message whose bytes come next.
    landing: Option<Landing>,
}

#[derive(Debug)]
struct Landing {
    id: LandingId,
    left: usize,
    owes: Option<Owed>,
}

/// What was made of some bytes.
#[derive(Debug, Default)]
pub struct Taken {
    /// How many were used. The rest is to be shown again, with more behind it.
    pub bytes: usize,
    /// The next message is nobody's, and there is no room for it: it stays where it is.
    pub held: bool,
    /// Acknowledgements the peer is to get.
    pub owed: Vec<Owed>,
}

impl Inbox {
    /// Of a connection whose peer writes integers like this.
    #[must_use]
    pub fn new(order: Order) -> Self {
        Self { order, landing: None }
    }

    /// Takes in what can be.
    ///
    /// # Errors
    /// What the peer did wrong; what came before it has been taken in.
    pub fn take(
        &mut self,
        bytes: &[u8],
        (peer, source): (PeerKey, Option<FiAddr>),
        rx: &mut RxContext,
        host: &mut dyn Host,
    ) -> Result<Taken, Broken> {
        let mut taken = Taken::default();
        loop {
            let rest = &bytes[taken.bytes..];
            if let Some(landing) = &mut self.landing {
                let count = landing.left.min(rest.len());
                if count == 0 {
                    return Ok(taken);
                }
                rx.land(host, landing.id, &&rest[..count]);
                landing.left -= count;
                taken.bytes += count;
                if landing.left == 0 {
                    taken.owed.extend(self.landing.take().and_then(|landing| landing.owes));
                }
                continue;
            }
            let Some((frame, header)) = Frame::decode(rest, self.order)? else { return Ok(taken) };
            let tag = match frame.kind {
                FrameKind::Message => None,
                FrameKind::Tagged(tag) => Some(tag),
                FrameKind::Ack => return Err(Broken("an acknowledgement of nothing")),
                FrameKind::OneSided => {
                    return Err(Broken("a one-sided operation, which this endpoint does not offer"));
                }
            };
            let Some(len) = usize::try_from(frame.payload).ok().filter(|len| *len <= MAX_MESSAGE) else {
                return Err(Broken("a message longer than memory"));
            };
            // The receive context counts arrivals.
            let envelope = Envelope { peer, source, tag, len, data: frame.data, arrival: 0, receipt: None };
            if let Some(message) = rest.get(header..).and_then(|rest| rest.get(..len)) {
                if !rx.deliver(host, envelope, &message) {
                    taken.held = true;
                    return Ok(taken);
                }
                taken.bytes += header + len;
                taken.owed.extend(frame.owes());
            } else {
                let Some(id) = rx.begin(host, envelope) else {
                    taken.held = true;
                    return Ok(taken);
                };
                taken.bytes += header;
                self.landing = Some(Landing { id, left: len, owes: frame.owes() });
            }
        }
    }

    /// Whether a message has begun to arrive and has not ended.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        self.landing.is_some()
    }

    /// The message that has begun to arrive and will not end, if there is one.
    pub fn end(&mut self) -> Option<LandingId> {
        self.landing.take().map(|landing| landing.id)
    }

    /// What waits at the start of these bytes, of which `take` has said that it was held.
    #[must_use]
    pub fn is_wanted(&self, bytes: &[u8], (peer, source): (PeerKey, Option<FiAddr>), rx: &RxContext) -> bool {
        let Ok(Some((frame, _))) = Frame::decode(bytes, self.order) else { return false };
        let tag = if let FrameKind::Tagged(tag) = frame.kind { Some(tag) } else { None };
        let len = usize::try_from(frame.payload).unwrap_or(usize::MAX);
        rx.would_take(&Envelope { peer, source, tag, len, data: frame.data, arrival: 0, receipt: None })
    }
}
