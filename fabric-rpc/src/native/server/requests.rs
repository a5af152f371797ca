//! The requests under way: limits, cancellation, and one answer for each.
//!
//! A request whose handler is ready at its first poll, and whose answer is sent at once, is never
//! in the table.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fabric_async::{Endpoint, Error, FiAddr};
use tokio::task::AbortHandle;

use super::super::wire::{MessageKind, OutgoingMessage};
use super::super::{Code, Response, Status};
use super::Limits;

/// The longest answer that is left to the fabric while it waits for its client. The fabric keeps as
/// many as one peer's share of the transmit credits.
const MAX_UNCOUNTED_LEN: usize = 8 << 10;

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
    total: usize,
    /// Of the receive loop, which waits until no request is under way.
    drained: Option<Waker>,
}

/// The requests under way of a client.
#[derive(Debug, Default)]
struct ClientRequests {
    by_id: HashMap<u64, RequestState>,
    /// Sum of the lengths of the bodies that handlers have.
    bytes: usize,
}

#[derive(Debug)]
enum RequestState {
    /// The handler runs, with a body of this length; its task can be aborted.
    Running(usize, Option<AbortHandle>),
    /// The answer waits to be sent.
    Answering,
}

impl ClientRequests {
    /// Adds a request, or changes its state. Returns whether it is new.
    fn set(&mut self, id: u64, request: RequestState) -> bool {
        self.bytes += request.body_len();
        let replaced = self.by_id.insert(id, request);
        self.bytes -= replaced.as_ref().map_or(0, RequestState::body_len);
        replaced.is_none()
    }

    /// Removes a request. Returns whether there was one.
    fn remove(&mut self, id: u64) -> bool {
        let removed = self.by_id.remove(&id);
        self.bytes -= removed.as_ref().map_or(0, RequestState::body_len);
        removed.is_some()
    }
}

impl RequestState {
    fn body_len(&self) -> usize {
        match self {
            Self::Running(len, _) => *len,
            Self::Answering => 0,
        }
    }
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

    /// Checks the limits before a handler is started with a body of `len` bytes.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] at a limit; [`Code::Malformed`] for the id of a request under
    /// way.
    pub(super) fn check_room(&self, client: FiAddr, id: u64, len: usize) -> Result<(), Status> {
        let state = self.lock();
        if state.total == 0 && self.limits.total > 0 && self.limits.per_client > 0 {
            return Ok(());
        }
        let requests = state.clients.get(&client);
        if requests.is_some_and(|requests| requests.by_id.contains_key(&id)) {
            let message = "a request of this id is under way";
            return Err(Status::new(Code::Malformed, message));
        }
        let (count, bytes) = requests.map_or((0, 0), |of| (of.by_id.len(), of.bytes));
        let message = if count >= self.limits.per_client {
            "too many requests of this client are under way"
        } else if bytes > 0 && len > self.limits.bytes_per_client.saturating_sub(bytes) {
            "too many bytes of requests of this client are under way"
        } else if state.total >= self.limits.total {
            "too many requests are under way"
        } else {
            return Ok(());
        };
        Err(Status::new(Code::ResourceExhausted, message))
    }

    /// Adds a request. The caller has [checked](Self::check_room) the limits; an answer that has to
    /// wait may exceed them.
    fn insert(self: &Arc<Self>, client: FiAddr, id: u64, request: RequestState) -> RequestGuard {
        let mut state = self.lock();
        let requests = state.clients.entry(client).or_default();
        if requests.set(id, request) {
            state.total += 1;
        }
        RequestGuard {
            table: self.clone(),
            client,
            id,
            is_answered: false,
        }
    }

    /// Adds a request whose handler becomes a task, with a body of `len` bytes.
    pub(super) fn insert_running(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        len: usize,
    ) -> RequestGuard {
        self.insert(client, id, RequestState::Running(len, None))
    }

    /// Sets the task of a request, unless it has ended.
    pub(super) fn set_task(&self, client: FiAddr, id: u64, task: AbortHandle) {
        let mut state = self.lock();
        let requests = state.clients.get_mut(&client);
        let request = requests.and_then(|requests| requests.by_id.get_mut(&id));
        if let Some(RequestState::Running(_, running)) = request {
            *running = Some(task);
        }
    }

    /// Drops the handler of a request, if it runs.
    pub(super) fn cancel(&self, client: FiAddr, id: u64) {
        let mut state = self.lock();
        let requests = state.clients.get_mut(&client);
        if let Some(RequestState::Running(_, task)) =
            requests.and_then(|requests| requests.by_id.get_mut(&id))
        {
            let task = task.take();
            drop(state);
            if let Some(task) = task {
                task.abort();
            }
        }
    }

