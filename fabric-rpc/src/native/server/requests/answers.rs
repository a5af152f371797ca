//! Sending answers: one for each request.
//!
//! A short answer for which the ring or the socket has room is sent at once. Any other answer is
//! counted, and sent by a task of its own, which no cancellation ends.
//!
//! Few answers of a client are posted at a time, since a posted one has a transmit credit of the
//! endpoint: clients that take no answers must leave credits to the others. A client that has not
//! taken a posted answer in time is disconnected. An answer that is not posted yet has no time
//! limit: its client may take the answers before it, or wait for the credits of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric_async::{Error, FiAddr};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::super::super::wire::{MessageKind, OutgoingMessage, PostedSend, StartedSend};
use super::super::super::{Response, Status};
use super::usage::RequestUsage;
use super::{ClientRequests, RequestTable};

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

    fn send_later(self: &Arc<Self>, client: FiAddr, id: u64, answer: UnsentAnswer, kind: Waiting) {
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
        let places = of_client.posted.get_or_insert_default().clone();
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
            places,
        })
    }

    /// Sends an answer if it is short and has room. Returns any other answer.
    fn try_answer(
        &self,
        client: FiAddr,
        id: u64,
        result: Result<Response, Status>,
    ) -> Option<UnsentAnswer> {
        let (mut message, mut data) = self.encode(result);
        for _ in 0..2 {
            if message.len() > MAX_SHORT_LEN || self.has_all_posted(client) {
                return Some(UnsentAnswer::Message(message, data));
            }
            match message.start(&self.ep, (client, None), (MessageKind::Response, id), data) {
                Ok(started) => return started.into_posted().map(UnsentAnswer::Posted),
                Err((Error::WouldBlock(_), message)) => {
                    return Some(UnsentAnswer::Message(message, data));
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
            of_client.is_some_and(|of_client| of_client.posted_count() == MAX_POSTED)
        }
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
enum UnsentAnswer {
    Message(OutgoingMessage, u64),
    Posted(PostedSend),
}

impl UnsentAnswer {
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
pub(super) struct PostedPlaces(Arc<Semaphore>);

impl Default for PostedPlaces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_POSTED)))
    }
}

impl ClientRequests {
    /// Returns the number of posted answers.
    fn posted_count(&self) -> usize {
        let places = self.posted.as_ref();
        places.map_or(0, |places| MAX_POSTED - places.0.available_permits())
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
    places: PostedPlaces,
}

impl WaitingAnswer {
    /// Sends the answer. Disconnects a client that does not take it in time.
    async fn send(self, id: u64, answer: UnsentAnswer) {
        let (table, limit) = (&self.table, self.table.limits.answer_timeout);
        let kind = (MessageKind::Response, id);
        // Posted answers have the time limit, so places and credits become free.
        let (_place, posted) = match answer {
            UnsentAnswer::Posted(send) => (self.places.0.try_acquire().ok(), Ok(Some(send))),
            UnsentAnswer::Message(message, data) => {
                let place = self.places.0.acquire().await.ok();
                // Fails when the client has left.
                let Ok(permit) = table.ep.reserve(self.client).await else {
                    return;
                };
                let started = message.start(&table.ep, (self.client, Some(permit)), kind, data);
                let posted = started.map(StartedSend::into_posted);
                (place, posted.map_err(|(error, _)| error))
            }
        };
        let _counted = CountPosted::new(&table.posted);
        let sent = match posted {
            Ok(None) => Ok(()),
            Ok(Some(send)) => match timeout(limit, send).await {
                Ok(sent) => sent,
                Err(_) => {
                    let reason = "the client has not taken an answer in time";
                    return table.disconnect(self.client, reason);
                }
            },
            Err(error) => Err(error),
        };
        if let Err(error) = sent
            && !error.is_peer_unavailable()
        {
            let (message, data) = encode_status(&Status::from_refused_send("response", &error));
            if (message.start(&table.ep, (self.client, None), kind, data)).is_err() {
                table.disconnect(self.client, "the answer cannot be sent");
            }
        }
    }
}

impl Drop for WaitingAnswer {
    fn drop(&mut self) {
        let release = |usage: &mut RequestUsage| self.kind.remove_from(usage);
        self.table.release(self.client, None, release);
    }
}
