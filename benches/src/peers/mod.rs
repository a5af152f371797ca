//! The libraries that are measured, the fabric included: a file each, behind one trait. The option
//! `--peer` selects among them; such a peer is a library, not a remote endpoint.
//!
//! | file | library |
//! |---|---|
//! | `fabric` | the fabric itself |
//! | `fabric_udp` | the fabric over udp |
//! | `byte_streams` | Tokio's `TcpStream` and `UnixStream`, and `FabricStream` |
//! | `calls` | native calls of `fabric-rpc`, tonic and tarpc (`--op rpc`; cargo feature `rpc`) |
//! | `fi_pingpong` | libfabric, by its own program |
//! | `ucx_perftest` | UCX, by its own program |
//! | `iceoryx2` | the crate iceoryx2; needs the cargo feature `iceoryx2` |
//! | `program` | runs another library's benchmark program as server and as client |
//!
//! A new library is a file here and a line in [`measured_libraries`]. Another library's program is
//! run by `program`, which pins both sides and ends them; the file builds its arguments and parses
//! its output. A library that fabric-bench calls directly, instead of running its program, needs
//! the following, as `byte_streams` shows:
//!
//! 1. The responder is a hidden command in `cli`. It first calls
//!    [`exit_on_stdin_eof`](crate::peer_process::exit_on_stdin_eof), so that it never outlives its
//!    parent, and prints `listening on ADDRESS` when it can be reached.
//! 2. [`ChildProcess::start`](crate::peer_process::ChildProcess::start) starts it, within
//!    [`pin::run_on_core`] for `case.cores.1`, the responder's core; the measurement runs within
//!    [`pin::run_on_core`] for `case.cores.0`. Asynchronous code runs as a task, by
//!    `RuntimeKind::run`.
//! 3. `RoundScheduler` says how many messages come next, and takes the first round for warm-up.
//!    Before the measurement starts, fault in the buffers, preallocate the time stamps, and wait
//!    until the responder has reported that it is ready.
//! 4. The result is `case.empty_record` with figures by `rounds::fill_record`, `timer_ns`, and the
//!    names of [`options`](crate::options) for `op`, `api`, `wait`, `progress` and `runtime` where
//!    they apply; what does not apply stays empty.
//! 5. When `stop` is raised the measurement ends within a second or so; its result does not count.

mod byte_streams;
#[cfg(feature = "rpc")]
mod calls;
mod fabric;
mod fabric_udp;
mod fi_pingpong;
#[cfg(feature = "iceoryx2")]
mod iceoryx2;
mod program;
mod ucx_perftest;

use std::time::Duration;

pub use byte_streams::{ByteStream, serve_echo};
#[cfg(feature = "rpc")]
pub(crate) use calls::measure_native;
#[cfg(feature = "rpc")]
pub use calls::{CallService, serve_calls};
pub use fabric::FabricLibrary;
pub use fabric_udp::{FabricUdp, echo_datagrams, with_loss_timeout};
pub use fi_pingpong::FiPingpong;
#[cfg(feature = "iceoryx2")]
pub use iceoryx2::{Iceoryx2, echo_iceoryx2};
pub use program::exec_tied;
pub use ucx_perftest::UcxPerftest;

use crate::options::{Bench, BenchOp, name};
use crate::record::Record;
use crate::samples::{round_to_tenths, timer_cost};
use crate::stop::Stop;
use crate::{Result, pin};

/// A measurement between two processes with messages of one size.
#[derive(Clone, Copy, Debug)]
pub struct BenchCase {
    /// What is measured: latency, bandwidth or message rate.
    pub bench: Bench,
    /// The operation.
    pub op: BenchOp,
    /// Bytes of a message.
    pub size: usize,
    /// About how long to measure.
    pub time: Duration,
    /// The core of the initiator, and that of the responder.
    pub cores: (Option<usize>, Option<usize>),
}

/// A library that passes messages between two processes, and can be measured.
pub trait MeasuredLibrary {
    /// Its name in results.
    fn name(&self) -> &str;

    /// Returns why this library cannot be measured on this machine, and how to install it; `None`
    /// if it can be measured.
    fn unavailable(&self) -> Option<String>;

    /// Whether it can be measured in this case.
    fn supports(&self, case: &BenchCase) -> bool;

    /// Measures it once; ends early after a stop. Starts a new responder process; an external
    /// program also runs its initiator in a new process.
    ///
    /// # Errors
    /// [`Error::ProcessDied`](crate::Error::ProcessDied), or
    /// [`Error::Malformed`](crate::Error::Malformed) if the output cannot be parsed.
    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record>;
}

/// Returns the libraries with this operation, the fabric over this provider first: the services of
/// calls for `rpc`, which need the cargo feature `rpc`, and all others for the rest.
#[must_use]
pub fn measured_libraries(provider: &str, op: BenchOp) -> Vec<Box<dyn MeasuredLibrary>> {
    match op {
        #[cfg(feature = "rpc")]
        BenchOp::Rpc => {
            let boxed = |service| Box::new(service) as Box<dyn MeasuredLibrary>;
            CallService::all(provider).into_iter().map(boxed).collect()
        }
        _ => vec![
            if provider == "udp" {
                Box::new(FabricUdp)
            } else {
                Box::new(FabricLibrary::new(provider))
            },
            #[cfg(feature = "iceoryx2")]
            Box::new(Iceoryx2),
            Box::new(UcxPerftest::TAG),
            Box::new(UcxPerftest::AM),
            Box::new(FiPingpong::SHM),
            Box::new(FiPingpong::TCP),
            Box::new(FiPingpong::UDP),
            Box::new(ByteStream::Unix),
            Box::new(ByteStream::Tcp),
            Box::new(ByteStream::FabricShm),
            Box::new(ByteStream::FabricTcp),
        ],
    }
}

impl BenchCase {
    /// Returns a record of this case without measured values. `window` is 0 for streams, because
    /// the libraries do not report it.
    fn empty_record(&self, peer: &dyn MeasuredLibrary) -> Record {
        Record {
            bench: name(self.bench),
            provider: peer.name().to_owned(),
            op: name(self.op),
            size: self.size,
            window: usize::from(self.bench == Bench::Lat),
            peers: 1,
            threads: 1,
            endpoints: 1,
            ..Record::default()
        }
    }

    /// Measures the cost of reading the clock on the core of the initiator.
    fn timer_ns(&self) -> f64 {
        round_to_tenths(pin::run_on_core(self.cores.0, timer_cost))
    }

    /// Returns how many round trips or messages fill the time if one takes this long; at least 100.
    fn estimate_count(&self, per_message: Duration) -> u64 {
        ((self.time.as_secs_f64() / per_message.as_secs_f64()) as u64).max(100)
    }
}
