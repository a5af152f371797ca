//! How a domain waits, and how long it spins before it sleeps.
//!
//! A program requests a [`WaitPolicy`], and a message model may ask for another one or for a core.
//! [`WaitRules`] decides when the domain is opened; the engine, its driver and its polls ask it.
//!
//! Finding a message by polling takes a fraction of a microsecond; a kernel wake-up takes tens of
//! microseconds. So this choice determines the latency. Spinning pays only while every spinning
//! thread has a core of its own: a driver does not spin while one driver per core already spins.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fabric_core::transport::{ModelSettings, WaitPolicy};
use fabric_core::{Error, Result};

/// Maximum passes within one poll of a future. A poll must not hold up the executor: this is a few
/// microseconds, also in debug builds, where a pass takes ten times as long.
const MAX_POLL_SPINS: u32 = if cfg!(loom) {
    1
} else if cfg!(debug_assertions) {
    10
} else {
    96
};
/// Passes that are still made when spinning never succeeds.
const MIN_POLL_SPINS: u32 = if cfg!(loom) { 0 } else { 2 };

/// Consecutive polls whose spinning failed before spinning is reduced, and the interval at which
/// full spinning is tried from then on.
const MISS_LIMIT: u32 = 4;
const PROBE_INTERVAL: u32 = 16;

/// How the tasks and the driver of a domain wait.
#[derive(Debug)]
pub(crate) struct WaitRules {
    policy: WaitPolicy,
    /// Whether polls spin also after spinning did not succeed.
    polls_always_spin: bool,
    max_driver_spin: Duration,
    reserved_core: Option<ReservedCore>,
}

impl WaitRules {
    /// Decides how a domain waits for which the program requests this policy and these settings.
    ///
    /// # Errors
    /// [`Error::NotReserved`] when the domain needs a core, and all are reserved or the policy is
    /// park.
    pub(crate) fn new(requested: WaitPolicy, settings: &ModelSettings) -> Result<Self> {
        let (policy, reserved_core) = match settings.reserves_core() {
            true => (WaitPolicy::Spin, Some(ReservedCore::reserve(requested)?)),
            false => (requested, None),
        };
        Ok(Self {
            policy,
            polls_always_spin: settings.polls_always_spin(),
            // Loom models have no time.
            max_driver_spin: match cfg!(loom) {
                true => Duration::ZERO,
                false => settings.max_driver_spin(),
            },
            reserved_core,
        })
    }

    /// Returns the policy by which the domain waits.
    pub(crate) fn policy(&self) -> WaitPolicy {
        self.policy
    }

    /// Returns whether waiting tasks keep themselves runnable, also while a driver runs.
    #[inline]
    pub(crate) fn tasks_stay_runnable(&self) -> bool {
        self.policy == WaitPolicy::Spin
    }

    /// Returns whether a driver spins before it sleeps.
    #[inline]
    pub(crate) fn driver_spins(&self) -> bool {
        self.policy != WaitPolicy::Park
    }

    /// Returns how polls spin that have found nothing.
    pub(crate) fn poll_spinner(&self) -> PollSpinner {
        PollSpinner::new(match self.policy {
            WaitPolicy::Park => PollSpins::Never,
            // The peer needs the core.
            _ if core_count() < 2 => PollSpins::Never,
            WaitPolicy::Adaptive if !self.polls_always_spin => PollSpins::Learned,
            _ => PollSpins::Always,
        })
    }

    /// Returns the spin time of a driver.
    pub(crate) fn spin_budget(&self) -> SpinBudget {
        SpinBudget::new(self.max_driver_spin, self.reserved_core.is_some())
    }
}

/// When polls spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollSpins {
    Never,
    /// If spinning has recently found work, and now and then to find out.
    Learned,
    Always,
}

/// The number of passes within one poll, learned from whether spinning succeeded.
#[derive(Debug)]
pub(crate) struct PollSpinner {
    spins: PollSpins,
    consecutive_misses: u32,
    /// Polls whose spinning succeeded, and polls whose spinning failed.
    hits: u64,
    total_misses: u64,
}

