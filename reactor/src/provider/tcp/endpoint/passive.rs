//! Endpoints that take requests, and connect nobody themselves.
//!
//! Who has asked waits here until the program takes the request. From then on its connection
//! belongs to nobody's domain, and nobody watches it, until an endpoint is opened for it or it is
//! refused.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use fabric_core::buf::Pool;
use fabric_core::provider::{EpId, Host, Request, RequestHandle, WaitSet};
use fabric_core::rx::Receiving;
use fabric_core::tcp::{ControlKind, Mark, Order};
use fabric_core::{Address, Result, Scheme};

use super::super::farewell;
use super::super::greeting::say;
use super::super::socket::Socket;
use super::single::Joining;
use super::{Endpoint, Role, Stage};
use crate::provider::net::Tuning;

/// Requests that may wait to be taken. Who connects beyond that waits in the kernel's queue.
const BACKLOG: usize = 128;

/// Those who have asked.
#[derive(Default)]
pub(super) struct Requests {
    waiting: VecDeque<Request>,
    /// Nobody is accepted until some of them were taken.
    is_resting: bool,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Role {
    /// Whether nobody is to be accepted for now.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Passive(requests) if requests.len() >= BACKLOG)
    }

    pub(super) fn rest(&mut self, is_resting: bool) {
        if let Self::Passive(requests) = self {
            requests.is_resting = is_resting;
        }
    }
}

impl Endpoint {
    pub(crate) fn passive(
        id: EpId,
        (at, tuning): (SocketAddr, Tuning),
        wait: Arc<dyn WaitSet>,
    ) -> Result<Self> {
        let role = Role::Passive(Requests::default());
        let mut opened = Self::new(
            id,
            (at, tuning),
            role,
            (wait, Receiving::Own(&Pool::new()), None),
        )?;
        opened.open_door(at)?;
        Ok(opened)
    }

    /// Something has come from somebody who may be asking.
    pub(super) fn caller_asks(&mut self, host: &mut dyn Host, at: usize) {
        let Some(Stage::Caller(caller)) = self.stages.get_mut(at) else {
            return;
        };
        let (control, rest) = match caller.request() {
            Ok(None) => return,
            Ok(Some(asked)) => asked,
            Err(error) => return self.caller_over(host, at, error),
        };
        self.callers.retain(|caller| *caller != at);
        let Stage::Caller(caller) = self.stages.remove(at) else {
            return;
        };
        let Ok(peer) = Address::of_socket(Scheme::Tcp, caller.from) else {
            return;
        };
        let mut socket = caller.into_socket();
        socket.unwatch();
        let Role::Passive(requests) = &mut self.role else {
            return;
        };
        let data = control.private().to_vec();
        host.requested(self.id, &peer, &data);
        let (order, mark) = (control.order, control.mark);
        let handle = Box::new(Called {
            socket: Some(socket),
            order,
            mark,
            rest,
        });
        requests.waiting.push_back(Request { peer, data, handle });
    }

    pub(crate) fn take_request(&mut self, host: &mut dyn Host) -> Option<Request> {
        let Role::Passive(requests) = &mut self.role else {
            return None;
        };
        let request = requests.waiting.pop_front()?;
        if requests.is_resting && requests.len() <= BACKLOG / 2 {
            requests.is_resting = false;
            self.accept_on(host);
            // It is tried again when it failed.
            self.set_clock();
        }
        Some(request)
    }
}

/// The connection of somebody who has asked.
pub(super) struct Called {
    socket: Option<Socket>,
    order: Order,
    /// What the endpoint that asks says of itself.
    mark: Option<Mark>,
    /// What came behind the question.
    rest: Vec<u8>,
}

impl Called {
    /// Sets what the domain says that it comes to, on top of what the passive endpoint has.
    pub(super) fn retune(&self, tuning: &Tuning) -> Result<()> {
        self.socket
            .as_ref()
            .map_or(Ok(()), |socket| socket.retune(tuning))
    }

    /// Says yes, with this data, and what the endpoint says of itself to its own kind. Nothing when
    /// the peer does not hear it.
    pub(super) fn accept(mut self, own: Mark, data: &[u8]) -> Option<Joining> {
        let socket = self.socket.take().filter(Socket::is_ours)?;
        let (order, mark, rest) = (self.order, self.mark, std::mem::take(&mut self.rest));
        say(&socket, ControlKind::Accept, mark.map(|_| own), data).then_some(Joining {
            socket,
            order,
            mark,
            rest,
        })
    }

    fn end(&mut self, data: &[u8]) {
        if let Some(socket) = self.socket.take().filter(Socket::is_ours) {
            say(&socket, ControlKind::Refuse, None, data);
            farewell::close(socket, &[]);
        }
    }
}

impl RequestHandle for Called {
    fn refuse(mut self: Box<Self>, data: &[u8]) {
        self.end(data);
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        self.end(&[]);
    }
}
