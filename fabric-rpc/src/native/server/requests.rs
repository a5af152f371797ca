//! The requests under way: limits, cancellation, and one answer for each.
//!
//! A request whose handler is ready at its first poll, and whose answer is sent at once, is never
//! in the table. A handler that runs is in the table by its client and id. An answer that waits for
//! its client is counted, and sent by a task of its own, which no cancellation ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fabric_async::{Endpoint, Error, FiAddr};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::super::wire::{MessageKind, OutgoingMessage};
use super::super::{Code, Response, Status};
use super::Limits;

/// The longest answer that is left to the fabric while it waits for its client. The fabric keeps as
/// many as one peer's share of the transmit credits.
const MAX_UNCOUNTED_LEN: usize = 8 << 10;

/// The number of refusals that wait for a client. With one more the client is disconnected.
const MAX_WAITING_REFUSALS: usize = 1024;

/// The requests under way of a server.
#[derive(Debug)]
pub(super) struct RequestTable {
    pub(super) ep: Endpoint,
    limits: Limits,
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    clients: HashMap<FiAddr, ClientRequests>,
    held: HeldRequests,
    /// Of the receive loop, which waits until no request is under way.
    drained: Option<Waker>,
}

/// The part of a client in [`TableState`].
#[derive(Debug, Default)]
struct ClientRequests {
    running: HashMap<u64, RunningRequest>,
    held: HeldRequests,
    /// The number of refusals that wait. They are short, so those of a client do not count among
    /// the requests of all.
    refusals: usize,
}

/// What requests use, of a client or of all.
#[derive(Clone, Copy, Debug, Default)]
struct HeldRequests {
    /// Of requests whose handlers run.
    running: Held,
    /// Of answers that wait. The client may have the answer already: the fabric reports it later.
    waiting: Held,
}

/// A number of requests or answers, and their bytes that are in memory of this process.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    count: usize,
    bytes: usize,
}

impl Held {
    fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }
}

/// A limit that a request exceeds.
enum Exceeded {
    Count,
    Bytes,
}

impl HeldRequests {
    fn is_empty(&self) -> bool {
        self.running.count + self.waiting.count == 0
    }

    /// Checks the room for the handler of a request of `bytes` bytes. Answers that wait may use
    /// twice as much as the limit. A single request may exceed the limit of bytes.
    fn check_room(&self, limit: Held, bytes: usize) -> Result<(), Exceeded> {
        let Self { running, waiting } = self;
        if running.count >= limit.count || waiting.count >= limit.count.saturating_mul(2) {
            return Err(Exceeded::Count);
        }
        let is_full = running.bytes > 0 && bytes > limit.bytes.saturating_sub(running.bytes);
        if is_full || waiting.bytes > limit.bytes.saturating_mul(2) {
            return Err(Exceeded::Bytes);
        }
        Ok(())
    }
}

/// A request whose handler runs.
#[derive(Debug)]
struct RunningRequest {
    bytes: usize,
    task: Option<AbortHandle>,
}

