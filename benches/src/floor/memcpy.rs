//! Copying memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::samples::median;
use crate::stop::Stop;

/// Most runs, bytes of one run, and longest time of all. Runs are short, as for the cache line.
const MAX_RUNS: usize = 101;
const MIN_RUN_BYTES: usize = 1 << 20;
const TIME_LIMIT: Duration = Duration::from_millis(300);

/// Measures the bytes per second that one core copies between two buffers of this size: the median,
/// and the number of runs; `None` if stopped before the first. One run is made however long it
/// takes.
pub(super) fn measure_memcpy(size: usize, stop: &Stop) -> Option<(f64, usize)> {
    let (source, mut target) = (vec![1u8; size], vec![2u8; size]);
    let copies = (MIN_RUN_BYTES / size.max(1)).clamp(1, 1 << 14);
    let began = Instant::now();
    let mut runs = Vec::with_capacity(MAX_RUNS);
    while runs.len() < MAX_RUNS
        && !stop.raised()
        && (runs.is_empty() || began.elapsed() < TIME_LIMIT)
    {
        let start = Instant::now();
        for _ in 0..copies {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
        }
        runs.push((copies * size) as f64 / start.elapsed().as_secs_f64());
    }
    let count = runs.len();
    median(&mut runs).map(|rate| (rate, count))
}
