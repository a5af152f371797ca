//! Which core a thread runs on.

use std::str::FromStr;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores this process may use, in order.
#[must_use]
pub fn available_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Keeps the calling thread, and those it starts later, on this core. True when the system agreed.
pub fn pin_to_core(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).is_ok()
}

/// Does this on the core, if one is named: processes started there stay there.
pub fn run_on_core<T: Send>(core: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
    let Some(core) = core else { return work() };
    let pinned = || {
        pin_to_core(core);
        work()
    };
    thread::scope(|scope| match scope.spawn(pinned).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Where the two sides of a measurement run.
///
/// ```
/// use fabric_bench::pin::Pin;
/// let pin: Pin = "0,1".parse()?;
/// assert_eq!(pin.lane(0), (Some(0), Some(1)));
/// assert_eq!("none".parse::<Pin>()?.lane(0), (None, None));
/// assert!("0;1".parse::<Pin>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePinning(Vec<usize>);

impl CorePinning {
    /// All cores of this process.
    #[must_use]
    pub fn auto() -> Self {
        Self(available_cores())
    }

    /// The core of the measuring side and that of the other side, for the lane of this number: the
    /// cores are dealt out in turn, and with one core both are on it.
    #[must_use]
    pub fn worker_cores(&self, lane: usize) -> (Option<usize>, Option<usize>) {
        let core = |at: usize| (!self.0.is_empty()).then(|| self.0[at % self.0.len()]);
        (core(2 * lane), core(2 * lane + 1))
    }
}

impl FromStr for CorePinning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = available_cores();
        match text {
            "auto" => Ok(Self::auto()),
            "none" => Ok(Self(Vec::new())),
            list => list
                .split(',')
                .map(|core| core.trim().parse().ok().filter(|core| known.contains(core)))
                .collect::<Option<_>>()
                .map(Self)
                .ok_or_else(|| {
                    format!("{text:?} is neither auto, none, nor a list of cores out of {known:?}")
                }),
        }
    }
}
