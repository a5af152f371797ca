//! What the fabric is compared with: a file each, behind one trait.
//!
//! | file | peer |
//! |---|---|
//! | `ours` | the fabric itself |
//! | `datagrams` | the fabric over udp |
//! | `sockets` | Tokio's `TcpStream` and `UnixStream` |
//! | `fi_pingpong` | libfabric, by its own program |
//! | `ucx_perftest` | UCX, by its own program |
//! | `iceoryx2` | the crate of this name, with the feature of this name |
//! | `program` | running such a program twice, as server and client |
//!
//! A new one is a file here and a line in [`all`]. A program of others is run by `program`, which
//! pins both sides and ends them; the file says its arguments and reads what it prints. What this
//! program measures itself takes a little more, as `sockets` shows:
//!
//! 1. The other side is a hidden command in `cli`. It calls
//!    [`exit_on_stdin_eof`](crate::pair::until_stdin_ends) first, so that it never outlives us, and
//!    prints `listening on ADDRESS` when it can be reached.
//! 2. [`ChildProcess::start`](crate::pair::ChildProcess::start) starts it, within [`pin::on`] the second core of
//!    the case; the measuring runs within [`pin::on`] the first. What is asynchronous runs as a
//!    task, by `RuntimeKind::run`.
//! 3. `RoundScheduler` say how many messages come next, and take the first round for warm-up. Before the
//!    clock starts, buffers are touched, stamps are reserved, and the other side has said that it
//!    is ready.
//! 4. The result is `case.record` with numbers by `rounds::describe`, `timer_ns`, and the words of
//!    [`choice`](crate::choice) for `op`, `api`, `wait`, `progress` and `runtime` where they fit;
//!    what does not apply stays empty.
//! 5. When `stop` is raised it ends within a second or so; what it returns then does not count.

mod fabric;
mod fabric_udp;
mod fi_pingpong;
#[cfg(feature = "iceoryx2")]
mod iceoryx2;
mod program;
mod tokio_sockets;
mod ucx_perftest;

use std::time::Duration;

pub use fabric::FabricPeer;
pub use fabric_udp::{FabricUdp, echo_datagrams, with_loss_timeout};
pub use fi_pingpong::FiPingpong;
#[cfg(feature = "iceoryx2")]
pub use iceoryx2::{Iceoryx2, echo_iceoryx2};
pub use program::exec_tied;
pub use tokio_sockets::{TokioSocket, serve_echo};
pub use ucx_perftest::UcxPerftest;

use crate::options::{Bench, BenchOp, name};
use crate::record::Record;
use crate::samples::{round_to_tenths, timer_cost};
use crate::stop::Stop;
use crate::{Result, pin};

/// Two processes that pass messages of one size.
#[derive(Clone, Copy, Debug)]
pub struct BenchCase {
    /// Half round trips, or a stream.
    pub bench: Bench,
    /// By which operation.
    pub op: BenchOp,
    /// Bytes of a message.
    pub size: usize,
    /// About how long.
    pub time: Duration,
    /// The core of the measuring side, and that of the other.
    pub cores: (Option<usize>, Option<usize>),
}

/// Something that passes messages between two processes and can be measured doing it.
pub trait BenchPeer {
    /// Its name in results.
    fn name(&self) -> &str;

    /// What keeps it from being measured here, and how to install it; `None` when nothing does.
    fn unavailable(&self) -> Option<String>;

    /// Whether this can be measured with it. Only messages, where nothing else is said.
    fn supports(&self, case: &BenchCase) -> bool;

    /// Measures it once; ends early when it is told to stop. The other side is a fresh process, and
    /// programs of others measure in a fresh one as well.
    ///
    /// # Errors
    /// One of the processes failed, or said what is not understood.
    fn measure(&self, case: &BenchCase, stop: &Stop) -> Result<Record>;
}

/// All peers there are, the fabric over this provider first.
#[must_use]
pub fn all_peers(provider: &str) -> Vec<Box<dyn BenchPeer>> {
    vec![
        if provider == "udp" {
            Box::new(FabricUdp)
        } else {
            Box::new(FabricPeer::new(provider))
        },
        #[cfg(feature = "iceoryx2")]
        Box::new(Iceoryx2),
        Box::new(UcxPerftest::TAG),
        Box::new(UcxPerftest::AM),
        Box::new(FiPingpong::SHM),
        Box::new(FiPingpong::TCP),
        Box::new(FiPingpong::UDP),
        Box::new(TokioSocket::Unix),
        Box::new(TokioSocket::Tcp),
    ]
}

impl BenchCase {
    /// A result of this case without numbers. Nobody says how many messages of a stream are under
    /// way.
    fn empty_record(&self, peer: &dyn BenchPeer) -> Record {
        Record {
            bench: name(self.bench),
            provider: peer.name().to_owned(),
            op: name(self.op),
            size: self.size,
            window: usize::from(self.bench == Bench::Lat),
            peers: 1,
            threads: 1,
            ..Record::default()
        }
    }

    /// What a look at the clock costs where this is measured.
    fn timer_ns(&self) -> f64 {
        round_to_tenths(pin::run_on_core(self.cores.0, timer_cost))
    }

    /// How many round trips, or messages, fill the time if one takes about so long.
    fn estimate_count(&self, per_message: Duration) -> u64 {
        ((self.time.as_secs_f64() / per_message.as_secs_f64()) as u64).max(100)
    }
}
