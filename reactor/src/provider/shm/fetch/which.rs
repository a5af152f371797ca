//! Which messages are fetched: those that were asked for, or, where the kernel is quick at it, what
//! is by itself.
#![deny(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::read_process;

/// Which messages are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    /// From this length on; `usize::MAX` for none, in either direction.
    pub(crate) from: usize,
    /// Only what is by itself: where several follow each other, one side writes into the ring while
    /// the other reads.
    pub(crate) only_alone: bool,
}

impl Which {
    /// Unless said otherwise: what is by itself, where this machine makes it worth while
    /// (`docs/performance.md`).
    pub(crate) fn unasked() -> Self {
        static PAYS: OnceLock<bool> = OnceLock::new();
        let from = if *PAYS.get_or_init(pays) {
            UNASKED_FROM
        } else {
            usize::MAX
        };
        Self {
            from,
            only_alone: true,
        }
    }

    /// Those of at least so many bytes.
    pub(crate) fn from(len: usize) -> Self {
        Self {
            from: len,
            only_alone: false,
        }
    }

    pub(crate) fn is_none(self) -> bool {
        self.from == usize::MAX
    }

    /// Whether a message of this length is fetched, by itself or not.
    #[inline]
    pub(crate) fn has(self, len: usize, alone: bool) -> bool {
        len >= self.from && (alone || !self.only_alone)
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self {
                from: usize::MAX, ..
            } => write!(f, "of nothing"),
            Self {
                from,
                only_alone: true,
            } => write!(f, "of what has {from} bytes and is alone"),
            Self {
                from,
                only_alone: false,
            } => write!(f, "of what has {from} bytes"),
        }
    }
}

/// The shortest message that is fetched without being asked for, and how much is copied to find out
/// whether it pays.
const UNASKED_FROM: usize = 64 * 1024;
/// How often both ways are tried for that; the best counts.
const TRIALS: usize = 8;
/// How much longer than a copy the kernel may take for one.
const DEARER: u32 = 4;

/// Whether the kernel copies between processes about as quickly as processes do: tried with this
/// one's own memory.
fn pays() -> bool {
    let (from, mut into) = (
        vec![1; UNASKED_FROM],
        vec![MaybeUninit::new(0); UNASKED_FROM],
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
        best(&mut |into| read_process(process, (at, at), into, &mut []) == Ok(UNASKED_FROM));
    plain
        .zip(by_kernel)
        .is_some_and(|(plain, by_kernel)| by_kernel <= plain * DEARER)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_fetched_always_and_the_rest_by_itself() {
        let asked = Which::from(1000);
        assert_eq!(
            [(999, true), (1000, true), (1000, false)].map(|(len, alone)| asked.has(len, alone)),
            [false, true, true]
        );
        let unasked = Which {
            from: UNASKED_FROM,
            only_alone: true,
        };
        let cases = [
            (UNASKED_FROM - 1, true),
            (UNASKED_FROM, true),
            (UNASKED_FROM, false),
        ];
        assert_eq!(
            cases.map(|(len, alone)| unasked.has(len, alone)),
            [false, true, false]
        );
        assert!(Which::from(usize::MAX).is_none() && !asked.is_none());
        let found = Which::unasked();
        assert!(found.only_alone && (found.is_none() || found == unasked));
    }
}
