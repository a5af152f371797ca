//! The physical floor: what no library can go below on this machine.
//!
//! | file | subject |
//! |---|---|
//! | `line` | a cache line that bounces between two cores |
//! | `copy` | copying memory |
//! | `bounce` | a turn that is passed to and fro between two threads |
//! | `wake` | passing it by eventfd and by futex: what waking a sleeper costs |
//! | `socket` | passing it over loopback TCP and Unix sockets, sleeping and spinning |

mod bounce;
mod copy;
mod line;
mod socket;
mod wake;

use std::time::Duration;

use crate::pin::{self, Pin};
use crate::record::Record;
use crate::stop::Stop;
use crate::{Error, Result, progress};

pub use copy::memcpy;
pub use line::{between, core_to_core};

/// Sizes whose copying is shown.
const COPIES: [usize; 6] = [64, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];
/// How long one way of waking is measured.
const TIME: Duration = Duration::from_millis(500);

/// The least that a message takes on a pair of cores.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    line_ns: f64,
    here: Option<usize>,
}

impl Floor {
    /// Measures it, on these cores.
    #[must_use]
    pub fn measure(here: Option<usize>, there: Option<usize>) -> Self {
        Self { line_ns: between(here, there).as_secs_f64() * 1e9, here }
    }

    /// A cache line from core to core, in nanoseconds.
    #[must_use]
    pub fn line_ns(&self) -> f64 {
        self.line_ns
    }

    /// One copy of a message of this size on the first of the cores, in nanoseconds; measured now.
    #[must_use]
    pub fn copy_ns(&self, size: usize) -> f64 {
        if size == 0 { 0.0 } else { size as f64 / pin::on(self.here, || memcpy(size)) * 1e9 }
    }
}

/// Measures all of it on the first two cores; each result is passed on when it is there.
///
/// # Errors
/// The system has no descriptors or threads left.
pub fn measure(pin: &Pin, stop: &Stop, mut emit: impl FnMut(Record) -> Result<()>) -> Result<()> {
    let (here, there) = pin.lane(0);
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
    progress::show("core to core", 0.0);
    let line_ns = Floor::measure(here, there).line_ns();
    emit(Record {
        p50_ns: Some(line_ns),
        samples: line::RUNS as u64,
        ..blank("core to core", "line", "spin", 8)
    })?;
    for size in COPIES {
        if stop.raised() {
            return Ok(());
        }
        progress::show("memcpy", 0.1);
        let rate = pin::on(here, || memcpy(size));
        emit(Record {
            bytes_per_s: Some(rate),
            p50_ns: Some(size as f64 / rate * 1e9),
            samples: copy::RUNS as u64,
            ..blank("memcpy", "copy", "", size)
        })?;
    }
    type Way = fn((Option<usize>, Option<usize>), Duration) -> std::io::Result<crate::samples::Samples>;
    let ways: [(&str, &str, Way); 6] = [
        ("eventfd", "block", wake::eventfds),
        ("futex", "block", wake::futexes),
        ("tcp socket", "block", socket::tcp_blocking),
        ("tcp socket", "spin", socket::tcp_spinning),
        ("unix socket", "block", socket::unix_blocking),
        ("unix socket", "spin", socket::unix_spinning),
    ];
    for (number, (what, wait, way)) in ways.into_iter().enumerate() {
        if stop.raised() {
            break;
        }
        progress::show(&format!("{what}, {wait}"), 0.4 + number as f64 * 0.1);
        let samples = way((here, there), TIME).map_err(Error::io(what))?;
        let mut record = blank(what, "ping-pong", wait, 8);
        samples.describe(&mut record);
        emit(record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_somewhere() {
        assert!(core_to_core() > Duration::ZERO);
        assert!(memcpy(4096) > 0.0);
        assert!(Floor::measure(None, None).copy_ns(0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_turn_is_passed_in_every_way() {
        let ways = [
            wake::eventfds,
            wake::futexes,
            socket::tcp_blocking,
            socket::unix_blocking,
            socket::unix_spinning,
        ];
        for way in ways {
            assert!(way((None, None), Duration::from_millis(5)).is_ok_and(|samples| samples.count() > 0));
        }
    }
}
