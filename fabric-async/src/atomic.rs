//! Atomic operations on memory of peers (`fi_atomic(3)`): operations, types and values.
//!
//! [`Endpoint::atomic`](crate::Endpoint::atomic) and the calls beside it create the requests.
//! [`query_atomic`] tells which of them an endpoint can post.

use fabric_core::Result;
use fabric_core::atomic::{AtomicSpec, MAX_ATOMIC_BYTES};
use fabric_core::completion::OpKind;

pub use fabric_core::atomic::{
    AtomicCall, AtomicOp, AtomicType, AtomicValues, Complex, Datatype, bf16, f16,
};

pub use crate::op::{AtomicMode, AtomicOperation, Fetching, NoFetch, RemoteAtomicOp};

use crate::op::AsEndpoint;
use crate::thread_model::ThreadModel;

/// What an atomic operation takes (`struct fi_atomic_attr`), from [`query_atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "fi_atomic_attr")]
pub struct AtomicAttr {
    /// The largest number of values.
    pub count: usize,
    /// The size of a value in bytes, which is also its alignment.
    pub size: usize,
}

/// Returns what an atomic operation of this endpoint takes, if the endpoint can post it
/// (`fi_atomicvalid`, `fi_fetch_atomicvalid`, `fi_compare_atomicvalid`, `fi_query_atomic`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fabric_async::Result<()> {
/// use fabric_async::Endpoint;
/// use fabric_async::atomic::{AtomicCall, AtomicOp, Datatype, query_atomic};
/// let ep = Endpoint::bind("shm://").await?;
/// let sum = query_atomic(&ep, AtomicOp::Sum, Datatype::F64, AtomicCall::Fetch)?;
/// assert_eq!((sum.count, sum.size), (512, 8));
/// let or = query_atomic(&ep, AtomicOp::Bor, Datatype::F64, AtomicCall::Fetch);
/// assert_eq!(or.unwrap_err().errno(), 95);                      // FI_EOPNOTSUPP
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::NotSupported`](crate::Error::NotSupported) when the operation is not valid for the type
/// in this call, when the endpoint lacks [`Caps::ATOMIC`](crate::Caps::ATOMIC) or the direction, or
/// when the peer of a connected endpoint is not known to have atomic operations;
/// [`Error::Closed`](crate::Error::Closed).
#[doc(alias = "fi_atomicvalid")]
#[doc(alias = "fi_fetch_atomicvalid")]
#[doc(alias = "fi_compare_atomicvalid")]
#[doc(alias = "fi_query_atomic")]
pub fn query_atomic<M: ThreadModel>(
    ep: &impl AsEndpoint<M>,
    op: AtomicOp,
    datatype: Datatype,
    call: AtomicCall,
) -> Result<AtomicAttr> {
    AtomicSpec { op, datatype, call }.check()?;
    let kind = match call {
        AtomicCall::Base => OpKind::Atomic,
        AtomicCall::Fetch | AtomicCall::Compare => OpKind::FetchAtomic,
    };
    ep.inner().check_without_buffer(kind, false, false, false)?;
    let size = datatype.size();
    Ok(AtomicAttr {
        count: MAX_ATOMIC_BYTES / size,
        size,
    })
}