impl RequestTable {
    pub(super) fn new(ep: Endpoint, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            ep,
            limits,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the limits before a handler is started with a request of `bytes` bytes in memory of
    /// this process.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] at a limit; [`Code::Malformed`] for the id of a request whose
    /// handler runs.
    pub(super) fn check_room(&self, client: FiAddr, id: u64, bytes: usize) -> Result<(), Status> {
        let (limits, state) = (&self.limits, self.lock());
        let none = ClientRequests::default();
        let of_client = state.clients.get(&client).unwrap_or(&none);
        if of_client.running.contains_key(&id) {
            let message = "a request of this id is under way";
            return Err(Status::new(Code::Malformed, message));
        }
        let per_client = Held {
            count: limits.per_client,
            bytes: limits.bytes_per_client,
        };
        let total = Held {
            count: limits.total,
            bytes: limits.bytes,
        };
        let message = match of_client.held.check_room(per_client, bytes) {
            Err(Exceeded::Count) => "too many requests of this client are under way",
            Err(Exceeded::Bytes) => "too many bytes of requests of this client are under way",
            Ok(()) => match state.held.check_room(total, bytes) {
                Err(Exceeded::Count) => "too many requests are under way",
                Err(Exceeded::Bytes) => "too many bytes of requests are under way",
                Ok(()) => return Ok(()),
            },
        };
        Err(Status::not_started(Code::ResourceExhausted, message))
    }

    /// Adds a request whose handler becomes a task. The caller has [checked](Self::check_room) the
    /// limits.
    pub(super) fn insert_running(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        bytes: usize,
    ) -> RunningGuard {
        let state = &mut *self.lock();
        let of_client = state.clients.entry(client).or_default();
        let task = None;
        let replaced = of_client.running.insert(id, RunningRequest { bytes, task });
        debug_assert!(replaced.is_none(), "the caller has checked the id");
        of_client.held.running.add(bytes);
        state.held.running.add(bytes);
        RunningGuard {
            table: self.clone(),
            client,
            id,
            is_answered: false,
        }
    }

    /// Sets the task of a request, unless it has ended.
    pub(super) fn set_task(&self, client: FiAddr, id: u64, task: AbortHandle) {
        let mut state = self.lock();
        let of_client = state.clients.get_mut(&client);
        if let Some(request) = of_client.and_then(|of_client| of_client.running.get_mut(&id)) {
            request.task = Some(task);
        }
    }

    /// Drops the handler of a request, if it runs.
    pub(super) fn cancel(&self, client: FiAddr, id: u64) {
        let mut state = self.lock();
        let of_client = state.clients.get_mut(&client);
        let request = of_client.and_then(|of_client| of_client.running.get_mut(&id));
        let task = request.and_then(|request| request.task.take());
        drop(state);
        if let Some(task) = task {
            task.abort();
        }
    }

    /// Drops the handlers of the clients that `select` selects.
    pub(super) fn cancel_clients(&self, select: impl Fn(FiAddr) -> bool) {
        let mut state = self.lock();
        let selected = state
            .clients
            .iter_mut()
            .filter(|(client, _)| select(**client));
        let running = selected.flat_map(|(_, of_client)| of_client.running.values_mut());
        let tasks: Vec<_> = running.filter_map(|request| request.task.take()).collect();
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Waits until no request is under way.
    pub(super) fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.held.is_empty() {
            return Poll::Ready(());
        }
        state.drained = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the connection with a client.
    pub(super) fn disconnect(&self, client: FiAddr) {
        if let Ok(name) = self.ep.address_vector().lookup(client) {
            // Fails only if the endpoint is closed.
            let _ = self.ep.disconnect(&name);
        }
    }

    /// Sends the answer of a request. An answer that has to wait for the client is sent by a task;
    /// a client for which too many wait, or one waits for too long, is disconnected.
    pub(super) fn answer(
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
    pub(super) fn refuse(self: &Arc<Self>, client: FiAddr, id: u64, status: Status) {
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
        let (Some(waiting), Ok(runtime)) =
            (self.insert_waiting(client, kind), Handle::try_current())
        else {
            return self.disconnect(client);
        };
        runtime.spawn(waiting.send(id, message, data));
    }

    /// Counts an answer that waits for its client. `None` if too many wait.
    fn insert_waiting(self: &Arc<Self>, client: FiAddr, kind: Waiting) -> Option<WaitingAnswer> {
        let state = &mut *self.lock();
        let of_client = state.clients.entry(client).or_default();
        match kind {
            Waiting::Answer { bytes } => {
                // More than handlers can have given.
                if of_client.held.waiting.count >= self.limits.per_client.saturating_mul(3) {
                    return None;
                }
                of_client.held.waiting.add(bytes);
                state.held.waiting.add(bytes);
            }
            Waiting::Refusal => {
                if of_client.refusals >= MAX_WAITING_REFUSALS {
                    return None;
                }
                of_client.refusals += 1;
            }
        }
        Some(WaitingAnswer {
            table: self.clone(),
            client,
            kind,
        })
    }

    /// Removes a request of a client: `remove` does so in what the client has, and then in what all
    /// have.
    fn remove(&self, client: FiAddr, remove: impl FnOnce(&mut ClientRequests, &mut HeldRequests)) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Entry::Occupied(mut entry) = state.clients.entry(client) else {
            return;
        };
        remove(entry.get_mut(), &mut state.held);
        if entry.get().held.is_empty() && entry.get().refusals == 0 {
            entry.remove();
        }
        let drained = if state.held.is_empty() {
            state.drained.take()
        } else {
            None
        };
        drop(guard);
        if let Some(waker) = drained {
            waker.wake();
        }
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

/// A request whose handler runs. Answers the request if it is dropped before it was answered.
#[derive(Debug)]
pub(super) struct RunningGuard {
    table: Arc<RequestTable>,
    client: FiAddr,
    id: u64,
    is_answered: bool,
}

impl RunningGuard {
    /// Answers the request.
    pub(super) fn answer(mut self, result: Result<Response, Status>) {
        self.is_answered = true;
        // The answer is counted before the request is removed.
        self.table.answer(self.client, self.id, result);
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        if !self.is_answered {
            let status = if std::thread::panicking() {
                Status::new(Code::Internal, "the handler panicked")
            } else {
                Status::new(Code::Cancelled, "the handler was dropped")
            };
            self.table.answer(self.client, self.id, Err(status));
        }
        self.table.remove(self.client, |of_client, held| {
            if let Some(RunningRequest { bytes, .. }) = of_client.running.remove(&self.id) {
                of_client.held.running.remove(bytes);
                held.running.remove(bytes);
            }
        });
    }
}

/// What waits for a client.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// An answer of a handler, with so many bytes in memory of this process.
    Answer { bytes: usize },
    /// The status of a request for which no handler was started.
    Refusal,
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
            self.table.disconnect(self.client);
        }
    }
}

impl Drop for WaitingAnswer {
    fn drop(&mut self) {
        self.table
            .remove(self.client, |of_client, held| match self.kind {
                Waiting::Answer { bytes } => {
                    of_client.held.waiting.remove(bytes);
                    held.waiting.remove(bytes);
                }
                Waiting::Refusal => of_client.refusals -= 1,
            });
    }
}
