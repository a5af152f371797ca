//! The floor: what no library can undercut on this machine.
//!
//! | file | subject |
//! |---|---|
//! | `cache_line` | a cache line that bounces between two cores |
//! | `memcpy` | copying memory |
//! | `ping_pong` | a ping-pong between two threads |
//! | `wake` | a ping-pong by eventfd and by futex: the cost of waking a sleeping thread |
//! | `socket` | a ping-pong over loopback TCP and Unix sockets, blocking and spinning |

mod cache_line;
mod memcpy;
mod ping_pong;
mod socket;
mod wake;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::pin::{self, CorePinning};
use crate::record::Record;
use crate::samples::median;
use crate::stop::Stop;
use crate::{Error, Result, progress_bar};

use cache_line::measure_cache_line;
use memcpy::measure_memcpy;

/// Sizes of the copies that are shown.
const MEMCPY_SIZES: [usize; 6] = [64, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Duration of one wake-up measurement, and of the cache line measurement.
const WAKE_TIME: Duration = Duration::from_millis(500);
const CACHE_LINE_TIME: Duration = Duration::from_millis(100);
/// Duration of one sample of the cache line, longest duration of the first one on busy cores, and
/// interval of samples.
const SAMPLE_TIME: Duration = Duration::from_millis(1);
const FIRST_SAMPLE_TIME: Duration = Duration::from_millis(50);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(80);

/// The floor of a message on a pair of cores.
///
/// Virtual cores move: at times they are two cores of the host, at times two halves of one, which
/// pass a cache line several times as fast. So the cache line is sampled between the rounds of a
/// measurement, and the median counts.
#[derive(Debug)]
pub struct Floor {
    cores: (Option<usize>, Option<usize>),
    stop: Stop,
    samples: Mutex<CacheLineSamples>,
}

#[derive(Debug, Default)]
struct CacheLineSamples {
    cache_line_ns: Vec<f64>,
    last_sample: Option<Instant>,
}

impl Floor {
    /// Creates the floor of these cores, without samples.
    #[must_use]
    pub fn new(cores: (Option<usize>, Option<usize>), stop: &Stop) -> Self {
        Self {
            cores,
            stop: stop.clone(),
            samples: Mutex::default(),
        }
    }

    /// Whether another sample of the cache line is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.lock_samples()
            .last_sample
            .is_none_or(|last| last.elapsed() >= SAMPLE_INTERVAL)
    }

    /// Samples the time of a cache line from core to core. Both cores should be idle.
    pub fn sample(&self) {
        let mut samples = self.lock_samples();
        let first = if samples.cache_line_ns.is_empty() {
            FIRST_SAMPLE_TIME
        } else {
            SAMPLE_TIME
        };
        let ns = median(&mut measure_cache_line(
            self.cores,
            (SAMPLE_TIME, first),
            &self.stop,
        ));
        samples.cache_line_ns.extend(ns);
        samples.last_sample = Some(Instant::now());
    }

    /// Returns the time of a cache line from core to core in nanoseconds: the median of the samples
    /// since the last call. `None` without samples, or with only one core.
    #[must_use]
    pub fn cache_line_ns(&self) -> Option<f64> {
        median(&mut std::mem::take(&mut *self.lock_samples()).cache_line_ns)
    }

    /// Measures one copy of a message of this size on the first core, in nanoseconds; `None` when
    /// stopped.
    #[must_use]
    pub fn copy_ns(&self, size: usize) -> Option<f64> {
        match size {
            0 => Some(0.0),
            _ => pin::run_on_core(self.cores.0, || measure_memcpy(size, &self.stop))
                .map(|(rate, _)| size as f64 / rate * 1e9),
        }
    }

    fn lock_samples(&self) -> std::sync::MutexGuard<'_, CacheLineSamples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures the time of a cache line between the first and the last core of this process. `None`
/// with only one core, or if other programs keep one of the two busy.
#[must_use]
pub fn core_to_core() -> Option<Duration> {
    let cores = pin::available_cores();
    let cores = (cores.first().copied(), cores.last().copied());
    let ns = median(&mut measure_cache_line(
        cores,
        (CACHE_LINE_TIME, CACHE_LINE_TIME),
        &Stop::default(),
    ));
    Some(Duration::from_secs_f64(ns? / 1e9))
}

/// Measures the bytes per second that one core copies between two buffers of this size.
#[must_use]
pub fn memcpy(size: usize) -> f64 {
    measure_memcpy(size, &Stop::default()).map_or(0.0, |(rate, _)| rate)
}

/// Measures half a round trip of eight bytes over loopback TCP with non-blocking calls: the median,
/// in nanoseconds.
///
/// # Errors
/// [`Error::Io`] if the system has no descriptors or threads left.
pub fn tcp_half_round_trip(
    cores: (Option<usize>, Option<usize>),
    time: Duration,
) -> Result<Option<f64>> {
    let mut record = Record::default();
    socket::tcp_spinning(cores, time)
        .map_err(Error::io("tcp socket"))?
        .fill_record(&mut record);
    Ok(record.p50_ns)
}

/// Measures the eight-byte messages per second over loopback TCP in one direction, one call each.
///
/// # Errors
/// As [`tcp_half_round_trip`].
pub fn tcp_message_rate(cores: (Option<usize>, Option<usize>), time: Duration) -> Result<f64> {
    socket::tcp_send_rate(cores, time).map_err(Error::io("tcp socket"))
}

/// Measures the whole floor on the first two cores; passes each result to `emit` when it is there.
///
/// # Errors
/// Those of `emit`; [`Error::Io`] if the system has no descriptors or threads left.
pub fn measure(
    pin: &CorePinning,
    stop: &Stop,
    mut emit: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    let (local_core, remote_core) = pin.worker_cores(0);
    let blank = |provider: &str, op: &str, wait: &str, size| Record {
        bench: "floor".into(),
        provider: provider.into(),
        op: op.into(),
        wait: wait.into(),
        size,
        window: 1,
        peers: 1,
        threads: 1,
        ..Record::default()
    };
    progress_bar::show("core to core", 0.0);
    let mut runs = measure_cache_line(
        (local_core, remote_core),
        (CACHE_LINE_TIME, CACHE_LINE_TIME),
        stop,
    );
    if let Some(ns) = median(&mut runs) {
        emit(Record {
            p50_ns: Some(ns),
            samples: runs.len() as u64,
            ..blank("core to core", "line", "spin", 8)
        })?;
    }
    for size in MEMCPY_SIZES {
        progress_bar::show("memcpy", 0.1);
        let Some((rate, runs)) = pin::run_on_core(local_core, || measure_memcpy(size, stop)) else {
            return Ok(());
        };
        emit(Record {
            bytes_per_s: Some(rate),
            p50_ns: Some(size as f64 / rate * 1e9),
            samples: runs as u64,
            ..blank("memcpy", "copy", "", size)
        })?;
    }
    type PingPong =
        fn((Option<usize>, Option<usize>), Duration) -> std::io::Result<crate::samples::Samples>;
    let ping_pongs: [(&str, &str, PingPong); 6] = [
        ("eventfd", "block", wake::eventfd_ping_pong),
        ("futex", "block", wake::futex_ping_pong),
        ("tcp socket", "block", socket::tcp_blocking),
        ("tcp socket", "spin", socket::tcp_spinning),
        ("unix socket", "block", socket::unix_blocking),
        ("unix socket", "spin", socket::unix_spinning),
    ];
    for (index, (what, wait, ping_pong)) in ping_pongs.into_iter().enumerate() {
        if stop.raised() {
            break;
        }
        progress_bar::show(&format!("{what}, {wait}"), 0.4 + index as f64 * 0.1);
        let samples = ping_pong((local_core, remote_core), WAKE_TIME).map_err(Error::io(what))?;
        let mut record = blank(what, "ping-pong", wait, 8);
        samples.fill_record(&mut record);
        emit(record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_is_measured_once_per_sample() {
        let stop = Stop::default();
        let floor = Floor::new((None, None), &stop);
        assert!(floor.is_due());
        floor.sample();
        assert!(floor.cache_line_ns().is_none_or(|ns| ns > 0.0));
        assert_eq!(floor.cache_line_ns(), None, "each sample counts once");
        assert!(measure_memcpy(4096, &stop).is_some_and(|(rate, runs)| rate > 0.0 && runs > 0));
        assert_eq!(floor.copy_ns(0), Some(0.0));
    }

    #[test]
    fn floor_is_not_measured_on_one_core_or_after_a_stop() {
        let (core, stop) = (pin::available_cores().first().copied(), Stop::default());
        let floor = Floor::new((core, core), &stop);
        floor.sample();
        assert_eq!(floor.cache_line_ns(), None);
        stop.raise();
        assert!(
            measure_cache_line(
                (None, None),
                (Duration::from_secs(600), Duration::from_secs(600)),
                &stop
            )
            .is_empty()
        );
        assert_eq!(measure_memcpy(64, &stop), None);
    }

    #[test]
    fn every_ping_pong_floor_yields_samples() {
        let ping_pongs = [
            wake::eventfd_ping_pong,
            wake::futex_ping_pong,
            socket::tcp_blocking,
            socket::unix_blocking,
            socket::unix_spinning,
        ];
        for ping_pong in ping_pongs {
            assert!(
                ping_pong((None, None), Duration::from_millis(5))
                    .is_ok_and(|samples| samples.count() > 0)
            );
        }
        assert!(
            tcp_message_rate((None, None), Duration::from_millis(5)).is_ok_and(|rate| rate > 0.0)
        );
    }
}
