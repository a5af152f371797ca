//! The benchmark program: measurements, and the commands of `fabric-bench`.
//!
//! | module | subject |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`options`], [`size`], [`pin`] | command line values: operations, interfaces, sizes, cores |
//! | [`floor`] | the floor of the machine: cache lines, `memcpy`, wake-ups, sockets |
//! | [`measure`] | latency, bandwidth and rate: plan, rounds, initiator, responder |
//! | [`peer_process`] | the second process: started, watched, controlled |
//! | [`peers`], [`compare`] | other libraries behind one trait; measuring them in turn |
//! | [`goals`], [`congestion`] | goals compared with other software; congestion control |
//! | [`instructions`] | instruction counts of the microbenchmarks |
//! | [`soak`] | all operations mixed, with every message accounted for |
//! | [`siege`] | attacks against a server with honest clients |
//! | [`samples`], [`cpu`], [`memory`], [`limits`] | histograms; CPU time; memory; descriptors |
//! | [`record`], [`table`], [`output`], [`progress_bar`] | results as JSON and as rows; output |
//! | [`report`] | a page with charts |
//! | [`info`] | what the providers offer |
//! | [`stop`], [`error`] | Ctrl-C; errors |

#[cfg(feature = "harness")]
pub mod cli;
#[cfg(feature = "harness")]
pub mod compare;
#[cfg(feature = "harness")]
pub mod congestion;
#[cfg(feature = "harness")]
pub mod cpu;
#[cfg(feature = "harness")]
pub mod error;
#[cfg(feature = "harness")]
pub mod floor;
#[cfg(feature = "harness")]
pub mod goals;
#[cfg(feature = "harness")]
pub mod info;
pub mod instructions;
#[cfg(feature = "harness")]
pub mod limits;
#[cfg(feature = "harness")]
pub mod measure;
#[cfg(feature = "harness")]
pub mod memory;
#[cfg(feature = "harness")]
pub mod options;
#[cfg(feature = "harness")]
pub mod output;
#[cfg(feature = "harness")]
pub mod peer_process;
#[cfg(feature = "harness")]
pub mod peers;
#[cfg(feature = "harness")]
pub mod pin;
#[cfg(feature = "harness")]
pub mod progress_bar;
#[cfg(feature = "harness")]
pub mod record;
#[cfg(feature = "harness")]
pub mod report;
#[cfg(feature = "harness")]
pub mod samples;
#[cfg(feature = "harness")]
pub mod siege;
#[cfg(feature = "harness")]
pub mod size;
#[cfg(feature = "harness")]
pub mod soak;
#[cfg(feature = "harness")]
pub mod stop;
#[cfg(feature = "harness")]
pub mod table;

#[cfg(feature = "harness")]
pub use error::{Error, Result};
