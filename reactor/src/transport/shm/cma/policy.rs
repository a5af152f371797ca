//! Which messages are fetched: those that were asked for, or, where the kernel is quick at it, what
//! is by itself.
#![deny(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::read_process_memory;

/// Which messages are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SingleCopyPolicy {
    /// From this length on; `usize::MAX` for none, in either direction.
    pub(crate) min_len: usize,
    /// Only what is by itself: where several follow each other, one side writes into the ring while
    /// the other reads.
    pub(crate) only_if_queue_empty: bool,
}

impl SingleCopyPolicy {
    /// Unless said otherwise: what is by itself, where this machine makes it worth while
    /// (`docs/performance.md`).
    pub(crate) fn auto() -> Self {
        static PAYS: OnceLock<bool> = OnceLock::new();
        let min_len = if *PAYS.get_or_init(is_cma_fast) {
            AUTO_MIN_LEN
        } else {
            usize::MAX
        };
        Self {
            min_len,
            only_if_queue_empty: true,
        }
    }

    /// Those of at least so many bytes.
    pub(crate) fn from_len(len: usize) -> Self {
        Self {
            min_len: len,
            only_if_queue_empty: false,
        }
    }

    pub(crate) fn is_disabled(self) -> bool {
        self.min_len == usize::MAX
    }

    /// Whether a message of this length is fetched, by itself or not.
    #[inline]
    pub(crate) fn applies_to(self, len: usize, alone: bool) -> bool {
        len >= self.min_len && (alone || !self.only_if_queue_empty)
    }
}

impl fmt::Display for SingleCopyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self {
                min_len: usize::MAX,
                ..
            } => write!(f, "of nothing"),
            Self {
                min_len: from,
                only_if_queue_empty: true,
            } => write!(f, "of what has {from} bytes and is alone"),
            Self {
                min_len: from,
                only_if_queue_empty: false,
            } => write!(f, "of what has {from} bytes"),
        }
    }
}

/// The shortest message that is fetched without being asked for, and how much is copied to find out
/// whether it pays.
const AUTO_MIN_LEN: usize = 64 * 1024;
/// How often both ways are tried for that; the best counts.
const TRIALS: usize = 8;
/// How much longer than a copy the kernel may take for one.
const MAX_SLOWDOWN: u32 = 4;

/// Whether the kernel copies between processes about as quickly as processes do: tried with this
/// one's own memory.
fn is_cma_fast() -> bool {
    let (from, mut into) = (
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
        into.write_copy_of_slice(std::hint::black_box(&from));
        true
    });
    let at = from.as_ptr().expose_provenance() as u64;
    let process = std::process::id().cast_signed();
    let by_kernel =
        best(&mut |into| read_process_memory(process, (at, at), into, &mut []) == Ok(AUTO_MIN_LEN));
    plain
        .zip(by_kernel)
        .is_some_and(|(plain, by_kernel)| by_kernel <= plain * MAX_SLOWDOWN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn explicit_threshold_applies_to_busy_queues_too() {
        let asked = SingleCopyPolicy::from_len(1000);
        assert_eq!(
            [(999, true), (1000, true), (1000, false)]
                .map(|(len, alone)| asked.applies_to(len, alone)),
            [false, true, true]
        );
        let unasked = SingleCopyPolicy {
            min_len: AUTO_MIN_LEN,
            only_if_queue_empty: true,
        };
        let cases = [
            (AUTO_MIN_LEN - 1, true),
            (AUTO_MIN_LEN, true),
            (AUTO_MIN_LEN, false),
        ];
        assert_eq!(
            cases.map(|(len, alone)| unasked.applies_to(len, alone)),
            [false, true, false]
        );
        assert!(SingleCopyPolicy::from_len(usize::MAX).is_disabled() && !asked.is_disabled());
        let found = SingleCopyPolicy::auto();
        assert!(found.only_if_queue_empty && (found.is_disabled() || found == unasked));
    }
}
