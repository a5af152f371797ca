//! A cache line that bounces between two cores.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin;
use crate::stop::Stop;

/// Round trips of a run. Runs are short, so that most of them are not preempted.
const TRIPS_PER_RUN: u64 = 200;
/// Polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 1 << 12;
/// The last value, which ends the other thread.
const STOP_VALUE: u64 = u64::MAX;

/// A counter alone on its cache lines.
#[repr(align(128))]
struct PaddedCounter(AtomicU64);

/// Measures how long a cache line takes between these cores, or between any two if none are given:
/// half round trips in nanoseconds, one for each run within the first time. On busy cores the first
/// run may take up to the second time. Empty if both sides would share a core.
pub(super) fn measure_cache_line(
    (local_core, remote_core): (Option<usize>, Option<usize>),
    time: (Duration, Duration),
    stop: &Stop,
) -> Vec<f64> {
    let share_a_core = match (local_core, remote_core) {
        (None, None) => pin::available_cores().len() < 2,
        _ => local_core == remote_core,
    };
    if share_a_core {
        return Vec::new();
    }
    let (ping, pong) = (
        PaddedCounter(AtomicU64::new(0)),
        PaddedCounter(AtomicU64::new(0)),
    );
    let respond = || {
        remote_core.map(pin::pin_to_core);
        let mut last = 0;
        while last != STOP_VALUE {
            match ping.0.load(Ordering::Acquire) {
                trip if trip == last => spin_loop(),
                trip => {
                    last = trip;
                    pong.0.store(trip, Ordering::Release);
                }
            }
        }
    };
    let initiate = || {
        local_core.map(pin::pin_to_core);
        let runs = measure_runs(&ping, &pong, time, stop);
        ping.0.store(STOP_VALUE, Ordering::Release);
        runs
    };
    thread::scope(|scope| {
        scope.spawn(respond);
        scope.spawn(initiate).join().unwrap_or_default()
    })
}

fn measure_runs(
    ping: &PaddedCounter,
    pong: &PaddedCounter,
    (time, first_time): (Duration, Duration),
    stop: &Stop,
) -> Vec<f64> {
    let began = Instant::now();
    let mut runs = Vec::new();
    let is_over = |runs: &[f64]| {
        let limit = if runs.is_empty() { first_time } else { time };
        stop.raised() || began.elapsed() >= limit
    };
    let mut trip = 0;
    // The first trip includes the start of the other thread, and is not counted.
    let mut trips = 1;
    while !is_over(&runs) {
        let start = Instant::now();
        for _ in 0..trips {
            trip += 1;
            ping.0.store(trip, Ordering::Release);
            let mut polls: u32 = 0;
            while pong.0.load(Ordering::Acquire) < trip {
                spin_loop();
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(POLLS_PER_CLOCK_READ) && is_over(&runs) {
                    return runs;
                }
            }
        }
        if trip > 1 {
            runs.push(start.elapsed().as_secs_f64() * 1e9 / (2 * TRIPS_PER_RUN) as f64);
        }
        trips = TRIPS_PER_RUN;
    }
    runs
}
