//! Sending answers: one for each request.
//!
//! A short answer for which the ring or the socket has room is sent at once. Any other answer is
//! counted, and sent by a task of its own, which no cancellation ends.
//!
//! Few answers of a client are posted at a time, since a posted one has a transmit credit of the
//! endpoint: clients that take no answers must leave credits to the others. A client that has not
//! taken a posted answer in time is disconnected. If all credits are in use, it is the client with
//! the most posted answers, and not the one whose answer waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::{Error, FiAddr};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::super::super::wire::{MessageKind, OutgoingMessage, PostedSend, StartedSend};
use super::super::super::{Response, Status};
use super::RequestTable;
use super::usage::RequestUsage;

/// The longest answer that is sent without a task.
const MAX_SHORT_LEN: usize = 8 << 10;

/// The number of answers of a client that are posted at a time.
const MAX_POSTED: usize = 32;

/// The number of refusals that wait for a client. With one more the client is disconnected.
const MAX_WAITING_REFUSALS: usize = 8192;
/// The number of refusals that wait for all clients. With one more, the client with the most is
/// disconnected.
const MAX_ALL_WAITING_REFUSALS: usize = 8 * MAX_WAITING_REFUSALS;

impl RequestTable {
    /// Sends the answer of a request. An answer that has to wait for the client is sent by a task;
    /// a client for which too many wait, or one waits for too long, is disconnected.
    pub(in crate::native::server) fn answer(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        result: Result<Response, Status>,
    ) {
        if let Some(answer) = self.try_answer(client, id, result) {
            let bytes = answer.bytes_in_memory();
            self.send_later(client, id, answer, Waiting::Answer { bytes });
        }
    }

    /// Sends the status of a request for which no handler was started. Waits as
    /// [`answer`](Self::answer) does, but a shutdown does not wait for it.
    pub(in crate::native::server) fn refuse(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        status: Status,
    ) {
        if let Some(answer) = self.try_answer(client, id, Err(status)) {
            self.send_later(client, id, answer, Waiting::Refusal);
        }
    }

    fn send_later(self: &Arc<Self>, client: FiAddr, id: u64, answer: Unsent, kind: Waiting) {
        let Some(waiting) = self.insert_waiting(client, kind) else {
            return self.disconnect(client, "too many answers wait for the client");
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(waiting.send(id, answer))),
            Err(_) => self.disconnect(client, "the runtime has ended"),
        }
    }

    /// Counts an answer that waits for its client. `None` if too many wait for this client.
    fn insert_waiting(self: &Arc<Self>, client: FiAddr, kind: Waiting) -> Option<WaitingAnswer> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let of_client = state.clients.entry(client).or_default();
        let (is_full, exceeds_all) = match kind {
            // More than handlers can have given.
            Waiting::Answer { .. } => {
                let limit = self.limits.per_client.saturating_mul(3);
                (of_client.usage.waiting.count >= limit, false)
            }
            Waiting::Refusal => (
                of_client.usage.refusals >= MAX_WAITING_REFUSALS,
                state.usage.refusals >= MAX_ALL_WAITING_REFUSALS,
            ),
        };
        if is_full {
            return None;
        }
        kind.add_to(&mut of_client.usage);
        kind.add_to(&mut state.usage);
        let posting = of_client.posting.clone();
        let mut most = None;
        if exceeds_all {
            let all = state.clients.iter();
            let with_most = all.max_by_key(|(_, of_client)| of_client.usage.refusals);
            most = with_most.map(|(client, _)| *client);
        }
        drop(guard);
        if let Some(most) = most {
            self.disconnect(most, "too many refusals wait for the client");
        }
        Some(WaitingAnswer {
            table: self.clone(),
            client,
            kind,
            posting,
        })
    }

    /// Sends an answer if it is short and has room. Returns any other answer.
    fn try_answer(
        &self,
        client: FiAddr,
        id: u64,
        result: Result<Response, Status>,
    ) -> Option<Unsent> {
        let (mut message, mut data) = self.encode(result);
        for _ in 0..2 {
            if message.len() > MAX_SHORT_LEN || self.has_all_posted(client) {
                return Some(Unsent::Message(message, data));
            }
            match message.start(&self.ep, client, (MessageKind::Response, id), data) {
                Ok(StartedSend::Ended) => return None,
                Ok(StartedSend::Posted(send)) => return Some(Unsent::Posted(send)),
                Err((Error::WouldBlock(_), message)) => {
                    return Some(Unsent::Message(message, data));
                }
                // The client has left.
                Err((error, _)) if error.is_peer_unavailable() => return None,
                Err((error, _)) => {
                    (message, data) = encode_status(&Status::from_refused_send("response", &error));
                }
            }
        }
        // Without an answer the client would wait.
        self.disconnect(client, "the answer cannot be sent");
        None
    }

    /// Returns whether the client has as many posted answers as it may.
    fn has_all_posted(&self, client: FiAddr) -> bool {
        self.posted.load(Ordering::Relaxed) > 0 && {
            let state = self.lock();
            let of_client = state.clients.get(&client);
            of_client.is_some_and(|of_client| of_client.posting.count() == MAX_POSTED)
        }
    }

    /// Disconnects the client with the most posted answers, if it has more than this one. Returns
    /// whether there is such a client.
    fn disconnect_most_posted(&self, client: FiAddr) -> bool {
        let most = {
            let state = self.lock();
            let own = state.clients.get(&client);
            let own = own.map_or(0, |of_client| of_client.posting.count());
            let all = state.clients.iter();
            let all = all.map(|(client, of_client)| (of_client.posting.count(), *client));
            all.filter(|(count, _)| *count > own)
                .max_by_key(|(count, _)| *count)
        };
        let Some((_, most)) = most else {
            return false;
        };
        self.disconnect(
            most,
            "the client takes no answers, and no transmit credit is free",
        );
        true
    }

    /// Encodes an answer.
    fn encode(&self, result: Result<Response, Status>) -> (OutgoingMessage, u64) {
        let encoded = result.and_then(|response| {
            let Response { metadata, body } = response;
            let (len, limit) = (body.len(), self.limits.max_body_len);
            if len > limit {
                return Err(Status::too_large("response", len, limit));
            }
            OutgoingMessage::new("", &metadata, body)
        });
        encoded.map_or_else(|status| encode_status(&status), |message| (message, 0))
    }
}

