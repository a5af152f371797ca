//! The instruments of the benchmark harness: what this machine can do at all, and where processes run.

pub mod floor;
pub mod pin;
