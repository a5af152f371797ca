//! Copying memory.

use std::hint::black_box;
use std::time::Instant;

/// Many short runs, as for the cache line; and bytes of one.
pub(super) const RUNS: usize = 101;
const RUN_BYTES: usize = 1 << 20;

/// Bytes per second that one core copies between two buffers of this size: the median of several runs.
#[must_use]
pub fn memcpy(size: usize) -> f64 {
    let (source, mut target) = (vec![1u8; size], vec![0u8; size]);
    let copies = (RUN_BYTES / size.max(1)).clamp(1, 1 << 14);
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
