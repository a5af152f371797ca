//! Direct access to a region of a peer.

use std::sync::Arc;

use crate::address::Address;
use crate::atomic::{AtomicOp, Datatype};
use crate::error::Error;
use crate::mr::RegionMemory;
use crate::tree::Class;

use super::net::{self, NodeId};

/// Memory of a peer, accessible while both endpoints are open.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) memory: Arc<dyn RegionMemory>,
    /// The endpoint that opened the window.
    pub(super) local: NodeId,
    /// The endpoint of the owner, and its name.
    pub(super) remote: NodeId,
    pub(super) owner: Address,
}

impl RegionMemory for Window {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.memory.read(at, out);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }

    fn execute_atomic(
        &self,
        at: usize,
        op: AtomicOp,
        datatype: Datatype,
        operand: u64,
        comparand: u64,
    ) -> u64 {
        self.memory
            .execute_atomic(at, op, datatype, operand, comparand)
    }

    fn close(&self) {}

    fn is_open(&self) -> bool {
        self.memory.is_open() && self.disconnect_error().is_none()
    }

    fn disconnect_error(&self) -> Option<Error> {
        if !net::is_open(self.local) {
            Some(Error::Closed(Class::Endpoint))
        } else if !net::is_open(self.remote) {
            Some(Error::PeerGone(self.owner.clone()))
        } else {
            None
        }
    }
}
