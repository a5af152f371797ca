//! The physical floor: what no library can go below on this machine.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin;

/// A word alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// How long a cache line takes from one core to another and back, halved: the median of several runs between two
/// threads, each on a core of its own where there are two.
#[must_use]
pub fn core_to_core() -> Duration {
    const RUNS: usize = 9;
    const TRIPS: u64 = 20_000;
    let cores = pin::cores();
    let (here, there) = (cores.first().copied(), cores.last().copied());
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

/// Bytes per second that one core copies between two buffers of this size: the median of several runs.
#[must_use]
pub fn memcpy(size: usize) -> f64 {
    const RUNS: usize = 9;
    let (source, mut target) = (vec![1u8; size], vec![0u8; size]);
    let copies = ((64 << 20) / size.max(1)).clamp(1, 1 << 20);
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..copies {
                target.copy_from_slice(black_box(&source));
                black_box(&mut target);
            }
            (copies * size) as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    runs.sort_unstable_by(f64::total_cmp);
    runs[RUNS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_somewhere() {
        assert!(core_to_core() > Duration::ZERO);
        assert!(memcpy(4096) > 0.0);
    }
}
