//! Time stamps and histograms.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::record::Record;

/// Resolution of the histogram, per nanosecond.
const TICKS_PER_NS: f64 = 10.0;

/// Measured times, in nanoseconds.
///
/// During a measurement [`TimeStamps`] only writes numbers into allocated memory; they enter the
/// histogram between rounds. The time between consecutive stamps is one sample, so every stall is
/// in exactly one sample, whatever its cause: no sample is omitted because the initiator was late.
#[derive(Clone, Debug)]
pub struct Samples {
    /// In tenths of a nanosecond: means over a round are finer than the clock's ticks.
    histogram: Histogram<u64>,
    /// The exact sum, of which the mean is computed.
    sum: f64,
}

impl Samples {
    /// Creates an empty set, for times up to an hour, with three digits.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 36_000_000_000_000, 3)
            .unwrap_or_else(|_| unreachable!("an hour in nanoseconds, to 3 digits, is allowed"));
        Self {
            histogram,
            sum: 0.0,
        }
    }

    /// Adds one time.
    pub fn add(&mut self, ns: f64) {
        self.histogram
            .saturating_record((ns * TICKS_PER_NS).round() as u64);
        self.sum += ns;
    }

    /// Adds the times between consecutive stamps, each divided by `parts`.
    pub fn add_stamps(&mut self, stamps: &TimeStamps, parts: u32) {
        let mut last = 0;
        for stamp in &stamps.elapsed_ns {
            self.add((stamp - last) as f64 / f64::from(parts));
            last = *stamp;
        }
    }

    /// Adds the samples of another set.
    pub fn merge(&mut self, other: &Self) {
        self.histogram += &other.histogram;
        self.sum += other.sum;
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the median.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.histogram.value_at_quantile(0.5) as f64 / TICKS_PER_NS
    }

    /// Writes percentiles, mean and count into a result; only the count when there are none.
    pub fn fill_record(&self, record: &mut Record) {
        record.samples = self.count();
        if self.count() == 0 {
            return;
        }
        let at = |quantile| Some(self.histogram.value_at_quantile(quantile) as f64 / TICKS_PER_NS);
        (record.p50_ns, record.p90_ns) = (at(0.5), at(0.9));
        (record.p99_ns, record.p999_ns) = (at(0.99), at(0.999));
        record.max_ns = Some(self.histogram.max() as f64 / TICKS_PER_NS);
        record.mean_ns = Some(round_to_tenths(self.sum / self.count() as f64));
    }
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

/// Time stamps of one round, in memory that was allocated before the round.
#[derive(Debug)]
pub struct TimeStamps {
    elapsed_ns: Vec<u64>,
    started: Instant,
}

impl TimeStamps {
    /// Creates room for `count` stamps.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let mut stamps = Self {
            elapsed_ns: Vec::new(),
            started: Instant::now(),
        };
        stamps.reserve(count);
        stamps
    }

    /// Makes room for a round of up to `count` stamps, and touches it, so that no page fault
    /// happens during the round.
    pub fn reserve(&mut self, count: usize) {
        if self.elapsed_ns.capacity() < count {
            self.elapsed_ns.resize(count, u64::MAX);
        }
        self.elapsed_ns.clear();
    }

    /// Begins a round.
    pub fn begin(&mut self) {
        self.elapsed_ns.clear();
        self.started = Instant::now();
    }

    /// Records the end of one operation.
    #[inline]
    pub fn stamp(&mut self) {
        self.elapsed_ns
            .push(self.started.elapsed().as_nanos() as u64);
    }

    /// Returns the time from the beginning to the last stamp.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns.last().copied().unwrap_or(0))
    }
}

/// Rounds to tenths of a nanosecond.
pub(crate) fn round_to_tenths(ns: f64) -> f64 {
    (ns * TICKS_PER_NS).round() / TICKS_PER_NS
}

/// Returns the median; of an even count, the mean of the two in the middle.
#[must_use]
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let (below, above) = (
        values.get(values.len().saturating_sub(1) / 2)?,
        values.get(values.len() / 2)?,
    );
    Some(f64::midpoint(*below, *above))
}

/// Measures the cost of one stamp in nanoseconds, as the median of several rounds. Every sample
/// contains it once.
#[must_use]
pub fn timer_cost() -> f64 {
    const STAMPS: usize = 10_000;
    let mut stamps = TimeStamps::new(STAMPS);
    let mut rounds: Vec<f64> = (0..15)
        .map(|_| {
            stamps.begin();
            (0..STAMPS).for_each(|_| black_box(&mut stamps).stamp());
            stamps.elapsed().as_nanos() as f64 / STAMPS as f64
        })
        .collect();
    median(&mut rounds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_sorted_samples() {
        let mut samples = Samples::new();
        (1..=1000).for_each(|ns| samples.add(f64::from(ns) / 10.0));
        let mut record = Record::default();
        samples.fill_record(&mut record);
        assert_eq!((record.samples, record.mean_ns), (1000, Some(50.1)));
        assert_eq!(
            (record.p50_ns, record.p90_ns, record.max_ns),
            (Some(50.0), Some(90.0), Some(100.0))
        );
    }

    #[test]
    fn stall_affects_one_sample_only() {
        let stamps = TimeStamps {
            elapsed_ns: vec![10, 20, 1_000_020, 1_000_030],
            started: Instant::now(),
        };
        let mut samples = Samples::new();
        samples.add_stamps(&stamps, 2);
        let mut record = Record::default();
        samples.fill_record(&mut record);
        assert_eq!(record.p50_ns, Some(5.0));
        assert!(
            record
                .max_ns
                .is_some_and(|max| (499_000.0..=501_000.0).contains(&max))
        );
        assert_eq!(stamps.elapsed(), Duration::from_nanos(1_000_030));
    }

    #[test]
    fn median_averages_the_two_middle_values_of_an_even_count() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [7.0]), Some(7.0));
        assert_eq!(median(&mut [9.0, 1.0]), Some(5.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn no_samples_leave_the_record_empty() {
        let mut record = Record::default();
        Samples::new().fill_record(&mut record);
        assert_eq!(record, Record::default());
    }
}
