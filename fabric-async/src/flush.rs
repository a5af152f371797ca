//! Waiting until all posted operations have left this process.

use std::future::poll_fn;
use std::task::ready;

use fabric_core::Result;
use fabric_core::transport::EpId;
use tokio::task::coop;

use crate::domain_inner::DomainCore;

/// Waits until the kernel or the peer's ring has the data of everything that was posted on this
/// endpoint; `None` stands for all endpoints of the domain.
pub(crate) async fn flush(domain: &DomainCore, ep: Option<EpId>) -> Result<()> {
    let key = domain.engine.flush(ep)?;
    let _guard = domain.detach_on_drop(key);
    poll_fn(|cx| {
        let budget = ready!(coop::poll_proceed(cx));
        let flushed = ready!(domain.engine.poll_wait(key, cx));
        budget.made_progress();
        flushed.into()
    })
    .await
}
