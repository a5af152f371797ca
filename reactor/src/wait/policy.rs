//! How long to look for news before going to sleep.
//!
//! A polled message costs a fraction of a microsecond, a kernel wake-up tens of them, so this
//! choice is the latency. Spinning pays only while every spinner has a core of its own: with fewer
//! cores than spinners nobody spins.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How a domain waits (`FI_WAIT_NONE`, `FI_WAIT_UNSPEC`, `FI_WAIT_FD`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "fi_wait_obj")]
#[doc(alias = "FI_WAIT_NONE")]
#[doc(alias = "FI_WAIT_UNSPEC")]
#[doc(alias = "FI_WAIT_FD")]
pub enum WaitPolicy {
    /// Never sleeps: a pending operation keeps its task runnable. Lowest latency, one core busy.
    /// Other tasks of the same executor run in between.
    Spin,
    /// Looks for a while, longer when looking paid off lately, then sleeps until the peer rings the
    /// doorbell.
    #[default]
    Adaptive,
    /// Sleeps at once. Lowest CPU use, every message to a sleeper costs a kernel wake-up.
    Park,
}

/// Looks within one poll of a future. A poll must not hold up the executor: this is a few
/// microseconds, also where a look takes ten times as long because nothing is optimised.
const POLL_LOOKS: u32 = if cfg!(loom) {
    1
} else if cfg!(debug_assertions) {
    10
} else {
    96
};
/// Looks that are still made when looking never pays off.
const FEWEST_LOOKS: u32 = if cfg!(loom) { 0 } else { 2 };

/// Polls in a row whose looking came to nothing, before looking is taken to be of no use; and how
/// often it is tried nevertheless from then on.
const PATIENCE: u32 = 4;
const PROBE: u32 = 16;

/// How often to look within one poll, learned from whether it paid off.
#[derive(Debug)]
pub(crate) struct Spinner {
    misses: u32,
    policy: WaitPolicy,
    /// How often it paid off, and how often not.
    paid: u64,
    lost: u64,
}

impl Spinner {
    pub(crate) fn new(policy: WaitPolicy) -> Self {
        let policy = if cores() < 2 {
            WaitPolicy::Park
        } else {
            policy
        };
        Self {
            misses: 0,
            policy,
            paid: 0,
            lost: 0,
        }
    }

    /// How often to look.
    pub(crate) fn looks(&self) -> u32 {
        match self.policy {
            WaitPolicy::Park => 0,
            WaitPolicy::Spin => POLL_LOOKS,
            WaitPolicy::Adaptive if self.misses < PATIENCE || self.misses.is_multiple_of(PROBE) => {
                POLL_LOOKS
            }
            WaitPolicy::Adaptive => FEWEST_LOOKS,
        }
    }

    /// It paid off.
    pub(crate) fn hit(&mut self) {
        self.misses = 0;
        self.paid += 1;
    }

    /// It did not.
    pub(crate) fn miss(&mut self) {
        self.misses = self.misses.wrapping_add(1);
        self.lost += 1;
    }

    /// How often it has paid off, and how often not.
    pub(crate) fn paid_and_lost(&self) -> (u64, u64) {
        (self.paid, self.lost)
    }
}

/// Longest and shortest time a driver looks between the last news and sleep. A model knows no time.
const LONGEST: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 100 });
const SHORTEST: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 5 });

/// How many drivers of this process are looking right now.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

fn cores() -> usize {
    if cfg!(loom) {
        // The same on every machine, and no limit for models that run side by side.
        return usize::MAX;
    }
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// The time a driver looks for news before it sleeps.
#[derive(Debug)]
pub(crate) struct Window {
    length: Duration,
    /// When the driver began to look without finding anything, and whether anything was found since
    /// it woke.
    since: Option<Instant>,
    found: bool,
}

impl Window {
    pub(crate) fn new() -> Self {
        Self {
            length: LONGEST,
            since: None,
            found: false,
        }
    }

    /// There was news.
    pub(crate) fn news(&mut self) {
        self.found = self.since.is_some() || self.found;
        self.close();
    }

    /// There was none: true while it is worth looking again.
    pub(crate) fn look_again(&mut self) -> bool {
        let Some(since) = self.since else {
            if SPINNING.fetch_add(1, Ordering::Relaxed) >= cores() {
                SPINNING.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
            self.since = Some(Instant::now());
            return true;
        };
        if since.elapsed() < self.length {
            return true;
        }
        self.length = if self.found {
            (self.length * 2).min(LONGEST)
        } else {
            (self.length / 2).max(SHORTEST)
        };
        self.found = false;
        self.close();
        false
    }

    /// Stops looking.
    pub(crate) fn close(&mut self) {
        if self.since.take().is_some() {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.close();
    }
}
