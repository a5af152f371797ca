//! Waiting until all posted operations have left this process.

use std::future::poll_fn;
use std::task::ready;

use fabric_core::Result;
use fabric_core::transport::{EpId, OpKey};
use tokio::task::coop;

use crate::domain::DomainCore;

/// A pending flush. Dropping this removes its state from the engine.
struct Flushing<'a> {
    domain: &'a DomainCore,
    key: OpKey,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.domain.engine.detach(self.key);
    }
}

/// Waits until the kernel or the peer's ring has the data of everything that was posted on this
/// endpoint; `None` stands for all endpoints of the domain.
pub(crate) async fn flush(domain: &DomainCore, ep: Option<EpId>) -> Result<()> {
    let key = domain.engine.flush(ep);
    let flushing = Flushing { domain, key };
    poll_fn(|cx| {
        let budget = ready!(coop::poll_proceed(cx));
        let flushed = ready!(flushing.domain.engine.poll_flush(flushing.key, cx));
        budget.made_progress();
        flushed.into()
    })
    .await
}