    /// Drops the handlers of the clients that `select` selects.
    pub(super) fn cancel_clients(&self, select: impl Fn(FiAddr) -> bool) {
        let mut tasks = Vec::new();
        for (client, requests) in &mut self.lock().clients {
            if select(*client) {
                let states = requests.by_id.values_mut();
                tasks.extend(states.filter_map(|state| match state {
                    RequestState::Running(_, task) => task.take(),
                    RequestState::Answering => None,
                }));
            }
        }
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Waits until no request is under way.
    pub(super) fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.total == 0 {
            return Poll::Ready(());
        }
        state.drained = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sends the answer of a request that is not in the table. An answer that has to wait for the
    /// client is sent by a task; a client for which too many wait is disconnected.
    pub(super) fn answer(
        self: &Arc<Self>,
        client: FiAddr,
        id: u64,
        result: Result<Response, Status>,
    ) {
        let Some((message, data)) = self.try_answer(client, id, result) else {
            return;
        };
        let waiting = self
            .lock()
            .clients
            .get(&client)
            .map_or(0, |of| of.by_id.len());
        if waiting > 2 * self.limits.per_client {
            if let Ok(name) = self.ep.address_vector().lookup(client) {
                let _ = self.ep.disconnect(&name);
            }
            return;
        }
        let guard = self.insert(client, id, RequestState::Answering);
        tokio::spawn(async move { guard.send(message, data).await });
    }

    /// Starts the send of an answer. Returns the answer if it is long, or has to wait for a
    /// transmit credit: it stays in the table until it is sent.
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
                    let status = Status::from_refused_send("response", &error);
                    data = status.code().to_wire();
                    message = OutgoingMessage::status(&status);
                }
            }
        }
        None
    }

    /// Encodes an answer.
    fn encode(&self, result: Result<Response, Status>) -> (OutgoingMessage, u64) {
        let result = result.and_then(|response| {
            let Response { metadata, body } = response;
            let (len, limit) = (body.len(), self.limits.max_body_len);
            if len > limit {
                return Err(Status::too_large("response", len, limit));
            }
            OutgoingMessage::new("", &metadata, body)
        });
        match result {
            Ok(message) => (message, 0),
            Err(status) => (OutgoingMessage::status(&status), status.code().to_wire()),
        }
    }
}

/// A request in the table. Answers the request if it is dropped before it was answered.
#[derive(Debug)]
pub(super) struct RequestGuard {
    table: Arc<RequestTable>,
    client: FiAddr,
    id: u64,
    is_answered: bool,
}

impl RequestGuard {
    /// Sends the answer, and waits for a transmit credit if need be.
    pub(super) async fn answer(mut self, result: Result<Response, Status>) {
        self.is_answered = true;
        {
            let mut state = self.table.lock();
            if let Some(requests) = state.clients.get_mut(&self.client) {
                // A cancellation must not drop the answer while it waits.
                requests.set(self.id, RequestState::Answering);
            }
        }
        if let Some((message, data)) = self.table.try_answer(self.client, self.id, result) {
            self.send(message, data).await;
        }
    }

    /// Sends an encoded answer. The request stays in the table until the fabric has the answer.
    async fn send(mut self, message: OutgoingMessage, data: u64) {
        self.is_answered = true;
        let (ep, kind) = (&self.table.ep, (MessageKind::Response, self.id));
        if let Err((error, _)) = message.send(ep, self.client, kind, data).await
            && !error.is_peer_unavailable()
        {
            let status = Status::from_refused_send("response", &error);
            let message = OutgoingMessage::status(&status);
            let _ = message
                .send(ep, self.client, kind, status.code().to_wire())
                .await;
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if !self.is_answered {
            let status = if std::thread::panicking() {
                Status::new(Code::Internal, "the handler panicked")
            } else {
                Status::new(Code::Cancelled, "the handler was dropped")
            };
            let (table, client, id) = (&self.table, self.client, self.id);
            if let Some((message, data)) = table.try_answer(client, id, Err(status))
                && let Ok(runtime) = tokio::runtime::Handle::try_current()
            {
                let guard = table.insert(client, id, RequestState::Answering);
                self.is_answered = true;
                runtime.spawn(async move { guard.send(message, data).await });
                return; // the new guard has the place in the table
            }
        }
        let mut state = self.table.lock();
        let Entry::Occupied(mut requests) = state.clients.entry(self.client) else {
            return;
        };
        if !requests.get_mut().remove(self.id) {
            return;
        }
        if requests.get().by_id.is_empty() {
            requests.remove();
        }
        state.total -= 1;
        let drained = if state.total == 0 {
            state.drained.take()
        } else {
            None
        };
        drop(state);
        if let Some(waker) = drained {
            waker.wake();
        }
    }
}