fn encode_status(status: &Status) -> (OutgoingMessage, u64) {
    (OutgoingMessage::status(status), status.to_wire())
}

/// What waits for a client.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// An answer of a handler, with so many bytes in memory of this process.
    Answer { bytes: usize },
    /// The status of a request for which no handler was started.
    Refusal,
}

impl Waiting {
    fn add_to(self, usage: &mut RequestUsage) {
        match self {
            Self::Answer { bytes } => usage.waiting.add(bytes),
            Self::Refusal => usage.refusals += 1,
        }
    }

    fn remove_from(self, usage: &mut RequestUsage) {
        match self {
            Self::Answer { bytes } => usage.waiting.remove(bytes),
            Self::Refusal => usage.refusals -= 1,
        }
    }
}

/// An answer that was not sent at once.
enum Unsent {
    Message(OutgoingMessage, u64),
    Posted(PostedSend),
}

impl Unsent {
    fn bytes_in_memory(&self) -> usize {
        match self {
            Self::Message(message, _) => message.bytes_in_memory(),
            // A short one.
            Self::Posted(_) => MAX_SHORT_LEN,
        }
    }
}

/// The places of a client's posted answers.
#[derive(Clone, Debug)]
pub(super) struct Posting(Arc<Semaphore>);

impl Default for Posting {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_POSTED)))
    }
}

impl Posting {
    /// Returns the number of posted answers.
    fn count(&self) -> usize {
        MAX_POSTED - self.0.available_permits()
    }
}

/// Counts a posted answer among those of all clients.
struct CountPosted<'a>(&'a AtomicUsize);

impl<'a> CountPosted<'a> {
    fn new(posted: &'a AtomicUsize) -> Self {
        posted.fetch_add(1, Ordering::Relaxed);
        Self(posted)
    }
}

impl Drop for CountPosted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer that waits for its client.
#[derive(Debug)]
struct WaitingAnswer {
    table: Arc<RequestTable>,
    client: FiAddr,
    kind: Waiting,
    posting: Posting,
}

impl WaitingAnswer {
    /// Sends the answer. Disconnects a client that does not take its answers in time.
    async fn send(self, id: u64, answer: Unsent) {
        let (table, limit) = (&self.table, self.table.limits.answer_timeout);
        let (message, data) = match answer {
            Unsent::Posted(send) => {
                let _place = self.posting.0.try_acquire();
                let _counted = CountPosted::new(&table.posted);
                if timeout(limit, send).await.is_err() {
                    table.disconnect(self.client, "the client has not taken an answer in time");
                }
                return;
            }
            Unsent::Message(message, data) => (message, data),
        };
        let Ok(_place) = timeout(limit, self.posting.0.acquire()).await else {
            return table.disconnect(self.client, "the client has not taken its answers in time");
        };
        let _counted = CountPosted::new(&table.posted);
        let permit = loop {
            match timeout(limit, table.ep.reserve(self.client)).await {
                Ok(Ok(permit)) => break permit,
                // The client has left.
                Ok(Err(_)) => return,
                Err(_) if table.disconnect_most_posted(self.client) => {}
                Err(_) => {
                    let reason = "the client has not taken its answers in time";
                    return table.disconnect(self.client, reason);
                }
            }
        };
        let kind = (MessageKind::Response, id);
        match timeout(limit, message.send_reserved(&table.ep, permit, kind, data)).await {
            Err(_) => table.disconnect(self.client, "the client has not taken an answer in time"),
            Ok(Err((error, _))) if !error.is_peer_unavailable() => {
                let (message, data) = encode_status(&Status::from_refused_send("response", &error));
                if message.start(&table.ep, self.client, kind, data).is_err() {
                    table.disconnect(self.client, "the answer cannot be sent");
                }
            }
            Ok(_) => {}
        }
    }
}

impl Drop for WaitingAnswer {
    fn drop(&mut self) {
        let release = |usage: &mut RequestUsage| self.kind.remove_from(usage);
        self.table.release(self.client, None, release);
    }
}
