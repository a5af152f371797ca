//! Batches of messages and requests.

use arrayvec::ArrayVec;
use fabric_core::buf::IoBuf;
use fabric_core::completion::OpKind;
use fabric_core::transport::TxOp;
use fabric_core::{Error, FiAddr, Result};
use fabric_reactor::MAX_BATCH_POSTS;

use super::Endpoint;
use crate::op::{self, BatchError, BatchOp, Request};
use crate::thread_model::ThreadModel;

/// # Batches
///
/// A batch is posted in order, in chunks of up to 32 requests or about 64 KiB. A chunk locks the
/// domain once, checks once whether a peer sleeps, and rings its doorbell at most once; a single
/// post does so for each request. Between chunks the domain is unlocked. The iterator never runs
/// under the lock.
///
/// There is no `FI_MORE` flag: all requests of a batch but the last are posted with `FI_MORE`, and
/// the batch ends with the call, also after an error or a panic of the iterator. A panic drops the
/// requests that were taken from the iterator and not posted.
impl<M: ThreadModel> Endpoint<M> {
    /// Sends copies of borrowed bytes, each as a message, as [`inject`](Request::inject) does
    /// (`fi_inject` with `FI_MORE`). Returns the number of accepted messages, and an error if the
    /// batch stopped before its end: the message at that index was refused.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let (accepted, refused) = ep.inject_all(me, [&b"one"[..], b"two", b"three"]);
    /// assert_eq!((accepted, refused), (3, Ok(())));
    /// assert_eq!(&ep.recv().await?[..], b"one");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`inject`](Request::inject). [`Error::PeerGone`](crate::Error::PeerGone) with all
    /// messages accepted when the peer closed meanwhile.
    #[doc(alias = "FI_MORE")]
    pub fn inject_all<'b>(
        &self,
        peer: FiAddr,
        messages: impl IntoIterator<Item = &'b [u8]>,
    ) -> (usize, Result<()>) {
        if let Err(error) = self
            .inner
            .check_without_buffer(OpKind::Send, false, false, false)
        {
            return (0, Err(error));
        }
        let mut tx_op = TxOp::new(OpKind::Send, peer);
        let mut messages = messages.into_iter();
        let mut chunk: ArrayVec<&[u8], MAX_BATCH_POSTS> = ArrayVec::new();
        let mut accepted = 0;
        loop {
            chunk.clear();
            chunk.extend(messages.by_ref().take(MAX_BATCH_POSTS));
            if chunk.is_empty() {
                return (accepted, Ok(()));
            }
            let engine = &self.inner.domain.engine;
            tx_op.more = chunk.len() > 1 && engine.defers_in_batches();
            let Some(mut posts) = engine.batch(self.inner.id) else {
                return (accepted, Err(Error::ConcurrentUse));
            };
            let sent = if tx_op.more {
                posts.try_inject_plain(peer, &chunk)
            } else {
                0
            };
            accepted += sent;
            let stopped = chunk[sent..].iter().try_for_each(|message| {
                posts.inject(&tx_op, message)?;
                accepted += 1;
                Ok(())
            });
            // The error of a refused message takes precedence over a peer that disconnected.
            let ended = stopped.and(posts.finish());
            if ended.is_err() {
                return (accepted, ended);
            }
        }
    }

    /// Posts requests together: sends or writes, to any peers, or receives. Their completions go to
    /// the endpoint's queue of that direction, as with [`Request::post`]. Returns their number.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// # use fabric_async::Endpoint;
    /// let ep = Endpoint::bind("shm://").await?;
    /// let me = ep.add_peer(ep.name()).await?;
    /// let sends = (0u64..100).map(|i| ep.send(me, i.to_le_bytes().to_vec()).tag(i).context(i));
    /// assert_eq!(ep.post_all(sends)?, 100);
    /// assert_eq!(ep.recv().tag(99).await?[..], 99u64.to_le_bytes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// With the requests that were not posted: as [`Request::post`], and
    /// [`Error::Invalid`](crate::Error::Invalid) for a request of another endpoint. The requests
    /// before the refused one stay posted. [`Error::PeerGone`](crate::Error::PeerGone) when a peer
    /// closed meanwhile.
    #[doc(alias = "FI_MORE")]
    pub fn post_all<'a, O: BatchOp<B>, B: IoBuf>(
        &'a self,
        requests: impl IntoIterator<Item = Request<'a, O, B, M>>,
    ) -> Result<usize, BatchError<Request<'a, O, B, M>>> {
        op::post_all(&self.inner, requests)
    }
}
