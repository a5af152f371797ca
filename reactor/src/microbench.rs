//! The inner parts at work, one piece at a time: what the micro-benchmarks look at. Not part of the
//! interface.

use std::hint::black_box;

use fabric_core::buf::{AnyBuf, IoBuf};
use fabric_core::completion::OpKind;
use fabric_core::transport::EpId;

use crate::domain_state::DomainState;
use crate::ops::{CompletionTarget, OpState};
use crate::transport::shm;

/// A piece of work, with its name; the result is what keeps the compiler from leaving it out.
pub type Microbench = (&'static str, Box<dyn FnMut() -> usize>);

/// All of it, each ready to be repeated.
///
/// # Panics
/// When the system has no memory to share.
#[must_use]
pub fn all() -> Vec<Microbench> {
    let mut all = shm::work();
    all.push(("op slots/post, complete, take a receive", op_slots(true)));
    all.push(("op slots/post, complete, take a send", op_slots(false)));
    all
}

/// An operation is posted, ends, and its future takes the result.
fn op_slots(recv: bool) -> Box<dyn FnMut() -> usize> {
    let mut hub = DomainState::new();
    let mut spare = vec![0u8; 8];
    Box::new(move || {
        let buf = std::mem::take(&mut spare).into_any();
        let key = match recv {
            true => hub.ops.insert_recv(EpId(0), CompletionTarget::Future, buf),
            false => hub.ops.insert(OpState::new(
                EpId(0),
                OpKind::Send,
                CompletionTarget::Future,
                buf,
            )),
        };
        if let Some(op) = hub.ops.get_mut(black_box(key)) {
            op.holds_credit = false;
        }
        hub.complete_future(key);
        let ended = hub.take_op_result(key);
        let buf = ended.map_or(AnyBuf::None, |ended| ended.buf);
        spare = Vec::from_any(buf).unwrap_or_default();
        spare.len()
    })
}
