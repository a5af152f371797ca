//! The part of an endpoint, or of a shared receive context, that operations refer to.
//!
//! An [`EndpointInner`] has what operations need to be checked and posted. Module `endpoint`
//! creates it, and creates requests of module `op`; module `op` uses no other part of an endpoint.
//! An `EndpointInner` keeps nothing open: it outlives the close of its endpoint.

use std::fmt;
use std::sync::Arc;

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::{CompletionLevel, OpKind};
use fabric_core::flags::{Access, Caps, MrMode};
use fabric_core::info::Info;
use fabric_core::matching::RecvSpec;
use fabric_core::mr::LocalUse;
use fabric_core::transport::{EpId, FastPath, FastPathResult, RmaIov, TxOp};
use fabric_core::tree::ObjectNode;
use fabric_core::{Address, Error, FiAddr, Result, Scheme};

use crate::domain_inner::DomainCore;

/// An open or closed endpoint, or shared receive context, as operations see it.
pub struct EndpointInner {
    pub(crate) node: Arc<ObjectNode>,
    pub(crate) id: EpId,
    pub(crate) domain: Arc<DomainCore>,
    /// `None` for a shared receive context.
    pub(crate) name: Option<Address>,
    pub(crate) info: Info,
    /// The context value of the endpoint's events.
    pub(crate) context: u64,
    /// The capabilities of the info, without `RECV` if the endpoint uses a shared receive context,
    /// and without [`BUFFER_DIRECTIONS`] if its domain requires registered buffers.
    pub(crate) caps: Caps,
    /// The capabilities for transmit operations: those of the info, without `TAGGED` and `ATOMIC`
    /// if the peer of a connected endpoint is not known to support them, and without
    /// [`BUFFER_DIRECTIONS`] if the domain requires registered buffers.
    pub(crate) tx_caps: Caps,
    /// Whether a successful operation posted to the transmit queue gets an entry only if the
    /// request has [`completion`](crate::Request::completion).
    pub(crate) selective_tx: bool,
    /// The same for the receive queue.
    pub(crate) selective_rx: bool,
    /// Default completion level of messages.
    pub(crate) completion_level: CompletionLevel,
    /// Executes operations without the domain's lock; `None` if the transport cannot.
    pub(crate) fast_path: Option<Arc<dyn FastPath>>,
    /// Whether operations need keys that the domain has mapped (`FI_MR_RAW`).
    pub(crate) needs_mapped_keys: bool,
    /// Whether the endpoint uses a shared receive context.
    pub(crate) shares_receives: bool,
}

/// The directions that an endpoint lacks at first if its domain requires registered buffers
/// (`FI_MR_LOCAL`). So the checks of other endpoints have no further step: an operation that fails
/// them is checked again, with these directions and its buffer.
pub(crate) const BUFFER_DIRECTIONS: Caps = Caps::SEND
    .union(Caps::RECV)
    .union(Caps::READ)
    .union(Caps::WRITE);

impl EndpointInner {
    /// Returns whether operations may be executed without the domain's lock.
    #[inline]
    pub(crate) fn has_fast_path(&self) -> bool {
        self.fast_path.is_some()
    }

    /// Tries to execute an operation without the domain's lock. Returns whether the operation was
    /// executed.
    #[inline]
    pub(crate) fn try_fast_path(
        &self,
        try_op: impl FnOnce(&dyn FastPath) -> FastPathResult,
    ) -> bool {
        match self
            .fast_path
            .as_deref()
            .map_or(FastPathResult::WouldBlock, try_op)
        {
            FastPathResult::Done => true,
            FastPathResult::SentPollDue => {
                self.domain.engine.poll_fds();
                true
            }
            FastPathResult::WouldBlock => false,
        }
    }

    /// Tries to send a plain message without the domain's lock. Returns whether it was sent.
    ///
    /// # Errors
    /// As [`check_tx`](Self::check_tx).
    #[inline(always)] // on the small-message path
    pub(crate) fn try_send_plain(&self, peer: FiAddr, bytes: &[u8]) -> Result<bool> {
        self.check_tx(OpKind::Send, false, false, false)?;
        Ok(self.try_fast_path(|fast_path| fast_path.try_send_plain(peer, bytes)))
    }

