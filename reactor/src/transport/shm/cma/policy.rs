//! Which messages are sent as CMA offers, so that they are copied once: those of at least a
//! configured length, or by default a long message that is the only one on its connection.
//!
//! Decision: a copy into the ring delays a single message, because the receiver waits for that copy
//! before it copies the message out. With several messages the sender fills the ring while the
//! receiver empties it, and both cores copy. Which case applies is known when the message reaches
//! the head of the queue. The cost of `process_vm_readv` differs between machines by more than
//! single copy saves. So each process measures the cost once with its own memory, and does not use
//! single copy by default if it exceeds six times the cost of a plain copy.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::sys::process_memory;

/// The condition for single copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SingleCopyPolicy {
    /// Minimum length in bytes; `usize::MAX` disables single copy in both directions.
    pub(crate) min_len: usize,
    /// Whether single copy is used only if no other operation is queued for the peer and the peer
    /// holds no other offer.
    pub(crate) only_if_queue_empty: bool,
}

impl SingleCopyPolicy {
    /// Returns the default policy: a long message whose queue is empty otherwise, on machines where
    /// `process_vm_readv` is fast enough (`docs/performance.md`).
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

    /// Returns whether a message of this length uses single copy; `queue_empty` if no other
    /// operation is queued for the peer and the peer holds no other offer.
    #[inline]
    pub(crate) fn applies_to(self, len: usize, queue_empty: bool) -> bool {
        len >= self.min_len && (queue_empty || !self.only_if_queue_empty)
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

/// Minimum length of a message that uses single copy by default, and length of the measured copies.
const AUTO_MIN_LEN: usize = 64 * 1024;
/// Number of measurements of each copy; the fastest counts.
const TRIALS: usize = 8;
/// Maximum time of `process_vm_readv`, as a multiple of the time of a plain copy.
const MAX_SLOWDOWN: u32 = 6;

/// Returns whether `process_vm_readv` from this process's own memory takes at most [`MAX_SLOWDOWN`]
/// times as long as a plain copy.
fn is_cma_fast() -> bool {
    let (source, mut into) = (
        vec![1; AUTO_MIN_LEN],
        vec![MaybeUninit::new(0); AUTO_MIN_LEN],
    );
    // Returns the least time of `copy`; `None` if it fails.
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
    let address = source.as_ptr().expose_provenance() as u64;
    let pid = std::process::id().cast_signed();
    let cma = best(&mut |into| {
        process_memory::read(pid, address, into.into(), address, &mut [])
            .1
            .is_ok()
    });
    plain
        .zip(cma)
        .is_some_and(|(plain, cma)| cma <= plain * MAX_SLOWDOWN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn configured_length_applies_with_other_operations_queued() {
        let configured = SingleCopyPolicy::from_len(1000);
        assert_eq!(
            [(999, true), (1000, true), (1000, false)]
                .map(|(len, queue_empty)| configured.applies_to(len, queue_empty)),
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
            cases.map(|(len, queue_empty)| automatic.applies_to(len, queue_empty)),
            [false, true, false]
        );
        assert!(SingleCopyPolicy::from_len(usize::MAX).is_disabled() && !configured.is_disabled());
        let auto_policy = SingleCopyPolicy::auto();
        assert!(
            auto_policy.only_if_queue_empty
                && (auto_policy.is_disabled() || auto_policy == automatic)
        );
    }
}
