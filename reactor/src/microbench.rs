//! Microbenchmarks of internal parts, one operation each. Not part of the interface.

use std::hint::black_box;

use fabric_core::buf::{AnyBuf, IoBuf};
use fabric_core::completion::{OpKind, Transfer};
use fabric_core::transport::EpId;

use crate::engine::state::domain_state::DomainState;
use crate::engine::state::ops::{CompletionTarget, OpState};
use crate::transport::shm;

pub use crate::sys::microbench::{Microbench, Work};

/// Returns all microbenchmarks.
#[must_use]
pub fn all() -> Vec<Microbench> {
    let mut all = shm::benchmarks();
    all.push(("op slots/post, complete, take a receive", || op_slots(true)));
    all.push(("op slots/post, complete, take a send", || op_slots(false)));
    all
}

/// Returns a microbenchmark that posts an operation, completes it and takes the result as its
/// future does.
fn op_slots(recv: bool) -> Work {
    let mut domain = DomainState::default();
    let mut spare = vec![0u8; 8];
    Box::new(move || {
        let buf = std::mem::take(&mut spare).into_any();
        let key = match recv {
            true => domain
                .ops
                .insert_recv(EpId(0), CompletionTarget::Future, buf),
            false => domain.ops.insert(OpState::new(
                EpId(0),
                OpKind::Send,
                CompletionTarget::Future,
                buf,
            )),
        };
        if let Some(op) = domain.ops.get_mut(black_box(key)) {
            if recv {
                op.take_recv_place();
            }
            op.finish_ok(Transfer::default(), &mut domain.deferred);
        }
        let result = domain.take_op_result(key);
        let buf = result.map_or(AnyBuf::None, |result| result.buf);
        spare = Vec::from_any(buf).unwrap_or_default();
        spare.len()
    })
}