    /// Tries to write bytes without completion data and fence, as
    /// [`try_send_plain`](Self::try_send_plain) sends.
    ///
    /// # Errors
    /// As [`check_tx`](Self::check_tx).
    #[inline(always)] // on the small-message path
    pub(crate) fn try_write_plain(
        &self,
        peer: FiAddr,
        remote: &RmaIov,
        bytes: &[u8],
    ) -> Result<bool> {
        self.check_tx(OpKind::Write, false, false, false)?;
        Ok(self.try_fast_path(|fast_path| fast_path.try_write_plain(peer, remote, bytes)))
    }

    /// Checks an operation on a peer against the endpoint's state and capabilities.
    #[inline]
    pub(crate) fn check_tx_op(&self, tx_op: &TxOp) -> Result<()> {
        self.check_tx(
            tx_op.kind,
            tx_op.fence,
            tx_op.data.is_some(),
            tx_op.tag.is_some(),
        )
    }

    /// Checks an operation on a peer whose bytes are copied, or that has none, as
    /// [`check_tx_op`](Self::check_tx_op).
    #[inline]
    pub(crate) fn check_copied_tx(&self, tx_op: &TxOp) -> Result<()> {
        if self.needs_mapped_keys
            && let Some(remote) = &tx_op.remote
        {
            self.check_mapped_key(remote.key)?;
        }
        let (has_data, is_tagged) = (tx_op.data.is_some(), tx_op.tag.is_some());
        self.check_without_buffer(tx_op.kind, tx_op.fence, has_data, is_tagged)
    }

    /// Checks an operation on a peer by its properties, as
    /// [`check_copied_tx`](Self::check_copied_tx).
    #[inline]
    pub(crate) fn check_without_buffer(
        &self,
        kind: OpKind,
        fence: bool,
        has_data: bool,
        is_tagged: bool,
    ) -> Result<()> {
        let checked = self.check_tx(kind, fence, has_data, is_tagged);
        checked.or_else(|error| self.recheck_tx(error, kind, fence, has_data, is_tagged))
    }

    /// Checks an operation on a peer with a buffer, as [`check_tx`](Self::check_tx), and the number
    /// of its parts. For a buffer type whose count is the constant 1, the compiler removes the
    /// check of the number.
    #[inline]
    pub(crate) fn check_tx_with(
        &self,
        kind: OpKind,
        fence: bool,
        has_data: bool,
        is_tagged: bool,
        buf: &impl IoBuf,
    ) -> Result<()> {
        if let Err(error) = self.check_tx(kind, fence, has_data, is_tagged) {
            self.recheck_tx(error, kind, fence, has_data, is_tagged)?;
            self.check_tx_registration(kind, buf)?;
        }
        self.check_tx_iov(buf)
    }

    /// Checks an operation on a peer that `error` refuses again, if that may be because the domain
    /// requires registered buffers.
    #[cold]
    fn recheck_tx(
        &self,
        error: Error,
        kind: OpKind,
        fence: bool,
        has_data: bool,
        is_tagged: bool,
    ) -> Result<()> {
        if !self.needs_registered_buffers() {
            return Err(error);
        }
        let caps = self.tx_caps | (self.info.caps & BUFFER_DIRECTIONS);
        self.check_tx_caps(caps, kind, fence, has_data, is_tagged)
    }

    /// Checks that the buffer of an operation on a peer is registered, unless it is empty.
    #[cold]
    fn check_tx_registration(&self, kind: OpKind, buf: &impl IoBuf) -> Result<()> {
        let access = match kind {
            OpKind::Send => Access::SEND,
            OpKind::Read => Access::READ,
            _ => Access::WRITE,
        };
        if access != Access::READ && buf.payload().is_empty() {
            return Ok(());
        }
        self.check_registration(buf, access)
    }

