//! Memory for loans: allocation, and waiting until peers return loans.

use std::future::poll_fn;
use std::task::ready;

use fabric_core::buf::Loan;
use fabric_core::{Error, Result};
use tokio::task::coop;

use crate::domain::Domain;
use crate::thread_model::ThreadModel;

impl<M: ThreadModel> Domain<M> {
    /// Allocates memory of `len` bytes, zeroed or as an earlier loan left it, for writing a message
    /// in place and [sending](crate::Endpoint::send) it from any endpoint of this domain without a
    /// copy: the peer reads it where it is. The cost does not depend on the length.
    ///
    /// The peer receives it like any other message: into a buffer, which costs one copy, or with
    /// [`recv_loan`](crate::Endpoint::recv_loan), which costs none. When the send has succeeded,
    /// the memory belongs to the peer, and the returned [`Loan`] is empty; a failure returns the
    /// loan whole. The memory returns to this domain soon after the peer has dropped it, by
    /// progress of both domains, and of those that have sent the loan on. If the peer dies or
    /// disconnects before, the memory is freed.
    ///
    /// A loan takes a power of two of the domain's limit, at least 4 KiB.
    ///
    /// A loan is copied instead when the peer holds 256 loans, when it belongs to another domain,
    /// and by providers without shared memory.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let mut frame = ep.domain().loan(8 << 20).await?;
    /// frame[..5].copy_from_slice(b"hello");
    /// let sent = ep.send(me, frame).tag(7).await?;
    /// assert_eq!((sent.len(), sent.buf.len()), (8 << 20, 0));      // the peer has the memory
    /// let frame = ep.recv_loan().tag(7).await?.into_buf();
    /// let mut start = [0; 5];
    /// frame.read_at(0, &mut start);
    /// assert_eq!((&start, frame.len()), (b"hello", 8 << 20));
    /// assert!(frame.is_in_place());
    /// # Ok(()) }
    /// ```
    ///
    /// When the domain has lent as much as its [limit](crate::DomainBuilder::loan_limit) allows,
    /// the call waits until peers return loans, or until a peer that holds loans is gone. Waiting
    /// calls get memory in the order in which they began to wait: a short loan does not overtake a
    /// long one.
    ///
    /// # Errors
    /// [`Error::TooLong`](crate::Error::TooLong) above the limit;
    /// [`Error::Closed`](crate::Error::Closed), also when the domain is closed meanwhile;
    /// [`Error::Os`](crate::Error::Os) when the machine
    /// lacks the memory, or the process descriptors.
    ///
    /// # Cancel safety
    /// Dropping the future gives up its place in the queue.
    pub async fn loan(&self, len: usize) -> Result<Loan> {
        match self.try_loan(len) {
            Err(Error::WouldBlock(_)) => {}
            result => return result,
        }
        let domain = self.inner.state();
        let Some(key) = domain.engine.enqueue_loan() else {
            // The transport has no memory for loans, and so no queue.
            return self.try_loan(len);
        };
        let _guard = domain.detach_on_drop(key);
        poll_fn(|cx| {
            domain.node.check_open()?;
            let budget = ready!(coop::poll_proceed(cx));
            let loan = ready!(domain.engine.poll_loan(key, len, cx));
            budget.made_progress();
            loan.into()
        })
        .await
    }

    /// Allocates memory for a loan as [`loan`](Self::loan), without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock) when the limit is reached, or another task
    /// waits for memory; those of [`loan`](Self::loan).
    pub fn try_loan(&self, len: usize) -> Result<Loan> {
        self.inner.node.check_open()?;
        self.inner.engine.try_loan(len)
    }
}
