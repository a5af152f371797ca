//! Pinning of threads to cores.

use std::str::FromStr;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Cores that two communicating threads are pinned to; `None`: not pinned.
pub(crate) type CorePair = (Option<usize>, Option<usize>);

/// Returns the cores that this process may use, in order.
#[must_use]
pub fn available_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect()
}

/// Pins the calling thread, and the threads it starts later, to this core. True on success.
pub fn pin_to_core(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).is_ok()
}

/// Runs `work` on a thread pinned to the core, if one is given; processes started there stay there.
pub fn run_on_core<T: Send>(core: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
    let Some(core) = core else { return work() };
    run_on_thread(|| {
        pin_to_core(core);
        work()
    })
}

/// Runs `work` on a thread of its own, which may pin itself.
pub fn run_on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The cores of the two sides of a measurement.
///
/// ```
/// use fabric_bench::pin::CorePinning;
/// let pin: CorePinning = "0,1".parse()?;
/// assert_eq!(pin.worker_cores(0), (Some(0), Some(1)));
/// assert_eq!("none".parse::<CorePinning>()?.worker_cores(0), (None, None));
/// assert!("0;1".parse::<CorePinning>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorePinning(Vec<usize>);

impl CorePinning {
    /// Uses all cores of this process.
    #[must_use]
    pub fn auto() -> Self {
        Self(available_cores())
    }

    /// Returns the cores of the initiator and the responder of worker `worker`: the cores are
    /// assigned in turn, and a single core is shared by both.
    #[must_use]
    pub fn worker_cores(&self, worker: usize) -> (Option<usize>, Option<usize>) {
        let core = |at: usize| (!self.0.is_empty()).then(|| self.0[at % self.0.len()]);
        (core(2 * worker), core(2 * worker + 1))
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
