//! The fast path of domains that one thread at a time uses.
//!
//! In such a domain a connection has no lock of its own: only the thread in the domain's flag uses
//! it. So an operation of the fast path enters the flag, which is its one atomic
//! read-modify-write. If another user is in the domain, the fast path is not available. The
//! operation is then posted through the domain, which refuses and counts it, or accepts it if the
//! other user has left meanwhile.

use std::sync::Arc;

use fabric_core::FiAddr;
use fabric_core::buf::Payload;
use fabric_core::mr::RmaIov;
use fabric_core::transport::{FastPath, FastPathResult, TxOp};

use crate::sys::use_flag::{Role, UseFlag};

/// A fast path that is used within a flag.
pub(crate) struct SerialFastPath {
    flag: Arc<UseFlag>,
    inner: Arc<dyn FastPath>,
}

/// Leaves the flag when it is dropped.
struct LeaveOnDrop<'a>(&'a UseFlag);

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl SerialFastPath {
    pub(crate) fn new(flag: Arc<UseFlag>, inner: Arc<dyn FastPath>) -> Self {
        Self { flag, inner }
    }

    #[inline]
    fn within_flag(&self, act: impl FnOnce(&dyn FastPath) -> FastPathResult) -> FastPathResult {
        if !self.flag.try_enter(Role::User) {
            return FastPathResult::WouldBlock;
        }
        let _leave = LeaveOnDrop(&self.flag);
        act(&*self.inner)
    }
}

impl FastPath for SerialFastPath {
    fn try_send(&self, tx_op: &TxOp, payload: Payload<'_>) -> FastPathResult {
        self.within_flag(|inner| inner.try_send(tx_op, payload))
    }

    fn try_send_plain(&self, peer: FiAddr, bytes: &[u8]) -> FastPathResult {
        self.within_flag(|inner| inner.try_send_plain(peer, bytes))
    }

    fn try_write_plain(&self, peer: FiAddr, remote: &RmaIov, bytes: &[u8]) -> FastPathResult {
        self.within_flag(|inner| inner.try_write_plain(peer, remote, bytes))
    }

    fn try_atomic(&self, tx_op: &TxOp, operands: &[u8], result: &mut [u8]) -> FastPathResult {
        self.within_flag(|inner| inner.try_atomic(tx_op, operands, result))
    }
}
