//! Keeping a thread on one core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores this process may use, in order.
#[must_use]
pub fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Keeps the calling thread, and those it starts later, on this core. True when the system agreed.
pub fn to_core(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).is_ok()
}
