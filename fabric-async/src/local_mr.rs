//! Registration of buffers for operations of this process (`FI_MR_LOCAL`).

use fabric_core::Error;
use fabric_core::buf::FlatBuf;
use fabric_core::completion::Failed;
use fabric_core::flags::{Access, MrMode};
use fabric_core::mr::LocalBuffer;
use fabric_core::tree::{Class, ObjectNode};

use crate::domain::Domain;
use crate::thread_model::ThreadModel;

/// # Local registration
impl<M: ThreadModel> Domain<M> {
    /// Registers a buffer for operations of this process (`fi_mr_reg` without remote rights,
    /// `fi_mr_desc`): as the source of messages ([`Access::SEND`]) and writes ([`Access::WRITE`]),
    /// to receive messages ([`Access::RECV`]) and the results of reads ([`Access::READ`]).
    ///
    /// In a domain that requires [`MrMode::LOCAL`](crate::info::MrMode::LOCAL), the buffers of
    /// sends, receives, writes and reads are [`LocalBuffer`]s, or a [`Gather`](crate::buf::Gather)
    /// or [`Scatter`](crate::buf::Scatter) of them. An operation with another buffer fails with
    /// [`Error::Invalid`], and returns the buffer. No registration is needed for memory of this
    /// library ([`PooledBuf`](crate::PooledBuf), which `recv()` and `read()` return;
    /// [`Loan`](crate::Loan); [`LoanedBuf`](crate::LoanedBuf)), for bytes that the library copies
    /// ([injected](crate::Request::inject) bytes, the operands of atomic operations), and for empty
    /// buffers. Multi-receives split their buffer, and are refused.
    ///
    /// In other domains a [`LocalBuffer`] is a buffer like any other, so a program is the same with
    /// and without the bit. All bytes of the buffer are registered, not the spare capacity of a
    /// vector.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
    /// use fabric_async::info::MrMode;
    /// use fabric_async::{Access, Error, Fabric, Hints, discover};
    /// let hints = Hints::new().provider("sim").domain_name("sim+LOCAL").mr_mode(MrMode::LOCAL);
    /// let info = discover(&hints)?.swap_remove(0);
    /// let domain = Fabric::open(&info)?.domain(&info)?;
    /// let av = domain.address_vector()?;
    /// let ep = domain.endpoint(&info)?.bind_av(&av)?.enable()?;
    /// let me = ep.add_peer(ep.name()).await?;
    ///
    /// let refused = ep.send(me, vec![1, 2, 3]).await.unwrap_err();
    /// assert!(matches!(refused.error, Error::Invalid { .. }));
    /// let to_send = domain.register_local(refused.buf, Access::SEND)?;
    /// let room = domain.register_local(vec![0; 64], Access::RECV)?;
    /// let (sent, received) = tokio::join!(ep.send(me, to_send), ep.recv_into(room));
    /// assert_eq!(received?.buf[..], [1, 2, 3]);
    /// let vector: Vec<u8> = sent?.buf.into_inner();
    /// # drop(vector); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// With the buffer: [`Error::BadFlags`] for no access, or one of peers; [`Error::Invalid`] when
    /// messages are to be received into bytes that cannot be written in place, or in a domain that
    /// requires [`MrMode::ALLOCATED`](crate::info::MrMode::ALLOCATED) for bytes without pages;
    /// [`Error::TooMany`] when the domain has `mr_cnt` regions, local registrations included (not
    /// where the provider has no memory regions); [`Error::Closed`].
    #[doc(alias = "fi_mr_reg")]
    #[doc(alias = "fi_mr_desc")]
    #[doc(alias = "FI_MR_LOCAL")]
    pub fn register_local<B: FlatBuf>(
        &self,
        buf: B,
        access: Access,
    ) -> Result<LocalBuffer<B>, Failed<B>> {
        let failed = |(error, buf): (Error, B)| Failed::new(error, buf);
        let domain = &self.inner;
        let bytes = buf.bytes();
        let (address, len) = (bytes.as_ptr().addr() as u64, bytes.len());
        let check = || {
            domain.node.check_room(Class::MemoryRegion)?;
            if domain.info.domain.mr_mode.contains(MrMode::ALLOCATED) {
                let transport = domain.fabric.inner.transport;
                transport.check_allocated(address, len)?;
            }
            Ok(())
        };
        if let Err(error) = check() {
            return Err(failed((error, buf)));
        }
        let node = ObjectNode::new(Class::MemoryRegion, Some(domain.node.clone()));
        LocalBuffer::new(buf, access, node).map_err(failed)
    }
}
