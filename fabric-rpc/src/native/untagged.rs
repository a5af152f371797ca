//! Untagged messages, which are of no call.
//!
//! Both sides receive tagged messages only, so untagged ones fill the share that their sender has
//! of the budget for unexpected messages. Then the fabric reads no more of that sender, and reports
//! it ([`EventKind::PeerOverBudget`](fabric_async::EventKind::PeerOverBudget)). So may messages of
//! calls that come faster than they are received, which is no violation. Receiving untagged
//! messages tells the two apart. A receive is posted only after such an event, since a message that
//! finds one receive alone takes a shorter path.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use fabric_async::{Endpoint, FiAddr, Operation};
use tokio::time::Instant;

/// How long untagged messages are received after the last event.
const TIME: Duration = Duration::from_secs(1);

/// The receive of untagged messages.
#[derive(Default)]
pub(super) struct UntaggedReceive(Option<Pending>);

struct Pending {
    ep: Endpoint,
    /// The only sender whose messages are received; `None` for all.
    from: Option<FiAddr>,
    until: Instant,
    /// `None` before the post.
    receive: Option<Operation<Vec<u8>>>,
}

impl UntaggedReceive {
    /// Begins to receive untagged messages, for a time.
    pub(super) fn begin(&mut self, ep: &Endpoint, from: Option<FiAddr>) {
        let receive = self.0.take().and_then(|pending| pending.receive);
        self.0 = Some(Pending {
            ep: ep.clone(),
            from,
            until: Instant::now() + TIME,
            receive,
        });
    }

    /// Returns the sender of an untagged message, which is discarded.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<FiAddr> {
        let Some(pending) = &mut self.0 else {
            return Poll::Pending;
        };
        loop {
            let receive = match &mut pending.receive {
                Some(receive) => receive,
                None => {
                    let receive = pending.ep.recv_into(Vec::new());
                    let started = match pending.from {
                        Some(sender) => receive.from(sender).start(),
                        None => receive.start(),
                    };
                    // Fails at the limit of posted receives; the next event begins anew.
                    let Ok(started) = started else { break };
                    pending.receive.insert(started)
                }
            };
            let Poll::Ready(received) = Pin::new(receive).poll(cx) else {
                // The time may be over before the first poll, if handlers take long.
                if Instant::now() < pending.until {
                    return Poll::Pending;
                }
                break;
            };
            pending.receive = None;
            let transfer = match received {
                Ok(done) => done.transfer,
                // As a rule the message is longer than the buffer.
                Err(failed) => failed.transfer,
            };
            // A sender without a handle has left.
            if let Some(sender) = transfer.source {
                return Poll::Ready(sender);
            }
        }
        self.0 = None;
        Poll::Pending
    }
}
