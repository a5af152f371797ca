//! Sending answers: one for each request.
//!
//! A short answer is left to the fabric. An answer that is long, or has to wait for a transmit
//! credit, is counted, and sent by a task of its own, which no cancellation ends.

use std::sync::Arc;

use fabric_async::{Error, FiAddr};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::super::super::wire::{MessageKind, OutgoingMessage};
use super::super::super::{Response, Status};
use super::RequestTable;
use super::usage::RequestUsage;

/// The longest answer that is left to the fabric while it waits for its client. The fabric keeps as
/// many as one peer's share of the transmit credits.
const MAX_UNCOUNTED_LEN: usize = 8 << 10;

/// The number of refusals that wait for a client. With one more the client is disconnected.
const MAX_WAITING_REFUSALS: usize = 1024;
/// The number of refusals that wait for all clients. The client of one more is disconnected.
const MAX_ALL_WAITING_REFUSALS: usize = 16 * MAX_WAITING_REFUSALS;

impl RequestTable {
    /// Sends the answer of a request. An answer that has to wait for the client is sent by a task;
    /// a client for which too many wait, or one waits for too long, is disconnected.
    pub(in crate::native::server) fn answer(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        result: Result<Response, Status>,
    ) {
        if let Some((message, data)) = self.try_answer(client, id, result) {
            let bytes = message.bytes_in_memory();
            self.send_later(client, id, (message, data), Waiting::Answer { bytes });
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

    fn send_later(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        (message, data): (OutgoingMessage, u64),
        kind: Waiting,
    ) {
        let Some(waiting) = self.insert_waiting(client, kind) else {
            return self.disconnect(client, "too many answers wait for the client");
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(waiting.send(id, message, data))),
            Err(_) => self.disconnect(client, "the runtime has ended"),
        }
    }

    /// Counts an answer that waits for its client. `None` if too many wait.
    fn insert_waiting(self: &Arc<Self>, client: FiAddr, kind: Waiting) -> Option<WaitingAnswer> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let of_client = state.clients.get(&client);
        let usage = of_client.map_or(RequestUsage::default(), |of_client| of_client.usage);
        let is_full = match kind {
            // More than handlers can have given.
            Waiting::Answer { .. } => {
                usage.waiting.count >= self.limits.per_client.saturating_mul(3)
            }
            Waiting::Refusal => {
                usage.refusals >= MAX_WAITING_REFUSALS
                    || state.usage.refusals >= MAX_ALL_WAITING_REFUSALS
            }
        };
        if is_full {
            return None;
        }
        kind.add_to(&mut state.clients.entry(client).or_default().usage);
        kind.add_to(&mut state.usage);
        Some(WaitingAnswer {
            table: self.clone(),
            client,
            kind,
        })
    }

    /// Starts the send of an answer. Returns the answer if it is long, or has to wait for a
    /// transmit credit.
    fn try_answer(
        &self,
        client: FiAddr,
        id: u64,
        result: Result<Response, Status>,
    ) -> Option<(OutgoingMessage, u64)> {
        let (mut message, mut data) = self.encode(result);
        for _ in 0..2 {
            if message.len() > MAX_UNCOUNTED_LEN {
                return Some((message, data));
            }
            match message.start(&self.ep, client, (MessageKind::Response, id), data) {
                Ok(()) => return None,
                Err((Error::WouldBlock(_), message)) => return Some((message, data)),
                // The client has left.
                Err((error, _)) if error.is_peer_unavailable() => return None,
                Err((error, _)) => {
                    (message, data) = encode_status(&Status::from_refused_send("response", &error));
                }
            }
        }
        None
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

/// An answer that waits for its client.
#[derive(Debug)]
struct WaitingAnswer {
    table: Arc<RequestTable>,
    client: FiAddr,
    kind: Waiting,
}

impl WaitingAnswer {
    /// Sends the answer. Disconnects a client that does not take it in time.
    async fn send(self, id: u64, message: OutgoingMessage, data: u64) {
        let (ep, kind) = (&self.table.ep, (MessageKind::Response, id));
        let send = async {
            if let Err((error, _)) = message.send(ep, self.client, kind, data).await
                && !error.is_peer_unavailable()
            {
                let (message, data) = encode_status(&Status::from_refused_send("response", &error));
                let _ = message.send(ep, self.client, kind, data).await;
            }
        };
        if timeout(self.table.limits.answer_timeout, send)
            .await
            .is_err()
        {
            (self.table).disconnect(self.client, "the client has not taken an answer in time");
        }
    }
}

impl Drop for WaitingAnswer {
    fn drop(&mut self) {
        let release = |usage: &mut RequestUsage| self.kind.remove_from(usage);
        self.table.release(self.client, None, release);
    }
}
