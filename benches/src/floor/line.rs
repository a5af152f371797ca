//! A cache line that bounces between two cores.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin;

/// Many short runs: most of them fall between the moments in which a thread has lost its core to somebody else.
pub(super) const RUNS: usize = 401;
const TRIPS: u64 = 500;

/// A word alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// How long a cache line takes from one core to another and back, halved: the median of several runs between two
/// threads, each on a core of its own where there are two.
#[must_use]
pub fn core_to_core() -> Duration {
    let cores = pin::cores();
    between(cores.first().copied(), cores.last().copied())
}

/// The same between these cores, or between any when they are not named.
#[must_use]
pub fn between(here: Option<usize>, there: Option<usize>) -> Duration {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let answer = || {
        there.map(pin::to_core);
        for trip in 1..=RUNS as u64 * TRIPS {
            while ping.0.load(Ordering::Acquire) < trip {
                spin_loop();
            }
            pong.0.store(trip, Ordering::Release);
        }
    };
    let ask = || {
        here.map(pin::to_core);
        let mut runs: Vec<Duration> = (0..RUNS as u64)
            .map(|run| {
                let start = Instant::now();
                for trip in run * TRIPS + 1..=(run + 1) * TRIPS {
                    ping.0.store(trip, Ordering::Release);
                    while pong.0.load(Ordering::Acquire) < trip {
                        spin_loop();
                    }
                }
                start.elapsed() / (2 * TRIPS as u32)
            })
            .collect();
        runs.sort_unstable();
        runs[RUNS / 2]
    };
    thread::scope(|scope| {
        scope.spawn(answer);
        scope.spawn(ask).join().unwrap_or_default()
    })
}
