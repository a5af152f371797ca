//! Waiting until every posted send, write and non-fetching atomic has left: the kernel, the ring or
//! the peer's memory has all its bytes.

use fabric_core::Result;
use fabric_core::transport::{EpId, OpKey};

use super::domain::DomainHandle;

impl DomainHandle {
    /// Begins a flush of everything posted on one endpoint, or on all endpoints of the domain.
    /// [`DomainHandle::poll_wait`] waits for it, and [`DomainHandle::drop_future`] drops it.
    ///
    /// # Errors
    /// [`Error::ConcurrentUse`](fabric_core::Error::ConcurrentUse).
    pub fn flush(&self, ep: Option<EpId>) -> Result<OpKey> {
        self.with_engine_or_refuse(|locked| {
            locked.write_batched();
            Ok(locked.domain.begin_flush(ep))
        })
    }
}
