//! The requests in flight: limits, cancellation, and one answer for each.
//!
//! A request whose handler is ready at its first poll, and whose answer is sent at once, is never
//! in the table. A handler that runs is in the table by its client and id. An answer that waits for
//! its client is counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use fabric_async::{Endpoint, FiAddr};
use tokio::task::AbortHandle;
use tracing::Span;

use super::super::{Code, Response, Status};
use super::Limits;

mod answers;
mod usage;

use answers::PostedPlaces;
use usage::{Exceeded, RequestUsage, Usage};

/// The requests in flight of a server.
#[derive(Debug)]
pub(super) struct RequestTable {
    pub(super) ep: Endpoint,
    pub(super) span: Span,
    limits: Limits,
    state: Mutex<TableState>,
    /// The number of answers that are posted, of all clients.
    posted: AtomicUsize,
}

#[derive(Debug, Default)]
struct TableState {
    clients: HashMap<FiAddr, ClientRequests>,
    usage: RequestUsage,
    /// Of the receive loop, which waits until no request is in flight.
    drained: Option<Waker>,
}

/// The part of a client in [`TableState`].
#[derive(Debug, Default)]
struct ClientRequests {
    /// The tasks of the handlers that run, by the ids of their requests; `None` before the spawn.
    running: HashMap<u64, Option<AbortHandle>>,
    usage: RequestUsage,
    /// The places of answers that are posted, each of which has a transmit credit; `None` before an
    /// answer has waited.
    posted: Option<PostedPlaces>,
}

impl RequestTable {
    pub(super) fn new(ep: Endpoint, limits: Limits, span: Span) -> Arc<Self> {
        Arc::new(Self {
            ep,
            span,
            limits,
            state: Mutex::default(),
            posted: AtomicUsize::new(0),
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
            let message = "a request of this id is in flight";
            return Err(Status::new(Code::Malformed, message));
        }
        let per_client = Usage {
            count: limits.per_client,
            bytes: limits.bytes_per_client,
        };
        let total = Usage {
            count: limits.total,
            bytes: limits.bytes,
        };
        let message = match of_client.usage.check_room(per_client, bytes) {
            Err(Exceeded::Count) => "too many requests of this client are in flight",
            Err(Exceeded::Bytes) => "too many bytes of requests of this client are in flight",
            Ok(()) => match state.usage.check_room(total, bytes) {
                Err(Exceeded::Count) => "too many requests are in flight",
                Err(Exceeded::Bytes) => "too many bytes of requests are in flight",
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
        let replaced = of_client.running.insert(id, None);
        debug_assert!(replaced.is_none(), "the caller has checked the id");
        of_client.usage.running.add(bytes);
        state.usage.running.add(bytes);
        RunningGuard {
            table: self.clone(),
            client,
            id,
            bytes,
            is_answered: false,
        }
    }

    /// Sets the task of a request, unless it has ended.
    pub(super) fn set_task(&self, client: FiAddr, id: u64, task: AbortHandle) {
        let mut state = self.lock();
        let of_client = state.clients.get_mut(&client);
        if let Some(running) = of_client.and_then(|of_client| of_client.running.get_mut(&id)) {
            *running = Some(task);
        }
    }

    /// Drops the handler of a request, if it runs.
    pub(super) fn cancel(&self, client: FiAddr, id: u64) {
        let mut state = self.lock();
        let of_client = state.clients.get_mut(&client);
        let running = of_client.and_then(|of_client| of_client.running.get_mut(&id));
        let task = running.and_then(Option::take);
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
        let tasks: Vec<_> = running.filter_map(Option::take).collect();
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Waits until no request is in flight.
    pub(super) fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.usage.is_drained() {
            return Poll::Ready(());
        }
        let replaced = state.drained.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Ends the connection with a client that breaks the rules.
    pub(super) fn disconnect(&self, client: FiAddr, reason: &str) {
        tracing::debug!(target: "fabric_rpc::native", parent: &self.span, %client, reason,
            "disconnecting a client");
        if let Ok(name) = self.ep.address_vector().lookup(client) {
            // Fails only if the endpoint is closed.
            let _ = self.ep.disconnect(&name);
        }
    }

    /// Gives back what a request or an answer of a client has used: `release` does so for the
    /// client and for all. `running` is the id of a request whose handler has ended.
    fn release(&self, client: FiAddr, running: Option<u64>, release: impl Fn(&mut RequestUsage)) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Entry::Occupied(mut entry) = state.clients.entry(client) else {
            return;
        };
        let of_client = entry.get_mut();
        let ended = running.and_then(|id| of_client.running.remove(&id));
        release(&mut of_client.usage);
        release(&mut state.usage);
        if of_client.usage.is_empty() {
            entry.remove();
        }
        let drained = (state.drained).take_if(|_| state.usage.is_drained());
        drop(guard);
        drop(ended);
        drained.into_iter().for_each(Waker::wake);
    }
}

/// A request whose handler runs. Answers the request if it is dropped before it was answered.
#[derive(Debug)]
pub(super) struct RunningGuard {
    table: Arc<RequestTable>,
    client: FiAddr,
    id: u64,
    /// The bytes of the request that are in memory of this process.
    bytes: usize,
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
        let release = |usage: &mut RequestUsage| usage.running.remove(self.bytes);
        self.table.release(self.client, Some(self.id), release);
    }
}
