//! Which messages are copied once: those of at least a configured length, or by default a long
//! message that is alone in its connection's queue while no other is being copied.
//!
//! Decision: with one message under way the sender has nothing to do but wait, so its copy into the
//! ring is pure delay; with several it fills the ring while the receiver empties it, and both cores
//! copy. Which case it is, is known when the message reaches the head of the queue. What the
//! kernel's copy costs differs between machines by more than is gained, so each process measures it
//! once with its own memory; above four times a plain copy it is not used by default.
#![deny(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::read_process_memory;

/// The condition for single copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SingleCopyPolicy {
    /// Minimum length in bytes; `usize::MAX` disables single copy in both directions.
    pub(crate) min_len: usize,
    /// Whether single copy is used only if no other operation is queued: with several messages the
    /// sender writes into the ring while the receiver reads.
    pub(crate) only_if_queue_empty: bool,
}

impl SingleCopyPolicy {
    /// Returns the default policy: a message that is alone in the queue, on machines where the
    /// kernel's copy is fast enough (`docs/performance.md`).
    pub(crate) fn auto() -> Self {
        static IS_FAST: OnceLock<bool> = OnceLock::new();
        let min_len = if *IS_FAST.get_or_init(is_cma_fast) {
            AUTO_MIN_LEN
        } else {
            usize::MAX
        };
        Self {
            min_len,
            only_if_queue_empty: true,
        }
    }

    /// Returns the policy for messages of at least `len` bytes.
    pub(crate) fn from_len(len: usize) -> Self {
        Self {
            min_len: len,
            only_if_queue_empty: false,
        }
    }

    pub(crate) fn is_disabled(self) -> bool {
        self.min_len == usize::MAX
    }

    /// Returns whether a message of this length uses single copy; `is_only_op` if no other
    /// operation is queued.
    #[inline]
    pub(crate) fn applies_to(self, len: usize, is_only_op: bool) -> bool {
        len >= self.min_len && (is_only_op || !self.only_if_queue_empty)
    }
}

impl fmt::Display for SingleCopyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self {
                min_len: usize::MAX,
                ..
            } => write!(f, "off"),
            Self {
                min_len,
                only_if_queue_empty: true,
            } => write!(f, "auto, >= {min_len} bytes, queue empty"),
            Self {
                min_len,
                only_if_queue_empty: false,
            } => write!(f, ">= {min_len} bytes"),
        }
    }
}

/// The shortest message that uses single copy by default, and the size of the copies that are
/// measured.
const AUTO_MIN_LEN: usize = 64 * 1024;
/// Number of measurements of each copy; the fastest counts.
const TRIALS: usize = 8;
/// Factor by which the kernel's copy may be slower than a plain copy.
const MAX_SLOWDOWN: u32 = 4;

/// Measures whether the kernel copies between processes about as fast as a plain copy, with this
/// process's own memory.
fn is_cma_fast() -> bool {
    let (source, mut into) = (
        vec![1; AUTO_MIN_LEN],
        vec![MaybeUninit::new(0); AUTO_MIN_LEN],
    );
    let mut best = |copy: &mut dyn FnMut(&mut [MaybeUninit<u8>]) -> bool| {
        (0..TRIALS).try_fold(Duration::MAX, |best, _| {
            let begin = Instant::now();
            let copied = copy(&mut into);
            copied.then(|| best.min(begin.elapsed()))
        })
    };
    let plain = best(&mut |into| {
        into.write_copy_of_slice(std::hint::black_box(&source));
        true
    });
    let at = source.as_ptr().expose_provenance() as u64;
    let pid = std::process::id().cast_signed();
    let by_kernel =
        best(&mut |into| read_process_memory(pid, (at, at), into, &mut []) == Ok(AUTO_MIN_LEN));
    plain
        .zip(by_kernel)
        .is_some_and(|(plain, by_kernel)| by_kernel <= plain * MAX_SLOWDOWN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn explicit_threshold_applies_to_busy_queues_too() {
        let explicit = SingleCopyPolicy::from_len(1000);
        assert_eq!(
            [(999, true), (1000, true), (1000, false)]
                .map(|(len, is_only_op)| explicit.applies_to(len, is_only_op)),
            [false, true, true]
        );
        let automatic = SingleCopyPolicy {
            min_len: AUTO_MIN_LEN,
            only_if_queue_empty: true,
        };
        let cases = [
            (AUTO_MIN_LEN - 1, true),
            (AUTO_MIN_LEN, true),
            (AUTO_MIN_LEN, false),
        ];
        assert_eq!(
            cases.map(|(len, is_only_op)| automatic.applies_to(len, is_only_op)),
            [false, true, false]
        );
        assert!(SingleCopyPolicy::from_len(usize::MAX).is_disabled() && !explicit.is_disabled());
        let auto_policy = SingleCopyPolicy::auto();
        assert!(
            auto_policy.only_if_queue_empty
                && (auto_policy.is_disabled() || auto_policy == automatic)
        );
    }
}