impl PollSpinner {
    fn new(spins: PollSpins) -> Self {
        Self {
            spins,
            consecutive_misses: 0,
            hits: 0,
            total_misses: 0,
        }
    }

    /// Returns the number of passes for one poll while this number of tasks wait. Waiting tasks
    /// share the spin time: one round of polls of all tasks takes no longer than the poll of a
    /// single waiting task.
    #[inline]
    pub(crate) fn spin_limit(&self, waiting: usize) -> u32 {
        let limit = match self.spins {
            PollSpins::Never => 0,
            PollSpins::Always => MAX_POLL_SPINS,
            PollSpins::Learned
                if self.consecutive_misses < MISS_LIMIT
                    || self.consecutive_misses.is_multiple_of(PROBE_INTERVAL) =>
            {
                MAX_POLL_SPINS
            }
            PollSpins::Learned => MIN_POLL_SPINS,
        };
        limit / waiting.max(1) as u32
    }

    /// Records that spinning succeeded.
    pub(crate) fn record_hit(&mut self) {
        self.consecutive_misses = 0;
        self.hits += 1;
    }

    /// Records that a poll found nothing in this number of passes. Polls without passes count too:
    /// the share of a task may be 0 until full spinning is tried again.
    pub(crate) fn record_miss(&mut self, passes: u32) {
        self.consecutive_misses = self.consecutive_misses.wrapping_add(1);
        self.total_misses += u64::from(passes > 0);
    }

    /// Returns how often spinning succeeded and how often it failed.
    pub(crate) fn spin_stats(&self) -> (u64, u64) {
        (self.hits, self.total_misses)
    }
}

/// Shortest time a driver spins without progress before it sleeps. Loom models have no time.
const MIN_SPIN: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 5 });

/// The time that wake-ups add to the sleep of a driver when its peer sleeps too: one of each, which
/// take 30 to 80 us in a virtual machine.
const WAKE_UPS: Duration = Duration::from_micros(150);
/// Spins of the full time that found nothing, one after another, before a driver stops spinning.
const VAIN_LIMIT: u32 = 4;
/// The number of sleeps until it spins again. Doubled each time, up to the second one.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 1024;

/// The number of drivers of this process that are spinning.
static SPINNING_DRIVERS: AtomicUsize = AtomicUsize::new(0);

/// The number of cores that domains of this process have reserved.
static RESERVED_CORES: AtomicUsize = AtomicUsize::new(0);

/// A core that is reserved for a domain, until it is dropped.
#[derive(Debug)]
struct ReservedCore(());

impl ReservedCore {
    /// Reserves a core for a domain that waits by this policy.
    ///
    /// # Errors
    /// [`Error::NotReserved`] when all cores are reserved, or the policy is park.
    fn reserve(policy: WaitPolicy) -> Result<Self> {
        if policy == WaitPolicy::Park {
            return Err(Error::NotReserved(
                "the model waits by spinning; do not set WaitPolicy::Park".into(),
            ));
        }
        let cores = core_count();
        let reserved = RESERVED_CORES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < cores).then_some(count + 1)
        });
        match reserved {
            Ok(_) => Ok(Self(())),
            Err(count) => Err(Error::NotReserved(format!(
                "{count} such domains are open, and this process may use {cores} cores; close one, \
                 or use LowLatency"
            ))),
        }
    }
}

impl Drop for ReservedCore {
    fn drop(&mut self) {
        RESERVED_CORES.fetch_sub(1, Ordering::Relaxed);
    }
}

fn core_count() -> usize {
    if cfg!(loom) {
        // The same on every machine, and no limit for models that run side by side.
        return usize::MAX;
    }
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// The time a driver spins before it sleeps, learned from how long it then sleeps: a driver that is
/// woken soon might have found the message by spinning.
///
/// Whether spinning finds work is no measure of how long to spin. Two peers that both sleep wait
/// for each other's wake-up, which takes longer than a short spin, so that neither would begin to
/// spin again. But when spins of the full time find nothing several times, the messages come later,
/// and the driver stops spinning for a number of sleeps.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    limit: Duration,
    max: Duration,
    /// Spins of the full time without progress, one after another.
    vain_spins: u32,
    /// Sleeps that are left until the driver spins again; 0 while it spins.
    pause: u32,
    /// The length of the next pause.
    next_pause: u32,
    /// Whether the driver has a reserved core, so that it spins however many others do.
    has_core: bool,
    state: SpinState,
}

