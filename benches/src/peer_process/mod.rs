//! The second process: started, controlled and ended by the first, or started by hand.
//!
//! | file | subject |
//! |---|---|
//! | `child` | a child process; its stderr is kept for the error text |
//! | `pipe_reader` | reads the output of a process while it runs |
//! | `serve` | the work of the second process |
//! | `control` | control messages |

mod child;
pub(crate) mod control;
pub(crate) mod pipe_reader;
mod serve;

use fabric_async::{Endpoint, FiAddr};
use serde::{Deserialize, Serialize};

pub use child::{ChildProcess, current_program};
pub use serve::{exit_on_stdin_eof, serve};

use crate::cpu::CpuTime;
use crate::measure::Plan;
use crate::options::RuntimeKind;
use crate::{Error, Result};
use control::{recv_control, send_control};

/// A request of the first process.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum ControlRequest {
    /// Start the workers of this plan.
    StartWorkers(Box<Plan>),
    /// Send the processor time.
    CpuTime,
    /// The measurement is over.
    Shutdown,
}

/// The names of the endpoints of each worker.
type EndpointNames = Vec<Vec<String>>;

/// The connection to the second process.
pub struct PeerProcess {
    ep: Endpoint,
    peer: FiAddr,
    child: Option<ChildProcess>,
    // Dropped last: the endpoint's driver runs on it.
    runtime: tokio::runtime::Runtime,
}

impl PeerProcess {
    /// Starts the second process and connects to it.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started; [`Error::ProcessDied`].
    pub fn start(provider: &str) -> Result<Self> {
        let mut command = current_program()?;
        command.args(["serve", "--listen", &format!("{provider}://")]);
        let (child, address) = ChildProcess::start("the peer process", command)?;
        Self::connect_control(&address, Some(child))
    }

    /// Connects to a process that was started by hand with `--listen`.
    ///
    /// # Errors
    /// No process listens at the address.
    pub fn connect(address: &str) -> Result<Self> {
        Self::connect_control(address, None)
    }

    fn connect_control(address: &str, mut child: Option<ChildProcess>) -> Result<Self> {
        let runtime = RuntimeKind::Current
            .build()
            .map_err(Error::io("starting a runtime"))?;
        let connect = async {
            let scheme = address
                .split_once("://")
                .map_or(address, |(scheme, _)| scheme);
            let ep = Endpoint::bind(&format!("{scheme}://")[..]).await?;
            let peer = ep.add_peer(address).await?;
            Ok((ep, peer))
        };
        match runtime.block_on(connect) {
            Ok((ep, peer)) => Ok(Self {
                ep,
                peer,
                child,
                runtime,
            }),
            Err(error) => Err(or_death_error(error, child.as_mut())),
        }
    }

    /// Starts the workers of the other side; returns the names of their endpoints, by worker.
    ///
    /// # Errors
    /// The other side is gone, or cannot start them.
    pub fn start_workers(&mut self, plan: &Plan) -> Result<EndpointNames> {
        self.request(&ControlRequest::StartWorkers(Box::new(plan.clone())))
    }

    /// Returns the processor time of the other side.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn cpu_time(&mut self) -> Result<Option<CpuTime>> {
        self.request(&ControlRequest::CpuTime)
    }

    /// Tells the other side that the measurement is over.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn shutdown(&mut self) -> Result<()> {
        self.runtime
            .block_on(send_control(&self.ep, self.peer, &ControlRequest::Shutdown))
    }

    /// Replaces an error by the death of the other process, if it is dead.
    pub fn or_death_error(&mut self, error: Error) -> Error {
        or_death_error(error, self.child.as_mut())
    }

    fn request<T: serde::de::DeserializeOwned>(&self, request: &ControlRequest) -> Result<T> {
        self.runtime.block_on(async {
            send_control(&self.ep, self.peer, request).await?;
            Ok(recv_control(&self.ep, Some(self.peer)).await?.1)
        })
    }
}

fn or_death_error(error: Error, child: Option<&mut ChildProcess>) -> Error {
    match child {
        Some(child) => child.or_death_error(error),
        None => error,
    }
}
