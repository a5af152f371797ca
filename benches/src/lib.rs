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

pub mod cli;
pub mod compare;
pub mod congestion;
pub mod cpu;
pub mod error;
pub mod floor;
pub mod goals;
pub mod info;
pub mod instructions;
pub mod limits;
pub mod measure;
pub mod memory;
pub mod options;
pub mod output;
pub mod peer_process;
pub mod peers;
pub mod pin;
pub mod progress_bar;
pub mod record;
pub mod report;
pub mod samples;
pub mod siege;
pub mod size;
pub mod soak;
pub mod stop;
pub mod table;

pub use error::{Error, Result};
