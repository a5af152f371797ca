//! Processor time of this process.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Processor time in seconds, with the resolution of the kernel's clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub sys: f64,
}

impl CpuTime {
    /// Returns the processor time of this process so far; `None` without `/proc`.
    #[must_use]
    pub fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::from_stat(&stat, rustix::param::clock_ticks_per_second() as f64)
    }

    /// Parses fields 14 and 15 of `/proc/PID/stat`; the name in field 2 may contain spaces and
    /// brackets.
    fn from_stat(stat: &str, ticks: f64) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest
            .split_ascii_whitespace()
            .skip(11)
            .map(|field| field.parse::<f64>().ok());
        Some(Self {
            user: fields.next()?? / ticks,
            sys: fields.next()?? / ticks,
        })
    }
}

impl Add for CpuTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            sys: self.sys + other.sys,
        }
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            user: self.user - other.user,
            sys: self.sys - other.sys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_is_parsed() {
        let stat = "42 (a) name)) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(
            CpuTime::from_stat(stat, 100.0),
            Some(CpuTime {
                user: 2.5,
                sys: 0.5
            })
        );
        assert_eq!(CpuTime::from_stat("42 (cut", 100.0), None);
        assert!(CpuTime::now().is_some());
    }
}
