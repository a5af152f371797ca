//! Requests of endpoints, and the futures and operations they become when they are posted.
//!
//! | file | subject |
//! |---|---|
//! | `request` | `Request`: modifiers, `start`, `post`, `inject` |
//! | `traits` | which modifier applies to which operation |
//! | `future`, `operation` | the future of a request; an operation that was started |
//! | `send`, `recv`, `multi_recv` | messages |
//! | `onesided`, `atomic` | writes, reads, atomic operations |
//! | `batch` | posting several requests together |
//! | `permit`, `probe`, `claim` | credits ahead of a send; messages ahead of a receive |

mod atomic;
mod batch;
mod claim;
mod future;
mod multi_recv;
mod onesided;
mod operation;
mod permit;
mod probe;
mod recv;
mod request;
mod send;
mod traits;

pub use atomic::{AtomicMode, AtomicOperation, Fetching, NoFetch, RemoteAtomicOp};
pub(crate) use batch::post_all;
pub use batch::{BatchError, BatchOp};
pub use claim::{ClaimOp, Claimed, ClaimedRecvOp, Claiming};
pub use future::RequestFuture;
pub use multi_recv::{MessageSlice, MultiRecv, MultiRecvOp, PostedMultiRecv};
pub use onesided::{ReadFrom, ReadOp, WriteOp, WriteTo};
pub use operation::{CancelOutcome, Operation};
pub use permit::{AsEndpoint, Permit, PermitSendOp, Reserving};
pub use probe::{ProbeOp, Probing};
pub use recv::{Message, RecvOp};
pub use request::Request;
pub use send::SendOp;
pub(crate) use traits::sealed;
pub use traits::{
    AwaitableOp, BufferOp, BytesOp, DataOp, DeliveryOp, InjectOp, MatchingOp, MessageOp, Op,
    QueuedOp, SelectiveOp, TaggedOp, TransmitOp,
};

use fabric_reactor::CompletionTarget;

/// Panic text of a poll of a future that has resolved.
const POLLED_AFTER_COMPLETION: &str = "the operation was polled after it had resolved";

/// What the completion of a posted request has, and when it is an entry of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompletionOptions {
    context: u64,
    /// Whether a success is an entry although the queue is bound for selective completion
    /// (`FI_COMPLETION`).
    completion: bool,
}

impl CompletionOptions {
    /// Returns the completion target. `is_selective` says whether the endpoint's queue is bound for
    /// selective completion.
    fn target(self, is_selective: bool) -> CompletionTarget {
        if is_selective && !self.completion {
            CompletionTarget::CqOnError(self.context)
        } else {
            CompletionTarget::Cq(self.context)
        }
    }
}