#[derive(Clone, Copy, Debug)]
enum SpinState {
    /// Has made progress, or does not spin although it is awake.
    Idle,
    /// Has spun without progress since then.
    Spinning(Instant),
    /// Has slept since then.
    Sleeping(Instant),
}

impl SpinBudget {
    fn new(max: Duration, has_core: bool) -> Self {
        Self {
            limit: max,
            max,
            vain_spins: 0,
            pause: 0,
            next_pause: FIRST_PAUSE,
            has_core,
            state: SpinState::Idle,
        }
    }

    /// Records progress. Learns from the time that the driver has slept, if it has.
    pub(crate) fn on_progress(&mut self) {
        match self.state {
            SpinState::Sleeping(since) => self.learn(since.elapsed()),
            SpinState::Spinning(_) => (self.vain_spins, self.next_pause) = (0, FIRST_PAUSE),
            SpinState::Idle => {}
        }
        self.stop();
    }

    /// Spins longer next time if the driver has slept for less than it may spin, apart from
    /// wake-ups, and else shorter.
    fn learn(&mut self, slept: Duration) {
        if self.pause > 0 {
            self.pause -= 1;
            if self.pause == 0 {
                self.limit = self.max;
            }
        } else if slept > self.max + WAKE_UPS {
            self.limit = (self.limit / 2).max(MIN_SPIN);
            self.vain_spins = 0;
        } else if self.limit < self.max {
            self.limit = (self.limit * 2).min(self.max);
        } else {
            self.vain_spins += 1;
            if self.vain_spins == VAIN_LIMIT {
                (self.vain_spins, self.limit) = (0, MIN_SPIN.min(self.max));
                self.pause = self.next_pause;
                self.next_pause = (2 * self.pause).min(LONGEST_PAUSE);
            }
        }
    }

    /// Records a pass without progress; returns true while the driver should spin.
    pub(crate) fn should_spin(&mut self) -> bool {
        let SpinState::Spinning(since) = self.state else {
            // A driver that slept was woken by a call of the program, not by a message.
            self.state = SpinState::Idle;
            let spinning = SPINNING_DRIVERS.fetch_add(1, Ordering::Relaxed);
            if spinning >= core_count() && !self.has_core {
                SPINNING_DRIVERS.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
            self.state = SpinState::Spinning(Instant::now());
            return true;
        };
        if since.elapsed() < self.limit {
            return true;
        }
        self.stop();
        false
    }

    /// Records that the driver sleeps from now on.
    pub(crate) fn sleep(&mut self) {
        self.stop();
        self.state = SpinState::Sleeping(Instant::now());
    }

    /// Stops spinning.
    pub(crate) fn stop(&mut self) {
        if let SpinState::Spinning(_) = self.state {
            SPINNING_DRIVERS.fetch_sub(1, Ordering::Relaxed);
        }
        self.state = SpinState::Idle;
    }
}

impl Drop for SpinBudget {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fabric_core::transport::MessageModel;

    use super::*;

    fn rules(policy: WaitPolicy, model: MessageModel) -> WaitRules {
        WaitRules::new(policy, &ModelSettings::of(model)).unwrap()
    }

    #[test]
    fn tasks_that_share_the_spin_time_try_full_spinning_again() {
        let mut spinner = PollSpinner::new(PollSpins::Learned);
        for waiting in [1, 3, 8] {
            let limits: Vec<_> = (0..4 * PROBE_INTERVAL)
                .map(|_| {
                    let limit = spinner.spin_limit(waiting);
                    spinner.record_miss(limit);
                    limit
                })
                .collect();
            let full = MAX_POLL_SPINS / waiting as u32;
            let tries = limits.iter().filter(|limit| **limit == full).count();
            assert!((4..=8).contains(&tries), "{tries} of {limits:?}");
        }
    }

