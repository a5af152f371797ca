//! A measurement as a series of rounds: how long the next one is, and when the measurement ends.

use std::time::{Duration, Instant};

use super::plan::Budget;
use crate::options::Bench;
use crate::record::Record;
use crate::samples::{Samples, TimeStamps, round_to_tenths};
use crate::stop::Stop;

/// Duration of a round: long enough to amortize its start, short enough that a stop takes effect
/// quickly.
const ROUND_TIME: Duration = Duration::from_millis(100);
/// Maximum number of messages and of bytes in the first round, which is warm-up and not counted.
const WARM_UP_MESSAGES: u64 = 512;
const WARM_UP_BYTES: u64 = 64 << 20;
/// Maximum number of messages in a round. Latency benchmarks preallocate this many time stamps.
const MAX_ROUND_MESSAGES: u64 = 1 << 20;

/// The samples and totals measured with one message size.
#[derive(Debug)]
pub(crate) struct MeasureOutcome {
    /// One sample per round trip (`lat`), or the mean per message of each round (`bw`, `rate`).
    pub(crate) samples: Samples,
    /// Messages in one direction.
    pub(crate) messages: u64,
    /// Total time of `messages`.
    pub(crate) elapsed: Duration,
    /// Memory for each connection of `lat --idle`, in bytes.
    pub(crate) idle_bytes: Option<f64>,
}

/// Schedules rounds until the budget is used up; the first is warm-up.
#[derive(Debug)]
pub(crate) struct RoundScheduler {
    bench: Bench,
    budget: Budget,
    /// A latency is the round-trip time divided by this: 2 for one-way, 1 for round-trip latency.
    round_trip_divisor: u32,
    /// Messages of the next round.
    next_count: u64,
    /// When the warm-up ended.
    warm_up_ended: Option<Instant>,
    outcome: MeasureOutcome,
}

impl RoundScheduler {
    pub(crate) fn new(bench: Bench, budget: Budget, size: usize) -> Self {
        let next_count = WARM_UP_MESSAGES
            .min(WARM_UP_BYTES / size.max(1) as u64)
            .max(1);
        let outcome = MeasureOutcome {
            samples: Samples::new(),
            messages: 0,
            elapsed: Duration::ZERO,
            idle_bytes: None,
        };
        Self {
            bench,
            budget,
            round_trip_divisor: 2,
            next_count,
            warm_up_ended: None,
            outcome,
        }
    }

    /// Reports round-trip latencies instead of half of them.
    pub(crate) fn report_round_trips(mut self) -> Self {
        self.round_trip_divisor = 1;
        self
    }

    /// Returns the number of messages of the next round, a multiple of `multiple_of`; `None`
    /// when the budget is used up. At least one round is measured, however short the time is.
    pub(crate) fn next_round(&self, multiple_of: u64, stop: &Stop) -> Option<u64> {
        let is_done = self.progress_fraction() >= 1.0 && self.outcome.messages > 0 || stop.raised();
        (!is_done).then(|| {
            self.next_count
                .clamp(1, MAX_ROUND_MESSAGES)
                .next_multiple_of(multiple_of)
        })
    }

    /// Returns which part of the budget is used up.
    pub(crate) fn progress_fraction(&self) -> f64 {
        match (self.budget, self.warm_up_ended) {
            (_, None) => 0.0,
            (Budget::Seconds(seconds), Some(began)) => began.elapsed().as_secs_f64() / seconds,
            (Budget::Messages(iters), Some(_)) => self.outcome.messages as f64 / iters as f64,
        }
    }

    /// Records a round of `count` messages that took `elapsed`. A latency benchmark passes one time
    /// stamp per round trip; others pass none.
    pub(crate) fn record_round(&mut self, count: u64, elapsed: Duration, stamps: &TimeStamps) {
        self.record_concurrent_round(count, elapsed, [stamps].into_iter());
    }

