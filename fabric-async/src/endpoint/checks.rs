//! Checks of operations against the capabilities and limits of the endpoint.

use fabric_core::buf::{IoBuf, IoBufMut};
use fabric_core::completion::OpKind;
use fabric_core::flags::Caps;
use fabric_core::matching::RecvSpec;
use fabric_core::transport::TxOp;
use fabric_core::{Error, Result};

use super::EndpointInner;

impl EndpointInner {
    /// Checks an operation on a peer.
    #[inline]
    pub(crate) fn check_tx_op(&self, tx_op: &TxOp) -> Result<()> {
        self.check_tx(
            tx_op.kind,
            tx_op.fence,
            tx_op.data.is_some(),
            tx_op.tag.is_some(),
        )
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
            OpKind::Send => self.check_caps(self.tx_caps, is_tagged, Caps::SEND),
            kind => self.check_one_sided(kind),
        }
    }

    /// Checks the number of buffers of a send, write or read. The number is 1 for most buffer
    /// types, which the compiler knows, so that nothing remains of the check.
    #[inline]
    pub(crate) fn check_tx_iov(&self, buf: &impl IoBuf) -> Result<()> {
        check_iov_count(buf.count(), self.info.tx.iov_limit)
    }

    /// Checks the number of buffers of a receive.
    #[inline]
    pub(crate) fn check_rx_iov(&self, buf: &impl IoBufMut) -> Result<()> {
        check_iov_count(buf.count(), self.info.rx.iov_limit)
    }

    fn check_one_sided(&self, kind: OpKind) -> Result<()> {
        let (what, direction) = match kind {
            OpKind::Read => (Caps::RMA, Caps::READ),
            OpKind::Write => (Caps::RMA, Caps::WRITE),
            OpKind::FetchAtomic => (Caps::ATOMIC, Caps::READ),
            _ => (Caps::ATOMIC, Caps::WRITE),
        };
        let caps = self.tx_caps;
        if !caps.contains(what) {
            return Err(Error::NotSupported(if what == Caps::RMA {
                "one-sided operations (the endpoint has no FI_RMA)"
            } else if self.caps.contains(Caps::ATOMIC) {
                "atomic operations on a peer not known to support them"
            } else {
                "atomic operations (the endpoint has no FI_ATOMIC)"
            }));
        }
        if !caps.contains(direction) {
            return Err(Error::NotSupported(match (what, direction) {
                (Caps::RMA, Caps::READ) => "reads (the endpoint has no FI_READ)",
                (Caps::RMA, _) => "writes (the endpoint has no FI_WRITE)",
                (_, Caps::READ) => "fetching atomic operations (the endpoint has no FI_READ)",
                _ => "atomic operations (the endpoint has no FI_WRITE)",
            }));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_recv(&self, spec: &RecvSpec) -> Result<()> {
        self.node.check_open()?;
        if spec.from.is_some() && !self.caps.contains(Caps::DIRECTED_RECV) {
            return Err(Error::NotSupported(
                "directed receives (the endpoint has no FI_DIRECTED_RECV)",
            ));
        }
        self.check_caps(self.caps, spec.tag.is_some(), Caps::RECV)
    }

    pub(crate) fn check_multi_recv(&self, spec: &RecvSpec) -> Result<()> {
        self.check_recv(spec)?;
        let needed = if spec.tag.is_some() {
            Caps::TAGGED_MULTI_RECV
        } else {
            Caps::MULTI_RECV
        };
        if !self.caps.contains(needed) {
            return Err(Error::NotSupported(if spec.tag.is_some() {
                "tagged multi-receives (the endpoint has no FI_TAGGED_MULTI_RECV)"
            } else {
                "multi-receives (the endpoint has no FI_MULTI_RECV)"
            }));
        }
        Ok(())
    }

    fn check_caps(&self, caps: Caps, tagged: bool, direction: Caps) -> Result<()> {
        if tagged && !caps.contains(Caps::TAGGED) {
            return Err(Error::NotSupported(if self.caps.contains(Caps::TAGGED) {
                "tagged messages to a peer not known to support them"
            } else {
                "tagged messages (the endpoint has no FI_TAGGED)"
            }));
        }
        if !tagged && !caps.contains(Caps::MSG) {
            return Err(Error::NotSupported(
                "untagged messages (the endpoint has no FI_MSG)",
            ));
        }
        if !caps.contains(direction) {
            return Err(self.direction_error(direction));
        }
        Ok(())
    }

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
            what: "buffers (iov_limit)",
            count,
            limit,
        });
    }
    Ok(())
}