    /// A driver whose messages come soon after it sleeps spins longer again, although spinning has
    /// not succeeded.
    #[test]
    fn driver_learns_from_the_time_that_it_has_slept() {
        let mut budget = rules(WaitPolicy::Adaptive, MessageModel::Default).spin_budget();
        let max = budget.max;
        let late = max + 2 * WAKE_UPS;
        (0..10).for_each(|_| budget.learn(late));
        assert_eq!(budget.limit, MIN_SPIN);
        // A call of the program wakes the driver.
        budget.sleep();
        budget.should_spin();
        budget.on_progress();
        assert_eq!(budget.limit, MIN_SPIN);
        budget.learn(max + WAKE_UPS);
        assert_eq!(budget.limit, 2 * MIN_SPIN);
        while budget.limit < max {
            budget.learn(Duration::ZERO);
        }
        // A message does.
        budget.state = SpinState::Sleeping(Instant::now().checked_sub(late).unwrap());
        budget.on_progress();
        assert_eq!(budget.limit, max / 2);
    }

    /// A driver whose messages come somewhat later than it spins does not spin in vain for ever,
    /// and tries again now and then.
    #[test]
    fn driver_stops_spinning_in_vain() {
        let max = Duration::from_micros(200);
        let mut budget = SpinBudget::new(max, true);
        let spins = |budget: &mut SpinBudget, sleeps: u32| -> u32 {
            let full = (0..sleeps).map(|_| {
                let is_full = budget.limit == max;
                budget.learn(max);
                u32::from(is_full)
            });
            full.sum()
        };
        assert_eq!(spins(&mut budget, VAIN_LIMIT + FIRST_PAUSE), VAIN_LIMIT);
        assert_eq!(spins(&mut budget, VAIN_LIMIT + 2 * FIRST_PAUSE), VAIN_LIMIT);
        let later = spins(&mut budget, 100_000);
        assert!((100..1000).contains(&later), "{later}");
        // Spinning that finds a message ends that.
        while budget.limit < max {
            budget.learn(max);
        }
        for _ in 0..10 * VAIN_LIMIT {
            budget.learn(max);
            assert_eq!(budget.limit, max);
            assert!(budget.should_spin());
            budget.on_progress();
        }
        assert_eq!(budget.next_pause, FIRST_PAUSE);
    }

    #[test]
    fn driver_with_a_core_spins_beside_others() {
        let spins = |has_core| {
            let mut budget = SpinBudget::new(Duration::from_millis(1), has_core);
            (budget.should_spin(), budget)
        };
        let others: Vec<_> = (0..core_count()).map(|_| spins(true)).collect();
        assert!(others.iter().all(|(spins, _)| *spins));
        assert!(!spins(false).0);
        assert!(spins(true).0);
    }

    #[test]
    fn low_latency_spins_after_misses() {
        let mut spinner = rules(WaitPolicy::Adaptive, MessageModel::LowLatency).poll_spinner();
        if core_count() < 2 {
            return assert_eq!(spinner.spins, PollSpins::Never);
        }
        (0..2 * MISS_LIMIT).for_each(|_| spinner.record_miss(1));
        assert_eq!(spinner.spin_limit(1), MAX_POLL_SPINS);
    }

    #[test]
    fn no_more_cores_are_reserved_than_there_are() {
        let settings = ModelSettings::of(MessageModel::ForceLowLatency);
        let reserve = |policy| WaitRules::new(policy, &settings);
        let domains: Vec<_> = (0..core_count())
            .map(|_| reserve(WaitPolicy::Spin).unwrap())
            .collect();
        let full = reserve(WaitPolicy::Spin).unwrap_err();
        assert!(full.to_string().contains("cores"), "{full}");
        drop(domains);
        assert!(reserve(WaitPolicy::Adaptive).unwrap().tasks_stay_runnable());
        let parks = reserve(WaitPolicy::Park).unwrap_err();
        assert!(parks.to_string().contains("Park"), "{parks}");
    }
}