    /// Records a round of `count` messages in all, of several endpoints with time stamps of their
    /// own.
    pub(crate) fn record_concurrent_round<'a>(
        &mut self,
        count: u64,
        elapsed: Duration,
        stamps: impl Iterator<Item = &'a TimeStamps>,
    ) {
        if self.warm_up_ended.is_some() {
            self.outcome.messages += count;
            self.outcome.elapsed += elapsed;
            match self.bench {
                Bench::Lat => stamps.for_each(|stamps| {
                    self.outcome
                        .samples
                        .add_stamps(stamps, self.round_trip_divisor);
                }),
                Bench::Bw | Bench::Rate => {
                    self.outcome
                        .samples
                        .add(elapsed.as_nanos() as f64 / count as f64);
                }
            }
        }
        self.warm_up_ended.get_or_insert_with(Instant::now);
        let (max_round_seconds, remaining) = match self.budget {
            Budget::Seconds(seconds) => (seconds / 10.0, u64::MAX),
            Budget::Messages(iters) => (f64::INFINITY, iters.saturating_sub(self.outcome.messages)),
        };
        let per_message = (elapsed.as_secs_f64() / count as f64).max(1e-9);
        self.next_count =
            ((ROUND_TIME.as_secs_f64().min(max_round_seconds) / per_message) as u64).min(remaining);
    }

    pub(crate) fn into_outcome(self) -> MeasureOutcome {
        self.outcome
    }
}

/// Fills the times and rates of a record from workers that started together and may have ended at
/// different times. The rate is that of all messages within the longest time.
pub(crate) fn fill_record(outcomes: &[MeasureOutcome], record: &mut Record) {
    let mut samples = Samples::new();
    let (mut messages, mut total, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    for outcome in outcomes {
        samples.merge(&outcome.samples);
        messages += outcome.messages;
        total += outcome.elapsed;
        longest = longest.max(outcome.elapsed);
    }
    let rate = if longest.is_zero() {
        0.0
    } else {
        messages as f64 / longest.as_secs_f64()
    };
    samples.fill_record(record);
    // Rounds of `bw` and `rate` differ in length: a mean of their means would be weighted wrongly.
    if record.bench != "lat" && messages > 0 {
        record.mean_ns = Some(round_to_tenths(total.as_nanos() as f64 / messages as f64));
    }
    record.idle_bytes = outcomes
        .iter()
        .find_map(|outcome| outcome.idle_bytes)
        .map(f64::round);
    record.msgs_per_s = Some(rate.round());
    record.bytes_per_s = Some((rate * record.size as f64).round());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_budget_has_one_round() {
        let mut rounds = RoundScheduler::new(Bench::Bw, Budget::Seconds(1e-9), 8);
        let stop = Stop::default();
        for rounds_done in [0, 0, 1] {
            assert_eq!(rounds.next_round(1, &stop).is_some(), rounds_done == 0);
            rounds.record_round(1, Duration::from_secs(1), &TimeStamps::new(0));
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut stopped = RoundScheduler::new(Bench::Bw, Budget::Seconds(1e-9), 8);
        stopped.record_round(1, Duration::from_secs(1), &TimeStamps::new(0));
        stop.raise();
        assert_eq!(stopped.next_round(1, &stop), None);
    }

    #[test]
    fn rate_of_workers_uses_the_longest_time() {
        let outcome = |total| MeasureOutcome {
            samples: Samples::new(),
            messages: 600,
            elapsed: Duration::from_secs(total),
            idle_bytes: None,
        };
        let mut record = Record {
            bench: "rate".into(),
            size: 8,
            ..Record::default()
        };
        fill_record(&[outcome(1), outcome(3)], &mut record);
        assert_eq!(
            (record.msgs_per_s, record.bytes_per_s),
            (Some(400.0), Some(3200.0))
        );
        fill_record(&[], &mut record);
        assert_eq!(record.msgs_per_s, Some(0.0));
    }

    #[test]
    fn stream_mean_is_per_message_not_per_round() {
        let mut rounds = RoundScheduler::new(Bench::Bw, Budget::Messages(u64::MAX), 8);
        for (count, nanos) in [(1, 7), (100, 1000), (300, 9000)] {
            rounds.record_round(count, Duration::from_nanos(nanos), &TimeStamps::new(0));
        }
        let mut record = Record {
            bench: "bw".into(),
            size: 8,
            ..Record::default()
        };
        fill_record(&[rounds.into_outcome()], &mut record);
        assert_eq!(
            (record.samples, record.p50_ns, record.max_ns),
            (2, Some(10.0), Some(30.0))
        );
        assert_eq!(
            (record.mean_ns, record.msgs_per_s),
            (Some(25.0), Some(40_000_000.0))
        );
    }
}
