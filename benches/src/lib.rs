//! The benchmark harness: the instruments, and the commands of `fabric-bench` made of them.
//!
//! | room | subject |
//! |---|---|
//! | [`cli`] | the command line, and which command is whose |
//! | [`choice`], [`size`], [`pin`] | what can be asked for, by name: operations, interfaces, sizes, cores |
//! | [`floor`] | what no library can go below on this machine |
//! | [`measure`] | latency, bandwidth and rate over the fabric |
//! | [`pair`] | the second process |
//! | [`peers`], [`compare`] | what we are compared with, a file each; the comparison |
//! | [`goals`], [`congestion`] | what is aimed at; what connections do unless told otherwise |
//! | [`samples`], [`cpu`], [`memory`], [`limits`] | time stamps and what becomes of them; processor time; memory and descriptors |
//! | [`record`], [`table`], [`output`], [`progress`] | results, and how they are shown |
//! | [`report`] | a page with pictures |
//! | [`info`] | what the providers offer |
//! | [`stop`], [`error`] | Ctrl-C; what can go wrong |

pub mod cli;
pub mod compare;
pub mod congestion;
pub mod cpu;
pub mod error;
pub mod floor;
pub mod goals;
pub mod info;
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
pub mod size;
pub mod soak;
pub mod stop;
pub mod table;

pub use error::{Error, Result};