    /// Checks that a buffer is registered in the domain for this access.
    #[cold]
    fn check_registration(&self, buf: &impl IoBuf, access: Access) -> Result<()> {
        let domain = &self.domain.node;
        if buf.is_registered(&LocalUse { domain, access }) {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "buffer",
            why: format!(
                "the domain requires buffers that are registered for {access:?} (FI_MR_LOCAL); use \
                 Domain::register_local"
            ),
        })
    }

    /// Returns whether the domain requires registered buffers (`FI_MR_LOCAL`).
    fn needs_registered_buffers(&self) -> bool {
        let mr_mode = self.domain.info.domain.mr_mode;
        mr_mode.contains(MrMode::LOCAL)
    }

    /// Checks that the domain has mapped the key of an operation.
    #[cold]
    pub(crate) fn check_mapped_key(&self, key: u64) -> Result<()> {
        self.domain.engine.check_mapped_key(key)
    }

    /// Checks an operation on a peer by its properties.
    #[inline]
    pub(crate) fn check_tx(
        &self,
        kind: OpKind,
        fence: bool,
        has_data: bool,
        is_tagged: bool,
    ) -> Result<()> {
        self.check_tx_caps(self.tx_caps, kind, fence, has_data, is_tagged)
    }

    /// Checks an operation on a peer against these capabilities for transmit operations.
    #[inline(always)] // as a part of `check_tx`
    fn check_tx_caps(
        &self,
        tx_caps: Caps,
        kind: OpKind,
        fence: bool,
        has_data: bool,
        is_tagged: bool,
    ) -> Result<()> {
        self.node.check_open()?;
        if fence && !self.caps.contains(Caps::FENCE) {
            return Err(Error::NotSupported(
                "fenced operations (the endpoint has no FI_FENCE)",
            ));
        }
        if has_data && self.info.domain.cq_data_size == 0 {
            return Err(Error::NotSupported(
                "remote completion data (FI_REMOTE_CQ_DATA: cq_data_size is 0)",
            ));
        }
        match kind {
            OpKind::Send => self.check_caps(tx_caps, is_tagged, Caps::SEND),
            kind => self.check_one_sided(tx_caps, kind),
        }
    }

    /// Checks the number of buffers of a send, write or read. For a buffer type whose count is the
    /// constant 1, the compiler removes the check.
    #[inline]
    pub(crate) fn check_tx_iov(&self, buf: &impl IoBuf) -> Result<()> {
        check_iov_count(buf.count(), self.info.tx.iov_limit)
    }

    /// Checks a receive with its buffer, as [`check_recv`](Self::check_recv), and the number of the
    /// buffer's parts.
    #[inline]
    pub(crate) fn check_recv_into(&self, spec: &RecvSpec, buf: &impl IoBufMut) -> Result<()> {
        if let Err(error) = self.check_recv(spec) {
            self.recheck_recv(error, spec)?;
            self.check_registration(buf, Access::RECV)?;
        }
        self.check_rx_iov(buf)
    }

    /// Checks a probe or claim, as [`check_recv`](Self::check_recv) checks a receive.
    pub(crate) fn check_probe(&self, spec: &RecvSpec) -> Result<()> {
        let checked = self.check_recv(spec);
        checked.or_else(|error| self.recheck_recv(error, spec))
    }

    /// Checks the buffer of a receive of a claimed message.
    pub(crate) fn check_claimed_recv(&self, buf: &impl IoBufMut) -> Result<()> {
        if self.needs_registered_buffers() {
            self.check_registration(buf, Access::RECV)?;
        }
        self.check_rx_iov(buf)
    }

    /// Checks a receive that `error` refuses again, as [`recheck_tx`](Self::recheck_tx).
    #[cold]
    fn recheck_recv(&self, error: Error, spec: &RecvSpec) -> Result<()> {
        if !self.needs_registered_buffers() || self.shares_receives {
            return Err(error);
        }
        let caps = self.caps | (self.info.caps & BUFFER_DIRECTIONS);
        self.check_recv_caps(caps, spec)
    }

    /// Checks the number of buffers of a receive.
    #[inline]
    fn check_rx_iov(&self, buf: &impl IoBufMut) -> Result<()> {
        check_iov_count(buf.count(), self.info.rx.iov_limit)
    }

    /// Checks the capabilities for a write, read or atomic operation.
    fn check_one_sided(&self, caps: Caps, kind: OpKind) -> Result<()> {
        let (class, direction) = match kind {
            OpKind::Read => (Caps::RMA, Caps::READ),
            OpKind::Write => (Caps::RMA, Caps::WRITE),
            OpKind::FetchAtomic => (Caps::ATOMIC, Caps::READ),
            _ => (Caps::ATOMIC, Caps::WRITE),
        };
        if !caps.contains(class) {
            return Err(Error::NotSupported(if class == Caps::RMA {
                match self.domain.scheme() {
                    Scheme::Udp => "one-sided operations over udp (FI_RMA); use shm or tcp",
                    _ => {
                        "one-sided operations (the endpoint has no FI_RMA; request Caps::RMA in \
                         the hints)"
                    }
                }
            } else if self.caps.contains(Caps::ATOMIC) {
                "atomic operations on a peer not known to support them"
            } else {
                match self.domain.scheme() {
                    Scheme::Udp => "atomic operations over udp (FI_ATOMIC); use shm or tcp",
                    _ => {
                        "atomic operations (the endpoint has no FI_ATOMIC; request Caps::ATOMIC in \
                         the hints)"
                    }
                }
            }));
        }
        if !caps.contains(direction) {
            return Err(Error::NotSupported(match (class, direction) {
                (Caps::RMA, Caps::READ) => "reads (the endpoint has no FI_READ)",
                (Caps::RMA, _) => "writes (the endpoint has no FI_WRITE)",
                (_, Caps::READ) => "fetching atomic operations (the endpoint has no FI_READ)",
                _ => "atomic operations (the endpoint has no FI_WRITE)",
            }));
        }
        Ok(())
    }

    /// Checks a receive, probe or claim against the endpoint's state and capabilities.
    #[inline]
    fn check_recv(&self, spec: &RecvSpec) -> Result<()> {
        self.check_recv_caps(self.caps, spec)
    }

    /// Checks a receive, probe or claim against these capabilities.
    #[inline(always)] // as a part of `check_recv`
    fn check_recv_caps(&self, caps: Caps, spec: &RecvSpec) -> Result<()> {
        self.node.check_open()?;
        if spec.from.is_some() && !caps.contains(Caps::DIRECTED_RECV) {
            return Err(Error::NotSupported(
                "directed receives, since the endpoint has no FI_DIRECTED_RECV; request \
                 Caps::DIRECTED_RECV in the hints",
            ));
        }
        self.check_caps(caps, spec.tag.is_some(), Caps::RECV)
    }

    /// Checks a multi-receive, as [`check_recv`](Self::check_recv).
    pub(crate) fn check_multi_recv(&self, spec: &RecvSpec) -> Result<()> {
        self.check_probe(spec)?;
        if self.needs_registered_buffers() {
            return Err(Error::NotSupported(
                "multi-receives in a domain that requires registered buffers (FI_MR_LOCAL)",
            ));
        }
        let (needed, missing) = match spec.tag {
            Some(_) => (
                Caps::TAGGED_MULTI_RECV,
                "tagged multi-receives (the endpoint has no FI_TAGGED_MULTI_RECV)",
            ),
            None => (
                Caps::MULTI_RECV,
                "multi-receives (the endpoint has no FI_MULTI_RECV)",
            ),
        };
        if !self.caps.contains(needed) {
            return Err(Error::NotSupported(missing));
        }
        Ok(())
    }

    /// Checks that `caps` has the capabilities for tagged or untagged messages in this direction:
    /// `Caps::SEND` or `Caps::RECV`.
    fn check_caps(&self, caps: Caps, is_tagged: bool, direction: Caps) -> Result<()> {
        if is_tagged && !caps.contains(Caps::TAGGED) {
            return Err(self.no_tags_error());
        }
        if !is_tagged && !caps.contains(Caps::MSG) {
            return Err(Error::NotSupported(
                "untagged messages (the endpoint has no FI_MSG)",
            ));
        }
        if !caps.contains(direction) {
            return Err(self.direction_error(direction));
        }
        Ok(())
    }

    /// Returns the error of a tagged message, by the reason: the peer, the provider or the hints.
    #[cold]
    fn no_tags_error(&self) -> Error {
        Error::NotSupported(if self.caps.contains(Caps::TAGGED) {
            "tagged messages to a peer not known to support them (peer_supports_tags)"
        } else if self.domain.scheme() == Scheme::Udp {
            "tagged messages over udp; use shm or tcp, or untagged messages"
        } else {
            "tagged messages (the endpoint has no FI_TAGGED; request Caps::TAGGED in the hints)"
        })
    }

    /// Returns the error for a missing `Caps::SEND` or `Caps::RECV`.
    #[cold]
    fn direction_error(&self, direction: Caps) -> Error {
        Error::NotSupported(match direction {
            Caps::RECV if self.shares_receives => {
                "receives on an endpoint with a shared receive context: post them to the context"
            }
            Caps::RECV => "receives (the endpoint has no FI_RECV)",
            _ => "sends (the endpoint has no FI_SEND)",
        })
    }
}

#[inline]
fn check_iov_count(count: usize, limit: usize) -> Result<()> {
    if count > 1 && count > limit {
        return Err(Error::TooMany {
            what: "buffers of one operation (iov_limit)",
            count,
            limit,
        });
    }
    Ok(())
}

impl fmt::Debug for EndpointInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointInner")
            .field("id", &self.node.id())
            .finish_non_exhaustive()
    }
}
